"""Input as nobody meant it, and what a reader may do with it: parse, or say in a UserError what is wrong.

Two kinds: values drawn from nothing (`TEXT`, `JSON`, `CELL`), and whole files spoilt in a few places (`spoilt`),
which get past the first check of a reader more often.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import settings
from hypothesis import strategies as st

from interp.cli.app import _say
from interp.registry import UserError

many = settings(max_examples=2000, deadline=None)
"""Under a minute for a reader of small files."""
few = settings(max_examples=300, deadline=None)
"""For readers that build a model, or run a command."""

TEXT = st.text(max_size=30)
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=30)
"""Lone halves of surrogate pairs too, which JSON can spell and UTF-8 cannot."""
NUMBER = st.one_of(
    st.integers(), st.floats(), st.sampled_from([10**400, -(2**63) - 1, 2**63, 2**64, 1e308, -1e308, 5e-324, -0.0])
)
SCALAR = st.one_of(st.none(), st.booleans(), NUMBER, ANY_TEXT)
JSON = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4), max_leaves=12
)
IDS = st.lists(st.integers(-1, 60), max_size=5)
CELL = st.one_of(SCALAR, IDS, st.lists(IDS, max_size=3), JSON)

HOSTILE = (
    b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b'"', b"'", b",", b"\t", b"\r", b"\n", b"[", b"]", b"{",
    b"}", b"[" * 3000, b'{"a":' * 3000, b"9" * 5000, b"NaN", b"-Infinity", b"1e999", b"\\ud800", b": ", b"- ",
    b"&a ",
    b"*a", b"<<: ", b"!!python/object:os.system ", b"!!int ", b"!!float ", b"!!timestamp ", b"!!binary ", b"!!set ",
    b"2001-99-99", b"0x_", b"0b_", b"1:99:99", b"._", b"<", b">", b"&x;", b"<![CDATA[", b"null", b"true", b"~", b"%",
    b"\r\n", b"\n\r\n", b"\xc2\x85", b"\xe2\x80\xa9", b"\xfe\xff", b"\\u0000", b"1e308", b"-1.8e308", b"1e-400",
    b"9" * 400,
    b".inf", b".nan", b"0o17", b"1_000", b"{a: 1, a: 2}", b"&a [*a]", b"? [a]\n: b\n", b"|\n", b"---\n",
    b"%YAML 9.9\n",
    b"[" * 900 + b"]" * 900, b'"' * 3001, b"\t" * 300, b" " * 3000, b"-" * 300,
    b"\xe2\x80\xa8", "Ж".encode("utf-16"), "語".encode(), b"../../etc/passwd", b"a" * 200_000,
)  # fmt: skip


def spoil(data: bytes, draw: random.Random) -> bytes:
    """`data` with one to four pieces cut out, doubled, swapped, flipped, or put in."""
    out = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randint(0, len(out))
        end = min(len(out), at + draw.choice([1, 1, 2, 5, 20, 200]))
        match draw.randrange(6):
            case 0:
                del out[at:end]
            case 1:
                out[at:at] = out[at:end]
            case 2:
                out[at:at] = draw.choice(HOSTILE)
            case 3:
                out[at:end] = draw.choice(HOSTILE)
            case 4 if at < len(out):
                out[at] ^= 1 << draw.randrange(8)
            case _:
                out = out[: draw.randint(0, len(out))]
    return bytes(out)


def spoilt(*whole: bytes) -> st.SearchStrategy[bytes]:
    """One of the files, spoilt; or bytes of any kind."""
    files = st.builds(spoil, st.sampled_from(whole), st.randoms(use_true_random=False))
    return st.one_of(files, files, files, st.binary(max_size=300), TEXT.map(str.encode), JSON.map(_dump))


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()


@st.composite
def frames(draw: Callable[..., Any]) -> pd.DataFrame:
    """Frames of odd columns and dtypes."""
    names = st.sampled_from(
        ["clean", "corrupt", "right", "wrong", "label:A", "answer_pos", "template", "split", 3, None]
    )
    columns = draw(st.lists(names, max_size=8))
    rows = draw(st.integers(0, 4))
    values = [draw(st.lists(CELL, min_size=rows, max_size=rows)) for _ in columns]
    frame = pd.DataFrame({i: pd.Series(v, dtype=object) for i, v in enumerate(values)}, index=range(rows))
    frame.columns = pd.Index(columns, dtype=object)
    kind = draw(st.sampled_from(["object", "arrays", "missing"]))
    if kind == "arrays":
        frame = frame.map(lambda x: np.asarray(x, dtype=object) if isinstance(x, list) else x)
    elif kind == "missing":
        frame = frame.map(lambda x: pd.NA if x is None else x)
    return frame


LONGEST_SECONDS = 20.0
"""Of the processor, for one small file: what takes longer hangs."""


def parses_or_says(read: Callable[[], Any]) -> Any:
    """What was read; or None where a UserError said why not, in a message that a terminal can show."""
    started = time.process_time()
    try:
        value = read()
        assert time.process_time() - started < LONGEST_SECONDS, "it hangs"
        return value
    except UserError as error:
        assert time.process_time() - started < LONGEST_SECONDS, "it hangs"
        message = str(error)
        assert message.strip(), "an error that says nothing"
        assert _say(message, 2) == 2
        return None
