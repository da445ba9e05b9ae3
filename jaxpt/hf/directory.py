"""A model's directory as Hugging Face keeps it: config.json and tensor files, in both directions."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax import traverse_util

from jaxpt.config import ModelConfig
from jaxpt.errors import UserError
from jaxpt.hf import files, mapping
from jaxpt.hf.options import Family, from_json, to_json
from jaxpt.models.network import Network


@dataclasses.dataclass(frozen=True)
class Source:
    """An opened directory: nothing but config.json and the tensors' names and shapes has been read."""

    directory: Path
    family: Family
    network: Network
    tensors: files.Tensors
    table: mapping.Table
    found: mapping.Found

    def pieces(self) -> Iterator[tuple[str, int | None, np.ndarray]]:
        """(our path, layer or None, array), a tensor at a time; see `mapping.pieces`."""
        try:
            yield from mapping.pieces(self.tensors, self.found, self.table, self.network)
        except UserError as error:
            raise UserError(f"{self.directory}: {error}") from None

    def dtypes(self) -> dict[str, np.dtype]:
        """{our path: dtype of its tensors}; paths that the files lack are left out."""
        out = {}
        for row in self.table.rows:
            names = [n for n in self.found.names if n == row.theirs or _of_layer(row.theirs, n)]
            if names:
                out |= dict.fromkeys(row.paths, self.tensors.dtypes[self.found.names[names[0]]])
        return out


def open_directory(
    directory: str | Path,
    *,
    partial: bool = False,
    ignore: Sequence[str] = (),
    change: Mapping[str, Any] | None = None,
    heads: Iterable[str] | None = None,
) -> Source:
    """Reads config.json and the names of the tensors, and compares them with what our model has.

    Args:
      directory: holds config.json and safetensors or .bin files.
      partial: tensors may be missing, left over or of another shape.
      ignore: keys of config.json that may be passed over though unknown.
      change: fields of our configuration to set otherwise.
      heads: names of the heads that are wanted; by default those that the tensors have.

    Returns:
      The opened directory.

    Raises:
      UserError: no such directory, an unknown model_type, an option that we do not have, or, unless `partial`, a tensor
        that is missing, left over or misshapen; always where a weight is of an integer, complex or quantized type, and
        with `partial` where no tensor fits. `Source.pieces` refuses a tensor with NaN or infinity in it.
    """
    path = Path(directory)
    given = _read_json(path / "config.json")
    model_type = given.get("model_type")
    known = families()
    if model_type not in known:
        raise UserError(f"{path / 'config.json'}: model_type {model_type!r} is none of {', '.join(sorted(known))}")
    family, tensors = known[model_type], files.Tensors(path)
    try:
        config = from_json(family, given, tensors, tuple(ignore))
        config = type(config)(**{**dict(config), **(change or {})})
        network = family.network(config, _heads(family, config, tensors.shapes) if heads is None else heads)
        table = family.table_of(network)
        found = mapping.find(tensors.shapes, table, network)
        if not partial:
            found.complain(network)
        elif not mapping.any_whole(found, table, network):
            raise UserError(f"weights: no parameter is there, the model would be random: {found.why(network)}")
        for name in found.names.values():
            if kind := tensors.others.get(name):
                raise UserError(f"weights: {name} is of type {kind}, weights are of {', '.join(files.TYPES)}")
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return Source(path, family, network, tensors, table, found)


def _heads(family: Family, config: ModelConfig, names: Mapping[str, Any]) -> tuple[str, ...]:
    """The heads that tensors of these names have: those of the class with the most of them."""
    if isinstance(family.classes, str):
        return ()
    whole = family.network(config, family.heads)
    there = mapping.spelled(names, family.table_of(whole), whole)
    present = {name for name in family.heads if any(row.theirs in there for row in family.heads[name](config).rows)}
    return max((heads for heads in family.classes if present.issuperset(heads)), key=len)


def load(
    directory: str | Path, *, dtype: Any = None, partial: bool = False, ignore: Sequence[str] = ()
) -> tuple[Network, dict[str, Any]]:
    """A model and its parameters from a Hugging Face directory.

    Args:
      directory: holds config.json and safetensors or .bin files.
      dtype: type of the parameters; that of the files by default.
      partial: take what fits, and draw the rest at random.
      ignore: keys of config.json that may be passed over though unknown.

    Returns:
      (network, params): the backbone with the heads that the tensors have, and NumPy arrays as `Network.init` would
      arrange them.

    Raises:
      UserError: as `open_directory`, and where a tensor is not finite or two differ that the configuration ties.

    Example: `network, params = jaxpt.hf.load("gpt2")`, then `network.bind(params).decode(tokens).hidden` are hidden
    states.
    """
    source = open_directory(directory, partial=partial, ignore=ignore)
    params = mapping.gather(source.pieces(), mapping.places(source.network))
    params = fill(source.network, params)
    return source.network, params if dtype is None else _map(lambda x: np.asarray(x, dtype), params)


def fill(network: Network, params: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
    """Draws the parameters that are not there.

    Args:
      network: whose parameters they are.
      params: a part of its tree.
      seed: of the draw.

    Returns:
      The whole tree.
    """
    import jax

    have = traverse_util.flatten_dict(dict(params), sep="/")
    wanted = list(traverse_util.flatten_dict(network.shapes(), sep="/"))
    lacking = [path for path in wanted if path not in have]
    if lacking:

        def draw(key: jax.Array) -> dict[str, jax.Array]:
            flat = traverse_util.flatten_dict(network.init(key), sep="/")
            return {path: flat[path] for path in lacking}

        have |= {path: np.asarray(x) for path, x in jax.jit(draw)(jax.random.key(seed)).items()}
    return traverse_util.unflatten_dict({path: have[path] for path in wanted}, sep="/")


def save(
    directory: str | Path,
    network: Network,
    params: Mapping[str, Any],
    *,
    dtype: Any = None,
    extra: Mapping[str, Any] | None = None,
    shard_bytes: int = files.SHARD_BYTES,
) -> None:
    """Writes a Hugging Face directory: config.json and (sharded) safetensors.

    Args:
      directory: is made where there is none.
      network: the backbone with its heads; those that their classes do not have are left out.
      params: its parameters.
      dtype: type of the tensors; that of `params` by default.
      extra: further keys of config.json, such as `pad_token_id`.
      shard_bytes: files are closed before they grow beyond this.

    Raises:
      UserError: `params` is not this model's tree.
    """
    flat = traverse_util.flatten_dict(dict(params), sep="/")
    expected = mapping.places(network)
    if set(flat) != set(expected) or any(flat[path].shape != expected[path].shape for path in flat):
        mapping.to_hf(params, family_of(network.config).table_of(network), network)  # says what is wrong
    dtypes = {path: np.dtype(dtype or x.dtype) for path, x in flat.items()}
    write(directory, network, flat, dtypes, extra, shard_bytes)


def write(
    directory: str | Path,
    network: Network,
    params: Mapping[str, Any],
    dtypes: Mapping[str, Any],
    extra: Mapping[str, Any] | None = None,
    shard_bytes: int = files.SHARD_BYTES,
) -> None:
    """`save` for parameters that are read one at a time: {our path: array}, with their dtypes known before."""
    family = family_of(network.config)
    known = {name: network.heads[name] for name in family.known(network.heads)}
    network = dataclasses.replace(network, heads=known, deltas={})
    table = family.table_of(network)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    first = np.dtype(next(iter(dtypes.values())))
    keys = to_json(family, network) | {"dtype": first.name}
    options = {option.theirs for option in family.options}  # RoBERTa's pad_token_id is where its positions start
    keys |= {key: value for key, value in (extra or {}).items() if key not in options}
    (directory / "config.json").write_text(json.dumps(keys, indent=2) + "\n")
    announced = mapping.announced(dtypes, table, network)
    files.write(directory, announced, mapping.tensors(params, table, network), shard_bytes)


@functools.cache
def families() -> dict[str, Family]:
    """{model_type: family}: every module of this package that has FAMILIES."""
    here = str(Path(__file__).parent)
    found = [importlib.import_module(f"{__package__}.{m.name}") for m in pkgutil.iter_modules([here])]
    return {family.model_type: family for module in found for family in getattr(module, "FAMILIES", ())}


def family_of(config: ModelConfig) -> Family:
    """What a configuration is written as.

    Args:
      config: of any kind.

    Returns:
      The family.

    Raises:
      UserError: Hugging Face has no such architecture.
    """
    for family in families().values():
        if family.kind == config.kind and family.supports(config):
            return family
    raise UserError(f"model.kind: {config.kind} of this configuration has no counterpart in Hugging Face's library")


def _of_layer(pattern: str, name: str) -> bool:
    start, layered, end = pattern.partition("{layer}")
    return bool(layered) and name.startswith(start) and name.endswith(end) and name[len(start) : -len(end)].isdecimal()


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"{path.parent}: no config.json there; wants a directory in Hugging Face's form")
    try:
        given = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}") from None
    if not isinstance(given, dict):
        raise UserError(f"{path}: wants a mapping of keys to values")
    return given


def _map(function: Callable[[np.ndarray], np.ndarray], tree: Any) -> Any:
    return {k: _map(function, v) for k, v in tree.items()} if isinstance(tree, dict) else function(tree)
