"""Gradients at every site, against autograd through the independent definitions.

A metric (a fixed random direction in the logits) is differentiated by one backward pass of the model with all
sites asked for at once, and by one backward pass of the definitions per site. At derived sites both are the
gradient through that reader alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from interp.hooks.addresses import Address
from interp.interventions.audit.bench import Bench
from interp.interventions.audit.records import difference, size

Metric = Callable[[Tensor], Tensor]


def gradients(bench: Bench) -> None:
    """The gradient of a metric at every site."""
    mask = bench.clean.mask
    generator = torch.Generator().manual_seed(bench.seed)
    direction = torch.randn(bench.base.logits.shape, generator=generator).to(bench.base.logits) * mask[..., None]

    def metric(logits: Float[Tensor, "batch pos d_vocab"]) -> Float[Tensor, " batch"]:
        return (logits * direction.to(logits)).sum((1, 2))

    run = bench.model.run(bench.clean, grads=bench.names, metric=metric)
    bench.out.same(RULE, Address("logits"), "logits with gradients = plain run", run.logits, bench.base.logits)
    whole = bench.definitions.whole()
    want = {a: _by_definition(bench, whole, a, metric) for a in bench.addresses if a in bench.definitions.steps}
    for address in bench.addresses:
        if address not in want:
            bench.out.add(RULE, address, CHECK, None, reason="this site has no definition to check by")
            continue
        got, goal = (bench.real(address, g) for g in (run.grads[str(address)], want[address]))
        worst, scale = difference(got, goal), size(goal) * _cancelled(address, whole, want)
        allowed = bench.out.relative * (scale or 1.0)
        bench.out.add(RULE, address, CHECK, worst <= allowed, value=worst, tolerance=allowed, scale=scale)


def _by_definition(bench: Bench, whole: dict[Address, Tensor], address: Address, metric: Metric) -> Tensor:
    here = whole[address].clone().requires_grad_(True)
    logits = bench.definitions.after(whole, address, here)[Address("logits")]
    (grad,) = torch.autograd.grad(metric(logits).sum(), here)
    return grad


def _cancelled(address: Address, whole: dict[Address, Tensor], want: dict[Address, Tensor]) -> float:
    """How much larger the terms were whose difference a gradient is: rounding is a share of those.

    A softmax that has all but settled passes back p·(g − Σ p·g), the small difference of large numbers.
    """
    if address.site not in BEHIND_SOFTMAX:
        return 1.0
    pattern, scores = (Address(site, address.layer) for site in ("pattern", "scores"))
    terms, left = size(whole[pattern] * want[pattern]), size(want[scores])
    return max(1.0, terms / left) if left else 1.0


BEHIND_SOFTMAX = ("scores", "q", "k", "q_norm", "k_norm", "q_rot", "k_rot", "q_input", "k_input")
RULE, CHECK = "gradient", "of a metric = autograd through the definitions"
