"""Every public name has an example that the doctests run: what `interp` offers, and what the README calls."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

import pytest
import readme_parts

import interp

MODEL = "interp.models.model:Model"
METHODS = {"model.run", "model.hooks", "model.means", "model.generate"}
BY_WORD = {
    "edge_effects": "interp.interventions.edges", "path_effects": "interp.interventions.paths",
    "attribute": "interp.attribution.methods", "logit_lens": "interp.attribution.lens",
    "discover": "interp.circuits.discover", "Circuit": "interp.circuits.values",
    "Evaluator": "interp.circuits.running", "evaluate": "interp.circuits.evaluate",
    "qk_circuits": "interp.weights.circuits", "ov_circuits": "interp.weights.circuits",
    "composition": "interp.weights.composition", "matching": "interp.weights.matching",
    "head_scores": "interp.weights.heads", "residual_flow": "interp.numerics.flow",
    "gradient_flow": "interp.numerics.flow", "heatmap": "interp.plots.heatmap", "lines": "interp.plots.lines",
    "bars": "interp.plots.bars", "attention": "interp.plots.attention", "tokens": "interp.plots.tokens",
    "circuit_graph": "interp.plots.circuit_graph",
}  # fmt: skip
"""Where the functions of the README's table by task lie."""


def by_task() -> Iterator[str]:
    """What the README's table by task says to call."""
    table = readme_parts.TEXT.split("**By task.**")[1].split("\n## ")[0]
    for row in re.findall(r"^\| [^|]+\| ([^|]+)\|[^|]+\|$", table, re.M)[1:]:
        yield from re.findall(r"`([\w.]+)`", row)


def imported() -> Iterator[tuple[str, str]]:
    """What the README's Python blocks import from this package, as (module, name)."""
    for block in re.findall(r"^```python\n(.*?)^```", readme_parts.TEXT, re.M | re.S):
        for node in ast.walk(ast.parse(textwrap.dedent(block))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "interp":
                yield from ((node.module, alias.name) for alias in node.names)


def public() -> dict[str, Any]:
    """Every public name and what it stands for."""
    found = {f"interp.{name}": getattr(interp, name) for name in interp.__all__ if name != "__version__"}
    found |= {f"{module}.{name}": getattr(importlib.import_module(module), name) for module, name in imported()}
    for called in by_task():
        first, _, rest = called.partition(".")
        if first == "model":
            assert called in METHODS
            found[called] = getattr(importlib.import_module(MODEL.split(":")[0]).Model, rest)
        elif first != "interp":
            found[called] = getattr(importlib.import_module(BY_WORD[called]), called)
    return found


PUBLIC = public()


def examples(thing: Any) -> list[doctest.Example]:
    """Examples in a docstring: a function's, or a class's and those of its own public methods."""
    thing = inspect.unwrap(thing.__func__ if isinstance(thing, MethodType) else thing)
    docs = [thing.__doc__]
    if inspect.isclass(thing):
        own = (m for name, m in vars(thing).items() if not name.startswith("_"))
        docs += [m.__doc__ for m in own if isinstance(m, FunctionType | staticmethod | classmethod)]
    return [example for doc in docs for example in doctest.DocTestParser().get_examples(doc or "")]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_an_example(name: str) -> None:
    shown = examples(PUBLIC[name])
    assert shown, f"{name} has no doctest"
    assert any(example.want for example in shown), f"no example of {name} shows what comes out"


def test_the_names_are_found() -> None:
    assert len([*by_task()]) > 30
    assert {"interp.patch", "model.run", "edge_effects", "interp.weights.paths.path_expansion"} <= set(PUBLIC)
    assert set(interp.__all__) - {"__version__"} == {name.removeprefix("interp.") for name in PUBLIC} & {
        *interp.__all__
    }


@pytest.mark.parametrize("name", ["interp.load_model", "interp.Prompts", "interp.register_task", "model.run"])
def test_examples_lie_where_doctests_are_collected(name: str) -> None:
    """A docstring set at run time, or of another package, would not be run."""
    thing = PUBLIC[name]
    thing = inspect.unwrap(thing.__func__ if isinstance(thing, MethodType) else thing)
    assert thing.__module__.startswith("interp.")
    tests = doctest.DocTestFinder().find(importlib.import_module(thing.__module__))
    assert any(thing.__qualname__ in test.name and test.examples for test in tests)
