"""How a sublayer reads the residual stream: through its norm, whose denominator is a site of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from interp.hooks.taps import Tap
from interp.models import loose
from interp.models.net import Net
from interp.models.norms import Norm, rescaled


def read_norm(net: Net, layer: int, resid: Tensor, site: str, tap: Tap, normed: Tensor | None = None) -> Tensor:
    """ln1 or ln2 of the residual (`normed`, where it is known), through the site of its denominator."""
    if not net.geometry.pre_norm:
        return resid
    norm: Norm = getattr(net.layers[layer], site)
    out = normed
    if out is None and net.loose and norm.module is not None:
        out = loose.normed(norm.module, resid)
    return through_scale(norm, resid, norm(resid) if out is None else out, f"{site}_scale", layer, tap)


def through_scale(norm: Norm, x: Tensor, out: Tensor, site: str, layer: int | None, tap: Tap) -> Tensor:
    """Let the tap see, and change, a norm's denominator."""
    if not norm or not tap.wants(site, layer):
        return out
    scale = norm.denominator(x)
    edited = tap(site, layer, scale)
    return out if edited is scale else rescaled(norm, x, out, scale, edited)


def replaced(own: Tensor, before: Tensor, after: Tensor, edited: Tensor, read: Tensor, between: bool) -> Tensor:
    """What was computed from `read` (`own`), with the difference that an edit of it makes.

    Where that is not 0, and nothing `between` was edited too, the new value itself: nothing of the old one is left
    then, not even its rounding, which a norm behind makes large where the new value is near 0.
    """
    moved = own + (after - before)
    return moved if between else torch.where((edited == read).all(-1, keepdim=True), moved, after)
