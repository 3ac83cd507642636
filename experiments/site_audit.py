"""Site audit: the whole contract of the sites, tried on one model; one row per site, layer and check.

A row holds (`passed`), with the largest difference seen and the largest one allowed; 0 allowed means equal
bits. Rows whose check does not apply say why. Use it on a model of your own, or after adding a site or a family.

    interp run site_audit --model FOLDER
    interp run site_audit --set families=all         # the support matrix
    interp run site_audit --set families='[gptj, opt]'

With `families`, tiny random checkpoints of those kinds are made from `seed`, saved to a temporary folder, loaded,
and audited in float32, bfloat16 and float16, with their forms and replay beside; one row per kind, site and clause
sums up layers, paddings and comparisons, with differences as shares of the numbers compared.

Limits: random prompts of a few tokens; what lies beyond them (long contexts, other devices) is not tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from interp.cells import Config, Context, Experiment, Table
from interp.context import Dtype, ModelName

if TYPE_CHECKING:
    from collections.abc import Iterable


class SiteAuditConfig(Config):
    """Settings of `site_audit`."""

    model: ModelName | None = Field("toy-ioi", description="embedded name, local folder or hub name")
    families: Literal["all"] | tuple[str, ...] = Field(
        (), description="all, or kinds of tiny checkpoints, in the place of a model"
    )
    seed: int = Field(0, ge=0, lt=2**63, description="seed of the prompts, of the random edits and of tiny checkpoints")
    rows: int = Field(3, ge=3, description="prompts in the batch")
    length: int = Field(7, ge=4, description="tokens of a prompt")
    tolerance: float | None = Field(None, gt=0, description="share of the numbers' size; by dtype if not given")
    settings: tuple[str, ...] = Field(
        ("unpadded", "left-padded"), min_length=1, description="of unpadded, left-padded, right-padded"
    )
    dtype: Dtype = Field("float32", description="number format of the weights")

    @model_validator(mode="before")
    @classmethod
    def _one_of_two(cls, values: Any) -> Any:
        """Families stand in the place of the model; of the other settings only the seed is theirs."""
        if not isinstance(values, dict) or not values.get("families"):
            return values
        fixed = [name for name in ("rows", "length", "tolerance", "settings", "dtype") if name in values]
        named = [] if values.get("model") in (None, "toy-ioi") else ["model"]
        if fixed := [*named, *(name for name in fixed if values[name] != cls.model_fields[name].default)]:
            raise ValueError(f"with families=, the only other setting is seed; leave out {', '.join(fixed)}")
        return {**values, "model": None}


def run(config: SiteAuditConfig, context: Context) -> Table:
    """Every check as a row of the audit schema."""
    from interp.results.frames import typed
    from interp.results.schemas import AUDIT

    records = list(_families(config, context) if config.families else _one_model(config, context))
    broken = sum(r["passed"] is False for r in records)
    notes = {"checks": len(records), "broken": broken, "passed": broken == 0}
    return Table(typed(records, AUDIT), AUDIT, notes=notes)


def _one_model(config: SiteAuditConfig, context: Context) -> Iterable[dict[str, Any]]:
    from interp.interventions.audit import site_audit

    audit = site_audit(
        context.model, seed=config.seed, rows=config.rows, length=config.length, tolerance=config.tolerance,
        settings=config.settings,
    )  # fmt: skip
    return ({**r, "model": config.model, "seed": config.seed} for r in audit.records())


def _families(config: SiteAuditConfig, context: Context) -> Iterable[dict[str, Any]]:
    from dataclasses import asdict

    from interp.interventions.audit.families import family_rows, kinds

    names = kinds() if config.families == "all" else config.families
    for name in context.progress(names, "kinds of checkpoint"):
        for kind, family, row in family_rows([name], config.seed):
            yield {"experiment": "site_audit", "model": kind, "family": family, "seed": config.seed, **asdict(row)}


EXPERIMENT = Experiment(
    "site_audit", 1, SiteAuditConfig, run, presets={"smoke": {"length": 5, "settings": ("unpadded",)}}
)

if __name__ == "__main__":
    from interp.cli import main_for

    raise SystemExit(main_for("site_audit"))
