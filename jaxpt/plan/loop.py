"""Compiles the loop that decodes a batch, for devices that need not be here, and measures a turn: a token of each row.

`jaxpt.plan.decode` runs this file in a subprocess.
"""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util

from jaxpt import config as configs
from jaxpt.config import AXES, Config, MeshConfig
from jaxpt.decode.decoding import Decoder, Prompts
from jaxpt.decode.options import Options
from jaxpt.decode.programs import Place, Programs, stored
from jaxpt.models import base
from jaxpt.parallel import mesh as meshes
from jaxpt.parallel import rules
from jaxpt.plan import collectives, hlo, instructions, isolated, memory, topologies
from jaxpt.plan.decode import Shape
from jaxpt.train import flops, state


def turn(program: hlo.Program) -> hlo.Program:
    """One turn of the outermost loop, whose number of turns is not known: the one that moves most."""
    outside = [program.entry]
    for name in outside:
        outside += [c for i in program.computations[name].values() if i.opcode == "call" for c in i.called]
    loops = [i for name in outside for i in program.computations[name].values() if i.opcode == "while"]
    bodies = [program.part(re.search(r"body=%?([\w.\-]+)", loop.attributes)[1]) for loop in loops]
    return max(bodies, key=hlo.Program.traffic)


def given(program: hlo.Program, name: str) -> dict[str, instructions.Instruction]:
    """{path: parameter of the program} of the parameters whose paths begin with a name."""
    entry = program.computations[program.entry].values()
    return {i.op_name: i for i in entry if i.opcode == "parameter" and i.op_name.startswith(name)}


def cache_copies(program: hlo.Program) -> list[dict[str, Any]]:
    """Instructions that write an array of the cache, or one layer of it, to main memory, the largest first.

    A step writes only what is new into the arrays; what it reads of them goes to the chip's own memory.
    """
    sizes = {}
    for parameter in given(program, "state.cache.layers").values():
        whole, layers = instructions.elements(parameter.shape)[0], int(re.search(r"\[(\d+)", parameter.shape)[1])
        sizes |= {
            whole: instructions.size(parameter.shape),
            whole // layers: instructions.size(parameter.shape) // layers,
        }
    copies = []
    for _, instruction, times in program.runs():
        matching = [sizes[count] for count in instructions.elements(instruction.shape) if count in sizes]
        if (
            not matching
            or instructions.is_free(instruction.opcode)
            or instruction.opcode in ("dynamic-update-slice", "custom-call")
        ):
            continue
        written = program.written(instruction)
        if written >= min(matching):
            copies.append({"name": instruction.name, "path": instruction.op_name, "bytes": written, "count": times})
    return sorted(copies, key=lambda copy: -copy["bytes"] * copy["count"])


def gathered_tables(program: hlo.Program, tables: Mapping[str, tuple[int, int]], devices: int) -> list[dict[str, Any]]:
    """All-gathers whose result is a part of a vocabulary table that is larger than a device's own.

    Args:
      program: for one device.
      tables: {name: shape of the whole table} of those that are cut.
      devices: number of shards of each.

    Returns:
      One entry for each.
    """
    gathers = []
    for instruction in (i for body in program.computations.values() for i in body.values()):
        if instruction.opcode not in ("all-gather", "all-gather-start"):
            continue
        dims = re.findall(r"\[([\d,]*)\]", instruction.shape)[-1]
        sizes = [int(n) for n in dims.split(",") if n not in ("", "1")]
        for name, whole in tables.items():
            fits = len(sizes) == 2 and any(v % a == d % b == 0 for v, d in [whole] for a, b in (sizes, sizes[::-1]))
            if fits and math.prod(sizes) > math.prod(whole) // devices:
                gathers.append({"name": name, "by": instruction.name, "path": instruction.op_name, "shape": sizes})
    return gathers


def measured(job: dict[str, Any], directory: Path) -> dict[str, Any]:
    """The fields of a `DecodeResult`.

    Args:
      job: of `decode.measure`.
      directory: an empty one.
    """
    begun = time.perf_counter()
    topology = job["topology"] and topologies.parse(job["topology"], job["slices"])
    (directory / "config.yaml").write_text(job["config"], "utf-8")
    config, shape = configs.load(directory / "config.yaml"), Shape(**job["shape"])
    devices = topology.devices() if topology else jax.devices()
    programs, place, shapes = _programs(config, shape, devices, job["axes"])
    with place.use():
        traced = programs.traced_run
        texts = isolated.compile_(traced.lower(), directory, "jit_run", devices[0].platform)
        dtype = jnp.dtype(base.compute_dtype(config.model)).name
    network, mesh = programs.decoder.network, place.mesh
    program = hlo.Program(texts["after_optimizations"])
    read, cache = (given(program, name).values() for name in ("params", "state.cache.layers"))
    weights = state.bytes_on_device(shapes, jax.tree.map(lambda x: x.sharding, shapes))
    weights_read = sum(instructions.size(parameter.shape) for parameter in read)
    step, devices = turn(program), mesh.devices.flat
    links = mesh.shape, meshes.between(mesh.shape, meshes.slices(devices)), meshes.machine(devices)
    device = mesh.devices.flat[0]
    return {
        "rows": shape.rows, "length": shape.length, "encoder": shape.encoder,
        "parameters": network.count_params(), "dtype": dtype,
        "platform": device.platform, "device_kind": device.device_kind, "devices": mesh.size,
        "mesh": dict(mesh.shape), "seconds": round(time.perf_counter() - begun, 1),
        "weights": weights, "weights_read": weights_read,
        "weights_padded": sum(instructions.size(parameter.shape, padding=True) for parameter in read),
        "cache": sum(instructions.size(parameter.shape) for parameter in cache),
        "cache_padded": sum(instructions.size(parameter.shape, padding=True) for parameter in cache),
        "program_flops": flops.count(traced.jaxpr.jaxpr), "traffic": step.traffic(),
        "traffic_padded": step.padded().traffic(),
        "collectives": [dataclasses.asdict(c) for c in collectives.find(step, *links)],
        "cache_copies": cache_copies(program),
        "gathered_tables": gathered_tables(program, *_tables(network, shapes)),
        "total": memory.total(texts["memory-usage-report"], texts["buffer-assignment"]) + weights - weights_read,
        "limit": topology.memory if topology else isolated.limit(device),
    }  # fmt: skip


def _programs(config: Config, shape: Shape, devices: list[Any], axes: dict[str, int]) -> tuple[Programs, Place, Any]:
    """(The programs for a batch, where they run, shapes and shardings of the parameters)."""
    model = config.model
    network = config.objective.network(model)
    if hasattr(model, "dropout"):
        network = network.with_model(remat="none", dropout=0.0)
    if model.position_switch is not None:  # the one step that reads a text again is none of those that are measured
        network = network.with_model(rope_scaling="none")
    place = Place(
        meshes.make(mesh_config(config, len(devices), axes), devices), tuple(rules.table(config.mesh).items())
    )
    with place.use():
        stored_shapes, names = stored(network)

    def placed(x: jax.ShapeDtypeStruct, names: tuple[str | None, ...]) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place.sharding(names, x.shape))

    def ids(*sizes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((shape.rows, *sizes), jnp.int32)

    params = jax.tree.map(placed, stored_shapes, names)
    encoder = (None, None) if shape.encoder is None else (ids(shape.encoder), ids())
    prompts = Prompts(ids(1), ids(), ids(), ids(), ids(), *encoder)
    return Programs(Decoder(network, Options(), shape.length, shape.length), place, params, prompts), place, params


def mesh_config(config: Config, devices: int, axes: dict[str, int]) -> MeshConfig:
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
    axes = traverse_util.flatten_dict(network.logical_axes(), sep="/")
    tables, shards = {}, []
    for path, leaf in traverse_util.flatten_dict(params, sep="/").items():
        count = math.prod(leaf.shape) // math.prod(leaf.sharding.shard_shape(leaf.shape))
        if "vocab" in axes.get(path, ()) and len(leaf.shape) == 2 and count > 1:  # never in a layer's part
            tables[path] = leaf.shape
            shards.append(count)
    return tables, min(shards, default=1)


if __name__ == "__main__":
    isolated.answer(measured)
