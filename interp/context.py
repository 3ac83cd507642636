"""What an experiment is given: its config's base classes, and the context it runs in.

`Context` holds the settings that may not change the numbers (device, threads, pack), loads models and tasks
and records their hashes, keeps the row log of a long experiment, and draws its progress bar.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import pydantic

from interp import stats
from interp.progress import Bar
from interp.registry import NameOf, UserError, unknown
from interp.results.rowlog import RowLog, canonical
from interp.results.store import partial_path

T = TypeVar("T")
Dtype = Literal["float32", "float64", "bfloat16", "float16"]
ModelName = Annotated[str, NameOf("models")]
TaskName = Annotated[str, NameOf("tasks")]
MetricName = Annotated[str, NameOf("metrics")]
MetricOrAuto = Annotated[str, NameOf("metrics", also=("auto",))]
MethodName = Annotated[str, NameOf("methods")]
SiteNames = Annotated[str | tuple[str, ...], NameOf("sites")]


class Config(pydantic.BaseModel):
    """Base of every experiment's config: frozen, unknown settings are refused.

    >>> class Mine(Config):
    ...     heads: int = 4
    >>> Mine(heads=2)
    Mine(heads=2)
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class ModelTaskConfig(Config):
    """The settings of an experiment on one model and one task.

    >>> class Mine(ModelTaskConfig):
    ...     top: int = pydantic.Field(5, ge=1, description="rows to show")
    >>> Mine(n=16).task, Mine(top=2).top
    ('ioi', 2)
    """

    model: ModelName = pydantic.Field("toy-ioi", description="embedded name, local folder or hub name")
    model_options: dict[str, Any] = pydantic.Field({}, description="passed on to load_model: revision, weights, …")
    task: TaskName = pydantic.Field("ioi", description="task name, or a file of prompt pairs")
    task_options: dict[str, Any] = pydantic.Field({}, description="passed on to load_task: corruption, bos, …")
    split: str = pydantic.Field("all", description="split of the task's prompts")
    n: int | None = pydantic.Field(None, ge=1, description="prompts; null: 64, or every row of a file")
    seed: int = pydantic.Field(0, ge=0, lt=2**63, description="seed of the prompts and of everything drawn")
    metric: MetricName = pydantic.Field("logit_diff", description="metric's name")
    dtype: Dtype = pydantic.Field("float32", description="number format of the weights")
    plain: bool = pydantic.Field(False, description="one full forward per edit, no shortcuts")


@dataclass(frozen=True, eq=False)
class Loaders:
    """How models and tasks are made; what was made last is kept, so that cells of one model share it."""

    load_model: Callable[..., Any] | None = None
    load_task: Callable[..., Any] | None = None
    _held: dict[str, tuple[str, Any]] = field(default_factory=dict)

    def model(self, name: str, device: str, dtype: str, options: Mapping[str, Any]) -> Any:
        """The model of this name on this device; the one before it is let go."""

        def make() -> Any:
            if self.load_model is not None:
                return self.load_model(name, device=device, dtype=dtype, **options)
            from interp.models.load import load_model

            taken = {"name", "device", "dtype"}
            known = [p for p in inspect.signature(load_model).parameters if p not in taken]
            strange = [option for option in options if option not in known]
            if strange:
                raise unknown("setting of model_options", strange[0], known)
            return load_model(name, device=device, dtype=dtype, **options)

        return self._keep("model", canonical([name, device, dtype, options]), make)

    def task(self, name: str, model: Any, n: int | None, seed: int, options: Mapping[str, Any]) -> Any:
        """The task of this name under this model."""
        if self.load_task is not None:
            return self.load_task(name, model, n=n, seed=seed, **options)
        from interp.tasks import load_task

        return load_task(name, model, n=n, seed=seed, **options)

    def _keep(self, kind: str, key: str, make: Callable[[], Any]) -> Any:
        if self._held.get(kind, ("", None))[0] != key:
            self._held.pop(kind, None)
            self._held[kind] = (key, make())
        return self._held[kind][1]


@dataclass(eq=False)
class Context:
    """What an experiment is given beside its config: settings, loaders, a row log, a progress bar."""

    config: Config
    device: str
    dtype: str
    threads: int | None
    pack: int | None
    plain: bool
    place: Path
    """Where the cell will lie."""
    show: bool = False
    loaders: Loaders = field(default_factory=Loaders)
    weights: dict[str, str] = field(default_factory=dict)
    """Hash of the weights of every model loaded, by name."""
    tasks: dict[str, str] = field(default_factory=dict)
    """Hash of every task loaded; the config's by its name, others by name and options."""
    unnamed: list[str] = field(default_factory=list)
    prompts: list[dict[str, Any]] = field(default_factory=list)
    """The first prompts of the config's task, as text, for run.json and pages."""
    _rows: RowLog | None = None
    _task: Any = None
    _bars: list[Bar] = field(default_factory=list)

    @property
    def model(self) -> Any:
        """The model that the config names."""
        return self.load_model(self._setting("model"), **getattr(self.config, "model_options", {}))

    @property
    def task(self) -> Any:
        """The task that the config names, under `model`."""
        if self._task is None:
            options: dict[str, Any] = dict(getattr(self.config, "task_options", {}))
            if hasattr(self.config, "split"):
                options["split"] = self.config.split
            name, n, seed = (self._setting(s) for s in ("task", "n", "seed"))
            self._task = self.loaders.task(name, self.model, n, seed, options)
            self.tasks[name] = self._task.hash()
            self.prompts = _shown(self._task, self.model)
        return self._task

    def _setting(self, name: str) -> Any:
        if not hasattr(self.config, name):
            raise unknown("setting", name, sorted(type(self.config).model_fields))
        return getattr(self.config, name)

    def load_model(self, name: str, **options: Any) -> Any:
        """A model by name, on this run's device; its weights are recorded in run.json."""
        model = self.loaders.model(name, self.device, self.dtype, options)
        if name not in self.weights:
            self.weights[name] = model.weights_hash()
        return model

    def load_task(self, name: str, model: Any, *, n: int | None, seed: int, **options: Any) -> Any:
        """Another task, or another draw of it; its prompts are recorded in run.json."""
        task = self.loaders.task(name, model, n, seed, options)
        self.tasks[f"{name} {canonical({'n': n, 'seed': seed, **options})}"] = task.hash()
        return task

    @property
    def rng(self) -> np.random.Generator:
        """A fresh generator of the config's seed: the same draws at every call."""
        return np.random.default_rng(getattr(self.config, "seed", 0))

    def resampling(self, n: int, clusters: Sequence[int] | np.ndarray | None = None) -> stats.Resampling:
        """The resamples that every interval of this run shares."""
        return stats.resampling(n, self.rng, None if clusters is None else np.asarray(clusters))

    @property
    def rows(self) -> RowLog:
        """The keyed row log of a long experiment; holds what an interrupted run of this cell computed."""
        if self._rows is None:
            identity = {"weights": identity_of(self, "weights"), "tasks": identity_of(self, "tasks")}
            settings = {"device": self.device, "threads": self.threads, "pack": self.pack, **identity}
            log = RowLog(partial_path(self.place) / "rows.jsonl", settings)
            for part in log.parts:
                check_same(part["settings"], identity, str(log.path))
            self._rows = log
        return self._rows

    def unregistered(self, what: str) -> None:
        """Say that a function without a registered name and version takes part: the cell is never reused.

        To be said before `rows` is asked for, since what another function computed is no part of this run.
        """
        if self._rows is not None:
            raise ValueError("say what is unregistered before asking for rows")
        self.unnamed.append(what)
        self.place = self.place.with_name(f"{self.place.name.rsplit('-', 1)[0]}-{secrets.token_hex(5)}")

    def close(self) -> None:
        """Take progress bars away and push streamed rows to the disk."""
        while self._bars:
            self._bars.pop().close()
        if self._rows is not None:
            self._rows.close()

    @property
    def parts(self) -> list[dict[str, Any]]:
        """Which settings the streamed rows were computed under, and how many under each."""
        if self._rows is None:
            return []
        kept = ("device", "threads", "pack")
        return [{**{k: part["settings"].get(k) for k in kept}, "rows": part["rows"]} for part in self._rows.parts]

    def progress(self, items: Iterable[T], about: str, total: int | None = None) -> Iterator[T]:
        """The items one by one, with rate and time left on standard error where a bar is wanted."""
        if not self.show:
            yield from items
            return
        whole = total if total is not None else len(items) if isinstance(items, Sized) else None
        bar = self.bar(about, whole)
        for done, item in enumerate(items):
            bar(done)
            yield item
        bar.close()

    def bar(self, about: str, total: int | None = None) -> Bar:
        """A progress bar with rate and time left; `close` takes it away, however the run ends."""
        self._bars.append(Bar(about, total))
        return self._bars[-1]


def _shown(task: Any, model: Any) -> list[dict[str, Any]]:
    from interp.tasks.shown import shown_prompts
    from interp.tasks.values import Task

    return shown_prompts(task, model) if isinstance(task, Task) else []


def identity_of(context: Context, what: str) -> dict[str, str]:
    """Hash of the config's model (`weights`) or task (`tasks`); loads what is not loaded yet."""
    name = getattr(context.config, "model" if what == "weights" else "task", None)
    if not name:
        return {}
    _ = context.model if what == "weights" else context.task
    held: dict[str, str] = getattr(context, what)
    return {name: held[name]}


def check_same(recorded: Mapping[str, Any], now: Mapping[str, Mapping[str, str]], where: str) -> None:
    for what, hashes in now.items():
        for name, present in hashes.items():
            old = recorded.get(what, {}).get(name)
            if old is not None and old != present:
                raise UserError(
                    f"{where} was made with other {what} under the name {name!r}: recorded {old[:16]}, now"
                    f" {present[:16]}; give another --out, or remove it to compute it anew"
                )
