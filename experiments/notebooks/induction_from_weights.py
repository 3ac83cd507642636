# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Induction heads, from weights
#
# `attn-2l` is an attention-only model of two layers, trained on novels. It repeats what it has read before: after
# `A B … A` it expects `B`. Two heads do that together: one looks one token back, the other finds where the present
# token was seen before and copies what followed. Can that be read off the weights, without running a single prompt?

# %%
import numpy as np
import torch

import interp

model = interp.load_model("attn-2l")
model

# %% [markdown]
# ## What the heads do, by running
#
# First the ordinary way: attention on random tokens that repeat. Nothing but the repetition can be used there.

# %%
from interp.plots import heatmap
from interp.weights.heads import head_scores

layers, heads = [f"L{i}" for i in range(2)], [f"H{i}" for i in range(8)]
scores = head_scores(model, n=8, seed=0)
previous = scores.best("previous")
induction = [h for h in range(8) if scores.mean("induction")[1, h] > 0.4]
assert previous[0] == 0
assert scores.mean("previous")[previous] > 0.8
assert induction
assert scores.mean("induction")[0].max() < 0.2
print(f"previous token: L0.H{previous[1]}; induction: {', '.join(f'L1.H{h}' for h in induction)}")
heatmap(scores.mean("induction"), layers, heads, title="Attention to what followed last time", unit="fraction")

# %%
from interp.tasks.repeated import repeated

prompts = repeated(list(range(1, 1024)), period=10, n=1, seed=0, n_ctx=model.geometry.n_ctx)
run = model.run(prompts, capture="pattern")
run.attention(1, heads=induction)

# %% [markdown]
# The stripe in the lower half: each token of the second period attends to the token *after* its first occurrence.
#
# ## The same from the weights
#
# A head's QK circuit says which key token a query token looks for, its OV circuit what it writes for a token it reads.
# For an induction head the key is what the previous-token head wrote about the token *before*. How much of that
# head's writing do a later head's keys read? K-composition, above that of random matrices of the same singular values:

# %%
from interp.weights.composition import composition

keys = composition(model, "k", delta=9)
excess, p = keys.excess[0, :, 1, :], keys.p_value[0, :, 1, :]
assert all(int(excess[:, h].argmax()) == previous[1] for h in induction)
assert all(p[previous[1], h] < 0.05 for h in induction)
heatmap(
    excess, [f"L0.{h}" for h in heads], [f"L1.{h}" for h in heads], title="K-composition above chance",
    row_title="written by", column_title="keys of",
)  # fmt: skip

# %% [markdown]
# For every induction head the previous-token head is the one it reads most: the row and the columns that running the
# model had found. Norms say that it is read, not what for. Put the first head's OV circuit in front of the second's
# keys, `W_E W_QK W_OVᵀ W_Eᵀ`, token against token: does a token stand out among the matches of itself? The margin is in
# standard deviations of a row.

# %%
from interp.weights.matching import matching

margin = matching(model, "k", delta=9).margin[0, :, 1, :]
assert all(int(margin[:, h].argmax()) == previous[1] for h in induction)
assert all(margin[previous[1], h] > 0.5 for h in induction)
heatmap(
    margin, [f"L0.{h}" for h in heads], [f"L1.{h}" for h in heads], unit="standard deviations",
    title="How well a token matches itself through both heads", row_title="moved by", column_title="looked up by",
)  # fmt: skip

# %% [markdown]
# ## Copying
#
# What it finds, it must also write: the eigenvalues of its OV circuit between tokens, `W_E W_OV W_U`, are then
# positive. The score is Σλ / Σ|λ|, 1 where each token raises itself.

# %%
from interp.weights.copying import copying_eigenvalues, copying_score

copies = copying_score(copying_eigenvalues(model))
assert all(copies[1, h] > 0.4 for h in induction)
heatmap(copies, layers, heads, title="Copying: Σλ / Σ|λ| of the OV circuit between tokens", limit=1.0)

# %% [markdown]
# ## The prediction, tested
#
# If the weights are read rightly, then without the previous-token head the induction heads lose their stripe, and the
# model its advantage on repeated text. Each head of layer 0 is set to zero in turn:

# %%
many = repeated(list(range(1, 1024)), period=20, n=16, seed=1, n_ctx=model.geometry.n_ctx)


def stripe(edits=()):
    """Mean attention of the induction heads to what followed last time, over the second period."""
    pattern = model.run(many, capture="L1.pattern", edits=edits)["L1.pattern"][:, induction]
    return pattern.diagonal(offset=-19, dim1=2, dim2=3)[..., 1:].mean().item()


def loss(edits=()):
    """Mean loss over the second period, where copying pays, in nats."""
    logits = model.run(many, edits=edits).logits[:, 20:-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), many.tokens[:, 21:].flatten()).item()


without = {f"L0.H{h}": [interp.zero("L0.z", head=h)] for h in range(8)}
stripes = {"whole model": stripe(), **{name: stripe(edits) for name, edits in without.items()}}
losses = {"whole model": loss(), **{name: loss(edits) for name, edits in without.items()}}
name = f"L0.H{previous[1]}"
assert stripes["whole model"] > 0.6
assert stripes[name] < 0.2 * stripes["whole model"]
assert min(stripes, key=stripes.get) == name
assert losses[name] > losses["whole model"] + 1.0
assert max(losses, key=losses.get) == name

# %%
import pandas as pd

pd.DataFrame({"attention to what followed": stripes, "loss on repeats, nats": losses}).round(2)

# %% [markdown]
# The prediction holds: of all heads of the first layer, the previous-token head is the one whose loss costs the stripe
# and the copying. Even guessing would cost log 1024 = 6.93 nats.

# %%
assert round(np.log(1024), 2) == 6.93
