"""A sweep of real cells on the embedded model: the pool, a killed worker, and the tables of an undisturbed run."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from interp.sweep.claims import Claims, Owner, alive_here
from interp.sweep.plan import make_plan
from interp.sweep.run import Options, run_sweep
from interp.sweep.work import Event

TEXT = """
defaults: {n: 16}
cells:
  - experiment: activation_patching
    grid: {task: [ioi, induction], seed: [0, 1]}
    zip: {sites: [z, mlp_post], by: [head, layer]}
  - experiment: [direct_logit_attribution, logit_lens]
"""


@pytest.mark.slow
def test_killed_workers_change_no_byte(tmp_path: Path) -> None:
    file = tmp_path / "some.yaml"
    file.write_text(TEXT, encoding="utf-8")
    calm = make_plan(file, out=tmp_path / "calm")
    assert run_sweep(calm, Options("inline", threads=1)).complete

    plan = make_plan(file, out=tmp_path / "rough")
    killed: list[int] = []

    def kill_one(event: Event) -> None:
        """After the first, third and fifth cell that ends: kill whoever has another one in hand."""
        if event.state == "done" and len(killed) < 3:
            for _, claim in Claims(plan.out, Owner.here()).all():
                # a claim of one that was killed before stands until another worker takes it over
                if alive_here(claim.owner):
                    os.kill(claim.owner.pid, signal.SIGKILL)
                    killed.append(claim.owner.pid)
                    return

    outcome = run_sweep(plan, Options("local", workers=2, threads=1), on_event=kill_one)
    assert killed
    assert outcome.complete
    for cell in plan.cells:
        tables = [(p.out / cell.place / "table.parquet").read_bytes() for p in (calm, plan)]
        assert tables[0] == tables[1], cell.place
