"""The audit of every family: tiny random checkpoints, saved, loaded again, and held to all that is promised.

For each kind of `interp.models.tiny` (a family, or one form of it), for native models and a wrapped encoder:

    the contract    `site_audit` in float32, and a short one in bfloat16 and float16
    forms           one layer, one head, one token, one prompt, padding on either side, half precision: logits
                    against the checkpoint's own forward pass
    replay          edits of every site, planned and packed, against one plain forward pass each, in all three dtypes

A row sums up what was tried at one site by one clause: whether all held, and the largest difference as a share of
the numbers compared, with the largest share allowed. Checkpoints without a row go through the bridge, whose plain
logits are compared, unpadded and padded on either side, and nothing else.

Limits: two layers, width 32, random weights; one configuration of each kind. What other forms of a family do
(its published settings) is tried by the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from interp.hooks.addresses import Address
from interp.hooks.prompts import Prompts
from interp.interventions.audit import site_audit
from interp.interventions.audit.bench import mask_of
from interp.interventions.audit.definitions import Definitions
from interp.interventions.audit.planned import planned_row
from interp.interventions.audit.records import AuditRow, difference, size
from interp.models import tiny
from interp.models.hf_folder import quiet
from interp.models.load import load_model
from interp.models.model import Model
from interp.models.native import Native, NativeConfig
from interp.models.native_folder import save_native
from interp.registry import UserError, unknown

HALF = "the whole contract"
HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
ALLOWED = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
"""Largest difference from the checkpoint's own logits, as a share of the largest logit, where bits may differ."""
NATIVE: dict[str, dict[str, Any]] = {
    "native": {},
    "native_post": {"norm": "post"},
    "native_bidirectional": {"causal": False},
}
WRAPPED = "wrapped_encoder"
ROUTED = "the router's choice jumps: rounding may send a token to another expert"


@dataclass(frozen=True)
class Form:
    """One kind of checkpoint: how its model is made anew, at another size, and what stands for it in the table."""

    kind: str
    make: Callable[[dict[str, Any]], Model]
    sizes: Callable[[int | None, int | None], dict[str, Any]]
    """Fields that set the number of layers and of heads."""


def kinds() -> list[str]:
    """Everything that is audited, in the order of the table."""
    return [*tiny.KINDS, *NATIVE, WRAPPED, *tiny.ROWLESS]


def family_rows(names: Iterable[str], seed: int = 0) -> Iterator[tuple[str, str, AuditRow]]:
    """Rows of some kinds, as (kind, family, row), in a temporary folder that is gone afterwards."""
    with TemporaryDirectory() as folder:
        for name in names:
            if name not in kinds():
                raise unknown("kind of checkpoint", name, kinds())
            if name in tiny.ROWLESS:
                yield from ((name, "bridge", row) for row in _bridged(name, Path(folder) / name, seed))
                continue
            form = _form(name, Path(folder), seed)
            model = form.make({})
            yield from ((name, model.family.name, row) for row in _rows(form, model, seed))


def _rows(form: Form, model: Model, seed: int) -> Iterator[AuditRow]:
    yield from _summed(site_audit(model, seed=seed), "float32")
    for name, dtype in HALVES.items():
        half = form.make({})
        half.module.to(dtype)
        short = list(site_audit(half, seed=seed, length=5, settings=("unpadded",)))
        tried = [row for row in short if not _jumps(half, row)]
        yield from _summed([replace(row, rule=HALF) for row in tried], name)
        left = {(row.rule, why): row for row in short if (why := _jumps(half, row))}
        for (rule, why), row in sorted(left.items()):
            yield AuditRow(name, HALF, "logits", f"{rule}: {row.check}", reason=why)
        replayed = planned_row(half, seed)
        jumps = "measured, not held: " + ROUTED if half.geometry.experts else None
        yield replace(replayed, passed=None, tolerance=None, reason=jumps) if jumps else replayed
    yield from _forms(form, model, seed)
    yield planned_row(model, seed)


def _jumps(model: Model, row: AuditRow) -> str | None:
    """Why half precision cannot be held to float64 by a row's check, where it cannot: something jumps between them."""
    act = model.net.layers[0].act
    if model.geometry.experts and row.rule in ("5 random edit", "gradient") and row.tolerance:
        return ROUTED
    if isinstance(act, nn.ReLU) and row.rule == "gradient" and row.tolerance:
        return "the slope of a ReLU jumps: rounding may cross its kink"
    return None


def _summed(rows: Iterable[AuditRow], setting: str) -> Iterator[AuditRow]:
    """One row for each clause and site, over layers, paddings and comparisons."""
    found: dict[tuple[str, str], list[AuditRow]] = {}
    for row in rows:
        if row.passed is not None:
            found.setdefault((row.rule, row.site), []).append(row)
    for (rule, site), part in sorted(found.items()):
        worst, allowed = _share(part)
        broken = [row for row in part if not row.passed]
        yield AuditRow(
            setting, rule, site, _about(part), None, part[0].axes, not broken, worst, allowed, 1.0, len(part),
            str(broken[0]) if broken else None,
        )  # fmt: skip


def _share(rows: list[AuditRow]) -> tuple[float | None, float | None]:
    """The largest difference and the largest one allowed, as shares of the numbers compared."""
    compared = [row for row in rows if row.value is not None and row.tolerance is not None]
    if not compared:
        return None, None
    sizes = [row.scale or 1.0 for row in compared]
    values = [float(row.value or 0) / s for row, s in zip(compared, sizes, strict=True)]
    allowed = [float(row.tolerance or 0) / s for row, s in zip(compared, sizes, strict=True)]
    return max(values), max(allowed)


def _about(rows: list[AuditRow]) -> str:
    checks = sorted({row.check for row in rows})
    return checks[0] if len(checks) == 1 else f"{len(checks)} comparisons"


# -- forms ------------------------------------------------------------------------------------------------------------


def _forms(form: Form, model: Model, seed: int) -> Iterator[AuditRow]:
    tokens = _tokens(model, 3, 9, seed)
    yield _logits("float32", "three prompts", model, tokens)
    for name, dtype in HALVES.items():
        half = form.make({})
        half.module.to(dtype)
        yield _logits(name, "three prompts", half, tokens)
    yield _logits("float32", "one prompt", model, tokens[:1])
    yield _logits("float32", "one token", model, tokens[:, :1])
    for side in ("left-padded", "right-padded"):
        yield _logits("float32", side, model, tokens, mask_of(side, 3, 9))
    yield _logits("float32", "one layer", form.make(form.sizes(1, None)), tokens)
    yield _logits("float32", "one head", form.make(form.sizes(None, 1)), tokens)


def _tokens(model: Any, rows: int, length: int, seed: int) -> Tensor:
    vocab = tiny.VOCAB if model is None else model.geometry.d_vocab
    return torch.randint(0, vocab, (rows, length), generator=torch.Generator().manual_seed(seed))


def _logits(setting: str, check: str, model: Model, tokens: Tensor, mask: Tensor | None = None) -> AuditRow:
    """Logits against the checkpoint's own forward pass at real tokens."""
    prompts = Prompts.of(tokens, mask)
    ours, theirs = model.run(prompts).logits, _own_logits(model, prompts)
    seen = prompts.mask
    gap, scale = difference(ours[seen], theirs[seen]), size(theirs[seen]) or 1.0
    exact = model.family.exact and model.dtype == torch.float32
    allowed = 0.0 if exact else ALLOWED[model.dtype]
    return AuditRow(
        setting, "forms", "logits", f"{check} = the module's own forward", None, "batch pos d_vocab",
        gap / scale <= allowed, gap / scale, allowed, 1.0, len(tokens),
    )  # fmt: skip


def _own_logits(model: Model, prompts: Prompts) -> Tensor:
    if model.family.name != "native":
        return model.run(prompts, plain_module=True).logits
    # a native module has no other forward than this one; its definitions are written out anew
    return Definitions(model, prompts).whole()[Address("logits")]


# -- how models are made ----------------------------------------------------------------------------------------------


def _form(name: str, folder: Path, seed: int) -> Form:
    if name in NATIVE:
        return Form(name, lambda over: _native(name, folder, seed, over), _native_sizes)
    if name == WRAPPED:
        return Form(name, lambda over: _encoder(seed, **over), _encoder_sizes)

    def make(over: dict[str, Any]) -> Model:
        where = folder / "-".join([name, *(f"{k}{len(str(v))}{v}"[:20] for k, v in over.items())]).replace("/", "_")
        model = load_model(tiny.save(name, where, seed, **over), tokenizer=False)
        if not isinstance(model, Model):
            raise UserError(f"{name} was loaded through the bridge: its family has no row")
        return model

    return Form(name, make, lambda layers, heads: tiny.resized(name, layers=layers, heads=heads))


def _native_sizes(layers: int | None, heads: int | None) -> dict[str, Any]:
    return {name: value for name, value in (("layers", layers), ("heads", heads)) if value is not None}


def _native(name: str, folder: Path, seed: int, over: dict[str, Any]) -> Model:
    config = NativeConfig(
        **{
            "d_vocab": tiny.VOCAB, "n_ctx": tiny.POSITIONS, "d_model": tiny.WIDTH, "layers": tiny.LAYERS,
            "heads": tiny.HEADS, "d_mlp": 64, **NATIVE[name], **over,
        }  # type: ignore[arg-type]
    )  # fmt: skip
    made = tiny.seeded(lambda: Native(config), seed)
    assert isinstance(made, Native)
    where = folder / f"{name}{config.layers}{config.heads}"
    save_native(made, where)
    model = load_model(where, tokenizer=False)
    assert isinstance(model, Model)
    return model


def _encoder_sizes(layers: int | None, heads: int | None) -> dict[str, Any]:
    return {name: value for name, value in (("layers", layers), ("heads", heads)) if value is not None}


def _encoder(seed: int, layers: int = tiny.LAYERS, heads: int = tiny.HEADS) -> Model:
    """A stack of torch's own encoder layers between an embedding and an unembedding."""
    from interp.models.wrap import wrap

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(
                tiny.WIDTH, heads, 64, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            self.embed = nn.Embedding(tiny.VOCAB, tiny.WIDTH)
            self.stack = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
            self.head = nn.Linear(tiny.WIDTH, tiny.VOCAB)

    module = tiny.seeded(Words, seed)

    def plain(tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        padding = None if mask is None else ~mask
        words: Any = module
        return words.head(words.stack(words.embed(tokens), src_key_padding_mask=padding))  # type: ignore[no-any-return]

    return wrap(module, layers="stack.layers", embed="embed", unembed="head", plain=plain)


def _bridged(name: str, folder: Path, seed: int) -> Iterator[AuditRow]:
    """A checkpoint without a row: plain logits through the bridge, and no more."""
    from interp.models.bridge import BridgeModel

    module: Any = tiny.rowless(name, seed)
    tokens = _tokens(None, 3, 9, seed)
    with torch.no_grad():
        theirs = module(tokens).logits
    with quiet():
        module.save_pretrained(folder)
    model = load_model(folder, tokenizer=False)
    if not isinstance(model, BridgeModel):
        raise UserError(f"{name} has a family row and does not go through the bridge")
    ours, scale, allowed = model.run(tokens).logits, size(theirs) or 1.0, ALLOWED[torch.float32]

    def row(check: str, share: float | None, n: int, why: str = "") -> AuditRow:
        said = "through the bridge: plain forward passes and hooks only"
        return AuditRow(
            "float32", "forms", "logits", check, None, "batch pos d_vocab", share is None or share <= allowed, share,
            None if share is None else allowed, 1.0, n, why or said,
        )  # fmt: skip

    yield row("three prompts = the module's own forward", difference(ours, theirs) / scale, len(tokens))
    with torch.no_grad():
        alone = module(tokens[:1, :4]).logits[0]
    for side in ("left", "right"):
        both = Prompts.of([tokens[1].tolist(), tokens[0, :4].tolist()], pad_side=side)
        check = f"{side}-padded = the module's own forward, unpadded"
        try:
            padded = model.run(both).logits[1][both.mask[1]]
        except UserError as error:
            yield row(f"{side} padding is refused", None, 2, str(error))
        else:
            yield row(check, difference(padded, alone) / scale, 2)
