"""Ground truth: every discovery method on circuits that are known.

Rows with `series` = ranking: AUROC of the method's ranking of all edges against the true ones (95% bootstrap
interval over edges), precision and recall at the true size, CPR and CMD on other prompts, forward passes
(a backward pass counts as two) and seconds. Rows with `series` = silent edge: true edges that exact patching
does not see, and why (redundant with which edge, or constant on the data); `series` = false edge: false edges
with an effect above 1e-6. Both for compiled and planted circuits only: in the trained models, whose circuit is a
finding, edges outside it may carry a little. `series` = leaderboard: each method's mean over the circuits on
which every method has a number (interval over circuits); the same as a page is the artifact `leaderboard.md`.

Exact patching, ACDC and masks are given the size of the output's change; gradient methods a metric with a
gradient. What edges are replaced by is fixed per circuit: zero on compiled and planted ones.

    interp run ground_truth
    interp run ground_truth --set circuits='["planted-gates"]' --set methods='["exact", "eap"]'
    interp run ground_truth --set induction_dir=DIR

Circuits that cannot be built (Tracr not installed, no `induction_dir`) have rows of nulls with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from interp.cells import Config, Context, Experiment, Table
from interp.cli import main_for
from interp.context import MethodName

if TYPE_CHECKING:
    from interp.circuits.known import Known
    from interp.circuits.known.judge import Verdict
    from interp.results.schemas import Schema

CIRCUITS = (
    "planted-induction", "planted-gates", "tracr-reverse", "tracr-x-proportion", "tracr-count", "tracr-histogram",
    "tracr-sort", "tracr-sort-unique", "tracr-shuffle-dyck", "induction-2l", "induction-2l-finetuned", "toy-ioi",
)  # fmt: skip
METHODS = ("exact", "eap", "eap_ig_inputs", "eap_ig_activations", "clean_corrupt", "relp", "acdc", "masks")


class GroundTruth(Config):
    """Settings of `ground_truth`."""

    circuits: tuple[str, ...] = Field(CIRCUITS, min_length=1, description="known circuits")
    methods: tuple[MethodName, ...] = Field(METHODS, min_length=1, description="discovery methods")
    n: int = Field(32, ge=1, description="prompts of each circuit")
    seed: int = Field(0, ge=0, lt=2**63, description="seed of the prompts and of everything drawn")
    induction_dir: str | None = Field(None, description="folder of the induction-2l models")
    tau: float = Field(1e-3, gt=0, description="acdc's threshold, in units of the output's change")
    mask_steps: int = Field(200, ge=1, description="training steps of masks")


def schema() -> Schema:
    """One row per circuit and method; further rows name edges."""
    from interp.results.schemas import Column, Schema

    def key(kind: str, **about: str) -> tuple[Column, ...]:
        return tuple(Column(name, kind, text, key=True) for name, text in about.items())

    def of(kind: str, **about: str) -> tuple[Column, ...]:
        return tuple(Column(name, kind, text) for name, text in about.items())

    return Schema(
        "ground_truth",
        (
            *key("name", experiment="experiment that made the row", model="known circuit", method="method",
                 series="ranking, silent edge, false edge or leaderboard", ablation="what edges are replaced by",
                 metric="metric the method was given", src="source of an edge", dst="slot of an edge"),
            *of("number", auroc="area under the ROC curve", auroc_low="lower end of its 95% interval",
                auroc_high="upper end", precision="at the true size", recall="at the true size",
                cpr="area under the faithfulness curve, other prompts", cmd="area between it and 1",
                forward_equivalents="forward passes, a backward one counts as two", seconds="wall time",
                effect="exact effect of an edge", joint="change by the edge after its partner went",
                reader_change="change of what reads the edge"),
            *of("index", edges="edges of the graph", true_edges="true ones", n="prompts"),
            *of("name", partners="edges it is redundant with", algorithm="variant of the method", unit="of effects"),
            *key("index", seed="seed"),
            *of("name", reason="why something is null, or why an edge is silent"),
        ),
        "auroc",
    )  # fmt: skip


def run(config: GroundTruth, context: Context) -> Table:
    """All methods on all circuits; finished pairs stream to the row log and resume."""
    from interp.circuits.discover import method_names
    from interp.circuits.known import names
    from interp.registry import unknown
    from interp.results.frames import typed

    for what, wanted, there in (
        ("known circuit", config.circuits, names()), ("discovery method", config.methods, method_names())
    ):  # fmt: skip
        for name in wanted:
            if name not in there:
                raise unknown(what, name, there)
    rows: list[dict[str, Any]] = []
    curves: dict[str, Any] = {}
    for name in context.progress(config.circuits, "known circuits", len(config.circuits)):
        found, points = _circuit(name, config, context)
        rows += found
        curves[name] = points
    kind = schema()
    board = _leaderboard(rows, config)
    artifacts = {"roc.json": curves, "leaderboard.md": _page(board, rows, config)}
    return Table(typed([*rows, *board], kind), kind, artifacts=artifacts)


def _circuit(name: str, config: GroundTruth, context: Context) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    from interp.circuits.known import known_circuit
    from interp.registry import UserError

    options = {"folder": config.induction_dir} if name.startswith("induction") else {}
    rows: list[dict[str, Any]] = []
    points: dict[str, Any] = {}
    todo = [m for m in config.methods if {"circuit": name, "method": m} not in context.rows]
    known = other = None
    if todo:
        try:
            known = known_circuit(name, config.n, config.seed, **options)
            other = known_circuit(name, config.n, config.seed + 1, **options)
        except UserError as e:
            for m in todo:
                context.rows.add(
                    {"circuit": name, "method": m}, {"rows": [_null(name, m, config, str(e))], "roc": None}
                )
    for m in config.methods:
        if {"circuit": name, "method": m} not in context.rows:
            assert known is not None
            assert other is not None
            context.rows.add({"circuit": name, "method": m}, _pair(known, other, m, config))
        row = context.rows.get({"circuit": name, "method": m})
        assert row is not None
        rows += row["rows"]
        points[m] = row["roc"]
    return rows, points


def _pair(known: Known, other: Known, method: str, config: GroundTruth) -> dict[str, Any]:
    """Rows of one method on one circuit."""
    from interp.circuits.known.judge import judge
    from interp.registry import UserError

    settings: dict[str, Any] = {"tau": config.tau} if method == "acdc" else {}
    if method == "masks":
        settings["mask_steps"] = config.mask_steps
    try:
        verdict = judge(known, other, method, config.seed, **settings)
    except UserError as e:
        return {"rows": [_null(known.name, method, config, str(e))], "roc": None}
    rows = [_ranking(known, method, verdict, config)]
    if method == "exact" and known.constructed:
        rows += _edges(known, verdict, config)
    return {"rows": rows, "roc": [list(a) for a in verdict.roc]}


def _ranking(known: Known, method: str, verdict: Verdict, config: GroundTruth) -> dict[str, Any]:
    from math import isfinite

    a = verdict.agreement
    numbers = {
        "auroc": a.auroc, "auroc_low": a.low, "auroc_high": a.high, "precision": a.precision, "recall": a.recall,
        "cpr": verdict.cpr, "cmd": verdict.cmd, "forward_equivalents": verdict.found.cost, "seconds": verdict.seconds,
    }  # fmt: skip
    few = None if isfinite(a.low) else f"{a.true} true and {a.items - a.true} false edges: too few for an interval"
    return {
        **_common(known, method, config), "series": "ranking", "metric": verdict.found.metric.name,
        **{k: v if isfinite(v) else None for k, v in numbers.items()}, "edges": a.items, "true_edges": a.true,
        "algorithm": str(verdict.found.about.get("algorithm")), "reason": few,
    }  # fmt: skip


def _edges(known: Known, verdict: Verdict, config: GroundTruth) -> list[dict[str, Any]]:
    from interp.circuits.known.judge import explain, false_effects, sizes

    effects = sizes(verdict.found)
    common = {**_common(known, "exact", config), "metric": known.effect.name, "unit": known.effect.unit}
    rows: list[dict[str, Any]] = []
    for s in explain(known, effects):
        rows.append({
            **common, "series": "silent edge", "src": str(s.edge.src), "dst": str(s.edge.dst), "effect": s.effect,
            "joint": s.joint, "reader_change": s.reader_change, "reason": s.why,
            "partners": ", ".join(map(str, s.partners)) or None,
        })  # fmt: skip
    for edge, effect in false_effects(known, effects):
        rows.append({
            **common, "series": "false edge", "src": str(edge.src), "dst": str(edge.dst), "effect": effect,
        })  # fmt: skip
    return rows


def _common(known: Known, method: str, config: GroundTruth) -> dict[str, Any]:
    recipe = known.recipe
    ablation = (
        f"{recipe.ablation} over {recipe.over} by {recipe.mean_by}" if recipe.ablation == "mean" else recipe.ablation
    )
    return {"experiment": "ground_truth", "model": known.name, "method": method, "ablation": ablation,
            "n": known.task.n, "seed": config.seed}  # fmt: skip


def _null(name: str, method: str, config: GroundTruth, reason: str) -> dict[str, Any]:
    return {"experiment": "ground_truth", "model": name, "method": method, "series": "ranking", "n": config.n,
            "seed": config.seed, "reason": reason}  # fmt: skip


def _leaderboard(rows: list[dict[str, Any]], config: GroundTruth) -> list[dict[str, Any]]:
    """Each method's means over the circuits on which every method has an AUROC, best first."""
    import numpy as np

    from interp import stats

    found = {(r["model"], r["method"]): r for r in rows if r["series"] == "ranking" and r.get("auroc") is not None}
    shared = [c for c in config.circuits if all((c, m) in found for m in config.methods)]
    if not shared:
        return []
    how = stats.resampling(len(shared), np.random.default_rng(config.seed))
    out = []
    for m in config.methods:
        mine = [found[c, m] for c in shared]
        got = stats.summarize(np.array([[r["auroc"] for r in mine]]), how)
        means = {k: _mean([r[k] for r in mine]) for k in MEANS}
        out.append({
            "experiment": "ground_truth", "model": "all", "method": m, "series": "leaderboard", **means,
            "auroc_low": _finite(got.low[0]), "auroc_high": _finite(got.high[0]), "n": config.n, "seed": config.seed,
            "algorithm": f"mean over circuits: {', '.join(shared)}", "reason": got.reason[0],
        })  # fmt: skip
    return sorted(out, key=lambda r: -float(r["auroc"]))


MEANS = ("auroc", "precision", "recall", "cpr", "cmd", "forward_equivalents", "seconds")


def _mean(values: list[float | None]) -> float | None:
    """The mean, where every circuit has a number."""
    held = [v for v in values if v is not None]
    return sum(held) / len(held) if held and len(held) == len(values) else None


def _finite(value: float) -> float | None:
    from math import isfinite

    return float(value) if isfinite(value) else None


def _page(board: list[dict[str, Any]], rows: list[dict[str, Any]], config: GroundTruth) -> str:
    """The leaderboard and the AUROC of every pair, in Markdown."""
    head = "| method | AUROC (95% over circuits) | CPR | CMD | forward passes | seconds |"
    lines = ["# Discovery methods on circuits that are known", "", board[0]["algorithm"] + "." if board else ""]
    lines += ["", head, "|---|---|---|---|---|---|"]
    for r in board:
        spread = "" if r["auroc_low"] is None else f" ({r['auroc_low']:.3f} to {r['auroc_high']:.3f})"
        cells = [f"{r['auroc']:.3f}{spread}", *(_cell(r[k]) for k in ("cpr", "cmd", "forward_equivalents", "seconds"))]
        lines.append(f"| {r['method']} | {' | '.join(cells)} |")
    by = {(r["model"], r["method"]): r for r in rows if r["series"] == "ranking"}
    lines += ["", "AUROC by circuit:", "", f"| circuit | {' | '.join(config.methods)} |"]
    lines.append("|---" * (len(config.methods) + 1) + "|")
    for c in config.circuits:
        lines.append(f"| {c} | {' | '.join(_cell(by[c, m].get('auroc')) for m in config.methods)} |")
    return "\n".join(lines) + "\n"


def _cell(value: float | None) -> str:
    return "null" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


EXPERIMENT = Experiment(
    "ground_truth",
    1,
    GroundTruth,
    run,
    {"smoke": {"circuits": ("planted-gates",), "methods": ("exact", "eap", "acdc"), "n": 8}},
)

if __name__ == "__main__":
    raise SystemExit(main_for("ground_truth"))
