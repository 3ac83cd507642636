"""Attention of packed rows over keys and values that many of them share.

A pass holds E interventions × R prompts as rows. The columns before the first change are the base run's, so the
E rows of a prompt read the same keys and values there. Instead of copying those for every row, the queries of all
E rows meet them in one product; each row's own columns are a second one, and the two are put together:

    scores = [ q · k_shared | q · k_own ]          mixed = p_shared · v_shared + p_own · v_own

Query heads that share a kv head are taken together too, so neither keys nor values are repeated. Sums run in
another order than without a shared prefix: equal up to rounding, not to the bit.
"""

from __future__ import annotations

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor


def scores_over(
    q: Float[Tensor, "batch head query d_head"],
    shared: Float[Tensor, "base kv_head first d_head"],
    own: Float[Tensor, "batch kv_head pos d_head"],
) -> Float[Tensor, "batch head query key"]:
    """q·k over the shared columns, then over each row's own ones."""
    e, kv, n = q.shape[0] // shared.shape[0], shared.shape[1], q.shape[2]
    after = torch.matmul(_by_row(q, kv), own.transpose(2, 3))
    after = rearrange(after, "b kv (g n) key -> b (kv g) n key", n=n)
    if shared.shape[2] == 0:
        return after
    before = torch.matmul(_by_prompt(q, e, kv), shared.transpose(2, 3))
    return torch.cat([_rows(before, e, n), after], -1)


def mixed_over(
    pattern: Float[Tensor, "batch head query key"],
    shared: Float[Tensor, "base kv_head first d_head"],
    own: Float[Tensor, "batch kv_head pos d_head"],
) -> Float[Tensor, "batch head query d_head"]:
    """The values that a pattern over both kinds of columns mixes."""
    e, kv, n, first = pattern.shape[0] // shared.shape[0], shared.shape[1], pattern.shape[2], shared.shape[2]
    after = torch.matmul(_by_row(pattern[..., first:], kv), own)
    after = rearrange(after, "b kv (g n) d -> b (kv g) n d", n=n)
    if first == 0:
        return after
    return _rows(torch.matmul(_by_prompt(pattern[..., :first], e, kv), shared), e, n) + after


def _by_prompt(x: Float[Tensor, "batch head query last"], e: int, kv: int) -> Float[Tensor, "base kv_head many last"]:
    """All rows of a prompt and all query heads of a kv head side by side."""
    return rearrange(x, "(e r) (kv g) n last -> r kv (e g n) last", e=e, kv=kv)


def _by_row(x: Float[Tensor, "batch head query last"], kv: int) -> Float[Tensor, "batch kv_head many last"]:
    return rearrange(x, "b (kv g) n last -> b kv (g n) last", kv=kv)


def _rows(x: Float[Tensor, "base kv_head many last"], e: int, n: int) -> Float[Tensor, "batch head query last"]:
    """Undo `_by_prompt`."""
    return rearrange(x, "r kv (e g n) last -> (e r) (kv g) n last", e=e, n=n)
