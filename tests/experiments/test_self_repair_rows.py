"""The self-repair experiment: its rows are the function's, and its paths add up."""

from __future__ import annotations

from pathlib import Path

import pytest

import interp
from experiments.self_repair import EXPERIMENT
from interp.attribution.self_repair import self_repair
from interp.cells import run_cell
from interp.models.load import load_model
from interp.registry import UserError
from interp.tasks.load import load_task


def test_the_rows_are_the_function_s(tmp_path: Path) -> None:
    settings = {"n": 8, "heads": ("a0.h1", "a1.h0+a1.h1"), "ablation": "corrupt"}
    table = run_cell(EXPERIMENT, settings, out=tmp_path).table()
    model = load_model("toy-ioi")
    task = load_task("ioi", model, n=8)
    donor = model.run(task.corrupt, capture=["z"])
    want = self_repair(
        model, task, [(0, 1), [(1, 0), (1, 1)]], ablate=lambda i, h: interp.patch_edit(f"L{i}.z", donor, head=h)
    )
    by = table[table["method"] != "direct_effect_change"].set_index(["method", "layer"])["effect"]
    one, two = by.xs(0, level="layer"), table[table["components"] == "L1.H0+L1.H1"].set_index("method")["effect"]
    for i, got in enumerate((one, two)):
        assert got["total_effect"] == pytest.approx(want.total[:, i].mean().item(), abs=1e-4)
        assert got["direct_effect"] == pytest.approx(want.direct[:, i].mean().item(), abs=1e-4)
        assert got["self_repair"] == pytest.approx(got["total_effect"] - got["direct_effect"], abs=1e-4)
    changes = table[(table["method"] == "direct_effect_change") & (table["src"] == "L1.H0+L1.H1")]
    assert changes["effect"].sum() + two["norm_scales"] == pytest.approx(two["self_repair"], abs=1e-3)
    assert (table["ablation"] == "corrupt").all()


@pytest.mark.parametrize(
    ("heads", "message"), [(("m0",), "knocks out heads"), (("a0.h9",), "no head"), (("a0",), "not a node")]
)
def test_bad_heads(heads: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        run_cell(EXPERIMENT, {"n": 4, "heads": heads}, out=tmp_path)
