"""Reads what XLA writes about memory when it has placed all buffers: how much in all, and the largest at the peak."""

from __future__ import annotations

import collections
import dataclasses
import re

from jaxpt.plan import hlo, instructions

_TOTAL = re.compile(r"color=0\)\s+Total bytes: (\d+)")
_LIVE = re.compile(r"^ {4}(\S+)\{([\d,]*)\}: (\d+) bytes \(cumulative", re.MULTILINE)
_ALLOCATION = re.compile(r"^allocation (\d+):")
_THREAD_LOCAL = re.compile(r"^allocation \d+: size (\d+)(?:, page \d+)?, thread-local:", re.MULTILINE)
_VALUE = re.compile(r"^ value: <\d+ (\S+?)(?:\{([\d,]*)\})?(?: \(phi\))? @0> \((size=\d+,offset=\d+)\): (.*)$")
_NOISE = re.compile(r"^(while|body|cond|closed_call|checkpoint|rematted_computation|vmap\(\)|(jit|pjit)\(.*\))$")


PACKED = 640
"""Two blocks of 320 at the most. Seen in the allocations of a step: operands with k = 128 and 512, copied whole."""


@dataclasses.dataclass(frozen=True)
class Buffer:
    """An array on one device."""

    name: str
    """Pass and modules that make it, or which part of the state it is."""
    shape: str
    bytes: int
    """With the padding of its layout."""


def total(report: str, assignment: str) -> int:
    """Bytes of a device's main memory that the program needs: arguments, results and temporaries.

    The report counts thread-local allocations too: values within fusions, which are never whole in memory. For a
    mixture of experts they were a third of its total.

    Args:
      report: text of XLA's "memory-usage-report".
      assignment: text of XLA's "buffer-assignment".

    Returns:
      The number that XLA compares with what the device has.
    """
    return int(_TOTAL.search(report)[1]) - sum(int(size) for size in _THREAD_LOCAL.findall(assignment))


def packed(program: hlo.Program) -> int:
    """Bytes that a CPU's library of products takes beside what XLA counts, while the largest of them runs.

    Eigen copies the operands of a product [m, k] · [k, n] into blocks, of m and n whole, of k at the most `PACKED`.

    Args:
      program: the optimised program.

    Returns:
      (m + n) · min(k, PACKED) values of the product for which that is most.
    """
    max_bytes = 0
    for body, product in (
        (within, instruction) for within in program.computations.values() for instruction in within.values()
    ):
        if product.opcode != "dot" or "batch_dims" in product.attributes:  # of a batch, products are made one by one
            continue
        left, right = (body[name].shape for name in product.operands)
        contracted = int(re.search(r"lhs_contracting_dims=\{(\d+)", product.attributes)[1])
        k = int(re.search(r"\[([\d,]*)\]", left)[1].split(",")[contracted])
        max_bytes = max(max_bytes, (instructions.size(left) + instructions.size(right)) * min(k, PACKED) // k)
    return max_bytes


def largest(live: str, assignment: str, program: hlo.Program, count: int = 10) -> list[Buffer]:
    """The largest buffers at the moment when most memory is in use.

    Args:
      live: text of XLA's "live-range".
      assignment: text of XLA's "buffer-assignment".
      program: the optimised program.
      count: how many.

    Returns:
      The buffers, the largest first.
    """
    slots, values = _slots(assignment)
    names = _names(program)
    buffers = []
    for name, index, size in _LIVE.findall(live[live.index("(peak):") :]):
        slot = slots.get((name, index))
        if slot is None:  # not in main memory
            continue
        users = [(known, user) for user in values[slot] if (known := names.get(user) or names.get(_first(user)))]
        path = max(users, default=("", name), key=lambda named: named[0].count("/"))[0]
        buffers.append(Buffer(readable(path) or name, slot[2], int(size)))
        if len(buffers) == count:
            break
    return buffers


def _first(name: str) -> str:
    """What XLA makes again to save memory, or keeps in another layout, has the first one's name with an ending."""
    return re.sub(r"\.remat\w*(\.\d+)*$", "", name)


def readable(path: str) -> str:
    """A path of JAX's transformations and modules in short.

    Example:
      >>> readable("jit(step)/transpose(jvp(T5.encode))/encoder/while/body/closed_call/segment_0/up/dot_general")
      'backward: encoder/segment_0/up/dot_general'
      >>> readable("state.params['encoder']['up']['kernel']")
      'state.params/encoder/up/kernel'
    """
    if path.startswith(("state", "batch")):
        return re.sub(r"\[\\?'?([^'\\\]]*)\\?'?\]", r"/\1", path)
    parts = path.split("/")
    which = "backward: " if "transpose(" in path else "forward: " if "jvp(" in path else ""
    names = [part for part in parts if not _NOISE.match(part) and "jvp(" not in part]
    return which + "/".join(names) if names else ""


def _slots(assignment: str) -> tuple[dict, dict]:
    """({(value, its index): slot}, {slot: its values, one after the other}); slot: (allocation, place in it, shape)."""
    slots, values = {}, collections.defaultdict(list)
    allocation = ""
    for line in assignment.splitlines():
        if start := _ALLOCATION.match(line):
            allocation = start[1]
        elif value := _VALUE.match(line):
            slot = (allocation, value[3], re.sub(r"\{.*", "", value[4]))
            slots[value[1], value[2] or ""] = slot
            values[slot].append(value[1])
    return slots, values


def _names(program: hlo.Program) -> dict[str, str]:
    """{instruction: the most telling path among its own and those of what is fused into it}."""
    names = {}
    for body in program.computations.values():
        for name, instruction in body.items():
            names[name] = instruction.op_name
            if instruction.opcode == "fusion":
                inner = [i.op_name for called in instruction.called for i in program.computations[called].values()]
                names[name] = max([instruction.op_name, *inner], key=lambda path: path.count("/"))
    return names
