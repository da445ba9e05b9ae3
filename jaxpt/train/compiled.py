"""Training steps in files: `jaxpt plan CONFIG --save DIR` compiles and writes them, `train.compiled=DIR` loads them.

JAX's persistent cache (`compiler.enable_compilation_cache`) keeps programs as well, but three things are missing there.
It has to be filled on the machines themselves; a saved step is compiled before there is a machine, and serves all
hosts. A start still traces and lowers the step to find it in the cache. And it compiles without a word where anything
differs; a start that a saved step does not serve is refused, and the difference is named.

    DIR/phase_1/  step (machine code, in JAX's own pickle)  made_for.json  checksums.json

Machine code runs as you, whatever file it is in. So files that another user (but root) owns or may write are refused,
a line says whose they are, and `run.json` keeps their digest. The checksums find damage; they are no signature.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import pwd
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from jaxpt import config as configs
from jaxpt.config import Config, cache_key_fields
from jaxpt.errors import UserError, shown
from jaxpt.parallel import compiler
from jaxpt.parallel import mesh as meshes
from jaxpt.runtime import disk, packages, plugins
from jaxpt.runtime.version import __version__
from jaxpt.train import checksums, step
from jaxpt.train.state import Setup

_PACKAGES = ("jax", "jaxlib", "flax", "optax")
_COMPILERS = {"tpu": ("libtpu",), "gpu": ("jax-cuda12-pjrt", "jax-cuda13-pjrt")}
_SETTINGS = ("jax_default_matmul_precision", "jax_enable_x64", "jax_threefry_partitionable")


def save(compiled: jax.stages.Compiled, setup: Setup, directory: Path, phase: int) -> Path:
    """Writes a phase's compiled step; one that is there is replaced.

    Args:
      compiled: `step.traced(setup, setup.config.objective).lower().compile()`, without JAX's persistent cache: of a
        program from there CPUs lose the code.
      setup: of the phase; its mesh may be of devices that are not here.
      directory: where the steps of all phases go.
      phase: which one, from 0.

    Returns:
      The directory of this step.
    """
    from jax.experimental.serialize_executable import serialize

    code, _, out_tree = serialize(compiled)
    _, metrics = jax.tree.unflatten(out_tree, [0] * out_tree.num_leaves)
    place = directory / f"phase_{phase + 1}"
    with disk.whole_directory(place) as partial:
        disk.write_bytes(partial / "step", code)
        disk.write_text(
            partial / "made_for.json", json.dumps({**made_for(setup), "metrics": sorted(metrics)}, indent=1)
        )
        checksums.write(partial)
        for path in (partial, *partial.iterdir()):  # `check` refuses what others may write
            path.chmod(path.stat().st_mode & ~0o022)
        shutil.rmtree(place, ignore_errors=True)
    return place


def check(setup: Setup, directory: Path, phase: int) -> Path:
    """Finds out whether a saved step serves a run.

    Args:
      setup: of the phase, on this run's devices.
      directory: what `train.compiled` names.
      phase: which one, from 0.

    Returns:
      The directory of this step.

    Raises:
      UserError: there is none, it is damaged, or it was made for something else: what, and what is here.
    """
    place = directory / f"phase_{phase + 1}"
    if not place.is_dir():
        raise UserError(f"train.compiled: {directory} holds no step of phase {phase + 1}; jaxpt plan --save writes it")
    _check_trusted(place)
    if damage := checksums.damage(place):
        raise UserError(f"train.compiled: {damage}")
    saved = json.loads((place / "made_for.json").read_text(encoding="utf-8"))
    current = json.loads(json.dumps(made_for(setup)))
    for key in current | saved:
        if key != "metrics" and saved.get(key) != current.get(key):
            raise UserError(
                f"train.compiled: {place} was compiled for another run: {key} is {shown(saved.get(key))} there, "
                f"{shown(current.get(key))} here; compile it again (jaxpt plan --save), or leave train.compiled out"
            )
    return place


def _check_trusted(place: Path) -> None:
    """Raises UserError where someone else owns a file of a step, or may write it."""
    for path in (place, *sorted(place.iterdir())):
        status = path.lstat()
        if status.st_uid not in (os.geteuid(), 0):
            words = f"{path} belongs to {_user(status.st_uid)}, and its code would run as you"
            raise UserError(f"train.compiled: {words}; copy the directory if you trust it")
        if status.st_mode & 0o022 and not stat.S_ISLNK(status.st_mode):
            raise UserError(f"train.compiled: others may write {path}, and its code runs as you; chmod -R go-w {place}")


def _user(number: int) -> str:
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"


def origin(directory: Path, phase: int) -> tuple[str, str]:
    """Whose code a saved step is.

    Args:
      directory: what `train.compiled` names.
      phase: which one, from 0.

    Returns:
      (digest of the code, a line for the user).
    """
    file = directory / f"phase_{phase + 1}" / "step"
    digest = _digest(file.read_bytes())
    return digest, f"train.compiled: machine code {digest} of {_user(file.stat().st_uid)} in {file.parent} is trusted"


def load(setup: Setup, directory: Path, phase: int) -> jax.stages.Compiled:
    """The step of a phase, ready to run; nothing is traced or compiled.

    Args:
      setup: of the phase, on this run's devices.
      directory: what `train.compiled` names.
      phase: which one, from 0.

    Returns:
      What `step.traced(…).lower().compile()` gives.

    Raises:
      UserError: see `check`; or the devices' runtime refuses it.
    """
    from jax.experimental.serialize_executable import deserialize_and_load

    place = check(setup, directory, phase)
    names = json.loads((place / "made_for.json").read_text(encoding="utf-8"))["metrics"]
    arguments = setup.placed_shapes(), step.batch_shapes(setup, setup.config.objective), *setup.teacher_params()
    trees = jax.tree.structure((arguments, {})), jax.tree.structure((setup.shapes, dict.fromkeys(names, 0)))
    devices = list(setup.mesh.devices.flat)
    try:
        return deserialize_and_load((place / "step").read_bytes(), *trees, devices[0].client, devices)
    except Exception as error:  # of any class of XLA's
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"train.compiled: {place} cannot be loaded here: {reason}") from error


def made_for(setup: Setup) -> dict[str, Any]:
    """All that the machine code of a step depends on, as plain values under dotted keys.

    Args:
      setup: of the phase.

    Returns:
      {key: value}: the configuration as far as the step sees it, code, versions, settings of JAX, devices, mesh.
    """
    config, devices = setup.config, list(setup.mesh.devices.flat)
    batch, first = step.batch_shapes(setup, config.objective), devices[0]
    names = (*_PACKAGES, *_COMPILERS.get(first.platform, ()))
    with setup.use():
        options = compiler.options(config.train.compiler_options)
    return {
        **_settings(config),
        **{f"batch.{name}": f"{x.dtype}{list(x.shape)}" for name, x in batch.items()},
        **{f"mesh.{axis}": size for axis, size in setup.mesh.shape.items()},  # -1 has become a number
        **{f"teacher {name}": _digest(str(teacher.network).encode()) for name, teacher in setup.teachers.items()},
        "state": _digest(str(jax.tree.structure(setup.shapes)).encode()),  # later phases have a say in how it is split
        **{f"compiler option {name}": value for name, value in options.items()},
        "platform": first.platform,
        "device_kind": first.device_kind,
        "devices": len(devices),
        "processes": len({device.process_index for device in devices}),
        "slices": meshes.slices(devices),
        "topology": [1 + max(c) for c in zip(*[getattr(device, "coords", ()) for device in devices])],
        "processor": _processor() if first.platform == "cpu" else None,
        **{name: version for name in names if (version := packages.version(name))},
        "jaxpt": __version__,
        "digest of jaxpt's code": _digest(*_sources(config)),
        **{name: getattr(jax.config, name) for name in _SETTINGS},
    }


def _settings(config: Config) -> dict[str, Any]:
    """The keys of the recipe that a step is made of; of the mesh's sizes those that were asked for."""
    paths = {f"objective.{name}" for name in config.objective.teachers()}  # may lie elsewhere
    return {key: value for key, value in cache_key_fields(config, "program").items() if key not in paths}


def _sources(config: Config) -> Iterator[bytes]:
    """All of jaxpt, and the modules of the recipe's own that `kind` names, with those that they use."""
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        yield path.read_bytes()
    for digest in plugins.digests(configs.plugin_modules(config)).values():
        yield digest.encode()


def _digest(*parts: bytes) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _processor() -> str:
    """This machine's: XLA compiles for the instructions that it has."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
