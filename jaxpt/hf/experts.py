"""Experts on disk: one by one, or those of a layer together in one tensor, as classes of transformers 5 keep them.

experts.gate_up_proj [E, 2F, D]   →   experts.0.gate_proj.weight [F, D]   experts.0.up_proj.weight [F, D]   …
experts.down_proj    [E, D, F]    →   experts.0.down_proj.weight [D, F]   …
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

_FUSED = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)")


def names(fused: str, shape: tuple[int, ...], parts: tuple[str, str, str]) -> dict[str, tuple[int, int, int]]:
    """The tensors that one of all experts has.

    Args:
      fused: its name.
      shape: its shape.
      parts: names of an expert's gate, up and down.

    Returns:
      {name of an expert's tensor: (expert, first row, last row)}; none if it is no tensor of all experts.

    Example:
      >>> names("mlp.experts.gate_up_proj", (1, 6, 4), ("w1", "w3", "w2"))
      {'mlp.experts.0.w1.weight': (0, 0, 3), 'mlp.experts.0.w3.weight': (0, 3, 6)}
    """
    match = _FUSED.fullmatch(fused)
    if match is None or len(shape) != 3:
        return {}
    gate, up, down = parts
    half = shape[1] // 2
    cuts = {gate: (0, half), up: (half, shape[1])} if match[2] == "gate_up_proj" else {down: (0, shape[1])}
    return {f"{match[1]}.{e}.{part}.weight": (e, *cut) for e in range(shape[0]) for part, cut in cuts.items()}


class OneByOne(Mapping[str, np.ndarray]):
    """Tensors with one for each expert, where some were of all experts; with the attributes of `files.Tensors`."""

    def __init__(self, tensors: Any, parts: tuple[str, str, str]) -> None:
        """Takes tensors with the attributes of `files.Tensors`, and the names of an expert's gate, up and down."""
        self._tensors, self._last = tensors, ("", np.zeros(0))
        self._cuts: dict[str, tuple[str, int, int, int]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name, shape in tensors.shapes.items():
            cuts = names(name, shape, parts)
            self._cuts |= {new: (name, *cut) for new, cut in cuts.items()}
            self.shapes |= {new: (last - first, shape[2]) for new, (_, first, last) in cuts.items()}
            if not cuts:
                self.shapes[name] = shape
        self.dtypes, self.others = (
            {name: of[source] for name in self.shapes if (source := self._source(name)) in of}
            for of in (tensors.dtypes, tensors.others)
        )

    def _source(self, name: str) -> str:
        return self._cuts[name][0] if name in self._cuts else name

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._cuts:
            return self._tensors[name]
        source, expert, first, last = self._cuts[name]
        if self._last[0] != source:  # each is read once for all of its experts, which come one after the other
            self._last = source, np.asarray(self._tensors[source])
        return self._last[1][expert, first:last]

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)
