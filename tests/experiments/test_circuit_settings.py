"""The circuit experiments end to end: tables, artifacts, resume, and bad input in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.ablation import EXPERIMENT as ABLATION
from experiments.activation_patching import EXPERIMENT as PATCHING
from experiments.circuit_discovery import EXPERIMENT as DISCOVERY
from experiments.circuit_evaluation import EXPERIMENT as EVALUATION
from experiments.direct_logit_attribution import EXPERIMENT as DLA
from experiments.ground_truth import EXPERIMENT as TRUTH
from interp.cells import Experiment, run_cell
from interp.circuits.files import found_on, load_circuit
from interp.models.load import load_model
from interp.registry import UserError


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A circuit of toy-ioi, discovered on half of 16 prompts."""
    out = tmp_path_factory.mktemp("results")
    cell = run_cell(DISCOVERY, {"n": 16, "method": "eap_ig_inputs", "share": 0.2}, out=out)
    table = cell.table()
    assert len(table) == 262
    assert table["kept"].sum() == cell.run()["notes"]["edges_kept"] > 20
    assert sorted(table["rank"]) == list(range(262))
    assert table.loc[table["kept"], "rank"].max() < table.loc[~table["kept"], "rank"].min()
    assert {"stderr", "ci_low", "p_adjusted"} <= set(table.dropna(axis=1, how="all").columns)
    return cell.artifacts()["circuit.json"]


def test_the_artifacts_are_the_circuit(found: Path) -> None:
    geometry = load_model("toy-ioi").geometry
    circuit = load_circuit(found, geometry)
    assert load_circuit(found.with_name("circuit.graphml"), geometry) == circuit
    assert len(found_on(found)) == 8


def test_acdc_has_every_step(tmp_path: Path) -> None:
    cell = run_cell(DISCOVERY, {"n": 8, "tau": 0.1}, out=tmp_path)
    table = cell.table().sort_values("step")
    assert table["step"].tolist() == list(range(262))
    assert table["dst"].iloc[0] == "logits"
    assert (table["kept"] == (table["score"] >= 0.1)).all()
    assert table["reason"].str.contains("one number").all()
    assert run_cell(DISCOVERY, {"n": 8, "tau": 0.1}, out=tmp_path).reused


def test_positions_by_label(tmp_path: Path) -> None:
    cell = run_cell(DISCOVERY, {"n": 8, "positions": "label", "size": 40, "method": "eap"}, out=tmp_path)
    table = cell.table()
    assert table["kept"].sum() == 40
    assert {"S2", "END"} <= set(table["dst_label"])
    across = table[table["src_label"] != table["dst_label"]]
    assert across["dst"].str.contains("<[kv]>").all()


def test_evaluation_of_a_file(found: Path, tmp_path: Path) -> None:
    cell = run_cell(EVALUATION, {"n": 16, "circuit": str(found), "random": 6, "draws": 2}, out=tmp_path)
    table = cell.table()
    series = set(table["series"])
    assert {"metric", "difference", "faithfulness", "cpr", "cmd", "completeness", "minimality"} <= series
    assert {"test: equivalence", "test: equivalence reversed", "test: independence", "test: minimality"} <= series
    assert {"test: sufficiency", "test: partial necessity"} <= series
    curve = table[(table["series"] == "faithfulness") & (table["x_name"] == "share of edges")]
    assert curve.groupby("algorithm").size().to_dict() == {
        f"{how}, {kind} scores": 10 for how in ("top", "greedy") for kind in ("signed", "absolute")
    }
    assert curve[curve["x"] == 1.0]["value"].tolist() == pytest.approx([1.0] * 4, abs=1e-4)
    assert (table[table["side"] == "random circuit"]["items"] == cell.run()["notes"]["edges_kept"]).all()
    assert cell.examples() is not None


def test_prompts_it_was_found_on_are_refused(found: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="were used for discovery"):
        run_cell(EVALUATION, {"n": 16, "circuit": str(found), "part": "discovery"}, out=tmp_path)
    with pytest.raises(UserError, match="were used for discovery"):
        run_cell(EVALUATION, {"n": 16, "part": "all", "method": "eap"}, out=tmp_path)


@pytest.mark.parametrize("part", ["circuit", "complement", "members"])
def test_circuits_are_ablated_patched_and_attributed(part: str, found: Path, tmp_path: Path) -> None:
    settings = {"n": 6, "circuit": str(found), "part": part}
    kept = json.loads(found.read_text())["edges"]
    edges = sum(e["in_graph"] for e in kept.values())
    rows = edges if part == "members" else 1
    for experiment in (ABLATION, PATCHING):
        table = run_cell(experiment, settings, out=tmp_path).table()
        assert len(table) == rows
        assert set(table["side"]) == {"member" if part == "members" else part}
    terms = run_cell(DLA, settings, out=tmp_path).table()
    if part == "members":
        assert terms["algorithm"].str.contains("nothing ablated").all()
    else:
        by = terms.set_index("site")["score"]
        assert by["total"] == pytest.approx(by["logit_diff"], abs=1e-3)
    through = run_cell(DLA, {**settings, "granularity": "edge"}, out=tmp_path).table()
    assert len(through) == (262 - edges if part == "complement" else edges)


def test_ground_truth(tmp_path: Path) -> None:
    cell = run_cell(
        TRUTH, {"circuits": ("planted-gates", "induction-2l"), "methods": ("exact", "eap"), "n": 8}, out=tmp_path
    )
    table = cell.table()
    here = table[(table["model"] == "planted-gates") & (table["series"] == "ranking")].set_index("method")
    assert here.loc["exact", "auroc"] == 1.0
    assert here.loc["eap", "auroc"] < 0.9
    missing = table[table["model"] == "induction-2l"]
    assert missing["auroc"].isna().all()
    assert missing["reason"].str.contains("not part of this package").all()
    board = table[table["series"] == "leaderboard"]
    assert board.sort_values("auroc")["method"].tolist() == ["eap", "exact"]
    assert board["algorithm"].eq("mean over circuits: planted-gates").all()
    assert "| induction-2l | null | null |" in cell.artifacts()["leaderboard.md"].read_text()
    with pytest.raises(UserError, match="unknown known circuit 'planted'"):
        run_cell(TRUTH, {"circuits": ("planted",)}, out=tmp_path)


def test_bad_circuits(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no circuit file"):
        run_cell(ABLATION, {"n": 4, "circuit": "none.json"}, out=tmp_path)
    with pytest.raises(UserError, match="neither a file"):
        run_cell(EVALUATION, {"n": 8, "circuit": "my-circuit"}, out=tmp_path)


@pytest.mark.parametrize(
    ("experiment", "settings", "message"),
    [
        (ABLATION, {"sites": "mlp_out"}, "sites= has no meaning with circuit="),
        (PATCHING, {"window": 2}, "window= has no meaning with circuit="),
        (DLA, {"granularity": "neurons"}, "nodes .heads. or edges .edge., not neurons"),
        (DLA, {"by_source": "label"}, "not split by source token"),
    ],
)
def test_what_a_circuit_leaves_unused_is_refused(
    experiment: Experiment, settings: dict[str, object], message: str, found: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        run_cell(experiment, {"n": 6, "circuit": str(found), **settings}, out=tmp_path)


@pytest.mark.parametrize("experiment", [ABLATION, PATCHING, DLA])
def test_a_part_needs_a_circuit(experiment: Experiment, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="it needs circuit="):
        run_cell(experiment, {"n": 6, "part": "complement"}, out=tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [("edge", "unknown source node 'a0.h9'"), ("model", "n_layers|layers")],
)
def test_a_file_for_another_model_is_one_line(change: str, message: str, found: Path, tmp_path: Path) -> None:
    data = json.loads(found.read_text())
    if change == "edge":
        data["edges"]["a0.h9->logits"] = {"score": 1.0, "in_graph": True}
    else:
        data["cfg"]["n_layers"] = 7
    path = tmp_path / "other.json"
    path.write_text(json.dumps(data))
    for experiment in (ABLATION, PATCHING, DLA, EVALUATION):
        with pytest.raises(UserError, match=message) as e:
            run_cell(experiment, {"n": 6, "circuit": str(path)}, out=tmp_path)
        assert "\n" not in str(e.value)
