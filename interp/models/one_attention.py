"""Attention in one kernel: for packed replay, where nobody looks at scores and pattern.

Scores, mask, softmax and the mixing of values without writing any of them down: equal to the steps of `block.py` up
to rounding. What the kernel does not know (soft-caps, biases, rows that read nothing) runs step by step.

On a CPU the kernel takes the scores of a query a vector at a time and what is left number by number, so that 15 keys
take it twice as long as 16: keys that nobody reads fill the last vector up.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from interp.models.grid import Grid
from interp.models.loose import LANES
from interp.models.net import Net

FEW = 4
"""Keys beyond whole vectors that are no slower than one more vector."""


def lanes_short(keys: int, device: torch.device) -> int:
    """How many keys that nobody reads make attention over so many faster."""
    return -keys % LANES if device.type == "cpu" and keys % LANES > FEW else 0


def fits_attention(net: Net, layer: int, q: Tensor, grid: Grid) -> bool:
    """Whether one kernel computes this layer's attention: no soft-cap, no bias, no query that may read nothing."""
    plain = net.layers[layer].cap is None and grid.bias is None and not grid.padded
    return plain and q.dtype in (torch.float32, torch.float64) and not torch.is_grad_enabled()


def one_attention(
    net: Net,
    layer: int,
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    v: Float[Tensor, "batch kv_head key d_head"],
    grid: Grid,
) -> Float[Tensor, "batch head query d_head"]:
    """The values that the grid's queries read; keys beyond the grid's columns are not read."""
    parts, square = net.layers[layer], net.geometry.causal and grid.held.whole
    mask = None if square and parts.window is None else grid.hidden(parts.window, k.shape[2]).to(q)
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, mask, is_causal=mask is None, scale=parts.scale, enable_gqa=net.geometry.group > 1
    )
