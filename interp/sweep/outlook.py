"""What `sweep plan` prints: cells, what is done, groups, exclusions, and the time and cost of the rest."""

from __future__ import annotations

from collections import Counter

from interp.sweep.estimate import Estimates
from interp.sweep.plan import Plan
from interp.sweep.spec import Resources

SHOWN = 12


def outlook(plan: Plan, backend: str = "local", workers: int | None = None) -> list[str]:
    """The lines."""
    done = plan.done()
    left = [c for c in plan.cells if c.key not in done]
    lines = [f"{plan.state.name}: {len(plan.cells)} cells, {len(done)} done, {len(left)} to do, under {plan.out}"]
    count = Counter(c.experiment for c in plan.cells)
    have = Counter(c.experiment for c in plan.cells if c.key in done)
    lines += [f"  {name}: {n} cells, {have[name]} done" for name, n in count.items()]
    lines += [
        f"  left out: {n} cells with {', '.join(f'{k}={v}' for k, v in rule.when.items())}"
        + (f" ({rule.reason})" if rule.reason else "")
        for rule, n in plan.excluded
    ]
    if plan.repeated:
        lines.append(f"  {plan.repeated} combinations name a cell that another one names too; each is run once")
    if not left:
        return lines
    at_once = _at_once(backend, workers)
    groups = plan.groups((c.key for c in left), at_once, 300.0 if backend == "slurm" else 1.0)
    for index, resources in enumerate(plan.resources):
        mine = [g for g in groups if g.resources == resources]
        if mine:
            lines.append(f"  {len(mine)} groups with {_resources(resources)}")
            sizes = [len(g.cells) for g in mine]
            lines.append(f"    of {min(sizes)} to {max(sizes)} cells" if index < SHOWN else "")
    return [*(line for line in lines if line), *_time(plan, at_once, {c.key for c in left})]


def _at_once(backend: str, workers: int | None):  # type: ignore[no-untyped-def]
    def count(resources: Resources) -> int:
        if backend == "slurm":
            return resources.array_parallelism
        if backend == "inline":
            return 1
        from interp.sweep.backends.local import cores

        return workers or max(1, cores() // (resources.cpus or 1))

    return count


def _resources(resources: Resources) -> str:
    given = resources.model_dump(exclude_defaults=True, exclude={"slurm", "setup", "gpu_hour", "cpu_hour"})
    return ", ".join(f"{k} {v}" for k, v in given.items()) or "default resources"


def _time(plan: Plan, at_once, left: set[str]) -> list[str]:  # type: ignore[no-untyped-def]
    cells = [c for c in plan.cells if c.key in left]
    seconds = Estimates(plan.out, (c.place.split("/", 1)[0] for c in plan.cells))
    known = [(c, s) for c in cells if (s := seconds.of(c)) is not None]
    if not known:
        return ["  time: nobody has run such cells under this folder yet, so nothing is known"]
    total = sum(s for _, s in known)
    missing = len(cells) - len(known)
    wall = max(
        sum(s for c, s in known if c.resources == i) / at_once(r) for i, r in enumerate(plan.resources)
    )  # fmt: skip
    lines = [f"  time: {_span(total)} of computing, about {_span(wall)} with {at_once(plan.resources[0])} at once"]
    if missing:
        lines.append(f"  {missing} cells are of kinds nobody has run yet and are not in it")
    cost = sum(
        s / 3600 * ((r.gpu_hour or 0) * r.gpus + (r.cpu_hour or 0) * (r.cpus or 1))
        for c, s in known for r in [plan.resources[c.resources]]
    )  # fmt: skip
    return [*lines, f"  cost: {cost:.2f} at the prices of the file"] if cost else lines


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
