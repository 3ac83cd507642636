# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Bring your own model and data
#
# A Hugging Face model object, a table of prompt pairs, a metric and a function of your own; a table with intervals and
# its origin comes out. The model here is a small Llama with random weights, so nothing is downloaded: in its place
# stands `interp.load_model("/path/to/folder")`, a hub name, or any `AutoModelForCausalLM` you hold.

# %%
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import interp

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64, hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=6,
    num_key_value_heads=2, max_position_embeddings=32, attn_implementation="eager",
)  # fmt: skip
module = LlamaForCausalLM(config).eval()
model = interp.load_model(module)
model

# %% [markdown]
# It is taken as it is: its logits, through our forward pass, are those of its own eager attention, bit for bit on a
# CPU.

# %%
tokens = torch.randint(0, 64, (4, 10))
with torch.no_grad():
    own = module(tokens).logits
assert torch.equal(model.run(tokens).logits, own)
model.sites()

# %% [markdown]
# ## Your prompts
#
# A table of pairs: CSV, JSON lines, a frame or a list of dicts; text where the model has a tokenizer, token ids
# otherwise. Pairs of one length can be patched by position. What is wrong is reported together, before anything runs:

# %%
rows = [{"clean": [i, 7, 8, i], "corrupt": [i, 9, 8, i], "right": [20 + i], "wrong": [40 + i]} for i in range(1, 13)]
try:
    interp.task_from_table(
        [
            *rows,
            {"clean": [1, 2], "corrupt": [1, 2, 3], "right": [5], "wrong": [6]},
            {"clean": [99], "corrupt": [1], "right": [5], "wrong": [6]},
        ],
        model,
    )
    raise AssertionError("bad rows must be refused")
except interp.UserError as error:
    print(error)

# %%
task = interp.task_from_table(rows, model, name="mine")
effects = interp.patch(model, task, sites="resid_pre", by="position")
effects.heatmap()

# %% [markdown]
# The prompts first differ at position 1, so nothing can happen before it; and at the last position of the last layer
# everything that is to be known has arrived.

# %%
moved = effects.table().set_index(["layer", "pos"])["normalized"]
assert moved[(0, 0)] == 0
assert moved[(0, 1)] > 0.999
assert moved[(2, 0)] == 0

# %% [markdown]
# ## Your metric
#
# One number per prompt. The same decorator in a package of yours, named in an entry point, makes it a choice of every
# experiment.


# %%
@interp.register_metric(unit="nats", better="higher", reads="vocab", needs_wrong=True)
def log_odds(view, task, reference=None):
    """Log-probability of the likeliest right answer − of the likeliest wrong one."""
    from interp.metrics import answer_logprobs

    right, wrong = answer_logprobs(view, task)
    return right.amax(1) - wrong.amax(1)


ablated = interp.ablate(model, task, sites=["z", "mlp_out"], by="layer", metric="log_odds", ablation="mean")
ablated

# %% [markdown]
# ## Your function
#
# On any site, for every run inside the block: here keys that are one step old. Its effect is measured like any other.

# %%
with model.hooks(("L1.k_rot", lambda x, ctx: x.roll(1, dims=1))):
    rolled = model.run(task.clean).logits
assert not torch.equal(rolled, model.run(task.clean).logits)
from interp.metrics import get_metric

before, after = (get_metric("log_odds")(x, task) for x in (model.run(task.clean).logits, rolled))
print(f"log odds: {before.mean():.4f} before, {after.mean():.4f} with old keys")

# %% [markdown]
# ## The same with text
#
# The embedded model has a tokenizer, so a CSV of sentences will do. `template` names what prompts have in common:
# intervals are then drawn over templates, not over prompts, once there are five.

# %%
import tempfile
from pathlib import Path

folder = Path(tempfile.mkdtemp())
names = ["Mary", "John", "Tom", "James", "Dan", "Martin", "Amy", "Scott"]
lines = ["clean,corrupt,right,wrong"]
for a, b in zip(names, names[1:] + names[:1], strict=True):
    text = "When {a} and {b} went to the store, {c} gave a drink to"
    lines.append(f'"{text.format(a=a, b=b, c=b)}","{text.format(a=a, b=b, c=a)}", {a}, {b}')
(folder / "pairs.csv").write_text("\n".join(lines) + "\n")

toy = interp.load_model("toy-ioi")
pairs = interp.task_from_table(folder / "pairs.csv", toy)
pairs

# %%
patched = interp.patch(toy, pairs, sites="z", by="head")
assert patched.table()["n"].eq(8).all()
patched.heatmap()

# %% [markdown]
# ## As a cell, with its origin
#
# `run_cell` is what the shell's `interp run` calls: the same numbers, in a folder that says how they were made. Asked
# again, it is read, not computed.

# %%
settings = {"model": "toy-ioi", "task": str(folder / "pairs.csv"), "sites": ["z"]}
cell = interp.run_cell("activation_patching", settings, out=folder / "results")
again = interp.run_cell("activation_patching", settings, out=folder / "results")
assert again.reused
assert cell.table().equals(again.table())
assert (cell.table()["effect"] - patched.table()["effect"]).abs().max() < 1e-6
run = cell.run()
{k: run[k] for k in ("experiment", "model", "seed", "device", "dtype", "reproducible", "rows")}

# %% [markdown]
# ## Is every site right, on your model?
#
# `site_audit` checks the whole contract of the sites on it: no-op edits change no bit, cuts carry everything, values
# agree with their definitions. From a shell: `interp run site_audit --model FOLDER`.

# %%
from interp.interventions.audit import site_audit

audit = site_audit(model, length=5, settings=("unpadded",))
assert audit.passed
print(f"{len(audit.rows)} checks, all held: {audit.passed}")
