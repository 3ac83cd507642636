"""QK and OV circuits: what heads' weights say alone, without a prompt.

Rows by `metric`: of every head `qk_norm`, `ov_norm` (Frobenius), `copying` (Σλ/Σ|λ| of W_E W_OV W_U),
`self_matching` (share of tokens whose best key is themselves) and, where the task labels name tokens,
`copy_score` and `negative_copy_score`; of every pair of heads in different layers `q_composition`,
`k_composition`, `v_composition` (baseline, permutation band, p), `k_matching`, `q_matching` and
`virtual_copying`; of chosen heads `singular_direction` (size, tokens at both ends) and `top_qk`, `top_ov` (the
largest entries of the full circuits, streamed).

    interp run qk_ov_circuits --model toy-ioi --task ioi
    interp run qk_ov_circuits --model attn-2l --set task=null --set offset=1

Source: A Mathematical Framework for Transformer Circuits (2021); 2211.00593 for the copy score. Limits: biases,
norm denominators, positions and MLPs are left out; models with normed queries and keys have OV rows only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import Field

from interp.cells import Config, Context, Experiment, Table
from interp.context import ModelName, TaskName

if TYPE_CHECKING:
    from interp.models.model import Model


class QkOvCircuits(Config):
    """Settings of `qk_ov_circuits`."""

    model: ModelName = Field("toy-ioi", description="embedded name, local folder or hub name")
    model_options: dict[str, Any] = Field({}, description="passed on to load_model: revision, weights, …")
    task: TaskName | None = Field("ioi", description="task whose labels name tokens for the copy score; null: none")
    task_options: dict[str, Any] = Field({}, description="passed on to load_task")
    labels: tuple[str, ...] = Field(("IO", "S1"), description="labels of the name tokens")
    n: int | None = Field(None, ge=1, description="prompts for the copy score")
    fold_norm: bool = Field(True, description="fold the reading norm's gain")
    centre: bool = Field(False, description="also take off the mean, where the norm does")
    offset: int = Field(0, ge=0, description="rotary offset of QK circuits, tokens from key to query")
    draws: int = Field(200, ge=100, description="random pairs of the composition baseline")
    permutations: int = Field(200, ge=0, description="permutations of the composition test")
    heads: tuple[tuple[int, int], ...] | None = Field(
        None, description="(layer, head) with singular directions and top entries; none by default"
    )
    top: int = Field(5, ge=1, description="singular directions, and entries of the full circuits")
    seed: int = Field(0, ge=0, lt=2**63, description="seed of everything drawn")


Rows = Iterator[dict[str, Any]]


def run(config: QkOvCircuits, context: Context) -> Table:
    """All rows of one model."""
    from interp.results.frames import typed
    from interp.results.schemas import WEIGHTS

    model: Model = context.model
    rows = [*_heads(config, model), *_copy(config, context, model), *_pairs(config, context, model)]
    rows += _chosen(config, model)
    how = "gain" if config.fold_norm else "plain"
    constants = {"components": f"{how}, centred" if config.centre else how, "seed": config.seed}
    frame = typed([{**constants, **row} for row in rows], WEIGHTS)
    return Table(_adjusted(frame), WEIGHTS, artifacts={"circuits.safetensors": _arrays(rows, model)})


def reads_vocabulary(model: Model) -> bool:
    """Whether the model's outputs are its own tokens."""
    unembed: Any = model.net.unembed
    return unembed is not None and unembed.weight.shape[0] == model.geometry.d_vocab


def _heads(config: QkOvCircuits, model: Model) -> Rows:
    """Norms, copying and matching of every head by itself."""
    from interp.weights.circuits import ov_circuits, qk_circuits
    from interp.weights.copying import copying_eigenvalues, copying_score
    from interp.weights.matching import matching

    g = model.geometry
    ov = ov_circuits(model, fold_norm=config.fold_norm, centre=config.centre)
    grids: dict[str, tuple[Any, str, str, int | None]] = {"ov_norm": (ov.norm(), "norm", "ov", None)}
    if g.unembed and reads_vocabulary(model):
        eigenvalues = copying_eigenvalues(model, ov, fold_norm=config.fold_norm)
        grids["copying"] = (copying_score(eigenvalues), "share", "full ov", None)
    if not g.qk_norm:
        qk = qk_circuits(model, fold_norm=config.fold_norm, centre=config.centre, delta=config.offset)
        grids["qk_norm"] = (qk.norm(), "norm", "qk", config.offset)
        found = matching(model, "self", delta=config.offset, seed=config.seed)
        grids["self_matching"] = (found.share, "share of tokens", "full qk", config.offset)
    for metric, (grid, unit, method, offset) in grids.items():
        for layer in range(g.layers):
            for head in range(g.heads):
                value = float(grid[layer, head])
                chance = 1 / min(g.d_vocab, 1024) if metric == "self_matching" else None
                where = {"layer": layer, "head": head, "kv_head": head // g.group, "offset": offset}
                yield {"metric": metric, "method": method, **where, "value": value, "baseline": chance, "unit": unit}


def _copy(config: QkOvCircuits, context: Context, model: Model) -> Rows:
    """IOI copy scores, with intervals over prompts."""
    if config.task is None:
        return
    import numpy as np

    from interp.stats import summarize
    from interp.weights.copying import TOP, copy_scores

    task = context.task
    places = [p for p in config.labels if p in task.clean.labels]
    if not places:
        yield {"metric": "copy_score", "reason": f"the task has no labels {', '.join(config.labels)}"}
        return
    found = copy_scores(model, task.clean, list(places))
    per_prompt = found.prompt.numpy()
    n, g = len(task.clean), model.geometry
    for metric, hits in (("copy_score", found.hit), ("negative_copy_score", found.negative)):
        flat = hits.double().flatten(1).numpy()
        sums = np.stack([np.bincount(per_prompt, weights=column, minlength=n) for column in flat.T])
        count = np.bincount(per_prompt, minlength=n)
        with np.errstate(invalid="ignore"):
            got = summarize(sums / np.where(count > 0, count, np.nan), context.resampling(n))
        for i in range(g.layers * g.heads):
            layer, head = divmod(i, g.heads)
            key = {"metric": metric, "method": "ov after block 0", "task": config.task, "layer": layer, "head": head}
            key |= {"kv_head": head // g.group, "unit": "share of tokens"}
            if layer == 0:
                yield {**key, "reason": "block 0 does not read the residual after itself"}
                continue
            yield {
                **key, "value": got.mean[i], "stderr": got.stderr[i], "ci_low": got.low[i], "ci_high": got.high[i],
                "n": int(got.n[i]), "reason": got.reason[i], "baseline": TOP / g.d_vocab,
            }  # fmt: skip


def _pairs(config: QkOvCircuits, context: Context, model: Model) -> Rows:
    """Composition, matching and virtual heads of every pair."""
    from interp.weights.composition import KINDS, composition
    from interp.weights.matching import matching
    from interp.weights.singular import virtual_heads

    g = model.geometry
    if g.layers < 2:
        yield {"metric": "k_composition", "reason": "the model has one layer"}
        return
    pairs = [(a, b, c, d) for a in range(g.layers) for c in range(a + 1, g.layers)
             for b in range(g.heads) for d in range(g.heads)]  # fmt: skip

    def key(pair: tuple[int, int, int, int]) -> dict[str, Any]:
        return {"src": f"a{pair[0]}.h{pair[1]}", "dst": f"a{pair[2]}.h{pair[3]}"}

    kinds = [k for k in KINDS if k == "v" or not g.qk_norm]
    for kind in context.progress(kinds, "composition"):
        found = composition(
            model, kind, fold_norm=config.fold_norm, centre=config.centre, delta=config.offset, draws=config.draws,
            permutations=config.permutations, seed=config.seed,
        )  # fmt: skip
        for pair in pairs:
            numbers = {
                "value": found.score, "baseline": found.baseline, "null_low": found.band_low,
                "null_high": found.band_high, "p_value": found.p_value,
            }  # fmt: skip
            yield {
                "metric": f"{kind}_composition", "method": "ov, ov" if kind == "v" else "ov, qk", **key(pair),
                **{name: float(grid[pair]) for name, grid in numbers.items()}, "unit": "share of norms",
                "n": config.permutations, "offset": None if kind == "v" else config.offset,
            }  # fmt: skip
    for through in () if g.qk_norm else ("k", "q"):
        matched = matching(model, through, delta=config.offset, seed=config.seed)
        for pair in pairs:
            yield {
                "metric": f"{through}_matching", "method": "full ov, qk", **key(pair), "offset": config.offset,
                "value": float(matched.share[pair]), "baseline": 1 / len(matched.tokens), "n": len(matched.tokens),
                "unit": "share of tokens",
            }  # fmt: skip
    if reads_vocabulary(model):
        for first in range(g.layers):
            for second in range(first + 1, g.layers):
                copying = virtual_heads(model, first, second, fold_norm=config.fold_norm).copying
                for h1 in range(g.heads):
                    for h2 in range(g.heads):
                        yield {
                            "metric": "virtual_copying", "method": "full ov, ov", **key((first, h1, second, h2)),
                            "value": float(copying[h1, h2]), "unit": "share",
                        }  # fmt: skip


def _chosen(config: QkOvCircuits, model: Model) -> Rows:
    """Singular directions and the largest entries of the full circuits of chosen heads, in tokens."""
    from interp.registry import UserError
    from interp.weights.circuits import full_circuit
    from interp.weights.singular import singular_directions

    def text(ids: Any) -> str:
        return " ".join(repr(t) for t in model.to_text(ids))

    g = model.geometry
    for layer, head in config.heads or ():
        if not (0 <= layer < g.layers and 0 <= head < g.heads):
            raise UserError(f"head ({layer}, {head}) is not in {model.name}: {g.layers} layers × {g.heads} heads")
        where = {"layer": layer, "head": head, "kv_head": head // g.group}
        for d in singular_directions(model, layer, head, config.top):
            yield {
                "metric": "singular_direction", "method": "ov", **where, "rank": d.rank, "value": d.size,
                "unit": "singular value", "reads": f"{text(d.reads)} | {text(d.reads_against)}",
                "writes": f"{text(d.writes)} | {text(d.writes_against)}",
            }  # fmt: skip
        for side in ("ov",) if g.qk_norm else ("qk", "ov"):
            offset = config.offset if side == "qk" else 0
            circuit = full_circuit(model, side, layer, head, fold_norm=config.fold_norm, delta=offset)
            for rank, (value, row, column) in enumerate(zip(*circuit.top(config.top), strict=True)):
                # rows of QK are queries, which read; rows of OV are the tokens read
                yield {
                    "metric": f"top_{side}", "method": f"full {side}", **where, "rank": rank, "value": float(value),
                    "offset": offset if side == "qk" else None,
                    "unit": "score before the scale" if side == "qk" else "logits before the norms' scales",
                    "reads": text(row[None]), "writes": text(column[None]),
                }  # fmt: skip


def _adjusted(frame: Any) -> Any:
    from interp.stats import benjamini_hochberg

    out = frame.copy()
    for metric in frame["metric"].dropna().unique():
        here = frame["metric"] == metric
        out.loc[here, "p_adjusted"] = benjamini_hochberg(frame.loc[here, "p_value"].to_numpy())
    return out


def _arrays(rows: list[dict[str, Any]], model: Model) -> dict[str, Any]:
    """Composition grids `[l1, h1, l2, h2]`, NaN where there is no pair, for plots."""
    import numpy as np

    g = model.geometry
    found: dict[str, Any] = {}
    for row in rows:
        if "src" in row and str(row["metric"]).endswith("_composition"):
            grid = found.setdefault(row["metric"], np.full((g.layers, g.heads, g.layers, g.heads), np.nan))
            at = [int(x[1:]) for name in (row["src"], row["dst"]) for x in name.split(".")]
            grid[tuple(at)] = row["value"]
    return found or {"none": np.zeros(1)}


EXPERIMENT = Experiment(
    "qk_ov_circuits", 1, QkOvCircuits, run,
    {"smoke": {"n": 8, "permutations": 20, "draws": 100, "heads": [[1, 0]], "top": 2}},
)  # fmt: skip

if __name__ == "__main__":
    from interp.cli import main_for

    raise SystemExit(main_for("qk_ov_circuits"))
