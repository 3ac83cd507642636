"""The audit holds on every tiny family, and finds what is broken on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

import interp.hooks.edits
import interp.models.attention
import interp.models.block
import interp.models.forward
import interp.models.reading
from interp.cells import run_cell
from interp.context import Loaders
from interp.hooks.sites import SITES
from interp.interventions.audit import site_audit
from interp.models.block import block
from interp.models.grid import Grid
from interp.models.model import Model
from interp.models.tiny import resized
from interp.registry import UserError
from tests.tiny import HF_KINDS, NATIVE_KINDS, tiny
from tests.unchecked import unchecked

EVERY_SITE = {"1 no-op", "1 masked", "4 values", "5 random edit", "gradient", "padding"}
QUICK: dict[str, Any] = {"length": 5, "settings": ("unpadded",)}


@pytest.fixture
def shapes_unchecked() -> Iterator[None]:
    """An audit is a thousand runs; shapes and types are checked in the audits that do not ask for this."""
    with unchecked():
        yield


def one_layer(kind: str) -> Model:
    """A tiny model of a single block."""
    return tiny(kind, **({"layers": 1} if ":" in kind else resized(kind, layers=1)))


@pytest.mark.usefixtures("shapes_unchecked")
@pytest.mark.parametrize("kind", [*HF_KINDS, *(f"native:{variant}" for variant in NATIVE_KINDS)])
def test_the_whole_contract_holds(kind: str) -> None:
    thorough = kind in ("gpt2", "llama", "neox", "gemma2")
    model = tiny(kind) if thorough else one_layer(kind)
    audit = site_audit(model, **({} if thorough else QUICK))
    assert audit.passed, str(audit)
    tried = {(row.rule, row.site) for row in audit if row.passed is not None}
    missing = [(rule, site) for rule in EVERY_SITE for site in model.sites() if (rule, site) not in tried]
    nothing_masked = not model.geometry.causal  # and no padding in a quick audit
    assert set(missing) <= ({("1 masked", "scores"), ("1 masked", "pattern")} if nothing_masked else set())
    cuts = {name for name in model.sites() if SITES[name].cut} - {"pos_embed"}
    assert {row.site for row in audit if row.rule == "2 cut"} == cuts
    assert {row.site for row in audit if row.rule == "6 lacking"} >= set(SITES) - set(model.sites())


def test_with_shapes_and_types_checked() -> None:
    audit = site_audit(one_layer("llama"), **QUICK)
    assert audit.passed, str(audit)


@pytest.mark.usefixtures("shapes_unchecked")
@pytest.mark.parametrize("kind", ["gpt2", "gemma2"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_contract_holds_in_other_dtypes(kind: str, dtype: torch.dtype) -> None:
    model = one_layer(kind)
    model.module.to(dtype)
    audit = site_audit(model, **QUICK)
    assert audit.passed, str(audit)
    assert sum(row.tolerance == 0 and row.passed is True for row in audit) > 100  # bits agree in every dtype


@pytest.mark.usefixtures("shapes_unchecked")
def test_right_padding_holds_too() -> None:
    audit = site_audit(one_layer("gemma2"), settings=("right-padded",))
    assert audit.passed, str(audit)


def test_sizes_that_tell_nothing_are_refused() -> None:
    with pytest.raises(UserError, match="at least 3 rows of 4 tokens, got 2 of 7"):
        site_audit(tiny("gpt2"), rows=2)
    with pytest.raises(UserError, match="unknown setting 'middle'"):
        site_audit(tiny("gpt2"), settings=("middle",))


# -- the audit can fail: each break below is one that a forward function could have ---------------------------------


def wrong_groups(patch: pytest.MonkeyPatch) -> None:
    """Query head h reads kv head h % kv_heads instead of h // group."""
    patch.setattr(interp.models.attention, "per_query_head", lambda x, group, *_: x.repeat(1, group, 1, 1))


def scale_edits_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(interp.models.reading, "rescaled", lambda norm, x, out, scale, new: out)


def head_out_edits_ignored(patch: pytest.MonkeyPatch) -> None:
    real = interp.models.block._through_head_outputs

    def ignored(parts: Any, layer: int, z: Tensor, out: Tensor, tap: Any) -> Tensor:
        real(parts, layer, z, out, tap)
        return out

    patch.setattr(interp.models.block, "_through_head_outputs", ignored)


def head_out_not_a_difference(patch: pytest.MonkeyPatch) -> None:
    """The sum of heads instead of the projection's own output: equal but for rounding."""
    real = interp.models.block._through_head_outputs

    def summed(parts: Any, layer: int, z: Tensor, out: Tensor, tap: Any) -> Tensor:
        new = real(parts, layer, z, out, tap)
        return new if tap.edits and parts.out.bias is None else new + 1e-7

    patch.setattr(interp.models.block, "_through_head_outputs", summed)


def mid_reaches_the_mlp_only(patch: pytest.MonkeyPatch) -> None:
    """resid_mid as the second norm's input: an edit misses the skip path."""

    class Narrow:
        def __init__(self, tap: Any) -> None:
            self.tap, self.mid = tap, None

        def wants(self, site: str, layer: int | None) -> bool:
            return site == "mlp_in" or bool(self.tap.wants(site, layer))

        def __call__(self, site: str, layer: int | None, x: Tensor) -> Tensor:
            out: Tensor = self.tap(site, layer, x)
            if site == "resid_mid":
                self.mid = out
                return x
            return self.mid if site == "mlp_in" and self.mid is not None else out

    def narrow(
        net: Any, layer: int, resid: Tensor, grid: Any, tap: Any = interp.models.block.NO_TAP, **more: Any
    ) -> Any:
        return block(net, layer, resid, grid, Narrow(tap), **more)

    patch.setattr(interp.models.forward, "block", narrow)


def future_visible(patch: pytest.MonkeyPatch) -> None:
    real = Grid._build

    def lenient(grid: Grid, window: int | None) -> Tensor:
        ok = real(grid, window)
        return ok | torch.ones_like(ok).tril(1)

    patch.setattr(Grid, "_build", lenient)


def positions_of_columns(patch: pytest.MonkeyPatch) -> None:
    """Padding counted as positions."""
    patch.setattr(Grid, "positions", property(lambda grid: grid.held.per_row))


def edited_in_place(patch: pytest.MonkeyPatch) -> None:
    real = interp.hooks.edits.Edit.apply

    def apply(edit: Any, x: Tensor, ctx: Any) -> Tensor:
        return x.copy_(real(edit, x, ctx))

    patch.setattr(interp.hooks.edits.Edit, "apply", apply)


def edit_reaches_other_heads(patch: pytest.MonkeyPatch) -> None:
    real = interp.hooks.context.EditContext.put

    def put(ctx: Any, tensor: Tensor, part: Tensor) -> Tensor:
        out = real(ctx, tensor, part)
        return out + 1e-3 if ctx.selection.head and ctx.site.name == "z" else out

    patch.setattr(interp.hooks.context.EditContext, "put", put)


def masked_edits_obeyed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(interp.models.attention, "_unread", lambda tap, site, layer, edited, hidden, fill: edited)


def readers_gradient_mixed(patch: pytest.MonkeyPatch) -> None:
    """Two sites that hold one tensor share its gradient."""
    patch.setattr(Tensor, "view_as", lambda x, other: x)


def silent_about_lacking(patch: pytest.MonkeyPatch) -> None:
    real = interp.models.model.resolve_all

    def lenient(addresses: Any, geometry: Any) -> Any:
        try:
            return real(addresses, geometry)
        except UserError:
            return []

    patch.setattr(interp.models.model, "resolve_all", lenient)


BREAKS: list[tuple[Callable[[pytest.MonkeyPatch], None], str, str, str]] = [
    (wrong_groups, "llama", "1 checkpoint", "logits"),
    (wrong_groups, "llama", "5 random edit", "k"),
    (wrong_groups, "llama", "4 values", "z"),
    (scale_edits_ignored, "llama", "5 random edit", "ln1_scale"),
    (head_out_edits_ignored, "llama", "5 random edit", "head_out"),
    (head_out_not_a_difference, "gpt2", "1 no-op", "head_out"),
    (mid_reaches_the_mlp_only, "llama", "2 cut", "resid_mid"),
    (mid_reaches_the_mlp_only, "llama", "3 row swap", "resid_mid"),
    (future_visible, "gpt2", "1 masked", "scores"),
    (future_visible, "gpt2", "1 checkpoint", "logits"),
    (positions_of_columns, "gpt2", "padding", "pos_embed"),
    (edited_in_place, "llama", "5 random edit", "head_out"),
    (edit_reaches_other_heads, "llama", "5 random edit", "z"),
    (masked_edits_obeyed, "gpt2", "1 masked", "scores"),
    (readers_gradient_mixed, "native:post", "gradient", "ln1"),
    (silent_about_lacking, "gpt2", "6 lacking", "router"),
]  # fmt: skip


@pytest.mark.usefixtures("shapes_unchecked")
@pytest.mark.parametrize(("damage", "kind", "rule", "site"), BREAKS, ids=lambda x: getattr(x, "__name__", str(x)))
def test_breaks_are_found(
    damage: Callable[[pytest.MonkeyPatch], None], kind: str, rule: str, site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = one_layer(kind)
    damage(monkeypatch)
    audit = site_audit(model, **QUICK)
    assert not audit.passed
    assert (rule, site) in {(row.rule, row.site) for row in audit.broken}, str(audit)
    assert "BROKEN" in str(audit)


# -- as an experiment -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("shapes_unchecked")
def test_the_experiment_writes_one_row_per_site_and_check(tmp_path: Any) -> None:
    from experiments.site_audit import EXPERIMENT

    loaders = Loaders(load_model=lambda name, **how: tiny("llama"))
    config = EXPERIMENT.make_config({"model": "any"}, "smoke")
    cell = run_cell(EXPERIMENT, config, out=tmp_path, loaders=loaders)
    frame = pd.read_parquet(cell.path / "table.parquet")
    assert frame["passed"].all()
    assert set(tiny("llama").sites()) <= set(frame["site"])
    assert (frame["family"] == "llama").all()
    assert cell.run()["notes"]["passed"] is True
    assert not frame.duplicated(["setting", "rule", "site", "check", "layer"]).any()
