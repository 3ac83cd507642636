"""Whole files made to hurt: bombs, cycles, repeated keys, depths, odd line ends,
numbers at the edge of their type."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drawn_input import ANY_TEXT, JSON, many, parses_or_says
from hypothesis import given
from hypothesis import strategies as st

from interp.cells import EXPERIMENTS, cell_hash
from interp.circuits.files import load_circuit
from interp.cli.running import Flags, _recorded
from interp.hooks.addresses import Address
from interp.hooks.sites import resolve
from interp.models.load import load_model
from interp.registry import UserError
from interp.sweep.cellfile import read_cells
from interp.sweep.expand import MOST_COMBINATIONS, expand
from interp.sweep.spec import chosen_preset, read_file
from interp.tasks import task_from_table
from tests.tiny import tiny

pytestmark = pytest.mark.long

LINE_ENDS = st.sampled_from(["\n", "\r\n", "\r", "\n\n", "\x85", "\u2028", "\v", "\f"])
ENCODINGS = st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1", "utf-7"])
NASTY_CELL = st.one_of(
    st.sampled_from(
        [
            "", " ", "[", "]", "[]", "[[]]", "[1, 2]", "[1, 2", "[1e308]", "[1e400]", "[-1]", "[NaN]", "[Infinity]",
            "[1.5]",
            "[true]", '["a"]', "[" * 3000, "[[1], [2]]", "9" * 400, "1e308", "-0", "NaN", "inf", "nan", "None",
            "null",
            "\0", "\ufeff", "\ufeff7", "7\ufeff", "\u200b", "7 8", "=1+1", "'", '"', '""', "a\tb", "\ud7ff", "🙂",
            "٣", "[٣]",
            "[18446744073709551616]", "[9223372036854775807]", "[-9223372036854775809]", "[2147483648]", "7;8",
            "7,8",
        ]
    ),
    st.text(max_size=8),
)  # fmt: skip
HEADS = st.lists(
    st.sampled_from(
        ["clean", "corrupt", "right", "wrong", "template", "split", "answer_pos", "label:A", "label:", "Clean",
        " clean", "",
         "\ufeffclean", "clean\0", "x" * 5000]
    ),
    min_size=1, max_size=9,
)  # fmt: skip


@many
@given(st.data())
def test_tables_of_any_line_ends_marks_and_encodings(data: Any) -> None:
    full = ["clean", "corrupt", "right", "wrong", *data.draw(st.just([]) | HEADS)]
    head = data.draw(st.just(full) | HEADS)
    quoted = data.draw(st.booleans())
    good = data.draw(st.booleans())
    lines = [",".join(head)]
    for _ in range(data.draw(st.integers(0, 4))):
        cells = ["[7, 8, 7]", "[7, 9, 7]", "8", "9", *data.draw(st.lists(NASTY_CELL, max_size=9))]
        cells = cells if good else data.draw(st.lists(NASTY_CELL, max_size=9))
        lines.append(",".join('"' + c.replace('"', '""') + '"' if quoted else c for c in cells[: len(head) + 1]))
    text = "".join(line + data.draw(LINE_ENDS) for line in lines)
    at = data.draw(st.integers(0, len(text)))
    text = text[:at] + data.draw(st.sampled_from(["", "\ufeff", "\0", "\r", '"'])) + text[at:]
    content = text.encode(data.draw(ENCODINGS), "replace")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t" + data.draw(st.sampled_from([".csv", ".tsv", ".CSV"])))
        path.write_bytes(content)
        model = tiny("gpt2") if data.draw(st.booleans()) else load_words()
        task = parses_or_says(lambda: task_from_table(path, model, skip_bad=True))
    assert task is None or task.n > 0


@many
@given(st.lists(st.dictionaries(st.sampled_from(["clean", "corrupt", "right", "wrong", "label:A"]), JSON), max_size=3))
def test_lines_of_json_with_repeated_keys_and_odd_numbers(rows: list[dict[str, Any]]) -> None:
    text = "\r\n".join(json.dumps(row) for row in rows)
    text = text.replace('"corrupt"', '"clean"') if len(rows) % 2 else text
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.jsonl")
        path.write_text(text, encoding="utf-8", newline="")
        parses_or_says(lambda: task_from_table(path, tiny("gpt2")))


def load_words() -> Any:
    if not WORDS:
        WORDS.append(load_model("attn-2l"))
    return WORDS[0]


WORDS: list[Any] = []


def yaml_bomb(levels: int, width: int, merge: bool) -> str:
    """Aliases of aliases: width ** levels values, or as many merged keys."""
    one = [f"a0: &a0 {'{k: 1}' if merge else '[1, 1]'}"]
    for i in range(1, levels):
        inside = ", ".join(f"{'<<' if merge and k == 0 else f'k{k}'}: *a{i - 1}" for k in range(width))
        inside = inside if merge else ", ".join([f"*a{i - 1}"] * width)
        one.append(f"a{i}: &a{i} {'{' if merge else '['}{inside}{'}' if merge else ']'}")
    return "\n".join(one) + "\n"


SCALARS = st.sampled_from(
    [
        "1", "-1", "1e308", ".inf", "-.inf", ".nan", "~", "true", "yes", "'a'", '"\\ud800"', '"\\0"', "9" * 400,
        "0x10", "1:30",
        "2001-01-01", "2001-99-99", "!!int x", "!!float x", "!!binary x", "!!set {a}", "!!omap [a: 1]",
        "!!python/name:os",
        "!x y", "*a", "&a b", "&a [*a]", "<<", "[]", "{}", "|", ">", "? a", "- b", "é", "語", "zero", "mean", "z",
        "ioi",
        "toy-ioi", "[0, 1]", "[z, q]", "ablation", "logit_lens", "{seed: [0, 1]}", "{n: 3, n: 4}",
        "[[[[[[[[]]]]]]]]",
    ]
)  # fmt: skip
KEYS = st.sampled_from(
    ["name", "out", "defaults", "cells", "exclude", "presets", "resources", "group", "experiment", "set", "grid",
    "zip",
     "list", "seed", "n", "task", "sites", "when", "only", "minutes", "cpus", "by", "<<", "1", "~", "!!int 3",
     "'\\0'"]
)  # fmt: skip
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda xs: "[" + ", ".join(xs) + "]")
        | st.lists(st.tuples(KEYS, inner), max_size=4).map(lambda xs: "{" + ", ".join(f"{k}: {v}" for k, v in xs) + "}")
    ),
    max_leaves=14,
)
CELLS = st.lists(st.tuples(KEYS, TREES), max_size=4).map(
    lambda pairs: "cells:\n  - experiment: ablation\n" + "".join(f"    {k}: {v}\n" for k, v in pairs)
)


@many
@given(st.one_of(CELLS, TREES, st.tuples(CELLS, KEYS, TREES).map(lambda x: f"{x[0]}{x[1]}: {x[2]}\n")))
def test_sweeps_of_odd_trees(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "s.yaml")
        path.write_text(text, encoding="utf-8")

        def plan() -> Any:
            sweep, found = read_file(path)
            return expand(sweep, found, chosen_preset(sweep, None))

        made = parses_or_says(plan)
    assert made is None or len(made.cells) <= MOST_COMBINATIONS


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize(("levels", "width"), [(8, 8), (40, 2), (30, 10), (300, 2)])
def test_bombs_of_aliases(levels: int, width: int, merge: bool, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(yaml_bomb(levels, width, merge) + f"cells: *a{levels - 1}\n")
    assert parses_or_says(lambda: read_file(path)) is None
    assert parses_or_says(lambda: Flags({}, (f"task_options={{{yaml_bomb(9, 9, merge)}}}",)).values()) is None


@many
@given(
    st.lists(
        st.tuples(st.sampled_from(["sites", "task_options", "n", "seed", "model_options.a", "by"]), TREES), max_size=3
    )
)
def test_settings_of_odd_trees(pairs: list[tuple[str, str]]) -> None:
    experiment = EXPERIMENTS["ablation"]

    def read() -> str:
        return cell_hash(experiment, experiment.make_config(Flags({}, tuple("=".join(p) for p in pairs)).values()), {})

    digest = parses_or_says(read)
    assert digest is None or len(digest) == 64


DEEP: dict[str, Callable[[int], str]] = {
    "lists": lambda n: "[" * n + "]" * n,
    "open lists": lambda n: "[" * n,
    "objects": lambda n: '{"a": ' * n + "1" + "}" * n,
    "digits": lambda n: "9" * n,
    "negative digits": lambda n: '{"cfg": -' + "9" * n + "}",
    "exponent": lambda n: '{"experiment": "ablation", "version": 1, "config": {"n": 1e' + "9" * n + "}}",
    "one long key": lambda n: '{"' + "k" * n + '": 1}',
    "a key many times": lambda n: "{" + ", ".join(['"edges": {}'] * n) + "}",
    "escapes": lambda n: '{"edges": "' + "\\ud800" * n + '"}',
    "null bytes": lambda n: "\0" * n,
    "spaces": lambda n: " " * n,
    "xml": lambda n: "<a>" * n,
    "xml attributes": lambda n: "<graphml " + " ".join(f'a{i}="1"' for i in range(n)) + "/>",
}


@pytest.mark.parametrize("size", [10, 999, 5_000, 200_000])
@pytest.mark.parametrize("kind", DEEP)
def test_depths_and_lengths(kind: str, size: int, tmp_path: Path) -> None:
    text = DEEP[kind](size)
    model = tiny("gpt2")
    for suffix in (".json", ".graphml"):
        path = tmp_path / f"c{suffix}"
        path.write_text(text)
        assert parses_or_says(lambda path=path: load_circuit(path, model.geometry)) is None
    for suffix in (".json", ".jsonl", ".csv", ".tsv"):
        path = tmp_path / f"t{suffix}"
        path.write_text(text)
        assert parses_or_says(lambda path=path: task_from_table(path, model)) is None
    path = tmp_path / "s.yaml"
    path.write_text(text)
    parses_or_says(lambda: read_file(path))
    parses_or_says(lambda: read_cells(path))
    parses_or_says(lambda: _recorded(path))
    if "\0" not in text:
        parses_or_says(lambda: Flags({}, (f"sites={text}",)).values())


ADDRESSES = st.one_of(
    st.from_regex(r"L-?[0-9]{1,12}\.[a-z_]{1,6}", fullmatch=True),
    st.sampled_from(
        ["", ".", "L", "L.z", "L1", "L1.", "L1.z.z", " L1.z", "L1.z ", "L1.z\n", "L+1.z", "L1_0.z", "L１.z", "l1.z",
        "L1.Z",
         "L1.ｚ", "z\0", "\ufeffz", "z\u200b", "L-0.z", "L00001.z", "L1e3.z", "L0x1.z", "Linf.z", "Lnan.z",
         "z" * 100_000]
    ),
    ANY_TEXT,
)  # fmt: skip


@many
@given(ADDRESSES)
def test_addresses(text: str) -> None:
    read = parses_or_says(lambda: Address.parse(text))
    assert read is None or text == text.strip()
    found = parses_or_says(lambda: resolve(text, tiny("gpt2").geometry))
    assert found is None or all(0 <= (a.layer or 0) < tiny("gpt2").geometry.layers for a in found)


def test_what_passes_for_json_is_not_taken_at_its_word(tmp_path: Path) -> None:
    """Python reads NaN, infinities and repeated keys; a record of a run with them is refused or harmless."""
    path = tmp_path / "run.json"
    path.write_text('{"experiment": "ablation", "version": 1, "config": {"n": NaN}}')
    recorded = _recorded(path)
    with pytest.raises(UserError, match="finite"):
        EXPERIMENTS["ablation"].make_config(recorded["config"])
