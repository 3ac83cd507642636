"""Rows for edge attribution: against one plain forward and backward pass, and against TransformerLens' own.

`ratio` is the plain pass's seconds over ours, as everywhere in this table; the words in `reason` turn it round: how
many plain passes the method takes. Peak memory is measured in a process of its own, above what it held before the
work began.
"""

from __future__ import annotations

import subprocess
import sys
from statistics import median
from typing import Any

from experiments.benchmark.attribution_cases import Case, attribution_cases, gpt2_case
from experiments.benchmark.patching_rows import timed
from interp.results.origin import peak_memory

SETTING = "gpt2-small, 8 pairs of 16 tokens, different from the second token"
PLAIN = "one plain forward and backward pass, full logits"


def attribution_rows(rounds: int, threads: int, memory: bool) -> list[dict[str, Any]]:
    """EAP, EAP-IG and AtP beside the plain pass, alternately in one process."""
    model, task = gpt2_case()
    cases = attribution_cases(model, task)
    for work in cases.values():
        work()
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, work in cases.items():
            seconds[name].append(timed(work)[0])
    plain = seconds.pop("plain")
    used = {name: extra_memory(name) for name in cases} if memory else {}
    return [_row(name, times, plain, used, threads) for name, times in seconds.items()]


def _row(name: str, times: list[float], plain: list[float], used: dict[str, int], threads: int) -> dict[str, Any]:
    passes = [t / p for t, p in zip(times, plain, strict=True)]
    words = [f"{median(passes):.2f} plain passes ({min(passes):.2f} to {max(passes):.2f})"]
    if used:
        words.append(
            f"peak over the loaded model {used[name] / 1e6:.0f} MB, the plain pass's {used['plain'] / 1e6:.0f} MB, "
            f"ratio {used[name] / used['plain']:.2f}"
        )
    return {
        "setting": SETTING, "method": name, "algorithm": f"against {PLAIN}",
        "components": "157 nodes" if name == "atp" else "32491 edges", "seconds": median(times),
        "seconds_low": min(times), "seconds_high": max(times), "baseline": median(plain),
        "ratio": median(1 / p for p in passes), "ratio_low": 1 / max(passes), "ratio_high": 1 / min(passes),
        "peak_memory": float(used[name]) if used else None, "n": len(times), "unit": "seconds", "device": "cpu",
        "dtype": "float32", "threads": threads, "reason": "; ".join(words),
    }  # fmt: skip


def lens_row(rounds: int, threads: int, examples: int = 1) -> dict[str, Any]:
    """EAP against `transformer_lens`' attribution_patch by edges, gradients at the clean run on both sides."""
    from interp.attribution.methods import attribute

    model, task = gpt2_case()
    theirs = _their_case(model.module, task, examples)
    attribute(model, task, "eap")
    mine, other, worst = [], [], 0.0
    for _ in range(rounds):
        spent, scores = timed(lambda: attribute(model, task, "eap"))
        took, found = timed(theirs)
        mine.append(spent)
        other.append(took / examples * task.n)
        ours = dict(
            zip([(str(k["src"]), str(k["dst"])) for k in scores.keys], scores.values[:, :examples].mean(1), strict=True)
        )
        worst = max(worst, max(abs(float(v) + found.get(e, 0.0)) for e, v in ours.items()))
    ratios = [b / a for a, b in zip(mine, other, strict=True)]
    return {
        "setting": SETTING, "method": "eap", "algorithm": "against transformer_lens attribution_patch, edges",
        "components": "32491 edges", "seconds": median(mine), "seconds_low": min(mine), "seconds_high": max(mine),
        "baseline": median(other), "ratio": median(ratios), "ratio_low": min(ratios), "ratio_high": max(ratios),
        "difference": worst, "n": rounds, "unit": "seconds", "device": "cpu", "dtype": "float32", "threads": threads,
        "reason": f"their loop over examples: {examples} of {task.n} timed a round, the rest reckoned",
    }  # fmt: skip


def _their_case(module: Any, task: Any, examples: int) -> Any:
    """Their scores by our edges' names, summed over positions; they point the other way, so ours are minus theirs."""
    import copy

    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module
    from transformer_lens.tools.analysis.attribution_patching import EdgeAttributionConfig, attribution_patch

    from experiments.benchmark.lens_side import quiet

    own = copy.deepcopy(module).requires_grad_(True)  # theirs differentiates through the embedding table
    with quiet():
        bridge: Any = build_bridge_from_module(
            own, architecture=type(own).__name__, hf_config=own.config, model_name="copy", device="cpu"
        ).eval()
    right, wrong = int(task.right.first[0, 0]), int(task.wrong.first[0, 0])

    def run() -> dict[tuple[str, str], float]:
        with quiet():
            found = attribution_patch(
                bridge, task.corrupt.tokens[:examples], task.clean.tokens[:examples],
                lambda logits: logits[0, -1, right] - logits[0, -1, wrong], EdgeAttributionConfig(granularity="edge"),
            )  # fmt: skip
        total: dict[tuple[str, str], float] = {}
        for (src, dst), score in found.edge_scores.items():
            edge = (_name(src), _name(dst))
            total[edge] = total.get(edge, 0.0) + float(score)
        return total

    return run


def _name(node: Any) -> str:
    """One of their nodes in our words."""
    if node.kind in ("embed", "logits"):
        return "input" if node.kind == "embed" else "logits"
    if node.kind in ("mlp_out", "mlp_in"):
        return f"m{node.layer}"
    part = "" if node.kind == "attn_head_out" else f"<{node.kind[0]}>"
    return f"a{node.layer}.h{node.head}{part}"


def extra_memory(case: str, threads: int = 2) -> int:
    """Bytes that a case's work adds at its peak to what the process held before, in a process of its own."""
    command = [sys.executable, "-m", "experiments.benchmark.attribution_rows", case, str(threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout.strip().splitlines()[-1])


def measure(case: str, threads: int) -> int:
    """The same, in this process (Linux: the kernel's high-water mark is reset before the work)."""
    from pathlib import Path

    import torch

    torch.set_num_threads(threads)
    work: Case = attribution_cases(*gpt2_case())[case]
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_memory() or 0  # since the reset: what is in use
    work()
    return (peak_memory() or 0) - before


if __name__ == "__main__":
    sys.stdout.write(f"{measure(sys.argv[1], int(sys.argv[2]))}\n")
