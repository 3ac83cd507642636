"""`task_from_table`: a task from a table of pairs.

Steps: read the rows one at a time (`sources.py`), turn each into a pair of prompts with answers (`pairs.py`,
`cells.py`), gather every bad row with its reason, and only then build the task. A pair of unequal length is
kept only where every row carries a position for every label column: such pairs can be patched by label, never
by position.

Rows are counted from 1, a CSV's header not counted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from interp.hooks.prompts import Prompts
from interp.registry import UserError, nearest
from interp.tasks.bad_rows import BadRowsError
from interp.tasks.cells import Reader
from interp.tasks.pairs import Column, Columns, Limits, Pair, PairReader
from interp.tasks.sources import Broken, Source, open_source
from interp.tasks.tokens import Codec
from interp.tasks.values import Answers, Task

log = logging.getLogger(__name__)


def task_from_table(
    table: str | Path | Any,
    model: Any,
    clean: Column = "clean",
    corrupt: Column = "corrupt",
    right: Column = "right",
    wrong: Column | None = "wrong",
    *,
    n: int | None = None,
    seed: int = 0,
    split: str = "all",
    bos: bool = False,
    skip_bad: bool = False,
    ids: bool | None = None,
    single_token: bool = False,
    counterfactual: bool = False,
    name: str | None = None,
) -> Task:
    """A task from a CSV, TSV, JSON-lines file, frame or list of dicts.

    `clean`, `corrupt`, `right`, `wrong` name columns, or are functions of the row. Cells are text, token ids or
    lists of them; several right or wrong answers are allowed, and `wrong=None` means none. Optional columns:
    `template` (clusters), `answer_pos`, `label:<NAME>` (positions: one for both prompts, or a pair), `split`.

    `n` rows are drawn with `seed` (all by default). `bos` puts one BOS before every prompt. `ids` says whether
    CSV answers of digits are token ids. `single_token` refuses longer answers. `counterfactual` states that the
    wrong answers are right after the corrupt prompt. `skip_bad` drops bad rows and counts them in `task.meta`.

    Raises BadRowsError (a UserError) that lists every bad row by number, and UserError for a missing column, an
    empty file, or n larger than the number of good rows.

    >>> import interp
    >>> rows = [{"clean": [7, 8, 7], "corrupt": [7, 9, 7], "right": 8, "wrong": 9}]
    >>> task_from_table(rows, interp.load_model("toy-ioi")).n
    1
    """
    source, codec = open_source(table), Codec.of(model)
    columns = Columns(clean, corrupt, right, wrong)
    limits = Limits(int(model.geometry.n_ctx), bool(getattr(model.geometry, "causal", True)), single_token)
    reader = PairReader(columns, Reader(codec, bos, source.text_cells, ids), limits)
    pairs, bad, total = _read(source, reader, split)
    bad = _refuse_unequal(pairs, bad)
    good = [p for p in pairs if p.number not in bad]
    if bad and (not skip_bad or not good):
        raise BadRowsError(source.name, bad, total)
    if not good:
        raise UserError(f"{source.name} has no rows" + ("" if split == "all" else f" with split {split!r}"))
    if bad:
        log.warning("%s: %d of %d rows are bad and were dropped", source.name, len(bad), total)
    meta = {
        "source": source.name, "source_sha256": source.digest, "bos": bos, "seed": seed, "split": split,
        "rows": total, "dropped": len(bad), "dropped_rows": sorted(bad),
        "columns": {role: c if isinstance(c, str) else "function" for role, c in columns.named.items()},
    }  # fmt: skip
    label = name or (Path(source.name).stem if isinstance(table, str | Path) else source.name)
    task = _build(label, good, counterfactual, meta).to(model.device)
    if n is not None and n > task.n:
        raise UserError(f"n = {n} asked, but {source.name} has {task.n} good rows")
    return task if n is None else task.sample(n, seed)


def _read(source: Source, reader: PairReader, split: str) -> tuple[list[Pair], dict[int, str], int]:
    """Good pairs, bad rows by number, and how many rows there were."""
    if source.columns is not None:
        _require(reader.columns, split, set(source.columns), source)
    pairs: list[Pair] = []
    bad: dict[int, str] = {}
    seen: set[str] = set()
    total = 0
    for number, row in enumerate(source.rows, 1):
        total = number
        if isinstance(row, Broken):
            bad[number] = row.reason
            continue
        seen.update(map(str, row))
        if split != "all" and row.get("split", split) != split:
            continue
        try:
            pairs.append(reader.read(row, number))
        except UserError as error:
            bad[number] = str(error)
    if not total:
        raise UserError(f"{source.name} is empty: it has no rows")
    if seen:
        _require(reader.columns, split, seen, source)
    return pairs, bad, total


def _require(columns: Columns, split: str, there: set[str], source: Source) -> None:
    missing = columns.missing(there) + (["split"] if split != "all" and "split" not in there else [])
    if missing:
        near = sorted({c for m in missing for c in nearest(m, sorted(there))})
        hint = f"; did you mean {' or '.join(near)}?" if near else "."
        have = ", ".join(map(repr, sorted(there)))
        raise UserError(
            f"{source.name} has no column {', '.join(map(repr, missing))}{hint} It has: {have}; other names "
            "are given as clean=NAME and so on, in a shell by --set task_options.clean=NAME"
        )


def _refuse_unequal(pairs: list[Pair], bad: dict[int, str]) -> dict[int, str]:
    """Bad rows, with pairs of unequal length added unless every row carries labels."""
    if all(p.labelled for p in pairs):
        return bad
    differ = {
        p.number: f"clean and corrupt differ in length: {len(p.clean)} and {len(p.corrupt)} tokens"
        for p in pairs
        if not p.equal
    }
    return {**bad, **differ}


def _build(name: str, pairs: list[Pair], counterfactual: bool, meta: Mapping[str, object]) -> Task:
    kinds = {k: i for i, k in enumerate(dict.fromkeys(p.template for p in pairs))}
    template = None if set(kinds) == {None} else torch.tensor([kinds[p.template] for p in pairs])
    names = sorted({label for p in pairs for label in p.labels})
    texts = [p.text for p in pairs]

    def side(i: int) -> Prompts:
        return Prompts.of(
            [(p.clean, p.corrupt)[i] for p in pairs],
            answer=torch.tensor([p.answer[i] for p in pairs]),
            labels={k: torch.tensor([p.labels.get(k, (-1, -1))[i] for p in pairs]) for k in names},
            template=template,
            text=None if None in texts else [t[i] for t in texts if t is not None],
        )

    return Task.of(
        name, side(0), side(1), Answers.of([p.right for p in pairs]), Answers.of([p.wrong for p in pairs]),
        cluster=template, counterfactual=counterfactual, meta=meta,
    )  # fmt: skip
