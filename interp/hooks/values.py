"""The frozen values that runs give: `Run`, one forward pass with its captures, and `Means` over many prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.hooks.addresses import Address
from interp.hooks.prompts import Prompts
from interp.registry import UserError, unknown

if TYPE_CHECKING:
    from interp.plots import Figure

NO_TENSORS: Mapping[str, Tensor] = MappingProxyType({})
Acts = Mapping[str, Any]
"""Captures by address. A checker of types would look at one, and those of a pair are run when they are asked for."""


def _frozen(mapping: Acts) -> Acts:
    """The mapping as it is now; one that is no dictionary has its own way of giving values, and stays."""
    return MappingProxyType(dict(mapping)) if isinstance(mapping, dict | MappingProxyType) else mapping


@dataclass(frozen=True, eq=False)
class Run:
    """One forward pass: its prompts, logits, and what was captured.

    `run["L1.z"]` is a captured activation; `run.grads["L1.z"]` a gradient where one was asked for.

    >>> import interp
    >>> run = interp.load_model("toy-ioi").run([[1, 2, 3]], capture="z")
    >>> run["L-1.z"].shape, len(run.acts)
    (torch.Size([1, 3, 4, 24]), 3)
    """

    prompts: Prompts
    logits: Float[Tensor, "batch pos d_vocab"]
    acts: Acts = field(default_factory=dict)
    grads: Mapping[str, Tensor] = field(default_factory=dict)
    metric: Float[Tensor, " prompt"] | None = None
    """The metric the gradients belong to, per prompt."""
    layers: int = 0
    decode: Callable[[Tensor], Sequence[str]] | None = field(default=None, repr=False)
    """Token ids to text, where the model has a tokenizer: for what is shown to people."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "acts", _frozen(self.acts))
        object.__setattr__(self, "grads", _frozen(self.grads))

    def __getitem__(self, address: str) -> Tensor:
        if address in self.acts:
            known: Tensor = self.acts[address]
            return known
        key = str(Address.parse(address).resolve(self.layers))
        if key not in self.acts:
            if not self.acts:
                raise UserError(f"this run captured nothing: ask for it by capture=[{address!r}]")
            raise unknown("captured address", address, sorted(self.acts))
        value: Tensor = self.acts[key]
        return value

    def __contains__(self, address: object) -> bool:
        return isinstance(address, str) and str(Address.parse(address).resolve(self.layers)) in self.acts

    def stacked(self, site: str) -> Tensor:
        """A site's captures of all layers, `[layer, batch, …]`."""
        return torch.stack([self[f"L{layer}.{site}"] for layer in range(self.layers)])

    def attention(self, layer: int, prompt: int = 0, heads: Sequence[int] | None = None) -> Figure:
        """A picture of a layer's attention patterns on one prompt; needs `capture=["pattern"]`.

        Negative layers count from the end. UserError where the pattern was not captured.
        """
        from interp.hooks.show import attention_figure

        return attention_figure(self, layer, prompt, heads)

    def _repr_html_(self) -> str:
        from interp.hooks.show import run_card

        return run_card(self)


@dataclass(frozen=True, eq=False)
class Means:
    """Mean activations over prompts, by `all`, `position`, `label` or `template`.

    Values by address: `all` […], `position` [real index, …], `label` [label, …], `template`
    [template, real index, …]. Means weigh every real token once; `counts` has how many each cell saw.

    >>> import interp
    >>> model = interp.load_model("toy-ioi")
    >>> means = model.means([[1, 2, 3], [4, 5]], ["z"])
    >>> means["L1.z"].shape
    torch.Size([4, 24])
    >>> run = model.run([[1, 2, 3]], edits=[interp.mean("L1.z", means, head=0)])
    """

    by: str
    values: Mapping[str, Tensor]
    counts: Mapping[str, Tensor]
    labels: tuple[str, ...] = ()
    n: int = 0
    source: str = ""
    """Digest of the prompts averaged over."""
    layers: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _frozen(self.values))
        object.__setattr__(self, "counts", _frozen(self.counts))

    def __getitem__(self, address: str) -> Tensor:
        key = str(Address.parse(address).resolve(self.layers))
        if key not in self.values:
            raise unknown("averaged address", address, sorted(self.values))
        return self.values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)
