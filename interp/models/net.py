"""A family row bound to a checkpoint: every leaf module that the forward function calls, found once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from interp.hooks.geometry import Geometry
from interp.models.experts import Routed
from interp.models.family import Family, rotary_width
from interp.models.norms import NO_NORM, Norm
from interp.models.parts import Chain, NormByHead, Part, Positions, matrix, packed, scaled
from interp.registry import UserError

__all__ = ["LayerParts", "Net", "bind", "find", "matrix", "need", "packed"]


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
    gate_up: nn.Module | None
    """The one map whose halves `mlp_in` and `mlp_up` are, where they are fused."""
    routed: Routed | None
    act: Callable[[Any], Any] | None
    mlp_out: nn.Module | None
    scale: float
    cap: float | None
    window: int | None
    rotary_kind: str | None
    device: torch.device

    @property
    def one_norm(self) -> bool:
        """Whether attention and MLP read through one norm."""
        return bool(self.ln1) and self.ln1.module is self.ln2.module


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
    scores_fp32: bool
    """Scores and softmax in float32 whatever the model's dtype."""
    scale_in_product: bool
    """The product of queries and keys is asked for the scores' multiplier."""
    loose: bool = False
    """Whether kernels that round another way may be used (`loose.py`); only packed replay says so."""

    @cached_property
    def called(self) -> tuple[Any, ...]:
        """Every module that a forward pass calls, with what those are made of."""
        return tuple(self._called())

    def _called(self) -> Iterator[Any]:
        parts: list[Any] = [self.embed, self.pos_embed, self.rotary, self.final.module, self.unembed]
        for layer in self.layers:
            parts += [n.module for n in (layer.ln1, layer.ln2, layer.post1, layer.post2)]
            parts += [layer.q_norm, layer.k_norm, layer.mlp_in, layer.mlp_up, layer.act, layer.mlp_out, layer.out]
            parts += [] if layer.routed is None else layer.routed.parts()
            # packed parameters are read, their module is not called
            parts += [] if self.family.packing == "in_proj" else layer.qkv
        for part in parts:
            if isinstance(part, nn.Module) and part._modules:
                yield from part.modules()
            elif part is not None:
                yield part

    def refuse_stray_hooks(self, root: nn.Module) -> None:
        """UserError where a module of `root` carries a hook that a run passes by, for it calls leaf modules only."""
        carrying = [module for module in modules_of(root) if _carries_hook(module)]
        called = {id(m) for m in self.called} if carrying else set()
        for module in carrying:
            if id(module) not in called:
                name = next(name for name, one in root.named_modules() if one is module)
                raise UserError(
                    f"module {name or type(module).__name__!r} carries a hook but is not called by a run: only leaf "
                    "modules are. Put your function on a site (model.hooks), or use plain_module=True"
                )

    @property
    def reads_tokens(self) -> bool:
        """Whether the embedding maps tokens; a wrapped stack of layers takes vectors."""
        return bool(getattr(self.embed, "reads_tokens", True))

    @cached_property
    def device(self) -> torch.device:
        """Where tokens enter."""
        return next(self.embed.parameters()).device

    @cached_property
    def dtype(self) -> torch.dtype:
        return next(self.embed.parameters()).dtype


def modules_of(root: nn.Module) -> list[nn.Module]:
    """Every module once, as `root.modules()` has them but in no order of depth, in less than half its time."""
    found, seen = [root], {id(root)}
    for module in found:
        for inner in module._modules.values():
            if inner is not None and id(inner) not in seen:
                seen.add(id(inner))
                found.append(inner)
    return found


def _carries_hook(module: nn.Module) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks)


def find(root: nn.Module, path: str | None) -> Any:
    """The module at a dotted path, or None where there is none; the root itself at an empty path.

    Of several paths, `a|b`, the first that leads somewhere.
    """
    if path is None:
        return None
    for one in path.split("|"):
        here: Any = root
        for name in one.split(".") if one else ():
            known = getattr(here, "_modules", {})  # a module's own way there asks for parameters and buffers first
            here = known[name] if name in known else getattr(here, name, None)
            if here is None:
                break
        if here is not None:
            return here
    return None


def need(root: nn.Module, path: str, family: Family) -> Any:
    """The module at a dotted path; UserError where the checkpoint has none."""
    found = find(root, path)
    if found is None:
        raise UserError(f"family {family.name}: {type(root).__name__} has no module {path!r}; the row does not fit")
    return found


def _chain(root: nn.Module, path: str | tuple[str, ...]) -> Any:
    """The module at a path; of several paths, those that the checkpoint has as one chain."""
    each = [found for one in ([path] if isinstance(path, str) else path) if (found := find(root, one)) is not None]
    return each[0] if len(each) == 1 else Chain(*each) if each else None


def bind(module: nn.Module, family: Family, config: Any) -> Net:
    """Find every part of a checkpoint that its family row names; UserError where the row does not cover it."""
    why = family.refuse(config)
    if why is not None:
        raise UserError(f"family {family.name} does not run this checkpoint: {why}")
    geometry = Geometry(**family.geometry(config))
    turned = rotary_width(config, geometry.d_head) if geometry.rotary else 0
    if turned % 2:
        raise UserError(
            f"family {family.name} does not run this checkpoint: {turned} of a head's {geometry.d_head} coordinates "
            "are turned by position, and they turn in pairs"
        )
    blocks = need(module, family.layers, family)
    if len(blocks) != geometry.layers:
        raise UserError(f"family {family.name}: the configuration names {geometry.layers} layers, found {len(blocks)}")
    pos_embed = find(module, family.pos_embed)
    if pos_embed is not None and family.pos_keyword is not None:
        pos_embed = Positions(pos_embed, family.pos_keyword, family.position_offset)
    final, unembed = find(module, family.final), _chain(module, family.unembed)
    need(module, first_of(family.embed), family)
    return Net(
        family=family,
        geometry=geometry,
        module=module,
        embed=scaled(_chain(module, family.embed), family.embed_times(config)),
        pos_embed=pos_embed,
        rotary=find(module, family.rotary),
        layers=tuple(_layer(block, family, config, geometry, i) for i, block in enumerate(blocks)),
        final=Norm(final, family.norm_gain_offset) if final is not None else NO_NORM,
        unembed=None if unembed is None else scaled(unembed, family.logits_times(config), family.logits_over(config)),
        logit_cap=family.logit_cap(config),
        scores_fp32=family.scores_fp32(config),
        scale_in_product=family.scale_in_product(config),
    )


def first_of(path: str | tuple[str, ...]) -> str:
    """The first of the modules that a row chains."""
    return path if isinstance(path, str) else path[0]


def _layer(block: nn.Module, family: Family, config: Any, geometry: Geometry, layer: int) -> LayerParts:
    g = geometry

    def norm(path: str | None, there: bool) -> Norm:
        found = find(block, path) if there else None
        return NO_NORM if found is None else Norm(found, family.norm_gain_offset)

    def head_norm(path: str | None) -> Any:
        found = find(block, path) if g.qk_norm else None
        return NormByHead(found) if found is not None and family.norm_heads == "listed" else found

    times = family.out_times(config)
    out = need(block, family.out, family)
    plain = g.mlp and not g.experts
    gate_up = need(block, family.gate_up, family) if plain and family.gate_up else None
    mlp_in = need(block, family.mlp_in, family) if plain and family.mlp_in else None
    mlp_out = need(block, family.mlp_out, family) if plain and family.mlp_out else None
    qkv = tuple(need(block, path, family) for path in family.qkv)
    window = family.window(config, layer)
    if window is not None and window < 1:
        raise UserError(f"family {family.name} does not run this checkpoint: in a window of {window} nothing is read")
    fits(family, geometry, qkv, out, None if gate_up is not None else mlp_in)
    return LayerParts(
        attn=need(block, family.attn, family),
        qkv=qkv,
        out=scaled(out, times),
        ln1=norm(family.ln1, g.pre_norm),
        ln2=norm(family.ln2, g.pre_norm and g.mlp),
        post1=norm(family.post1, g.post_norm or g.stream_norm),
        post2=norm(family.post2, (g.post_norm or g.stream_norm) and g.mlp),
        q_norm=head_norm(family.q_norm),
        k_norm=head_norm(family.k_norm),
        mlp_in=mlp_in if gate_up is None else Part(gate_up, 0, 2),
        mlp_up=(find(block, family.mlp_up) if plain else None) if gate_up is None else Part(gate_up, 1, 2),
        gate_up=gate_up,
        routed=_routed(block, family, config) if g.mlp and g.experts else None,
        act=(family.act if callable(family.act) else find(block, family.act)) if plain else None,
        mlp_out=None if mlp_out is None else scaled(mlp_out, times),
        scale=family.scale(config, layer, g.d_head),
        cap=family.attn_cap(config),
        window=window,
        rotary_kind=family.rotary_kind(config, layer),
        device=next(out.parameters()).device,
    )


def fits(family: Family, g: Geometry, qkv: tuple[nn.Module, ...], out: nn.Module, mlp_in: nn.Module | None) -> None:
    """UserError where a projection's size is not what the geometry says: heads would be cut at the wrong places."""
    q, kv = g.heads * g.d_head, g.kv_heads * g.d_head
    sizes = [q, kv, kv] if len(qkv) == 3 else [q + 2 * kv]
    found: list[tuple[int | None, int, str]]
    if family.packing == "in_proj":
        found = [(len(packed(qkv[0])[0]), sizes[0], family.qkv[0])]
    else:
        found = [(_size(m, 1), n, path) for m, n, path in zip(qkv, sizes, family.qkv, strict=True)]
    found += [(_size(out, 0), q, family.out), (_size(mlp_in, 1), g.d_mlp, str(family.mlp_in))]
    for has, wanted, path in found:
        if has is not None and has != wanted:
            raise UserError(
                f"family {family.name}: {path} is {has} wide where {g.heads} heads ({g.kv_heads} of keys and values) "
                f"of {g.d_head} and {g.d_mlp} neurons need {wanted}; the configuration does not fit the weights"
            )


def _size(module: nn.Module | None, axis: int) -> int | None:
    """Numbers that a linear map takes (0) or gives (1); None where it has no matrix."""
    weight = getattr(module, "weight", None)
    return int(matrix(module).shape[axis]) if isinstance(weight, Tensor) and weight.ndim == 2 else None  # type: ignore[arg-type]


def _routed(block: nn.Module, family: Family, config: Any) -> Routed:
    if family.router is None or family.experts is None or family.routing is None:
        raise UserError(f"family {family.name}: a routed MLP needs router, experts and routing in its row")
    return Routed(
        need(block, family.router, family), need(block, family.experts, family), family.routing(config),
        find(block, family.shared_expert), find(block, family.shared_gate),
    )  # fmt: skip
