"""Site audit: the whole contract of the sites, tried on one model; one row per site, layer and check.

A row holds (`passed`), with the largest difference seen and the largest one allowed; 0 allowed means equal
bits. Rows whose check does not apply say why. Use it on a model of your own, or after adding a site or a family.

Limits: random prompts of a few tokens; what lies beyond them (long contexts, other devices) is not tried.
"""

from __future__ import annotations

from pydantic import Field

from interp.cells import Config, Context, Experiment, Table
from interp.context import Dtype


class SiteAuditConfig(Config):
    """Settings of `site_audit`."""

    model: str = Field("toy-ioi", description="embedded name, local folder or hub name")
    seed: int = Field(0, ge=0, description="seed of the prompts and of the random edits")
    rows: int = Field(3, ge=3, description="prompts in the batch")
    length: int = Field(7, ge=4, description="tokens of a prompt")
    tolerance: float | None = Field(None, gt=0, description="share of the numbers' size; by dtype if not given")
    settings: tuple[str, ...] = Field(
        ("unpadded", "left-padded"), min_length=1, description="of unpadded, left-padded, right-padded"
    )
    dtype: Dtype = Field("float32", description="number format of the weights")


def run(config: SiteAuditConfig, context: Context) -> Table:
    """Every check as a row of the audit schema."""
    from interp.interventions.audit import site_audit
    from interp.results.frames import typed
    from interp.results.schemas import AUDIT

    audit = site_audit(
        context.model, seed=config.seed, rows=config.rows, length=config.length, tolerance=config.tolerance,
        settings=config.settings,
    )  # fmt: skip
    records = [{**r, "model": config.model, "seed": config.seed} for r in audit.records()]
    notes = {"checks": len(records), "broken": len(audit.broken), "passed": audit.passed}
    return Table(typed(records, AUDIT), AUDIT, notes=notes)


EXPERIMENT = Experiment(
    "site_audit", 1, SiteAuditConfig, run, presets={"smoke": {"length": 5, "settings": ("unpadded",)}}
)

if __name__ == "__main__":
    from interp.cli import main_for

    raise SystemExit(main_for("site_audit"))
