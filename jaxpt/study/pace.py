"""A budget of minutes as steps: seconds of a step are measured once, and kept in FILE.

    factor = 60 · minutes / Σ_phases steps · seconds of a step        steps of a phase ← steps · factor

The time is that of steps with their input: preparing data, compiling, evaluating and saving are not counted. A restart
reads FILE, so that the run, whose schedule follows from its steps, is the same however often it is stopped.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import jax

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.data import preparing
from jaxpt.errors import UserError
from jaxpt.parallel import compiler, distributed, processes
from jaxpt.runtime import disk
from jaxpt.train import loop, preflight, state, step, teachers
from jaxpt.train.display import say
from jaxpt.train.phase import Phase, enter
from jaxpt.train.run_dir import has_checkpoint
from jaxpt.train.state import Setup
from jaxpt.train.timings import Timings

FILE = "budget.json"
"""In a row's directory: what was measured, and the steps that it gives."""
WARMUP_STEPS = 4
"""Before the clock starts: the first ones wait for their input, and for memory."""
MIN_STEPS, MIN_SECONDS, MAX_SECONDS = 24, 10.0, 60.0
"""Measured are so many steps and so many seconds, whichever is more, but no more than the longest time and a step."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """What a row may take, and does."""

    minutes: float
    seconds: tuple[float, ...]
    """Of a step, in each phase."""
    steps: tuple[int, ...]
    """Of each phase."""
    settings: str
    """Digest of the recipe, without what says how long the run is and where it goes."""

    @property
    def overrides(self) -> list[str]:
        """What is set in the recipe; the last phase takes what the others leave.

        Example:
          >>> Budget(1.0, (0.5,), (120,), "").overrides
          ['train.steps=120']
          >>> Budget(1.0, (0.5, 1.0), (60, 30), "").overrides
          ['train.steps=90', 'train.phases.0.steps=60', 'train.phases.1.steps=30']
        """
        phases = [f"train.phases.{n}.steps={steps}" for n, steps in enumerate(self.steps)]
        return [f"train.steps={sum(self.steps)}", *(phases if len(phases) > 1 else [])]


def read(run_dir: Path, minutes: float | None) -> Budget | None:
    """The budget that a row was given; None if it has none yet.

    Args:
      run_dir: of the row.
      minutes: what the study gives it now; None: it has no budget of minutes.

    Raises:
      UserError: it was begun with other minutes, or the file is damaged.
    """
    file = run_dir / FILE
    if minutes is None or not file.is_file():
        return None
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
        fields |= {name: tuple(fields[name]) for name in ("seconds", "steps")}
        budget = Budget(**fields)
    except (ValueError, TypeError, KeyError):
        raise UserError(f"{file} is damaged; delete it, and the steps are measured anew") from None
    if budget.minutes == minutes:
        return budget
    if has_checkpoint(run_dir):
        raise UserError(
            f"{run_dir}: was begun with {budget.minutes:g} minutes, the study gives it {minutes:g}; delete it, or set "
            "another run_dir"
        )
    return None


def known(config: Config, minutes: float) -> Budget | None:
    """The budget that a row has for this recipe, and keeps; None where its steps are still to be measured.

    Args:
      config: the row's configuration, of any number of steps.
      minutes: what the study gives it.

    Raises:
      UserError: as `read`.
    """
    run_dir = Path(config.run_dir)
    budget = read(run_dir, minutes)
    is_same = budget is not None and (budget.settings == digest(config) or has_checkpoint(run_dir))
    return budget if is_same else None


def write(config: Config, minutes: float) -> Budget:
    """Measures the steps of a row, and writes FILE.

    Args:
      config: the row's configuration, of any number of steps.
      minutes: of steps.

    Raises:
      UserError: as `jaxpt.train.loop.train` before its first step.
    """
    lengths, seconds = phase_lengths(config), measure(config)
    budget = Budget(minutes, tuple(seconds), scaled(lengths, seconds, minutes), digest(config))
    run_dir = Path(config.run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    disk.write_text(run_dir / FILE, json.dumps(dataclasses.asdict(budget), indent=1) + "\n")
    return budget


def digest(config: Config) -> str:
    """A digest of what the time of a step may depend on."""
    tree = configs.dump(config)
    for name in ("run_dir", "log", "checkpoint", "evals"):
        tree.pop(name, None)
    tree["train"].pop("steps")
    tree["train"]["phases"] = [phase["set"] for phase in tree["train"]["phases"]]
    return hashlib.sha256(json.dumps(tree, sort_keys=True, default=str).encode()).hexdigest()[:16]


def phase_lengths(config: Config) -> list[int]:
    """Steps of each phase of a recipe, as it stands.

    Args:
      config: the configuration.
    """
    starts = configs.phase_starts(configs.without_unfreezing(config))
    return [end - start for start, end in itertools.pairwise((*starts, config.train.steps))]


def scaled(lengths: Sequence[int], seconds: Sequence[float], minutes: float) -> tuple[int, ...]:
    """Steps of each phase that together take so many minutes, in the recipe's proportions; at least one each.

    Args:
      lengths: steps of each phase in the recipe.
      seconds: of a step, in each.
      minutes: the budget.

    Example:
      >>> scaled([1000], [0.5], minutes=1.0)
      (120,)
      >>> scaled([300, 100], [0.1, 0.3], minutes=1.0)  # a minute is 300 · 0.1 + 100 · 0.3
      (300, 100)
    """
    factor = 60 * minutes / sum(length * second for length, second in zip(lengths, seconds))
    return tuple(max(round(length * factor), 1) for length in lengths)


def measure(config: Config) -> list[float]:
    """Seconds of a training step in each phase of a recipe, in this process; nothing stays but prepared data.

    Args:
      config: the configuration of a run.

    Raises:
      UserError: as `jaxpt.train.loop.train` before its first step.
    """
    config = configs.without_unfreezing(config)  # with all parameters trained: the longest part of such a run
    processes.start(config.distributed)
    compiler.enable_compilation_cache()
    teachers.find_all(config)
    preflight.check(config)
    with tempfile.TemporaryDirectory() as scratch:
        config = config.model_copy(update={"run_dir": scratch})
        setup, seconds = teachers.attach(state.setup(config), say), []
        for index, phase_config in enumerate(configs.phase_configs(config)):
            preparing.prepare(phase_config, index, save=False)  # whole: a run may begin while records are made
            phase = enter(config, setup, index, None, None, Timings())
            seconds.append(_seconds(phase, setup))
            say(f"{seconds[-1] * 1000:.3g} ms a step of {configs.batch_text(phase.config)}")
        return seconds


def _seconds(phase: Phase, setup: Setup) -> float:
    """Seconds of a step of a phase, its input included: the mean after some steps."""
    programs, arguments = phase.programs(), setup.teacher_params()
    rows = distributed.rows(phase.setup.mesh, phase.config.data.batch_size)
    batches = (step.put(batch, phase.setup) for batch in phase.data.train.batches(0, rows=rows))
    with phase.setup.use():
        current, figures, begun, done = phase.setup.init(), [], 0.0, 0
        for done, batch in enumerate(batches):
            elapsed = time.perf_counter() - begun
            if done == WARMUP_STEPS:
                jax.block_until_ready(current)
                begun = time.perf_counter()
            elif done > WARMUP_STEPS and is_enough(done - WARMUP_STEPS, elapsed):
                break
            current, of_step = programs.train(current, batch, *arguments)
            figures.append(of_step)
            if len(figures) > loop.MAX_INFLIGHT_STEPS:
                jax.block_until_ready(figures.pop(0))
        else:  # prepared batches end
            done += 1
            if done <= WARMUP_STEPS:
                raise UserError(
                    f"data.path: {phase.config.data.path}: holds the batches of {done} steps of a phase, and the time "
                    f"of a step is measured after {WARMUP_STEPS}; prepare more, or leave minutes out"
                )
        jax.block_until_ready(current)
    return (time.perf_counter() - begun) / (done - WARMUP_STEPS)


def is_enough(steps: int, seconds: float) -> bool:
    """True if so many steps in so many seconds are enough to tell the time of one.

    Example:
      >>> is_enough(24, 9.0), is_enough(24, 10.0), is_enough(9, 59.0), is_enough(9, 61.0)
      (False, True, False, True)
    """
    return seconds > MAX_SECONDS or (steps >= MIN_STEPS and seconds >= MIN_SECONDS)


def described(budget: Budget) -> str:
    """A line for people.

    Example:
      >>> described(Budget(10.0, (0.25,), (2400,), ""))
      '10 minutes of steps of 0.25 s: 2,400 steps'
    """
    times = " and ".join(f"{seconds:.3g} s" for seconds in budget.seconds)
    steps = " + ".join(f"{steps:,}" for steps in budget.steps)
    return f"{budget.minutes:g} minutes of steps of {times}: {steps} steps"
