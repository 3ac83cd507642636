"""Schemas of result tables: every column's name, kind and meaning, and which columns are the key.

Kinds: `name` (text), `index` (nullable whole number), `number` (float64), `flag` (nullable true/false). What
does not apply to a row is null, never 0. A table is sorted by its key, and a key occurs once.
An experiment that needs a column more makes its own schema with `SCHEMA.plus(...)`.
"""

from __future__ import annotations

from dataclasses import dataclass

from interp.registry import Registry, UserError

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    kind: str
    about: str
    key: bool = False


@dataclass(frozen=True)
class Schema:
    """A kind of table. `main` is the column that a ranking, a comparison or a plot looks at first."""

    name: str
    columns: tuple[Column, ...]
    main: str

    @property
    def names(self) -> list[str]:
        return [c.name for c in self.columns]

    @property
    def key(self) -> list[str]:
        return [c.name for c in self.columns if c.key]

    def kinds(self, kind: str) -> list[str]:
        """Names of the columns of one kind."""
        return [c.name for c in self.columns if c.kind == kind]

    def plus(self, name: str, *columns: Column, main: str | None = None) -> Schema:
        """This schema under another name, with further columns (key columns go before the numbers)."""
        taken = [c.name for c in columns if c.name in self.names]
        if taken:
            raise UserError(f"schema {self.name!r} has a column {taken[0]!r} already")
        keys = [*(c for c in self.columns if c.key), *(c for c in columns if c.key)]
        rest = [*(c for c in self.columns if not c.key), *(c for c in columns if not c.key)]
        return Schema(name, (*keys, *rest), main or self.main)


def _key(kind: str, **about: str) -> tuple[Column, ...]:
    return tuple(Column(name, kind, text, key=True) for name, text in about.items())


def _of(kind: str, **about: str) -> tuple[Column, ...]:
    return tuple(Column(name, kind, text) for name, text in about.items())


_WHAT = _key(
    "name",
    experiment="experiment that made the row",
    model="model",
    task="task",
    split="split of the task's prompts",
    metric="metric",
    method="method, as users name it",
    algorithm="which of the method's algorithms",
    direction="denoise, noise or ablate",
    ablation="zero, mean, resample or corrupt",
    corruption="how corrupt prompts differ from clean ones",
    granularity="node, edge, or the selection's axis",
    components="which components took part",
    positions="which positions took part",
    side="circuit or complement",
)

_WHERE = (
    *_key("name", site="site"),
    *_key("index", layer="block, from 0", head="query head", kv_head="key/value head", expert="expert"),
    *_key("index", pos="real index of the token"),
    *_key("name", pos_label="label of the token"),
    *_key("index", neuron="MLP neuron"),
    *_key("name", src="source node of an edge", dst="destination node of an edge"),
    *_key("name", src_label="label at the source", dst_label="label at the destination"),
)

_SPREAD = _of(
    "number",
    stderr="standard error of the mean over prompts",
    ci_low="lower end of the 95% interval",
    ci_high="upper end of the 95% interval",
    p_value="two-sided p of: the mean is 0",
    p_adjusted="p, Benjamini-Hochberg over the rows of one table",
)

_NORMALIZED = _of(
    "number",
    normalized="share of the gap between corrupt (0) and clean (1)",
    normalized_low="lower end of its 95% interval",
    normalized_high="upper end of its 95% interval",
)

_N = _of("index", n="prompts averaged over")
_UNIT = _of("name", unit="unit of the numbers")
_SEED = _key("index", seed="seed of the prompts and of everything drawn")
_REASON = _of("name", reason="why something is null")
_TAIL = (*_N, *_UNIT, *_SEED, *_REASON)

EFFECT = Schema(
    "effect",
    (
        *_WHAT, *_WHERE,
        *_of(
            "number",
            value="metric with the edit", baseline="metric of the unedited base run",
            clean="metric of the clean run", corrupt="metric of the corrupt run",
            effect="value - baseline, per prompt, then the mean",
        ),
        *_SPREAD, *_NORMALIZED, *_TAIL,
    ),
    "effect",
)  # fmt: skip
"""Effects of interventions."""

ATTRIBUTION = Schema(
    "attribution",
    (
        *_WHAT, *_WHERE,
        *_of(
            "number",
            clean="metric of the clean run", corrupt="metric of the corrupt run",
            score="estimated baseline - value of the same ablation; positive helps the metric",
        ),
        *_SPREAD, *_NORMALIZED, *_TAIL,
    ),
    "score",
)  # fmt: skip
"""Scores of attributions: the same keys, `score` in place of value, baseline and effect."""

CURVE = Schema(
    "curve",
    (
        *_WHAT, *_WHERE,
        *_key("name", series="which line", x_name="what x counts"), *_key("number", x="place along the curve"),
        *_of("index", items="components or edges kept"),
        *_of("number", value="height", baseline="height of the comparison, where there is one"),
        *_SPREAD, *_TAIL,
    ),
    "value",
)  # fmt: skip
"""Curves: faithfulness over circuit size, scores over training steps, lenses over layers."""

AUDIT = Schema(
    "audit",
    (
        *_key("name", experiment="experiment that made the row", model="model", family="family",
              setting="padding, device and dtype tried", rule="clause of the contract", site="site",
              axes="the site's axes", check="what is compared with what"),
        *_key("index", layer="block, from 0"),
        *_of("flag", passed="whether it held"),
        *_of("number", value="largest difference seen", tolerance="largest one allowed (0: bit-identical)",
             scale="size of the numbers compared"),
        *_TAIL,
    ),
    "value",
)  # fmt: skip
"""Checks: one row per clause and place."""

TIMING = Schema(
    "timing",
    (
        *_key("name", experiment="experiment that made the row", model="model", task="task", setting="case timed",
              method="what was timed", algorithm="variant", components="which components took part",
              device="device", dtype="dtype"),
        *_key("index", threads="processor threads", pack="edits per forward"),
        *_of("number", seconds="median", seconds_low="fastest", seconds_high="slowest",
             baseline="median of what it is compared with, seconds", ratio="baseline / seconds",
             ratio_low="smallest ratio of a round", ratio_high="largest ratio of a round",
             floor="seconds that its FLOPs alone would take", flops="floating-point operations",
             peak_memory="bytes", difference="largest difference of the numbers compared"),
        *_TAIL,
    ),
    "seconds",
)  # fmt: skip
"""Timings; n is the number of rounds."""

FAULTS = Schema(
    "faults",
    (
        *_key("name", experiment="experiment that made the row", fault="what went wrong", backend="where",
              how="how it was made"),
        *_of("flag", passed="whether all came out as expected"),
        *_of("name", expected="the right outcome", seen="the outcome"),
        *_of("index", cells="cells asked for", published="cells published", lost="cells lost",
             doubled="cells published twice", failed="cells that failed, named"),
        *_of("number", seconds="until all was done"),
        *_TAIL,
    ),
    "seconds",
)  # fmt: skip
"""Faults made on purpose, and what was lost."""

WEIGHTS = Schema(
    "weights",
    (
        *_key("name", experiment="experiment that made the row", model="model", task="task whose tokens took part",
              metric="what was computed", method="from which circuit", components="how it was folded"),
        *_key("index", layer="block, from 0", head="query head", kv_head="key/value head"),
        *_key("name", src="earlier head of a pair", dst="later head of a pair"),
        *_key("index", offset="rotary offset, tokens from key to query", rank="singular direction or place in a list"),
        *_of("number", value="the number", baseline="mean of random matrices of the same singular values, or chance",
             stderr="standard error over tokens", ci_low="lower end of the 95% interval",
             ci_high="upper end of the 95% interval", null_low="2.5% of the null", null_high="97.5% of the null",
             p_value="one-sided p against the null",
             p_adjusted="p, Benjamini-Hochberg over the rows of one metric"),
        *_of("name", reads="tokens at the reading end", writes="tokens at the writing end"),
        *_TAIL,
    ),
    "value",
)  # fmt: skip
"""Numbers read off the weights alone, by head or pair of heads."""

NUMERICS = Schema(
    "numerics",
    (
        *_key("name", experiment="experiment that made the row", model="model", task="what was run or trained on",
              metric="site, grad_norm, skipped, birth or overhead", direction="forward or backward",
              dtype="number format of the pass", site="site"),
        *_key("index", layer="block, from 0", step="training step, from 0"),
        *_of("number", value="the number, where the row has one", low="smallest finite value",
             high="largest finite value", largest="largest absolute finite value", rms="root mean square",
             zeros="share of exact zeros", margin_fp16="bits left before fp16 overflows",
             margin_bf16="bits left before bf16 overflows", drift="RMS difference from fp32, as a share of its RMS",
             baseline="what it is compared with"),
        *_of("index", nan="NaN counted", inf="infinities counted"),
        *_TAIL,
    ),
    "margin_fp16",
)  # fmt: skip
"""What numbers look like at each site, and what became of a training run."""

SCHEMAS: Registry[Schema] = Registry("schema")
for _schema in (EFFECT, ATTRIBUTION, CURVE, AUDIT, TIMING, FAULTS, WEIGHTS, NUMERICS):
    SCHEMAS.add(_schema.name, _schema)
