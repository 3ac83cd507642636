"""What a norm does, read off the checkpoint's own module: denominator, gain, centring, and its Jacobian.

    LayerNorm   y = (x − mean) / s · gain + bias,   s = √(var + eps)
    RMSNorm     y = x / s · gain,                    s = √(mean x² + eps)

The module itself computes y; this file only says what it is made of, for derived sites and attribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.models.again import Call, heard, unheard
from interp.models.linear import agree, some_vectors
from interp.registry import UserError

_KNOWN = ("torch.nn.modules.", "transformers.models.", "interp.models.")
"""Where the classes live whose norms the families' rows describe, and the audit checks."""


@dataclass(frozen=True, eq=False)
class Norm:
    """One norm module, or none (`module` None: identity)."""

    module: nn.Module | None
    gain_offset: float = 0.0

    def __call__(self, x: Float[Tensor, "... d"], call: Call = heard) -> Float[Tensor, "... d"]:
        return x if self.module is None else call(self.module, x)

    def __bool__(self) -> bool:
        return self.module is not None

    @property
    def centred(self) -> bool:
        """Whether the mean is taken off first."""
        return isinstance(self.module, nn.LayerNorm) or (
            self.module is not None and "rms" not in type(self.module).__name__.lower()
        )

    @property
    def eps(self) -> float:
        self.check()
        return self._eps

    @property
    def gain(self) -> Tensor | float:
        """What the normalised vector is multiplied by, `[d]` (1.0 where there is none)."""
        self.check()
        return self._gain

    def check(self) -> None:
        """UserError where the module computes something else than is said of it here."""
        if not self._as_said:
            raise UserError(
                f"a {type(self.module).__name__} is neither the LayerNorm nor the RMSNorm that its eps and weight say, "
                "so its parts cannot be read; runs, and patching of sites that need none of them, work as it is"
            )

    @cached_property
    def _as_said(self) -> bool:
        """Known classes are; another, or a forward put on one, is asked for a few random vectors."""
        module = self.module
        if module is None or (type(module).__module__.startswith(_KNOWN) and "forward" not in vars(module)):
            return True
        like = getattr(module, "weight", None)
        if not isinstance(like, Tensor) or like.ndim != 1:
            return True  # nothing tells the width
        x = some_vectors(like)
        with torch.no_grad():
            wide = self.centre(x)
            said = wide / (wide.pow(2).mean(-1, keepdim=True) + self._eps).sqrt() * self._gain
            return agree(unheard(module, x), said if self.bias is None else said + self.bias)

    @property
    def _eps(self) -> float:
        for name in ("eps", "variance_epsilon"):
            value = getattr(self.module, name, None)
            if value is not None:
                return float(value)
        raise UserError(f"norm {type(self.module).__name__} has no eps that we know of")

    @property
    def _gain(self) -> Tensor | float:
        weight = getattr(self.module, "weight", None)
        return 1.0 if weight is None else weight + self.gain_offset if self.gain_offset else weight

    @property
    def bias(self) -> Tensor | None:
        return getattr(self.module, "bias", None)

    def centre(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        return x - x.mean(-1, keepdim=True) if self.centred else x

    def denominator(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... 1"]:
        """s, what the (centred) input is divided by."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return (self.centre(wide).pow(2).mean(-1, keepdim=True) + self.eps).sqrt().to(x.dtype)

    def linear(self, x: Float[Tensor, "... d"], scale: Float[Tensor, "... 1"]) -> Float[Tensor, "... d"]:
        """The norm with its denominator frozen and its bias left out: linear in x."""
        if self.module is None:
            return x
        return self.centre(x) / scale * self.gain

    def transposed_jacobian(self, x: Float[Tensor, "... d"], grad: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """∂y/∂x at x, transposed, applied to a gradient at y. `x` may broadcast against `grad`."""
        if self.module is None:
            return grad
        scale = self.denominator(x)
        unit = self.centre(x) / scale
        grad = grad * self.gain
        pulled = grad - unit * (grad * unit).mean(-1, keepdim=True)
        if self.centred:
            pulled = pulled - grad.mean(-1, keepdim=True)
        return pulled / scale


NO_NORM = Norm(None)


def rescaled(norm: Norm, x: Tensor, out: Tensor, scale: Tensor, new_scale: Tensor) -> Tensor:
    """The norm's output with another denominator, as a difference that is exactly 0 when they are equal."""
    return out + norm.centre(x) * norm.gain * (torch.reciprocal(new_scale) - torch.reciprocal(scale))
