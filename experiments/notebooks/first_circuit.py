# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A first circuit in ten minutes
#
# Which parts of a model cause a behaviour, and how sure are we? We take a small model that ships with this package,
# measure one behaviour, find the heads that carry it, cut the model down to a circuit, and check the circuit on
# prompts that took no part in finding it.

# %%
import interp

model = interp.load_model("toy-ioi")
model

# %% [markdown]
# ## The behaviour
#
# *When Mary and John went to the store, John gave a drink to* … **Mary**: the name that was not repeated. A task pairs
# every prompt with a corrupt one, here with another name in the place of the repeated one, so that neither is right.

# %%
task = interp.load_task("ioi", model, n=64, seed=0)
task

# %% [markdown]
# The metric is one number per prompt: logit of the right name − logit of the wrong one.

# %%
from interp.metrics import get_metric

logit_diff = get_metric("logit_diff")
clean = logit_diff(model.run(task.clean).logits, task)
corrupt = logit_diff(model.run(task.corrupt).logits, task, "corrupt")
assert clean.mean() > 9
assert abs(corrupt.mean()) < 3
{"clean": round(clean.mean().item(), 2), "corrupt": round(corrupt.mean().item(), 2)}

# %% [markdown]
# ## Which heads carry it?
#
# Run the corrupt prompts, put back one head's clean output at a time, and see how much of the behaviour returns.
# Hover over a cell for its 95% interval over prompts; a dot marks intervals that include 0.

# %%
effects = interp.patch(model, task, sites="z", by="head")
effects.heatmap()

# %% [markdown]
# One head of the first layer brings back more than half of it. The table has the numbers.

# %%
table = effects.table().sort_values("effect", ascending=False)
best = table.iloc[0]
assert (best["layer"], best["head"]) == (0, 1)
assert best["normalized_low"] > 0.5
assert table.iloc[1]["ci_high"] < best["ci_low"]
table[["layer", "head", "effect", "ci_low", "ci_high", "normalized", "n"]].head(6).round(3)

# %% [markdown]
# What does it do? Its attention pattern on the first prompt, from the run that every other number comes from:

# %%
run = model.run(task.clean, capture=["pattern"])
run.attention(0, prompt=0, heads=[1])

# %% [markdown]
# At the second mention of the repeated name it looks at the *other* name, and moves it there; the picture is one
# prompt, the number is all of them.

# %%
from interp.interventions.behaviour import label_attention

attention = label_attention(model, task, [("S2", "IO")]).table().set_index(["layer", "head"])
assert attention["value"].idxmax() == (0, 1)
assert attention.loc[(0, 1), "ci_low"] > 0.5
attention.loc[[(0, 1)], ["value", "ci_low", "ci_high", "n"]].round(3)

# %% [markdown]
# ## The circuit
#
# Heads and MLPs read and write one stream; an edge is one's writing as read by another. Score every edge on one half
# of the prompts, keep the 30 best (those of them that lie on a path from input to logits), and run the model with all
# other edges carrying the corrupt prompt's values.

# %%
from interp.circuits.discover import discover
from interp.circuits.running import Evaluator

discovery, evaluation = task.split(0.5, seed=0)
found = discover(model, discovery, "eap_ig_inputs", size=30)
assert 25 <= len(found.circuit) <= 30
found.circuit.draw(title=f"The {len(found.circuit)} edges that are kept")

# %% [markdown]
# ## Is it right?
#
# Faithfulness on the other half: 1 is the whole model, 0 is all edges ablated. Random circuits of the same size give
# nothing, so size alone does not explain it.

# %%
import numpy as np

from interp.circuits.random_circuits import random_circuits

at = Evaluator.of(model, evaluation)
others = random_circuits(at.graph, len(found.circuit), 20, np.random.default_rng(0))
f = at.faithfulness(at.values([found.circuit, *others]))
assert f.low[0] > 0.8
assert f.value[1:].max() < 0.3
print(f"circuit: {f.value[0]:.2f}, 95% interval {f.low[0]:.2f} to {f.high[0]:.2f}")
print(f"best of 20 random circuits of its size: {f.value[1:].max():.2f}")

# %% [markdown]
# ## What to do next
#
# `found.circuit`, `effects.table()` and `run["L0.pattern"]` are values to go on with; `effects.save("results")` writes
# the table with its origin. *IOI end to end* asks the same question with every tool of this package, *Bring your own*
# with your model and data.
