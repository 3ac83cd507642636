"""Gradients at every site, against autograd through the independent definitions.

A metric (a fixed random direction in the logits) is differentiated by one backward pass of the model with all
sites asked for at once, and by one backward pass of the definitions per site. At derived sites both are the
gradient through that reader alone.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from interp.hooks.addresses import Address
from interp.interventions.audit.bench import Bench


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
    for address in bench.addresses:
        if address not in bench.definitions.steps:
            bench.out.add(RULE, address, CHECK, None, reason="this site has no definition to check by")
            continue
        here = whole[address].clone().requires_grad_(True)
        logits = bench.definitions.after(whole, address, here)[Address("logits")]
        (want,) = torch.autograd.grad(metric(logits).sum(), here)
        got = run.grads[str(address)]
        bench.out.close(RULE, address, CHECK, bench.real(address, got), bench.real(address, want))


RULE, CHECK = "gradient", "of a metric = autograd through the definitions"
