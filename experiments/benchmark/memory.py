"""Peak memory of a piece of work, measured in a process of its own: the high-water mark never falls."""

from __future__ import annotations

import subprocess
import sys

from interp.results.origin import peak_memory as process_peak

WORK = ("plain", "ours")


def peak_memory(shape: str, first: int, kind: str, work: str, threads: int) -> int:
    """Bytes of the process that loads the shape and does the work (`plain`: one forward with full logits)."""
    command = [sys.executable, "-m", "experiments.benchmark.memory", shape, str(first), kind, work, str(threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout.strip().splitlines()[-1])


def measure(shape: str, first: int, kind: str, work: str, threads: int) -> int:
    """The same, in this process."""
    import torch

    from experiments.benchmark.ours import sweep
    from experiments.benchmark.shapes import make_case

    torch.set_num_threads(threads)
    case = make_case(shape, first)
    if work == "plain":
        case.model.run(case.task.corrupt)
    else:
        sweep(case, kind)
    return process_peak() or 0


if __name__ == "__main__":
    name, start, what, how, count = sys.argv[1:]
    sys.stdout.write(f"{measure(name, int(start), what, how, int(count))}\n")
