"""Looks for settings under which a step fits, and for the fastest of them; none of them changes what a run computes.

The rows of a step are part of the recipe: what is tried is how many of them a device has at a time
(`train.grad_accum_steps`), what the backward pass computes again (`model.remat`), the mesh, and `mesh.preset=megatron`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from jaxpt import config as configs
from jaxpt.config import AXES, Config
from jaxpt.errors import UserError
from jaxpt.parallel import rules
from jaxpt.plan import program, roofline
from jaxpt.plan.program import PlanResult, Target
from jaxpt.plan.topologies import Topology

REMAT = ("none", "dots", "names", "full")
"""Ordered from the most memory to the least."""
NEAREST = 5
"""So many settings are tried at the most to find the nearest that fit."""

Settings = dict[str, str | int]


@dataclasses.dataclass(frozen=True)
class Trial:
    """Settings that were tried, and their result."""

    settings: Settings
    measured: PlanResult | None
    reason: str
    seconds: float = math.inf
    """Of a step, by the roofline; infinite where it does not fit."""

    @property
    def fits(self) -> bool:
        """True if the step was compiled and fits."""
        return self.measured is not None and self.measured.fits


def apply(config: Config, settings: Settings) -> Config:
    """The configuration under other settings: {dotted key: value}."""
    tree = configs.dump(config)
    for key, value in settings.items():
        section, _, name = key.partition(".")
        tree[section][name] = value
    return configs.build(tree)


def nearest(config: Config, where: Target, measured: PlanResult) -> tuple[Trial | None, list[Trial]]:
    """The first settings that fit, when the recipe's own do not: fewer rows at a time, then less kept, then a mesh.

    Args:
      config: the run's configuration.
      where: the devices.
      measured: the program of the phase that needs the most; it does not fit.

    Returns:
      (the settings, None if none was found among a few; all that was tried).
    """
    tried: list[Trial] = []
    for settings in itertools.islice(_steps_down(config, measured, where.slices), NEAREST):
        tried.append(in_other_phases(config, where, attempt(config, where, settings, measured.phase), measured.phase))
        if tried[-1].fits:
            return tried[-1], tried
    return None, tried


def more_devices(tried: Sequence[Trial]) -> str:
    """Words on what did not help: each setting that was tried, and the one that came nearest."""
    names = "; ".join(words(trial.settings) for trial in tried if trial.settings)
    misses = [trial for trial in tried if trial.measured is not None]
    text = f"tried without help: {names}; " if names else ""
    if misses:
        best = min(misses, key=lambda trial: trial.measured.total - trial.measured.limit)
        text += f"the nearest miss is {words(best.settings) or 'its own settings'}, {best.reason}; "
    return f"{text}it needs more devices"


def words(settings: Settings) -> str:
    """Settings as on a command line."""
    return " ".join(f"{key}={value}" for key, value in settings.items())


def _steps_down(config: Config, measured: PlanResult, slices: int) -> Iterator[Settings]:
    fixed = measured.total - measured.memory["temporaries"]
    ways = math.prod(measured.mesh[axis] for axis in rules.BATCH)
    batches = {phase.data.batch_size for phase in configs.phase_configs(config)}  # each phase has to divide
    cuts = range(config.train.grad_accum_steps + 1, measured.rows // ways + 1)
    cuts = [n for n in cuts if all(rows % (ways * n) == 0 for rows in batches)]
    mesh: Settings = {}
    across = math.gcd(measured.mesh["data"], slices)  # fsdp stays inside one slice
    cut = measured.mesh["data"] // across
    if fixed > measured.limit * 0.9:  # the state alone is too large: cut it, over the devices of `data` as well
        mesh = {"mesh.data": across, "mesh.fsdp": cut * measured.mesh["fsdp"]}
        fixed //= cut
    needed_steps = config.train.grad_accum_steps * measured.memory["temporaries"] / max(measured.limit - fixed, 1)
    enough = [n for n in cuts if n >= needed_steps]  # temporaries shrink with the rows, or somewhat less
    levels = REMAT[REMAT.index(config.model.remat) + 1 :]
    if mesh:
        yield mesh
    for accumulation in enough[:2]:
        yield {**mesh, "train.grad_accum_steps": accumulation}
    for remat in levels:
        yield {**mesh, "model.remat": remat}
    if cuts and (levels or cuts[-1] not in enough[:2]):
        least: Settings = {"model.remat": "full"} if levels else {}
        yield {**mesh, **least, "train.grad_accum_steps": cuts[-1]}


def search(
    config: Config, where: Target, topology: Topology, limit: int, report: Callable[[Trial], None] = lambda tried: None
) -> list[Trial]:
    """Compiles the last phase's step under several meshes, then keeps less under the best of them, and ranks what fits.

    The best mesh, or else the recipe's own, is tried with `mesh.preset=megatron` as well if its `tensor` is above 1.
    Other phases are not compiled: `in_other_phases` does so for one result.

    Args:
      config: the run's configuration.
      where: the devices.
      topology: their chips.
      limit: so many programs are compiled at the most.
      report: called with each result.

    Returns:
      All that was tried, the fastest by its roofline first, what does not fit last.
    """
    phase = len(configs.phase_starts(config)) - 1
    trials: list[Trial] = []

    def compile_(settings: Settings) -> None:
        """Also with fewer rows at a time, where it does not fit."""
        for _ in range(min(2, limit - len(trials))):
            trials.append(attempt(config, where, settings, phase, topology))
            report(trials[-1])
            measured = trials[-1].measured
            if measured is None or measured.fits:
                return
            cuts = _steps_down(apply(config, settings), measured, where.slices)
            cut = next((step for step in cuts if list(step) == ["train.grad_accum_steps"]), None)
            if cut is None:
                return
            settings = {**settings, **cut}

    for mesh in _meshes(config, phase, topology):
        if len(trials) < max(2 * limit // 3, 1):
            compile_(mesh)
    tensor = [trial.settings for trial in (min(trials, key=_rank), trials[0]) if trial.settings["mesh.tensor"] > 1]
    # The preset cuts activations between blocks over `tensor`, where nothing else says how they are cut.
    if tensor and config.mesh.preset == "default" and config.mesh.rules.residual_length is None:
        compile_({**tensor[0], "mesh.preset": "megatron"})
    best = min(trials, key=_rank).settings
    for remat in REMAT:
        if remat != config.model.remat:
            compile_({key: best[key] for key in best if key.startswith("mesh.")} | {"model.remat": remat})
    return sorted(trials, key=lambda tried: tried.seconds)


def _rank(trial: Trial) -> tuple[float, float]:
    """The fastest first, then what is nearest to fitting."""
    return trial.seconds, math.inf if trial.measured is None else trial.measured.total


def _meshes(config: Config, phase: int, topology: Topology) -> Iterator[Settings]:
    """The recipe's own mesh, then others: all data, all fsdp, and both beside a little tensor.

    fsdp over half of a slice as well: not every width divides by all of its devices, as 1,600 does not by 128.
    """
    recipe_mesh = {f"mesh.{axis}": size for axis, size in config.mesh.sizes.items()}
    rest = topology.size // math.prod(size for size in recipe_mesh.values() if size != -1)
    recipe_mesh = {axis: rest if size == -1 else size for axis, size in recipe_mesh.items()}
    meshes = [recipe_mesh]
    yield recipe_mesh
    per_slice, rows = topology.size // topology.slices, configs.at_phase(config, phase).data.batch_size
    for tensor in (1, 2, 4):
        for fsdp in (per_slice // tensor, 1, per_slice // tensor // 2, min(8, per_slice // tensor)):
            data, rest = divmod(topology.size, tensor * max(fsdp, 1))
            mesh: Settings = {f"mesh.{axis}": 1 for axis in AXES}
            mesh |= {"mesh.data": data, "mesh.fsdp": fsdp, "mesh.tensor": tensor}
            possible = fsdp and not rest and rows % (data * fsdp * config.train.grad_accum_steps) == 0
            if possible and mesh not in meshes:
                meshes.append(mesh)
                yield mesh


def attempt(config: Config, where: Target, settings: Settings, phase: int, topology: Topology | None = None) -> Trial:
    """Compiles the step under other settings.

    Args:
      config: the run's configuration.
      where: the devices.
      settings: what is changed in it.
      phase: which phase, from 0.
      topology: the chips, for the time of a step; None: memory alone is looked at.

    Returns:
      The result, in words as well; also where the compiler refuses the step, or it does not fit.
    """
    try:
        measured = program.measure(apply(config, settings), where, phase)
    except UserError as error:
        return Trial(settings, None, str(error))
    gib = abs(measured.limit - measured.total) / 2**30
    if not measured.fits:
        return Trial(settings, measured, f"{gib:.2f} GiB too much")
    if topology is None:
        return Trial(settings, measured, f"{gib:.2f} GiB to spare")
    bound = roofline.bound(measured, topology)
    reason = f"{bound.by} bounds it, MFU {bound.mfu:.1%} at the most, {gib:.2f} GiB to spare"
    return Trial(settings, measured, reason, bound.seconds)


def in_other_phases(config: Config, where: Target, trial: Trial, phase: int) -> Trial:
    """Compiles the steps of the other phases under the settings that fit one.

    Args:
      config: the run's configuration.
      where: the devices.
      trial: of one phase.
      phase: that phase, from 0.

    Returns:
      The trial itself where it does not fit, or all phases do; else that of the first phase that does not, named.
    """
    for other in range(len(configs.phase_starts(config)) if trial.fits else 0):
        found = trial if other == phase else attempt(config, where, trial.settings, other)
        if not found.fits:
            return dataclasses.replace(found, reason=f"phase {other + 1}: {found.reason}")
    return trial
