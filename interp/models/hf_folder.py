"""Hugging Face checkpoints from a local folder, quietly, without network and without code of their own.

Weights are checked twice: their files before (see `folder`), and what transformers reports after. Attention is
eager, so that `plain_module=True` is bit-identical to the forward function.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from interp.models.folder import Folder, read_json, refuse_code, report_weights
from interp.models.hub import without_bars
from interp.registry import UserError

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model",
)  # fmt: skip


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' warnings and progress bars to itself; both are as before afterwards."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    with without_bars():
        try:
            logging.set_verbosity_error()
            logging.disable_progress_bar()
            yield
        finally:
            logging.set_verbosity(level)
            if bars:
                logging.enable_progress_bar()


def read_config(folder: Folder) -> Any:
    """The Hugging Face configuration of a folder; UserError where transformers does not know its type."""
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type = folder.config["model_type"]
    if model_type not in CONFIG_MAPPING:
        import transformers

        raise UserError(
            f"{folder.path / 'config.json'} is of model_type {model_type!r}, which transformers "
            f"{transformers.__version__} does not know; its own code, if it has any, is never run"
        )
    try:
        with quiet():
            return AutoConfig.from_pretrained(folder.path, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise _failed(folder, "config.json", error) from error


def load_hf(folder: Folder, config: Any, dtype: torch.dtype | None, device_map: Any) -> nn.Module:
    """The checkpoint's causal language model, weights complete; UserError where they do not fit the configuration."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    architecture = str((getattr(config, "architectures", None) or [""])[0])
    loader = AutoModelForMaskedLM if architecture.endswith("ForMaskedLM") else AutoModelForCausalLM
    options: dict[str, Any] = {
        "config": config, "dtype": dtype or "auto", "attn_implementation": "eager", "local_files_only": True,
        "trust_remote_code": False, "output_loading_info": True, "ignore_mismatched_sizes": True,
    }  # fmt: skip
    if device_map is not None:
        options["device_map"] = device_map
    try:
        # weights that turn out missing are drawn at random before they are reported: not from the caller's generator
        with quiet(), torch.random.fork_rng(devices=[]):
            if folder.standard:
                module, info = loader.from_pretrained(folder.path, use_safetensors=True, **options)
            else:
                from safetensors.torch import load_file

                state = {name: t for file in folder.files for name, t in load_file(file).items()}
                kind: Any = loader._model_mapping[type(config)]  # the Auto class itself wants a folder
                module, info = kind.from_pretrained(None, state_dict=state, **options)
    except Exception as error:
        raise _failed(folder, "the checkpoint", error) from error
    report_weights(
        str(folder.path),
        sorted(info["missing_keys"]),
        sorted(info["unexpected_keys"]),
        [_mismatch(row) for row in sorted(info["mismatched_keys"], key=str)],
    )
    if info["error_msgs"]:
        raise UserError(f"{folder.path}: transformers could not read the weights: {_line(info['error_msgs'][0])}")
    loaded: nn.Module = module
    if module.dtype == torch.float64 and module._can_set_experts_implementation():
        module.set_experts_implementation("eager")  # torch's grouped product knows no float64
    return loaded


def load_tokenizer(path: Path) -> Any:
    """The tokenizer of a folder, or None where it has none."""
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        return None
    if (path / "tokenizer_config.json").is_file():
        refuse_code(path, "tokenizer_config.json", read_json(path, "tokenizer_config.json"))
    from transformers import AutoTokenizer

    try:
        with quiet():
            return AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise UserError(
            f"{path}: its tokenizer could not be loaded ({type(error).__name__}: {_line(error)}); "
            "tokenizer=False loads the model without one"
        ) from error


def _mismatch(row: Any) -> str:
    if isinstance(row, tuple) and len(row) == 3:
        return f"{row[0]} is {list(row[1])} where the configuration needs {list(row[2])}"
    return str(row)


def _failed(folder: Folder, what: str, error: Exception) -> UserError:
    return UserError(f"{folder.path}: transformers could not load {what}: {type(error).__name__}: {_line(error)}")


def _line(error: object) -> str:
    """The first line of a message, so that ours stays one line."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
