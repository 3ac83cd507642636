"""x·W + b where rounding may differ: by oneDNN, on CPUs with AVX-512.

torch hands float32 products to MKL, which keeps to AVX2 on processors that are not Intel's, and bias, activation and
what is summed onto take passes over memory of their own. torch carries oneDNN too. Its linear operator, the one that
torch's compiler calls, does all of it in one: twice as fast on an AMD EPYC, and a row comes out the same whatever rows
lie beside it. Elsewhere, and where a graph is built, the callers in `loose.py` do without.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

FUSED: dict[tuple[str, str], tuple[str, str]] = {
    ("transformers.activations", "NewGELUActivation"): ("gelu", "tanh"),
    ("transformers.activations", "GELUTanh"): ("gelu", "tanh"),
    ("transformers.activations", "GELUActivation"): ("gelu", "none"),
    ("transformers.activations", "SiLUActivation"): ("swish", ""),
    ("torch.nn.modules.activation", "ReLU"): ("relu", ""),
}
"""Activations by module and class, as the operator names them: what it is, and which form of it."""
KERNELS = 128
"""Kernels that oneDNN keeps, one for each shape it has met, of two thirds of a megabyte; left alone it keeps 1,024."""
_CAPACITIES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
_PLAIN = (Tensor, nn.Parameter)


@cache
def _operator() -> Any:
    """torch's linear operator of oneDNN; None where it has none, or this processor no AVX-512."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkldnn.is_available():
        return None
    operator = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if operator is not None:
        _keep_few_kernels(operator)
    return operator


def _keep_few_kernels(operator: Any) -> None:
    """Multiply once with the capacities set: oneDNN asks the environment for them when it is first used, once."""
    ours = {name: str(KERNELS) for name in _CAPACITIES if name not in os.environ}
    os.environ.update(ours)
    try:
        operator(torch.zeros(1, 1), torch.zeros(1, 1), None, "none", [], "")
    finally:
        for name in ours:
            del os.environ[name]


def by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether oneDNN multiplies these: float32 on a CPU that it is known to be fast on, and nobody wants a gradient."""
    return (
        x.dtype is weight.dtype is torch.float32
        and (bias is None or bias.dtype is torch.float32)
        and x.device.type == weight.device.type == "cpu"
        and type(weight) in _PLAIN
        and weight.layout is torch.strided
        and not torch.is_grad_enabled()
        and _operator() is not None
    )


def product(
    x: Float[Tensor, "... d"],
    weight: Float[Tensor, "d out"],
    bias: Float[Tensor, " out"] | None = None,
    act: tuple[str, str] = ("none", ""),
) -> Float[Tensor, "... out"]:
    """act(x·W + b), `act` as `FUSED` names it."""
    out: Tensor = _operator()(x, _whole(weight).T, _dense(bias), act[0], [], act[1])
    return out


def product_onto(
    stream: Float[Tensor, "... out"],
    x: Float[Tensor, "... d"],
    weight: Float[Tensor, "d out"],
    bias: Float[Tensor, " out"] | None = None,
) -> Float[Tensor, "... out"]:
    """stream + x·W + b; new memory."""
    out: Tensor = _operator().binary(x, stream, _whole(weight).T, _dense(bias), "add")
    return out


def _whole(weight: Float[Tensor, "d out"]) -> Float[Tensor, "d out"]:
    """The weight without gaps in memory: from one with gaps (some columns of another) the operator takes a thousand
    times as long."""
    return weight if weight.is_contiguous() or weight.T.is_contiguous() else weight.contiguous()


def _dense(bias: Float[Tensor, " out"] | None) -> Float[Tensor, " out"] | None:
    """The bias number after number: the operator does not ask for its stride."""
    return None if bias is None else bias.contiguous()
