"""The training loop: seeded, clipped, in mixed precision where asked, resumable to the bit.

A step: take the batches of (seed, step); forward under autocast; weighted cross-entropy in fp32; backward (scaled
under fp16); clip; AdamW at the schedule's rate; one line to `log.jsonl`. Every `checkpoint_every` steps, and at
the end, a checkpoint. The same command again resumes from the newest one, and equals an uninterrupted run
bit for bit on the same machine, threads and dtype.

Mixed precision keeps parameters and optimiser state in fp32; bf16 needs no loss scaling, fp16 uses GradScaler
(1710.03740). fp32 is the default, on every device.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.registry import UserError
from interp.training import checkpoint
from interp.training.card import Origin, write_card
from interp.training.optim import adamw, clip_gradients, learning_rate, set_rate
from interp.training.recipes import Batch, Open, Recipe, Settings, load_recipe

logger = logging.getLogger(__name__)

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16,
}  # fmt: skip
LOG = "log.jsonl"
LogLine = dict[str, int | float | None]
Progress = Callable[[LogLine], None]


def summed_cross_entropy(
    logits: Float[Tensor, "batch pos d_vocab"], batch: Batch
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Σ w·(−log p(token)) in nats, in fp32, over every token but the first of each row, and Σ w.

    Open targets count −Σ q log p against their distribution q in place of one drawn token.
    """
    log_p = logits[:, :-1].float().log_softmax(-1)
    nll = -log_p.gather(-1, batch.tokens[:, 1:, None]).squeeze(-1)
    used = batch.weights[:, 1:]
    total, weight = (nll * used).sum(), used.sum()
    if batch.open is not None:
        choice = batch.open
        crossed = -(choice.probability * log_p[choice.row, choice.pos - 1]).sum(-1)
        total, weight = total + (crossed * choice.weight).sum(), weight + choice.weight.sum()
    return total, weight


def _moved(batch: Batch, device: torch.device) -> Batch:
    o = batch.open
    there = o and Open(o.row.to(device), o.pos.to(device), o.probability.to(device), o.weight.to(device))
    return Batch(batch.tokens.to(device), batch.weights.to(device), there)


def batch_loss(
    model: nn.Module, batches: Sequence[Batch], device: torch.device, dtype: torch.dtype
) -> Float[Tensor, ""]:
    """Mean cross-entropy in nats over all targets of a step, weighted: Σ w·nll / Σ w."""
    total = torch.zeros((), device=device)
    weight = torch.zeros((), device=device)
    for given in batches:
        batch = _moved(given, device)
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            logits = model(batch.tokens).logits
        summed, counted = summed_cross_entropy(logits, batch)
        total, weight = total + summed, weight + counted
    return total / weight


@contextmanager
def _own_random_state(seed: int, device: torch.device) -> Iterator[None]:
    """Dropout draws from torch's default generator: seed it inside, and leave the caller's as it was."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield


def train_step(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    recipe: Recipe,
    settings: Settings,
    *,
    seed: int,
    step: int,
    device: torch.device,
    dtype: torch.dtype,
) -> LogLine:
    """One step; returns what the log keeps of it: loss in nats, rate, gradient norms, loss scale."""
    rate = learning_rate(settings, step)
    set_rate(optimiser, rate)
    loss = batch_loss(model, recipe.batches(seed, step), device, dtype)
    optimiser.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimiser)
    before, after = clip_gradients(model, settings.clip)
    if not (scaler.is_enabled() or math.isfinite(before)):
        found = f"gradients {before}, loss {float(loss.detach())}"
        raise UserError(f"{recipe.name} diverged at step {step}: {found}; try a lower lr")
    # under fp16 a step whose gradients overflowed is skipped, and the scale lowered
    scaler.step(optimiser)
    scaler.update()
    return {
        "step": step, "loss": float(loss.detach()), "lr": rate,
        "grad_norm": _finite(before), "grad_norm_clipped": _finite(after),
        "loss_scale": float(scaler.get_scale()),
    }  # fmt: skip


def _finite(value: float) -> float | None:
    """JSON has no infinity: an overflow of fp16, whose step is skipped, is logged as null."""
    return value if math.isfinite(value) else None


def train(
    name: str | Recipe,
    *,
    out: Path | str,
    text: Path | str | None = None,
    seed: int = 0,
    steps: int | None = None,
    device: str | torch.device = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
    resume: bool = True,
    stop_after: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Train a recipe and write its model folder (weights, tokenizer, card) to `out`; returns `out`.

    `steps` replaces the recipe's number (the schedule shrinks with it). `resume=False` starts afresh and
    deletes the run's own checkpoints and log. `text` is the folder of a recipe on natural text. `stop_after`
    ends this call after that many steps, with a checkpoint and no card, as an interruption would. `progress`
    is called with each step's log line.

    Raises UserError for an unknown recipe, dtype or device, where `out` holds another run's checkpoints, and
    where a run diverges.
    """
    recipe = load_recipe(name, text) if isinstance(name, str) else name
    if dtype not in DTYPES:
        raise UserError(f"unknown dtype {dtype!r}; there are: {', '.join(DTYPES)}")
    where = _device(device)
    settings = recipe.settings if steps is None else replace(recipe.settings, steps=steps)
    folder = Path(out)
    identity = {"recipe": recipe.name, "seed": seed, "dtype": dtype, "settings": asdict(settings), **recipe.identity}
    if threads is not None:
        torch.set_num_threads(threads)
    with _own_random_state(seed, where):
        model = recipe.model(torch.Generator().manual_seed(seed)).to(where)
        done, seconds = _run(
            model, recipe, settings, folder, identity, seed=seed, device=where, dtype=dtype,
            resume=resume, stop_after=stop_after, progress=progress,
        )  # fmt: skip
    if done < settings.steps:
        return folder
    model.eval()
    recipe.export(model, folder)
    origin = Origin(
        recipe=recipe.name, seed=seed, steps=settings.steps, seconds=seconds, device=str(where), dtype=dtype,
        threads=torch.get_num_threads(), settings=asdict(settings),
        arguments=recipe.arguments,
    )  # fmt: skip
    more = recipe.afterwards(folder, seed) if recipe.afterwards else []
    write_card(folder, recipe, origin, [*recipe.evaluate(model, seed), *more])
    return folder


def _run(
    model: nn.Module,
    recipe: Recipe,
    settings: Settings,
    folder: Path,
    identity: dict[str, Any],
    *,
    seed: int,
    device: torch.device,
    dtype: str,
    resume: bool,
    stop_after: int | None,
    progress: Progress | None,
) -> tuple[int, float]:
    """Steps from the newest checkpoint to the end; (steps done, seconds spent in all)."""
    optimiser = adamw(model, settings)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == "float16")
    saved = folder / "checkpoints"
    first, before = _begin(model, optimiser, scaler, folder, identity, device, resume)
    last = settings.steps if stop_after is None else min(settings.steps, first + stop_after)
    model.train()
    if first == 0 and recipe.snapshot:
        recipe.snapshot(model, folder, 0)
    began = time.perf_counter()
    seconds = before
    with (folder / LOG).open("a") as log:
        for step in range(first, last):
            if recipe.adjust:
                recipe.adjust(model, step)
            row = train_step(
                model, optimiser, scaler, recipe, settings,
                seed=seed, step=step, device=device, dtype=DTYPES[dtype],
            )  # fmt: skip
            seconds = before + time.perf_counter() - began
            row["seconds"] = round(seconds, 3)
            log.write(json.dumps(row) + "\n")
            if recipe.snapshot:
                recipe.snapshot(model, folder, step + 1)
            if progress:
                progress(row)
            if (step + 1) % settings.checkpoint_every == 0 or step + 1 == last:
                log.flush()
                scale = scaler.state_dict() if scaler.is_enabled() else None
                state = checkpoint.State(step + 1, seconds, identity, scale)
                checkpoint.save(saved, model, optimiser, state, device, settings.keep)
    return last, seconds


def _begin(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    folder: Path,
    identity: dict[str, Any],
    device: torch.device,
    resume: bool,
) -> tuple[int, float]:
    """Restore the newest checkpoint and cut the log back to it, or start at 0 with an empty log."""
    folder.mkdir(parents=True, exist_ok=True)
    found = checkpoint.checkpoints(folder / "checkpoints")
    if not resume:
        checkpoint.clear(folder / "checkpoints")
        found = []
    step, seconds = 0, 0.0
    if found:
        checkpoint.check_identity(found[-1], checkpoint.read_state(found[-1]).identity, identity)
        state = checkpoint.restore(found[-1], model, optimiser, device)
        if state.scaler and scaler.is_enabled():
            scaler.load_state_dict(dict(state.scaler))
        step, seconds = state.step, state.seconds
        logger.info("resumed %s at step %d", folder, step)
    _cut_log(folder / LOG, step)
    return step, seconds


def _cut_log(path: Path, steps: int) -> None:
    """Keep the lines of the first `steps` steps: later ones were written after the checkpoint and are redone."""
    lines = path.read_text().splitlines()[:steps] if path.exists() else []
    path.write_text("".join(line + "\n" for line in lines))


def _device(device: str | torch.device) -> torch.device:
    try:
        where = torch.device(device)
    except RuntimeError:
        raise UserError(f"unknown device {device!r}; use cpu, cuda or cuda:N") from None
    if where.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device {device!r} was asked for, but torch sees no GPU here; use cpu")
    return where
