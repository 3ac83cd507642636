"""`interp sweep`: plan, run, resume, status, cancel, logs, collect, report. The work is in `interp/sweep/`.

Exit codes of `run`: 0 every cell is published; 1 some failed or the disk was full; 2 bad input; 130 interrupted.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interp.progress import pace

if TYPE_CHECKING:
    from interp.sweep.run import Outcome
    from interp.sweep.state import State
    from interp.sweep.status import Status
    from interp.sweep.work import Event

app = typer.Typer(help="Many cells from one file: plan, run, status, collect.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="Sweep file (YAML).")]
Preset = Annotated[str | None, typer.Option(help="A preset of the sweep file.")]
Out = Annotated[Path | None, typer.Option(help="Results folder; by default the file's own.")]
Backend = Annotated[str, typer.Option(help="inline, local or slurm.")]
Workers = Annotated[int | None, typer.Option(help="Processes of the local pool.")]
Threads = Annotated[int | None, typer.Option(help="Processor threads of a worker.")]
Cluster = Annotated[str, typer.Option(help="With slurm: slurm, or submitit's local and debug executors.")]
Wait = Annotated[bool, typer.Option("--wait/--detach", help="With slurm: follow the jobs, or only submit them.")]
SHOWN = 20


@app.command("plan")
def plan_command(
    file: File, preset: Preset = None, out: Out = None, backend: Backend = "local", workers: Workers = None,
    cells: Annotated[bool, typer.Option("--cells", help="List every cell.")] = False,
) -> int:  # fmt: skip
    """Cells, groups, what is done, the time and cost that are left. Nothing is run or written."""
    from interp.sweep.outlook import outlook
    from interp.sweep.plan import make_plan

    plan = make_plan(file, preset, out)
    for line in outlook(plan, backend, workers):
        typer.echo(line)
    if cells:
        done = plan.done()
        for cell in plan.cells:
            typer.echo(f"{'done' if cell.key in done else '    '}  {cell.place}")
    return 0


@app.command("run")
def run_command(
    file: File, preset: Preset = None, out: Out = None, backend: Backend = "local", workers: Workers = None,
    threads: Threads = None, cluster: Cluster = "slurm", wait: Wait = True,
) -> int:  # fmt: skip
    """Compute every cell that is not published yet. The same command again resumes."""
    from interp.sweep.plan import make_plan
    from interp.sweep.run import Options, run_sweep

    plan = make_plan(file, preset, out)
    show = _Show()
    outcome = run_sweep(plan, Options(backend, workers, threads, cluster, wait), show.start, show.event)
    code = _tell(outcome)
    if plan.sweep.publish and outcome.complete:
        _publish(plan.state, file, plan.out if out else Path(plan.sweep.publish))
    return code


@app.command("resume")
def resume_command(
    file: File, preset: Preset = None, out: Out = None, backend: Backend = "local", workers: Workers = None,
    threads: Threads = None, cluster: Cluster = "slurm", wait: Wait = True,
) -> int:  # fmt: skip
    """The same as `run`."""
    return run_command(file, preset, out, backend, workers, threads, cluster, wait)


@app.command("status")
def status_command(
    file: File, out: Out = None,
    watch: Annotated[bool, typer.Option("--watch", help="Keep looking, until nothing is at work.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between looks.")] = 2.0,
) -> int:  # fmt: skip
    """Where a sweep stands: waiting, queued, running, done, failed with reasons."""
    from interp.sweep.status import sweep_status

    state = _state(file, out)
    status = sweep_status(state, file)
    if not watch:
        for line in _status_lines(status):
            typer.echo(line)
        return 0
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(Text("\n".join(_status_lines(status))), console=Console(), refresh_per_second=4) as live:
        while not status.over:
            time.sleep(every)
            status = sweep_status(state, file)
            live.update(Text("\n".join(_status_lines(status))))
    return 0


@app.command("cancel")
def cancel_command(file: File, out: Out = None) -> int:
    """Stop every run of a sweep, here and on the cluster. What is published stays."""
    from interp.sweep.run import cancel_sweep

    stopped = cancel_sweep(_state(file, out))
    for pid in stopped.processes:
        typer.echo(f"told process {pid} to stop")
    if stopped.jobs:
        typer.echo(f"cancelled {len(stopped.jobs)} cluster job(s)")
    for host in stopped.elsewhere:
        typer.echo(f"a run was started on {host} (or before its last boot): cancel it there")
    if not (stopped.processes or stopped.jobs or stopped.elsewhere):
        typer.echo("nothing is running")
    return 0


@app.command("logs")
def logs_command(
    file: File, cell: Annotated[str, typer.Argument(help="Key, folder or beginning of the hash.")], out: Out = None
) -> int:
    """What a cell printed, and the traceback of its last failure."""
    from interp.sweep.status import cell_log

    typer.echo(cell_log(_state(file, out), cell) or "nothing was printed, and it has not failed")
    return 0


@app.command("collect")
def collect_command(
    file: File, out: Out = None,
    to: Annotated[Path | None, typer.Option("--to", help=".parquet or .csv; <out>/<sweep>.parquet by default.")] = None,
) -> int:  # fmt: skip
    """One tidy table over all finished cells."""
    from interp.sweep.collect import collect, write_table

    state = _state(file, out)
    table = collect(state)
    path = to or state.out / f"{state.name}.parquet"
    write_table(table, path)
    typer.echo(f"{table.num_rows} rows, {table.num_columns} columns: {path}")
    return 0


@app.command("report")
def report_command(
    file: File, out: Out = None,
    to: Annotated[Path | None, typer.Option("--to", help="Markdown file; <out>/<sweep>.md if not given.")] = None,
) -> int:  # fmt: skip
    """A page on the whole sweep: what was run, what failed, what stands out."""
    from interp.sweep.collect import collect
    from interp.sweep.state import write_atomic
    from interp.sweep.summary import report_text

    state = _state(file, out)
    path = to or state.out / f"{state.name}.md"
    write_atomic(path, report_text(state, file, collect(state).to_pandas()).encode())
    typer.echo(str(path))
    return 0


def _publish(state: State, file: Path, folder: Path) -> None:
    """The collected table and the report, where the sweep file says."""
    collect_command(file, state.out, folder / "table.parquet")
    report_command(file, state.out, folder / "report.md")


def _state(file: Path, out: Path | None) -> State:
    from interp.sweep.plan import state_of
    from interp.sweep.spec import read_file

    return state_of(file, read_file(file)[0], out)


def _status_lines(status: Status) -> list[str]:
    lines = [
        f"{status.name}: {status.done} of {status.total} done, {len(status.running)} running, {status.queued} queued,"
        f" {status.waiting} waiting, {len(status.failed)} failed"
    ]
    if status.changed:
        lines.append("the sweep file has changed since it was run; `interp sweep run` plans it anew")
    if status.jobs:
        lines.append("jobs: " + ", ".join(f"{count} {state.lower()}" for state, count in status.jobs.items()))
    for kind, rows in (("running", status.running), ("failed", status.failed)):
        lines += [f"{kind}  {row.place}  {row.about}" for row in rows[:SHOWN]]
        if len(rows) > SHOWN:
            lines.append(f"{kind}  … and {len(rows) - SHOWN} more")
    return lines


class _Show:
    """One line per cell on standard error, as it ends, with the rate and the time left."""

    def __init__(self) -> None:
        self.todo = 0
        self.ended = 0
        self.began = 0.0

    def start(self, todo: int, done: int) -> None:
        self.todo, self.began = todo, time.monotonic()
        typer.echo(f"{done} cells are done, {todo} to do", err=True)

    def event(self, event: Event) -> None:
        if event.state in ("done", "reused", "failed"):
            self.ended += 1
        if event.state in ("done", "failed", "blocked"):
            about = f"{event.seconds:.1f} s" if event.state == "done" else event.error
            left = pace(self.ended, self.todo, time.monotonic() - self.began)
            typer.echo(
                f"[{self.ended}/{self.todo}] {event.state} {event.key} {about}{' · ' if left else ''}{left}", err=True
            )


def _tell(outcome: Outcome) -> int:
    plan, report = outcome.plan, outcome.report
    for place, why in outcome.put_aside.items():
        typer.echo(f"moved aside and computed again: {place}: {why}")
    done = len(plan.done())
    took = _figures(report)
    typer.echo(f"{done} of {len(plan.cells)} cells are published under {plan.out}{took}")
    for place, error in list(outcome.failed.items())[:SHOWN]:
        typer.echo(f"failed  {place}  {' '.join(error.split())}")
    if len(outcome.failed) > SHOWN:
        typer.echo(f"failed  … and {len(outcome.failed) - SHOWN} more; `interp sweep status {plan.file}`")
    if outcome.failed:
        typer.echo(f"tracebacks: interp sweep logs {plan.file} CELL; the same command again tries them again")
    if report.blocked:
        typer.echo(f"stopped: {report.blocked}. Nothing is lost: make room, and run the same command again", err=True)
    if report.waiting:
        typer.echo(f"{report.waiting} cells are with the cluster: interp sweep status {plan.file}")
        return 0
    return 0 if outcome.complete else 1


def _figures(report: Any) -> str:
    if not report.done:
        return ""
    over = f", overhead {report.overhead:.1%}" if report.overhead is not None else ""
    by = f" with {report.workers} worker(s)" if report.workers else ""
    return f" ({report.done} now, {report.wall_seconds:.1f} s{by}{over})"
