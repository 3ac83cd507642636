"""A model to ask questions of: `run`, `means`, `hooks`, `generate`, `sites`.

Nothing outlives a call: no hook stays on a module, and train mode, grad mode and `requires_grad` are as they
were, however the call ends. Weights stay exactly the checkpoint's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.modules import module as everywhere

from interp.hooks.addresses import Address
from interp.hooks.context import Held
from interp.hooks.edits import Edit, as_edits
from interp.hooks.geometry import Geometry
from interp.hooks.prompts import Prompts
from interp.hooks.sites import SiteList, resolve, resolve_all
from interp.hooks.taps import Direction, RunTap, UserFunction
from interp.hooks.values import Means, Run
from interp.models.averages import average
from interp.models.family import Family
from interp.models.forward import forward
from interp.models.grid import Grid
from interp.models.net import Net, bind, first_of, need
from interp.models.weights import HeadWeights, head_weights
from interp.registry import UserError

Input = Prompts | Tensor | str | Sequence[str] | Sequence[Sequence[int]]
HookSpec = tuple[str, UserFunction] | tuple[str, UserFunction, Direction]
MetricFunction = Callable[[Float[Tensor, "batch pos d_vocab"]], Float[Tensor, " prompt"]]


class Model:
    """A checkpoint with its family row. Make one with `interp.load_model`."""

    def __init__(
        self, module: nn.Module, family: Family, config: Any, *, name: str, tokenizer: Any = None, revision: str = ""
    ) -> None:
        self.module, self.family, self.config = module, family, config
        self.name, self.tokenizer, self.revision = name, tokenizer, revision
        self._functions: list[tuple[Address, UserFunction, Direction]] = []
        self.geometry: Geometry = self.net.geometry

    @property
    def net(self) -> Net:
        """The parts as they are now: found anew each time, so a module swapped in is the one that runs."""
        return bind(self.module, self.family, self.config)

    @property
    def device(self) -> torch.device:
        """Where tokens enter."""
        return self._embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.dtype

    @property
    def _embedding(self) -> Tensor:
        return next(need(self.module, first_of(self.family.embed), self.family).parameters())  # type: ignore[no-any-return]

    def sites(self) -> SiteList:
        """The sites of this model, by name, each with axes and meaning; `site.shape(model.geometry)` has sizes."""
        return SiteList(self.geometry)

    def weights(self, layer: int) -> HeadWeights:
        """Attention weights of one layer, by head; negative layers count from the end."""
        where = Address("z", layer).resolve(self.geometry.layers)
        return head_weights(self.net, int(where.layer or 0))

    def weights_hash(self) -> str:
        """sha256 of all parameters and buffers that a checkpoint holds: names, dtypes, values."""
        h = hashlib.sha256()
        for name, tensor in sorted(self.module.state_dict().items()):
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            h.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            h.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
        return h.hexdigest()

    def prompts(self, x: Input, mask: Tensor | None = None, *, bos: bool = False) -> Prompts:
        """Prompts of this model from prompts, token ids or text, on its device and checked against its sizes."""
        if isinstance(x, str):
            x = [x]
        if isinstance(x, Sequence) and x and isinstance(x[0], str):
            prompts = Prompts.of([self._encode(str(text), bos) for text in x], text=[str(t) for t in x])
        elif isinstance(x, Prompts):
            if mask is not None:
                raise UserError("prompts carry their own mask; give mask= only with token ids")
            prompts = x
        else:
            prompts = Prompts.of(x, mask)  # type: ignore[arg-type]
        self._check(prompts)
        return prompts.to(self.device)

    def _encode(self, text: str, bos: bool) -> list[int]:
        if self.tokenizer is None:
            raise UserError(f"model {self.name} has no tokenizer: give token ids, or load it with tokenizer=…")
        ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        unk = getattr(self.tokenizer, "unk_token_id", None)
        if unk is not None and unk in ids and str(self.tokenizer.unk_token) not in text:
            words = [w for w in text.split() if unk in self.tokenizer(" " + w, add_special_tokens=False)["input_ids"]]
            what = ", ".join(map(repr, words[:5])) or repr(text[:40])
            raise UserError(f"not in the vocabulary of {self.name}: {what}")
        start = self.tokenizer.bos_token_id
        if bos and start is None:
            raise UserError(f"the tokenizer of {self.name} has no BOS token")
        return [start, *ids] if bos else ids

    def _check(self, prompts: Prompts) -> None:
        g, tokens = self.geometry, prompts.tokens
        worst, least = int(tokens.max()), int(tokens.min())
        if least < 0 or worst >= g.d_vocab:
            bad = worst if worst >= g.d_vocab else least
            raise UserError(f"token id {bad} lies outside the vocabulary of {self.name} (0 to {g.d_vocab - 1})")
        longest = int(prompts.mask.sum(1).max())
        if longest > g.n_ctx and (g.pos_embed or g.qk_positions):
            raise UserError(f"a prompt of {longest} tokens is longer than the {g.n_ctx} positions of {self.name}")
        steady = self.family.steady_length(self.config)
        if steady is not None and longest > steady:
            raise UserError(
                f"a prompt of {longest} tokens is longer than {steady}: beyond that {self.name} turns queries and keys "
                "by angles of the longest prompt beside it, and its numbers would depend on the batch"
            )

    def run(
        self,
        x: Input,
        mask: Tensor | None = None,
        *,
        edits: Edit | Iterable[Edit] = (),
        capture: Iterable[str] | str = (),
        grads: Iterable[str] | str = (),
        metric: MetricFunction | None = None,
        plain_module: bool = False,
    ) -> Run:
        """One forward pass, with edits made and sites captured on the way.

        Args:
            x: prompts, token ids `[batch, pos]`, or text.
            mask: True on real tokens; padding on the left or right, with token ids only.
            edits: applied in the order given as the pass reaches their sites.
            capture: addresses whose values (after edits) to keep; a site without a layer means every layer.
            grads: addresses whose gradient of the summed `metric` to keep. At derived sites it is the
                gradient through that reader alone.
            metric: logits `[batch, pos, d_vocab]` to one number per prompt; needed with `grads`.
            plain_module: call the checkpoint's own forward instead (its containers' hooks fire); logits only.

        Raises UserError for anything that does not fit this model, before the pass starts.

        >>> import interp
        >>> model = interp.load_model("toy-ioi")
        >>> run = model.run([[1, 2, 3], [4, 5, 6]], capture=["z", "L1.pattern"])
        >>> run["L1.z"].shape, run["L1.pattern"].shape
        (torch.Size([2, 3, 4, 24]), torch.Size([2, 4, 3, 3]))
        """
        prompts = self.prompts(x, mask)
        todo = as_edits(edits)
        wanted, graded = resolve_all(capture, self.geometry), resolve_all(grads, self.geometry)
        if plain_module:
            if todo or wanted or graded or self._functions:
                raise UserError("plain_module=True gives logits only: no edits, captures, gradients or functions")
            return Run(prompts, self._plain_logits(prompts), layers=self.geometry.layers)
        net = self.net
        self._refuse_container_hooks(net)
        backward = any(direction == "backward" for _, _, direction in self._functions)
        if metric is not None and not callable(metric):
            raise UserError(
                f"metric= of a run is a function of the logits, one number per prompt, got {metric!r}; metrics by name "
                "are for functions that are given a task, such as interp.patch"
            )
        if (graded or backward) and metric is None:
            raise UserError("gradients need a metric: metric=function of the logits, one number per prompt")
        by_address = self._by_address(todo, prompts)
        base = self._base(net, todo, prompts)
        graph = bool(graded or backward)
        tap = RunTap(
            self.geometry,
            Held.all(prompts),
            edits=by_address,
            capture=[*wanted, *graded],
            functions=self._functions_by_address(),
            base=base,
            graph=graph,
        )
        with torch.set_grad_enabled(graph):
            logits = forward(net, prompts.tokens, Grid.of(net, prompts, net.dtype), tap)
            value = None if metric is None else metric(logits)
            gradients = self._gradients(tap, value, graded) if graph and value is not None else {}
        acts = tap.captured()
        return Run(
            prompts,
            logits.detach(),
            {str(a): acts[str(a)] for a in wanted},
            gradients,
            None if value is None else value.detach(),
            self.geometry.layers,
            None if self.tokenizer is None else self.to_text,
        )

    def _gradients(self, tap: RunTap, value: Tensor, graded: list[Address]) -> dict[str, Tensor]:
        roots = [tap.acts[a] for a in graded]
        live = [t for t in (*roots, *tap.roots) if t.requires_grad]
        if not value.requires_grad or not live:
            return {str(a): torch.zeros_like(tap.acts[a]) for a in graded}
        found = torch.autograd.grad(value.sum(), live, allow_unused=True)
        by_id = {id(t): g for t, g in zip(live, found, strict=True)}
        out = {}
        for address, root in zip(graded, roots, strict=True):
            grad = by_id.get(id(root))
            out[str(address)] = torch.zeros_like(root).detach() if grad is None else grad.detach()
        return out

    def _by_address(self, edits: tuple[Edit, ...], prompts: Prompts) -> dict[Address, list[Edit]]:
        found: dict[Address, list[Edit]] = {}
        for edit in edits:
            for address in edit.check(self.geometry, prompts):
                found.setdefault(address, []).append(edit)
        return found

    def _functions_by_address(self) -> dict[Address, list[tuple[UserFunction, Direction]]]:
        found: dict[Address, list[tuple[UserFunction, Direction]]] = {}
        for address, fn, direction in self._functions:
            for one in resolve(address, self.geometry):
                found.setdefault(one, []).append((fn, direction))
        return found

    def _base(self, net: Net, edits: tuple[Edit, ...], prompts: Prompts) -> Run | None:
        needed = [a for e in edits if e.needs_base for a in resolve(e.address, self.geometry)]
        if not needed:
            return None
        tap = RunTap(self.geometry, Held.all(prompts), capture=needed)
        with torch.no_grad():
            logits = forward(net, prompts.tokens, Grid.of(net, prompts, net.dtype), tap)
        return Run(prompts, logits, tap.captured(), layers=self.geometry.layers)

    def _plain_logits(self, prompts: Prompts) -> Tensor:
        tokens = prompts.tokens * prompts.mask  # as `embed` has it
        with torch.no_grad():
            if self.family.name == "native":
                return self.module(tokens, prompts.mask)  # type: ignore[no-any-return]
            extra = {"attention_mask": prompts.mask.long(), "position_ids": prompts.positions} if prompts.padded else {}
            return self.module(tokens, use_cache=False, **extra).logits  # type: ignore[no-any-return]

    def _refuse_container_hooks(self, net: Net) -> None:
        net.refuse_stray_hooks(self.module)

    def altered(self, net: Net | None = None) -> str:
        """What of the user's own takes part in a run and may do anything: mix rows, or ask which columns are there.

        Only a whole forward pass shows it what it expects; empty where there is nothing. `net` saves finding the
        model's parts again.
        """
        if self._functions:
            return "functions of the user are on the model"
        if torch.is_autocast_enabled(self.device.type):
            return "autocast is on, which chooses dtypes as a run goes"
        if everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks:
            return "hooks of the user are on all modules"
        for module in (self.net if net is None else net).called:
            if not isinstance(module, nn.Module):
                continue
            if module._forward_hooks or module._forward_pre_hooks:
                return f"a hook of the user is on a {type(module).__name__}"
            if "forward" in vars(module) and "_hf_hook" not in vars(module):  # accelerate's only moves tensors
                return f"a {type(module).__name__} has a forward of its own"
        return ""

    @contextmanager
    def hooks(self, *specs: HookSpec) -> Iterator[Model]:
        """Functions of your own on any sites, for every run inside.

        `(address, fn)` with `fn(x, ctx) -> new x` in the forward pass; `(address, fn, "backward")` with
        `fn(grad, ctx) -> new grad` sees gradients in runs that have a metric. Returning None changes nothing.

        >>> import interp
        >>> model = interp.load_model("toy-ioi")
        >>> before = model.run([[1, 2, 3]]).logits
        >>> with model.hooks(("L0.z", lambda x, ctx: 2 * x)):
        ...     inside = model.run([[1, 2, 3]]).logits
        >>> bool((inside == before).all()), bool((model.run([[1, 2, 3]]).logits == before).all())
        (False, True)
        """
        before = list(self._functions)
        new = []
        for spec in specs:
            if not isinstance(spec, tuple) or len(spec) not in (2, 3) or not callable(spec[1]):
                raise UserError(f"a hook is (address, function) or (address, function, 'backward'), got {spec!r}")
            address, fn, direction = spec if len(spec) == 3 else (*spec, "forward")
            if direction not in ("forward", "backward"):
                raise UserError(f"a hook's direction is 'forward' or 'backward', got {direction!r}")
            resolve(address, self.geometry)
            new.append((Address.parse(address), fn, direction))
        try:
            self._functions = [*before, *new]  # type: ignore[list-item]
            yield self
        finally:
            self._functions = before

    def means(
        self,
        x: Input | Sequence[Prompts],
        sites: Iterable[str] | str,
        *,
        by: str = "all",
        batch_size: int = 64,
    ) -> Means:
        """Mean activations over prompts: by `all`, `position`, `label` or `template`; real tokens only.

        Every real token weighs the same whatever the batches; sums are kept in float64.

        >>> import interp
        >>> model = interp.load_model("toy-ioi")
        >>> model.means([[1, 2, 3], [4, 5]], ["L1.z"], by="position")["L1.z"].shape
        torch.Size([3, 4, 24])
        """
        prompts = self.prompts(x)  # type: ignore[arg-type]
        addresses = resolve_all(sites, self.geometry)

        def chunks() -> Iterator[tuple[Prompts, dict[str, Tensor]]]:
            for start in range(0, len(prompts), batch_size):
                part = prompts.rows(slice(start, start + batch_size))
                yield part, dict(self.run(part, capture=[str(a) for a in addresses]).acts)

        return average(prompts, addresses, by, chunks(), self.geometry)

    def generate(
        self,
        x: Input,
        n: int,
        *,
        mask: Tensor | None = None,
        edits: Edit | Iterable[Edit] = (),
        temperature: float = 0.0,
        seed: int = 0,
    ) -> list[list[int]]:
        """Continue each prompt by `n` tokens with the edits in force at every step; the new tokens by row.

        Greedy at temperature 0, else sampled with its own seeded generator.

        >>> import interp
        >>> model = interp.load_model("toy-ioi")
        >>> [len(row) for row in model.generate([[1, 2, 3], [4, 5]], 2)]
        [2, 2]
        """
        if n < 1:
            raise UserError(f"n tokens to generate: at least 1, got {n}")
        prompts = self.prompts(x, mask)
        rows = [prompts.tokens[i][prompts.mask[i]].tolist() for i in range(len(prompts))]
        new: list[list[int]] = [[] for _ in rows]
        generator = torch.Generator().manual_seed(seed)
        for _ in range(n):
            step = Prompts.of([r + a for r, a in zip(rows, new, strict=True)])
            run = self.run(step, edits=edits)
            logits = run.logits[torch.arange(len(rows)), run.prompts.answer_columns].float().cpu()
            if temperature > 0:
                chosen = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)[:, 0]
            else:
                chosen = logits.argmax(-1)
            for row, token in zip(new, chosen.tolist(), strict=True):
                row.append(token)
        return new

    def to_text(self, tokens: Int[Tensor, ...] | Sequence[int]) -> list[str]:
        """Each token as text; its number where there is no tokenizer."""
        ids = torch.as_tensor(tokens).flatten().tolist()
        if self.tokenizer is None:
            return [str(i) for i in ids]
        return [self.tokenizer.decode([i]) for i in ids]

    def __repr__(self) -> str:
        g = self.geometry
        return f"Model({self.name!r}, {self.family.name}, {g.layers} layers × {g.heads} heads, d_model {g.d_model})"

    def _repr_html_(self) -> str:
        from interp.plots.show import card

        g = self.geometry
        facts = {
            "family": self.family.name, "layers": g.layers, "heads": g.heads,
            "kv heads": g.kv_heads if g.kv_heads != g.heads else None, "d_model": g.d_model, "d_head": g.d_head,
            "d_mlp": g.d_mlp if g.mlp else None, "vocabulary": g.d_vocab, "context": g.n_ctx,
            "parameters": f"{sum(p.numel() for p in self.module.parameters()):,}", "device": str(self.device),
            "dtype": str(self.dtype).removeprefix("torch."), "revision": self.revision or None,
            "tokenizer": "yes" if self.tokenizer is not None else "none: give token ids",
        }  # fmt: skip
        return card(f"Model {self.name}", facts, about="model.sites() lists what can be captured and edited.")
