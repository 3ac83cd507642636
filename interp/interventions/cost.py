"""Floating-point operations of a plan: multiply-adds counted as two, matrix products only."""

from __future__ import annotations

from interp.hooks.geometry import Geometry
from interp.interventions.entry import MLP_ORDER, Entry


def projections(g: Geometry) -> int:
    """q, k and v of one token."""
    return 2 * g.d_model * g.d_head * (g.heads + 2 * g.kv_heads)


def mixing(g: Geometry, keys: int) -> int:
    """Scores and mixed values of one query over `keys` keys."""
    return 4 * g.heads * g.d_head * keys


def out_projection(g: Geometry) -> int:
    """Output projection of one token."""
    return 2 * g.d_model * g.d_head * g.heads


def mlp_in(g: Geometry) -> int:
    """First linear map (two where gated) of one token; of each expert it passes where routed."""
    return 2 * g.d_model * g.d_mlp * (2 if g.gated else 1) * max(1, g.experts_used) if g.mlp else 0


def mlp_out(g: Geometry) -> int:
    """Second linear map of one token."""
    return 2 * g.d_model * g.d_mlp * max(1, g.experts_used) if g.mlp else 0


def block_flops(g: Geometry, tokens: int, queries: int, keys: int) -> int:
    """One whole block: keys and values of `tokens`, everything else of `queries`."""
    kv = 4 * g.d_model * g.d_head * g.kv_heads
    rest = 2 * g.d_model * g.d_head * g.heads + mixing(g, keys) + out_projection(g) + mlp_in(g) + mlp_out(g)
    return tokens * kv + queries * rest


def entry_flops(g: Geometry, entry: Entry, tokens: int, queries: int, keys: int) -> int:
    """The rest of a block from where a pass enters it."""
    given = set(entry.given)
    if not given or given == {"mlp_out"}:
        full = block_flops(g, tokens, queries, keys)
        return full - queries * (mlp_in(g) + mlp_out(g)) if given else full
    mlp = 0 if "mlp_out" in given else mlp_out(g) if "mlp_post" in given else mlp_in(g) + mlp_out(g)
    if entry.site in MLP_ORDER or "attn_out" in given:
        return queries * mlp
    attend = 0 if "z" in given else mixing(g, keys)
    return queries * (attend + out_projection(g) + mlp)


def reading_flops(g: Geometry, rows: int, columns: int, answers: int | None) -> int:
    """Logits of `answers` tokens (None: the whole vocabulary) at `columns` columns of each row."""
    return 2 * rows * columns * g.d_model * (g.d_vocab if answers is None else answers)


def plain_flops(g: Geometry, rows: int, width: int) -> int:
    """One plain forward pass with full logits."""
    tokens = rows * width
    return g.layers * block_flops(g, tokens, tokens, width) + reading_flops(g, rows, width, None)
