"""What is installed: pins, entry points, the files of a wheel, and what the two commands may do."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import interp

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
POINTS = {f"{group}:{name}": value for group, rows in PROJECT["entry-points"].items() for name, value in rows.items()}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    lines = [x for x in (ROOT / "constraints.txt").read_text().splitlines() if x and not x.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", x) for x in lines), "one pin a line, without a build's local label"
    return {canonical(name): version for name, version in (x.split("==") for x in lines)}


def required(*extras: str) -> list[str]:
    """Names of the core dependencies, and of those of the extras."""
    wanted = [*PROJECT["dependencies"], *(x for e in extras for x in PROJECT["optional-dependencies"][e])]
    return [canonical(re.match(r"[\w.-]+", w)[0]) for w in wanted]  # type: ignore[index]


def test_the_tested_set_is_pinned_whole() -> None:
    held = pins()
    assert held["torch"] == "2.13.0"
    assert [name for name in required("dev") if name not in held] == []
    assert "interp" not in held


def test_pins_lie_in_the_ranges() -> None:
    from packaging.requirements import Requirement

    held = pins()
    for text in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]:
        wanted = Requirement(text)
        assert wanted.specifier.contains(held[canonical(wanted.name)], prereleases=True), text


def test_the_version_stands_in_one_place() -> None:
    assert PROJECT["dynamic"] == ["version"]
    assert re.fullmatch(r"0\.\d+\.\d+", interp.__version__)
    assert f"## {interp.__version__}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("point", POINTS)
def test_entry_points_lead_somewhere(point: str) -> None:
    """Read off the sources, so that nothing is imported."""
    module, _, attribute = POINTS[point].partition(":")
    stem = ROOT.joinpath(*module.split("."))
    file = stem.with_suffix(".py") if stem.with_suffix(".py").is_file() else stem / "__init__.py"
    tree = ast.parse(file.read_text())
    targets = [t for node in tree.body for t in (getattr(node, "targets", None) or [getattr(node, "target", node)])]
    named = {getattr(t, "id", getattr(t, "name", None)) for t in targets}
    imported = {a.asname or a.name for node in tree.body if isinstance(node, ast.ImportFrom) for a in node.names}
    assert attribute in named | imported


def test_every_experiment_has_its_entry_point() -> None:
    """A module of `experiments` that defines EXPERIMENT is named, under its file's name."""
    found = {}
    for path in sorted((ROOT / "experiments").glob("*")):
        file = path / "__init__.py" if path.is_dir() else path
        if file.is_file() and file.suffix == ".py" and re.search(r"\bEXPERIMENT\b", file.read_text()):
            found[path.stem] = f"experiments.{path.stem}:EXPERIMENT"
    assert found == PROJECT["entry-points"]["interp.experiments"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names in a wheel of a copy of the sources, built without network by the environment's own setuptools."""
    place = tmp_path_factory.mktemp("wheel")
    copy = place / "source"
    junk = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("interp", "experiments"):
        shutil.copytree(ROOT / name, copy / name, ignore=junk)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    words = ["-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(place), str(copy)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(place.glob("*.whl"))) as archive:
        return archive.namelist()


@pytest.mark.slow
def test_a_wheel_holds_everything(wheel: list[str]) -> None:
    expected = [
        str(path.relative_to(ROOT))
        for name in ("interp", "experiments")
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and "notebooks" not in path.parts
    ]
    assert "interp/models/zoo/toy-ioi/model.safetensors" in expected
    assert sorted({*expected} - {*wheel}) == []
    assert {name.split("/")[0] for name in wheel if ".dist-info" not in name} == {"interp", "experiments"}


def test_embedded_weights_are_small() -> None:
    for path in (ROOT / "interp" / "models" / "zoo").rglob("*.safetensors"):
        assert path.stat().st_size < 4_000_000, path.name


def made_by(target: str) -> str:
    """What make would run, without running it."""
    words = ["make", "--no-print-directory", "--dry-run", target]
    return subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=True).stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_system_packages_are_no_part_of_the_two_commands() -> None:
    assert "apt-get" in (ROOT / "Makefile").read_text()
    for target in ("demo", "test", "test-long"):
        assert "apt-get" not in made_by(target)
    assert "not long" in made_by("test")


def test_ci_calls_the_same_command() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    lines = script.read_text().splitlines()
    assert lines[-2:] == ["make ci-system", "make test"]
