"""Every experiment that ships runs its smoke preset on the embedded model, and gives a table worth reading."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from interp.cells import EXPERIMENTS, Loaders, run_cell
from interp.results.schemas import SCHEMAS

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
NAMES = sorted(PROJECT["entry-points"]["interp.experiments"])


@pytest.fixture(scope="module")
def loaders() -> Loaders:
    """One loaded model for all."""
    return Loaders()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_smoke(name: str, loaders: Loaders, tmp_path: Path) -> None:
    experiment = EXPERIMENTS[name]
    assert experiment.name == name
    assert "smoke" in experiment.presets
    cell = run_cell(experiment, experiment.make_config({}, "smoke"), out=tmp_path, loaders=loaders)
    frame, run = cell.table(), cell.run()
    assert len(frame) > 0
    assert (run["experiment"], run["reproducible"]) == (name, True)
    schema = cell.schema()
    assert schema.main in frame
    assert frame[schema.main].notna().any()
    if schema.name in SCHEMAS:
        assert [*frame.columns] == schema.names
    assert [p.name for p in (tmp_path / name).iterdir()] == [cell.path.name], "nothing half-made is left"
