from interp._version import __version__ as __version__
from interp.attribution.direct import direct_logit_attribution as direct_logit_attribution
from interp.cells import Config as Config
from interp.cells import Experiment as Experiment
from interp.cells import ModelTaskConfig as ModelTaskConfig
from interp.cells import Table as Table
from interp.cells import run_cell as run_cell
from interp.hooks.edits import add as add
from interp.hooks.edits import edit_kind as register_edit
from interp.hooks.edits import freeze as freeze
from interp.hooks.edits import function as function
from interp.hooks.edits import mean as mean
from interp.hooks.edits import patch as patch_edit
from interp.hooks.edits import project_out as project_out
from interp.hooks.edits import resample as resample
from interp.hooks.edits import scale as scale
from interp.hooks.edits import zero as zero
from interp.hooks.geometry import Geometry as Geometry
from interp.hooks.prompts import Prompts as Prompts
from interp.hooks.sites import register_site as register_site
from interp.hooks.values import Means as Means
from interp.hooks.values import Run as Run
from interp.interventions.ablation import ablate as ablate
from interp.interventions.patching import patch as patch
from interp.interventions.unedited import UneditedRuns as UneditedRuns
from interp.metrics import register_metric as register_metric
from interp.models.families import register_family as register_family
from interp.models.load import load_model as load_model
from interp.models.wrap import wrap as wrap
from interp.numerics.watch import watch as watch
from interp.registry import UserError as UserError
from interp.tasks import load_task as load_task
from interp.tasks import register_task as register_task
from interp.tasks import task_from_table as task_from_table

__all__ = [
    "__version__",
    "direct_logit_attribution",
    "watch",
    "Config",
    "Experiment",
    "ModelTaskConfig",
    "Table",
    "run_cell",
    "add",
    "register_edit",
    "freeze",
    "function",
    "mean",
    "patch_edit",
    "project_out",
    "resample",
    "scale",
    "zero",
    "register_site",
    "Geometry",
    "Means",
    "Prompts",
    "Run",
    "ablate",
    "patch",
    "UneditedRuns",
    "register_metric",
    "register_family",
    "load_model",
    "wrap",
    "UserError",
    "load_task",
    "register_task",
    "task_from_table",
]
