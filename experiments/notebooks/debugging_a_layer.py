# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Debugging a PyTorch layer
#
# A module of your own, in plain PyTorch, trains badly. `interp.wrap` gives every place inside it a name, without
# touching it: what goes in, attention scores and patterns, each head, the MLP, the residual stream, and gradients at
# all of them. Three faults are planted here, and each is found by an intervention.

# %%
import torch
from torch import nn

import interp
from interp.models.wrap import layer_row


class Layer(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.up, self.down = nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, x, mask):
        h = self.norm1(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.down(torch.relu(self.up(self.norm2(x))))


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(16, 32), nn.Embedding(12, 32)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 16)

    def forward(self, tokens):
        n = tokens.shape[1]
        x = self.tokens(tokens) + self.places(torch.arange(n))
        for layer in self.layers:
            x = layer(x, torch.ones(n, n, dtype=torch.bool).triu(1))
        return self.head(self.norm(x))


# %% [markdown]
# One row says where a layer keeps its parts; that is all this package is told. The wrapped run equals the module's own.

# %%
ROW = layer_row(
    "small",
    attn="attention",
    qkv=("attention",),
    packing="in_proj",
    out="attention.out_proj",
    ln1="norm1",
    ln2="norm2",
    mlp_in="up",
    act=torch.relu,
    mlp_out="down",
)


def wrapped(module, row=ROW):
    return interp.wrap(
        module,
        layers="layers",
        row=row,
        embed="tokens",
        pos_embed="places",
        final="norm",
        unembed="head",
        causal=True,
        n_ctx=12,
    )


def batch(n, seed):
    return torch.randint(0, 16, (n, 12), generator=torch.Generator().manual_seed(seed))


torch.manual_seed(0)
good = Small()
model = wrapped(good)
tokens = batch(32, 0)
assert model.difference(tokens) < 1e-5
model

# %% [markdown]
# ## Fault 1: a token that sees the future
#
# The task is to say which token stood three places back. This one learns it suspiciously well on the *next* token too:
# somebody left the mask out of the second layer. Which layer is it? Change the last token only. In a causal model
# nothing before it may move.


# %%
class Leaky(Layer):
    def forward(self, x, mask):
        return super().forward(x, torch.zeros_like(mask))


leaky = Small()
leaky.layers[1] = Leaky()
changed = tokens.clone()
changed[:, -1] = (changed[:, -1] + 1) % 16
assert (leaky(tokens)[:, :-1] != leaky(changed)[:, :-1]).any()

# %% [markdown]
# Wrapped as causal, the run would differ from the module's own: `difference` says so at once, before anything else is
# believed.

# %%
gap = wrapped(leaky).difference(tokens)
assert gap > 1e-2
print(f"largest difference of the causal run from the module's own: {gap:.2f}")

# %% [markdown]
# Repair one layer at a time, and see which one closes the gap:

# %%
import copy

gaps = {}
for i in range(2):
    repaired, layer = copy.deepcopy(leaky), Layer()
    layer.load_state_dict(leaky.layers[i].state_dict())
    repaired.layers[i] = layer
    gaps[f"layer {i} repaired"] = wrapped(repaired).difference(tokens)
assert gaps["layer 0 repaired"] > 1e-2
assert gaps["layer 1 repaired"] < 1e-5
{name: f"{gap:.1e}" for name, gap in gaps.items()}

# %% [markdown]
# ## Fault 2: a head that does nothing
#
# A trained model in which one head's output weights were never updated. Zero each head and compare accuracy; all of
# the others matter or share work, one changes nothing at all, to the last bit.


# %%
def accuracy(logits):
    return (logits[:, 3:].argmax(-1) == tokens[:, :-3]).float().mean().item()


torch.manual_seed(1)
trained = Small()
optimiser = torch.optim.AdamW(trained.parameters(), lr=3e-3)
for step in range(150):
    x = batch(64, step + 1)
    loss = nn.functional.cross_entropy(trained(x)[:, 3:].flatten(0, 1), x[:, :-3].flatten())
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
with torch.no_grad():
    trained.layers[0].attention.out_proj.weight[:, 8:16] = 0  # head 1 of layer 0

model = wrapped(trained.eval())
plain = model.run(tokens, capture=["pattern"])
assert accuracy(plain.logits) > 0.9
change = {}
for layer in range(2):
    for head in range(4):
        logits = model.run(tokens, edits=[interp.zero(f"L{layer}.z", head=head)]).logits
        change[f"L{layer}.H{head}"] = (logits - plain.logits).abs().max().item()
assert [name for name, size in change.items() if size == 0] == ["L0.H1"]
{name: round(size, 2) for name, size in change.items()}

# %% [markdown]
# The heads that matter look three tokens back, as they should:

# %%
plain.attention(0, prompt=0)

# %% [markdown]
# Would a window of four tokens be enough? Swap the attention for a windowed one, in place, and undo it by leaving the
# block. Three tokens are too few, four lose nothing that matters.

# %%
from interp.hooks.attention import windowed

kept = {}
for width in (2, 3, 4, 12):
    with model.hooks(("scores", windowed(width))):
        kept[width] = accuracy(model.run(tokens).logits)
assert kept[3] < 0.3
assert kept[4] > kept[3] + 0.2
assert kept[12] == accuracy(plain.logits)
{f"window {w}": round(a, 2) for w, a in kept.items()}

# %% [markdown]
# ## Fault 3: where was the NaN born?
#
# An activation with a guard against roots of negative numbers. The loss is finite, yet every gradient is NaN. The watch
# replays the step through the sites and names the first place, from the loss backwards, that is not finite.


# %%
def guarded_root(x):
    return torch.where(x > 0, x.sqrt(), torch.zeros_like(x))


class Rooted(Layer):
    def forward(self, x, mask):
        h = self.norm1(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.down(guarded_root(self.up(self.norm2(x))))


torch.manual_seed(2)
rooted = Small()
rooted.layers = nn.ModuleList([Layer(), Rooted()])
acts = layer_row(
    "rooted", attn="attention", qkv=("attention",), packing="in_proj", out="attention.out_proj",
    ln1="norm1", ln2="norm2", mlp_in="up", act=guarded_root, mlp_out="down",
)  # fmt: skip
x = batch(16, 0)
loss = nn.functional.cross_entropy(rooted(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten())
loss.backward()
assert loss.isfinite()
assert rooted.tokens.weight.grad.isnan().any()

watch = interp.watch(wrapped(rooted, acts))
born = watch.step(x, loss=loss)
assert (born.kind, born.address, born.direction) == ("nan", "L1.mlp_pre", "backward")
born

# %% [markdown]
# Forward all is well; the gradient at the activation's input is where it begins: `where` leaves the root out of the
# value, but the root's gradient, infinite there, is multiplied by 0. Guard the *argument* instead.


# %%
def safe_root(x):
    return torch.where(x > 0, x, torch.ones_like(x)).sqrt() * (x > 0)


assert torch.equal(safe_root(tokens.float() - 8), guarded_root(tokens.float() - 8))
z = torch.tensor([-1.0, 4.0], requires_grad=True)
safe_root(z).sum().backward()
assert z.grad.tolist() == [0.0, 0.25]

# %% [markdown]
# Nothing was left behind: the modules are as they were, without hooks, and training can go on.

# %%
assert not any(m._forward_hooks or m._forward_pre_hooks for m in rooted.modules())
