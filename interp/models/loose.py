"""Kernels that give the same numbers up to rounding, for packed replay, whose sums run in another order anyway.

    activated   GPT-2's tanh-GELU in one kernel instead of eight elementwise steps, in place where the memory is free
    added       stream + bias + x·W in one matrix product that sums onto the residual stream
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

from interp.models.again import hooked
from interp.models.parts import matrix


def _tanh_gelu(x: Tensor, spare: bool) -> Tensor:
    if spare:
        return torch.ops.aten.gelu_(x, approximate="tanh")  # type: ignore[no-any-return]
    return torch.nn.functional.gelu(x, approximate="tanh")


ONE_KERNEL: dict[tuple[str, str], Callable[[Tensor, bool], Tensor]] = {
    ("transformers.activations", "NewGELUActivation"): _tanh_gelu,
    ("transformers.activations", "SiLUActivation"): lambda x, spare: torch.nn.functional.silu(x, inplace=spare),
}
"""Activations that one kernel computes, by module and class. `spare`: the input's memory may take the result."""


def one_kernel(module: object) -> Callable[[Tensor, bool], Tensor] | None:
    """The kernel for an activation that nobody listens to; None where its own code has to run."""
    if torch.is_grad_enabled() or not isinstance(module, nn.Module) or hooked([module]):
        return None
    return ONE_KERNEL.get((type(module).__module__, type(module).__name__))


def added(
    stream: Float[Tensor, "batch pos d_model"], module: nn.Module, x: Float[Tensor, "batch pos d"]
) -> Float[Tensor, "batch pos d_model"]:
    """The residual stream with a plain linear map of x added; new memory."""
    start, bias, wide = stream.reshape(-1, stream.shape[-1]), module.bias, x.reshape(-1, x.shape[-1])
    if isinstance(bias, Tensor):
        return (start + bias).addmm_(wide, matrix(module)).view_as(stream)
    return torch.addmm(start, wide, matrix(module)).view_as(stream)


LANES = 16
"""Numbers of float32 in the widest vector of a CPU."""


def softmax(scores: Float[Tensor, "... key"], dtype: torch.dtype | None) -> Float[Tensor, "... key"]:
    """Softmax over the last axis, computed in `dtype` where that is given."""
    if scores.shape[-1] % LANES == 0 or scores.device.type != "cpu" or scores.dtype != torch.float32:
        return torch.softmax(scores, -1, dtype=dtype)
    exps = (scores - scores.amax(-1, keepdim=True)).exp_()
    return exps.div_(exps.sum(-1, keepdim=True))
