"""Calling a leaf module a second time in one forward pass, to learn what an edit of its input changes.

The user's hooks on it have heard this pass already, and a hook that counts shall count real passes only: the second
call goes past them. A hook that changes outputs must change the second call alike; it shows where the module alone
does not give what the pass got, and then the module is called with its hooks, more than once a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor, nn
from torch.nn.modules import module as everywhere

Call = Callable[[nn.Module, Tensor], Tensor]


def heard(module: nn.Module, x: Tensor) -> Tensor:
    """The module's output, its hooks called."""
    out: Tensor = module(x)
    return out


def unheard(module: nn.Module, x: Tensor) -> Tensor:
    """The module's output, past its hooks."""
    out: Tensor = module.forward(x)
    return out


def hooked(modules: Iterable[nn.Module | None]) -> bool:
    """Whether a forward hook hangs on any of them, or one has got a forward that is not its class's."""
    if everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks:
        return True
    return any(m is not None and (m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m)) for m in modules)
