"""Tables of names, one for each architecture: which of Hugging Face's tensors has which parameters of ours.

"Ours" is jaxpt, "theirs" Hugging Face. `jaxpt.hf.families` has the tables, `jaxpt.hf.mapping` converts weights by them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

Transform = Literal["identity", "transpose"]
TRANSFORMS = {"identity": lambda x: x, "transpose": np.transpose}  # each is its own inverse


PROJECTIONS = ("query", "key", "value", "output")
"""Our names of the linear layers of attention."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One of their tensors, and the parameter or parameters of ours that it contains."""

    ours: str | tuple[str, ...]
    """Path in the tree of the backbone or head, "a/b/c"; several are concatenated along their last axis."""
    theirs: str
    """Their name. If it contains {layer}, our parameter has a leading layers axis; if {expert}, an axis of experts
    after it."""
    transform: Transform = "identity"
    tied: tuple[str, ...] = ()
    """Names of tied tensors: written on request; when read they must be equal."""
    layers: tuple[int, ...] | None = None
    """Their layer numbers; 0, 1, 2, … by default."""
    shape: tuple[int, ...] | None = None
    """Their shape, if it is a reshape of ours."""
    groups: int = 1
    """Several of ours are concatenated group by group: of each an equal share, then the next group (heads)."""
    pieces: int = 1
    """With {piece} in the name: so many tensors of theirs, one after the other, are one of ours."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Our paths, always as a tuple."""
        return (self.ours,) if isinstance(self.ours, str) else self.ours

    def order(self, widths: Sequence[int]) -> np.ndarray | None:
        """Which entry of ours, one beside the other, each entry of theirs is; None if it is the same one.

        Args:
          widths: size of the last axis of each of ours.

        Example:
          >>> Row(("q", "k"), "qk", groups=2).order([4, 2])
          array([0, 1, 4, 2, 3, 5])
        """
        if self.groups == 1:
            return None
        parts = np.split(np.arange(sum(widths)), np.cumsum(widths)[:-1])
        return np.concatenate([part.reshape(self.groups, -1) for part in parts], axis=1).reshape(-1)


@dataclasses.dataclass(frozen=True)
class Table:
    """Weight table of a family."""

    rows: tuple[Row, ...]
    ignored: tuple[str, ...] = ()
    """Regular expressions of tensors that are not weights, such as causal masks in old files."""
    prefix: str = ""
    """Prefix of the backbone's names; files without heads omit it."""
    renamed: tuple[tuple[str, str], ...] = ()
    """(regular expression, replacement) for names in old files."""
    zeros: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    """{name: shape} of tensors that have no counterpart and must be zero."""
    fused_experts: tuple[str, str, str] | None = None
    """Their names of an expert's gate, up and down, which files may also have of all experts together."""
    lacks: tuple[str, ...] = ()
    """Regular expressions of our parameters that their class does not have; an import draws them at random."""

    def without_prefix(self) -> Table:
        """The table of the class of the backbone alone, whose names have no prefix."""
        rows = (dataclasses.replace(row, theirs=row.theirs.removeprefix(self.prefix)) for row in self.rows)
        return dataclasses.replace(self, rows=tuple(rows), prefix="")

    def is_lacking(self, path: str) -> bool:
        """True for a parameter of ours that their class does not have."""
        return any(re.fullmatch(pattern, path) for pattern in self.lacks)


@dataclasses.dataclass(frozen=True)
class HeadTable:
    """Weight table of a head; `ours` are paths inside the head."""

    rows: tuple[Row, ...]
    tied: tuple[str, ...] = ()
    """Names of token embeddings that this head ties."""


def with_heads(body: Table, heads: Mapping[str, HeadTable]) -> Table:
    """Combines the tables of a backbone and its heads into the table of the network."""
    ties = tuple(name for head in heads.values() for name in head.tied)

    def under(row: Row, prefix: str) -> Row:
        paths = tuple(f"{prefix}/{path}" for path in row.paths)
        tied = (*row.tied, *(ties if row.paths == ("token_embed/table",) and prefix == "model" else ()))
        return dataclasses.replace(row, ours=paths, tied=tied)

    rows = [under(row, "model") for row in body.rows]
    rows += [under(row, f"heads/{name}") for name, head in heads.items() for row in head.rows]
    return dataclasses.replace(body, rows=tuple(rows))


def dense(
    ours: str | tuple[str, ...], theirs: str, bias: bool = True, transform: Transform = "transpose", **more: Any
) -> tuple[Row, ...]:
    """Rows of a `torch.nn.Linear`, with weights [out, in]; several of ours may be one of theirs."""
    paths = (ours,) if isinstance(ours, str) else ours
    kernel = Row(tuple(f"{path}/kernel" for path in paths), f"{theirs}.weight", transform, **more)
    return (kernel, Row(tuple(f"{path}/bias" for path in paths), f"{theirs}.bias", **more)) if bias else (kernel,)


conv1d = functools.partial(dense, transform="identity")
"""Rows of OpenAI's `Conv1D`, with weights [in, out]."""


def norm(ours: str, theirs: str, bias: bool = True, **more: Any) -> tuple[Row, ...]:
    """Rows of a LayerNorm, without bias also of an RMSNorm."""
    scale = Row(f"{ours}/scale", f"{theirs}.weight", **more)
    return (scale, Row(f"{ours}/bias", f"{theirs}.bias", **more)) if bias else (scale,)


def layer(ours: str, theirs: str, names: Mapping[str, str], bias: bool = True, **more: Any) -> tuple[Row, ...]:
    """Rows of a layer's parts {our name: their name}: norms, whose names of ours end in "norm", and linear layers."""
    rows = (
        (norm if mine.endswith("norm") else dense)(f"{ours}/{mine}", f"{theirs}.{name}", bias, **more)
        for mine, name in names.items()
    )
    return tuple(itertools.chain.from_iterable(rows))


def vocabulary(theirs: str, is_tied: bool, *copies: str) -> tuple[Row, ...]:
    """Rows of the token embeddings and of the projection `lm_head`, which is tied to them or has its own weights.

    Args:
      theirs: name of the embeddings.
      is_tied: whether the projection is tied to them.
      *copies: other names of the embeddings.
    """
    if is_tied:
        return (Row("token_embed/table", theirs, tied=(*copies, "lm_head.weight")),)
    return (Row("token_embed/table", theirs, tied=copies), *dense("head", "lm_head", bias=False))
