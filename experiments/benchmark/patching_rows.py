"""Rows of the benchmark for patching sweeps: ours beside `transformer_lens.patching` (and nnsight), alternately."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any

from experiments.benchmark.floor import floor_of, whole_flops
from experiments.benchmark.lens_side import LensSide
from experiments.benchmark.memory import peak_memory
from experiments.benchmark.nnsight_side import NnsightSide
from experiments.benchmark.ours import indices, sweep
from experiments.benchmark.shapes import Case, make_case

if TYPE_CHECKING:
    from interp.interventions.effects import Effects

WHOLE_LOOP = 64
"""Edits up to which their whole loop is run each round; above, evenly spaced ones are, and the rest reckoned."""
SAMPLE = 12
LEAST = 0.1
"""Seconds that a side is timed for at least: a sweep of milliseconds is repeated so often, and its mean taken."""


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of one call, and what came out."""
    start, calls = time.perf_counter(), 0
    while True:
        out = work()
        calls += 1
        taken = time.perf_counter() - start
        if taken >= LEAST:
            return taken / calls, out


def patching_rows(shape: str, first: int, kind: str, rounds: int, threads: int, memory: bool) -> list[dict[str, Any]]:
    """One sweep of one shape against TransformerLens' loop, medians of alternating rounds: with our unedited runs in
    it, and starting from kept ones, as theirs starts from a kept run of the clean prompts."""
    from interp.interventions.cost import plain_flops
    from interp.interventions.unedited import UneditedRuns

    case = make_case(shape, first)
    theirs = LensSide(case)
    effects = sweep(case, kind)
    every = indices(effects)
    some = every if len(every) <= WHOLE_LOOP else every[:: len(every) // SAMPLE][:SAMPLE]
    theirs.sweep(kind, some[:2])
    plan = effects.plan
    assert plan is not None
    floor = floor_of(plan)
    theirs.unedited(kind)
    runs = UneditedRuns(case.model, case.task)
    sweep(case, kind, runs)
    pairs, kept, floors, unedited, worst, apart = [], [], [], [], 0.0, 0.0
    for _ in range(rounds):
        floors.append(timed(floor)[0])
        unedited.append(timed(lambda: theirs.unedited(kind))[0])
        mine, effects = timed(lambda: sweep(case, kind))
        fewer, started = timed(lambda: sweep(case, kind, runs))
        other, values = timed(lambda: theirs.sweep(kind, some))
        pairs.append((mine, other * len(every) / len(some)))
        kept.append((fewer, pairs[-1][1]))
        worst = max(worst, difference(effects, every, some, values))
        apart = max(apart, difference(started, every, some, values))
    g, prompts = case.model.geometry, plan.reader.prompts
    flops = whole_flops(plan)
    rate = flops / median(floors)
    whole = median((b + more) / a for (a, b), more in zip(pairs, unedited, strict=True))
    their_flops = len(every) * plain_flops(g, len(prompts), prompts.width)
    row = timing(pairs, case, kind, threads)
    row |= {
        "method": "interp.patch", "algorithm": "replay against transformer_lens.patching", "flops": float(flops),
        "floor": median(floors), "difference": worst,
        "reason": "; ".join((
            f"their loop: {'all' if len(some) == len(every) else f'{len(some)} of {len(every)}'} edits timed a round",
            f"ratio with the unedited runs that ours includes {whole:.1f}",
            f"bound of the ratio by FLOPs {their_flops / flops:.1f}",
            f"their time over their FLOPs at the same rate {median(p[1] for p in pairs) * rate / their_flops:.2f}",
            f"ours over the floor {median(p[0] / f for p, f in zip(pairs, floors, strict=True)):.2f}",
            f"rate {rate / 1e9:.0f} GFLOP/s",
        )),
    }  # fmt: skip
    if memory:
        used = {work: peak_memory(shape, first, kind, work, threads) for work in ("plain", "ours")}
        row["peak_memory"] = float(used["ours"])
        row["reason"] += f"; peak over the plain run's {(used['ours'] - used['plain']) / 1e6:.0f} MB"
    return [row, timing(kept, case, kind, threads) | {
        "method": "interp.patch", "algorithm": "replay from kept unedited runs against transformer_lens.patching",
        "difference": apart, "reason": "both start from kept runs: theirs from the clean one, ours from both sides'",
    }]  # fmt: skip


def nnsight_row(shape: str, first: int, rounds: int, threads: int) -> dict[str, Any]:
    """All heads against nnsight's best; a null row with the reason where it is not installed."""
    case = make_case(shape, first)
    try:
        theirs = NnsightSide(case)
    except ImportError as e:
        return {"setting": setting(case), "method": "interp.patch", "algorithm": "replay against nnsight",
                "components": "head", "threads": threads, "reason": f"nnsight is not installed ({e})"}  # fmt: skip
    layers, heads = case.model.geometry.layers, case.model.geometry.heads
    theirs.layer(layers - 1)
    pairs, worst = [], 0.0
    for _ in range(rounds):
        mine, effects = timed(lambda: sweep(case, "head"))
        other, values = timed(lambda: [theirs.layer(i) for i in range(layers)])
        pairs.append((mine, other))
        got = effects.values.mean(1).view(layers, heads)
        worst = max(worst, max(float((got[i] - v).abs().max()) for i, v in enumerate(values)))
    row = timing(pairs, case, "head", threads)
    return row | {"method": "interp.patch", "algorithm": "replay against nnsight", "difference": worst}


def difference(effects: Effects, every: list[Any], some: list[Any], values: Any) -> float:
    """Largest difference of the mean metric over the edits both ran."""
    ours = effects.values.mean(1)
    return max(abs(float(ours[every.index(at)]) - float(v)) for at, v in zip(some, values, strict=True))


def setting(case: Case) -> str:
    """What was timed, in words."""
    prompts = case.task.clean
    start = f"first difference at {case.first}" if case.first else "different from the start"
    return f"{case.name}, {len(prompts)} prompts of {prompts.width} tokens, {start}"


def timing(pairs: list[tuple[float, float]], case: Case, kind: str, threads: int) -> dict[str, Any]:
    """Medians and spread of alternating rounds (ours, theirs)."""
    mine, other = [p[0] for p in pairs], [p[1] for p in pairs]
    ratios = [b / a for a, b in pairs]
    return {
        "setting": setting(case), "components": kind, "seconds": median(mine), "seconds_low": min(mine),
        "seconds_high": max(mine), "baseline": median(other), "ratio": median(ratios), "ratio_low": min(ratios),
        "ratio_high": max(ratios), "n": len(pairs), "unit": "seconds", "device": "cpu", "dtype": "float32",
        "threads": threads,
    }  # fmt: skip
