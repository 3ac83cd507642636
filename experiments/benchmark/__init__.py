"""Benchmark: our sweeps beside those of other public software, alternately in one process.

One row per case: median seconds of both, the ratio with its spread, the floor (what the plan's matrix products alone
take, run in the plan's order beside each of our rounds), the largest difference of the numbers, and peak memory.
`reason` holds what else belongs to the figures: how much of their loop was timed each round, the ratio that FLOPs
alone would give, their own overhead over their FLOPs.

    interp run benchmark --threads 2
    interp run benchmark --preset smoke

Limits: random weights (timings do not depend on them), this machine, this number of threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from interp.cells import Config, Context, Experiment, Table

if TYPE_CHECKING:
    from collections.abc import Callable


class Benchmark(Config):
    """Settings of `benchmark`."""

    shapes: tuple[str, ...] = Field(("toy-ioi", "gpt2-small", "llama-100m"), description="models timed")
    firsts: tuple[int, ...] = Field((10, 0), description="position where pairs first differ; 0: from the start")
    sweeps: tuple[str, ...] = Field(("head", "residual"), description="of head, residual")
    rounds: int = Field(5, ge=1, description="alternating rounds; medians are reported")
    edges: bool = Field(True, description="time exact patching of all 262 edges of a small model, and ACDC")
    attribution: bool = Field(True, description="time edge attribution of GPT-2 small's shape")
    peers: bool = Field(True, description="time nnsight where it is installed")
    memory: bool = Field(True, description="measure peak memory in processes of their own")


def run(config: Benchmark, context: Context) -> Table:
    """Every case in turn."""
    import torch

    from experiments.benchmark.attribution_rows import attribution_rows, lens_row
    from experiments.benchmark.edge_rows import acdc_row, exact_edges_row
    from experiments.benchmark.patching_rows import nnsight_row, patching_rows
    from interp.results.frames import typed
    from interp.results.schemas import TIMING

    threads, rounds = torch.get_num_threads(), config.rounds
    cases: list[Callable[[], list[dict[str, Any]]]] = [
        lambda s=shape, f=first, k=kind: patching_rows(s, f, k, rounds, threads, config.memory)  # type: ignore[misc]
        for shape in config.shapes for first in config.firsts for kind in config.sweeps
    ]  # fmt: skip
    if config.peers and "gpt2-small" in config.shapes:
        cases.append(lambda: [nnsight_row("gpt2-small", 10, rounds, threads)])
    if config.edges:
        cases.append(lambda: [exact_edges_row(rounds, threads)])
        cases.append(lambda: [acdc_row(shape, rounds, threads) for shape in ("random", "toy-ioi")])
    if config.attribution:
        cases.append(lambda: attribution_rows(rounds, threads, config.memory))
        cases.append(lambda: [lens_row(min(rounds, 3), threads)] if config.peers else [])
    timed_cases = context.progress(cases, "timing", len(cases))
    rows = [{"experiment": "benchmark", **row} for case in timed_cases for row in case()]
    return Table(typed(rows, TIMING), TIMING)


SMOKE = {"shapes": ("tiny",), "rounds": 1, "edges": False, "attribution": False, "peers": False, "memory": False}
EXPERIMENT = Experiment("benchmark", 5, Benchmark, run, {"smoke": SMOKE})
