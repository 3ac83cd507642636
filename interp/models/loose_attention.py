"""Attention where nobody looks at scores and pattern, and rounding may differ: for packed replay.

On a CPU, over few keys, two batched products with a softmax between them: torch's own kernel multiplies head by head,
and takes two to five times as long. Else that kernel, which writes no scores down. Both equal the steps of
`attention.py` up to rounding. What they do not know (soft-caps, biases, rows that read nothing) runs step by step.

On a CPU softmax takes the scores of a query a vector at a time and what is left number by number, so that 15 keys take
it longer than 16: keys that nobody reads fill the last vector up.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from interp.models.grid import Grid
from interp.models.loose import LANES
from interp.models.net import Net

FEW_KEYS = 64
"""Keys up to which the products and the softmax are faster than the kernel, whatever the sizes of heads and batch."""
LEFT = 4
"""Keys beyond whole vectors that the kernel takes no slower than one more vector."""


def lanes_short(keys: int, device: torch.device) -> int:
    """How many keys that nobody reads make attention over so many faster."""
    worth = device.type == "cpu" and (keys <= FEW_KEYS or keys % LANES > LEFT)
    return -keys % LANES if worth else 0


def fits_attention(net: Net, layer: int, q: Tensor, grid: Grid) -> bool:
    """Whether this is a layer's attention: no soft-cap, no bias, no query that may read nothing."""
    plain = net.layers[layer].cap is None and grid.bias is None and not grid.padded
    return plain and q.dtype in (torch.float32, torch.float64) and not torch.is_grad_enabled()


def loose_attention(
    net: Net,
    layer: int,
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    v: Float[Tensor, "batch kv_head key d_head"],
    grid: Grid,
) -> Float[Tensor, "batch head query d_head"]:
    """The values that the grid's queries read; keys beyond the grid's columns are not read."""
    parts, keys = net.layers[layer], k.shape[2]
    if q.device.type == "cpu" and keys <= FEW_KEYS:
        return _in_products(q, k, v, grid.hidden(parts.window, keys).to(q), parts.scale)
    square = net.geometry.causal and grid.held.whole
    mask = None if square and parts.window is None else grid.hidden(parts.window, keys).to(q)
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, mask, is_causal=mask is None, scale=parts.scale, enable_gqa=net.geometry.group > 1
    )


def _in_products(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    v: Float[Tensor, "batch kv_head key d_head"],
    hidden: Float[Tensor, "rows 1 query key"],
    scale: float,
) -> Float[Tensor, "batch head query d_head"]:
    """The queries of all heads that share a kv head are rows of one product."""
    batch, kv_heads = k.shape[:2]
    k, v = k.flatten(0, 1), v.flatten(0, 1)
    group = q.shape[1] // kv_heads
    added = hidden if group == 1 else hidden.repeat(1, 1, group, 1)
    added = added.expand(batch, kv_heads, -1, -1).flatten(0, 1)
    scores = torch.baddbmm(added, q.reshape(len(k), -1, q.shape[3]), k.transpose(1, 2), alpha=scale)
    return torch.bmm(torch.softmax(scores, -1), v).view(q.shape)
