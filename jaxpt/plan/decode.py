"""The plan of decoding a batch: what a token step takes, and the largest batch that fits.

Bytes moved decide how fast a model decodes: at the least its weights and the cache, once for each token step.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.config.files import parse
from jaxpt.errors import UserError
from jaxpt.parallel import rules
from jaxpt.plan import isolated
from jaxpt.plan.program import CompiledProgram, Target

_COMPILING = "jaxpt.plan.loop"
MOST = 4
"""So many programs are compiled at the most to find the largest batch."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """The batch of a decoding loop."""

    rows: int
    length: int
    """Tokens of a row at most, prompt included: slots of the cache."""
    encoder: int | None = None
    """Tokens of an encoder-decoder's input."""

    @classmethod
    def parse(cls, text: str, config: Config) -> Shape:
        """Reads `--decode`.

        Args:
          text: BATCHxLENGTH; of an encoder-decoder BATCHxENCODER/DECODER.
          config: with the model.

        Returns:
          The shape.

        Raises:
          UserError: it is none, a length is beyond the model's positions, or the model does not generate.
        """
        model = config.model
        if model.family == "encoder":
            raise UserError(f"--decode: {model.kind} is an encoder: it fills masks, but does not generate")
        if not config.objective.network(model).has_cache:
            raise UserError(f"--decode: {model.kind} has no cache of what it has read, and does not generate")
        both = model.family == "encoder_decoder"
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)" + (r"/([1-9]\d*)" if both else ""), text)
        if match is None:
            form = "BATCHxENCODER/DECODER, such as 32x512/128" if both else "BATCHxLENGTH, such as 32x4096"
            raise UserError(f"--decode {text}: {model.kind} wants {form}")
        rows, *lengths = map(int, match.groups())
        if model.position_limit is not None and max(lengths) > model.position_limit:
            raise UserError(
                f"--decode {text}: length {max(lengths)}, but the model has {model.position_limit} positions"
            )
        return cls(rows, lengths[-1], lengths[0] if both else None)

    def __str__(self) -> str:
        return f"{self.rows}x{self.length}" if self.encoder is None else f"{self.rows}x{self.encoder}/{self.length}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeResult(CompiledProgram):
    """The loop that decodes a batch; a step is one token of each row.

    `dtype` is also that of the matrices and of the cache. `total` includes the weights that the loop is not given;
    prefill needs more for a time.
    """

    encoder: int | None
    """Tokens of an encoder-decoder's input."""
    weights: int
    """All of them, an encoder's too."""
    weights_read: int
    """Those that the loop is given: without an encoder's."""
    weights_padded: int
    """The latter, with the padding of their layouts."""
    cache: int
    cache_padded: int
    traffic_padded: int
    """`traffic`, with the padding of the layouts."""
    cache_copies: list[dict[str, Any]]
    """What writes the cache, or a layer of it, to main memory once more; none are wanted."""
    gathered_tables: list[dict[str, Any]]
    """Vocabulary tables that are put together from their shards; none are wanted."""

    @property
    def model_flops(self) -> int:
        """All that the program has: nothing is computed again."""
        return self.program_flops

    @property
    def ratio(self) -> float:
        """Bytes moved in a step, to those of the weights that it is given and of the cache."""
        return self.traffic / (self.weights_read + self.cache)

    @property
    def token_bytes(self) -> float:
        """Bytes moved for a token, by all devices."""
        return self.traffic * self.devices / self.rows


def axes_of(config: Config, overrides: Sequence[str]) -> dict[str, int]:
    """The sizes of the mesh axes that command-line arguments such as mesh.tensor=8 or mesh={tensor: 8} set."""
    named: set[str] = set()
    for override in overrides:
        key, _, text = override.partition("=")
        # A whole mesh takes the place of what earlier arguments set in it.
        named = {f"mesh.{name}" for name in parse(text, override)} if key == "mesh" else named | {key}
    return {axis: size for axis, size in config.mesh.sizes.items() if f"mesh.{axis}" in named}


def measure(config: Config, where: Target, shape: Shape, axes: Mapping[str, int]) -> DecodeResult:
    """Compiles the loop in a subprocess and measures it.

    Args:
      config: the run's configuration; its mesh is one for training, and only its table of rules is used.
      where: the devices.
      shape: of the batch.
      axes: sizes of mesh axes that were asked for; without any, `tensor` takes as many devices as the heads allow.

    Returns:
      What the program takes; also where it does not fit.

    Raises:
      UserError: for what is wrong with mesh or topology, or what the compiler refuses.
    """
    job = {"config": configs.to_yaml(config), "topology": where.shape, "slices": where.slices}
    job |= {"shape": dataclasses.asdict(shape), "axes": dict(axes)}
    return DecodeResult(**isolated.ask(_COMPILING, job, str(where)))


def largest(first: DecodeResult, compile_: Callable[[int], DecodeResult]) -> tuple[DecodeResult | None, int]:
    """The largest batch that fits: by linear extrapolation, each guess checked by compiling it.

    Args:
      first: the loop of some batch.
      compile_: the same with another number of rows.

    Returns:
      (the largest that was compiled and fits, or None; number of compiled programs).
    """
    step = math.prod(first.mesh[axis] for axis in rules.BATCH)
    tried, row = {first.rows: first}, first.cache_padded / first.rows * min(step, first.rows)
    at = first
    while len(tried) < MOST:
        rows = (at.rows // step + math.floor((at.limit - at.total) / row)) * step
        if rows < 1 or rows in tried:
            break
        before, at = at, compile_(rows)
        tried[rows] = at
        row = max((at.total - before.total) / ((at.rows - before.rows) / step), 1)
    fitting = [batch for batch in tried.values() if batch.fits]
    return max(fitting, key=lambda batch: batch.rows, default=None), len(tried)
