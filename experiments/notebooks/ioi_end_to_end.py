# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # IOI, end to end
#
# The indirect object task on the embedded model, as a study of it goes: behaviour, direct logit attribution, activation
# patching, path patching, a circuit, its evaluation. Each step asks what the one before left open, and each claim is
# checked by an intervention.

# %%
import numpy as np

import interp

model = interp.load_model("toy-ioi")
task = interp.load_task("ioi", model, n=96, seed=0)
task

# %% [markdown]
# ## 1. Behaviour
#
# The logit of the right name stands far above that of the wrong one, on nearly every prompt.

# %%
from interp.metrics import get_metric

logits = model.run(task.clean).logits
difference = get_metric("logit_diff")(logits, task)
right = get_metric("choice_accuracy")(logits, task)
assert difference.mean() > 9
assert right.mean() > 0.97
{"logit difference": round(difference.mean().item(), 2), "right name above wrong": round(right.mean().item(), 3)}

# %% [markdown]
# ## 2. Who writes the answer? Direct logit attribution
#
# The logit difference is a sum: what the embedding, each head and each MLP write, read through the final norm. The
# terms add up to it exactly.

# %%
direct = interp.direct_logit_attribution(model, task)
assert direct.gap < 1e-4
direct

# %% [markdown]
# All four heads of layer 1 write the right name. One head of layer 2 writes against it.

# %%
terms = direct.by_head(model.geometry.layers, model.geometry.heads)
assert (terms[1] > 1.5).all()
assert terms[2, 2] < -0.8

# %% [markdown]
# ## 3. Who matters? Activation patching
#
# A head can matter without writing the answer itself. Put one clean head at a time into the corrupt run:

# %%
effects = interp.patch(model, task, sites="z", by="head")
effects.heatmap()

# %% [markdown]
# L0.H1 matters most and writes nothing straight to the logits: it acts through others.

# %%
grid, _, _ = effects.grid()
assert np.unravel_index(grid.argmax(), grid.shape) == (0, 1)
assert abs(terms[0, 1]) < 0.3

# %% [markdown]
# *Where* does the information flow? The residual stream by label: it leaves the repeated name (S2) and arrives at the
# last token (END) between the layers.

# %%
by_label = interp.patch(model, task, sites="resid_pre", by="label")
by_label.heatmap()

# %%
moved = by_label.table().set_index(["layer", "pos_label"])["normalized"]
assert moved[(0, "S2")] > 0.9
assert moved[(2, "END")] > 0.4
assert moved[(2, "S2")] < 0.5

# %% [markdown]
# ## 4. Through whom? Path patching
#
# L0.H1's effect through the values of the layer-1 heads alone, all other heads frozen; then each head's effect straight
# on the logits. An effect is negative where taking the path away lowers the logit difference.

# %%
from interp.interventions.paths import path_effects

movers = [f"a1.h{h}<v>" for h in range(4)]
through = path_effects(model, task, receivers=movers)
straight = path_effects(model, task, receivers=["logits"])
through.heatmap()

# %%
first, last = through.table().set_index("src"), straight.table().set_index("src")
assert first["effect"].idxmin() == "a0.h1"
assert first.loc["a0.h1", "ci_high"] < -3
assert (last.loc[[f"a1.h{h}" for h in range(4)], "ci_high"] < -1).all()
assert abs(last.loc["a0.h1", "effect"]) < 0.3
last.loc[["a0.h1", "a1.h0", "a1.h1", "a1.h2", "a1.h3", "a2.h3"], ["effect", "ci_low", "ci_high", "normalized"]].round(2)

# %% [markdown]
# So: L0.H1 moves the other name to S2, and the heads of layer 1 move it on to the end. Attention says the same.

# %%
from interp.interventions.behaviour import label_attention

seen = label_attention(model, task, [("S2", "IO"), ("END", "S2")]).table()
seen = seen.pivot_table(index=["layer", "head"], columns="dst_label", values="value")
assert seen.loc[(0, 1), "S2"] > 0.5
assert (seen.loc[1, "END"] > 0.9).all()
seen.round(2).rename(columns={"S2": "S2 → IO", "END": "END → S2"})

# %% [markdown]
# ## 5. The circuit
#
# Edge scores by integrated gradients (EAP-IG) on one half of the prompts; the 40 best edges.

# %%
from interp.circuits.discover import discover
from interp.circuits.running import Evaluator

discovery, evaluation = task.split(0.5, seed=1)
found = discover(model, discovery, "eap_ig_inputs", size=40)
circuit = found.circuit
assert "a1.h1->logits" in circuit
assert any(e.src.head == 1 and e.src.layer == 0 and e.dst.part == "v" for e in circuit)
found

# %% [markdown]
# ## 6. Evaluation, on the other half
#
# Faithfulness over circuit size: the share of the model's behaviour that the best edges keep.

# %%
import pandas as pd

from interp.circuits.curve import faithfulness_curve
from interp.plots import lines

at = Evaluator.of(model, evaluation)
curve = faithfulness_curve(at, circuit.scores, shares=(0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0))
drawn = pd.DataFrame([r for r in curve.rows() if r["series"] == "faithfulness"])
lines(drawn, x_title="share of edges kept", unit="faithfulness", title="Faithfulness over circuit size")

# %% [markdown]
# The circuit explains the model, its complement does not, and hypothesis tests say how sure that is.

# %%
from interp.circuits.evaluate import Settings, evaluate

rows = pd.DataFrame(evaluate(at, circuit, Settings(random=30, draws=5, greedy_steps=4, references=20)).rows)
f = rows[(rows["series"] == "faithfulness") & rows["x_name"].isna()].set_index("side")
assert f.loc["circuit", "ci_low"] > 0.8
assert f.loc["complement", "value"] < 0.3
f.loc[["circuit", "complement"], ["value", "ci_low", "ci_high"]].round(3)

# %%
tests = rows[rows["series"].str.startswith("test")].groupby("series", sort=False).first()
tests[["algorithm", "value", "p_value", "n"]].round(4)

# %% [markdown]
# ## What this does not show
#
# Faithfulness is about these prompts and this ablation. Another ablation may need other edges, as here:

# %%
from interp.interventions.sources import Recipe

zero = Evaluator.of(model, evaluation, recipe=Recipe("zero"))
under_zero = zero.faithfulness(zero.values([circuit]))
print(f"corrupt prompts' values: {f.loc['circuit', 'value']:.2f}; zeros: {under_zero.value[0]:.2f}")
assert abs(under_zero.value[0] - f.loc["circuit", "value"]) > 0.05
