"""Edits: frozen values that say what to change, where, and how.

    edit = interp.zero("L1.z", head=2)          nothing happens yet
    model.run(prompts, edits=[edit])            the edit is applied as the forward pass reaches the site

To add one, write a function here: decorate it with `@edit_kind`, and return `Edit(kind, address, selection,
change)` where `change(x, ctx)` returns the new value of the selected part as a *new* tensor. The tests run
every registered kind through its no-op case and its whole-site case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.hooks.addresses import Address
from interp.hooks.context import EditContext, Held
from interp.hooks.geometry import Geometry
from interp.hooks.prompts import Prompts
from interp.hooks.selection import PARTS, Selection, select
from interp.hooks.sites import SITES, resolve
from interp.hooks.values import Means, Run
from interp.registry import Registry, UserError, unknown

Change = Callable[[Tensor, EditContext], Tensor]

EDITS: Registry[Callable[..., Edit]] = Registry("edit", group="interp.edits")
edit_kind = EDITS.register


@dataclass(frozen=True, eq=False)
class Edit:
    """One change at one site. `change` maps the selected part to its new value."""

    kind: str
    address: Address
    selection: Selection
    change: Change
    donor: Run | None = None
    """Run whose captures the change reads, if any."""
    needs_base: bool = False
    row_wise: bool = True
    """A row's new value depends on that row alone."""
    position_wise: bool = True
    """A token's new value depends on that token alone."""
    detail: dict[str, Any] = field(default_factory=dict)

    def check(self, geometry: Geometry, prompts: Prompts, held: Held | None = None) -> list[Address]:
        """Concrete addresses; UserError where site, selection, positions or donor do not fit.

        `held`, all columns of the prompts, saves making them for each of many edits.
        """
        found = resolve(self.address, geometry)
        site = SITES[self.address.site]
        self.selection.check(site, geometry)
        for place in (*(self.selection.pos or ()), *(self.selection.key or ())):
            prompts.real_index(place)
        if self.donor is not None:
            rows = self.detail.get("rows")
            straight = rows is None and prompts.stands_like(self.donor.prompts, self.selection.labels)
            for address in found:
                if str(address) not in self.donor.acts:
                    self.donor[str(address)]  # says what is there
                if not straight:
                    ctx = EditContext(site, address.layer, geometry, held or Held.all(prompts), self.selection)
                    ctx.own(self.donor, rows)
        return found

    @property
    def taken_from(self) -> Run | None:
        """The run whose value at the same place the edit puts in, where that is all it does."""
        return self.donor if self.kind == "patch" and not self.detail else None

    def apply(self, x: Tensor, ctx: EditContext) -> Tensor:
        """A new tensor with the edit made; `x` itself is not altered."""
        return ctx.put(x, self.new_part(ctx.pick(x), ctx))

    def apply_to(self, x: Tensor, ctx: EditContext) -> None:
        """Make the edit in a buffer that is the caller's own, without gradients."""
        part, axis, at = ctx.pick(x), ctx.token_axis, ctx.one_column
        if len(ctx.units) > 1 or (ctx.units and len(ctx.units[0][1]) > 1):  # picked into memory of its own
            x.copy_(ctx.put(x, self.new_part(part, ctx)))
        elif at is None:
            part.copy_(self.new_part(part, ctx))
        else:
            part.narrow(axis, at, 1).copy_(self.changed(part, ctx).narrow(axis, at, 1))

    def new_part(self, part: Tensor, ctx: EditContext) -> Tensor:
        """The new value of the selected part."""
        new, where = self.changed(part, ctx), ctx.written()
        return new if where is None else torch.where(where, new, part)

    def changed(self, part: Tensor, ctx: EditContext) -> Tensor:
        """What the selected part would be if the edit were written at all of its tokens."""
        new = self.change(part, ctx).to(part.dtype)
        if new.shape != part.shape:
            try:
                new = new.expand(part.shape)
            except RuntimeError:
                given, want = tuple(new.shape), tuple(part.shape)
                raise UserError(f"{self} gave shape {given} where {ctx.address} needs {want}") from None
        return new

    def __str__(self) -> str:
        chosen = str(self.selection)
        return f"{self.kind}({str(self.address)!r}{', ' + chosen if chosen else ''})"


def _edit(kind: str, address: str, parts: dict[str, Any], change: Change, **traits: Any) -> Edit:
    strange = [name for name in parts if name not in PARTS]
    if strange:
        raise unknown("part of a site", strange[0], list(PARTS))
    return Edit(kind, Address.parse(address), select(**parts), change, **traits)


@edit_kind()
def zero(address: str, **parts: Any) -> Edit:
    """Set to 0.

    >>> print(zero("L0.z", head=2))
    zero('L0.z', head=2)
    """
    return _edit("zero", address, parts, lambda x, ctx: torch.zeros_like(x))


@edit_kind()
def scale(address: str, factor: float, **parts: Any) -> Edit:
    """Multiply by a number.

    >>> print(scale("L1.mlp_out", 0.5, pos=-1))
    scale('L1.mlp_out', pos=-1)
    """
    return _edit("scale", address, parts, lambda x, ctx: x * factor, detail={"factor": factor})


@edit_kind()
def add(address: str, vector: Float[Tensor, ...], **parts: Any) -> Edit:
    """Add a vector (broadcast against the part's last axes), such as a steering vector `[d_model]`.

    >>> print(add("L1.resid_mid", torch.ones(64), pos="END"))
    add('L1.resid_mid', pos=END)
    """

    def change(x: Tensor, ctx: EditContext) -> Tensor:
        try:
            torch.broadcast_shapes(vector.shape, x.shape)
        except RuntimeError:
            given, want = tuple(vector.shape), tuple(x.shape)
            raise UserError(
                f"add({address!r}): a vector of shape {given} does not fit values of shape {want}"
            ) from None
        return x + vector.to(x)

    return _edit("add", address, parts, change)


@edit_kind()
def project_out(address: str, directions: Float[Tensor, ...], **parts: Any) -> Edit:
    """Remove the span of one direction `[d]` or several `[k, d]` along the last axis.

    >>> print(project_out("L1.resid_mid", torch.ones(64)))
    project_out('L1.resid_mid')
    """
    basis = orthonormal(directions if directions.ndim > 1 else directions[None])
    return _edit("project_out", address, parts, lambda x, ctx: x - _span(x, basis))


@edit_kind()
def mean(address: str, means: Means, **parts: Any) -> Edit:
    """Replace by a mean of `model.means(…)`: by all, position, label or template, as the means were taken.

    >>> import interp
    >>> model = interp.load_model("toy-ioi")
    >>> task = interp.load_task("ioi", model, n=8)
    >>> means = model.means(task.corrupt, ["z"], by="position")
    >>> model.run(task.clean, edits=[mean("L1.z", means, head=2)]).logits.shape[0]
    8
    """
    if not isinstance(means, Means):
        raise UserError(f"mean({address!r}, means): expected what model.means(…) gives, got {type(means).__name__}")
    return _edit("mean", address, parts, lambda x, ctx: ctx.averaged(means), detail={"by": means.by})


@edit_kind()
def patch(address: str, run: Run, basis: Float[Tensor, "d k"] | None = None, **parts: Any) -> Edit:
    """Replace by the value of another run, token by token (by label also between unequal lengths).

    With `basis` only the span of its columns is swapped. A subspace patch that moves the output need not
    mean that the model uses the subspace: it can act through a dormant direction (the "subspace illusion",
    arXiv 2311.17030); compare with patching the whole site.

    >>> import interp
    >>> model = interp.load_model("toy-ioi")
    >>> task = interp.load_task("ioi", model, n=8)
    >>> donor = model.run(task.corrupt, capture=["resid_mid"])
    >>> model.run(task.clean, edits=[patch("L1.resid_mid", donor, pos="END")]).logits.shape[0]
    8
    """
    if basis is None:
        return _edit("patch", address, parts, lambda x, ctx: ctx.own(run), donor=run)
    ortho = orthonormal(basis.T)
    return _edit(
        "patch", address, parts, lambda x, ctx: x + _span(ctx.own(run).to(x) - x, ortho), donor=run,
        detail={"basis": tuple(basis.shape)},
    )  # fmt: skip


@edit_kind()
def resample(
    address: str, run: Run, seed: int, match: str | None = None, rows: Int[Tensor, " batch"] | None = None, **parts: Any
) -> Edit:
    """Replace by the value of a donor prompt of `run`: other tokens, same length and labels, never itself.

    `match` names a label whose token the donor must share (causal scrubbing's resampling). `rows` are donors
    drawn before (`donors`), for many edits that share them. UserError where some prompt has no donor.

    >>> import interp
    >>> model = interp.load_model("toy-ioi")
    >>> task = interp.load_task("ioi", model, n=8)
    >>> others = model.run(interp.load_task("ioi", model, n=64).clean, capture=["z"])
    >>> print(resample("L1.z", others, seed=0, head=2))
    resample('L1.z', head=2)
    """
    rows = donors(run.prompts, seed, match) if rows is None else rows
    return _edit(
        "resample", address, parts, lambda x, ctx: ctx.own(run, rows), donor=run,
        detail={"seed": seed, "match": match, "rows": rows},
    )  # fmt: skip


@edit_kind()
def hold(address: str, value: Float[Tensor, "batch pos ..."], **parts: Any) -> Edit:
    """Hold at a given tensor: the selected part's value for every prompt and column, in the site's axis order."""

    def change(x: Tensor, ctx: EditContext) -> Tensor:
        return ctx.held.take(value if ctx.held.rows is None else value[ctx.held.rows], ctx.token_axis)

    return _edit("hold", address, parts, change)


@edit_kind()
def freeze(address: str, **parts: Any) -> Edit:
    """Hold at this prompt's own value in the unedited base run.

    >>> print(freeze("L1.pattern", head=[0, 3]))
    freeze('L1.pattern', head=[0, 3])
    """

    def change(x: Tensor, ctx: EditContext) -> Tensor:
        if ctx.base is None:
            raise UserError(f"freeze({str(ctx.address)!r}) needs a base run")
        return ctx.own(ctx.base)

    return _edit("freeze", address, parts, change, needs_base=True)


@edit_kind()
def function(
    address: str,
    fn: Change,
    row_wise: bool = False,
    position_wise: bool = False,
    name: str = "function",
    **parts: Any,
) -> Edit:
    """A function of your own, `fn(x, ctx) -> new x`. It gets a copy, so editing in place is safe.

    Unless it declares that rows and positions do not mix, it is run the plain way: whole batch, all columns.
    Returning None leaves the site as it is.

    >>> print(function("L1.pattern", lambda x, ctx: x.tril(-1)))
    function('L1.pattern')
    """

    def change(x: Tensor, ctx: EditContext) -> Tensor:
        return call_user(fn, x, ctx)

    return _edit(
        "function",
        address,
        parts,
        change,
        row_wise=row_wise,
        position_wise=position_wise,
        detail={"name": name},
    )


def call_user(fn: Callable[..., Tensor | None], x: Tensor, ctx: EditContext) -> Tensor:
    """Call a user's function on a copy; None means unchanged, unless it wrote into the copy."""
    copy = x.clone()
    version = copy._version
    out = fn(copy, ctx)
    if out is None:
        if copy._version != version:
            raise UserError(f"the function at {ctx.address} edited in place and returned None: return the tensor")
        return x
    return out


def orthonormal(rows: Float[Tensor, "k d"]) -> Float[Tensor, "k2 d"]:
    """An orthonormal basis of the rows' span; UserError where the rows span nothing."""
    _, s, vh = torch.linalg.svd(rows.float(), full_matrices=False)
    kept = s > s.max() * 1e-6
    if not bool((s > 0).any()):
        raise UserError("the directions are all zero: they span nothing")
    basis: Tensor = vh[kept]
    return basis


def _span(x: Tensor, basis: Float[Tensor, "k d"]) -> Tensor:
    b = basis.to(x)
    return (x @ b.T) @ b


def donors(prompts: Prompts, seed: int, match: str | None = None) -> Int[Tensor, " batch"]:
    """A donor row for each row: other tokens, same length and labels; seeded. UserError where none exists."""
    generator = torch.Generator().manual_seed(seed)
    tokens = (prompts.tokens * prompts.mask).cpu()
    keys = [prompts.mask.sum(1).cpu(), *(prompts.labels[k].cpu() for k in sorted(prompts.labels))]
    if match is not None:
        keys.append(prompts.tokens.gather(1, prompts.column(match).clamp(min=0)[:, None])[:, 0].cpu())
    key = torch.stack(keys, 1)
    chosen = []
    for i in range(len(prompts)):
        fits = (key == key[i]).all(1)
        fits &= _real_tokens_differ(prompts, tokens, i)
        pool = fits.nonzero().flatten()
        if not len(pool):
            wanted = f" and the same token at {match}" if match else ""
            raise UserError(
                f"prompt {i} has no donor: none of {len(prompts)} has other tokens, same length, labels{wanted}"
            )
        chosen.append(int(pool[torch.randint(len(pool), (1,), generator=generator)]))
    return torch.tensor(chosen, device=prompts.device)


def _real_tokens_differ(prompts: Prompts, tokens: Tensor, i: int) -> Tensor:
    starts = prompts.starts.cpu()
    length = int(prompts.mask[i].sum())
    index = (starts[:, None] + torch.arange(length)).clamp(max=tokens.shape[1] - 1)
    return (tokens.gather(1, index) != tokens[i, int(starts[i]) : int(starts[i]) + length]).any(1)


def as_edits(edits: Edit | Iterable[Edit]) -> tuple[Edit, ...]:
    """One edit or several, as a tuple; UserError for anything else."""
    many = (edits,) if isinstance(edits, Edit) else tuple(edits)
    for one in many:
        if not isinstance(one, Edit):
            raise UserError(f"not an edit: {one!r}; use one of {', '.join(EDITS.names())}")
    return many
