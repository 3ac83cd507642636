"""Path expansion of attention-only models: the logits as a sum over paths through heads.

With attention patterns and norm denominators frozen at a run's own values, an attention-only model is linear in
its embedding, and its logits are a sum of terms, one per path:

    zero-layer   embedding → unembedding                          W_E W_U, a bigram table
    one-layer    embedding → head → unembedding                   one term a head
    two-layer    embedding → head → later head → unembedding      one term a pair (a virtual head); and so on
    bias         whatever no path from a token carries: biases of norms, values and outputs, b_U

Terms sum to the model's logits. Losses of partial sums are *marginal in a stated order*: loss(k) is that of the
first k terms together, starting from no logits at all (log V), so that the differences telescope to the whole.

Source: A Mathematical Framework for Transformer Circuits (2021). Limits: no MLPs, no stream or post-norms, no
logit cap; terms of one prompt use that prompt's patterns, so they say what paths carry, not why heads attend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from interp.hooks.prompts import Prompts
from interp.hooks.values import Run
from interp.models.model import Model
from interp.models.net import Net
from interp.models.norms import Norm
from interp.models.weights import head_weights, unembedding
from interp.registry import UserError

By = Literal["order", "path"]
MOST_TERMS = 2048
BIAS = "bias"


@dataclass(frozen=True, eq=False)
class Expansion:
    """Terms of the logits by name, `[batch, pos, d_vocab]` each; they sum to `logits`."""

    terms: Mapping[str, Float[Tensor, "batch pos d_vocab"]]
    logits: Float[Tensor, "batch pos d_vocab"]
    prompts: Prompts
    by: By

    @property
    def gap(self) -> float:
        """Largest |sum of terms − logits| on real tokens."""
        total = torch.stack(list(self.terms.values())).sum(0)
        return float((total - self.logits)[self.prompts.mask].abs().max())

    def losses(self, order: Sequence[str] | None = None) -> dict[str, Float[Tensor, " batch"]]:
        """Next-token loss of each prompt, in nats, after each term of the order is added (`start`: none).

        The last is the model's own loss. Raises UserError where the order does not name every term once.
        """
        names = list(order) if order is not None else list(self.terms)
        if sorted(names) != sorted(self.terms):
            raise UserError(f"the order must name each term once: {', '.join(self.terms)}; got {', '.join(names)}")
        so_far = torch.zeros_like(self.logits)
        found = {"start": next_token_nats(so_far, self.prompts)}
        for name in names:
            so_far = so_far + self.terms[name]
            found[name] = next_token_nats(so_far, self.prompts)
        return found

    def without(self, name: str) -> Float[Tensor, " batch"]:
        """Loss of each prompt with one term left out."""
        return next_token_nats(self.logits - self.terms[name], self.prompts)


def next_token_nats(logits: Float[Tensor, "batch pos d_vocab"], prompts: Prompts) -> Float[Tensor, " batch"]:
    """Mean next-token loss of each prompt over its real transitions, in nats."""
    log_p = logits[:, :-1].float().log_softmax(-1)
    nll = -log_p.gather(-1, prompts.tokens[:, 1:, None])[..., 0]
    used = (prompts.mask[:, 1:] & prompts.mask[:, :-1]).to(nll)
    return (nll * used).sum(1) / used.sum(1).clamp(min=1)


def path_order(name: str) -> int:
    """How many heads a path goes through: `input` 0, `a0.h1` 1, `a0.h1>a1.h2` 2."""
    return 0 if name == "input" else name.count(">") + 1


@torch.no_grad()
def path_expansion(model: Model, prompts: Prompts, by: By | str = "order") -> Expansion:
    """Expand the logits of these prompts.

    `by`: `order` (one term for each number of heads on the path: `zero`, `one`, `two`, …), or `path` (one term a
    path: `input`, `a0.h1`, `a0.h1>a1.h2`, …). A `bias` term comes first.

    Raises UserError for models that are not attention-only, and for more paths than can be kept.

    >>> import interp
    >>> model = interp.load_model("attn-2l")
    >>> found = path_expansion(model, model.prompts("It is a truth universally"))
    >>> list(found.terms), found.gap < 1e-3
    (['bias', 'one', 'two', 'zero'], True)
    """
    if by not in ("order", "path"):
        raise UserError(f"an expansion is by 'order' or by 'path', got {by!r}")
    _check(model, by)
    net = model.net
    sites = ["pattern", "embed", "L0.resid_pre"]
    sites += ["ln1_scale"] if model.geometry.pre_norm else []
    sites += ["ln_final_scale"] if model.geometry.final_norm else []
    run = model.run(prompts, capture=sites)
    terms: dict[str, Tensor] = {BIAS: torch.zeros_like(run["L0.resid_pre"]), "input": run["L0.resid_pre"]}
    for layer in range(model.geometry.layers):
        terms = _through_layer(net, layer, run, terms, by)
    if by == "order":
        terms["zero"] = terms.pop("input")
    final = {name: _final(net, run, x) for name, x in terms.items()}
    bias, norm = unembedding(net)[1], net.final
    constant = bias if norm.bias is None else bias + norm.bias @ unembedding(net)[0]
    final[BIAS] = final[BIAS] + constant
    return Expansion(final, run.logits, run.prompts, by)  # type: ignore[arg-type]


ORDERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight")


def _through_layer(net: Net, layer: int, run: Run, terms: dict[str, Tensor], by: str) -> dict[str, Tensor]:
    """Every term as it stands, and every term once more through each head of the layer."""
    w, norm = head_weights(net, layer), net.layers[layer].ln1 if net.geometry.pre_norm else Norm(None)
    scale = run[f"L{layer}.ln1_scale"] if norm else None
    pattern, group = run[f"L{layer}.pattern"], net.geometry.group
    found = dict(terms)
    for name, x in terms.items():
        read = x if scale is None else norm.linear(x, scale)
        v = einsum(read, w.W_V, "batch key m, kv m d -> batch kv key d")
        if name == BIAS:
            constant = w.b_V if norm.bias is None else w.b_V + einsum(norm.bias, w.W_V, "m, kv m d -> kv d")
            v = v + constant[:, None]
        z = pattern @ v.repeat_interleave(group, 1)
        if name == BIAS or by == "order":
            out = einsum(z, w.W_O, "batch head query d, head d m -> batch query m")
            if name == BIAS:
                found[BIAS] = found[BIAS] + out + w.b_O
            else:
                after = ORDERS[_order_of(name) + 1]
                found[after] = found[after] + out if after in found else out
            continue
        for head in range(net.geometry.heads):
            here = f"a{layer}.h{head}"
            path = here if name == "input" else f"{name}>{here}"
            found[path] = z[:, head] @ w.W_O[head]
    return found


def _order_of(name: str) -> int:
    return 0 if name == "input" else ORDERS.index(name)


def _final(net: Net, run: Run, x: Tensor) -> Tensor:
    read = net.final.linear(x, run["ln_final_scale"]) if net.final else x
    return read @ unembedding(net)[0]


def by_order(expansion: Expansion) -> dict[str, Float[Tensor, "batch pos d_vocab"]]:
    """The terms of an expansion by path, summed by number of heads."""
    found: dict[str, Any] = {}
    for name, term in expansion.terms.items():
        key = name if name == BIAS else ORDERS[path_order(name)]
        found[key] = found[key] + term if key in found else term
    return found


def _check(model: Model, by: str) -> None:
    g = model.geometry
    reasons = {
        "has MLPs": g.mlp, "norms its residual stream": g.stream_norm, "norms what its heads write": g.post_norm,
        "has no skip paths": not g.skip, "caps its logits": g.logit_cap, "has more than 8 layers": g.layers > 8,
    }  # fmt: skip
    wrong = [why for why, holds in reasons.items() if holds]
    if wrong:
        raise UserError(f"path expansion is for attention-only models: {model.name} {' and '.join(wrong)}")
    count = (1 + g.heads) ** g.layers
    if by == "path" and count > MOST_TERMS:
        raise UserError(f"{model.name} has {count} paths, at most {MOST_TERMS} are kept; use by='order'")
