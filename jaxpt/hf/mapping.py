"""Converts weights between jaxpt and Hugging Face by a table of names. "Ours" is jaxpt, "theirs" Hugging Face.

Stacked layers are split and joined; padding rows of the vocabulary are removed and added. Tensors are converted one at
a time, so a model is never in memory as a whole. A missing, unexpected or mismatched tensor is an error.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxpt.errors import UserError
from jaxpt.hf.table import TRANSFORMS, Row, Table
from jaxpt.models.network import Network
from jaxpt.models.stored import Piece, StoredParam, finite, stored_params


@dataclasses.dataclass(frozen=True)
class Found:
    """Result of comparing a set of tensors with a table. Names are theirs, paths ours."""

    names: Mapping[str, str]
    """{name in the table: name in the file} of tensors with the right shape."""
    missing: tuple[str, ...]
    mismatched: tuple[str, ...]
    """One message for each tensor of another shape."""
    unexpected: tuple[str, ...]

    def raise_on_mismatch(self, network: Network) -> None:
        """Raises UserError if a tensor is missing, mismatched or unexpected."""
        if self.missing:
            raise UserError(f"weights: {_some(self.missing)} {'is' if len(self.missing) == 1 else 'are'} missing")
        if self.mismatched or self.unexpected:
            raise UserError(f"weights: {self.why(network)}")

    def why(self, network: Network) -> str:
        """Reason why tensors were not loaded: the mismatched ones, otherwise the unexpected ones."""
        if self.mismatched:
            return self.mismatched[0] + _more(len(self.mismatched) - 1)
        if not self.unexpected:
            return f"no tensor belongs to a {network.config.kind}"
        return f"{_some(self.unexpected)} not in a {network.config.kind} of this configuration"


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One of their tensors: a row of a table, or a piece of it, at one layer and of one expert."""

    name: str
    tied: tuple[str, ...]
    row: Row
    params: tuple[StoredParam, ...]
    """Ours that it contains."""
    index: int | None = None
    """Its layer in ours; None if they have no layers."""
    piece: int = 0
    """Its number among the row's pieces."""
    expert: int | None = None
    """Its expert; None if ours have no axis of experts."""

    @property
    def at(self) -> tuple[int, ...]:
        """Where it is in ours: index of the layer and of the expert, if they have such axes."""
        return tuple(index for index in (self.index, self.expert) if index is not None)

    @property
    def module(self) -> str:
        """Name of their module, without "weight" or "bias"."""
        return self.name.rpartition(".")[0]

    @property
    def widths(self) -> list[int]:
        """Size of the last axis of each of ours, or of this piece of it."""
        return [param.unpadded[-1] // self.row.pieces for param in self.params]

    @property
    def joined_shape(self) -> tuple[int, ...]:
        """Shape of ours, one beside the other, without padding."""
        return (*self.params[0].unpadded[len(self.at) : -1], sum(self.widths))

    @property
    def transposed_shape(self) -> tuple[int, ...]:
        """`joined_shape` in their order of axes."""
        return self.joined_shape[::-1] if self.row.transform == "transpose" else self.joined_shape

    @property
    def shape(self) -> tuple[int, ...]:
        """Their shape."""
        return self.row.shape or self.transposed_shape

    def joined(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Ours, each [..., width], as their last axis has them."""
        whole = np.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]
        return whole if (order := self.row.order(self.widths)) is None else whole[..., order]

    def cut(self, joined: np.ndarray) -> list[np.ndarray]:
        """Inverse of `joined`."""
        order = self.row.order(self.widths)
        whole = joined if order is None else joined[..., np.argsort(order)]
        return np.split(whole, np.cumsum(self.widths)[:-1], axis=-1)


def tensors_of(table: Table, network: Network) -> list[Tensor]:
    """The tensors of a table, in order.

    Raises:
      UserError: the table does not have each parameter of the network exactly once.
    """
    params = {path: param for path, param in stored_params(network).items() if not table.is_lacking(path)}
    paths = [path for row in table.rows for path in row.paths]
    _same_names(set(paths), set(params), "row of the table for")
    assert len(paths) == len(set(paths)), "a parameter has two rows"
    out = []
    for row in table.rows:
        of_row = tuple(params[path] for path in row.paths)
        count = of_row[0].shape[0]
        numbers = tuple(row.layers or range(count))[:count] if "{layer}" in row.theirs else (None,)
        experts = range(of_row[0].shape["{layer}" in row.theirs]) if "{expert}" in row.theirs else (None,)
        for (index, number), expert, piece in itertools.product(enumerate(numbers), experts, range(row.pieces)):
            names = (row.theirs, *row.tied)
            name, *tied = (name.format(layer=number, piece=piece, expert=expert) for name in names)
            out.append(Tensor(name, tuple(tied), row, of_row, None if number is None else index, piece, expert))
    return out


# ---- to Hugging Face ------------------------------------------------------------------------------------------------


def check_params(params: Mapping[str, Any], network: Network) -> None:
    """Raises UserError if parameters {path: array} are not those of the network, or have other shapes."""
    expected = stored_params(network)
    _same_names(set(params), set(expected), "parameter")
    for path, param in expected.items():
        if (got := tuple(params[path].shape)) != param.shape:
            raise UserError(f"weights: {path} has shape {got}, this configuration expects {param.shape}")


def announced(dtypes: Mapping[str, Any], table: Table, network: Network) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and dtype of each tensor of `tensors`, in the same order, without computing it.

    Args:
      dtypes: {our path: dtype}.
      table: table of the network.
      network: the backbone with its heads.

    Returns:
      {their name: (shape, dtype)}.
    """
    out = {x.name: (x.shape, np.dtype(dtypes[x.row.paths[0]])) for x in tensors_of(table, network)}
    first = next(dtype for _, dtype in out.values())
    return out | {name: (shape, first) for name, shape in table.zeros.items()}


def tensors(
    params: Mapping[str, Any], table: Table, network: Network, modules: Collection[str] | None = None
) -> Iterator[tuple[str, np.ndarray]]:
    """Their tensors, one at a time; tied ones once.

    Args:
      params: {our path: array}; each parameter is accessed once, so the mapping may be lazy.
      table: table of the network.
      network: the backbone with its heads.
      modules: names of their modules; by default all of the table's, and its zeros.

    Yields:
      (their name, array).
    """
    dtype = None
    entries = [x for x in tensors_of(table, network) if modules is None or x.module in modules]
    for paths, of_row in itertools.groupby(entries, lambda x: x.row.paths):
        arrays = [np.asarray(params[path]) for path in paths]
        dtype = dtype or arrays[0].dtype
        for entry in of_row:
            unpadded = (x[tuple(map(slice, param.unpadded))] for x, param in zip(arrays, entry.params, strict=True))
            joined = entry.joined([np.split(x[entry.at], entry.row.pieces, axis=-1)[entry.piece] for x in unpadded])
            yield entry.name, np.ascontiguousarray(TRANSFORMS[entry.row.transform](joined)).reshape(entry.shape)
    for name, shape in table.zeros.items() if modules is None else ():
        yield name, np.zeros(shape, dtype)


# ---- from Hugging Face ----------------------------------------------------------------------------------------------


def find(shapes: Mapping[str, tuple[int, ...]], table: Table, network: Network) -> Found:
    """Compares names and shapes with the table; reads no tensor.

    Args:
      shapes: {name in the file: shape}.
      table: table of the network.
      network: the backbone with its heads.

    Returns:
      The present, missing, mismatched and unexpected tensors.
    """
    entries, expected = tensors_of(table, network), _shapes(table, network)
    file_names = canonical_names(shapes, table, network)
    for entry in entries:  # a tied tensor may be stored under any of its names
        stored_as = next((name for name in (entry.name, *entry.tied) if name in file_names), None)
        if stored_as is not None:
            file_names[entry.name] = file_names[stored_as]
    known = {name: file for name, file in file_names.items() if name in expected}
    mismatched = [name for name, file in sorted(known.items()) if shapes[file] != expected[name]]
    message = "{} has shape {}, this configuration expects {}"
    return Found(
        names={name: file for name, file in known.items() if name not in mismatched},
        missing=tuple(entry.name for entry in entries if entry.name not in file_names),
        mismatched=tuple(message.format(name, shapes[known[name]], expected[name]) for name in mismatched),
        unexpected=tuple(sorted(set(file_names) - set(known))),
    )


def any_matches(found: Found, table: Table, network: Network) -> bool:
    """True if at least one parameter, or one layer of one, is present."""
    rows = itertools.groupby(tensors_of(table, network), lambda entry: (entry.row.paths, entry.index))
    return any(all(entry.name in found.names for entry in of_row) for _, of_row in rows)


def pieces(state: Mapping[str, Any], found: Found, table: Table, network: Network) -> Iterator[Piece]:
    """Converts their tensors one at a time to our parameters or single layers of them.

    Args:
      state: {name in the file: array}.
      found: result of `find`; other tensors are skipped.
      table: table of the network.
      network: the backbone with its heads.

    Yields:
      (our path, layer or None for a parameter without layers, array in the storage shape).

    Raises:
      UserError: a tensor contains NaN or infinity, differs from a tied one, or must be zero and is not.
    """

    def read(name: str) -> np.ndarray:
        return finite(found.names[name], np.asarray(state[found.names[name]]))

    def parts(entry: Tensor) -> list[np.ndarray]:
        x = read(entry.name)
        for tied in entry.tied:
            if tied in found.names and not np.array_equal(read(tied), x):
                raise UserError(f"weights: {tied} and {entry.name} differ, but this configuration ties them")
        return entry.cut(TRANSFORMS[entry.row.transform](x.reshape(entry.transposed_shape)))

    for _, group in itertools.groupby(tensors_of(table, network), lambda x: (x.row.paths, x.index)):
        entries = list(group)
        if any(entry.name not in found.names for entry in entries):
            continue
        first, pieces_of = entries[0], zip(*map(parts, entries), strict=True)
        for path, param, arrays in zip(first.row.paths, first.params, pieces_of, strict=True):
            if first.expert is not None:
                part = np.stack(arrays)
            else:
                part = np.concatenate(arrays, axis=-1) if len(arrays) > 1 else arrays[0]
            full = param.shape[first.index is not None :]
            padding = [(0, size - unpadded) for size, unpadded in zip(full, part.shape, strict=True)]
            yield path, first.index, np.pad(part, padding)
    for name in table.zeros:
        if name in found.names and np.any(read(name)):
            raise UserError(f"weights: {name} is not zero, and jaxpt has no counterpart")


# ---- parts ----------------------------------------------------------------------------------------------------------


def _shapes(table: Table, network: Network) -> dict[str, tuple[int, ...]]:
    """{their name: shape}, also of tied tensors and zeros."""
    entries = tensors_of(table, network)
    return {name: entry.shape for entry in entries for name in (entry.name, *entry.tied)} | dict(table.zeros)


def canonical_names(names: Iterable[str], table: Table, network: Network) -> dict[str, str]:
    """Maps a table's names to the names in a file (prefix, old names).

    Args:
      names: names in the file.
      table: table of the network.
      network: the backbone with its heads.

    Returns:
      {name in the table: name in the file}, without tensors that are not weights.
    """
    names, known = tuple(names), _shapes(table, network)
    bare = table.prefix and not any(name.startswith(table.prefix) for name in names)
    file_names = {}
    for file in names:
        name = file
        for pattern, replacement in table.renamed:
            name = re.sub(pattern, replacement, name)
        if bare and table.prefix + name in known:
            name = table.prefix + name
        body = table.prefix + name if bare else name
        if name in known or not any(re.fullmatch(pattern, x) for pattern in table.ignored for x in (name, body)):
            file_names[name] = file
    return file_names


def _same_names(got: set[str], want: set[str], kind: str) -> None:
    if want - got:
        raise UserError(f"weights: no {kind} {_some(sorted(want - got))}")
    if got - want:
        raise UserError(f"weights: {kind} {_some(sorted(got - want))} is not part of this configuration")


def _some(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names[:3]) + _more(len(names) - 3)


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""
