"""A model folder as it lies on disk: its config.json and its safetensors files, checked before anything is built.

    1  config.json parses and asks for no code of its own (`auto_map`)
    2  it is of a known kind: native, a TransformerLens-like weight dictionary, or Hugging Face's
    3  the weight files are named, are safetensors, and are whole: header and length agree

Only headers are read here, and no torch is imported. Limits: pickled checkpoints (pytorch_model.bin, *.pt) are
refused whatever they hold, and a folder's own Python is never run.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from interp.registry import UserError, unknown

Kind = Literal["native", "lens", "hf"]

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.msgpack", "*.h5")
INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"
LONGEST_HEADER = 100_000_000


@dataclass(frozen=True)
class Stored:
    """One tensor of a safetensors file, as its header describes it."""

    shape: tuple[int, ...]
    dtype: str
    file: Path


@dataclass(frozen=True)
class Folder:
    """A checked model folder."""

    path: Path
    kind: Kind
    config: dict[str, Any]
    files: tuple[Path, ...]
    tensors: dict[str, Stored]
    standard: bool
    """Whether the weights lie where Hugging Face looks for them."""

    @property
    def name(self) -> str:
        """The folder's name, with the weight file's where the folder holds several and one was chosen."""
        several = not self.standard and len(list(self.path.glob("*.safetensors"))) > 1
        return f"{self.path.name}-{self.files[0].stem}" if several else self.path.name


def read_folder(path: Path, weights: str | None = None) -> Folder:
    """Check a folder and describe it. `weights` names one of its safetensors files.

    Raises UserError with one line for a folder that cannot be loaded, saying what is wrong with which file.
    """
    config = read_json(path, "config.json")
    kind = kind_of(path, config)
    refuse_code(path, "config.json", config)
    files, standard = weight_files(path, weights)
    tensors: dict[str, Stored] = {}
    for file in files:
        for name, stored in read_header(file).items():
            if name in tensors:
                raise UserError(f"{path}: tensor {name!r} is in both {tensors[name].file.name} and {file.name}")
            tensors[name] = stored
    return Folder(path, kind, config, files, tensors, standard)


def read_json(path: Path, name: str) -> dict[str, Any]:
    """A JSON object from a file of a folder."""
    file = path / name
    if not file.is_file():
        held = sorted(p.name for p in path.iterdir())
        raise UserError(f"{path} is not a model folder: it has no {name}; it holds {_few(held) or 'nothing'}")
    try:
        read = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(f"{file} does not parse as JSON: {error}") from None
    if not isinstance(read, dict):
        raise UserError(f"{file} must hold a JSON object, got {type(read).__name__}")
    return read


def kind_of(path: Path, config: dict[str, Any]) -> Kind:
    """Which kind of model a configuration describes."""
    if config.get("model_type") == "native":
        return "native"
    if "model_type" in config:
        return "hf"
    if {"n_layers", "d_model"} <= set(config):
        return "lens"
    raise UserError(
        f"{path / 'config.json'} describes no model: expected model_type (Hugging Face's, or 'native'), or n_layers "
        f"and d_model (a TransformerLens-like dictionary); it has {_few(sorted(config)) or 'no keys'}"
    )


def refuse_code(path: Path, name: str, config: dict[str, Any]) -> None:
    """Raise where a configuration asks for Python of its own."""
    if config.get("auto_map"):
        raise UserError(
            f"{path / name} asks for code of its own (auto_map), which is never run; where transformers has the "
            "architecture itself, remove that entry, or load the module yourself and pass it in place of the name"
        )


def weight_files(path: Path, weights: str | None) -> tuple[tuple[Path, ...], bool]:
    """The safetensors files to read, and whether they lie under Hugging Face's standard names."""
    there = sorted(p.name for p in path.glob("*.safetensors"))
    if weights is not None:
        if weights not in there:
            raise unknown(f"weight file of {path}", weights, there)
        return (path / weights,), weights == WHOLE
    if (path / WHOLE).is_file():
        return (path / WHOLE,), True
    if (path / INDEX).is_file():
        return _shards(path), True
    if len(there) == 1:
        return (path / there[0],), False
    if there:
        raise UserError(
            f"{path} holds {len(there)} weight files; choose one with weights=… or FOLDER/FILE: {_few(there)}"
        )
    pickles = sorted(p.name for pattern in PICKLES for p in path.glob(pattern))
    if pickles:
        raise UserError(
            f"{path} has no safetensors, only {_few(pickles)}: pickled and other formats are not opened; "
            "save the model again as safetensors (save_pretrained does)"
        )
    raise UserError(f"{path} has a config.json but no *.safetensors weights")


def _shards(path: Path) -> tuple[Path, ...]:
    where = read_json(path, INDEX).get("weight_map")
    if not isinstance(where, dict) or not where:
        raise UserError(f"{path / INDEX} has no weight_map")
    names = sorted({str(n) for n in where.values()})
    lost = [n for n in names if Path(n).name != n or not (path / n).is_file()]
    if lost:
        raise UserError(f"{path}: {INDEX} names shards that are not there: {_few(lost)}")
    return tuple(path / n for n in names)


def read_header(file: Path) -> dict[str, Stored]:
    """Names, shapes and dtypes in a safetensors file; UserError where the file is not whole."""
    size = file.stat().st_size
    with file.open("rb") as f:
        start = f.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < length <= min(LONGEST_HEADER, size - 8):
            raise UserError(f"{file} is not a safetensors file, or is cut off in its header ({size} bytes)")
        raw = f.read(length)
    try:
        header: dict[str, Any] = json.loads(raw)
        header.pop("__metadata__", None)
        end = max((int(row["data_offsets"][1]) for row in header.values()), default=0)
        found = {n: Stored(tuple(int(d) for d in row["shape"]), str(row["dtype"]), file) for n, row in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise UserError(f"{file} has a header that is not safetensors': {type(error).__name__}: {error}") from None
    if 8 + length + end != size:
        raise UserError(f"{file} is not whole: its header tells of {8 + length + end} bytes, the file has {size}")
    return found


def _few(names: list[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def check_tensors(
    where: str,
    found: dict[str, tuple[int, ...]],
    expected: dict[str, tuple[int, ...]],
    optional: frozenset[str] = frozenset(),
) -> None:
    """Raise UserError, in one line, for weights that are missing, unexpected or of another shape."""
    missing = sorted(set(expected) - set(found) - optional)
    extra = sorted(set(found) - set(expected))
    wrong = [
        f"{n} is {list(found[n])} where the configuration needs {list(expected[n])}"
        for n in sorted(set(found) & set(expected))
        if found[n] != expected[n]
    ]
    report_weights(where, missing, extra, wrong)


def report_weights(where: str, missing: list[str], extra: list[str], wrong: list[str]) -> None:
    """The one error for weights that do not fit their configuration; nothing where all lists are empty."""
    said = []
    if missing:
        said.append(f"missing {len(missing)} ({_few(missing)})")
    if extra:
        said.append(f"unexpected {len(extra)} ({_few(extra)})")
    if wrong:
        said.append(f"of another shape {len(wrong)} ({'; '.join(wrong[:3])})")
    if said:
        raise UserError(f"{where}: the weights do not fit config.json: {', '.join(said)}")
