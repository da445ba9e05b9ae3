"""Checks donation: a step must update its state in place, without a copy of any array."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from jaxpt.plan import hlo, instructions, memory

LEAST = 2**20
"""Bytes on a device from which on a copy is worth a word."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """An array of the state that is not simply updated in place."""

    name: str
    bytes: int
    """On a device."""
    reason: str
    """`no alias`: its successor lies elsewhere, both take memory. `copy`: it, or its successor, is copied as it is.
    `layout`: it is updated in place, but one of both is copied into another order of its dimensions, for its use."""


def faults(program: hlo.Program, state: Mapping[str, int], least: int = LEAST) -> list[Fault]:
    """Arrays of a donated state that a program does not simply update in place.

    A copy is one from main memory to main memory, outside of all loops: what is fetched into a TPU's VMEM, or written
    back from there, is none.

    Args:
      program: an optimised program, for one device.
      state: {name of a parameter of the program, such as `state.params['up']['kernel']`: its bytes on a device}.
      least: bytes from which on a copy counts. A missing alias always does.

    Returns:
      One entry for each such array, the largest first.
    """
    entry = program.computations[program.entry]
    parameters = {i.op_name.replace("\\'", "'"): i for i in entry.values() if i.opcode == "parameter"}
    results = next(i for i in entry.values() if i.root).operands
    successors = {parameter: results[output] for output, parameter in program.aliases.items()}
    copies: dict[str, set[str]] = {}
    for name in entry:
        origin, size = _origin(program, name)
        if size >= least:
            copies.setdefault(origin, set()).add(_reason(entry[origin], entry[name]))
    state_faults = []
    for name, size in state.items():
        parameter = parameters.get(name)
        successor = successors.get(int(parameter.operands[0])) if parameter else None
        reasons = {"no alias"} if successor is None else copies.get(parameter.name, set())
        if successor is not None:
            origin, moved = _origin(program, successor)
            if moved >= least and instructions.size(entry[origin].shape, 0):  # not written back from VMEM
                reasons = reasons | {_reason(entry[origin], entry[successor])}
        if reasons:
            state_faults.append(Fault(memory.readable(name), size, min(reasons)))  # a copy is worse than another layout
    return sorted(state_faults, key=lambda fault: (-fault.bytes, fault.name))


def _origin(program: hlo.Program, name: str) -> tuple[str, int]:
    """(What a value of the entry is a copy of, or itself; bytes of the largest copy in main memory on the way)."""
    entry, moved = program.computations[program.entry], 0
    while entry[name].operands and entry[name].operands[0] in entry:
        instruction = entry[name]
        if instruction.opcode in ("copy", "copy-done") or program.only_copies(instruction):
            moved = max(moved, instructions.size(instruction.shape, 0))
        elif instruction.opcode not in ("bitcast", "copy-start"):
            break
        name = instruction.operands[0]
    return name, moved


def _reason(old: instructions.Instruction, new: instructions.Instruction) -> str:
    orders = [re.search(r"\{([\d,]*)", instruction.shape) for instruction in (old, new)]
    return "copy" if len({order and order[1] for order in orders}) == 1 else "layout"
