"""Kernels that give the same numbers up to rounding, for packed replay, whose sums run in another order anyway.

    mapped      a plain linear map by the fastest product there is (`products.py`)
    activated   the MLP's first map and its activation (GPT-2's tanh-GELU: eight elementwise steps), in the product
                itself, or in place and a piece at a time
    added       stream + bias + x·W in one matrix product that sums onto the residual stream
    normed      root-mean-square norms in three steps instead of seven
    turned      rotary embedding without putting the turned half together first
    softmax     in three vector steps where rows are no whole vectors long: torch's own kernel, in its version 2.13,
                then takes every row number by number, ten times as long

On a CPU a large activation's trips to memory cost as much as a third of the products around it. A plain run never
comes here (`Net.loose` is off), so its logits stay those of the checkpoint's own steps, to the bit. Neither does a
module with a hook of the user's, nor a pass that builds a graph.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.models.activation import gives_fresh
from interp.models.again import Call, heard, hooked
from interp.models.parts import matrix
from interp.models.products import FUSED, by_onednn, product, product_onto

PIECE = 1 << 18
"""Numbers of an activation that go through all its steps at a time: with a temporary they stay in a core's cache."""
_LINEAR, _CUBIC = torch.tensor(2 * (2 / torch.pi) ** 0.5), 2 * (2 / torch.pi) ** 0.5 * 0.044715


def _tanh_gelu(x: Tensor) -> None:
    """x · σ(2 √(2/π) (x + 0.044715 x³)), which is the tanh form; four vector steps beat its own kernel by a third."""
    if x.device.type != "cpu" or x.dtype != torch.float32:
        torch.ops.aten.gelu_(x, approximate="tanh")
        return
    x.mul_(torch.addcmul(_LINEAR, x, x, value=_CUBIC).mul_(x).sigmoid_())


def _gelu(x: Tensor) -> None:
    torch.ops.aten.gelu_(x)


def _silu(x: Tensor) -> None:
    torch.nn.functional.silu(x, inplace=True)


def _relu(x: Tensor) -> None:
    torch.relu_(x)


IN_PLACE: dict[tuple[str, str], Callable[[Tensor], None]] = {
    ("transformers.activations", "NewGELUActivation"): _tanh_gelu,
    ("transformers.activations", "GELUTanh"): _tanh_gelu,
    ("transformers.activations", "GELUActivation"): _gelu,
    ("transformers.activations", "SiLUActivation"): _silu,
    ("torch.nn.modules.activation", "ReLU"): _relu,
}
"""Activations by module and class, as something done to memory that is ours."""


def mapped(module: nn.Module, x: Float[Tensor, "... d"]) -> Float[Tensor, "... out"]:
    """What a module gives; where it is a plain linear map, by the fastest product there is."""
    if gives_fresh(module) and by_onednn(x, weight := matrix(module), module.bias):  # type: ignore[arg-type]
        return product(x, weight, module.bias)  # type: ignore[arg-type]
    return heard(module, x)


def caller(loose: bool) -> Call:
    """How a leaf module is called where rounding may differ (`Net.loose`), and where not."""
    return mapped if loose else heard


def fits_activated(linear: nn.Module | None, act: object) -> bool:
    """Whether `activated` gives what a map and an activation do: no hook on them, no code of their own."""
    known = (type(act).__module__, type(act).__name__) in IN_PLACE
    return known and not torch.is_grad_enabled() and gives_fresh(linear) and not hooked([act])  # type: ignore[list-item]


def activated(
    linear: nn.Module, act: object, x: Float[Tensor, "... d"], times: Float[Tensor, "... d_mlp"] | None = None
) -> Float[Tensor, "... d_mlp"]:
    """act(linear(x)), times a gate's other half where there is one."""
    name, weight, bias = (type(act).__module__, type(act).__name__), matrix(linear), linear.bias
    if by_onednn(x, weight, bias):  # type: ignore[arg-type]
        post = product(x, weight, bias, FUSED[name])  # type: ignore[arg-type]
        return post if times is None else post.mul_(times)
    flat, kernel = x.reshape(-1, x.shape[-1]), IN_PLACE[name]
    out = torch.mm(flat, weight)
    count = max(1, out.numel() // PIECE) if out.device.type == "cpu" else 1
    pieces = out.chunk(count)
    gates = [None] * len(pieces) if times is None else times.reshape(out.shape).chunk(count)
    for piece, gate in zip(pieces, gates, strict=True):
        if isinstance(bias, Tensor):
            piece.add_(bias)
        kernel(piece)
        if gate is not None:
            piece.mul_(gate)
    return out.view(*x.shape[:-1], -1)


RMS = frozenset({
    "GraniteRMSNorm", "LlamaRMSNorm", "MistralRMSNorm", "MixtralRMSNorm", "Olmo2RMSNorm", "Phi3RMSNorm", "Qwen2RMSNorm",
    "Qwen2MoeRMSNorm", "Qwen3RMSNorm", "Qwen3MoeRMSNorm",
})  # fmt: skip
"""Hugging Face's norms that are x / sqrt(mean x² + eps) · weight over the last axis, and nothing else."""


def normed(module: nn.Module, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"] | None:
    """The norm's output; None where its own code has to run."""
    plain = type(module).__name__ in RMS and type(module).__module__.startswith("transformers.models.")
    if not plain or x.dtype != torch.float32 or torch.is_grad_enabled() or hooked([module]):
        return None
    size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    over = size.square_().div_(x.shape[-1]).add_(module.variance_epsilon).rsqrt_()  # type: ignore[arg-type]
    out: Tensor = (x * over).mul_(module.weight)  # type: ignore[arg-type]
    return out


def turned(x: Float[Tensor, "... d"], cos: Float[Tensor, "... d"], sin: Float[Tensor, "... d"]) -> Tensor:
    """x·cos + (−b, a)·sin of the halves (a, b) of x."""
    out = x * cos
    (a, b), (own_a, own_b), (sin_a, sin_b) = (t.chunk(2, -1) for t in (x, out, sin))
    own_a.addcmul_(b, sin_a, value=-1)
    own_b.addcmul_(a, sin_b)
    return out


def added(
    stream: Float[Tensor, "batch pos d_model"], module: nn.Module, x: Float[Tensor, "batch pos d"], spare: bool = False
) -> Float[Tensor, "batch pos d_model"]:
    """The residual stream with a plain linear map of x added. With `spare` nobody else holds the stream, and its
    memory may take the result."""
    weight, bias = matrix(module), module.bias
    if by_onednn(x, weight, bias):  # type: ignore[arg-type]
        return product_onto(stream, x, weight, bias)  # type: ignore[arg-type]
    start, wide = stream.reshape(-1, stream.shape[-1]), x.reshape(-1, x.shape[-1])
    if spare:
        start = start if bias is None else start.add_(bias)  # type: ignore[arg-type]
        return start.addmm_(wide, weight).view_as(stream)
    if isinstance(bias, Tensor):
        return (start + bias).addmm_(wide, weight).view_as(stream)
    return torch.addmm(start, wide, weight).view_as(stream)


def part_of(module: nn.Module, x: Float[Tensor, "... d"], outputs: slice) -> Float[Tensor, "... part"]:
    """Some of a plain linear map's outputs."""
    weight, bias = matrix(module)[:, outputs], module.bias
    if by_onednn(x, weight, bias):  # type: ignore[arg-type]
        return product(x, weight, None if bias is None else bias[outputs])  # type: ignore[index]
    out = x @ weight if bias is None else torch.addmm(bias[outputs], x.reshape(-1, x.shape[-1]), weight)  # type: ignore[index]
    return out.view(*x.shape[:-1], -1)


LANES = 16
"""Numbers of float32 in the widest vector of a CPU."""


def softmax(scores: Float[Tensor, "... key"], dtype: torch.dtype | None) -> Float[Tensor, "... key"]:
    """Softmax over the last axis, computed in `dtype` where that is given."""
    if scores.shape[-1] % LANES == 0 or scores.device.type != "cpu" or scores.dtype != torch.float32:
        return torch.softmax(scores, -1, dtype=dtype)
    exps = (scores - scores.amax(-1, keepdim=True)).exp_()
    return exps.div_(exps.sum(-1, keepdim=True))
