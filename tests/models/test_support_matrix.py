"""The support matrix: its table covers every family, nothing in it is broken, and the README shows it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from interp.cells import run_cell
from interp.hooks.sites import SITES
from interp.interventions.audit.families import kinds
from interp.interventions.audit.matrix import condensed
from interp.models import tiny
from interp.models.families import FAMILIES
from interp.registry import UserError
from tests.unchecked import unchecked

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "interp run site_audit --set families=all"


@pytest.fixture(scope="module")
def matrix() -> pd.DataFrame:
    """The published table."""
    cells = [p for p in (ROOT / "results" / "site_audit").glob("*/run.json") if COMMAND in p.read_text()]
    assert len(cells) == 1, f"one table is made by {COMMAND!r}"
    assert json.loads(cells[0].read_text())["command"] == COMMAND
    return pd.read_parquet(cells[0].parent / "table.parquet")


def test_every_family_and_kind_is_in_the_table(matrix: pd.DataFrame) -> None:
    assert set(matrix["model"]) == set(kinds())
    rows = "".join(path.read_text() for path in sorted((ROOT / "interp" / "models" / "rows").glob("*.py")))
    shipped = re.findall(r'Family\(\s*"(\w+)"', rows)
    assert len(shipped) > 20
    assert set(shipped) <= set(FAMILIES)
    assert set(shipped) <= set(matrix["family"])
    assert {tiny.model(kind).family.name for kind in tiny.KINDS} == set(shipped) - {"native"}


def test_nothing_in_it_is_broken(matrix: pd.DataFrame) -> None:
    assert matrix["passed"].all()
    assert (matrix.loc[matrix["tolerance"] == 0, "value"] == 0).all()


def test_every_site_of_every_kind_was_tried_by_every_clause(matrix: pd.DataFrame) -> None:
    whole = matrix[matrix["setting"] == "float32"]
    for kind in tiny.KINDS:
        tried = whole[whole["model"] == kind].groupby("rule")["site"].agg(set)
        sites = set(tiny.model(kind).sites())
        for rule in ("1 no-op", "1 masked", "4 values", "5 random edit", "gradient", "padding"):
            assert tried[rule] == sites, (kind, rule, tried[rule] ^ sites)
        assert tried["6 lacking"] >= set(SITES) - sites
        halves = matrix[(matrix["model"] == kind) & (matrix["rule"] == "the whole contract")]
        assert set(halves["setting"]) == {"bfloat16", "float16"}
        assert sites <= set(halves["site"])


def test_the_readme_shows_it(matrix: pd.DataFrame) -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## Supported models")[1].split("\n## ")[0]
    shown = [line for line in section.splitlines() if line.startswith("|")]
    want = condensed(matrix)
    assert shown == want, "the README's table is not that of results/: put there\n" + "\n".join(want)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["phi", *(pytest.param(kind, marks=pytest.mark.long) for kind in kinds())])
def test_an_audit_made_now_has_the_published_rows(kind: str, matrix: pd.DataFrame, tmp_path: Path) -> None:
    with unchecked():
        now = run_cell("site_audit", {"families": (kind,)}, out=tmp_path).table()
    then, key = matrix[matrix["model"] == kind], ["model", "setting", "rule", "site"]
    assert now["passed"].all()
    assert list(now[key].itertuples(index=False)) == list(then[key].itertuples(index=False))
    counted = [
        table["n"].fillna(0).astype(int).tolist() for table in (now, then)
    ]  # a check through the bridge counts none
    assert counted[0] == counted[1]


def test_bad_settings_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown kind of checkpoint 'gptk'; did you mean gptj"):
        run_cell("site_audit", {"families": ("gptk",)}, out=tmp_path)
    with pytest.raises(UserError, match="the only other setting is seed; leave out model, length"):
        run_cell("site_audit", {"families": "all", "model": "toy", "length": 5}, out=tmp_path)
