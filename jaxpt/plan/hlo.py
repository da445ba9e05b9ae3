"""Reads the text of an optimised program (HLO): its instructions, how often each runs, what it reads and writes."""

from __future__ import annotations

import collections
import copy
import functools
import math
import re
from collections.abc import Iterator

from jaxpt.plan.instructions import LEAF, Instruction, channel, element, elements, is_free, parse, size, whole

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*-> .*\{$")
_ALIAS = re.compile(r"\{(\d*)\}: \((\d+), \{\}, (?:may|must)-alias\)")
STARTS = re.compile(r'custom_call_target="Async\w*Start"')
"""Of the fusion that starts a collective."""
_ENDS = re.compile(r'custom_call_target="Async\w*Done"')
_SLICES = {"dynamic-slice", "slice", "gather"}
GRANULE = 64
"""Bytes that main memory gives or takes at the least: of a gathered element of four as well."""
_SAME = {"bitcast", "copy", "reshape", "transpose"}
"""Give what they take in another order."""


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
            elif line.startswith("  ") and (instruction := parse(line)):
                current.update((name, element(name, current)) for name in instruction.operands if "#" in name)
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
        body = self.computations[computation]
        carried = body.get(loop.operands[0])
        if index is None or carried is None or carried.opcode != "tuple":
            return 0
        first = body[carried.operands[int(index[1])]]
        while first.opcode in ("copy", "bitcast") and first.operands[0] in body:
            first = body[first.operands[0]]
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
        body, instruction = self.computations[computation], whole(instruction)
        shapes = [body[name].shape if name in body else "" for name in instruction.operands]
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
        # A SparseCore is given its operands later.
        shape_of = {str(number): shape for number, shape in enumerate(shapes)}
        elsewhere = self._counted_at_start(called)
        read = sum(
            min(self._size(shape_of.get(inner.operands[0], inner.shape), 0), self._read(called, inner.name))
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
        counted = {i.name for i in body.values() if channel(i) in self._started}
        if not counted:
            return set()
        counted |= {i.name for i in body.values() if _ENDS.search(i.attributes)}
        root = next(i for i in body.values() if i.root)
        handed_on = counted | ({root.name} if root.opcode == "tuple" else set())
        users = self._users(computation)
        return counted | {
            i.name for i in body.values() if i.opcode == "parameter" and {u.name for u in users[i.name]} <= handed_on
        }

    @functools.cached_property
    def _started(self) -> set[str]:
        """Channels of collectives that one fusion starts and others end."""
        bodies = [b for b in self.computations.values() if any(STARTS.search(i.attributes) for i in b.values())]
        return {channel_id for body in bodies for i in body.values() if (channel_id := channel(i))}

    def written(self, instruction: Instruction) -> int:
        """Bytes of main memory that an instruction writes; in place, of what it only changes a part of."""
        instruction = whole(instruction)
        if instruction.opcode not in ("fusion", "async-start") or not instruction.called:
            return self._size(instruction.shape, 0)
        called = instruction.called[0]
        root = next(inner for inner in self.computations[called].values() if inner.root)
        if instruction.opcode == "async-start":
            return min(self._size(root.shape, 0), self._written(called, root.name))
        if STARTS.search(root.attributes):  # it gives the collective's operand as well, which is there already
            return sum(self._size(self.computations[called][name].shape, 0) for name in root.operands)
        results = root.operands if root.opcode == "tuple" else (root.name,)
        leaves, elsewhere = [match[0] for match in LEAF.finditer(instruction.shape)], self._counted_at_start(called)
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
        instruction = body[name]
        if instruction.opcode == "dynamic-update-slice":
            return self._size(body[instruction.operands[1]].shape)
        if instruction.opcode == "scatter" and all(name in body for name in instruction.operands):
            return self._changed(computation, instruction)
        if instruction.opcode in _SAME and instruction.operands[0] in body:
            return self._written(computation, instruction.operands[0])
        if instruction.opcode == "fusion" and not instruction.shape.startswith("("):
            inner = self.computations[instruction.called[0]]
            return self._written(instruction.called[0], next(i.name for i in inner.values() if i.root))
        return self._size(instruction.shape)

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
        dims = [int(n) for n in LEAF.search(updates)[2].split(",") if n]
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


def _in_granules(size: int, count: int, row: list[int]) -> int:
    """Bytes of `count` elements in rows, each of which takes a granule at the least."""
    rows = max(count // max(math.prod(row), 1), 1)
    return rows * max(size // rows, GRANULE)


def _constant(instruction: Instruction) -> int | None:
    return int(instruction.operands[0]) if re.fullmatch(r"-?\d+", "".join(instruction.operands)) else None
