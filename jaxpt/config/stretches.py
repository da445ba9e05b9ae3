"""The stretches of a run: its phases, cut where gradual unfreezing opens more of the model."""

from __future__ import annotations

from typing import NamedTuple

from jaxpt.config.tree import Config, ModelConfig, Phase
from jaxpt.errors import UserError


class Stretch(NamedTuple):
    """Steps that one compiled program does."""

    start: int
    """First step, from 0."""
    phase: int
    """Which of `train.phases` it is of."""
    phase_start: int
    """First step of that phase, where its data begin."""
    opened: int
    """How often `train.unfreeze` has opened a group before it."""


def stretches(config: Config) -> tuple[Stretch, ...]:
    """All of a recipe, also those that the run does not come to.

    Args:
      config: the run's configuration.

    Returns:
      One for each phase and each step at which more is trained.

    Raises:
      UserError: the phases do not fill `train.steps`, or nothing says how many layers there are to open.

    Example: `train: {steps: 100, unfreeze: {steps: [0, 30]}, phases: [{steps: 50}, {}]}` gives the starts 0, 30 and 50.
    """
    starts, opening = _phase_starts(config), opening_steps(config)
    all_stretches = []
    for start in sorted({*starts, *opening}):
        phase = sum(first <= start for first in starts) - 1
        all_stretches.append(Stretch(start, phase, starts[phase], sum(first <= start for first in opening) - 1))
    return tuple(all_stretches)


def opening_steps(config: Config) -> tuple[int, ...]:
    """The steps after which `train.unfreeze` opens a group of parameters; (0,) without it."""
    unfreeze = config.train.unfreeze
    if unfreeze is None:
        return (0,)
    if unfreeze.steps is not None:
        return unfreeze.steps
    return tuple(unfreeze.every * n for n in range(_layers(config.model) + 2))


def _layers(model: ModelConfig) -> int:
    """Layers of all stacks of a model."""
    layers = getattr(model, "layers", None)
    if layers is None:
        raise UserError(f"train.unfreeze.every: model.kind: {model.kind} has no model.layers; use train.unfreeze.steps")
    return layers + ((model.decoder_layers or layers) if model.family == "encoder_decoder" else 0)


def _phase_starts(config: Config) -> list[int]:
    phases = config.train.phases or (Phase(),)
    starts, at = [], 0
    for index, phase in enumerate(phases):
        starts.append(at)
        if phase.steps is None and index + 1 < len(phases):
            raise UserError(f"train.phases.{index}: key steps is missing; only the last phase may leave it out")
        at += phase.steps or 0
    steps = config.train.steps
    if phases[-1].steps is not None and at != steps:
        raise UserError(f"train.phases take {at} steps, train.steps is {steps}; leave the last phase's steps out")
    return starts
