"""The circuit of toy-ioi: found by the stated command, faithful on other prompts, and every claim made by an edit."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from experiments.circuit_discovery import EXPERIMENT as DISCOVERY
from experiments.toy_ioi_circuit import EXPERIMENT
from interp.cells import run_cell
from interp.circuits.files import found_on, load_circuit
from interp.circuits.known import known_circuit
from interp.circuits.named import circuit_file, named_circuits, read_circuit
from interp.models.load import load_model
from interp.results.store import Cell

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Cell:
    """Half of 100 prompts that are not those of the table in results."""
    return run_cell(EXPERIMENT, {"seed": 7, "n": 100, "draws": 5}, out=tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def table(cell: Cell) -> pd.DataFrame:
    return cell.table()


def test_it_is_small_faithful_and_better_than_random_ones(table: pd.DataFrame) -> None:
    circuit = read_circuit("toy-ioi", load_model("toy-ioi").geometry)
    assert len(circuit) <= 0.2 * 262
    assert circuit.pruned() == circuit
    by = table.set_index("role")
    assert by.loc["circuit", "normalized_low"] >= 0.9
    assert by.loc["circuit", "normalized"] > by.loc["random circuits", "normalized"] + 0.5
    assert by.loc["complement", "normalized"] < 0.2


def test_every_claim_about_a_part_fits(table: pd.DataFrame) -> None:
    claims = table[table["fits"].notna()]
    assert set(claims["role"]) >= {"other-name head", "movers", "fetchers", "second mover", "last MLP"}
    assert claims["fits"].all(), claims[~claims["fits"].astype(bool)][["role", "intervention", "normalized"]]
    # the strongest: exchanging what one head attends to turns the answer round
    swapped = claims[claims["intervention"].str.contains("exchanged")].iloc[0]
    assert swapped["normalized_high"] < -0.5


def test_every_node_has_a_minimality(table: pd.DataFrame) -> None:
    circuit = read_circuit("toy-ioi", load_model("toy-ioi").geometry)
    nodes = {str(n) for n in circuit.nodes if n.kind in ("head", "mlp")}
    own = table[table["role"] == "minimality"].set_index("components")
    assert set(own.index) == nodes
    assert (own["effect"].abs() > 0.3).all()


def test_the_write_up_has_the_table_s_numbers(cell: Cell, table: pd.DataFrame) -> None:
    text = cell.artifacts()["toy_ioi_circuit.md"].read_text()
    for value in table.loc[table["fits"].notna() & table["normalized"].notna(), "normalized"]:
        assert f"{value:.3f}" in text
    assert "36 of 262 edges" in text


def test_the_command_finds_it_again(tmp_path: Path) -> None:
    settings = {"n": 200, "metric": "logit_diff", "loss": "absolute", "tau": 0.3}
    found = run_cell(DISCOVERY, settings, out=tmp_path).artifacts()["circuit.json"]
    geometry = load_model("toy-ioi").geometry
    again = load_circuit(found, geometry).pruned()
    assert {str(e) for e in again.edges} == {str(e) for e in read_circuit("toy-ioi", geometry).edges}
    assert found_on(found) == found_on(circuit_file("toy-ioi"))


def test_the_named_circuit_is_a_known_one() -> None:
    assert "toy-ioi" in named_circuits()
    known = known_circuit("toy-ioi", n=8)
    assert not known.constructed
    assert len(known.truth) == 36
    assert json.loads(circuit_file("toy-ioi").read_text())["cfg"]["n_layers"] == 3
