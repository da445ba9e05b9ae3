"""What each part of a program computes, moves and sends: of what a step's least time is the sum."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Mapping

from jaxpt.plan import collectives, hlo, instructions

_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_KERNEL = re.compile(r'custom_call_target="(tpu_custom_call|__gpu\$xla\.gpu\.triton|__cudnn\$fmha\w*)"')
_CUBLAS = re.compile(re.escape(instructions.CUBLAS) + r'.*"lhs_contracting_dimensions":\[([\d",]*)\]')
_CONTRACTING = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")


@dataclasses.dataclass(frozen=True)
class Region:
    """The program outside of loops, or the body of a loop; of one turn, and of one device."""

    times: int
    """How often it runs in a step."""
    work: list[list[int]]
    """[FLOPs, bytes to and from memory] of each operation, one after the other; of a kernel −1 times the bytes that it
    takes and gives, in any memory, instead of FLOPs, which are not known."""
    sent: dict[str, int]
    """{network: bytes}"""
    messages: int
    """Collectives."""


def regions(
    program: hlo.Program, mesh: Mapping[str, int], between: Mapping[str, int], machine: int | None = None
) -> list[Region]:
    """The regions of a program.

    Args:
      program: an optimised program, for one device.
      mesh: as for `collectives.find`.
      between: likewise.
      machine: likewise.

    Returns:
      One for each computation that does something.
    """
    work: dict[str, list[list[int]]] = collections.defaultdict(list)
    sent: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    messages: collections.Counter[str] = collections.Counter()
    times: dict[str, int] = {}
    for name, instruction, count, moved in program.moves():
        flops = products(program, name, instruction)
        if moved or flops:
            work[name].append([flops, moved])
            times[name] = count
    for name, count, collective in collectives.each(program, mesh, between, machine):
        times[name] = count
        sent[name][collective.network] += collective.sent
        messages[name] += 1
    return [Region(count, work[name], dict(sent[name]), messages[name]) for name, count in times.items()]


def products(program: hlo.Program, computation: str, instruction: instructions.Instruction) -> int:
    """FLOPs of the matrix products of an instruction, those inside of a fusion too; −1 times the bytes of a kernel.

    GPUs may leave products to cuBLAS. TPUs write products as convolutions, and axes of a batch as positions of which a
    window holds one each.
    """
    body = program.computations[computation]
    if instruction.opcode == "fusion":
        inner = [(name, fused) for name in instruction.called for fused in program.computations[name].values()]
        return sum(products(program, name, fused) for name, fused in inner)
    if _KERNEL.search(instruction.attributes):
        operand_shapes = (body[name].shape for name in instruction.operands if name in body)
        return -sum(instructions.size(shape) for shape in (instruction.shape, *operand_shapes))
    if cublas := _CUBLAS.search(instruction.attributes):
        left = _dims(body[instruction.operands[0]].shape)
        return 2 * math.prod(_dims(instruction.shape)) * math.prod(left[int(n)] for n in re.findall(r"\d+", cublas[1]))
    if instruction.opcode not in ("dot", "convolution") or any(name not in body for name in instruction.operands):
        return 0
    left, right = (_dims(body[name].shape) for name in instruction.operands[:2])
    out = _dims(instruction.shape)
    if instruction.opcode == "dot":
        contracted = _CONTRACTING.search(instruction.attributes)
        return 2 * math.prod(out) * math.prod(left[int(n)] for n in contracted[1].split(",") if n)
    of_left, of_right, of_out = _LABELS.search(instruction.attributes).groups()
    total = 2 * right[of_right.index("i")] * out[of_out.index("b")] * out[of_out.index("f")]
    for place, digit in enumerate(sorted(set(of_out) - set("bf"))):
        window = {key: _setting(instruction.attributes, key, place) for key in ("stride", "pad", "lhs_dilate")}
        total *= _hits(left[of_left.index(digit)], right[of_right.index(digit)], out[of_out.index(digit)], **window)
    return total


@functools.cache
def _hits(length: int, width: int, outputs: int, stride: str | None, pad: str | None, lhs_dilate: str | None) -> int:
    """Pairs of an output and a place of its window that holds a value, along one axis.

    Example:
      >>> _hits(4, 4, 1, None, None, None), _hits(4, 4, 4, "3", None, "4")  # a contraction, an axis of a batch
      (4, 4)
    """
    step, dilation, before = int(stride or 1), int(lhs_dilate or 1), int((pad or "0").split("_")[0])
    places = (o * step + k - before for o in range(outputs) for k in range(width))
    return sum(0 <= place < length * dilation and place % dilation == 0 for place in places)


def _setting(attributes: str, key: str, place: int) -> str | None:
    match = re.search(rf"window=\{{[^}}]*\b{key}=([\d_x\-]+)", attributes)
    return match[1].split("x")[place] if match else None


def _dims(shape: str) -> list[int]:
    return [int(n) for n in re.search(r"\[([\d,]*)\]", shape)[1].split(",") if n]
