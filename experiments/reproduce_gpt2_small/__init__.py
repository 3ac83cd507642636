"""What is published for GPT-2 small, measured here beside it.

One row per published statement, with its source: the IOI paper's behaviour, circuit, knock-out and attention; the 26
heads of its circuit by what their class does; logit differences of eight prompts, a prediction, direct logit
attribution and a loss from tutorials and tests; copy scores; induction heads; greater-than.

`published` stands beside `value`. Where the source's own prompts and arithmetic are repeated, `tolerance` says how
close they must be and `agrees` whether they are; where a source says that a head is among the k largest, `agrees`
says whether its `rank` (from 0) is. Elsewhere the numbers are of prompts of our own and only to be read side by side.

    interp run reproduce_gpt2_small                              # gpt2 from the hub's cache or the hub
    interp run reproduce_gpt2_small --model /path/to/gpt2 --n 100
    interp run reproduce_gpt2_small --set 'topics=[loss, one prompt, eight prompts]'

Sources: in `facts.py`, statement by statement. Limits: another model than GPT-2 small gets rows too, to be read as that
model's; what it cannot give is null with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from experiments.reproduce_gpt2_small.facts import FACTS, TOPICS, Fact
from interp.cells import Config, Context, Experiment, Table
from interp.context import ModelName

if TYPE_CHECKING:
    from experiments.reproduce_gpt2_small.measured import Got, Measured
    from interp.results.schemas import Schema

Topic = Literal[
    "IOI", "IOI circuit", "IOI heads", "eight prompts", "one prompt", "direct logit attribution", "loss", "copying",
    "induction", "greater-than",
]  # fmt: skip


class ReproduceGpt2Small(Config):
    """Settings of `reproduce_gpt2_small`."""

    model: ModelName = Field("gpt2", description="GPT-2 small: hub name or local folder, with its tokenizer")
    model_options: dict[str, Any] = Field({}, description="passed on to load_model: revision, weights, …")
    topics: tuple[Topic, ...] = Field(TOPICS, min_length=1, description="which groups of statements")  # type: ignore[arg-type]
    n: int = Field(64, ge=1, description="prompts of IOI and of greater-than")
    seed: int = Field(0, ge=0, lt=2**63, description="seed of prompts, random tokens and resamples")


def run(config: ReproduceGpt2Small, context: Context) -> Table:
    """All topics; one that the model cannot give is null with the reason."""
    from interp.registry import UserError
    from interp.results.frames import typed

    schema, model = _schema(), context.model
    measures, rows = _measures(config, context), []
    for topic in context.progress(config.topics, "measuring", len(config.topics)):
        found: Measured = {}
        reason = None
        try:
            found = measures[topic]()
        except UserError as error:
            reason = str(error).splitlines()[0]
        rows += [_row(f, found.get((f.quantity, f.place)), reason) for f in FACTS if f.topic == topic]
    about = {"experiment": "reproduce_gpt2_small", "model": model.name, "seed": config.seed}
    return Table(typed([{**about, **row} for row in rows], schema), schema)


def _measures(config: ReproduceGpt2Small, context: Context) -> dict[str, Callable[[], Measured]]:
    """What each topic measures; tasks and head scores are made when first asked for, and shared."""
    from functools import cache

    from experiments.reproduce_gpt2_small import ioi, prompts, weights_and_stripes, years
    from interp.interventions.options import bar
    from interp.interventions.plan import Options
    from interp.weights.heads import head_scores

    model = context.model

    @cache
    def names() -> Any:
        return context.load_task("ioi", model, n=config.n, seed=config.seed, corruption="abc")

    @cache
    def scores() -> Any:
        return head_scores(model, seed=config.seed)

    return {
        "IOI": lambda: ioi.behaviour(model, names(), config.seed),
        "IOI circuit": lambda: ioi.circuit(model, names(), config.seed),
        "IOI heads": lambda: ioi.heads(model, names(), scores(), config.seed, bar(context, "path patching")),
        "eight prompts": lambda: prompts.eight(model),
        "one prompt": lambda: prompts.one(model),
        "direct logit attribution": lambda: prompts.attribution(model),
        "loss": lambda: prompts.loss(model),
        "copying": lambda: weights_and_stripes.copying(model, names()),
        "induction": lambda: weights_and_stripes.induction(model, scores()),
        "greater-than": lambda: years.greater_than(
            model, context.load_task("greater_than", model, n=config.n, seed=config.seed), config.seed,
            Options(pack=context.pack, plain=context.plain),
        ),
    }  # fmt: skip


def _row(fact: Fact, got: Got | None, reason: str | None) -> dict[str, Any]:
    """One statement beside what was measured."""
    stated = {
        "topic": fact.topic, "quantity": fact.quantity, "place": fact.place or "the model", "source": fact.source,
        "published": fact.published, "tolerance": fact.tolerance, "among": fact.among, "unit": fact.unit,
    }  # fmt: skip
    if got is None:
        return {**stated, "reason": reason}
    agrees = None
    if fact.tolerance is not None and fact.published is not None:
        agrees = abs(got.value - fact.published) <= fact.tolerance
    elif fact.among is not None and got.rank is not None:
        agrees = got.rank < fact.among
    return {
        **stated, "value": got.value, "ci_low": got.low, "ci_high": got.high, "n": got.n, "rank": got.rank,
        "difference": None if fact.published is None else got.value - fact.published, "agrees": agrees,
        "reason": got.reason,
    }  # fmt: skip


def _schema() -> Schema:
    from interp.results.schemas import Column, Schema

    def key(name: str, about: str) -> Column:
        return Column(name, "name", about, key=True)

    return Schema(
        "published",
        (
            key("experiment", "experiment that made the row"), key("model", "model"),
            key("topic", "group of statements"), key("quantity", "what is measured"),
            key("place", "head, prompt, or what is taken away"),
            Column("source", "name", "where it is published"),
            Column("published", "number", "the published number; null where the source names a head only"),
            Column("value", "number", "measured here"),
            Column("difference", "number", "value - published"),
            Column("ci_low", "number", "lower end of the 95% interval"),
            Column("ci_high", "number", "upper end of the 95% interval"),
            Column("rank", "index", "rank among all heads or MLPs, from 0"),
            Column("among", "index", "the source's claim: one of the so many largest (smallest, negative movers)"),
            Column("tolerance", "number", "largest difference allowed where the source's own prompts are repeated"),
            Column("agrees", "flag", "within the tolerance, or ranked as claimed; null where nothing exact is claimed"),
            Column("n", "index", "prompts averaged over"), Column("unit", "name", "unit of the numbers"),
            Column("seed", "index", "seed of the prompts and of everything drawn", key=True),
            Column("reason", "name", "why something is null"),
        ),
        "value",
    )  # fmt: skip


# on the embedded model only the sweep of topics is tried: it lacks the heads, and most words
EXPERIMENT = Experiment("reproduce_gpt2_small", 1, ReproduceGpt2Small, run, {"smoke": {"model": "toy-ioi", "n": 8}})
