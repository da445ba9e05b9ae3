"""Compiles the step that a recipe would run, for devices that need not be here, and measures the program."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.errors import UserError
from jaxpt.plan import isolated, vendor_names
from jaxpt.runtime import packages

_MODULE = "jit_step"
_COMPILERS = {
    "tpu": ("libtpu",),
    "gpu": ("jax-cuda13-plugin", "jax-cuda12-plugin", "jax-rocm7-plugin", "jax-rocm60-plugin"),
}


@dataclasses.dataclass(frozen=True)
class Target:
    """Devices to compile for: those of a topology, or those of this machine."""

    topology: str | None = None
    """As `topologies.parse` reads it: of a cloud's machines their own name, which says what network they have."""
    slices: int = 1

    @classmethod
    def of(cls, config: Config, topology: str | None = None, slices: int | None = None) -> Target:
        """The slices that are asked for, else those that a recipe is made for, else this machine."""
        if topology is None:
            topology, slices = config.plan.topology, slices or config.plan.slices
        if topology and vendor_names.network(topology) is None:
            topology = vendor_names.to_topology(topology)
        return cls(topology and topology.lower(), slices or 1)

    @property
    def shape(self) -> str | None:
        """The topology by kind and number of chips: what is compiled for."""
        return self.topology and vendor_names.to_topology(self.topology)

    def __str__(self) -> str:
        if self.topology is None:
            return "this machine"
        return self.topology if self.slices == 1 else f"{self.slices} × {self.topology}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompiledProgram:
    """A compiled program. Bytes are those of one device, FLOPs those of all; a step is what it does once."""

    rows: int
    """Of the global batch."""
    length: int
    parameters: int
    dtype: str
    """Of the computation."""
    platform: str
    device_kind: str
    devices: int
    mesh: dict[str, int]
    seconds: float
    """From the recipe to the placed buffers."""
    program_flops: int
    """Of a step."""
    traffic: int
    """To and from the device's main memory in a step, estimated."""
    collectives: list[dict[str, Any]]
    """Of a step."""
    total: int
    """What XLA counts, with the padding of layouts; on a CPU, what its products take besides. Of a training step also
    the copy of the state that `train.recompute_every` keeps beside it."""
    limit: int
    """Memory of the device that a program may take."""

    @property
    def fits(self) -> bool:
        """True if it fits on the device."""
        return self.total <= self.limit


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanResult(CompiledProgram):
    """The step of one phase of a recipe."""

    phase: int
    steps: int
    tokens: int
    """In a step, of all devices."""
    model_flops: int
    memory: dict[str, int]
    """parameters, optimizer, average, second_state, batch, temporaries: `total` is their sum."""
    buffers: list[dict[str, Any]]
    placements: list[dict[str, Any]]
    """Of each parameter."""
    large_replicated_params: list[str]
    """Large parameters that are fully replicated, though the mesh could shard them."""
    copied_donated_buffers: list[dict[str, Any]]
    """Arrays of the state that the step does not update where they lie (`jaxpt.plan.donation`)."""
    compiler: str = ""
    """With its version, such as "libtpu 0.0.52"."""
    regions: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """What its loops and the rest of it do (`jaxpt.plan.operations`): the roofline adds up their times."""
    active_parameters: int = 0
    """Those that a token uses: of a mixture's experts those that it is sent to."""
    imbalance: float | None = None
    """Of a mixture: the largest share of tokens that an expert can have, as a multiple of the mean. A step takes the
    same memory up to there (`jaxpt.models.dispatch`): what fits at all fits at any imbalance."""


def measure(config: Config, where: Target, phase: int = 0) -> PlanResult:
    """Compiles a phase's step in a subprocess and measures it.

    Args:
      config: the run's configuration.
      where: the devices.
      phase: which phase, from 0.

    Returns:
      What the program takes; also where it does not fit.

    Raises:
      UserError: for what is wrong with recipe, mesh or topology, or what the compiler refuses.
        The process may also end with no answer, a defect of ours or of the compiler's: `--debug` shows all it said.
    """
    return PlanResult(**_in_a_process(config, where, phase))


def save(config: Config, where: Target, phase: int, directory: str) -> str:
    """Compiles a phase's step in a subprocess and writes it; see `jaxpt.train.compiled`.

    Args:
      config: the run's configuration.
      where: the devices.
      phase: which phase, from 0.
      directory: where the steps of all phases go.

    Returns:
      A line on what was written.

    Raises:
      UserError: as `measure`.
    """
    return _in_a_process(config, where, phase, os.path.abspath(directory))["saved"]


def _in_a_process(config: Config, where: Target, phase: int, save_to: str | None = None) -> dict[str, Any]:
    job = {"config": configs.to_yaml(config), "topology": where.shape, "slices": where.slices, "phase": phase}
    return isolated.ask(__name__, {**job, "save": save_to}, str(where))


# ---- in the subprocess ----------------------------------------------------------------------------------------------


def _answer(job: dict[str, Any], directory: Path) -> dict[str, Any]:
    begun = time.perf_counter()
    return _save(job, directory, begun) if job["save"] else _measure(job, directory, begun)


def _setup(job: dict[str, Any], directory: Path) -> tuple[Config, Any]:
    """(the whole run's configuration, the setup of the job's phase)."""
    from jaxpt.plan import topologies
    from jaxpt.train import corruption, state, step, teachers

    topology = job["topology"] and topologies.parse(job["topology"], job["slices"])
    (directory / "config.yaml").write_text(job["config"], "utf-8")
    whole = configs.load(directory / "config.yaml")
    config = configs.at_phase(whole, job["phase"])
    setup = state.setup(whole, topology.devices() if topology else None).for_phase(config, job["phase"])
    setup = teachers.attach(setup, lambda line: None, shapes_alone=True)
    corruption.check(setup)
    step.check(config, setup)
    return whole, setup


def _save(job: dict[str, Any], directory: Path, begun: float) -> dict[str, str]:
    from jaxpt.train import compiled, step

    _, setup = _setup(job, directory)
    lowered = step.traced(setup, setup.config.objective).lower()
    try:
        ready = lowered.compile()
    except Exception as error:  # of any class of XLA's
        raise UserError(f"the compiler refused the step: {' '.join(str(error).split())}") from None
    place = compiled.save(ready, setup, Path(job["save"]), job["phase"])
    size = (place / "step").stat().st_size / 2**20
    return {"saved": f"{place}: {size:.1f} MiB, compiled in {time.perf_counter() - begun:.0f} s"}


def _measure(job: dict[str, Any], directory: Path, begun: float) -> dict[str, Any]:
    import jax.numpy as jnp

    from jaxpt.models import base
    from jaxpt.plan import topologies
    from jaxpt.train import flops, step

    whole, setup = _setup(job, directory)
    topology = job["topology"] and topologies.parse(job["topology"], job["slices"])
    config, objective = setup.config, setup.config.objective
    ends = (*configs.phase_starts(whole), whole.train.steps)
    with setup.use():
        batch = step.batch_shapes(setup, objective)
        dtype = jnp.dtype(base.compute_dtype(config.model)).name
        needed = flops.step_flops(setup, batch)
    traced = step.traced(setup, objective)
    device = setup.mesh.devices.flat[0]
    texts = isolated.compile_(traced.lower(), directory, _MODULE, device.platform)
    return {
        "phase": job["phase"],
        "steps": ends[job["phase"] + 1] - ends[job["phase"]],
        "rows": config.data.batch_size,
        "length": config.data.length,
        "tokens": config.data.batch_size * step.tokens_per_example(setup, objective),
        "dtype": dtype,
        "platform": device.platform,
        "device_kind": device.device_kind,
        "compiler": _compiler(device.platform),
        "devices": setup.mesh.size,
        "mesh": dict(setup.mesh.shape),
        "seconds": round(time.perf_counter() - begun, 1),
        "model_flops": needed,
        "program_flops": flops.count(traced.jaxpr.jaxpr),
        "limit": topology.memory if topology else isolated.limit(device),
        **_read(texts, setup, batch),
    }


def _compiler(platform: str) -> str:
    """The package that compiles, with its version; jaxlib where none of those that are known is installed."""
    names = (*_COMPILERS.get(platform, ()), "jaxlib")
    return next((f"{name} {version}" for name in names if (version := packages.version(name))), "")


def _read(texts: dict[str, str], setup: Any, batch: Any) -> dict[str, Any]:
    """Memory, buffers, collectives, traffic and placements."""
    import jax

    from jaxpt.parallel import mesh as meshes
    from jaxpt.parallel import rules
    from jaxpt.plan import collectives, donation, hlo, memory, operations
    from jaxpt.train import state

    shapes, places, devices = setup.shapes, setup.shardings, setup.mesh.devices.flat
    parts = {
        "parameters": state.bytes_on_device(shapes.params, places.params),
        "optimizer": state.bytes_on_device(shapes.opt_state, places.opt_state),
        "average": 0 if shapes.ema is None else state.bytes_on_device(shapes.ema, places.ema),
        "second_state": state.per_device_size(setup) if setup.config.train.recompute_every else 0,
        "batch": state.bytes_on_device(batch, jax.tree.map(lambda x: x.sharding, batch)),
    }
    program = hlo.Program(texts["after_optimizations"])
    total = memory.total(texts["memory-usage-report"], texts["buffer-assignment"])
    if devices[0].platform == "cpu":
        total += memory.packed(program)
    total += parts["second_state"]
    links = setup.mesh.shape, meshes.between(setup.mesh.shape, meshes.slices(devices)), meshes.machine(devices)
    experts = getattr(setup.config.model, "experts", None)
    largest = memory.largest(texts["live-range"], texts["buffer-assignment"], program)
    return {
        "parameters": setup.network.count_params(),
        "active_parameters": setup.network.count_active_params(),
        "imbalance": experts / setup.config.model.experts_per_token if experts else None,
        "memory": {**parts, "temporaries": total - sum(parts.values())},
        "total": total,
        "buffers": [dataclasses.asdict(buffer) for buffer in largest],
        "collectives": [dataclasses.asdict(c) for c in collectives.find(program, *links)],
        "traffic": program.traffic(),
        "regions": [dataclasses.asdict(region) for region in operations.regions(program, *links)],
        "placements": _placements(setup),
        "large_replicated_params": rules.large_replicated_params(shapes.params, places.params),
        "copied_donated_buffers": [dataclasses.asdict(fault) for fault in donation.faults(program, _state(setup))],
    }


def _state(setup: Any) -> dict[str, int]:
    """{name of each array of the state among the step's parameters: its bytes on a device}."""
    import jax

    from jaxpt.train import state

    leaves, places = jax.tree_util.tree_leaves_with_path(setup.shapes), jax.tree.leaves(setup.shardings)
    return {
        f"state{jax.tree_util.keystr(path)}": state.bytes_on_device(leaf, place)
        for (path, leaf), place in zip(leaves, places, strict=True)
    }


def _placements(setup: Any) -> list[dict[str, Any]]:
    """Of each parameter: name, shape, logical axes, mesh axes and bytes on a device."""
    import jax

    from jaxpt.train import state

    flat = jax.tree_util.tree_leaves_with_path(setup.shapes.params)
    axes = jax.tree.leaves(setup.axes, is_leaf=lambda x: isinstance(x, tuple))
    places = jax.tree.leaves(setup.shardings.params)
    return [
        {
            "name": jax.tree_util.keystr(path, simple=True, separator="/"),
            "shape": list(leaf.shape),
            "axes": list(names),
            "placement": [None if entry is None else list(_cutting(entry, setup.mesh)) or None for entry in place.spec],
            "bytes": state.bytes_on_device(leaf, place),
        }
        for (path, leaf), names, place in zip(flat, axes, places, strict=True)
    ]


def _cutting(entry: str | tuple[str, ...], mesh: Any) -> tuple[str, ...]:
    """The mesh axes of an entry that have more than one device."""
    return tuple(axis for axis in ((entry,) if isinstance(entry, str) else entry) if mesh.shape[axis] > 1)


if __name__ == "__main__":
    isolated.answer(_answer)
