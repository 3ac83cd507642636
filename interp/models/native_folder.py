"""Native models on disk: config.json (`NativeConfig`) and model.safetensors; and dictionaries read as native."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import Tensor

from interp.models import lens_weights
from interp.models.folder import WHOLE, Folder, check_tensors
from interp.models.native import Native, NativeConfig
from interp.registry import UserError


def save_native(module: Native, path: Path) -> None:
    """Write a folder that `load_model` reads."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(module.config.model_dump(), indent=2) + "\n")
    save_file({name: t.detach().cpu().contiguous() for name, t in module.state_dict().items()}, path / WHOLE)


def load_native(folder: Folder) -> Native:
    """The native model of a checked folder of kind `native` or `lens`, on the CPU, in the dtype it is stored in.

    Raises UserError where names or shapes of the weights do not fit the configuration; nothing is read before.
    """
    where = str(folder.path)
    found = {name: stored.shape for name, stored in folder.tensors.items()}
    if folder.kind == "lens":
        config = lens_weights.native_config(where, folder.config, set(found))
        lens_weights.check(where, config, folder.config, found)
        return _filled(config, lens_weights.native_state(config, _read(folder)))
    try:
        config = NativeConfig.model_validate(folder.config)
    except ValidationError as error:
        said = lens_weights.complaints(error)
        raise UserError(f"{folder.path / 'config.json'} is not a native configuration: {said}") from None
    expected = {name: tuple(t.shape) for name, t in _empty(config).state_dict().items()}
    check_tensors(where, found, expected)
    return _filled(config, _read(folder))


def _read(folder: Folder) -> dict[str, Tensor]:
    return {name: tensor for file in folder.files for name, tensor in load_file(file).items()}


def _empty(config: NativeConfig) -> Native:
    # on the meta device nothing is drawn, so that loading leaves torch's generator alone
    with torch.device("meta"):
        return Native(config)


def _filled(config: NativeConfig, state: dict[str, Tensor]) -> Native:
    module = _empty(config)
    module.load_state_dict(state, assign=True)
    return module
