"""What a training step carries on: counts of steps, parameters, optimizer state, and the parameters' average."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import traverse_util
from jax.sharding import Mesh, NamedSharding

from jaxpt import config as configs
from jaxpt.config import Config, LoraConfig
from jaxpt.errors import UserError, listed
from jaxpt.models import parts
from jaxpt.models.network import Network
from jaxpt.parallel import compiler, rules
from jaxpt.parallel import mesh as meshes
from jaxpt.train import lora, optimizers, schedules, spikes, trainable


@flax.struct.dataclass
class State:
    """The whole state of a run; everything else (data, random keys) is a function of `step` and the config."""

    step: jax.Array
    """int32 []: steps done."""
    params: Any
    opt_state: Any
    ema: Any
    """Exponential moving average of the trained parameters, or None."""
    skipped: jax.Array
    """int32 []: steps in a row, up to the last one, whose update was skipped: loss or gradient was not finite."""
    skipped_total: jax.Array
    """int32 []: all steps of the run whose update was skipped."""
    carry: Any = None
    """What each row of the batch hands to the same row of the next one, [batch, ...], or None (see `carry_shapes`)."""
    scale: Any = None
    """What loss and gradient norm usually are (`spikes.judge`); None where steps do not judge them."""

    @property
    def averaged(self) -> Any:
        """The parameters that evaluation uses: the average where there is one."""
        return self.params if self.ema is None else trainable.merge(self.params, self.ema)


def named_arrays(state: State) -> dict[str, Any]:
    """The arrays of a state, or what stands for them, by their paths, in the order of its leaves.

    Example:
      >>> list(named_arrays({"params": {"embed": 1, "head": 2}}))
      ['params/embed', 'params/head']
    """
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in leaves}


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
    layout: trainable.Layout
    """How the parameters are stored, and which are trained when."""
    axes: Any
    """Logical axis names of the parameters."""
    shapes: State
    """ShapeDtypeStructs of the state."""
    shardings: State
    """NamedShardings of the state."""
    trained: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """{path of a parameter that is trained: the phase since which it is}."""
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
        teacher_args = self.teacher_params() if params is None else params
        models = {name: (teacher.network, teacher_args[0][name]) for name, teacher in self.teachers.items()}
        return {"teachers": models} if models else {}

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """Makes mesh, table and `train.deterministic` current: every program of the run is traced within."""
        with meshes.use(self.mesh, self.table), compiler.deterministic(self.config.train.deterministic):
            yield

    def init(self) -> State:
        """A fresh state from `config.seed`, each array made where it lives."""
        with self.use():
            return jax.jit(self._init, out_shardings=self.shardings)(jax.random.key(self.config.seed))

    def _init(self, key: jax.Array) -> State:
        params = self.network.init(purpose_key(key, "init"))
        params = parts.split(params, self.layout.parts)
        adapters, _ = _adapters(self.layout, self.config.train.lora, params, self.axes)
        params = trainable.merge(params, lora.init(adapters, purpose_key(key, "adapter")))
        return fresh(self.config, self.optimizer, params, self.trained).replace(carry=self._zeros())

    def for_phase(self, config: Config, index: int = 0) -> Setup:
        """The setup in one phase of the run, whose batches may have another size, and which may train others.

        Args:
          config: the run's configuration in that phase.
          index: its number.

        Raises:
          UserError: a parameter has another shape there.
        """
        setup = self if self.trained == self.layout.since[index] else self._training(index)
        if (config.model, config.objective) != (self.config.model, self.config.objective):
            setup = dataclasses.replace(setup, network=self._network_of(config))
        carry = config.objective.carry_shapes(setup.network, config.data.batch_size)
        axes = jax.tree.map(lambda x: ("batch", *[None] * (len(x.shape) - 1)), carry)
        placed = rules.shardings({"carry": axes}, {"carry": carry}, self.mesh, self.table)["carry"]
        shapes, shardings = setup.shapes.replace(carry=carry), setup.shardings.replace(carry=placed)
        return dataclasses.replace(setup, config=config, shapes=shapes, shardings=shardings)

    def _network_of(self, config: Config) -> Network:
        """The network in a phase, with its rotary positions and heads; a head that its objective has not stays.

        Args:
          config: the run's configuration in that phase.

        Raises:
          UserError: a parameter has another shape there.
        """
        config.objective.check_family(config.model)  # before heads are declared for it
        theirs, ours = config.objective.network(config.model), self.network
        heads = {name: theirs.heads.get(name, head) for name, head in ours.heads.items()}
        network = dataclasses.replace(ours, model=theirs.model, heads=heads)
        was, now = (traverse_util.flatten_dict(x.shapes(), sep="/") for x in (ours, network))
        others = [path for path in sorted({*was, *now}) if was.get(path) != now.get(path)]
        if others:
            pairs = configs.differences(self.config, config)
            keys = [f"{key}: {value}" for key, _, value in pairs if key.startswith(("objective.", "model."))]
            raise UserError(
                f"train.phases: all phases have the same parameters; {', '.join(keys)} would change "
                f"{listed(others, 2)}: set that for the whole run"
            )
        return ours if network == ours else network

    def _training(self, index: int) -> Setup:
        """With the optimizer of what a phase trains, and its state."""
        trained, config = self.layout.since[index], self.config
        axes, _ = trainable.partition(self.axes, trained)
        groups = self.layout.groups(index)
        optimizer = optimizers.make(config.optimizer, self.schedule, axes, self.layout.rates, groups)
        shapes = jax.eval_shape(lambda params: fresh(config, optimizer, params, trained), self.shapes.params)
        opt_axes = optimizers.state_axes(optimizer, trainable.partition(shapes.params, trained)[0], axes)
        ema_axes = None if shapes.ema is None else axes
        scale_axes = None if shapes.scale is None else spikes.axes()
        placed = State((), self.axes, opt_axes, ema_axes, skipped=(), skipped_total=(), scale=scale_axes)
        shardings = rules.shardings(placed, shapes, self.mesh, self.table)
        return dataclasses.replace(self, optimizer=optimizer, shapes=shapes, shardings=shardings, trained=trained)

    def begin_phase(self, state: State, new_data: bool = True) -> State:
        """The state with which a phase starts: what is trained from now on gets optimizer state and average.

        Args:
          state: at the end of the phase before, or a fresh one.
          new_data: its first batch does not continue the last one.
        """
        if new_data:
            state = state.replace(carry=self.empty_carry())
        state = state.replace(scale=self.empty_scale())
        if jax.tree.structure(state) == jax.tree.structure(self.shapes):
            return state

        def begun(params: Any, updates: jax.Array) -> tuple[Any, Any]:
            new = fresh(self.config, self.optimizer, params, self.trained)
            return _reset_schedule_count(new.opt_state, updates), new.ema

        with self.use():
            placed = self.shardings.opt_state, self.shardings.ema
            new = jax.jit(begun, out_shardings=placed)(state.params, state.step - state.skipped_total)
        opt_state, ema = _merge_opt_state((state.opt_state, state.ema), new)
        return state.replace(opt_state=opt_state, ema=ema)

    @functools.cached_property
    def to_model(self) -> Callable[[State], Any]:
        """From a state to the parameters for evaluation: the average where there is one, adapters merged."""
        config = self.config.train.lora
        if config is None:
            return lambda state: state.averaged
        with self.use():
            placed = self.for_evaluation().shardings.params
            merge = compiler.jit(lambda params: lora.merged(config, params), out_shardings=placed)
            compiled = merge.lower(self.placed_shapes().params).compile()
        return lambda state: compiled(state.averaged)

    def assemble(self, trained: Any, frozen: Any, key: jax.Array | None) -> Any:
        """The model's parameters in a training step, from both parts of the stored ones.

        Args:
          trained: those that gradients are taken by.
          frozen: the others.
          key: random key of the step; None for no dropout.
        """
        adapter_key = None if key is None else purpose_key(key, "adapter")
        return lora.merged(self.config.train.lora, trainable.merge(trained, frozen), adapter_key)

    def for_evaluation(self) -> Setup:
        """The setup as evaluators see it: parameters are the model's, without an adapter."""
        if self.config.train.lora is None:
            return self

        def model_alone(tree: Any) -> Any:
            return {name: part for name, part in tree.items() if name != lora.ADAPTER}

        shapes, shardings = (x.replace(params=model_alone(x.params)) for x in (self.shapes, self.shardings))
        return dataclasses.replace(self, axes=model_alone(self.axes), shapes=shapes, shardings=shardings)

    def empty_carry(self) -> Any:
        """What the first batch of a phase, or of an evaluation, is given: zeros, None where nothing is carried."""
        if self.shapes.carry is None:
            return None
        with self.use():
            return jax.jit(self._zeros, out_shardings=self.shardings.carry)()

    def empty_scale(self) -> Any:
        """What loss and gradient norm usually are before the first step of a phase; None where steps do not judge."""
        if self.shapes.scale is None:
            return None
        return jax.device_put(spikes.fresh(np), self.shardings.scale)

    def _zeros(self) -> Any:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self.shapes.carry)

    def placed_shapes(self) -> State:
        """ShapeDtypeStructs with shardings: what a checkpoint is restored into, what a step is lowered with."""
        return jax.tree.map(
            lambda s, p: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=p), self.shapes, self.shardings
        )


def fresh(
    config: Config, optimizer: optax.GradientTransformation, params: Any, trained: Iterable[str] | None = None
) -> State:
    """A state before the first step.

    Args:
      config: the run's configuration.
      optimizer: gives the optimizer state.
      params: the parameters to start from.
      trained: paths of those that are trained; all by default.

    Returns:
      The state.
    """
    part = params if trained is None else trainable.partition(params, trained)[0]
    ema = jax.tree.map(jnp.copy, part) if config.optimizer.ema_decay else None
    zero = jnp.zeros((), jnp.int32)
    scale = None if config.train.on_spike == "keep" else spikes.fresh()
    return State(zero, params, optimizer.init(part), ema, skipped=zero, skipped_total=zero, scale=scale)


def _adapters(layout: trainable.Layout, adapter: LoraConfig | None, stored: Any, axes: Any) -> tuple[Any, Any]:
    """(shapes, logical axes) by path of the low-rank adapters of a stored model; empty where there is none."""
    if adapter is None:
        return {}, {}
    flat, names = (traverse_util.flatten_dict(tree, sep="/") for tree in (stored, axes))
    return lora.describe(adapter, {path: flat[path] for path in layout.adapted}, names)


def _reset_schedule_count(fresh: Any, updates: jax.Array) -> Any:
    """A fresh optimizer state whose learning rate continues after so many updates, int32 []."""

    def is_count(x: Any) -> bool:  # in a schedule: optax's states of it hold a count alone
        return getattr(x, "_fields", None) == ("count",)

    def set_count(x: Any) -> Any:
        return x._replace(count=jnp.full_like(x.count, updates)) if is_count(x) else x

    return jax.tree.map(set_count, fresh, is_leaf=is_count)


def _merge_opt_state(old: Any, fresh: Any) -> Any:
    """`fresh`, with what `old` has under the same paths: of parameters that were trained before."""
    known = {jax.tree_util.keystr(path): x for path, x in jax.tree_util.tree_leaves_with_path(old)}

    def merge(path: tuple[Any, ...], x: Any) -> Any:
        before = known.get(jax.tree_util.keystr(path))
        return before if before is not None and before.shape == x.shape else x

    return jax.tree_util.tree_map_with_path(merge, fresh)


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


def setup(config: Config, devices: list[jax.Device] | None = None, asked: int | None = None) -> Setup:
    """Builds model, optimizer and mesh, and plans where each array of the state lives.

    Args:
      config: the configuration of the whole run: `for_phase` gives the setup of a later phase.
      devices: the devices to use, all by default.
      asked: the number of processes that the mesh was written for, if fewer go on.

    Returns:
      The setup of the first phase; no array has been made yet.

    Raises:
      UserError: a mesh that does not fit the devices or the model's sizes, a pattern that matches no parameter.
    """
    mesh_config = config.mesh if asked is None else meshes.fewer(config.mesh, asked, jax.process_count())
    mesh, table = meshes.make(mesh_config, devices), rules.table(config.mesh)
    network = config.objective.network(config.model)
    schedule = config.optimizer.schedule.within(config.train.steps)
    schedule = schedules.make(schedule, config.optimizer.learning_rate, config.train.steps)
    shapes, axes = network.shapes(), network.logical_axes()
    layout = trainable.layout(config, shapes, axes)
    shapes, axes = parts.split(shapes, layout.parts), parts.split(axes, layout.parts)
    adapter_shapes, adapter_axes = _adapters(layout, config.train.lora, shapes, axes)
    shapes, axes = trainable.merge(shapes, adapter_shapes), trainable.merge(axes, adapter_axes)
    optimizers.check(config.optimizer, trainable.partition(axes, set().union(*layout.since))[0])
    state = State((), shapes, (), None, skipped=(), skipped_total=())
    start = Setup(config, network, optax.identity(), schedule, mesh, table, layout, axes, state, state)
    return start.for_phase(config)


def size(tree: Any) -> int:
    """Bytes of all arrays of a tree (of one copy of each)."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def per_device_size(setup: Setup) -> int:
    """Bytes of the state on one device."""
    return bytes_on_device(setup.shapes, setup.shardings)


def bytes_on_device(shapes: Any, shardings: Any) -> int:
    """Bytes of a tree of arrays (or their shapes) on one device, under their NamedShardings."""

    def shard_bytes(shape: jax.ShapeDtypeStruct, sharding: NamedSharding) -> int:
        return int(jnp.dtype(shape.dtype).itemsize) * math.prod(sharding.shard_shape(shape.shape))

    return sum(jax.tree.leaves(jax.tree.map(shard_bytes, shapes, shardings)))
