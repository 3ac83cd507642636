"""The axis vocabulary: every jaxtyping shape in this package is spelled with these words.

    batch      prompts (rows of a forward pass; a packed pass has edits × prompts of them)
    pos        token columns, padding included
    query key  token columns on the two sides of attention
    head       query heads        kv_head   key/value heads (fewer under grouped queries)
    d_model    residual width     d_head    width of one head
    d_mlp      MLP neurons        expert    experts of a routed MLP
    d_vocab    vocabulary
    layer      transformer blocks
    node edge  of the circuit graph

`AXES` gives each word's meaning; site rows and error messages are checked against it.
"""

from __future__ import annotations

AXES: dict[str, str] = {
    "batch": "prompts",
    "pos": "token columns",
    "query": "token columns, as readers",
    "key": "token columns, as read",
    "head": "query heads",
    "kv_head": "key/value heads",
    "d_model": "residual width",
    "d_head": "width of one head",
    "d_mlp": "MLP neurons",
    "expert": "experts of a routed MLP",
    "d_vocab": "vocabulary",
    "1": "one number per token",
}
