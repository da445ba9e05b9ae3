"""`jaxpt.fit` and `jaxpt.Run`: training from Python, and what a run has left behind."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxpt import config as configs
from jaxpt import errors
from jaxpt.config import CheckpointConfig, Config
from jaxpt.config.kinds import nearest
from jaxpt.errors import UserError, listed
from jaxpt.inference.loaded import Loaded, load
from jaxpt.runtime import packages
from jaxpt.study import recipes
from jaxpt.train import checkpoint, loop, preflight
from jaxpt.train.display import note
from jaxpt.train.run_dir import receipt, records

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes


@errors.noting(note)
def read_config(path: str | Path, overrides: Mapping[str, Any]) -> Config:
    """Reads a recipe with overrides that are Python values.

    Args:
      path: a YAML file, or the directory of a run.
      overrides: values by dotted key, such as {"train.steps": 100}, or nested: {"train": {"steps": 100}}. A mapping
        with another `kind` than the recipe's drops that one's keys, as on a command line: {"model": {"kind": …}}.

    Returns:
      The frozen configuration.

    Raises:
      UserError: names the file or the key, what was given and what is wanted.
    """
    assignments = [f"{key}={_as_yaml(key, value)}" for key, value in _leaves(dict(overrides))]
    return recipes.load(path, assignments, where="overrides", report=errors.note)


def _leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """As `plain.leaves`, but a mapping with a `kind` is one value, without its dotted keys, which follow.

    Example:
      >>> list(_leaves({"seed": 1, "model": {"kind": "t5", "layers": 2, "rope.theta": 3}}))
      [('seed', 1), ('model', {'kind': 't5', 'layers': 2}), ('model.rope.theta', 3)]
    """
    for key, value in tree.items():
        if not isinstance(value, dict) or not value:
            yield f"{prefix}{key}", value
            continue
        whole = {name: part for name, part in value.items() if "." not in name} if "kind" in value else {}
        if whole:
            yield f"{prefix}{key}", whole
        yield from _leaves({name: part for name, part in value.items() if name not in whole}, f"{prefix}{key}.")


def _as_yaml(key: str, value: Any) -> str:
    """A Python value as YAML reads it: JSON is a part of YAML."""

    def plain(value: Any) -> Any:
        if isinstance(value, Path):
            return str(value)
        if hasattr(value, "tolist"):  # of NumPy
            return value.tolist()
        raise UserError(f"overrides: {key}: wants a number, a text, a list or a dict, got {type(value).__name__}")

    return json.dumps(value, default=plain, ensure_ascii=False)


@errors.noting(note)
def fit(recipe: str | Path | Config, overrides: Mapping[str, Any]) -> Run:
    """Trains a recipe, or continues its run, as `jaxpt train` does; see `jaxpt.fit`."""
    config = recipe if isinstance(recipe, Config) else read_config(recipe, overrides)
    if config is recipe and overrides:
        raise UserError("overrides: go with a recipe's path; a Config has them already: jaxpt.Config.load(path, …)")
    preflight.check(config)
    try:
        loop.train(config)
    except SystemExit as error:  # how a run ends after a signal, which it has saved before
        raise KeyboardInterrupt(f"{config.run_dir}: interrupted and saved; the same call continues it") from error
    return Run(config.run_dir)


class Run:
    """A run directory: its configuration, metrics, checkpoints and model.

    Attributes:
      run_dir: where everything of the run is.
      config: its configuration.

    Example: `jaxpt.Run("runs/gpt2_tiny").metrics["train/loss"].min()`
    """

    def __init__(self, run_dir: str | Path) -> None:
        """Opens a run that is finished, under way, or was stopped.

        Args:
          run_dir: its directory.

        Raises:
          UserError: it is no run_dir.
        """
        self.run_dir = Path(run_dir)
        if not self.run_dir.is_dir():
            siblings = [path.parent.name for path in self.run_dir.parent.glob("*/config.yaml")]
            raise UserError(f"{self.run_dir}: no such directory{nearest(self.run_dir.name, siblings, '')}")
        self.config = configs.load(self.run_dir)

    @property
    def summary(self) -> dict[str, Any]:
        """What run.json says: steps, parameters, tokens, FLOPs, seconds, results, versions; {} before a run's end."""
        return receipt(self.run_dir)

    @property
    def checkpoints(self) -> dict[int, Path]:
        """The directory of each checkpoint, by its step."""
        with checkpoint.Checkpoints(self.run_dir, CheckpointConfig(), read_only=True) as saved:
            return {step: self.run_dir / "checkpoints" / str(step) for step in saved.steps()}

    @property
    def metrics(self) -> pandas.DataFrame:
        """metrics.jsonl: a row for each step, a column for each metric; NaN where a metric was not measured.

        Raises:
          UserError: pandas is not installed.
        """
        try:
            import pandas
        except ModuleNotFoundError:
            raise UserError(f"Run.metrics: pandas is not installed: {packages.install_command('notebook')}") from None
        by_step: dict[int, dict[str, Any]] = {}
        for record in records(self.run_dir)[0]:
            by_step.setdefault(record["step"], {}).update(record)
        frame = pandas.DataFrame([*by_step.values()], columns=None if by_step else ["step"])
        return frame.set_index("step").sort_index()

    def plot(self, *names: str, ax: Axes | None = None) -> Axes:
        """Draws metrics over the steps.

        Args:
          *names: of metrics; by default all losses.
          ax: Matplotlib axes to draw on; by default new ones.

        Returns:
          The axes: `run.plot().figure.savefig("loss.png")`.

        Raises:
          UserError: no metric of this name.
        """
        from matplotlib import pyplot

        metrics = self.metrics
        for name in names:
            if name not in metrics:
                raise UserError(f"{self.run_dir}: has no metric {name}{nearest(name, list(metrics))}")
        names = names or tuple(name for name in metrics if name.rpartition("/")[2] == "loss")
        if ax is None:
            ax = pyplot.subplots(figsize=(6, 3.5), layout="constrained")[1]
            ax.set_title(self.run_dir.name)
        for name in names:
            values = metrics[name].dropna()
            ax.plot(values.index, values, label=name, marker="o" if len(values) < 12 else None)
        ax.set_xlabel("step")
        if all(name.rpartition("/")[2] == "loss" for name in names):
            ax.set_ylabel("nats")
        ax.grid(alpha=0.3)
        ax.legend(frameon=False)
        return ax

    def model(self, step: int | None = None, **options: Any) -> Loaded:
        """The trained model.

        Args:
          step: of a checkpoint; by default the best one of a task's run, else the newest.
          **options: as of `jaxpt.load`.

        Raises:
          UserError: there is no such checkpoint.
        """
        run_dir, step = checkpoint.find(self.run_dir, step)
        return load(run_dir / "checkpoints" / str(step), **options)

    def __repr__(self) -> str:
        summary, steps = self.summary, list(self.checkpoints)
        state = f"step {summary['step']} of {self.config.train.steps}" if "step" in summary else "not finished"
        losses = {"train": summary.get("train_loss"), "validation": (summary.get("validation") or {}).get("loss")}
        loss = "".join(f", {name} loss {value:.4f}" for name, value in losses.items() if value is not None)
        kinds = f"{self.config.model.kind} · {self.config.objective.kind}"
        return (
            f"jaxpt.Run({str(self.run_dir)!r})\n  {kinds} · {state}{loss}\n"
            f"  checkpoints: {listed(list(map(str, steps[::-1])), 5) or 'none'}"
        )
