"""Instructions of an optimised program (HLO): their parts, from a line of its text, and the bytes of their arrays."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Mapping

_BITS = {"pred": 8, "s4": 4, "u4": 4, "s2": 2, "u2": 2, "c64": 64, "c128": 128, "bf16": 16}
LEAF = re.compile(r"([a-z]\w*)\[([\d,]*)\](?:\{([^{}]*)\})?")
_OPCODE = re.compile(r"([a-z][\w\-]*)\(")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\b(?:branch_computations|called_computations)=\{([^}]*)\}")

CUBLAS = 'custom_call_target="__cublas$'
"""Of a product that is left to a GPU's library."""
_LIBRARIES = re.compile(r'custom_call_target="__cu(?:blas|dnn)\$')

_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "while", "conditional", "call",
    "partition-id", "replica-id", "iota", "opt-barrier",
}  # fmt: skip
_WORKSPACE = re.compile(r", (?:/\*index=\d+\*/)?[su]8\[\d*\](?:\{[^{}]*\})?\)$")
"""Last of the results of cuBLAS and cuDNN."""


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    root: bool

    @functools.cached_property
    def op_name(self) -> str:
        """The path of modules and transformations that it was traced under."""
        match = re.search(r'op_name="([^"]*)"', self.attributes)
        return match[1] if match else ""

    @property
    def called(self) -> list[str]:
        """Computations that it runs."""
        branches = [name.strip(" %") for group in _BRANCHES.findall(self.attributes) for name in group.split(",")]
        return _CALLED.findall(self.attributes) + branches


def size(shape: str, memory: int | None = None, padding: bool = False) -> int:
    """Bytes of all arrays of a shape.

    Args:
      shape: such as `f32[8,128]{1,0:T(8,128)S(1)}`, or a tuple of such.
      memory: count those in this memory space alone: 0 is a device's main memory, 1 a TPU's VMEM.
      padding: count a TPU's layouts in whole tiles.

    Returns:
      The number of bytes.

    Example:
      >>> size("(bf16[8,128]{1,0:T(8,128)S(1)}, s32[4]{0})"), size("(bf16[8,128]{1,0:T(8,128)S(1)}, s32[4]{0})", 0)
      (2064, 16)
      >>> size("bf16[25,64]{1,0:T(8,128)(2,1)}", padding=True), size("bf16[25,64]{0,1:T(8,128)(2,1)}", padding=True)
      (8192, 16384)
    """
    total = 0
    for dtype, dims, layout in LEAF.findall(shape):
        space = re.search(r"S\((\d+)\)", layout)
        if memory is None or (int(space[1]) if space else 0) == memory:
            bits = _BITS.get(dtype) or int(re.search(r"\d+", dtype)[0] if re.search(r"\d", dtype) else 0)
            sizes = [int(n) for n in dims.split(",") if n]
            total += math.ceil(bits * math.prod(_padded(sizes, layout) if padding else sizes) / 8)
    return total


def _padded(sizes: list[int], layout: str) -> list[int]:
    """Sizes in whole tiles, the major axis first: a tile has the last axes in the layout's order."""
    order, tile = re.match(r"[\d,]*", layout)[0], re.search(r"T\(([\d,]+)\)", layout)
    if not tile:
        return sizes
    tiled = [int(n) for n in tile[1].split(",")]
    sizes = [sizes[int(axis)] for axis in reversed(order.split(","))] if order else []
    sizes = [1] * (len(tiled) - len(sizes)) + sizes
    whole = [-(-n // width) * width for n, width in zip(sizes[-len(tiled) :], tiled)]
    return sizes[: -len(tiled)] + whole


def elements(shape: str) -> list[int]:
    """The number of elements of each array of a shape.

    Example:
      >>> elements("(bf16[8,128]{1,0}, s32[4]{0})")
      [1024, 4]
    """
    return [math.prod(int(n) for n in dims.split(",") if n) for _, dims, _ in LEAF.findall(shape)]


def is_free(opcode: str) -> bool:
    """True of what takes no time of its own: names for what is there, ends of what is started.

    Example:
      >>> is_free("tuple"), is_free("all-gather-done"), is_free("all-gather-start")
      (True, True, False)
    """
    return opcode in _FREE or opcode.endswith(("-done", "-update"))


def channel(instruction: Instruction) -> str | None:
    """What the parts of one exchange between devices share; None of other instructions."""
    match = re.search(r"channel_id=(\d+)", instruction.attributes)
    return match[1] if match else None


def parse(line: str) -> Instruction | None:
    """The instruction of a line; None of a line that has none."""
    name, equals, rest = line.strip().partition(" = ")
    if not equals:
        return None
    end = _closing(rest, 0) if rest.startswith("(") else rest.find(" ")
    shape, rest = rest[:end], rest[end:].lstrip()
    if not (opcode := _OPCODE.match(rest)):
        return None
    close = _closing(rest, opcode.end() - 1)
    inside = rest[opcode.end() : close - 1]
    names = re.findall(r"%([\w.\-]+(?:#\d+)?)", inside)
    operands = tuple(names) if names else ((inside,) if inside else ())  # parameter(0), constant(8)
    root, name = name.startswith("ROOT "), name.removeprefix("ROOT ").lstrip("%")
    return Instruction(name, shape, opcode[1], operands, rest[close:], root)


def element(name: str, computation: Mapping[str, Instruction]) -> Instruction:
    """What newer compilers write as `%tuple#4`: element 4 of an earlier tuple, with no line of its own.

    Example:
      >>> pair = parse("%pair = (f32[2]{0}, s32[]) parameter(0)")
      >>> element("pair#1", {"pair": pair}).shape
      's32[]'
    """
    source, _, index = name.partition("#")
    shape = _parts(computation[source].shape)[int(index)]
    return Instruction(name, shape, "get-tuple-element", (source,), f", index={index}", False)


def whole(instruction: Instruction) -> Instruction:
    """The instruction with its results alone, also of one that is only started here, or that has a workspace.

    A start gives its operands again: all-gather-start (operands, results), copy-start (result, operand, context),
    all-reduce-start the result alone. A send gives what it takes.
    """
    kind = instruction.opcode.removesuffix("-start")
    shape = instruction.shape
    if kind == "send":
        shape = "()"
    elif _LIBRARIES.search(instruction.attributes):
        shape = _WORKSPACE.sub(")", shape)
    elif kind not in (instruction.opcode, "all-reduce", "async") and shape.startswith("("):
        parts = _parts(shape)
        shape = parts[0] if kind == "copy" else parts[1]
    else:
        return instruction
    return dataclasses.replace(instruction, opcode=kind, shape=shape)


def _parts(shape: str) -> list[str]:
    """The parts of a tuple, tuples or arrays.

    Example:
      >>> _parts("((f32[2]{0}, f32[3]{0}), (f32[4,2]{1,0:T(8,128)}, f32[6]{0}), u32[])")
      ['(f32[2]{0}, f32[3]{0})', '(f32[4,2]{1,0:T(8,128)}, f32[6]{0})', 'u32[]']
    """
    parts, depth, start = [], 0, 1
    for place, sign in enumerate(shape[1:-1] + ",", 1):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            parts.append(shape[start:place].strip())
            start = place + 1
    return parts


def _closing(text: str, start: int) -> int:
    """Index after the bracket that closes the one at `start`."""
    depth = 0
    for match in re.compile(r"[()]").finditer(text, start):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.end()
    return len(text)
