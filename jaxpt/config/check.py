"""From plain values to the checked tree and back, and the tree as it is in one phase of the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from jaxpt.config import fine_tuning
from jaxpt.config.explain import explain
from jaxpt.config.kinds import strictly
from jaxpt.config.plain import put
from jaxpt.config.stretches import stretches
from jaxpt.config.tree import Config
from jaxpt.errors import UserError


def build(tree: Mapping[str, Any], where: Callable[[str], str] = lambda key: "config") -> Config:
    """Checks a plain tree of values.

    Args:
      tree: nested mappings, lists, strings, numbers, booleans and None, as of a recipe.
      where: from a dotted key to the file that set it, for messages.

    Returns:
      The frozen configuration.

    Raises:
      UserError: names where the key was set, the key, what was given and what is wanted.
    """
    try:
        config = strictly(Config, fine_tuning.complete(tree))
    except ValidationError as error:
        key, message = explain(error, tree)
        raise UserError(f"{where(key)}: {message}") from None
    except UserError as error:  # a kind
        raise UserError(f"{where(str(error).partition(':')[0])}: {error}") from error
    try:
        for index in range(len(stretches(config))):
            at_phase(config, index)
    except UserError as error:
        key = "train.unfreeze" if str(error).startswith("train.unfreeze") else "train.phases"
        raise UserError(f"{where(key)}: {error}") from None
    return config


def dump(config: Config) -> dict[str, Any]:
    """The tree as plain values, ready for YAML or JSON.

    Args:
      config: the run's configuration.

    Returns:
      Nested mappings; `build` makes an equal configuration of them.
    """
    tree = config.model_dump(mode="json", warnings=False)  # a `kind` may be dotted where its class has the short name
    for phase in tree["train"]["phases"]:
        phase["set"] = dict(phase["set"])
    return tree


def phase_starts(config: Config) -> tuple[int, ...]:
    """First step of each stretch that the run comes to: of its phases, cut where `train.unfreeze` opens more of the
    model; one from step 0 where the recipe has neither.

    A recipe whose last phase leaves its steps out may be run for fewer steps: it then ends in an earlier phase.

    Args:
      config: the run's configuration.

    Returns:
      A tuple of steps that starts with 0.

    Raises:
      UserError: the phases do not fill `train.steps`.

    Example: `train: {steps: 100, phases: [{steps: 90}, {set: {data.length: 512}}]}` gives (0, 90).
    """
    return tuple(stretch.start for stretch in stretches(config) if stretch.start < config.train.steps)


def without_unfreezing(config: Config) -> Config:
    """The configuration with its phases alone: indices of phases are then those of `train.phases`."""
    if config.train.unfreeze is None:
        return config
    return config.model_copy(update={"train": config.train.model_copy(update={"unfreeze": None})})


def phase_lines(config: Config) -> list[str]:
    """Each phase that the run comes to: its steps, the rows and the length of a batch, and what else it sets.

    Args:
      config: the run's configuration.

    Returns:
      Lines such as "phase 1 of 2: steps 1–700, batches of 128 × 16 tokens".
    """
    config = without_unfreezing(config)
    starts, count = phase_starts(config), len(config.train.phases) or 1
    lines = []
    for index, (start, end) in enumerate(zip(starts, (*starts[1:], config.train.steps), strict=True)):
        line = f"phase {index + 1} of {count}: steps {start + 1}–{end}, "
        line += f"batches of {batch_text(at_phase(config, index))}"
        rest = _settings(config, index, ("data.batch_size", "data.length"))
        lines.append(f"{line}; {rest}" if rest else line)
    return lines


def batch_text(config: Config) -> str:
    """Rows and length of a batch: "32 × 128 tokens"; of rows with several choices "32 × 4 choices × 128 tokens"."""
    choices = getattr(config.task, "most_choices", None)
    return f"{config.data.batch_size} × {f'{choices} choices × ' if choices else ''}{config.data.length} tokens"


def unreached(config: Config) -> str | None:
    """What is to be said of phases that the run does not come to; None where it comes to all."""
    phases, steps = config.train.phases, config.train.steps
    reached = len(phase_starts(without_unfreezing(config)))
    if reached >= len(phases):
        return None
    dropped = ", ".join(f"phase {n + 1} ({_settings(config, n)})" for n in range(reached, len(phases)))
    before = sum(phase.steps or 0 for phase in phases[:reached])
    return (
        f"train.steps: the run ends at step {steps}, in phase {reached} of {len(phases)}; dropped: {dropped}, which "
        f"would start after step {before}"
    )


def _settings(config: Config, index: int, without: tuple[str, ...] = ()) -> str:
    """What a phase sets."""
    values = dump(config)["train"]["phases"][index]["set"] if config.train.phases else {}
    return ", ".join(f"{key}: {json.dumps(value)}" for key, value in values.items() if key not in without)


def phase_of(config: Config, step: int) -> int:
    """The stretch, from 0, whose update number `step` is, counted from 1; the first one for step 0.

    Example: with `phases: [{steps: 90}, {set: …}]`, step 90 is of phase 0 and step 91 of phase 1.
    """
    return max(sum(start < step for start in phase_starts(config)) - 1, 0)


def at_phase(config: Config, index: int) -> Config:
    """The configuration as it is in one stretch of `phase_starts`, the `set` of its phase applied.

    Args:
      config: the run's configuration.
      index: which stretch, from 0.

    Returns:
      A configuration without phases and without `train.unfreeze`.

    Raises:
      UserError: the phases do not fill `train.steps`, or a phase sets what it may not.
    """
    run_stretches, phases = stretches(config), config.train.phases
    if not phases:
        return without_unfreezing(config)
    tree, phase = dump(config), run_stretches[index].phase
    tree["train"] |= {"phases": [], "unfreeze": None}
    where = f"train.phases.{phase}.set"
    for key, value in dump(config)["train"]["phases"][phase]["set"].items():
        if not key.startswith(("data.", "objective.")) and key != "train.trainable":
            raise UserError(f"{where}: {key}: a phase may set keys of data and objective, and train.trainable, alone")
        put(tree, key, value, where)
    return build(tree, lambda key: where)
