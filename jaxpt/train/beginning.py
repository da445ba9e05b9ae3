"""How a run starts: the state that it goes on from, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxpt import config as configs
from jaxpt.errors import UserError
from jaxpt.models import base
from jaxpt.parallel import rules
from jaxpt.train import checkpoint, foreign, initial, teachers, trainable
from jaxpt.train.display import say
from jaxpt.train.run_dir import changes, edited
from jaxpt.train.state import Setup, State, per_device_size


def begin(setup: Setup, checkpoints: checkpoint.Checkpoints, run_dir: Path) -> tuple[State, dict[str, Any] | None]:
    """The state to go on from: of the run's newest checkpoint, as `init_from` says, or a fresh one.

    Args:
      setup: of the run.
      checkpoints: those that the run has.
      run_dir: where they are.

    Returns:
      (state, what was saved beside it: None where it is not the run's own).

    Raises:
      UserError: the checkpoint does not belong to the run, or `init_from` does not fit the model.
    """
    latest = checkpoints.newest_whole(report=say)
    if latest is not None:
        place, steps = run_dir / "checkpoints" / str(latest), setup.config.train.steps
        say(f"resuming from step {latest}{f' of {steps}' if latest <= steps else ''}: {place}")
        if changed := changes(setup.config):
            say(f"changed since the last start: {changed}")
        if (traced := setup.config.profile) is not None and latest >= traced.first:
            say(
                f"profile: step {traced.first} is behind the run: nothing is traced; profile.first={latest + 1} is next"
            )
        meta = checkpoints.meta(latest)
        teachers.check_same(setup, meta, f"{run_dir} at step {latest}")
        for line in edited(setup.config, meta):
            say(f"{run_dir / 'config.yaml'}: was changed since step {latest}: {line}")
        return checkpoints.restore(_setup_of(setup, latest), latest), meta
    source = setup.config.init_from
    if source is None:
        return setup.init(), None
    if source.random:
        say(f"all weights are random: of {source.path} only model and vocabulary are taken")
        return setup.init(), None
    if source.state and source.layers:
        raise UserError("init_from.layers: with state=true the whole state goes on; leave one of them out")
    other = foreign.reader(source.path) or source.partial or source.layers or source.vocabulary != "same"
    other = other or setup.config.task is not None
    if not source.state and other:
        return initial.start(setup, source, say), None
    from_dir, at = checkpoint.find(source.path, source.step)
    reader = checkpoint.Checkpoints(from_dir, setup.config.checkpoint, read_only=True)
    try:
        if source.state:
            say(f"branching from {from_dir} at step {at}: the whole state")
            return reader.restore(_setup_of(setup, at), at), None
        say(f"starting from the weights of {from_dir} at step {at}")
        return initial.from_params(setup, setup.init(), reader.restore_params(setup, at)), None
    except ValueError as error:
        raise UserError(f"init_from.path: {from_dir}: does not fit this model: {str(error).splitlines()[0]}") from None
    finally:
        reader.close()


def _setup_of(setup: Setup, step: int) -> Setup:
    """The setup of the phase in which the state of a step was saved."""
    phase = configs.phase_of(setup.config, step)
    return setup.for_phase(configs.at_phase(setup.config, phase), phase)


def describe(setup: Setup, disk: int) -> str:
    """What is said of model and devices before the first step.

    Args:
      setup: of the run.
      disk: bytes that its checkpoints take at most.

    Returns:
      A line of parameters, devices and mesh, one of memory and disk, and one of large replicated parameters if any.
    """
    config, device = setup.config, jax.devices()[0]
    mesh = " × ".join(f"{axis} {size}" for axis, size in setup.mesh.shape.items() if size > 1) or "of one device"
    replicated = rules.large_replicated_params(setup.shapes.params, setup.shardings.params)
    if config.mesh.preset == "replicated":
        replicated = []
    return (
        f"{setup.network.count_params():,} parameters{_trained(setup)}; "
        f"{jax.device_count()} × {device.device_kind}, mesh {mesh}, "
        f"computing in {jnp.dtype(base.compute_dtype(config.model)).name}\n"
        f"state {per_device_size(setup) / 1e6:.1f} MB a device; checkpoints take up to {disk / 1e9:.2f} GB"
        + (f"\nlarge and fully replicated (mesh.rules can shard them): {', '.join(replicated)}" if replicated else "")
    )


def _trained(setup: Setup) -> str:
    """How many of the stored parameters the first phase trains, where it is not all of them."""
    part = trainable.take(setup.shapes.params, setup.trained)
    if part is setup.shapes.params:
        return ""
    return f", {sum(x.size for x in jax.tree.leaves(part)):,} trained"
