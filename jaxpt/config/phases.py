"""The phases of a run, and the stages that gradual unfreezing cuts them into."""

from __future__ import annotations

import bisect
import itertools
import json
from typing import Any, NamedTuple

from pydantic import ValidationError

from jaxpt.config.explain import explain
from jaxpt.config.fields import Frozen
from jaxpt.config.kinds import kind_of, strictly
from jaxpt.config.parts import ModelConfig
from jaxpt.config.plain import put
from jaxpt.config.tree import Config, Phase
from jaxpt.errors import UserError

HIDDEN = ("task", "text_layout", "part")
"""Fields of a labelled objective that are not keys of a recipe: copies of `task` and of the model's `text_layout`, and
which task of a mixture it is for."""


class TrainStage(NamedTuple):
    """Steps that one compiled program does."""

    start: int
    """First step, from 0."""
    phase: int
    """Index in `train.phases`."""
    phase_start: int
    """First step of that phase, where its data begin."""
    unfrozen: int
    """How many groups `train.unfreeze` has opened besides the first."""


def train_stages(config: Config) -> tuple[TrainStage, ...]:
    """All stages of a recipe, also those that the run does not reach.

    Args:
      config: the run's configuration.

    Returns:
      A stage for each phase and each step at which more is trained.

    Raises:
      UserError: the phases do not fill `train.steps`, or nothing says how many layers there are to open.

    Example: `train: {steps: 100, unfreeze: {steps: [0, 30]}, phases: [{steps: 50}, {}]}` gives the starts 0, 30 and 50.
    """
    starts, unfreezing = _phase_starts(config), _unfreezing_steps(config)
    stages = []
    for start in sorted({*starts, *unfreezing}):
        phase = bisect.bisect(starts, start) - 1
        stages.append(TrainStage(start, phase, starts[phase], bisect.bisect(unfreezing, start) - 1))
    return tuple(stages)


def _phase_starts(config: Config) -> list[int]:
    *earlier, last = config.train.phases or (Phase(),)
    for index, phase in enumerate(earlier):
        if phase.steps is None:
            raise UserError(f"train.phases.{index}: key steps is missing; only the last phase may leave it out")
    starts = list(itertools.accumulate((phase.steps for phase in earlier), initial=0))
    steps, end = config.train.steps, starts[-1] + (last.steps or 0)
    if last.steps is not None and end != steps:
        raise UserError(f"train.phases take {end} steps, train.steps is {steps}; leave the last phase's steps out")
    return starts


def _unfreezing_steps(config: Config) -> tuple[int, ...]:
    """The steps after which `train.unfreeze` opens a group of parameters; (0,) without it."""
    unfreeze, model = config.train.unfreeze, config.model
    if unfreeze is None:
        return (0,)
    if unfreeze.steps is not None:
        return unfreeze.steps
    layers = getattr(model, "layers", None)
    if layers is None:
        raise UserError(f"train.unfreeze.every: model.kind: {model.kind} has no model.layers; use train.unfreeze.steps")
    if model.family == "encoder_decoder":
        layers += model.decoder_layers or layers
    return tuple(unfreeze.every * n for n in range(layers + 2))


def phase_starts(config: Config) -> tuple[int, ...]:
    """First step of each stage that the run reaches; one from step 0 without phases and `train.unfreeze`.

    A recipe whose last phase leaves its steps out may be run for fewer steps: it then ends in an earlier phase.

    Args:
      config: the run's configuration.

    Returns:
      A tuple of steps that starts with 0.

    Raises:
      UserError: the phases do not fill `train.steps`.

    Example: `train: {steps: 100, phases: [{steps: 90}, {set: {data.length: 512}}]}` gives (0, 90).
    """
    return tuple(stage.start for stage in train_stages(config) if stage.start < config.train.steps)


def extension(config: Config, steps: int) -> str:
    """Overrides under which a run has more steps, its last phase taking those that are added.

    Example: "train.steps=200", and "train.steps=200 train.phases.1.steps=null" where the second and last phase has
    `steps`.
    """
    phases = config.train.phases
    has_end = bool(phases) and phases[-1].steps is not None
    return f"train.steps={steps}" + f" train.phases.{len(phases) - 1}.steps=null" * has_end


def phase_of(config: Config, step: int) -> int:
    """The stage, from 0, whose update number `step` is, counted from 1; the first one for step 0.

    Example: with `phases: [{steps: 90}, {set: …}]`, step 90 is of phase 0 and step 91 of phase 1.
    """
    starts = [stage.start for stage in train_stages(config)]  # of a run that was made shorter, too
    return max(bisect.bisect_left(starts, step) - 1, 0)


def at_phase(config: Config, index: int) -> Config:
    """The configuration in one stage of `phase_starts`, the `set` of its phase applied.

    Args:
      config: the run's configuration.
      index: which stage, from 0.

    Returns:
      A configuration without phases and without `train.unfreeze`; one that has none of them stays as it is.

    Raises:
      UserError: the phases do not fill `train.steps`, or a phase sets what it may not.
    """
    stages = train_stages(config)
    return of_phase(config, stages[index].phase if config.train.phases else 0)


def model_at(config: Config, step: int) -> ModelConfig:
    """The model's configuration in the phase whose update number `step` is, see `phase_of`."""
    return at_phase(config, phase_of(config, step)).model


def phase_configs(config: Config) -> list[Config]:
    """The configuration in each stage of `phase_starts`, see `at_phase`."""
    return [of_phase(config, stage.phase) for stage in train_stages(config) if stage.start < config.train.steps]


def of_phase(config: Config, phase: int) -> Config:
    """The configuration in one of `train.phases`: only blocks that the phase sets are validated again."""
    train, where = config.train.model_copy(update={"phases": (), "unfreeze": None}), f"train.phases.{phase}.set"
    blocks: dict[str, Any] = {
        "data": config.data, "objective": config.objective, "train": train, "model": config.model
    }  # fmt: skip
    changed: dict[str, Any] = {}
    for key, value in config.train.phases[phase].set if config.train.phases else ():
        block, _, name = key.partition(".")
        if not name or block not in blocks or not _may_set(config, block, name):
            raise UserError(
                f"{where}: {key}: a phase may set keys of data and objective, train.trainable, and of a model with "
                "rotary positions model.max_positions and model.rope_*, alone"
            )
        if block not in changed:
            changed[block] = _plain(blocks[block])
        put(changed, key, value, where)
    if not changed:
        return config.model_copy(update=blocks)
    try:
        for block, plain in changed.items():
            kind = kind_of(Config.model_fields[block])
            blocks[block] = kind.validate(plain) if kind else strictly(type(blocks[block]), plain)
        return Config(**(dict(config) | blocks))
    except ValidationError as error:
        raise UserError(f"{where}: {explain(error, changed, above=(block,))[1]}") from None
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def _may_set(config: Config, block: str, name: str) -> bool:
    """Whether a phase may set a key: it leaves the shapes of all parameters as they are."""
    if block == "model":
        is_rotary = "rope_theta" in type(config.model).model_fields
        return is_rotary and (name == "max_positions" or name.startswith("rope_"))
    return block != "train" or name == "trainable"


def _plain(block: Any) -> dict[str, Any]:
    """A block of the tree as plain values, with the fields that are not keys of a recipe."""
    plain = block.model_dump(mode="json", warnings=False)
    for name in (name for name in HIDDEN if name in type(block).model_fields):
        hidden = getattr(block, name)
        plain[name] = hidden.model_dump(mode="json", warnings=False) if isinstance(hidden, Frozen) else hidden
    return plain


def without_unfreezing(config: Config) -> Config:
    """The configuration with its phases alone: indices of stages are then those of `train.phases`."""
    return config.model_copy(update={"train": config.train.model_copy(update={"unfreeze": None})})


def batch_text(config: Config) -> str:
    """Rows and length of a batch: "32 × 128 tokens"; of rows with several choices "32 × 4 choices × 128 tokens"."""
    choices = getattr(config.task, "most_choices", None)
    return f"{config.data.batch_size} × {f'{choices} choices × ' if choices else ''}{config.data.length} tokens"


def phase_lines(config: Config) -> list[str]:
    """Each phase that the run reaches: its steps, the rows and the length of a batch, and what else it sets.

    Args:
      config: the run's configuration.

    Returns:
      Lines such as "phase 1 of 2: steps 1–700, batches of 128 × 16 tokens".
    """
    config = without_unfreezing(config)
    starts, phases = phase_starts(config), config.train.phases or (Phase(),)
    lines = []
    for index, (start, end) in enumerate(itertools.pairwise((*starts, config.train.steps))):
        line = f"phase {index + 1} of {len(phases)}: steps {start + 1}–{end}, "
        line += f"batches of {batch_text(of_phase(config, index))}"
        rest = _settings(phases[index], ("data.batch_size", "data.length"))
        lines.append(f"{line}; {rest}" if rest else line)
    return lines


def unreached(config: Config) -> str | None:
    """The line about phases that the run does not reach; None if it reaches all."""
    phases, steps = config.train.phases, config.train.steps
    reached = len(phase_starts(without_unfreezing(config)))
    if reached >= len(phases):
        return None
    dropped = ", ".join(f"phase {n + 1} ({_settings(phases[n])})" for n in range(reached, len(phases)))
    before = sum(phase.steps or 0 for phase in phases[:reached])
    return (
        f"train.steps: the run ends at step {steps}, in phase {reached} of {len(phases)}; dropped: {dropped}, which "
        f"would start after step {before}"
    )


def _settings(phase: Phase, without: tuple[str, ...] = ()) -> str:
    return ", ".join(f"{key}: {json.dumps(value)}" for key, value in phase.set if key not in without)
