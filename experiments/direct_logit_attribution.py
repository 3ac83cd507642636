"""Direct logit attribution: what each part of a model writes straight into the logit difference.

One row per component (granularity `components`, `heads` or `neurons`) and position where logits are read:
mean term over prompts in logits (`score`, positive helps the right answer), 95% interval, n. Two more rows a
position let the reader check the sum: `total`, the sum of all terms, and `logit_diff`, the model's own logit
difference before any soft-cap. `clean` is the logit difference as the logits give it, soft-cap included.

With `by_source`, heads' rows are split by the token that the head reads: by real index (`pos`) or by label
(`pos_label`; `other` holds the unlabelled ones).

    interp run direct_logit_attribution --model toy-ioi --task ioi
    interp run direct_logit_attribution --set granularity=neurons --set top=20
    interp run direct_logit_attribution --set by_source=label
    interp run direct_logit_attribution --set granularity=edge
    interp run direct_logit_attribution --set circuit=toy-ioi --set part=complement

With `circuit` the terms are those of the circuit's run, everything outside it ablated (`algorithm` says so), by
node; `part=members` gives its nodes' terms in the whole model. With `granularity=edge` the term of u -> v is what
u puts into the logit difference through v's values, pattern and scales frozen; query, key and MLP edges are null.

Source: 2211.00593. Limits: answers of one token; no post-LayerNorm models (their logits are no sum of terms).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from interp.cells import Context, Experiment, ModelTaskConfig, Table

if TYPE_CHECKING:
    import pandas as pd

    from interp.attribution.direct import DirectAttribution
    from interp.stats import Resampling

CHECKS = ("total", "logit_diff")
"""Sites of the rows that show that the terms sum."""


class DirectLogitAttribution(ModelTaskConfig):
    """Settings of `direct_logit_attribution`."""

    metric: Literal["logit_diff"] = Field("logit_diff", description="terms sum to the logit difference only")
    granularity: Literal["components", "heads", "neurons", "edge"] = Field(
        "heads", description="how finely terms are split; edge: through each edge of the graph"
    )
    by_source: Literal["none", "position", "label"] = Field("none", description="split heads' terms by the token read")
    labels: tuple[str, ...] | None = Field(None, description="labels for by_source=label; all by default")
    positions: tuple[int | str, ...] = Field(
        ("answer",), min_length=1, description="where logits are read: `answer`, labels or integers"
    )
    side: Literal["clean", "corrupt"] = Field("clean", description="which prompts are run")
    top: int = Field(50, ge=1, description="neurons with rows of their own; each MLP's others share one")
    circuit: str | None = Field(None, description="circuit file (.json, .graphml) or named circuit to run")
    part: Literal["circuit", "complement", "members"] = Field(
        "circuit", description="with circuit=: run it or its complement with the rest ablated, or its nodes unablated"
    )
    ablation: Literal["corrupt", "mean", "zero", "resample"] = Field("mean", description="with circuit=: the rest")
    ungrouped: bool = Field(False, description="with granularity=edge: a k and a v for every query head")


def run(config: DirectLogitAttribution, context: Context) -> Table:
    """One table over all positions."""
    from interp.attribution.direct import direct_logit_attribution
    from interp.registry import UserError
    from interp.results.schemas import ATTRIBUTION

    if len(set(config.positions)) < len(config.positions):
        raise UserError(f"positions name one place twice: {', '.join(map(str, config.positions))}")
    if config.circuit is not None or config.part != "circuit" or config.granularity == "edge":
        return _on_graph(config, context)
    model, task = context.model, context.task
    how = context.resampling(task.n, None if task.cluster is None else task.cluster.tolist())
    frames, examples = [], []
    for place in config.positions:
        found = direct_logit_attribution(
            model, task, granularity=config.granularity, by_source=config.by_source, labels=config.labels,
            position=None if place == "answer" else place, side=config.side,
            progress=lambda batches, place=place: context.progress(batches, f"terms at {place}"),  # type: ignore[misc]
        )  # fmt: skip
        frame, per_prompt = _rows(config, found.top(config.top), how, dict(task.meta))
        frames.append(frame)
        examples.append(per_prompt)
    return Table(_joined(frames, ATTRIBUTION), ATTRIBUTION, examples=_stacked(examples))


def _rows(
    config: DirectLogitAttribution, found: DirectAttribution, how: Resampling, meta: dict[str, Any]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of one position, the check rows last, and the terms per prompt."""
    import numpy as np

    from interp.results.frames import example_rows, score_rows
    from interp.results.schemas import ATTRIBUTION

    terms, total, whole, capped = (
        t.double().cpu().numpy() for t in (found.terms.T, found.total, found.logit_diff, found.capped)
    )
    # "clean" and "corrupt" name whole runs; what is read at another place is neither
    side: dict[str, Any] = {config.side: capped} if found.position == "answer" else {}
    constants: dict[str, Any] = {
        **found.columns(), "model": config.model, "task": config.task, "seed": config.seed,
        "split": _text(meta.get("split")), "corruption": _text(meta.get("corruption")),
    }  # fmt: skip
    keys = [c.key() for c in found.components]
    rows = score_rows(keys, terms, how, schema=ATTRIBUTION, **side, **constants)
    checks = score_rows([{"site": s} for s in CHECKS], np.stack([total, whole]), how, **side, **constants)
    return _concat([rows, checks]), example_rows(keys, terms, ATTRIBUTION, **constants)


def _joined(frames: list[pd.DataFrame], schema: Any) -> pd.DataFrame:
    """One sorted table; p-values are adjusted over the components of all positions, check rows left out."""
    from interp.results.frames import sort_by_key
    from interp.stats import benjamini_hochberg

    frame = sort_by_key(_concat(frames), schema)
    component = ~frame["site"].isin(CHECKS)
    frame["p_adjusted"] = benjamini_hochberg(frame["p_value"].where(component).to_numpy())
    return frame


def _stacked(frames: list[pd.DataFrame]) -> pd.DataFrame:
    from interp.results.frames import examples_schema, typed
    from interp.results.schemas import ATTRIBUTION

    whole = typed(_concat(frames), examples_schema(ATTRIBUTION))
    return whole[[c for c in whole.columns if whole[c].notna().any()]]


def _concat(frames: list[pd.DataFrame]) -> pd.DataFrame:
    import pandas as pd

    return pd.concat(frames, ignore_index=True)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _on_graph(config: DirectLogitAttribution, context: Context) -> Table:
    """Terms of edges, or of a circuit's run."""
    from interp.circuits.direct_tables import circuit_table, edge_table
    from interp.circuits.named import read_circuit, refuse_unused
    from interp.interventions.sources import Recipe
    from interp.registry import UserError

    if config.positions != ("answer",) or config.by_source != "none":
        raise UserError("circuits and edges are read at the answer position, and not split by source token")
    if config.granularity not in ("heads", "edge"):
        raise UserError(f"a circuit's terms are those of its nodes (heads) or edges (edge), not {config.granularity}")
    refuse_unused(config, ("labels", "top"))
    model, task = context.model, context.task
    if config.circuit is None:
        return edge_table(model, task, config.side, config.ungrouped, config.seed)
    circuit = read_circuit(config.circuit, model.geometry)
    if config.granularity == "edge":
        return edge_table(model, task, config.side, circuit.graph.ungrouped, config.seed, circuit, config.part)
    return circuit_table(model, task, circuit, config.part, Recipe(config.ablation, seed=config.seed), config.side)


EXPERIMENT = Experiment(
    "direct_logit_attribution",
    1,
    DirectLogitAttribution,
    run,
    presets={"smoke": {"n": 8, "granularity": "neurons", "top": 5}},
)

if __name__ == "__main__":
    from interp.cli import main_for

    raise SystemExit(main_for("direct_logit_attribution"))
