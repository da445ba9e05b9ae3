"""What a program sends between devices: by kind, mesh axes and bytes, loops counted as often as they run."""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping

import numpy as np

from jaxpt.plan import hlo, instructions

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", "ragged-all-to-all")
_IOTA = r"\[[\d,]+\](?:<=\[[\d,]+\])?(?:T\([\d,]+\))?"
_GROUPS = re.compile(
    rf"replica_groups=(mesh\[[^\]]*\](?:, device_ids=\({_IOTA}\))? \{{[^}}]*\}}|\{{\{{.*?\}}\}}|\{{\}}|{_IOTA})"
)
_BETWEEN_SLICES = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_TARGET = re.compile(r'_xla_megascale_target="?(\{.*?)(?:"|,_xla)')
_SLICE = 100_000
"""libtpu numbers the devices of the first slice from here, of the second from twice this on."""
_OF_ALL = "1"
"""The channel that JAX gives to each collective of a `jax.shard_map`; those it cuts up get one of their own."""
_OF_TOKENS = re.compile(r'op_name="[^"]*\bdispatch\b')
_PAIRS = re.compile(r"source_target_pairs=(\{\{.*?\}\}|\{\})")


@dataclasses.dataclass(frozen=True)
class Collective:
    """All exchanges of one kind over the same axes of the mesh in one step."""

    kind: str
    axes: tuple[str, ...]
    """Mesh axes over which it runs; empty if its groups are along no axes of the mesh."""
    count: int
    """How often one runs."""
    bytes: int
    """Of the whole arrays: what an all-gather gives, what an all-reduce or a reduce-scatter sums up."""
    sent: int
    """Bytes that each device sends when rings do it, the least that there can be; of an all-to-all its own parts."""
    network: str = "ICI"
    """"ICI" inside of a slice, of GPUs inside of a machine; "DCN" from slice to slice, or between machines."""
    has_tokens: bool = False
    """It brings tokens to their experts, or back (`jaxpt.models.dispatch`)."""


def find(
    program: hlo.Program,
    mesh: Mapping[str, int],
    between: Mapping[str, int] | None = None,
    machine: int | None = None,
) -> list[Collective]:
    """The collectives of a program.

    Args:
      program: an optimised program, for one device.
      mesh: {axis: size} of the mesh that it was compiled for.
      between: {axis: slices} of the axes that go from slice to slice (`jaxpt.parallel.mesh.between`).
      machine: GPUs of a machine, which lie side by side in the mesh; None of TPUs.

    Returns:
      One entry for each kind and set of axes, those that send most first.
    """
    totals: dict[tuple[str, tuple[str, ...], str, bool], np.ndarray] = collections.defaultdict(
        lambda: np.zeros(3, np.int64)
    )
    for _, times, collective in each(program, mesh, between, machine):
        key = collective.kind, collective.axes, collective.network, collective.has_tokens
        totals[key] += times * np.array([1, collective.bytes, collective.sent])
    collectives = [Collective(kind, axes, *map(int, total), *key) for (kind, axes, *key), total in totals.items()]
    return sorted(collectives, key=lambda c: -c.sent)


def each(
    program: hlo.Program,
    mesh: Mapping[str, int],
    between: Mapping[str, int] | None = None,
    machine: int | None = None,
) -> Iterator[tuple[str, int, Collective]]:
    """Every collective of a program.

    Args:
      program, mesh, between, machine: as for `find`.

    Yields:
      (the computation that it is in, how often it runs, one run of it).
    """
    for outer, kind, attributes, operand, times in _each(program):
        has_tokens = bool(_OF_TOKENS.search(attributes))
        if target := _TARGET.search(attributes):
            groups = _slices(target[1])
            n = max(len(set(group)) for group in groups)
            yield outer, times, Collective(
                kind, _axes(groups, between or {}), 1, *_bytes(kind, operand, n), "DCN", has_tokens
            )  # fmt: skip
            continue
        groups = _groups(attributes, math.prod(mesh.values()))
        n = max(map(len, groups), default=1)
        if n > 1:
            size, sent = _bytes(kind, operand, n)
            network, inside = "ICI", _in_one_machine(groups, machine)
            if inside < n:
                network = "DCN"
                if kind.endswith("all-to-all"):  # what is for other machines leaves by each GPU's own network card
                    sent = operand * (n - inside) // n
                else:  # a ring enters and leaves each machine once: its GPUs share that among their network cards
                    sent //= inside
            yield outer, times, Collective(kind, _axes(groups, mesh), 1, size, sent, network, has_tokens)


def _each(program: hlo.Program) -> list[tuple[str, str, str, int, int]]:
    """(computation, kind, attributes, bytes of the operands, how often it runs) of every collective.

    On TPUs a collective may be spread over several fusions that overlap with computing, also over those inside of a
    loop: they share its channel, and the one that starts it says how often it runs. A reduce-scatter is a fusion of
    that name, of an all-reduce and a slice. Between slices a collective is sent to the host, whose runtime does it.
    """
    collectives: dict[tuple[str, str], tuple[str, str, int, int]] = {}
    begun: dict[str, str] = {}
    for outer, instruction, times in program.runs():
        # A tpu7x leaves some to its SparseCore, as custom calls.
        names = instruction.called if instruction.opcode in ("fusion", "custom-call") else []
        inside = [(name, inner) for name in names for inner in program.computations[name].values()]
        for place, candidate in [(outer, instruction), *inside]:
            kind = candidate.opcode.removesuffix("-start")
            if between := _BETWEEN_SLICES.search(candidate.attributes) if kind == "send" else None:
                kind = between[1].lower().replace("_", "-").replace("one-to-one", "collective-permute")
            elif kind not in KINDS:
                continue
            if place.startswith("all-reduce-scatter"):
                kind = "reduce-scatter"
            computation = program.computations[place]
            # Others are a send's token; a ragged all-to-all's destination and the places in it.
            has_others = candidate.opcode == "send" or kind == "ragged-all-to-all"
            operands = candidate.operands[:1] if has_others else candidate.operands
            operand = sum(instructions.size(computation[name].shape) for name in operands if name in computation)
            channel = instructions.channel(candidate)
            key = candidate.name if channel is None or (channel == _OF_ALL and place == outer) else channel
            collectives.setdefault((outer, key), (kind, candidate.attributes, operand, times))
            if any(hlo.STARTS.search(inner.attributes) for inner in computation.values()):
                begun[key] = outer
    return [(outer, *value) for (outer, key), value in collectives.items() if begun.get(key, outer) == outer]


def _bytes(kind: str, operand: int, n: int) -> tuple[int, int]:
    """(bytes of the whole array, bytes that each of n devices sends)."""
    if kind == "all-gather":
        return operand * n, operand * (n - 1)
    if kind == "all-reduce":
        return operand, 2 * operand * (n - 1) // n
    if kind == "collective-permute":
        return operand, operand
    return operand, operand * (n - 1) // n


def _in_one_machine(groups: list[list[int]], machine: int | None) -> int:
    """Devices of a group that lie in one machine, of the group for which these are fewest.

    Example:
      >>> _in_one_machine([[0, 1, 8, 9]], 8), _in_one_machine([[0, 1, 2, 3]], 8), _in_one_machine([[0, 8]], 8)
      (2, 4, 1)
    """
    machine = machine or 1 + max(place for group in groups for place in group)
    return min(len(group) // len({place // machine for place in group}) for group in groups if len(group) > 1)


def _slices(target: str) -> list[list[int]]:
    """Slices that exchange something, from the forms in which libtpu writes slices and devices.

    Example:
      >>> _slices("{1:4}x{0:3}"), _slices("{{100000,300000},{100001,300001}}"), _slices("{{100000->200000}}")
      ([[0, 1, 2, 3]], [[0, 2], [0, 2]], [[0, 1]])
    """
    if "}x{" in target:
        ends = [[int(n) for n in part.split(":")] for part in target[1 : target.index("}")].split(",")]
        return [[n - 1 for first, *last in ends for n in range(first, (last or [first])[0] + 1)]]
    return [[int(n) // _SLICE - 1 for n in re.findall(r"\d+", group)] for group in re.findall(r"\{([^{}]+)\}", target)]


def _groups(attributes: str, devices: int) -> list[list[int]]:
    """Groups of devices, as places in the mesh, from any of the forms in which XLA writes them.

    Example:
      >>> _groups("replica_groups={{0,1},{2,3}}", 4), _groups("replica_groups=[2,2]<=[2,2]T(1,0)", 4)
      ([[0, 1], [2, 3]], [[0, 2], [1, 3]])
      >>> _groups("replica_groups=mesh['a'=2,'b'=2] {'a'}, dimensions={1}", 4)
      [[0, 2], [1, 3]]
    """
    if pairs := _PAIRS.search(attributes):
        return _lists(pairs[1])
    match = _GROUPS.search(attributes)
    if match is None or match[1] == "{}":
        return [list(range(devices))]
    text = match[1]
    if text.startswith("{"):
        return _lists(text)
    if text.startswith("["):
        shape = [int(n) for n in re.match(r"\[([\d,]+)\]", text)[1].split(",")]
        return _iota(text).reshape(shape).tolist()
    return _mesh_groups(text)


def _mesh_groups(text: str) -> list[list[int]]:
    """mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}; an axis may be cut: 'b':(2)2 is the part of size 2 after 2."""
    sizes = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", text)}
    ids = re.search(rf"device_ids=\(({_IOTA})\)", text)
    flat = _iota(ids[1]).ravel() if ids else np.arange(math.prod(sizes.values()))
    group_axes = re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", re.search(r"\{([^}]*)\}$", text)[1])
    shape: list[int] = []
    chosen = []
    for name, size in sizes.items():
        parts = [(int(before), int(part)) for axis, before, part in group_axes if axis == name and part]
        if not parts:
            chosen += [len(shape)] if name in [axis for axis, *_ in group_axes] else []
            shape.append(size)
        for before, part in parts[:1]:
            chosen.append(len(shape) + 1)
            shape += [before, part, size // before // part]
    rest = [axis for axis in range(len(shape)) if axis not in chosen]
    return flat.reshape(shape).transpose(*rest, *chosen).reshape(-1, math.prod(shape[a] for a in chosen)).tolist()


def _iota(text: str) -> np.ndarray:
    """[2,4]<=[4,2]T(1,0) and [4,2]T(1,0): 0, 1, 2, … in the second shape (or the only one), transposed."""
    shape = [int(n) for n in re.search(r"(?:<=)?\[([\d,]+)\](?:T|$)", text)[1].split(",")]
    order = re.search(r"T\(([\d,]+)\)", text)
    ids = np.arange(math.prod(shape)).reshape(shape)
    return ids.transpose([int(n) for n in order[1].split(",")]) if order else ids


def _lists(text: str) -> list[list[int]]:
    return [[int(n) for n in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", text)]


def _axes(groups: list[list[int]], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The mesh axes along which the devices of a group differ."""
    shape = tuple(mesh.values())
    places = [np.array(np.unravel_index(group, shape)) for group in groups if len(group) > 1]
    differ = np.any([np.ptp(place, axis=1) > 0 for place in places], axis=0) if places else np.zeros(len(shape), bool)
    return tuple(name for name, d in zip(mesh, differ) if d)
