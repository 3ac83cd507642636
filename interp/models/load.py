"""`load_model`: a name, a folder or a Hugging Face module to a Model.

A name is looked up in this order: the embedded models (`zoo`), a local folder (or one safetensors file in it),
the hub through huggingface_hub's cache. The first two make no network call. Weights are safetensors, code of a
checkpoint's own is never run, and every fault of a folder is one UserError.

Families without a row load through TransformerLens' bridge, by name or folder only (see `bridge`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from interp.models.families import FAMILIES, family_of
from interp.models.finding import find
from interp.models.folder import Folder, read_folder
from interp.models.model import Model
from interp.registry import UserError, unknown

if TYPE_CHECKING:
    from interp.models.bridge import BridgeModel

DTYPES = {
    "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64,
}  # fmt: skip


def load_model(
    name: str | Path | nn.Module,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    device_map: Any = None,
    weights: str | None = None,
    tokenizer: Any = None,
    bridge: bool = False,
) -> Model | BridgeModel:
    """Load a model, in eval mode, with `requires_grad` off.

    Args:
        name: an embedded name (`interp list models`), a local folder, one safetensors file in a folder, a hub
            name, or a Hugging Face module, which is taken exactly as it is and never altered.
        device: where to put it; the CPU by default.
        dtype: "float32", "bfloat16", "float16" or "float64"; by default the one it is stored in.
        revision: branch, tag or commit of a hub name.
        device_map: passed on to transformers' `from_pretrained`, to spread one model over several devices.
        weights: which safetensors file of the folder, where it holds several.
        tokenizer: a tokenizer object or a folder to take one from; False for none. By default the folder's own,
            if it has one: token ids work without.
        bridge: load through TransformerLens' bridge even where the family has a row (a second, independent
            forward pass to compare with).

    Raises UserError, before anything runs, for a name that is nowhere (saying what was tried and what exists), a
    family without a row given as a module, and any folder that is not whole.

    >>> model = load_model("toy-ioi")
    >>> model.run([[1, 2, 3]]).logits.shape[:2]
    torch.Size([1, 3])
    """
    if not isinstance(name, str | Path):
        given = {"device": device, "dtype": dtype, "revision": revision, "device_map": device_map, "weights": weights}
        return _wrap(name, tokenizer, [k for k, v in given.items() if v is not None], bridge)
    if device is not None and device_map is not None:
        raise UserError("give device= or device_map=, not both")
    to, form = _device(device), _dtype(dtype)
    found = find(str(name), revision, weights)
    folder = read_folder(found.path, found.weights)
    words = _tokenizer(tokenizer, found.path)
    called = found.name if found.named else folder.name
    if folder.kind != "hf":
        if bridge or device_map is not None:
            raise UserError(f"{found.name}: native models know neither bridge=True nor device_map=")
        from interp.models.native_folder import load_native

        native = load_native(folder)
        ready = _ready(native, folder, to, form)
        return Model(ready, FAMILIES["native"], native.config, name=called, tokenizer=words, revision=found.revision)
    from interp.models.hf_folder import load_hf, read_config

    config = read_config(folder)
    family = family_of(config.model_type)
    if family is None or bridge:
        from interp.models.bridge import BridgeModel, check_known

        check_known(config, str(folder.path))
    module = load_hf(folder, config, form, device_map)
    module = _ready(module, folder, None if device_map is not None else to, None)
    if family is None or bridge:
        return BridgeModel(module, name=called, tokenizer=words, revision=found.revision, has_row=family is not None)
    return Model(module, family, module.config, name=called, tokenizer=words, revision=found.revision)


def _device(device: str | torch.device | None) -> torch.device:
    try:
        wanted = torch.device(device or "cpu")
        torch.empty(0, device=wanted)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        said = str(error).splitlines()[0]
        raise UserError(f"device {str(device)!r} cannot be used here: {said}") from None
    return wanted


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if dtype is None or dtype in DTYPES.values():
        return dtype  # type: ignore[return-value]
    if dtype not in DTYPES:
        raise unknown("dtype", str(dtype), list(DTYPES))
    return DTYPES[dtype]  # type: ignore[index]


def _tokenizer(tokenizer: Any, path: Path) -> Any:
    """The tokenizer asked for: the folder's own by default, None for False."""
    if tokenizer is False:
        return None
    if tokenizer is not None and not isinstance(tokenizer, str | Path):
        return tokenizer
    from interp.models.hf_folder import load_tokenizer

    if tokenizer is None:
        return load_tokenizer(path)
    given = find(str(tokenizer)).path
    words = load_tokenizer(given)
    if words is None:
        raise UserError(f"tokenizer={str(tokenizer)!r}: {given} holds no tokenizer")
    return words


def _ready(module: nn.Module, folder: Folder, device: torch.device | None, dtype: torch.dtype | None) -> nn.Module:
    """Eval mode, no gradients to weights, device and dtype as asked; UserError where a weight is not finite."""
    module.eval().requires_grad_(False)
    bad = [name for name, p in module.named_parameters() if not bool(torch.isfinite(p).all())]
    if bad:
        raise UserError(f"{folder.path}: {len(bad)} weights hold NaN or infinity: {', '.join(bad[:3])}")
    if device is not None or dtype is not None:
        module.to(device=device, dtype=dtype)
    return module


def _wrap(module: Any, tokenizer: Any, given: list[str], bridge: bool) -> Model:
    """A user's own module, as it is."""
    config = getattr(module, "config", None)
    model_type = getattr(config, "model_type", None)
    if not isinstance(module, nn.Module) or model_type is None:
        raise UserError(
            f"load_model takes a name, a folder or a Hugging Face module with a config; got {type(module).__name__}"
        )
    if given or bridge:
        raise UserError(f"a module is taken as it is: leave out {', '.join(given or ['bridge'])}")
    family = family_of(model_type)
    if family is None:
        raise UserError(
            f"no family row for model_type {model_type!r} (there are: {', '.join(FAMILIES)}); add one with "
            "interp.register_family, or give the model's name or folder: those load through TransformerLens' bridge, "
            "which a module of yours is never handed to"
        )
    name = Path(str(getattr(config, "name_or_path", "") or type(module).__name__)).name
    words = None if tokenizer is False else _tokenizer(tokenizer, Path()) if tokenizer is not None else None
    return Model(module, family, config, name=name, tokenizer=words)
