"""Safe YAML that remembers on which line each value stands, and refuses a key given twice.

Positions are keyed by path, such as `("cells", 0, "grid", "seed")`; the line of the nearest known path is
what an error message names. Only plain YAML values are made, as by `yaml.safe_load`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from interp.registry import UserError

Place = tuple[str | int, ...]
MOST_PARTS = 1_000_000

# the loader in C reads a file of thousands of lines in a tenth of the time
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Located:
    """The value of a YAML file, and the line of each part of it."""

    path: Path
    value: Any
    lines: Mapping[Place, int]

    def line(self, place: Sequence[str | int]) -> int:
        """The line of a part, or of the nearest part around it."""
        found = tuple(place)
        while found and found not in self.lines:
            found = found[:-1]
        return self.lines.get(found, 1)

    def error(self, place: Sequence[str | int], message: str) -> UserError:
        """`FILE, line N: message`."""
        return UserError(f"{self.path}, line {self.line(place)}: {message}")


def read_yaml(path: Path) -> Located:
    """Read a YAML file; a file that is absent, no YAML, or with a key given twice raises UserError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise UserError(f"sweep file {path}: {getattr(e, 'strerror', None) or e}") from None
    loader = _Loader(text)
    lines: dict[Place, int] = {}
    try:
        node = loader.get_single_node()
        if node is None:
            raise UserError(f"{path}, line 1: the file is empty")
        if _parts(node, {}) > MOST_PARTS:  # aliases of aliases make a gigabyte of a few lines
            raise UserError(f"{path} holds more than {MOST_PARTS} values")
        _locate(node, (), lines, path)
        value = loader.construct_document(node)
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        raise UserError(f"{path}, line {mark.line + 1 if mark else 1}: {e.problem or e.context}") from None
    except UserError:
        raise
    except (yaml.YAMLError, ValueError, AttributeError, LookupError, RecursionError) as e:
        # of the values' own makers: a date that is none, `!!timestamp` before a word, brackets without end
        raise UserError(f"{path} is no YAML that can be read: {e}") from None
    finally:
        loader.dispose()
    return Located(path, value, lines)


def _parts(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values this is, each alias counted out; too many where a node holds itself."""
    if id(node) not in known:
        known[id(node)] = MOST_PARTS + 1  # until it is counted: whoever meets it again is inside it
        children: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            children = node.value
        elif isinstance(node, yaml.MappingNode):
            children = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_parts(child, known) for child in children)
    return known[id(node)]


def _locate(node: yaml.Node, place: Place, lines: dict[Place, int], path: Path) -> None:
    lines[place] = node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        for i, child in enumerate(node.value):
            _locate(child, (*place, i), lines, path)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, child in node.value:
            name = str(key.value)
            if name in seen and name != "<<":
                raise UserError(f"{path}, line {key.start_mark.line + 1}: key {name!r} is given twice")
            seen.add(name)
            _locate(child, (*place, name), lines, path)
            lines[(*place, name)] = key.start_mark.line + 1
