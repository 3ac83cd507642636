"""Families without a row, through TransformerLens' `TransformerBridge`: plain forward passes and hooks, no more.

The bridge wraps a module that `load_model` itself read from a folder; a user's module is never handed to it,
because it puts components of its own into the module and may rewrite its weights.

What does not come with it: sites, edits, means, gradients, partial execution. Names are the bridge's own hook
names (`blocks.0.attn.hook_z`), which differ in meaning from our sites; `hook_resid_mid`, where it exists, is the
second norm's input, so an edit there misses the skip path. Names that would never fire are refused. Logits are compared
with the checkpoint's own when it is loaded, and padded prompts with the same alone; padding that leaks is refused.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from interp.hooks.prompts import Prompts
from interp.hooks.values import Run
from interp.registry import UserError, unknown

HookFunction = Callable[[Tensor, Any], Tensor | None]

HookSpec = tuple[str, HookFunction] | tuple[str, HookFunction, Literal["forward", "backward"]]

LIMITS = (
    "loaded through TransformerLens' bridge: plain forward passes, captures and functions under the bridge's own "
    "hook names only; no sites, edits, means, gradients or circuits. A family row (interp.register_family) brings those"
)
TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}
"""Largest difference from the checkpoint's own logits, in their standard deviations."""

log = logging.getLogger(__name__)


def check_known(config: Any, where: str) -> str:
    """The architecture's name as TransformerLens knows it; UserError where it does not, before weights are read."""
    architecture = str((getattr(config, "architectures", None) or [""])[0])
    adapters = _adapters()
    if architecture not in adapters:
        raise UserError(
            f"{where}: model_type {config.model_type!r} has no family row, and TransformerLens' bridge does not know "
            f"its architecture ({architecture or 'config.json names none'}) either; add a row with "
            "interp.register_family"
        )
    return architecture


def _adapters() -> dict[str, Any]:
    from interp.models.hf_folder import quiet

    with quiet():
        from transformer_lens.factories.architecture_adapter_factory import ArchitectureAdapterFactory
    return dict(ArchitectureAdapterFactory._adapters)


class BridgeModel:
    """A checkpoint behind TransformerLens' bridge. `limits` says what it cannot do. Made by `load_model` only."""

    limits = LIMITS
    family = None

    def __init__(
        self, module: nn.Module, *, name: str, tokenizer: Any = None, revision: str = "", has_row: bool = False
    ) -> None:
        from interp.models.hf_folder import quiet

        with quiet():
            from transformer_lens.model_bridge.sources import build_bridge_from_module

            config: Any = module.config
            self.config = config
            # the bridge puts components of its own into the module: what it was is asked before
            self._weights_hash = _hash(module)
            probe = torch.arange(min(4, int(config.vocab_size)), device=next(module.parameters()).device)[None]
            with torch.no_grad():
                expected = module(probe).logits
            self.bridge: Any = build_bridge_from_module(
                module, type(module).__name__, hf_config=config, model_name=name
            ).eval()
            self._compare(probe, expected, name)
            self._leaks = {side for side in ("left", "right") if self._leak(probe, side)}
        self.name, self.tokenizer, self.revision = name, tokenizer, revision
        self._functions: list[tuple[str, HookFunction, str]] = []
        if not has_row:
            log.warning("model %s (%s) has no family row: %s", name, self.config.model_type, LIMITS)

    def _compare(self, probe: Tensor, expected: Tensor, name: str) -> None:
        """Refuse a bridge whose logits are not the checkpoint's own (some are broken); note which hooks fire."""
        fired: list[str] = []
        points = {n: p for n, p in self.bridge.hook_dict.items() if not self.bridge._gated_hook_reason(p.name or n)}
        try:
            with torch.no_grad(), self.bridge.hooks(fwd_hooks=[(n, _noting(n, fired)) for n in points]):
                found = self.bridge(probe, return_type="logits")
            off = float((found - expected).abs().max() / expected.std().clamp(min=1e-6))
        except Exception as error:
            raise UserError(
                f"{name}: TransformerLens' bridge cannot run {self.config.model_type!r} "
                f"({type(error).__name__}: {error}); add a family row with interp.register_family"
            ) from error
        if not off <= TOLERANCE[expected.dtype]:
            raise UserError(
                f"{name}: TransformerLens' bridge gives other logits than the checkpoint itself (off by {off:.1e} of "
                "their standard deviation); add a family row with interp.register_family"
            )
        self._names = sorted(set(fired))

    def _leak(self, probe: Tensor, side: str) -> bool:
        """Whether a short prompt has other logits beside a longer one, padded on this side, than alone."""
        short = probe[0, :2].tolist()
        both = Prompts.of([probe[0].tolist(), short], pad_side=side).to(probe.device)
        try:
            with torch.no_grad():
                alone = self.bridge(probe[:, :2], return_type="logits")[0]
                padded = self._logits(both)[1][both.mask[1]]
        except Exception:  # whatever it is, padded prompts do not run
            return True
        off = float((padded - alone).abs().max() / alone.std().clamp(min=1e-6))
        return not off <= TOLERANCE[alone.dtype]

    def _logits(self, prompts: Prompts) -> Tensor:
        options = {"attention_mask": prompts.mask.long()} if prompts.padded else {}
        logits: Tensor = self.bridge(prompts.tokens, return_type="logits", **options)
        return logits

    @property
    def device(self) -> torch.device:
        return self._some_weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self._some_weight.dtype

    @property
    def _some_weight(self) -> Tensor:
        weight: Tensor = next(self.bridge.original_model.parameters())
        return weight

    @property
    def geometry(self) -> Any:
        raise UserError(f"model {self.name} has no geometry: {LIMITS}")

    def hook_names(self) -> list[str]:
        """Names that `run(capture=…)` and `hooks` take, as the bridge spells them: those that fire."""
        return list(self._names)

    def weights_hash(self) -> str:
        """sha256 of the parameters and buffers that the checkpoint holds, taken before the bridge wrapped them."""
        return self._weights_hash

    def prompts(
        self, x: Prompts | Tensor | str | Sequence[str] | Sequence[Sequence[int]], mask: Tensor | None = None
    ) -> Prompts:
        """Prompts from prompts, token ids or text, on the model's device and checked against its vocabulary."""
        if isinstance(x, Prompts):
            if mask is not None:
                raise UserError("prompts carry their own mask; give mask= only with token ids")
            prompts = x
        elif isinstance(x, str) or (not isinstance(x, Tensor) and x and isinstance(x[0], str)):
            texts = [x] if isinstance(x, str) else [str(t) for t in x]
            if self.tokenizer is None:
                raise UserError(f"model {self.name} has no tokenizer: give token ids, or load it with tokenizer=…")
            rows = [list(self.tokenizer(t, add_special_tokens=False)["input_ids"]) for t in texts]
            prompts = Prompts.of(rows, text=texts)
        else:
            prompts = Prompts.of(x, mask)  # type: ignore[arg-type]
        for side, padded in (("left", ~prompts.mask[:, 0]), ("right", ~prompts.mask[:, -1])):
            if side in self._leaks and bool(padded.any()):
                raise UserError(
                    f"{self.config.model_type} through TransformerLens' bridge gives prompts padded on the {side} "
                    "other logits than alone; run prompts of one length together"
                )
        size, worst, least = int(self.config.vocab_size), int(prompts.tokens.max()), int(prompts.tokens.min())
        if least < 0 or worst >= size:
            bad = least if least < 0 else worst
            raise UserError(f"token id {bad} lies outside the vocabulary of {self.name} (0 to {size - 1})")
        return prompts.to(self.device)

    def run(
        self,
        x: Prompts | Tensor | str | Sequence[str] | Sequence[Sequence[int]],
        mask: Tensor | None = None,
        *,
        capture: Iterable[str] | str = (),
        edits: Iterable[Any] = (),
        grads: Iterable[str] = (),
    ) -> Run:
        """One plain forward pass; `run.acts` has the captured hook points under the bridge's names.

        Raises UserError for edits, gradients, and hook names that do not exist or would never fire.
        """
        if tuple(edits) or tuple(grads):  # type: ignore[arg-type]
            raise UserError(f"model {self.name} takes no edits or gradients: {LIMITS}")
        prompts = self.prompts(x, mask)
        wanted = [capture] if isinstance(capture, str) else list(capture)
        for name in wanted:
            self._known(name)
        acts: dict[str, Tensor] = {}

        def keeper(name: str) -> Callable[..., None]:
            def keep(tensor: Tensor, hook: Any) -> None:
                acts[name] = tensor.detach().clone()

            return keep

        # functions first: a capture sees what they made of the tensor
        forward = [(name, _called(fn)) for name, fn, direction in self._functions if direction == "forward"]
        forward += [(name, keeper(name)) for name in wanted]
        with torch.no_grad(), self.bridge.hooks(fwd_hooks=forward):
            logits = self._logits(prompts)
        silent = [name for name in wanted if name not in acts]
        if silent:
            raise UserError(f"hook {silent[0]!r} did not fire in a forward pass of {self.name}: nothing was captured")
        return Run(prompts, logits, acts)

    @contextmanager
    def hooks(self, *specs: HookSpec) -> Iterator[BridgeModel]:
        """Functions of your own, `(hook name, fn)` with `fn(x, hook) -> new x`, for every run inside."""
        new: list[tuple[str, HookFunction, str]] = []
        for spec in specs:
            name, fn, direction = spec if len(spec) == 3 else (*spec, "forward")
            if direction != "forward":
                raise UserError(f"a bridge model's hooks are forward only, got {direction!r}: {LIMITS}")
            self._known(name)
            new.append((name, fn, direction))
        before = list(self._functions)
        try:
            self._functions = [*before, *new]
            yield self
        finally:
            self._functions = before

    def _known(self, name: str) -> None:
        names = self.hook_names()
        if name not in names:
            raise unknown(f"hook of {self.name}", name, names)

    def to_text(self, tokens: Tensor | Sequence[int]) -> list[str]:
        """Each token as text; its number where there is no tokenizer."""
        ids = torch.as_tensor(tokens).flatten().tolist()
        return [str(i) if self.tokenizer is None else self.tokenizer.decode([i]) for i in ids]

    def __repr__(self) -> str:
        return f"BridgeModel({self.name!r}, {self.config.model_type}, plain forward and hooks only)"


def _called(fn: HookFunction) -> Callable[..., Tensor | None]:
    """The bridge passes its hook point by keyword; ours is positional, and gets a copy."""

    def call(tensor: Tensor, hook: Any) -> Tensor | None:
        return fn(tensor.clone(), hook)

    return call


def _noting(name: str, fired: list[str]) -> Callable[..., None]:
    def note(tensor: Any, hook: Any) -> None:
        fired.append(name)

    return note


def _hash(module: nn.Module) -> str:
    h = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        h.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        h.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return h.hexdigest()
