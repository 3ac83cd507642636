"""`wrap`: plain PyTorch modules give the same numbers through the registry, and sites mean what they say."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import interp
from interp.models.wrap import layer_row, wrap
from interp.registry import UserError

WIDTH, HEADS, LENGTH = 16, 4, 7


def seeded(make: Any) -> Any:
    """A module with every parameter moved off its initial value, in eval mode."""
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        module = make()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
    return module.eval()


def encoder_layer(**over: Any) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(WIDTH, HEADS, 24, **{"batch_first": True, "dropout": 0.1, **over})


def vectors(batch: int = 3) -> Tensor:
    return torch.randn(batch, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))


CASES = {
    "post": lambda: encoder_layer(),
    "pre": lambda: encoder_layer(norm_first=True),
    "pre gelu no bias": lambda: encoder_layer(norm_first=True, activation="gelu", bias=False),
    "sequence first": lambda: encoder_layer(norm_first=True, batch_first=False),
    "post stack": lambda: nn.TransformerEncoder(encoder_layer(), 3),
    "pre stack with final norm": lambda: nn.TransformerEncoder(encoder_layer(norm_first=True), 3, nn.LayerNorm(WIDTH)),
    "attention": lambda: nn.MultiheadAttention(WIDTH, HEADS, batch_first=True),
    "attention no bias": lambda: nn.MultiheadAttention(WIDTH, HEADS, bias=False),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_numbers_unchanged(name: str, causal: bool, padded: bool) -> None:
    module = seeded(CASES[name])
    model = wrap(module, causal=causal)
    mask = torch.ones(3, LENGTH, dtype=torch.bool)
    if padded:
        mask[1, 5:] = False
    size = max(1.0, float(model.run(vectors()).logits.abs().max()))
    assert model.difference(vectors(), mask) < 1e-6 * size
    # in double precision nothing but rounding of double numbers is left
    assert wrap(module.double(), causal=causal).difference(vectors().double(), mask) < 1e-13


class PreLayer(nn.Module):
    """A pre-LayerNorm layer in plain PyTorch: MultiheadAttention, two linear layers, ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_a, self.norm_b = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = self.norm_a(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.down(torch.relu(self.up(self.norm_b(x))))


PRE = layer_row(
    "mine", attn="attention", qkv=("attention",), packing="in_proj",
    out="attention.out_proj", ln1="norm_a", ln2="norm_b",
    mlp_in="up", act=torch.relu, mlp_out="down",
)  # fmt: skip


class Classifier(nn.Module):
    """Tokens to logits through two layers of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([PreLayer(), PreLayer()])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 11)

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        ahead = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        for block in self.blocks:
            h = block(h, ahead)
        return self.head(self.norm(h))


def classifier() -> tuple[nn.Module, Any]:
    module = seeded(Classifier)
    model = wrap(
        module, layers="blocks", row=PRE, embed="tokens", pos_embed="places", final="norm", unembed="head", causal=True,
        n_ctx=LENGTH,
    )  # fmt: skip
    return module, model


def test_own_layers_by_a_row_and_the_attention_weights() -> None:
    module, model = classifier()
    tokens = torch.randint(0, 11, (4, LENGTH), generator=torch.Generator().manual_seed(2))
    assert model.difference(tokens) < 1e-6
    run = model.run(tokens, capture=["pattern", "L0.ln1", "L0.mlp_post"])
    h = module.blocks[0].norm_a(module.tokens(tokens) + module.places.weight[None])
    ahead = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    _, weights = module.blocks[0].attention(h, h, h, attn_mask=ahead, average_attn_weights=False)
    torch.testing.assert_close(run["L0.pattern"], weights)
    torch.testing.assert_close(run["L0.ln1"], h)
    assert run["L0.mlp_post"].shape == (4, LENGTH, 32)


def test_edits_do_what_they_say() -> None:
    """Zeroing every head leaves the out-projection's bias; a patch of the whole residual gives the other run."""
    module, model = classifier()
    one, two = (torch.randint(0, 11, (2, LENGTH), generator=torch.Generator().manual_seed(s)) for s in (3, 4))
    run = model.run(one, edits=[interp.zero("L0.z")], capture="L0.attn_out")
    torch.testing.assert_close(
        run["L0.attn_out"], module.blocks[0].attention.out_proj.bias.expand_as(run["L0.attn_out"])
    )
    donor = model.run(two, capture="L1.resid_pre")
    assert torch.equal(model.run(one, edits=[interp.patch_edit("L1.resid_pre", donor)]).logits, donor.logits)
    weights = model.weights(1)
    z = model.run(one, capture=["L1.z", "L1.attn_out"])
    ours = torch.einsum("bphd,hdm->bpm", z["L1.z"], weights.W_O) + weights.b_O
    torch.testing.assert_close(ours, z["L1.attn_out"])
    q = model.run(one, capture=["L1.q", "L1.ln1"])
    torch.testing.assert_close(torch.einsum("bpm,hmd->bphd", q["L1.ln1"], weights.W_Q) + weights.b_Q, q["L1.q"])


def test_custom_attention_by_a_function() -> None:
    """Attention replaced by an average over what is visible: z is the running mean of v."""
    _, model = classifier()
    tokens = torch.arange(LENGTH)[None]

    def even(scores: Tensor, ctx: Any) -> Tensor:
        return torch.zeros_like(scores)

    with model.hooks(("L0.scores", even)):
        run = model.run(tokens, capture=["L0.v", "L0.z"])
    mean = run["L0.v"].cumsum(1) / torch.arange(1, LENGTH + 1)[None, :, None, None]
    torch.testing.assert_close(run["L0.z"], mean)


def test_vectors_in_and_a_stack_of_edits() -> None:
    module = seeded(CASES["pre stack with final norm"])
    model = wrap(module)
    prompts = model.inputs(vectors())
    means = model.means(prompts, ["z"], by="position")
    run = model.run(prompts, edits=[interp.mean("L1.z", means, head=2)], capture=["L1.z"])
    assert torch.equal(run["L1.z"][0, :, 2], run["L1.z"][1, :, 2])
    assert not torch.equal(run["L1.z"][0, :, 1], run["L1.z"][1, :, 1])
    swapped = model.run(vectors().flip(0)).logits
    torch.testing.assert_close(swapped.flip(0), model.run(prompts).logits, rtol=1e-5, atol=1e-6)


def test_the_module_is_left_as_it_was() -> None:
    """Modes, hooks, requires_grad and the module's own fast path are untouched; a training module runs as in eval."""
    module = seeded(CASES["pre"])
    before = {n: (p.data_ptr(), p.requires_grad) for n, p in module.named_parameters()}
    expected = module(vectors())
    module.train()
    model = wrap(module)
    torch.testing.assert_close(model.run(vectors()).logits, expected, rtol=1e-5, atol=1e-6)
    assert model.difference(vectors()) < 1e-6
    assert module.training
    assert module.dropout.training
    assert {n: (p.data_ptr(), p.requires_grad) for n, p in module.named_parameters()} == before
    assert not any(m._forward_hooks for m in module.modules())


def test_hooks_of_the_user() -> None:
    """On a leaf module: once per run. On attention, which a run reads without calling: refused by name."""
    module = seeded(CASES["pre"])
    model = wrap(module)
    calls: list[int] = []
    handle = module.linear1.register_forward_hook(lambda *_: calls.append(1))
    model.run(vectors())
    assert calls == [1]
    handle.remove()
    for how in ("register_forward_hook", "register_full_backward_pre_hook"):
        handle = getattr(module.self_attn, how)(lambda *_: calls.append(1))
        with pytest.raises(UserError, match="self_attn"):
            model.run(vectors())
        handle.remove()


def test_separate_projections_and_functions_at_both_ends() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8)
            self.o = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            b, t, _ = x.shape
            q = self.q(x).view(b, t, 4, 4).transpose(1, 2)
            k, v = (m(x).view(b, t, 2, 4).transpose(1, 2).repeat_interleave(2, 1) for m in (self.k, self.v))
            z = (q @ k.mT / math.sqrt(4)).softmax(-1) @ v
            return x + self.o(z.transpose(1, 2).reshape(b, t, WIDTH))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = Own(), nn.Linear(WIDTH, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.layer(torch.tanh(x.float()[..., None].expand(-1, -1, WIDTH))))

    module = seeded(Net)
    model = wrap(
        module, layers="layer", heads=4, row=layer_row(attn="", qkv=("q", "k", "v"), out="o"),
        embed=lambda x: torch.tanh(x.float()[..., None].expand(-1, -1, WIDTH)), unembed=lambda x: module.head(x),
    )  # fmt: skip
    assert model.geometry.kv_heads == 2
    assert model.difference(torch.arange(6).view(2, 3)) < 1e-6


def test_errors() -> None:
    with pytest.raises(UserError, match="layer_row"):
        wrap(nn.Linear(3, 3))
    with pytest.raises(UserError, match="did you mean blocks"):
        wrap(seeded(Classifier), layers="block", row=PRE)
    with pytest.raises(UserError, match="unknown part of a layer 'mlp_inn'; did you mean mlp_in"):
        layer_row(attn="a", qkv=("a",), out="o", mlp_inn="x")
    with pytest.raises(UserError, match="bias_k"):
        wrap(nn.MultiheadAttention(WIDTH, HEADS, add_bias_kv=True))
    with pytest.raises(UserError, match="kdim"):
        wrap(nn.MultiheadAttention(WIDTH, HEADS, kdim=8, vdim=8))
    with pytest.raises(UserError, match="heads="):
        wrap(nn.Sequential(nn.Linear(4, 4)), layers="0", row=layer_row(attn="", qkv=("", "", ""), out=""))
    model = wrap(seeded(CASES["pre"]))
    with pytest.raises(UserError, match="reads vectors"):
        model.run([[1, 2, 3]])
    with pytest.raises(UserError, match="width 16"):
        model.run(torch.zeros(1, 2, 5))
    from interp.models.weights import embedding

    with pytest.raises(UserError, match="not tokens"):
        embedding(model.net)
