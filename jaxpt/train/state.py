"""What a training step carries on: counts of steps, parameters, optimizer state, and the parameters' average."""

from __future__ import annotations

import dataclasses
import functools
import math
import zlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding

from jaxpt.config import Config
from jaxpt.models.network import Network
from jaxpt.parallel import mesh as meshes
from jaxpt.parallel import rules
from jaxpt.train import optimizers


@flax.struct.dataclass
class State:
    """The whole state of a run; everything else (data, random keys) is a function of `step` and the config."""

    step: jax.Array
    """int32 []: steps done."""
    params: Any
    opt_state: Any
    ema: Any
    """Exponential moving average of the parameters, or None."""
    skipped: jax.Array
    """int32 []: steps in a row, up to the last one, whose update was skipped: loss or gradient was not finite."""
    skipped_total: jax.Array
    """int32 []: all steps of the run whose update was skipped."""
    carry: Any = None
    """What each row of the batch hands to the same row of the next one, [batch, ...], or None (`Loss.carry`)."""

    @property
    def averaged(self) -> Any:
        """The parameters that evaluation uses: the average where there is one."""
        return self.params if self.ema is None else self.ema


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A model that the objective looks at: placed on the mesh, but no part of the state."""

    network: Network
    params: Any
    shardings: Any
    identity: dict[str, Any]
    """Whose weights they are: "path", "step" (None of a Hugging Face directory) and their "digest"."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """All that stays the same over a run: network, optimizer, mesh and the placement of the state."""

    config: Config
    network: Network
    """The backbone with the objective's heads."""
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule
    mesh: Mesh
    table: rules.Table
    """From logical axes to those of the mesh."""
    axes: Any
    """Logical axis names of the parameters."""
    shapes: State
    """ShapeDtypeStructs of the state."""
    shardings: State
    """NamedShardings of the state."""
    teachers: Mapping[str, Teacher] = dataclasses.field(default_factory=dict)
    """The models that the objective looks at, by name: `jaxpt.train.teachers` puts them here."""

    def teacher_params(self) -> tuple[Any, ...]:
        """Their parameters: the steps' last argument where there are any."""
        return ({name: teacher.params for name, teacher in self.teachers.items()},) if self.teachers else ()

    def teacher_shardings(self) -> tuple[Any, ...]:
        """The placement of `teacher_params`."""
        return ({name: teacher.shardings for name, teacher in self.teachers.items()},) if self.teachers else ()

    def loss_options(self, params: tuple[Any, ...] | None = None) -> dict[str, Any]:
        """What `Objective.loss` is given besides, from `teacher_params` or what a program has in their place."""
        given = self.teacher_params() if params is None else params
        models = {name: (teacher.network, given[0][name]) for name, teacher in self.teachers.items()}
        return {"teachers": models} if models else {}

    def use(self) -> AbstractContextManager[None]:
        """Makes mesh and table current: every program of the run is traced within."""
        return meshes.use(self.mesh, self.table)

    def init(self) -> State:
        """A fresh state from `config.seed`, each array made where it lives."""
        with self.use():
            return jax.jit(self._init, out_shardings=self.shardings)(jax.random.key(self.config.seed))

    def _init(self, key: jax.Array) -> State:
        params = self.network.init(purpose_key(key, "init"))
        return fresh(self.config, self.optimizer, params).replace(carry=self._zeros())

    def for_phase(self, config: Config) -> Setup:
        """The setup in one phase of the run, whose batches may have another size.

        Args:
          config: the run's configuration in that phase.
        """
        carry = config.objective.loss.carry(self.network, config.data.batch_size)
        axes = jax.tree.map(lambda x: ("batch", *[None] * (len(x.shape) - 1)), carry)
        placed = rules.shardings({"carry": axes}, {"carry": carry}, self.mesh, self.table)["carry"]
        shapes, shardings = self.shapes.replace(carry=carry), self.shardings.replace(carry=placed)
        return dataclasses.replace(self, config=config, shapes=shapes, shardings=shardings)

    def empty_carry(self) -> Any:
        """What the first batch of a phase, or of an evaluation, is given: zeros, None where nothing is carried."""
        if self.shapes.carry is None:
            return None
        with self.use():
            return jax.jit(self._zeros, out_shardings=self.shardings.carry)()

    def _zeros(self) -> Any:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self.shapes.carry)

    def placed_shapes(self) -> State:
        """ShapeDtypeStructs with shardings: what a checkpoint is restored into, what a step is lowered with."""
        return jax.tree.map(
            lambda s, p: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=p), self.shapes, self.shardings
        )


def fresh(config: Config, optimizer: optax.GradientTransformation, params: Any) -> State:
    """A state before the first step.

    Args:
      config: the run's configuration.
      optimizer: gives the optimizer state.
      params: the parameters to start from.

    Returns:
      The state.
    """
    ema = jax.tree.map(jnp.copy, params) if config.optimizer.ema_decay else None
    zero = jnp.zeros((), jnp.int32)
    return State(zero, params, optimizer.init(params), ema, skipped=zero, skipped_total=zero)


def purpose_key(key: jax.Array, purpose: str, step: jax.Array | int = 0) -> jax.Array:
    """A random key for a named purpose at a step: it depends on neither mesh nor processes.

    Args:
      key: the run's key, `jax.random.key(seed)`.
      purpose: "init", "dropout", …
      step: the training step.

    Returns:
      A key.
    """
    return jax.random.fold_in(jax.random.fold_in(key, zlib.crc32(purpose.encode())), step)


def setup(config: Config, devices: list[jax.Device] | None = None) -> Setup:
    """Builds model, optimizer and mesh, and plans where each array of the state lives.

    Args:
      config: the run's configuration.
      devices: the devices to use, all by default.

    Returns:
      The setup; no array has been made yet.

    Raises:
      UserError: a mesh that does not fit the devices or the model's sizes.
    """
    mesh, table = meshes.make(config.mesh, devices), rules.table(config.mesh)
    network = config.objective.loss.network(config.model)
    schedule = config.optimizer.schedule.build(config.optimizer.learning_rate, config.train.steps)
    axes = network.logical_axes()
    optimizer = optimizers.make(config.optimizer, schedule, axes)
    shapes = jax.eval_shape(functools.partial(fresh, config, optimizer), network.shapes())
    opt_axes = optimizers.state_axes(optimizer, shapes.params, axes)
    ema_axes = None if shapes.ema is None else axes
    placed = State((), axes, opt_axes, ema_axes, skipped=(), skipped_total=())
    shardings = rules.shardings(placed, shapes, mesh, table)
    return Setup(config, network, optimizer, schedule, mesh, table, axes, shapes, shardings).for_phase(config)


def size(tree: Any) -> int:
    """Bytes of all arrays of a tree (of one copy of each)."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def per_device_size(setup: Setup) -> int:
    """Bytes of the state on one device."""
    return bytes_on_device(setup.shapes, setup.shardings)


def bytes_on_device(shapes: Any, shardings: Any) -> int:
    """Bytes of a tree of arrays (or their shapes) on one device, under their NamedShardings."""

    def one(shape: jax.ShapeDtypeStruct, sharding: NamedSharding) -> int:
        return int(jnp.dtype(shape.dtype).itemsize) * math.prod(sharding.shard_shape(shape.shape))

    return sum(jax.tree.leaves(jax.tree.map(one, shapes, shardings)))
