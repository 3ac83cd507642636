"""What exists, by name and first docstring line, without importing the modules that hold it.

Names come from three places: entry points (group `interp.<kind>`), functions of our own modules that carry a
registering decorator, and folders of embedded models. Their docstrings are read from source files with
`ast`, so that a list of experiments costs no import of torch. Sites and families are data without torch and
are read from their registries.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from interp.registry import unknown

ROOT = Path(__file__).parent


@dataclass(frozen=True)
class Row:
    """One name: what it is, and where it is defined."""

    name: str
    about: str
    where: str


# which of our own files are read for a kind, and the decorators that register a row of it
_SCANNED: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {
    "edits": (("hooks/edits.py",), frozenset({"edit_kind", "register_edit", "EDITS.register"})),
    "methods": (
        ("attribution/*.py", "circuits/*.py"),
        frozenset({"register_method", "METHODS.register", "method", "register_discovery"}),
    ),
    "metrics": (("metrics.py",), frozenset({"register_metric", "METRICS.register"})),
    "recipes": (("training/*.py",), frozenset({"register_recipe", "RECIPES.register"})),
    "tasks": (("tasks/*.py",), frozenset({"register_task", "TASKS.register"})),
}
# beside the group of the kind's own name
_GROUPS = {"methods": ("interp.discovery",)}
KINDS = ("experiments", "models", "tasks", "metrics", "sites", "edits", "methods", "families", "recipes")


def listing(kind: str) -> list[Row]:
    """All rows of a kind, by name; an unknown kind raises UserError."""
    if kind not in KINDS:
        raise unknown("kind", kind, list(KINDS))
    special: dict[str, Callable[[], Iterator[Row]]] = {"sites": _sites, "families": _families, "models": _models}
    rows = {row.name: row for row in _entry_points(kind)}
    for row in special.get(kind, lambda: _decorated(kind))():
        rows.setdefault(row.name, row)
    # sites keep the order of the forward pass
    return list(rows.values()) if kind == "sites" else [rows[name] for name in sorted(rows)]


def source_of(module: str) -> Path | None:
    """The source file of a module, found without importing it or the packages above it."""
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if not rest:
        return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
    # by folders: import's own finders want the packages above a namespace package imported
    for folder in map(Path, spec.submodule_search_locations or ()):
        inside = folder.joinpath(*rest)
        for path in (inside.with_suffix(".py"), inside / "__init__.py"):
            if path.is_file():
                return path
    return None


def first_line(target: str) -> str:
    """First docstring line of `module:attribute` (of the module where the attribute is no function or class)."""
    module, _, attribute = target.partition(":")
    path = source_of(module)
    try:
        tree = ast.parse(path.read_text(encoding="utf-8")) if path else None
    except (OSError, SyntaxError, ValueError):
        tree = None
    if tree is None:
        return "(source not found)"
    for node in tree.body:
        if isinstance(node, _DEFINITIONS) and node.name == attribute:
            return _doc(node) or _doc(tree)
    return _doc(tree)


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _doc(node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> str:
    text = ast.get_docstring(node) or ""
    return text.partition("\n")[0].strip()


def _entry_points(kind: str) -> Iterator[Row]:
    for group in (f"interp.{kind}", *_GROUPS.get(kind, ())):
        for point in entry_points(group=group):
            yield Row(point.name, first_line(point.value), point.value)


def _decorated(kind: str) -> Iterator[Row]:
    """Functions and classes of our own files that a registering decorator names."""
    patterns, decorators = _SCANNED.get(kind, ((), frozenset()))
    for path in sorted(p for pattern in patterns for p in ROOT.glob(pattern)):
        module = ".".join(("interp", *path.relative_to(ROOT).with_suffix("").parts))
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, _DEFINITIONS):
                for decorator in node.decorator_list:
                    name = _registered(decorator, decorators, node.name)
                    if name:
                        yield Row(name, _doc(node), f"{module}:{node.name}")


def _registered(decorator: ast.expr, wanted: frozenset[str], default: str) -> str | None:
    call = decorator if isinstance(decorator, ast.Call) else None
    if ast.unparse(call.func if call else decorator) not in wanted:
        return None
    named = [k.value for k in call.keywords if k.arg == "name"] if call else []
    for value in [*(call.args[:1] if call else []), *named]:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value.value
    return default


def _sites() -> Iterator[Row]:
    from interp.hooks.sites import SITES

    rows = SITES._rows
    for name in [*rows, *(n for n in SITES.names() if n not in rows)]:
        if name in rows:
            site = rows[name]
            yield Row(name, f"[{' '.join(site.axes)}] {site.meaning}", "interp.hooks.sites")


def _families() -> Iterator[Row]:
    from interp.models.families import FAMILIES

    for name, family in FAMILIES._rows.items():
        yield Row(name, f"model types {', '.join(family.model_types)}", "interp.models.families")


def _models() -> Iterator[Row]:
    """Embedded models: folders of the zoo that hold weights."""
    for folder in sorted((ROOT / "models" / "zoo").glob("*")):
        if any(folder.glob("*.safetensors")):
            yield Row(folder.name, _card(folder), f"interp/models/zoo/{folder.name}")


def _card(folder: Path) -> str:
    """One line on an embedded model, from its card."""
    try:
        card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    about = next((card[k] for k in ("about", "description", "summary") if isinstance(card.get(k), str)), "")
    return about.partition("\n")[0]
