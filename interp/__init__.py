"""Which parts of this model cause this behaviour, and how sure are we?

`import interp` is light: a name is imported from its room when it is first used.
"""

from __future__ import annotations

from importlib import import_module

from interp._version import __version__

# name -> "module" (same name there) or "module:name there"
_NAMES: dict[str, str] = {
    "UserError": "interp.registry",
    # models
    "load_model": "interp.models.load",
    "wrap": "interp.models.wrap",
    "register_family": "interp.models.families",
    # sites and the values hooks speak of
    "register_site": "interp.hooks.sites",
    "Prompts": "interp.hooks.prompts",
    "Run": "interp.hooks.values",
    "Means": "interp.hooks.values",
    "Geometry": "interp.hooks.geometry",
    # edits; `patch` and `ablate` are the functions that measure effects
    "zero": "interp.hooks.edits",
    "mean": "interp.hooks.edits",
    "resample": "interp.hooks.edits",
    "patch_edit": "interp.hooks.edits:patch",
    "add": "interp.hooks.edits",
    "scale": "interp.hooks.edits",
    "project_out": "interp.hooks.edits",
    "freeze": "interp.hooks.edits",
    "function": "interp.hooks.edits",
    "register_edit": "interp.hooks.edits:edit_kind",
    # tasks and metrics
    "load_task": "interp.tasks",
    "task_from_table": "interp.tasks",
    "register_task": "interp.tasks",
    "register_metric": "interp.metrics",
    # analyses
    "patch": "interp.interventions.patching",
    "UneditedRuns": "interp.interventions.unedited",
    "ablate": "interp.interventions.ablation",
    "direct_logit_attribution": "interp.attribution.direct",
    "watch": "interp.numerics.watch",
    # cells
    "Config": "interp.cells",
    "ModelTaskConfig": "interp.cells",
    "Experiment": "interp.cells",
    "Table": "interp.cells",
    "run_cell": "interp.cells",
}

__all__ = ["__version__", *_NAMES]


def __getattr__(name: str) -> object:
    where = _NAMES.get(name)
    if where is None:
        raise AttributeError(f"module 'interp' has no attribute {name!r}")
    module, _, attribute = where.partition(":")
    value = getattr(import_module(module), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
