"""A family row bound to a checkpoint: every leaf module that the forward function calls, found once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from interp.hooks.values import Geometry
from interp.models.families import Family
from interp.models.norms import NO_NORM, Norm
from interp.registry import UserError


@dataclass(frozen=True, eq=False)
class LayerParts:
    """The leaf modules and constants of one block."""

    attn: nn.Module
    qkv: tuple[nn.Module, ...]
    out: nn.Module
    ln1: Norm
    ln2: Norm
    post1: Norm
    post2: Norm
    q_norm: nn.Module | None
    k_norm: nn.Module | None
    mlp_in: nn.Module | None
    mlp_up: nn.Module | None
    act: Callable[[Any], Any] | None
    mlp_out: nn.Module | None
    scale: float
    cap: float | None
    window: int | None
    device: torch.device


@dataclass(frozen=True, eq=False)
class Net:
    """A whole model as the forward function sees it."""

    family: Family
    geometry: Geometry
    module: nn.Module
    embed: nn.Module
    pos_embed: nn.Module | None
    rotary: nn.Module | None
    layers: tuple[LayerParts, ...]
    final: Norm
    unembed: nn.Module | None
    logit_cap: float | None

    def called(self) -> Iterator[Any]:
        """Every module that a forward pass calls."""
        for part in (self.embed, self.pos_embed, self.rotary, self.final.module, self.unembed):
            if part is not None:
                yield part
        for layer in self.layers:
            norms = (n.module for n in (layer.ln1, layer.ln2, layer.post1, layer.post2))
            rest = (layer.q_norm, layer.k_norm, layer.mlp_in, layer.mlp_up, layer.act, layer.mlp_out, layer.out)
            # packed parameters are read, their module is not called
            qkv = () if self.family.packing == "in_proj" else layer.qkv
            yield from (part for part in (*qkv, *norms, *rest) if part is not None)

    @property
    def reads_tokens(self) -> bool:
        """Whether the embedding maps tokens; a wrapped stack of layers takes vectors."""
        return bool(getattr(self.embed, "reads_tokens", True))

    @property
    def device(self) -> torch.device:
        """Where tokens enter."""
        return next(self.embed.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.embed.parameters()).dtype


def find(root: nn.Module, path: str | None) -> Any:
    """The module at a dotted path, or None where there is none; the root itself at an empty path."""
    if path is None:
        return None
    here: Any = root
    if not path:
        return here
    for name in path.split("."):
        here = getattr(here, name, None)
        if here is None:
            return None
    return here


def need(root: nn.Module, path: str, family: Family) -> Any:
    """The module at a dotted path; UserError where the checkpoint has none."""
    found = find(root, path)
    if found is None:
        raise UserError(f"family {family.name}: {type(root).__name__} has no module {path!r}; the row does not fit")
    return found


def bind(module: nn.Module, family: Family, config: Any) -> Net:
    """Find every part of a checkpoint that its family row names."""
    geometry = Geometry(**family.geometry(config))
    blocks = need(module, family.layers, family)
    if len(blocks) != geometry.layers:
        raise UserError(f"family {family.name}: the configuration names {geometry.layers} layers, found {len(blocks)}")
    rotary = find(module, family.rotary)
    pos_embed = find(module, family.pos_embed)
    final = find(module, family.final)
    return Net(
        family=family,
        geometry=geometry,
        module=module,
        embed=need(module, family.embed, family),
        pos_embed=pos_embed,
        rotary=rotary,
        layers=tuple(_layer(block, family, config, geometry, i) for i, block in enumerate(blocks)),
        final=Norm(final, family.norm_gain_offset) if final is not None else NO_NORM,
        unembed=find(module, family.unembed),
        logit_cap=family.logit_cap(config),
    )


def _layer(block: nn.Module, family: Family, config: Any, geometry: Geometry, layer: int) -> LayerParts:
    def norm(path: str | None) -> Norm:
        found = find(block, path)
        return NO_NORM if found is None else Norm(found, family.norm_gain_offset)

    out = need(block, family.out, family)
    mlp = geometry.mlp
    return LayerParts(
        attn=need(block, family.attn, family),
        qkv=tuple(need(block, path, family) for path in family.qkv),
        out=out,
        ln1=norm(family.ln1),
        ln2=norm(family.ln2) if mlp else NO_NORM,
        post1=norm(family.post1),
        post2=norm(family.post2) if mlp else NO_NORM,
        q_norm=find(block, family.q_norm),
        k_norm=find(block, family.k_norm),
        mlp_in=need(block, family.mlp_in, family) if mlp and family.mlp_in else None,
        mlp_up=find(block, family.mlp_up) if mlp else None,
        act=(family.act if callable(family.act) else find(block, family.act)) if mlp else None,
        mlp_out=need(block, family.mlp_out, family) if mlp and family.mlp_out else None,
        scale=family.scale(config, layer, geometry.d_head),
        cap=family.attn_cap(config),
        window=family.window(config, layer),
        device=next(out.parameters()).device,
    )


def packed(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight `[q | k | v, d_model]` and bias of an `nn.MultiheadAttention`."""
    return module.in_proj_weight, module.in_proj_bias  # type: ignore[return-value]


def matrix(module: nn.Module) -> Tensor:
    """A projection's weight as `[in, out]`, whatever way its module stores it."""
    weight = module.weight
    if not isinstance(weight, Tensor):
        raise UserError(f"{type(module).__name__} has no weight matrix")
    return weight if type(module).__name__ == "Conv1D" else weight.T
