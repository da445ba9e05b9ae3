"""Compiles the loop that decodes a batch, for devices that need not be here, and measures a turn: a token of each row.

Bytes moved decide how fast a model decodes: at the least its weights and the cache, once for each token step.
"""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxpt import config as configs
from jaxpt.config import AXES, Config, MeshConfig
from jaxpt.errors import UserError
from jaxpt.plan import hlo, isolated
from jaxpt.plan.program import Target

if TYPE_CHECKING:
    from jaxpt.generate.programs import Place, Programs

MOST = 4
"""So many programs are compiled at the most to find the largest batch."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """The batch of a decoding loop."""

    rows: int
    length: int
    """Tokens of a row at most, prompt included: slots of the cache."""
    encoder: int | None = None
    """Tokens of an encoder-decoder's input."""

    @classmethod
    def parse(cls, text: str, config: Config) -> Shape:
        """Reads `--decode`.

        Args:
          text: BATCHxLENGTH; of an encoder-decoder BATCHxENCODER/DECODER.
          config: with the model.

        Returns:
          The shape.

        Raises:
          UserError: it is none, a length is beyond the model's positions, or the model does not generate.
        """
        model = config.model
        if model.family == "encoder":
            raise UserError(f"--decode: {model.kind} is an encoder: it fills masks, but does not generate")
        both = model.family == "encoder_decoder"
        found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)" + (r"/([1-9]\d*)" if both else ""), text)
        if found is None:
            form = "BATCHxENCODER/DECODER, such as 32x512/128" if both else "BATCHxLENGTH, such as 32x4096"
            raise UserError(f"--decode {text}: {model.kind} wants {form}")
        rows, *lengths = map(int, found.groups())
        if model.position_limit is not None and max(lengths) > model.position_limit:
            raise UserError(
                f"--decode {text}: length {max(lengths)}, but the model has {model.position_limit} positions"
            )
        return cls(rows, lengths[-1], lengths[0] if both else None)

    def __str__(self) -> str:
        return f"{self.rows}x{self.length}" if self.encoder is None else f"{self.rows}x{self.encoder}/{self.length}"


@dataclasses.dataclass(frozen=True)
class DecodeResult:
    """The program that decodes a batch. Bytes are of one device, FLOPs of all; a step is one token of each row."""

    rows: int
    length: int
    encoder: int | None
    parameters: int
    dtype: str
    """Of the computation, the matrices and the cache."""
    platform: str
    device_kind: str
    devices: int
    mesh: dict[str, int]
    seconds: float
    """From the recipe to the placed buffers."""
    weights: int
    """All of them, an encoder's too."""
    weights_read: int
    """Those that the loop is given: without an encoder's."""
    weights_padded: int
    """The latter, with the padding of their layouts."""
    cache: int
    cache_padded: int
    program_flops: int
    """Of a step."""
    traffic: int
    """To and from main memory in a step, estimated."""
    traffic_padded: int
    """The same, with the padding of the layouts."""
    collectives: list[dict[str, Any]]
    """Of a step."""
    cache_copies: list[dict[str, Any]]
    """What writes the cache, or a layer of it, to main memory once more; none are wanted."""
    gathered_tables: list[dict[str, Any]]
    """Vocabulary tables that are put together from their shards; none are wanted."""
    total: int
    """Of the loop, as XLA counts it, and the weights that it is not given. Prefill needs more for a time."""
    limit: int
    """Memory of the device that a program may take."""

    @property
    def model_flops(self) -> int:
        """All that the program has: nothing is computed again."""
        return self.program_flops

    @property
    def ratio(self) -> float:
        """Bytes moved in a step, to those of the weights that it is given and of the cache."""
        return self.traffic / (self.weights_read + self.cache)

    @property
    def token_bytes(self) -> float:
        """Bytes moved for a token, by all devices."""
        return self.traffic * self.devices / self.rows

    @property
    def fits(self) -> bool:
        """True if it fits on the device."""
        return self.total <= self.limit


def axes_of(config: Config, overrides: Sequence[str]) -> dict[str, int]:
    """The sizes of the mesh axes that command-line arguments such as mesh.tensor=8 set."""
    named = [override.partition("=")[0] for override in overrides]
    return {axis: getattr(config.mesh, axis) for axis in AXES if f"mesh.{axis}" in named}


def measure(config: Config, where: Target, shape: Shape, axes: Mapping[str, int]) -> DecodeResult:
    """Compiles the loop in a subprocess and measures it.

    Args:
      config: the run's configuration; its mesh is one for training, and only its table of rules is used.
      where: the devices.
      shape: of the batch.
      axes: sizes of mesh axes that were asked for; without any, `tensor` takes as many devices as the heads allow.

    Returns:
      What the program takes; also where it does not fit.

    Raises:
      UserError: for what is wrong with mesh or topology, or what the compiler refuses.
    """
    job = {"config": configs.to_yaml(config), "topology": where.topology, "slices": where.slices}
    job |= {"shape": dataclasses.asdict(shape), "axes": dict(axes)}
    return DecodeResult(**isolated.ask(__name__, job, str(where)))


def largest(first: DecodeResult, compile_: Callable[[int], DecodeResult]) -> tuple[DecodeResult | None, int]:
    """The largest batch that fits: by linear extrapolation, each guess checked by compiling it.

    Args:
      first: the loop of some batch.
      compile_: the same with another number of rows.

    Returns:
      (the largest that was compiled and fits, or None; number of compiled programs).
    """
    step = math.prod(first.mesh[axis] for axis in ("data", "fsdp"))
    tried, row = {first.rows: first}, first.cache_padded / first.rows * min(step, first.rows)
    at = first
    while len(tried) < MOST:
        rows = (at.rows // step + math.floor((at.limit - at.total) / row)) * step
        if rows < 1 or rows in tried:
            break
        before, at = at, compile_(rows)
        tried[rows] = at
        row = max((at.total - before.total) / ((at.rows - before.rows) / step), 1)
    fitting = [one for one in tried.values() if one.fits]
    return max(fitting, key=lambda one: one.rows, default=None), len(tried)


# ---- reading the program --------------------------------------------------------------------------------------------


def turn(program: hlo.Program) -> hlo.Program:
    """One turn of the outermost loop, whose number of turns is not known: the one that moves most."""
    outside = [program.entry]
    for name in outside:
        outside += [c for i in program.computations[name].values() if i.opcode == "call" for c in i.called]
    loops = [i for name in outside for i in program.computations[name].values() if i.opcode == "while"]
    bodies = [program.part(re.search(r"body=%?([\w.\-]+)", loop.attributes)[1]) for loop in loops]
    return max(bodies, key=hlo.Program.traffic)


def given(program: hlo.Program, name: str) -> dict[str, hlo.Instruction]:
    """{path: parameter of the program} of the parameters whose paths begin with a name."""
    entry = program.computations[program.entry].values()
    return {i.op_name: i for i in entry if i.opcode == "parameter" and i.op_name.startswith(name)}


def cache_copies(program: hlo.Program) -> list[dict[str, Any]]:
    """Instructions that write an array of the cache, or one layer of it, to main memory, the largest first.

    A step writes only what is new into the arrays; what it reads of them goes to the chip's own memory.
    """
    sizes = {}
    for parameter in given(program, "state.cache.layers").values():
        whole, layers = hlo.elements(parameter.shape)[0], int(re.search(r"\[(\d+)", parameter.shape)[1])
        sizes |= {whole: hlo.size(parameter.shape), whole // layers: hlo.size(parameter.shape) // layers}
    found = []
    for _, one, times in program.runs():
        matching = [sizes[count] for count in hlo.elements(one.shape) if count in sizes]
        if not matching or one.opcode in hlo.FREE or one.opcode in ("dynamic-update-slice", "custom-call"):
            continue
        written = program.written(one)
        if written >= min(matching):
            found.append({"name": one.name, "path": one.op_name, "bytes": written, "count": times})
    return sorted(found, key=lambda copy: -copy["bytes"] * copy["count"])


def gathered_tables(program: hlo.Program, tables: Mapping[str, tuple[int, int]], devices: int) -> list[dict[str, Any]]:
    """All-gathers whose result is a part of a vocabulary table that is larger than a device's own.

    Args:
      program: for one device.
      tables: {name: shape of the whole table} of those that are cut.
      devices: number of shards of each.

    Returns:
      One entry for each.
    """
    found = []
    for one in (i for body in program.computations.values() for i in body.values()):
        if one.opcode not in ("all-gather", "all-gather-start"):
            continue
        dims = re.findall(r"\[([\d,]*)\]", one.shape)[-1]
        sizes = [int(n) for n in dims.split(",") if n not in ("", "1")]
        for name, whole in tables.items():
            fits = len(sizes) == 2 and any(v % a == d % b == 0 for v, d in [whole] for a, b in (sizes, sizes[::-1]))
            if fits and math.prod(sizes) > math.prod(whole) // devices:
                found.append({"name": name, "by": one.name, "path": one.op_name, "shape": sizes})
    return found


# ---- in the subprocess ----------------------------------------------------------------------------------------------


def _answer(job: dict[str, Any], directory: Path) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    from jaxpt.models import base
    from jaxpt.parallel import mesh as meshes
    from jaxpt.plan import collectives, memory, topologies
    from jaxpt.train import flops, state

    begun = time.perf_counter()
    topology = job["topology"] and topologies.parse(job["topology"], job["slices"])
    (directory / "config.yaml").write_text(job["config"], "utf-8")
    config, shape = configs.load(directory / "config.yaml"), Shape(**job["shape"])
    devices = topology.devices() if topology else jax.devices()
    programs, place, shapes = _programs(config, shape, devices, job["axes"])
    with place.use():
        traced = programs.traced_run
        texts = isolated.compile_(traced.lower(), directory / "dump", "jit_run")
        dtype = jnp.dtype(base.compute_dtype(config.model)).name
    network, mesh = programs.decoder.network, place.mesh
    program = hlo.Program(texts["after_optimizations"])
    read, cache = (given(program, name).values() for name in ("params", "state.cache.layers"))
    weights = state.bytes_on_device(shapes, jax.tree.map(lambda x: x.sharding, shapes))
    weights_read = sum(hlo.size(one.shape) for one in read)
    step, between = turn(program), meshes.between(mesh.shape, meshes.slices(mesh.devices.flat))
    device = mesh.devices.flat[0]
    return {
        "rows": shape.rows, "length": shape.length, "encoder": shape.encoder,
        "parameters": network.count_params(), "dtype": dtype,
        "platform": device.platform, "device_kind": device.device_kind, "devices": mesh.size,
        "mesh": dict(mesh.shape), "seconds": round(time.perf_counter() - begun, 1),
        "weights": weights, "weights_read": weights_read,
        "weights_padded": sum(hlo.size(one.shape, padding=True) for one in read),
        "cache": sum(hlo.size(one.shape) for one in cache),
        "cache_padded": sum(hlo.size(one.shape, padding=True) for one in cache),
        "program_flops": flops.count(traced.jaxpr.jaxpr), "traffic": step.traffic(),
        "traffic_padded": step.padded().traffic(),
        "collectives": [dataclasses.asdict(c) for c in collectives.find(step, mesh.shape, between)],
        "cache_copies": cache_copies(program),
        "gathered_tables": gathered_tables(program, *_tables(network, shapes)),
        "total": memory.total(texts["memory-usage-report"]) + weights - weights_read,
        "limit": topology.chip.memory if topology else isolated.limit(device),
    }  # fmt: skip


def _programs(config: Config, shape: Shape, devices: list[Any], axes: dict[str, int]) -> tuple[Programs, Place, Any]:
    """(The programs for a batch, where they run, shapes and shardings of the parameters)."""
    import jax
    import jax.numpy as jnp

    from jaxpt.generate.decoding import Decoder, Prompts
    from jaxpt.generate.engine import bucket
    from jaxpt.generate.options import Options
    from jaxpt.generate.programs import Place, Programs, stored_dtypes
    from jaxpt.parallel import mesh as meshes
    from jaxpt.parallel import rules

    model = config.model
    network = config.objective.loss.network(model)
    if hasattr(model, "dropout"):
        network = network.with_model(remat="none", dropout=0.0)
    place = Place(meshes.make(_mesh(config, len(devices), axes), devices), tuple(rules.table(config.mesh).items()))
    with place.use():
        dtypes = stored_dtypes(network)

    def placed(x: jax.ShapeDtypeStruct, names: tuple[str | None, ...]) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place.sharding(names, x.shape))

    def ids(*sizes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((shape.rows, *sizes), jnp.int32)

    params = jax.tree.map(placed, dtypes, network.logical_axes())
    encoder = (None, None) if shape.encoder is None else (ids(shape.encoder), ids())
    prompts = Prompts(ids(1), ids(), ids(), ids(), ids(), *encoder)
    window = getattr(model, "window", None)
    slots = shape.length if window is None else min(shape.length, bucket(window))
    return Programs(Decoder(network, Options(), slots, shape.length), place, params, prompts), place, params


def _mesh(config: Config, devices: int, axes: dict[str, int]) -> MeshConfig:
    """The axes that were asked for; else `tensor` as large as heads and devices allow. `data` takes the rest."""
    model = config.model
    names = ("heads", "kv_heads", "decoder_heads")
    heads = [getattr(model, name) for name in names if getattr(model, name, None) is not None]
    sizes = {**dict.fromkeys(AXES, 1), "data": -1, "tensor": math.gcd(devices, *heads)}
    if axes:
        free = -1 if -1 not in axes.values() else 1
        sizes = {**dict.fromkeys(AXES, 1), "data": free, **axes}
    return MeshConfig(**sizes)


def _tables(network: Any, params: Any) -> tuple[dict[str, tuple[int, int]], int]:
    """({name: shape} of the tables with a row for each word that are cut, into how many shards at the least)."""
    import jax

    axes = jax.tree.leaves(network.logical_axes(), is_leaf=lambda x: isinstance(x, tuple))
    tables, shards = {}, []
    for (path, leaf), names in zip(jax.tree_util.tree_leaves_with_path(params), axes, strict=True):
        count = math.prod(leaf.shape) // math.prod(leaf.sharding.shard_shape(leaf.shape))
        if "vocab" in names and len(leaf.shape) == 2 and count > 1:
            tables[jax.tree_util.keystr(path, simple=True, separator="/")] = leaf.shape
            shards.append(count)
    return tables, min(shards, default=1)


if __name__ == "__main__":
    isolated.answer(_answer)
