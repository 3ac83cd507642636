"""The experiments `attribution_patching` and `attribution_agreement`, through run_cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments import attribution_agreement, attribution_patching
from interp.attribution.methods import METHODS, attribute, get_method
from interp.cells import Cell, run_cell
from interp.listing import listing
from interp.registry import UserError
from tests.experiments.test_direct_logit_attribution import loaders, task_of
from tests.tiny import tiny


def cell(experiment: Any, out: Path, **settings: Any) -> Cell:
    config = experiment.make_config({"model": "tiny", "task": "random", "n": 8, **settings})
    return run_cell(experiment, config, out=out, loaders=loaders())


@pytest.mark.parametrize("granularity", ["edge", "node"])
def test_the_rows_are_the_function_s(tmp_path: Path, granularity: str) -> None:
    for method in ("eap", "exact"):
        made = cell(attribution_patching.EXPERIMENT, tmp_path, method=method, granularity=granularity, ablation="zero")
        want = attribute(tiny("gpt2"), task_of(8), method, granularity, ablation="zero")
        frame = made.table()
        assert len(frame) == len(want)
        assert frame.score.abs().sum() == pytest.approx(float(want.mean.abs().sum()), rel=1e-4)
        assert set(frame.method) == {method}
        assert set(frame.ablation) == {"zero"}
        assert (frame.ci_low <= frame.score).all()


def test_exact_edges_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = cell(attribution_patching.EXPERIMENT, tmp_path / "a", method="exact", ablation="zero").table()
    import interp.interventions.edges as edges

    real, calls = edges.edge_values, []

    def broken(*args: Any, **more: Any) -> Any:
        for part, rows in real(*args, **more):
            calls.append(len(part))
            if len(calls) == 3:
                raise KeyboardInterrupt
            yield part, rows

    monkeypatch.setattr(edges, "edge_values", broken)
    with pytest.raises(KeyboardInterrupt):
        cell(attribution_patching.EXPERIMENT, tmp_path / "b", method="exact", ablation="zero")
    before = sum(calls[:2])
    calls[:] = [0, 0, 0]
    again = cell(attribution_patching.EXPERIMENT, tmp_path / "b", method="exact", ablation="zero").table()
    assert sum(calls) == 110 - before
    assert again.score.tolist() == pytest.approx(whole.score.tolist(), abs=1e-6)


def test_agreement_has_a_row_per_method_measure_and_group(tmp_path: Path) -> None:
    frame = cell(
        attribution_agreement.EXPERIMENT, tmp_path, methods=["eap", "relp", "atp_star"], ablation="zero"
    ).table()
    edges, nodes = (frame[frame.granularity == g] for g in ("edge", "node"))
    assert set(edges.method) == {"eap", "relp"}
    assert set(nodes.method) == {"eap", "relp", "atp_star"}
    assert set(frame.metric) == {"pearson", "overlap", "signs"}
    assert len(edges) == 2 * 3 * 10
    assert len(nodes) == 3 * 3 * 6
    whole = edges[(edges.method == "eap") & (edges.components == "all")].set_index("metric")
    assert not whole.reason.notna().any(), whole.reason.tolist()
    assert 0.3 < whole.loc["pearson", "value"] <= 1
    assert whole.loc["pearson", "ci_low"] <= whole.loc["pearson", "value"] <= whole.loc["pearson", "ci_high"]
    assert set(frame[frame.value.isna()].reason.notna()) <= {True}


def test_methods_are_listed_without_being_imported() -> None:
    rows = {row.name: row.about for row in listing("methods")}
    get_method("eap")
    assert set(METHODS.names()) <= set(rows)
    assert rows["eap"] == "Edge attribution patching: every edge from one forward and one backward pass."
    assert all(rows[name] == METHODS[name].summary for name in METHODS.names())


def test_bad_settings_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown method 'eap_ig'; did you mean"):
        cell(attribution_patching.EXPERIMENT, tmp_path, method="eap_ig")
    with pytest.raises(UserError, match="none of eap_ig_activations scores nodes"):
        cell(attribution_agreement.EXPERIMENT, tmp_path, methods=["eap_ig_activations"], granularity=["node"])
