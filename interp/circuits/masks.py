"""Learned masks: a gate per edge, trained to keep the behaviour with few edges open.

Gates are hard concrete (1712.01312): with u uniform and a parameter log α per edge,

    s = sigmoid((log u − log(1−u) + log α) / β),   gate = clip(s·(ζ − γ) + γ, 0, 1)

with stretch γ = −0.1, ζ = 1.1 and temperature β = 2/3. A slot reads gate · live + (1 − gate) · ablated. The
objective is the loss plus λ₁(o − t) + λ₂(o − t)², o being the expected share of open gates and t a target that
falls linearly from 1 to the share asked for over the first `warm` share of the steps; λ is raised by gradient
ascent (2406.16778). Scores are log α: at the end the circuit is the wanted number of edges with the largest.

Limits: stochastic (seeded); one prompt set is used whole in every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from interp.circuits.discover import Discovery, Request, register_discovery
from interp.circuits.select import top
from interp.circuits.values import edge_mask
from interp.interventions.circuit import CircuitPass, CircuitRunner
from interp.registry import UserError

LossFunction = Callable[[Float[Tensor, "circuit prompt"]], Tensor]
GAMMA, ZETA, BETA = -0.1, 1.1, 2 / 3


@dataclass(frozen=True)
class Schedule:
    """How gates are trained."""

    steps: int = 200
    rate: float = 0.2
    """Learning rate of the gates and of λ (Adam)."""
    warm: float = 0.6
    """Share of the steps over which the target falls to the share asked for."""
    start: float = 2.0
    """log α at the beginning: gates start nearly open."""
    samples: int = 2
    """Gate draws per step."""


def open_share(log_alpha: Float[Tensor, ...]) -> Float[Tensor, ...]:
    """Probability that each gate is not 0."""
    return torch.sigmoid(log_alpha - BETA * math.log(-GAMMA / ZETA))


def draw(
    log_alpha: Float[Tensor, "source slot"], uniform: Float[Tensor, "draw source slot"]
) -> Float[Tensor, "draw source slot"]:
    """Gates between 0 and 1, both ends included, for uniform numbers."""
    u = uniform.clamp(1e-6, 1 - 1e-6)
    s = torch.sigmoid((u.log() - (1 - u).log() + log_alpha) / BETA)
    return (s * (ZETA - GAMMA) + GAMMA).clamp(0.0, 1.0)


@dataclass(frozen=True, eq=False)
class Trained:
    """Trained gates."""

    log_alpha: Float[Tensor, "source slot"]
    history: tuple[dict[str, float], ...]
    """Loss, expected share of open gates, and target at every step."""


def train(runner: CircuitRunner, loss: LossFunction, share: float, schedule: Schedule, seed: int) -> Trained:
    """Train gates towards a share of open edges. `loss` maps the metric `[circuit, prompt]` to a number."""
    if not 0 < share < 1:
        raise UserError(f"the share of open edges lies between 0 and 1, got {share}")
    graph, device = runner.graph, runner.base.net.device
    inside = edge_mask(graph).to(device)
    generator = torch.Generator(device="cpu").manual_seed(seed)
    log_alpha = torch.full(inside.shape, schedule.start, device=device, requires_grad=True)
    multipliers = torch.zeros(2, device=device, requires_grad=True)
    gates = torch.optim.Adam([log_alpha], lr=schedule.rate)
    ascent = torch.optim.Adam([multipliers], lr=schedule.rate, maximize=True)
    history = []
    for step in range(schedule.steps):
        target = 1 - (1 - share) * min(1.0, step / max(1.0, schedule.warm * schedule.steps))
        uniform = torch.rand(schedule.samples, *inside.shape, generator=generator).to(device)
        with torch.enable_grad():
            gate = draw(log_alpha, uniform) * inside
            value = loss(CircuitPass(runner, gate).values())
            open_now = open_share(log_alpha)[inside].mean()
            gap = open_now - target
            total = value + multipliers[0] * gap + multipliers[1] * gap**2
            gates.zero_grad()
            ascent.zero_grad()
            total.backward()
        gates.step()
        ascent.step()
        history.append({"loss": float(value.detach()), "open": float(open_now.detach()), "target": target})
    return Trained(log_alpha.detach().cpu(), tuple(history))


@register_discovery("masks")
def masks(request: Request) -> Discovery:
    """Hard concrete gates on all edges, trained towards the share asked for."""
    runner, graph = request.runner("kl"), request.graph
    n = request.edges(graph)
    schedule = Schedule(steps=request.mask_steps)
    trained = train(runner, request.loss_of(runner), max(n, 1) / len(graph.edges), schedule, request.recipe.seed)
    scores = trained.log_alpha.double()
    circuit = top(graph, scores.masked_fill(~edge_mask(graph), 0.0), n)
    # a backward pass costs about two forward ones
    return Discovery(circuit, request.metric_for("kl"), cost=3.0 * schedule.steps * schedule.samples,
                     about={"algorithm": about(schedule)}, history=trained.history)  # fmt: skip


def about(schedule: Schedule) -> str:
    """The schedule, in words."""
    gate = f"hard concrete stretch [{GAMMA}, {ZETA}] temperature {BETA:.3g}"
    return f"{gate}, {schedule.steps} steps, warm {schedule.warm:g}"
