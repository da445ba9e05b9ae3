"""Converts weights between jaxpt and Hugging Face, with one table per family. "Ours" is jaxpt, "theirs" Hugging Face.

A table maps each of our parameters to their name. Stacked layers are split and joined; padding rows of the vocabulary
are removed and added. Tensors are converted one at a time, so a model is never in memory as a whole. A missing,
unexpected or mismatched tensor is an error.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from flax import traverse_util

from jaxpt.errors import UserError
from jaxpt.models.network import Network
from jaxpt.models.stored import Piece, StoredParam, finite, gather, stored_params

Transform = Literal["identity", "transpose"]
TRANSFORMS: Mapping[Transform, Callable[[np.ndarray], np.ndarray]] = {
    "identity": lambda x: x,
    "transpose": np.transpose,
}  # each is its own inverse


PROJECTIONS = ("query", "key", "value", "output")
"""Our names of the linear layers of attention."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One of their tensors, and the parameter or parameters of ours that it contains."""

    ours: str | tuple[str, ...]
    """Path in the tree of the backbone or head, "a/b/c"; several are concatenated along their last axis."""
    theirs: str
    """Their name. If it contains {layer}, our parameter has a leading layers axis."""
    transform: Transform = "identity"
    tied: tuple[str, ...] = ()
    """Names of tied tensors: written on request; when read they must be equal."""
    layers: tuple[int, ...] | None = None
    """Their layer numbers; 0, 1, 2, … by default."""
    shape: tuple[int, ...] | None = None
    """Their shape, if it is a reshape of ours."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Our paths, always as a tuple."""
        return (self.ours,) if isinstance(self.ours, str) else self.ours


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
    lacks: tuple[str, ...] = ()
    """Regular expressions of our parameters that their class does not have; an import draws them at random."""

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


def params_of(table: Table, network: Network) -> Mapping[str, StoredParam]:
    """Shape and axes of each parameter that a table has, each exactly once."""
    named = [path for row in table.rows for path in row.paths]
    params = {path: param for path, param in stored_params(network).items() if not table.is_lacking(path)}
    _same_names(set(named), set(params), "row of the table for")
    assert len(named) == len(set(named)), "a parameter has two rows"
    return params


# ---- to Hugging Face ------------------------------------------------------------------------------------------------


def to_hf(params: Mapping[str, Any], table: Table, network: Network, *, tied: bool = True) -> dict[str, np.ndarray]:
    """Converts our parameters to their names and layouts.

    Args:
      params: our tree, as from `Network.init`.
      table: table of the network.
      network: the backbone with its heads.
      tied: repeat tied tensors under each name, as in a PyTorch state dict.

    Returns:
      {their name: array}, in the dtype of `params`.

    Raises:
      UserError: a parameter is missing, has no row in the table, or has another shape than the network's.
    """
    flat = traverse_util.flatten_dict(dict(params), sep="/")
    flat = {path: x for path, x in flat.items() if not table.is_lacking(path)}
    expected = params_of(table, network)
    _same_names(set(flat), set(expected), "parameter")
    for path, param in expected.items():
        if (got := tuple(flat[path].shape)) != param.shape:
            raise UserError(f"weights: {path} has shape {got}, this configuration expects {param.shape}")
    state = dict(tensors(flat, table, network))
    for row in table.rows if tied else ():
        for name in row.tied:
            for layer in layers(row, expected):
                state[name.format(layer=layer)] = state[row.theirs.format(layer=layer)]
    return state


def announced(dtypes: Mapping[str, Any], table: Table, network: Network) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and dtype of each tensor of `tensors`, in the same order, without computing it.

    Args:
      dtypes: {our path: dtype}.
      table: table of the network.
      network: the backbone with its heads.

    Returns:
      {their name: (shape, dtype)}.
    """
    expected, out = params_of(table, network), {}
    for row in table.rows:
        shape, dtype = _their_shape(row, expected, network), np.dtype(dtypes[row.paths[0]])
        out |= {row.theirs.format(layer=layer): (shape, dtype) for layer in layers(row, expected)}
    first = np.dtype(dtypes[table.rows[0].paths[0]])
    return out | {name: (shape, first) for name, shape in table.zeros.items()}


def tensors(
    params: Mapping[str, Any], table: Table, network: Network, rows: Sequence[Row] | None = None
) -> Iterator[tuple[str, np.ndarray]]:
    """Their tensors, one at a time; tied ones once.

    Args:
      params: {our path: array}; each parameter is accessed once, so the mapping may be lazy.
      table: table of the network.
      network: the backbone with its heads.
      rows: some of the table's; by default all, and its zeros.

    Yields:
      (their name, array).
    """
    expected, dtype, vocab_size = params_of(table, network), None, network.config.vocab_size
    for row in table.rows if rows is None else rows:
        parts = [np.asarray(params[path]) for path in row.paths]
        dtype = dtype or parts[0].dtype
        parts = [_strip(x, expected[path].axes, vocab_size) for x, path in zip(parts, row.paths, strict=True)]
        shape = _their_shape(row, expected, network)
        for index, layer in enumerate(layers(row, expected)):
            of_layer = [x[index] for x in parts] if "{layer}" in row.theirs else parts
            joined = np.concatenate(of_layer, axis=-1) if len(of_layer) > 1 else of_layer[0]
            tensor = np.ascontiguousarray(TRANSFORMS[row.transform](joined)).reshape(shape)
            yield row.theirs.format(layer=layer), tensor
    for name, shape in table.zeros.items() if rows is None else ():
        yield name, np.zeros(shape, dtype)


# ---- from Hugging Face ----------------------------------------------------------------------------------------------


def from_hf(state: Mapping[str, Any], table: Table, network: Network) -> dict[str, Any]:
    """Converts their tensors to our tree of parameters.

    Args:
      state: {their name: array}, of any type that `numpy.asarray` accepts.
      table: table of the network.
      network: the backbone with its heads.

    Returns:
      A tree as from `Network.init`, of NumPy arrays in the dtype of `state`.

    Raises:
      UserError: a tensor is missing, unexpected, of another shape, or differs from a tied one.
    """
    comparison = find({name: tuple(x.shape) for name, x in state.items()}, table, network)
    comparison.raise_on_mismatch(network)
    return gather(pieces(state, comparison, table, network), stored_params(network))


def find(shapes: Mapping[str, tuple[int, ...]], table: Table, network: Network) -> Found:
    """Compares names and shapes with the table; reads no tensor.

    Args:
      shapes: {name in the file: shape}.
      table: table of the network.
      network: the backbone with its heads.

    Returns:
      The present, missing, mismatched and unexpected tensors.
    """
    specs = _wanted(table, network)
    file_names = canonical_names(shapes, table, network)
    for row in table.rows:  # a tied tensor may be stored under any of its names
        once = [name for name in row.tied if name in file_names]
        if once and row.theirs not in file_names:
            file_names[row.theirs] = file_names[once[0]]
    mismatched = {name for name, file in file_names.items() if name in specs and shapes[file] != specs[name][0]}
    message = "{} has shape {}, this configuration expects {}"
    return Found(
        names={name: file for name, file in file_names.items() if name in specs and name not in mismatched},
        missing=tuple(name for name, (_, optional) in specs.items() if not optional and name not in file_names),
        mismatched=tuple(message.format(name, shapes[file_names[name]], specs[name][0]) for name in sorted(mismatched)),
        unexpected=tuple(sorted(set(file_names) - set(specs))),
    )


def any_complete(found: Found, table: Table, network: Network) -> bool:
    """True if at least one parameter is present with all its layers."""
    rows = ({row.theirs.format(layer=n) for n in layers(row, stored_params(network))} for row in table.rows)
    return any(names <= found.names.keys() for names in rows)


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
    expected = stored_params(network)

    def read(name: str) -> np.ndarray:
        return finite(found.names[name], np.asarray(state[found.names[name]]))

    for row in table.rows:
        layered = "{layer}" in row.theirs
        widths = [expected[path].unpadded_shape(network.config.vocab_size)[-1] for path in row.paths]
        joined_shape = (*expected[row.paths[0]].unpadded_shape(network.config.vocab_size)[layered:-1], sum(widths))
        for index, layer in enumerate(layers(row, expected)):
            name = row.theirs.format(layer=layer)
            if name not in found.names:
                continue
            x = read(name)
            for tied in (tied.format(layer=layer) for tied in row.tied):
                if tied in found.names and not np.array_equal(read(tied), x):
                    raise UserError(f"weights: {tied} and {name} differ, but this configuration ties them")
            x = x.reshape(joined_shape[::-1] if row.transform == "transpose" else joined_shape)
            parts = np.split(TRANSFORMS[row.transform](x), np.cumsum(widths)[:-1], axis=-1)
            for path, part in zip(row.paths, parts, strict=True):
                full = expected[path].shape[layered:]
                padding = [(0, stored - size) for stored, size in zip(full, part.shape, strict=True)]
                yield path, index if layered else None, np.pad(part, padding)
    for name in table.zeros:
        if name in found.names and np.any(read(name)):
            raise UserError(f"weights: {name} is not zero, and jaxpt has no counterpart")


# ---- parts ----------------------------------------------------------------------------------------------------------


def layers(row: Row, expected: Mapping[str, StoredParam]) -> tuple[int, ...]:
    """Their layer numbers; (0,) for a tensor outside of layers."""
    if "{layer}" not in row.theirs:
        return (0,)
    return row.layers or tuple(range(expected[row.paths[0]].shape[0]))


def _their_shape(row: Row, expected: Mapping[str, StoredParam], network: Network) -> tuple[int, ...]:
    shapes = [expected[path].unpadded_shape(network.config.vocab_size) for path in row.paths]
    shape = (*shapes[0]["{layer}" in row.theirs : -1], sum(s[-1] for s in shapes))
    shape = shape[::-1] if row.transform == "transpose" else shape
    assert row.shape is None or math.prod(row.shape) == math.prod(shape), row
    return row.shape or shape


def _wanted(table: Table, network: Network) -> dict[str, tuple[tuple[int, ...], bool]]:
    """{their name: (shape, is_optional)}."""
    expected = params_of(table, network)
    specs = {
        name.format(layer=layer): (_their_shape(row, expected, network), bool(index))
        for row in table.rows
        for index, name in enumerate((row.theirs, *row.tied))
        for layer in layers(row, expected)
    }
    return specs | {name: (shape, True) for name, shape in table.zeros.items()}


def canonical_names(names: Iterable[str], table: Table, network: Network) -> dict[str, str]:
    """Maps a table's names to the names in a file (prefix, old names).

    Args:
      names: names in the file.
      table: table of the network.
      network: the backbone with its heads.

    Returns:
      {name in the table: name in the file}, without tensors that are not weights.
    """
    names, specs = tuple(names), _wanted(table, network)
    bare = table.prefix and not any(name.startswith(table.prefix) for name in names)
    file_names = {}
    for file in names:
        name = file
        for pattern, replacement in table.renamed:
            name = re.sub(pattern, replacement, name)
        if bare and table.prefix + name in specs:
            name = table.prefix + name
        body = table.prefix + name if bare else name
        if name in specs or not any(re.fullmatch(pattern, x) for pattern in table.ignored for x in (name, body)):
            file_names[name] = file
    return file_names


def _strip(x: np.ndarray, axes: tuple[str, ...], vocab_size: int) -> np.ndarray:
    return x[tuple(slice(vocab_size) if axis == "vocab" else slice(None) for axis in axes)]


def _same_names(got: set[str], want: set[str], kind: str) -> None:
    if want - got:
        raise UserError(f"weights: no {kind} {_some(sorted(want - got))}")
    if got - want:
        raise UserError(f"weights: {kind} {_some(sorted(got - want))} is not part of this configuration")


def _some(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names[:3]) + _more(len(names) - 3)


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""
