"""The names that clouds give to TPU slices and machines with GPUs, as topologies: v5p-128 is v5p:4x4x4.

A slice of v4, v5p or tpu7x is named by its TensorCores, two a chip; one of v5e or v6e by its chips. Shapes are those of
docs.cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e}: squares or twice as long; in three dimensions cubes of 4x4x4, placed as
compactly as their number allows.
"""

from __future__ import annotations

import itertools
import math
import re

from jaxpt.errors import UserError
from jaxpt.parallel.chips import CHIPS

CORES_PER_CHIP = 2
"""Of chips in three dimensions, whose slices are named by cores."""
SHAPES_2D = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
"""{chips: shape} of v5e and v6e."""
SHAPES_3D = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4"}
"""{chips: shape} of less than a cube of 4x4x4."""
ALIASES = {"v5litepod": "v5e"}
MACHINES = {
    "a2-highgpu-{}g": ("a100-40", {1: 24, 2: 32, 4: 50, 8: 100}),
    "a2-megagpu-{}g": ("a100-40", {16: 100}),
    "a2-ultragpu-{}g": ("a100-80", {1: 24, 2: 32, 4: 50, 8: 100}),
    "a3-highgpu-{}g": ("h100", {1: 25, 2: 50, 4: 100, 8: 1000}),
    "a3-edgegpu-{}g": ("h100", {8: 600}),
    "a3-megagpu-{}g": ("h100", {8: 1800}),
    "a3-ultragpu-{}g": ("h200", {8: 3200}),
    "a4-highgpu-{}g": ("b200", {8: 3200}),
}
"""{Google Cloud's machine type: (GPU, {number of them: most Gbit/s of the machine's network})}; read in 2026 at
docs.cloud.google.com/compute/docs/gpus. Of A3 Ultra and A4 without the cards that GPUs do not use; A3 Edge has 400
Gbit/s in most regions."""
MACHINE_TYPES = {
    template.format(n): (gpu, n, gbits) for template, (gpu, sizes) in MACHINES.items() for n, gbits in sizes.items()
} | {
    "p4d.24xlarge": ("a100-40", 8, 400),
    "p4de.24xlarge": ("a100-80", 8, 400),
    "p5.48xlarge": ("h100", 8, 3200),
    "p5e.48xlarge": ("h200", 8, 3200),
    "p5en.48xlarge": ("h200", 8, 3200),
    "p6-b200.48xlarge": ("b200", 8, 3200),
}
"""{machine type of Google Cloud or AWS: (GPU, how many of them, most Gbit/s of the machine's network)}."""


def to_topology(name: str) -> str:
    """The topology of a cloud's name.

    Args:
      name: v5p-128, v5litepod-16, a3-highgpu-8g, or several machines: a3-highgpu-8g:2; also in capitals.

    Returns:
      The topology, such as v5p:4x4x4, v5e:4x4, h100:8 or h100:2x8; any other name in small letters.

    Raises:
      UserError: no slice has that many cores or chips, the number of machines is none, or a slice has one.

    Example:
      >>> [to_topology(name) for name in ("v5p-128", "v6e-64", "a3-highgpu-8g", "a3-highgpu-8g:2", "v5e:4x4")]
      ['v5p:4x4x4', 'v6e:8x8', 'h100:8', 'h100:2x8', 'v5e:4x4']
    """
    name = name.lower()
    machine_type, _, machines = name.partition(":")
    if machine_type in MACHINE_TYPES:
        gpu, count, _ = MACHINE_TYPES[machine_type]
        if machines and not re.fullmatch(r"[1-9]\d*", machines):
            raise UserError(f"--topology {name}: wants the number of machines, such as {machine_type}:2")
        return f"{gpu}:{machines}x{count}" if machines else f"{gpu}:{count}"
    slice_name = re.fullmatch(r"(\w+)-(\d+)", machine_type)
    kind = "" if slice_name is None else ALIASES.get(slice_name[1], slice_name[1])
    if kind not in CHIPS:
        return name
    if machines:
        several = f"{machine_type} --slices {machines if re.fullmatch(r'[1-9][0-9]*', machines) else 2}"
        raise UserError(f"--topology {name}: names one slice; several of them: --topology {several}")
    return f"{kind}:{_shape(name, kind, int(slice_name[2]))}"


def network(name: str) -> float | None:
    """Bytes/s that a GPU of a cloud's machines can send to other machines; None of a name that is no cloud's machine.

    Example:
      >>> network("a3-highgpu-8g:2") / 1e9, network("h100:2x8")
      (15.625, None)
    """
    machine_type = name.lower().partition(":")[0]
    if machine_type not in MACHINE_TYPES:
        return None
    _, count, gbits = MACHINE_TYPES[machine_type]
    return gbits * 1e9 / 8 / count


def _shape(name: str, kind: str, size: int) -> str:
    """The shape of a slice of `size` cores or chips."""
    if CHIPS[kind].dimensions == 2:
        if size not in SHAPES_2D:
            numbers = ", ".join(map(str, SHAPES_2D))
            raise UserError(f"--topology {name}: slices of {kind} have {numbers} chips; or give a shape: {kind}:4x8")
        return SHAPES_2D[size]
    chips, remainder = divmod(size, CORES_PER_CHIP)
    if not remainder and chips in SHAPES_3D:
        return SHAPES_3D[chips]
    cubes, remainder = divmod(size, CORES_PER_CHIP * 4**3)
    if remainder or not cubes:
        raise UserError(
            f"--topology {name}: slices of {kind} have 8, 16, 32, 64 cores or a multiple of 128 (two a chip); or give "
            f"a shape in chips: {kind}:4x4x4"
        )
    return "x".join(str(4 * n) for n in _compact(cubes))


def _compact(cubes: int) -> tuple[int, int, int]:
    """The three factors of a number with the least sum, in ascending order.

    Example:
      >>> _compact(9), _compact(14), _compact(16)
      ((1, 3, 3), (1, 2, 7), (2, 2, 4))
    """
    divisors = [n for n in range(1, cubes + 1) if cubes % n == 0]
    factors = [
        (a, b, cubes // (a * b))
        for a, b in itertools.combinations_with_replacement(divisors, 2)
        if cubes % (a * b) == 0 and math.prod((a, b)) * b <= cubes
    ]
    return min(factors, key=sum)
