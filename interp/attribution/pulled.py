"""The answer direction, pulled back to every writer of the residual stream.

    u = mean W_U[:, right] − mean W_U[:, wrong]                         at what the unembedding receives
    d = centre(u ⊙ gain) / frozen final scale                           at the final residual (centre: LayerNorm only)
    d' = centre(d ⊙ post gain) / frozen post-norm scale                 at a sublayer's output, sandwich norms only

A norm with its denominator frozen is linear, so a writer's term in the logit difference is one dot product of
what it wrote with `d` (or `d'`), plus constant terms of biases. Heads, neurons and source tokens follow with
W_O d' and W_out d', `[prompt, d_model]` each: nothing is computed at the width of the vocabulary, and no
head's output at the width of the model.

Source: A Mathematical Framework for Transformer Circuits (2021); 2211.00593, appendix.
Limits: residual norms (`stream_norm`) and models without skip paths have no such sum. A family that multiplies
what a sublayer adds would put its factor in `_sublayers`; `attn_out_pre` and `mlp_out_pre` are before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from interp.metric_values import mean_over
from interp.models.net import LayerParts, Net
from interp.models.norms import Norm
from interp.models.weights import unembedding
from interp.registry import UserError
from interp.tasks.values import Answers, Task


@dataclass(frozen=True, eq=False)
class AnswerDirection:
    """What the logit difference reads, at the unembedding's input: `ln_final · u + bias`, in logits."""

    u: Float[Tensor, "prompt d_model"]
    bias: Float[Tensor, " prompt"]
    """The unembedding bias's own difference; 0 where there is none."""

    def rows(self, index: slice) -> AnswerDirection:
        """The directions of these prompts."""
        return AnswerDirection(self.u[index], self.bias[index])


@dataclass(frozen=True, eq=False)
class Pulled:
    """The direction at each place that writes, with the scales of one run frozen."""

    final: Float[Tensor, "prompt d_model"]
    """At the residual stream."""
    attn: tuple[Float[Tensor, "prompt d_model"], ...]
    """By layer, at attention's output before any post-norm."""
    mlp: tuple[Float[Tensor, "prompt d_model"], ...]
    attn_bias: tuple[Float[Tensor, " prompt"] | None, ...]
    """By layer, the term of the output bias (and of the post-norm's); None where the model has none."""
    mlp_bias: tuple[Float[Tensor, " prompt"] | None, ...]
    final_bias: Float[Tensor, " prompt"] | None


def precise(x: Tensor) -> Tensor:
    """At least float32, without a gradient."""
    return x.detach().to(torch.promote_types(x.dtype, torch.float32))


def check_linear(net: Net, name: str) -> None:
    """UserError where the final residual is no sum of what the parts wrote."""
    if net.geometry.stream_norm:
        raise UserError(
            f"model {name} norms the residual stream itself after each addition (post-LayerNorm), so its logits are "
            "no sum of terms; direct logit attribution needs a pre-norm, sandwich-norm or no-norm model"
        )
    if not net.geometry.skip:
        raise UserError(f"model {name} has no skip paths: only its last sublayer writes what the logits read")


def answer_direction(net: Net, task: Task) -> AnswerDirection:
    """Mean unembedding vector of each prompt's right answers − that of its wrong ones."""
    w_u, b_u = unembedding(net)

    def side(answers: Answers) -> tuple[Tensor, Tensor]:
        tokens = answers.first.to(w_u.device)
        present = answers.present.to(w_u.device)
        share = present / present.sum(1, keepdim=True).clamp(min=1)
        vectors = precise(w_u.T[tokens])
        share = share.to(vectors.dtype)
        return einsum(vectors, share, "prompt answer d_model, prompt answer -> prompt d_model"), (
            precise(b_u)[tokens] * share
        ).sum(1)

    (right, right_bias), (wrong, wrong_bias) = side(task.right), side(task.wrong)
    return AnswerDirection(right - wrong, right_bias - wrong_bias)


def logit_diff_at(
    logits: Float[Tensor, "prompt pos d_vocab"], columns: Int[Tensor, " prompt"], task: Task
) -> Float[Tensor, " prompt"]:
    """The logit difference read at one column per prompt."""
    at = pick(logits, columns)
    right, wrong = (at.gather(1, a.first.to(at.device)) for a in (task.right, task.wrong))
    return mean_over(right, task.right) - mean_over(wrong, task.wrong)


def pick(x: Float[Tensor, "prompt pos *unit"], columns: Int[Tensor, " prompt"]) -> Float[Tensor, " prompt *unit"]:
    """One column per prompt, at least float32; column −1 (no such token) reads column 0."""
    return precise(x[torch.arange(len(columns), device=x.device), columns.clamp(min=0).to(x.device)])


def pull_back(
    norm: Norm, direction: Float[Tensor, "prompt d_model"], at: Float[Tensor, "prompt d_model"]
) -> Float[Tensor, "prompt d_model"]:
    """A direction at a norm's output to its input, the denominator frozen where the input is `at`."""
    if not norm:
        return direction
    gain = norm.gain if isinstance(norm.gain, float) else precise(norm.gain).to(direction.device)
    # centring is a symmetric projection, so it pulls a direction back as it pushes a vector forward
    return norm.centre(direction * gain / norm.denominator(at.to(direction.device)))


def scale_sites(net: Net) -> list[str]:
    """Addresses whose values `pull` needs."""
    g = net.geometry
    posts = ["attn_out_pre", *(["mlp_out_pre"] if g.mlp else [])] if g.post_norm else []
    return [f"L{g.layers - 1}.resid_post", *(f"L{i}.{site}" for site in posts for i in range(g.layers))]


def pull(net: Net, direction: AnswerDirection, acts: Mapping[str, Tensor], columns: Int[Tensor, " prompt"]) -> Pulled:
    """Pull the direction back through the norms, with their scales as in `acts` at these columns."""
    u, final = direction.u, net.final
    d = pull_back(final, u, pick(acts[f"L{net.geometry.layers - 1}.resid_post"], columns))
    attn, mlp = [], []
    for i, parts in enumerate(net.layers):
        attn.append(_sublayer(parts.post1, parts.out, d, acts.get(f"L{i}.attn_out_pre"), columns, parts))
        if net.geometry.mlp:
            mlp.append(_sublayer(parts.post2, parts.mlp_out, d, acts.get(f"L{i}.mlp_out_pre"), columns, parts))
    return Pulled(
        final=d,
        attn=tuple(way for way, _ in attn),
        mlp=tuple(way for way, _ in mlp),
        attn_bias=tuple(term for _, term in attn),
        mlp_bias=tuple(term for _, term in mlp),
        final_bias=None if final.bias is None else u @ precise(final.bias).to(u.device),
    )


def _sublayer(
    post: Norm, out: torch.nn.Module | None, d: Tensor, before: Tensor | None, columns: Tensor, parts: LayerParts
) -> tuple[Tensor, Tensor | None]:
    """The direction at a sublayer's output before its post-norm, and the term of its biases."""
    here = d.to(parts.device)
    way = here if before is None else pull_back(post, here, pick(before, columns))
    terms = []
    bias = getattr(out, "bias", None)
    if bias is not None:
        terms.append(way @ precise(bias))
    if before is not None and post.bias is not None:
        terms.append(here @ precise(post.bias))
    return way, torch.stack(terms).sum(0) if terms else None
