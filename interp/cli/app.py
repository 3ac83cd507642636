"""Commands, flags and exit codes. The work is done in `running.py`, `reading.py` and the rooms below."""

from __future__ import annotations

import atexit
import gc
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interp.cli.sweep import app as sweep
from interp.registry import UserError

app = typer.Typer(
    help="Which parts of this model cause this behaviour, and how sure are we?",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
)  # fmt: skip
results = typer.Typer(help="Finished cells: list, show, compare, export.", no_args_is_help=True)
app.add_typer(results, name="results")
app.add_typer(sweep, name="sweep")

LONGEST = 1800
"""Letters of an error message."""
INTERRUPTED = "interrupted; rows computed so far are kept, the same command resumes"

Model = Annotated[str | None, typer.Option(help="Embedded name, local folder or hub name.")]
Task = Annotated[str | None, typer.Option(help="Task name, or a CSV or JSON-lines file of prompt pairs.")]
N = Annotated[int | None, typer.Option(help="Number of prompts.")]
Seed = Annotated[int | None, typer.Option(help="Seed of the prompts and of everything drawn.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting; YAML. Repeatable.")]
Preset = Annotated[str | None, typer.Option(help="Named settings of the experiment, such as smoke.")]
Device = Annotated[str | None, typer.Option(help="cpu (default), cuda, cuda:N, mps or auto.")]
Dtype = Annotated[str | None, typer.Option(help="float32 (default), bfloat16, float16 or float64.")]
Threads = Annotated[int | None, typer.Option(help="Processor threads.")]
Pack = Annotated[int | None, typer.Option(help="Edits per forward; chosen by the planner if not given.")]
Plain = Annotated[bool, typer.Option("--plain", help="One full forward per edit, no shortcuts.")]
Out = Annotated[Path | None, typer.Option(help="Results folder; $INTERP_RESULTS or ./results by default.")]
From = Annotated[Path | None, typer.Option("--from", metavar="RUN.JSON", help="Settings of a finished cell.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of bad input too.")]
Help = Annotated[bool, typer.Option("--help", help="Show this, and what the experiment is and takes.")]
# the class of the context that is passed in, which is that of the copy of click that typer carries, where it does
if TYPE_CHECKING:
    from typer import Context as Current
else:
    Current = typer.Context.__base__
OWN_HELP: dict[str, Any] = {"help_option_names": []}
"""For commands whose help goes on with what an experiment takes."""
Cells = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="JSON lines of {experiment, config}, or a sweep's: run each; - reads them as they come."
    ),
]
Cell = Annotated[str, typer.Argument(help="Folder, <experiment>/<cell>, or the beginning of its hash.")]


@app.command("run", context_settings=OWN_HELP)
def run_command(
    context: Current,
    name: Annotated[str | None, typer.Argument(help="Experiment; see `interp list experiments`.")] = None,
    model: Model = None, task: Task = None, n: N = None, seed: Seed = None, settings: Set = None,
    preset: Preset = None, device: Device = None, dtype: Dtype = None, threads: Threads = None,
    pack: Pack = None, plain: Plain = False, out: Out = None, run_json: From = None, cells: Cells = None,
    debug: Debug = False, asked: Help = False,
) -> int:  # fmt: skip
    """Run an experiment and publish its table; a finished cell is shown, not computed again.

    `interp run NAME --help` tells what the experiment does and every setting that it takes.
    """
    if asked:
        return _help(context, name)
    named = {k: v for k, v in {"model": model, "task": task, "n": n, "seed": seed}.items() if v is not None}
    if cells is not None:
        if name is not None:
            raise UserError(f"give either an experiment ({name}) or --cells {cells}, not both")
        if named or settings or preset or dtype or plain or run_json:
            raise UserError(
                "--cells takes each cell's settings from the file; only device, threads, pack and out apply"
            )
        return _run_cells(cells, device, threads, pack, out)
    from interp.cli.running import Flags, run_one

    flags = Flags(named, tuple(settings or ()), preset, device, dtype, threads, pack, plain or None, out, run_json)
    return run_one(name, flags)


def _run_cells(cells: Path, device: str | None, threads: int | None, pack: int | None, out: Path | None) -> int:
    """Imports little: a cluster's job starts here, and sets the number of threads before libraries are loaded."""
    from interp.sweep.worker import Given, run_file

    for flag, count in (("threads", threads), ("pack", pack)):
        if count is not None and count < 1:
            raise UserError(f"--{flag} must be at least 1, got {count}")
    resources = {k: v for k, v in {"device": device, "pack": pack}.items() if v is not None}
    return run_file(cells, Given(out, threads, resources))


@app.command("list")
def list_command(
    kind: Annotated[str, typer.Argument(help="experiments, models, tasks, metrics, sites, edits, methods, families")],
) -> int:
    """Names of a kind, each with a line that says what it is."""
    from interp.listing import listing

    rows = listing(kind)
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        typer.echo(f"{row.name:<{width}}  {row.about}".rstrip())
    return 0


@app.command(
    "train",
    context_settings={"ignore_unknown_options": True},
    add_help_option=False,
    short_help="Train a small model from scratch; the same command again resumes.",
)
def train_command(words: Annotated[list[str] | None, typer.Argument(metavar="NAME [OPTIONS]")] = None) -> int:
    """Handed on whole to the training room, which is imported only now."""
    from interp.training.command import train_command as command

    return _invoke(_single(command), words or [], "interp train")


@app.command("report")
def report_command(
    cells: Annotated[list[str] | None, typer.Argument(metavar="CELL...", help="As in `interp results show`.")] = None,
    every: Annotated[bool, typer.Option("--all", help="A page for every table, and an index.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder the pages go to; build/report by default.")] = None,
    results: Annotated[Path | None, typer.Option(help="Results folder; $INTERP_RESULTS or ./results.")] = None,
    figures: Annotated[bool, typer.Option("--figures", help="Each figure as PNG and SVG too.")] = False,
) -> int:
    """Pages to look at: one cell, two side by side, or all; self-contained HTML."""
    from interp.cli.pages import make_pages

    return make_pages(cells or [], every, out, results, figures)


@results.command("list")
def results_list(out: Out = None) -> int:
    """Finished cells, a line each."""
    from interp.cli.reading import show_cells

    return show_cells(out)


@results.command("show")
def results_show(
    cell: Cell,
    top: Annotated[int, typer.Option(help="Rows to print, largest first; 0 for all.")] = 20,
    out: Out = None,
) -> int:
    """Top rows and origin of a cell."""
    from interp.cli.reading import show_cell

    return show_cell(cell, top, out)


@results.command("compare")
def results_compare(
    a: Cell, b: Cell, top: Annotated[int, typer.Option(help="Rows to print; 0 for all.")] = 20, out: Out = None
) -> int:
    """Two cells row by row: b − a of the main number, largest difference first."""
    from interp.cli.reading import show_comparison

    return show_comparison(a, b, top, out)


@results.command("export")
def results_export(
    cell: Cell,
    to: Annotated[str, typer.Option("--format", help="csv, parquet, markdown or latex.")] = "csv",
    file: Annotated[Path | None, typer.Option("--to", help="File to write; standard output if not given.")] = None,
    out: Out = None,
) -> int:
    """A cell's table in another format."""
    from interp.cli.reading import export_cell

    return export_cell(cell, to, file, out)


def main(argv: Sequence[str] | None = None) -> int:
    """The `interp` command; returns the exit code."""
    return _guarded(lambda words: _invoke(app, words, "interp"), argv)


def main_for(experiment: Any, argv: Sequence[str] | None = None) -> int:
    """`python -m experiments.NAME`: the flags of `interp run NAME`; returns the exit code.

    `experiment` is its name, or the Experiment itself. An experiment module ends with
    `if __name__ == "__main__": raise SystemExit(main_for("NAME"))`; the module that is running is used as it
    is, not imported a second time under its own name.
    """
    name = experiment if isinstance(experiment, str) else experiment.name
    if isinstance(experiment, str):
        running = getattr(sys.modules.get("__main__"), "EXPERIMENT", None)
        experiment = running if getattr(running, "name", None) == name else experiment

    def command(
        context: Current, model: Model = None, task: Task = None, n: N = None, seed: Seed = None,
        settings: Set = None, preset: Preset = None, device: Device = None, dtype: Dtype = None,
        threads: Threads = None, pack: Pack = None, plain: Plain = False, out: Out = None, run_json: From = None,
        debug: Debug = False, asked: Help = False,
    ) -> int:  # fmt: skip
        if asked:
            return _help(context, experiment)
        from interp.cli.running import Flags, run_one

        named = {"model": model, "task": task, "n": n, "seed": seed}
        flags = Flags(
            {k: v for k, v in named.items() if v is not None}, tuple(settings or ()), preset, device, dtype,
            threads, pack, plain or None, out, run_json,
        )  # fmt: skip
        return run_one(experiment, flags)

    command.__doc__ = f"Run the experiment {name} and publish its table."
    return _guarded(lambda words: _invoke(_single(command, OWN_HELP), words, f"python -m experiments.{name}"), argv)


def _help(context: Current, experiment: Any) -> int:
    """The flags, then what the experiment is and takes."""
    typer.echo(context.get_help())
    if experiment is not None:
        from interp.cli.describing import print_experiment

        print_experiment(experiment)
    return 0


def _single(command: Callable[..., Any], settings: dict[str, Any] | None = None) -> typer.Typer:
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    alone.command(context_settings=settings)(command)
    return alone


def _invoke(application: typer.Typer, words: Sequence[str], program: str) -> int:
    code = typer.main.get_command(application).main(list(words), prog_name=program, standalone_mode=False)
    return code if isinstance(code, int) else 0


def _guarded(invoke: Callable[[list[str]], int], argv: Sequence[str] | None) -> int:
    """Turn what went wrong into a line on standard error and an exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    # at the end of the process nothing is searched for cycles: with a model in memory that takes most of a second
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
    # typer may carry its own copy of click; the common base of usage errors is found through its own
    usage = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
    try:
        code = invoke(words)
    except UserError as e:
        if "--debug" in words:
            traceback.print_exc()
        return _say(str(e), 2)
    except (KeyboardInterrupt, typer.Abort, typer.Exit) as e:
        code = int(getattr(e, "exit_code", 130))
    except BrokenPipeError:
        # the reader of our output has left; Python's own flush at exit must not complain again
        sys.stderr.close()
        return 1
    except Exception as e:
        if type(e).__name__ == "NoArgsIsHelpError":
            typer.echo(e.format_message(), err=True)  # type: ignore[attr-defined]
            return 2
        if isinstance(e, usage):
            return _say(_usage(e.format_message(), words), 2)  # type: ignore[attr-defined]
        traceback.print_exc()
        return _say(f"the run failed: {type(e).__name__}: {e}", 1)
    # typer turns Ctrl-C into an exit of its own with this code
    return _say(INTERRUPTED, code) if code == 130 else code


def _usage(message: str, words: Sequence[str]) -> str:
    """What click says of wrong usage, with what may have been meant, or where more is told."""
    if message.startswith("Missing argument"):
        named = [word for word in words[: 2 if words[0] in ("results", "sweep") else 1] if not word.startswith("-")]
        return f"{message} `interp {' '.join(named)} --help` tells what it is."
    meant = message.startswith(("No such option", "Got unexpected extra argument"))
    if meant and words[:1] != ["list"]:
        return f"{message}; settings of an experiment are given by --set KEY=VALUE, such as --set sites=z"
    return message + " `interp --help` lists them." if message.startswith("No such command") else message


def _say(message: str, code: int) -> int:
    line = " ".join(message.split())
    if len(line) > LONGEST:  # a name of thousands of letters, given in error
        line = f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}"
    typer.echo(f"error: {line}" if code != 130 else line, err=True)
    return code
