"""Logit lens: what the residual stream after each layer would predict if the model stopped there.

Steps: the residual entering block 0 and leaving each block → the final norm, with *its own* statistics → the
unembedding (soft-cap included) → metrics, per prompt. After the last block this is the model's own output.

It differs from sums of direct logit attribution, which take the final residual's statistics for every layer;
the two agree at the last layer only.

Source: nostalgebraist, "interpreting GPT: the logit lens" (2020); 2303.08112 compares with tuned lenses.
Limits: answers of one token. A low layer's basis need not be the unembedding's, so a lens that sees nothing
there does not show that nothing is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.attribution.direct import Progress, need_parts, need_single, rows_at_once
from interp.hooks.edits import Edit
from interp.hooks.prompts import Prompts
from interp.hooks.selection import Place
from interp.metrics import LogitsView, Metric, get_metric, logprob
from interp.models.forward import final_norm, unembed
from interp.models.model import Model
from interp.models.net import Net
from interp.registry import UserError
from interp.tasks.values import Side, Task

if TYPE_CHECKING:
    import pandas as pd

ANSWER = "answer"
"""The place where the task reads its answer."""


@dataclass(frozen=True, eq=False)
class LogitLens:
    """Metrics of the residual stream read as if it were the last, by layer and place, per prompt."""

    values: Float[Tensor, "metric depth place prompt"]
    """`depth` counts blocks run: 0 is the embedding, the last is the model's output. NaN: no such token."""
    metrics: tuple[str, ...]
    units: tuple[str, ...]
    places: tuple[Place, ...]
    side: str = "clean"
    model: str = ""
    task: str = ""
    cluster: Int[Tensor, " prompt"] | None = None

    def of(self, metric: str, place: Place = ANSWER) -> Float[Tensor, "depth prompt"]:
        """One metric at one place, from the embedding to the model's output."""
        for what, name, known in (("metric", metric, self.metrics), ("place", place, self.places)):
            if name not in known:
                raise UserError(f"this lens has no {what} {name!r}; it has: {', '.join(map(str, known))}")
        return self.values[self.metrics.index(metric), :, self.places.index(place)]

    def table(self, seed: int = 0) -> pd.DataFrame:
        """Rows of the curve schema, `x` = blocks run: mean over prompts, 95% interval, n."""
        import numpy as np

        from interp.stats import resampling

        cluster = None if self.cluster is None else self.cluster.cpu().numpy()
        how = resampling(self.values.shape[-1], np.random.default_rng(seed), cluster)
        return curve_frame(self, how, experiment="logit_lens", model=self.model, task=self.task, seed=seed)


def curve_frame(lens: LogitLens, how: Any, **constants: Any) -> pd.DataFrame:
    """The lens as rows of the curve schema, with the resamples given."""
    import pandas as pd

    from interp.results.frames import adjusted, typed
    from interp.results.schemas import CURVE
    from interp.stats import summarize

    keys = [
        {"metric": metric, "unit": unit, "x": float(depth), **_where(depth), **_at(place)}
        for metric, unit in zip(lens.metrics, lens.units, strict=True)
        for depth in range(lens.values.shape[1])
        for place in lens.places
    ]
    got = summarize(lens.values.flatten(0, 2).double().cpu().numpy(), how)
    frame = pd.DataFrame.from_records([{**constants, "method": "logit_lens", "x_name": "blocks", **k} for k in keys])
    frame = frame.assign(
        value=got.mean, stderr=got.stderr, ci_low=got.low, ci_high=got.high, n=got.n,
        reason=pd.Series(got.reason, dtype="string"),
    )  # fmt: skip
    # a p-value of "the mean is 0" says something of differences only
    signed = frame["unit"].isin(["logits", "nats"]).to_numpy()
    frame["p_value"] = pd.Series(got.p_value).where(signed)
    return adjusted(typed(frame, CURVE))


def _where(depth: int) -> dict[str, Any]:
    return {"site": "resid_pre", "layer": 0} if depth == 0 else {"site": "resid_post", "layer": depth - 1}


def _at(place: Place) -> dict[str, Any]:
    where: dict[str, Any] = {"series": str(place), "positions": str(place)}
    if isinstance(place, int) and place >= 0:
        where["pos"] = place
    elif isinstance(place, str) and place != ANSWER:
        where["pos_label"] = place
    return where


@torch.no_grad()
def logit_lens(
    model: Model,
    task: Task,
    *,
    metrics: Sequence[str | Metric] = ("logit_diff", "prob", "rank"),
    positions: Sequence[Place] | str = (ANSWER,),
    side: Side = "clean",
    edits: Edit | Sequence[Edit] = (),
    batch_size: int | None = None,
    progress: Progress = list,
) -> LogitLens:
    """Read the residual stream after every block through the final norm and the unembedding.

    Args:
        metrics: registered ones that read one position, or `prob` (summed probability of the right answers).
            Those that compare with a reference (kl) compare with the model's own output at the same place.
        positions: `answer`, labels, integers; or `all`, every real index of the longest prompt.
        edits: made in the run that is read.

    Raises UserError for answers of several tokens, an unknown metric or one that reads every position.

    >>> import interp
    >>> model = interp.load_model("toy-ioi")
    >>> task = interp.load_task("ioi", model, n=8)
    >>> logit_lens(model, task, metrics=["logit_diff"]).of("logit_diff").shape  # blocks run, prompts
    torch.Size([4, 8])
    """
    need_parts(model, "the logit lens")
    need_single(task, "the logit lens")
    chosen = [_metric(m, task) for m in metrics]
    prompts = task.prompts(side)
    places = _places(positions, prompts)
    columns = torch.stack([_column(p, prompts) for p in places])
    many = (edits,) if isinstance(edits, Edit) else tuple(edits)
    size = len(prompts) if many else batch_size or rows_at_once(model, prompts)
    sites = ["L0.resid_pre", *(f"L{i}.resid_post" for i in range(model.geometry.layers))]
    parts = []
    for rows in progress([slice(i, i + size) for i in range(0, len(prompts), size)]):
        run = model.run(prompts.rows(rows), edits=many, capture=sites)
        held = [run[site] for site in sites]
        parts.append(_read(model.net, held, task.rows(rows), columns[:, rows], [m for _, _, m in chosen], side))
    return LogitLens(
        torch.cat(parts, -1), tuple(name for name, _, _ in chosen), tuple(unit for _, unit, _ in chosen), places,
        side, model.name, task.name, task.cluster,
    )  # fmt: skip


Reading = Callable[[LogitsView, Task, LogitsView], Float[Tensor, " prompt"]]


def _metric(metric: str | Metric, task: Task) -> tuple[str, str, Reading]:
    """Name, unit, and how it is read off a view."""
    if metric == "prob":
        return "prob", "probability", lambda view, part, last: logprob.from_view(view, part).exp()
    found = get_metric(metric)
    if found.reads == "all":
        raise UserError(f"metric {found.name!r} reads every position; the lens reads one (logit_diff, prob, kl …)")
    found.check(task)
    return found.name, found.unit_for(task), lambda view, part, last: found.from_view(view, part, last)


def _places(positions: Sequence[Place] | str, prompts: Prompts) -> tuple[Place, ...]:
    if positions == "all":
        return tuple(range(int(prompts.lengths.max())))
    many: Iterable[Place] = (positions,) if isinstance(positions, str) else positions
    places = tuple(many)
    if not places or len(set(places)) < len(places):
        raise UserError(f"positions must name at least one place, each once; got {list(places)}")
    for place in places:
        if place != ANSWER and (isinstance(place, str) or place < 0):
            prompts.real_index(place)
    return places


def _column(place: Place, prompts: Prompts) -> Int[Tensor, " prompt"]:
    """Column of a place per prompt, −1 where a prompt has none: unlike for an edit, short prompts may be left out."""
    if place == ANSWER:
        return prompts.answer_columns
    if isinstance(place, str) or place < 0:
        return prompts.column(place)
    if bool((prompts.lengths <= place).all()):
        raise UserError(
            f"position {place} lies outside every prompt; the longest has {int(prompts.lengths.max())} tokens"
        )
    return torch.where(prompts.lengths > place, prompts.starts + place, -1)


def _read(
    net: Net, held: list[Tensor], task: Task, columns: Int[Tensor, "place prompt"], metrics: list[Reading], side: Side
) -> Float[Tensor, "metric depth place prompt"]:
    home = columns.device
    by_place = []
    for at in columns:
        views = [_view(net, resid, at, task, side) for resid in held]
        read = torch.stack([torch.stack([m(v, task, views[-1]).to(home) for v in views]) for m in metrics])
        by_place.append(read.masked_fill(at < 0, torch.nan))
    return torch.stack(by_place, 2)


def _view(net: Net, resid: Tensor, columns: Tensor, task: Task, side: Side) -> LogitsView:
    """The logits that the residual at these columns would give."""
    device = next(net.unembed.parameters()).device if net.unembed is not None else resid.device
    at = resid[torch.arange(len(columns), device=resid.device), columns.clamp(min=0).to(resid.device), None]
    logits = unembed(net, final_norm(net, at.to(device)))
    right, wrong = (logits[:, 0].gather(1, a.first.to(device)) for a in (task.right, task.wrong))
    return LogitsView(right, wrong, logits, side=side)
