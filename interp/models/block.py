"""One transformer block: the heart of this package.

    block(net, layer, resid, grid, tap) -> resid, (k_rot, v)

It calls the checkpoint's own leaf modules and calls `tap(site, layer, tensor)` wherever a tensor has a name;
`tap` returns the tensor, or an edited one. Capture, edits, gradients, users' functions and partial execution
are all this one mechanism. Five arguments serve partial execution:

    prefix   keys and values of the columns before the held ones (from a base run), already rotated
    given    tensors to take as they are instead of computing them, by site: the block is entered there
    tail     a narrower grid: queries, and all that follows them, only at these columns
    beside   puts residual and z of further rows beside those of the others: they join at z
    spare    nobody else holds the residual, and its memory may be written to

Derived sites (`q_input`, `head_out`, `*_scale`, `mlp_in` …) are computed only when the tap wants them; a no-op edit
there changes nothing, to the bit.

Order of operations follows Hugging Face's eager attention, so logits are bit-identical to it on the first
families (checked by `site_audit` and the tests).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from interp.hooks.taps import NO_TAP, Tap
from interp.hooks.values import NO_TENSORS
from interp.models.activation import gives_fresh
from interp.models.again import Call, heard, hooked, unheard
from interp.models.attention import KeyValue, mixed_by_grid, values_read
from interp.models.linear import is_linear, require_sum
from interp.models.loose import added, caller, part_of
from interp.models.mlp import hidden, mlp
from interp.models.net import LayerParts, Net, matrix, packed
from interp.models.norms import Norm
from interp.models.ragged import Columns, Ragged
from interp.models.reading import read_norm, replaced

BETWEEN = ("head_out", "attn_out_pre", "attn_out")
"""Sites between z and the residual stream."""
Prefix = KeyValue | Sequence[KeyValue | None] | None
"""Keys and values before the held columns, or before those of each of several grids."""
Beside = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Puts residual and z of further rows beside those of the others."""


def block(
    net: Net,
    layer: int,
    resid: Float[Tensor, "batch pos d_model"],
    grid: Columns,
    tap: Tap = NO_TAP,
    *,
    prefix: Prefix = None,
    given: Mapping[str, Tensor] = NO_TENSORS,
    tail: Columns | None = None,
    beside: Beside | None = None,
    spare: bool = False,
) -> tuple[Float[Tensor, "rows kept d_model"], KeyValue | None]:
    """Run one block; returns the residual after it, and the rotated keys and values of the held columns."""
    parts, g = net.layers[layer], net.geometry
    resid = tap("resid_pre", layer, resid)
    after: KeyValue | None = None
    ours = False
    # where attention and MLP of a parallel block read through one norm, it is called once
    normed = parts.ln1(resid) if g.parallel and parts.one_norm and not given else None
    if "resid_mid" in given:
        mid = tap("resid_mid", layer, given["resid_mid"])
    else:
        z, after = mixed(net, layer, resid, grid, tap, prefix, given, tail, normed)
        kept = given["attn_out"] if z is None else z
        if tail is not None and resid.shape[:2] != kept.shape[:2]:
            resid, normed = tail.narrow(resid), None if normed is None else tail.narrow(normed)
        if beside is not None and z is not None:
            resid, z = beside(resid, z)
            normed = None  # it is of the rows that were there before
        if z is not None and _sums(net, parts.out) and not any(tap.wants(site, layer) for site in BETWEEN):
            mid = added(resid, parts.out, z.flatten(2), spare)
            # without a norm ln2 is the residual itself
            ours = not tap.wants("resid_mid", layer) and (g.pre_norm or not tap.wants("ln2", layer))
        else:
            attn_out = written(net, layer, z, tap, given)
            if g.parallel and g.mlp:
                out = mlp(net, layer, resid, tap, given, normed)
                total = resid + attn_out + out if net.family.stream_first else out + attn_out + resid
                return tap("resid_post", layer, total), after
            mid = _join(net, parts.post1, resid, attn_out)
        if not g.mlp:
            return tap("resid_post", layer, mid), after
        mid = tap("resid_mid", layer, mid)
    post = None if "mlp_out" in given or parts.routed is not None else hidden(net, layer, mid, tap, given)
    unseen = not (tap.wants("mlp_out_pre", layer) or tap.wants("mlp_out", layer))
    if post is not None and unseen and _sums(net, parts.mlp_out):
        return tap("resid_post", layer, added(mid, parts.mlp_out, post, ours)), after  # type: ignore[arg-type]
    out = mlp(net, layer, mid, tap, given, post=post)
    return tap("resid_post", layer, _join(net, parts.post2, mid, out)), after


def _sums(net: Net, module: nn.Module | None) -> bool:
    """Whether a sublayer's last product may sum onto the stream, where nobody looks at what lies between."""
    g = net.geometry
    return net.loose and g.skip and not (g.parallel or g.post_norm or g.stream_norm) and gives_fresh(module)


def _join(net: Net, norm: Norm, resid: Tensor, out: Tensor) -> Tensor:
    """Put a sublayer's output into the residual stream."""
    total = resid + out if net.geometry.skip else out
    return norm(total) if net.geometry.stream_norm else total


def mixed(
    net: Net,
    layer: int,
    resid: Float[Tensor, "batch pos d_model"],
    grid: Columns,
    tap: Tap,
    prefix: Prefix,
    given: Mapping[str, Tensor],
    tail: Columns | None,
    normed: Tensor | None = None,
) -> tuple[Float[Tensor, "rows kept head d_head"] | None, KeyValue | None]:
    """resid_pre to z; None where `attn_out` is given. `normed` is the residual after ln1, where it is known."""
    if "attn_out" in given:
        return None, None
    z, after = given.get("z"), None
    if z is None:
        q, k, v = _queries_keys_values(net, layer, resid, grid, tap, given, tail, normed)
        here = tail or grid
        if isinstance(here, Ragged):
            z = mixed_by_grid(net, layer, (q, k, v), here, grid, prefix)  # type: ignore[arg-type]
        else:
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            after = (k, v)
            z = values_read(net, layer, q, after, here, prefix, tap, given).transpose(1, 2)  # type: ignore[arg-type]
    return tap("z", layer, z), after


def written(
    net: Net, layer: int, z: Float[Tensor, "batch kept head d_head"] | None, tap: Tap, given: Mapping[str, Tensor]
) -> Float[Tensor, "batch kept d_model"]:
    """z to attn_out."""
    if z is None:
        return tap("attn_out", layer, given["attn_out"])
    parts = net.layers[layer]
    out = caller(net.loose)(parts.out, z.reshape(*z.shape[:2], -1))
    if tap.wants("head_out", layer):
        out = _through_head_outputs(parts, layer, z, out, tap)
    if net.geometry.post_norm:
        out = parts.post1(tap("attn_out_pre", layer, out))
    return tap("attn_out", layer, out)


def _queries_keys_values(
    net: Net,
    layer: int,
    resid: Tensor,
    grid: Columns,
    tap: Tap,
    given: Mapping[str, Tensor],
    tail: Columns | None,
    normed: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries `[batch, query, head, d_head]`, keys and values `[batch, pos, kv_head, d_head]` as attention reads them.

    What `given` holds is not computed again; `q` may be given at the held columns or at the tail's.
    """
    need_q = not {"q", "q_rot", "scores", "pattern"} & set(given)
    need_k = not {"k", "k_rot", "scores", "pattern"} & set(given)
    need_v = "v" not in given
    fresh: dict[str, Tensor] = {}
    if need_q or need_k or need_v:
        x = given.get("ln1")
        x = tap("ln1", layer, read_norm(net, layer, resid, "ln1", tap, normed) if x is None else x)
        through = any(tap.wants(f"{c}_input", layer) for c in "qkv")
        fresh = project(net, layer, x, grid, tail=None if through else tail)
        if through:
            fresh = _through_inputs(net, layer, resid, fresh, grid, tap)
    q = given.get("q", fresh.get("q"))
    k = given.get("k", fresh.get("k"))
    v = tap("v", layer, given.get("v", fresh.get("v")))  # type: ignore[arg-type]
    if need_k or "k" in given:
        k = grid.rotate(head_norm(net, layer, tap("k", layer, k), "k", tap), layer)  # type: ignore[arg-type]
    else:
        k = given.get("k_rot", v)  # with the scores given the keys are not read
    k = tap("k_rot", layer, k) if not {"scores", "pattern"} & set(given) else k
    if need_q or "q" in given:
        here = tail or grid
        assert q is not None
        if tail is not None and not tail.fits(q):
            q = tail.narrow(q)
        q = here.rotate(head_norm(net, layer, tap("q", layer, q), "q", tap), layer)
    else:
        q = given.get("q_rot", v)
    q = tap("q_rot", layer, q) if not {"scores", "pattern"} & set(given) else q
    return q, k, v


def project(
    net: Net,
    layer: int,
    x: Float[Tensor, "batch pos d_model"],
    grid: Columns,
    call: Call = heard,
    tail: Columns | None = None,
) -> dict[str, Tensor]:
    """q `[batch, pos, head, d_head]`, k and v `[batch, pos, kv_head, d_head]` as the projections give them.

    With `tail`, q may come at its columns only: where the map of q is one of its own, or may be cut out.
    """
    parts, g = net.layers[layer], net.geometry
    shape = (*x.shape[:2], -1, g.d_head)
    if call is heard:
        call = caller(net.loose)
    if net.family.packing == "separate":
        reader = x
        if g.qk_positions:
            reader = x + grid.learned
        inputs = (reader if tail is None else tail.narrow(reader), reader, x)
        q, k, v = (call(m, i).view(*i.shape[:2], -1, g.d_head) for m, i in zip(parts.qkv, inputs, strict=True))
    elif tail is not None and net.loose and net.family.packing == "thirds" and gives_fresh(parts.qkv[0]):
        at = g.heads * g.d_head
        q = part_of(parts.qkv[0], tail.narrow(x), slice(None, at)).unflatten(-1, (-1, g.d_head))
        kv = part_of(parts.qkv[0], x, slice(at, None))
        k, v = (t.view(shape) for t in kv.chunk(2, -1))
    elif net.family.packing == "in_proj":
        q, k, v = unpack(net, torch.nn.functional.linear(x, *packed(parts.qkv[0])))
    else:
        q, k, v = unpack(net, call(parts.qkv[0], x))
    return {"q": q, "k": k, "v": v}


def unpack(net: Net, fused: Float[Tensor, "batch pos packed"]) -> tuple[Tensor, Tensor, Tensor]:
    """Split the output of one fused projection into heads of q, k and v."""
    g = net.geometry
    shape = (*fused.shape[:2], -1, g.d_head)
    if net.family.packing in ("thirds", "in_proj"):
        sizes = [g.heads * g.d_head, g.kv_heads * g.d_head, g.kv_heads * g.d_head]
        q, k, v = (t.view(shape) for t in fused.split(sizes, -1))
        return q, k, v
    each = fused.view(*fused.shape[:2], g.kv_heads, g.group + 2, g.d_head)
    return each[..., :-2, :].flatten(2, 3), each[..., -2, :], each[..., -1, :]


def head_norm(net: Net, layer: int, x: Tensor, which: str, tap: Tap = NO_TAP) -> Tensor:
    """Queries or keys through their own norm, where the family has one."""
    norm = getattr(net.layers[layer], f"{which}_norm")
    if norm is None:
        return x
    y = norm(x.flatten(2)).view_as(x) if net.family.norm_heads == "all" else norm(x)
    return tap(f"{which}_norm", layer, y)


def _through_inputs(
    net: Net, layer: int, resid: Tensor, fresh: dict[str, Tensor], grid: Columns, tap: Tap
) -> dict[str, Tensor]:
    """Let the tap see the residual as each head reads it; an edited one goes through norm and projection again."""
    changed = dict(fresh)
    between = any(tap.wants(site, layer) for site in ("ln1_scale", "ln1"))
    for which in "qkv":
        if not tap.wants(f"{which}_input", layer):
            continue
        copies = resid[:, :, None].expand(-1, -1, fresh[which].shape[2], -1).clone()
        edited = tap(f"{which}_input", layer, copies)
        if edited is copies:
            continue
        call, before = unheard, project_heads(net, layer, copies, which, grid, unheard)
        if hooked((net.layers[layer].ln1.module, *net.layers[layer].qkv)) and not torch.equal(before, fresh[which]):
            call, before = heard, project_heads(net, layer, copies, which, grid, heard)
        after = project_heads(net, layer, edited, which, grid, call)
        changed[which] = replaced(fresh[which], before, after, edited, copies, between)
    return changed


def project_heads(
    net: Net,
    layer: int,
    inputs: Float[Tensor, "batch pos heads d_model"],
    which: str,
    grid: Columns,
    call: Call = heard,
) -> Float[Tensor, "batch pos heads d_head"]:
    """q, k or v of each head from a residual of its own."""
    each = []
    for head in range(inputs.shape[2]):
        x = inputs[:, :, head]
        x = net.layers[layer].ln1(x, call) if net.geometry.pre_norm else x
        each.append(project(net, layer, x, grid, call)[which][:, :, head])
    return torch.stack(each, 2)


def _through_head_outputs(parts: LayerParts, layer: int, z: Tensor, out: Tensor, tap: Tap) -> Tensor:
    weight = rearrange(matrix(parts.out), "(head d_head) d_model -> head d_head d_model", head=z.shape[2])
    heads = torch.einsum("bphd,hdm->bphm", z, weight)
    if hooked([parts.out]) or not is_linear(parts.out):
        require_sum(parts.out, heads, out)
    edited = tap("head_out", layer, heads)
    return out if edited is heads else out + (edited - heads).sum(2)
