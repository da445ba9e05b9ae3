"""Reads the text of an optimised program (HLO): its instructions, how often each runs, what it reads and writes."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import math
import re
from collections.abc import Iterator

_BITS = {"pred": 8, "s4": 4, "u4": 4, "s2": 2, "u2": 2, "c64": 64, "c128": 128, "bf16": 16}
_LEAF = re.compile(r"([a-z]\w*)\[([\d,]*)\](?:\{([^{}]*)\})?")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*-> .*\{$")
_OPCODE = re.compile(r"([a-z][\w\-]*)\(")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_ALIAS = re.compile(r"\{(\d*)\}: \((\d+), \{\}, (?:may|must)-alias\)")
STARTS = re.compile(r'custom_call_target="Async\w*Start"')
"""Of the fusion that starts a collective."""
_ENDS = re.compile(r'custom_call_target="Async\w*Done"')
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
_SLICES = {"dynamic-slice", "slice", "gather"}
GRANULE = 64
"""Bytes that main memory gives or takes at the least: of a gathered element of four as well."""
_SAME = {"bitcast", "copy", "reshape", "transpose"}
"""Give what they take in another order."""


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
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found[1] if found else ""

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
    for dtype, dims, layout in _LEAF.findall(shape):
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
    return [math.prod(int(n) for n in dims.split(",") if n) for _, dims, _ in _LEAF.findall(shape)]


def is_free(opcode: str) -> bool:
    """True of what takes no time of its own: names for what is there, ends of what is started.

    Example:
      >>> is_free("tuple"), is_free("all-gather-done"), is_free("all-gather-start")
      (True, True, False)
    """
    return opcode in _FREE or opcode.endswith(("-done", "-update"))


def channel(instruction: Instruction) -> str | None:
    """What the parts of one exchange between devices share; None of other instructions."""
    found = re.search(r"channel_id=(\d+)", instruction.attributes)
    return found[1] if found else None


class Program:
    """The computations of a program by name.

    Attributes:
      computations: {name: its instructions by name, in order}.
      entry: name of the one that the program starts with.
      aliases: {number of a result: number of the parameter whose memory it takes}.
    """

    def __init__(self, text: str) -> None:
        """Reads a program's text."""
        self.computations: dict[str, dict[str, Instruction]] = {}
        self.entry = ""
        self.aliases = {
            int(result or 0): int(parameter) for result, parameter in _ALIAS.findall(text.partition("\n")[0])
        }
        self._padding = False
        self._known_users: dict[str, dict[str, list[Instruction]]] = {}
        current: dict[str, Instruction] = {}
        for line in text.splitlines():
            if header := _HEADER.match(line):
                current = self.computations[header[2]] = {}
                self.entry = header[2] if header[1] else self.entry
            elif line.startswith("  ") and (instruction := _instruction(line)):
                current[instruction.name] = instruction

    def runs(self) -> Iterator[tuple[str, Instruction, int]]:
        """Every instruction outside of fusions, as (its computation, instruction, how often it runs)."""
        for name, times in self._times().items():
            for instruction in self.computations[name].values():
                yield name, instruction, times

    def part(self, computation: str) -> Program:
        """The program that starts with one of the computations, such as the body of a loop: one turn of it."""
        part = copy.copy(self)
        part.entry = computation
        return part

    def padded(self) -> Program:
        """The same program; what it moves counts with the padding of its layouts."""
        padded = copy.copy(self)
        padded._padding = True
        return padded

    def _times(self) -> dict[str, int]:
        """How often each computation runs; of a condition's branches each counts as if it were taken."""
        times: collections.Counter[str] = collections.Counter({self.entry: 1})
        pending = [(self.entry, 1)]
        while pending:
            name, outer = pending.pop()
            for instruction in self.computations[name].values():
                if instruction.opcode not in ("while", "conditional", "call", "async-start"):
                    continue
                count = outer * (self.trips(name, instruction) if instruction.opcode == "while" else 1)
                for called in instruction.called:
                    times[called] += count
                    pending.append((called, count))
        return dict(times)

    def trips(self, computation: str, loop: Instruction) -> int:
        """How often a loop's body runs; 1 where that is not known before it does."""
        if known := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes):
            return int(known[1])
        condition = self.computations[re.search(r"condition=%?([\w.\-]+)", loop.attributes)[1]]
        root = next(i for i in condition.values() if i.root)
        if root.opcode != "compare":
            return 1
        sides = [condition[name] for name in root.operands]
        bound = next((_constant(side) for side in sides if side.opcode == "constant"), None)
        counter = next((i.attributes for i in sides if i.opcode == "get-tuple-element"), "")
        index = re.search(r"index=(\d+)", counter)
        start = self._initial(computation, loop, index)
        if bound is None or start is None:
            return 1
        turns = abs(bound - start) + ("direction=LE" in root.attributes or "direction=GE" in root.attributes)
        return math.ceil(turns / self._stride(loop, int(index[1]))) if index else turns

    def _stride(self, loop: Instruction, index: int) -> int:
        """What a turn adds to a loop's counter: 2 where XLA has unrolled two turns into one."""
        body = self.computations[re.search(r"body=%?([\w.\-]+)", loop.attributes)[1]]
        root = next(i for i in body.values() if i.root)
        added = body.get(root.operands[index]) if root.opcode == "tuple" else None
        if added is None or added.opcode != "add":
            return 1
        constants = [_constant(body[name]) for name in added.operands if body[name].opcode == "constant"]
        return abs(constants[0] or 1) if constants else 1

    def _initial(self, computation: str, loop: Instruction, index: re.Match[str] | None) -> int | None:
        """What a loop's counter starts with."""
        here = self.computations[computation]
        carried = here.get(loop.operands[0])
        if index is None or carried is None or carried.opcode != "tuple":
            return 0
        first = here[carried.operands[int(index[1])]]
        while first.opcode in ("copy", "bitcast") and first.operands[0] in here:
            first = here[first.operands[0]]
        return _constant(first) if first.opcode == "constant" else 0

    def only_copies(self, instruction: Instruction) -> bool:
        """True if a fusion only transposes an array."""
        inner = [i for name in instruction.called for i in self.computations[name].values()]
        return instruction.opcode == "fusion" and all(i.opcode in {"parameter", *_SAME} for i in inner)

    def traffic(self) -> int:
        """Bytes that pass between a device and its main memory in one run of the program.

        Every fused operation reads its operands and writes its results once, as often as it runs; of an array that it
        takes a slice of, or writes one into, that slice counts. What stays in a TPU's VMEM does not count.
        """
        return sum(times * moved for _, _, times, moved in self.moves())

    def moves(self) -> Iterator[tuple[str, Instruction, int, int]]:
        """(its computation, instruction, how often it runs, bytes of main memory that it moves) of each operation."""
        starts = [i for body in self.computations.values() for i in body.values() if i.opcode == "async-start"]
        inside = {name for start in starts for name in start.called}  # they count with it
        for name, instruction, times in self.runs():
            if name not in inside and not is_free(instruction.opcode):
                yield name, instruction, times, self._moved(name, instruction)

    def _size(self, shape: str, memory: int | None = None) -> int:
        return size(shape, memory, self._padding)

    def _moved(self, computation: str, instruction: Instruction) -> int:
        here, instruction = self.computations[computation], _whole(instruction)
        shapes = [here[name].shape if name in here else "" for name in instruction.operands]
        if instruction.opcode in ("fusion", "async-start") and instruction.called:
            return self._fused(instruction, shapes)
        if instruction.opcode == "dynamic-update-slice":
            return 2 * self._size(shapes[1], 0)
        if instruction.opcode in _SLICES:
            return self._taken(instruction) + self._size(instruction.shape, 0)
        if instruction.opcode == "scatter":
            return sum(self._size(shape, 0) for shape in shapes[1:]) + 2 * self._changed(computation, instruction)
        if "AllocateBuffer" in instruction.attributes:
            return 0
        return self.written(instruction) + sum(self._size(shape, 0) for shape in shapes)

    def _fused(self, fusion: Instruction, shapes: list[str]) -> int:
        called = fusion.called[0]
        body = self.computations[called]
        given = {str(number): shape for number, shape in enumerate(shapes)}  # a SparseCore is given its operands later
        elsewhere = self._counted_at_start(called)
        read = sum(
            min(self._size(given.get(inner.operands[0], inner.shape), 0), self._read(called, inner.name))
            for inner in body.values()
            if inner.opcode == "parameter" and inner.name not in elsewhere
        )
        return read + self.written(fusion)

    def _counted_at_start(self, computation: str) -> set[str]:
        """Values of a fused computation that a collective takes and gives which another one has started.

        A TPU spreads a collective over several fusions, which hand its arrays on, also in every turn of a loop: they
        are read and written once, and count where it starts.
        """
        body = self.computations[computation]
        if not self._started or any(STARTS.search(i.attributes) for i in body.values()):
            return set()
        found = {i.name for i in body.values() if channel(i) in self._started}
        if not found:
            return set()
        found |= {i.name for i in body.values() if _ENDS.search(i.attributes)}
        root = next(i for i in body.values() if i.root)
        handed_on = found | ({root.name} if root.opcode == "tuple" else set())
        users = self._users(computation)
        return found | {
            i.name for i in body.values() if i.opcode == "parameter" and {u.name for u in users[i.name]} <= handed_on
        }

    @functools.cached_property
    def _started(self) -> set[str]:
        """Channels of collectives that one fusion starts and others end."""
        bodies = [b for b in self.computations.values() if any(STARTS.search(i.attributes) for i in b.values())]
        return {found for body in bodies for i in body.values() if (found := channel(i))}

    def written(self, instruction: Instruction) -> int:
        """Bytes of main memory that an instruction writes; in place, of what it only changes a part of."""
        instruction = _whole(instruction)
        if instruction.opcode not in ("fusion", "async-start") or not instruction.called:
            return self._size(instruction.shape, 0)
        called = instruction.called[0]
        root = next(inner for inner in self.computations[called].values() if inner.root)
        if instruction.opcode == "async-start":
            return self._size(root.shape, 0)
        if STARTS.search(root.attributes):  # it gives the collective's operand as well, which is there already
            return sum(self._size(self.computations[called][name].shape, 0) for name in root.operands)
        results = root.operands if root.opcode == "tuple" else (root.name,)
        leaves, elsewhere = [match[0] for match in _LEAF.finditer(instruction.shape)], self._counted_at_start(called)
        return sum(
            min(self._size(leaf, 0), self._written(called, name))
            for name, leaf in zip(results, leaves)
            if name not in elsewhere
        )

    def _read(self, computation: str, name: str) -> int:
        """Bytes that a fused computation takes of one of its values; slices are followed into it."""
        body = self.computations[computation]
        whole, total = self._size(body[name].shape), 0
        if body[name].root:
            return whole
        for user in self._users(computation)[name]:
            first = user.operands[0] == name
            if user.opcode in _SLICES and first:
                total += self._taken(user)
            elif user.opcode == "scatter" and first:
                total += self._changed(computation, user)
            elif user.opcode in _SAME or self.only_copies(user):
                total += self._read(computation, user.name)
            elif user.opcode == "fusion":
                inner = {
                    i.operands[0]: i.name for i in self.computations[user.called[0]].values() if "param" in i.opcode
                }
                total += self._read(user.called[0], inner[str(user.operands.index(name))])
            elif user.opcode != "dynamic-update-slice" or not first:
                return whole
        return total

    def _written(self, computation: str, name: str) -> int:
        """Bytes that a fused computation writes for one of its results: in place, of what it only changes a part of."""
        body = self.computations[computation]
        one = body[name]
        if one.opcode == "dynamic-update-slice":
            return self._size(body[one.operands[1]].shape)
        if one.opcode == "scatter" and all(name in body for name in one.operands):
            return self._changed(computation, one)
        if one.opcode in _SAME and one.operands[0] in body:
            return self._written(computation, one.operands[0])
        if one.opcode == "fusion" and not one.shape.startswith("("):
            inner = self.computations[one.called[0]]
            return self._written(one.called[0], next(i.name for i in inner.values() if i.root))
        return self._size(one.shape)

    def _taken(self, instruction: Instruction) -> int:
        """Bytes of memory that a slice or a gather reads: of a gather's rows whole granules."""
        size = self._size(instruction.shape)
        sizes = re.search(r"\bslice_sizes=\{([\d,]*)\}", instruction.attributes)
        if instruction.opcode != "gather" or not sizes:
            return size
        return _in_granules(size, elements(instruction.shape)[0], [int(n) for n in sizes[1].split(",") if n])

    def _changed(self, computation: str, scatter: Instruction) -> int:
        """Bytes of memory that a scatter reads, and writes again: whole granules of the rows that it adds to."""
        updates = self.computations[computation][scatter.operands[-1]].shape
        window = re.search(r"\bupdate_window_dims=\{([\d,]*)\}", scatter.attributes)
        dims = [int(n) for n in _LEAF.search(updates)[2].split(",") if n]
        row = [dims[int(n)] for n in window[1].split(",") if n] if window else dims
        return _in_granules(self._size(updates), math.prod(dims), row)

    def _users(self, computation: str) -> dict[str, list[Instruction]]:
        """{value: the instructions that take it}."""
        if computation not in self._known_users:
            users = self._known_users[computation] = collections.defaultdict(list)
            for instruction in self.computations[computation].values():
                for operand in instruction.operands:
                    users[operand].append(instruction)
        return self._known_users[computation]


def _instruction(line: str) -> Instruction | None:
    name, equals, rest = line.strip().partition(" = ")
    if not equals:
        return None
    end = _closing(rest, 0) if rest.startswith("(") else rest.find(" ")
    shape, rest = rest[:end], rest[end:].lstrip()
    if not (opcode := _OPCODE.match(rest)):
        return None
    close = _closing(rest, opcode.end() - 1)
    inside = rest[opcode.end() : close - 1]
    names = re.findall(r"%([\w.\-]+)", inside)
    operands = tuple(names) if names else ((inside,) if inside else ())  # parameter(0), constant(8)
    root, name = name.startswith("ROOT "), name.removeprefix("ROOT ").lstrip("%")
    return Instruction(name, shape, opcode[1], operands, rest[close:], root)


def _whole(instruction: Instruction) -> Instruction:
    """What reads and writes no more than it has to: of one that is started here, or that has a workspace.

    A start gives its operands again, then its result: all-gather-start: (operands, results), copy-start: (result,
    operand, context); all-reduce-start the result alone. A send gives what it takes.
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
    found, depth, start = [], 0, 1
    for place, sign in enumerate(shape[1:-1] + ",", 1):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            found.append(shape[start:place].strip())
            start = place + 1
    return found


def _closing(text: str, start: int) -> int:
    """Index after the bracket that closes the one at `start`."""
    depth = 0
    for match in re.compile(r"[()]").finditer(text, start):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.end()
    return len(text)


def _in_granules(size: int, count: int, row: list[int]) -> int:
    """Bytes of `count` elements in rows, each of which takes a granule at the least."""
    rows = max(count // max(math.prod(row), 1), 1)
    return rows * max(size // rows, GRANULE)


def _constant(instruction: Instruction) -> int | None:
    return int(instruction.operands[0]) if re.fullmatch(r"-?\d+", "".join(instruction.operands)) else None
