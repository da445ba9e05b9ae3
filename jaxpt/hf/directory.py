"""Reads and writes a Hugging Face model directory: config.json and tensor files."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import pkgutil
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from jaxpt.config import ModelConfig
from jaxpt.errors import UserError, shown
from jaxpt.hf import files, formats, mapping, model_types, tasks
from jaxpt.hf.formats.arrays import Checkpoint, Tensors
from jaxpt.hf.options import Family, from_json, to_json
from jaxpt.hf.origin import written_back
from jaxpt.hf.table import Table
from jaxpt.models import stored
from jaxpt.models.network import Head, Network
from jaxpt.models.stored import Piece
from jaxpt.runtime import hub

_FUSED = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)")


@dataclasses.dataclass(frozen=True)
class Source:
    """An open directory: only config.json and the tensors' names and shapes have been read."""

    directory: Path
    family: Family
    network: Network
    tensors: files.Tensors | Tensors | OneByOne
    table: Table
    found: mapping.Found
    labels: tuple[str, ...] | None = None
    """Names of the logits of the fine-tuned class, if config.json has them."""
    problem: tasks.Problem | None = None
    """The loss of a fine-tuned class for whole texts."""

    def pieces(self) -> Iterator[Piece]:
        """(jaxpt path, layer or None, array), one tensor at a time; see `mapping.pieces`."""
        files.note_changes(self.directory, weights=True)
        try:
            yield from mapping.pieces(self.tensors, self.found, self.table, self.network)
        except UserError as error:
            raise UserError(f"{self.directory}: {error}") from None

    def dtypes(self) -> dict[str, np.dtype]:
        """{jaxpt path: dtype of its tensors}, without missing paths."""
        out = {}
        for entry in mapping.tensors_of(self.table, self.network):
            if file_name := self.found.names.get(entry.name):
                out |= dict.fromkeys(entry.row.paths, self.tensors.dtypes[file_name])
        return out


def open_directory(
    directory: str | Path,
    *,
    partial: bool = False,
    ignore: Sequence[str] = (),
    change: Mapping[str, Any] | None = None,
    heads: Iterable[str] | Mapping[str, Head] | None = None,
) -> Source:
    """Reads config.json and the names of the tensors, and compares them with the jaxpt model.

    Args:
      directory: contains config.json and safetensors or .bin files, or is in one of `jaxpt.hf.formats`; or a name of
        the hub.
      partial: tensors may be missing, unexpected or of another shape.
      ignore: unknown keys of config.json to ignore.
      change: overrides of the jaxpt configuration.
      heads: the heads to load, by name; by default those of the fine-tuned class that config.json names, or those that
        the tensors contain.

    Returns:
      The open directory.

    Raises:
      UserError: no such directory, unknown model_type, unsupported option, integer, complex or quantized weights;
        without `partial` a missing, unexpected or mismatched tensor; with `partial` if no tensor matches.
        `Source.pieces` raises it for NaN or infinity.
    """
    path = hub.local(directory)
    other = formats.open(path)
    keys, family = read_config(path, other)
    files.note_changes(path, weights=False)
    tensors = files.Tensors(path) if other is None else other.tensors
    change = {**({} if other is None else other.change), **(change or {})}
    try:
        config = from_json(family, keys, tensors, tuple(ignore))
        config = type(config)(**{**dict(config), **change})
        tuned, outputs = _fine_tuned(family, tensors.shapes, keys)
        if heads is None:
            heads = _heads(family, config, tensors.shapes) if tuned is None else (tuned,)
        network = family.network(config, heads, None if isinstance(heads, Mapping) else outputs or None)
        table = family.table_of(network)
        if table.fused_experts is not None:
            tensors = OneByOne(tensors, table.fused_experts)
        comparison = mapping.find(tensors.shapes, table, network)
        if not partial:
            comparison.raise_on_mismatch(network)
        elif not mapping.any_matches(comparison, table, network):
            raise UserError(
                f"weights: no tensor matches a parameter, the whole model would be random: {comparison.why(network)}"
            )
        for name in comparison.names.values():
            if kind := tensors.others.get(name):
                raise UserError(f"weights: {name} has type {kind}, supported types are {', '.join(files.TYPES)}")
        labels = tasks.labels_from_json(tuned, outputs, keys)
        problem = tasks.problem_from_json(tuned, outputs, keys)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return Source(path, family, network, tensors, table, comparison, labels, problem)


def read_config(directory: Path, other: Checkpoint | None = None) -> tuple[dict[str, Any], Family]:
    """Reads config.json alone, or tells its keys from the shapes of another program's checkpoint.

    Of a model that reads images too, the keys are those of its text model.

    Args:
      directory: contains config.json, or is in one of `jaxpt.hf.formats`.
      other: the opened checkpoint, if it is in such a form; by default it is opened.

    Returns:
      (its keys, the family of its `model_type`).

    Raises:
      UserError: no such directory, or unknown model_type.
    """
    is_here, known = (directory / "config.json").is_file(), families()
    other = other if is_here else other or formats.open(directory)
    path = directory / "config.json"
    keys = model_types.text_model((other and other.keys) or _read_json(path), path)
    model_type = keys.get("model_type")
    if not isinstance(model_type, str) or model_type not in known:
        raise UserError(f"{path}: {model_types.unsupported(model_type, known)}")
    return keys, known[model_type]


def _fine_tuned(
    family: Family, shapes: Mapping[str, tuple[int, ...]], keys: Mapping[str, Any]
) -> tuple[str | None, int]:
    """(head of the fine-tuned class that config.json names, number of its logits); (None, 0) for other classes."""
    named = {task.name: name for name, task in family.tasks.items()}
    name = next((named[x] for x in keys.get("architectures") or () if x in named), None)
    if name is None:
        return None, 0
    weight = f"{family.tasks[name].classifier}.weight"
    if weight not in shapes:
        raise UserError(f"weights: {weight} is missing")
    _check_fixed(family.tasks[name], keys)
    return name, shapes[weight][0]


def _check_fixed(task: tasks.Task, keys: Mapping[str, Any]) -> None:
    """Raises UserError where config.json changes the pooler of a fine-tuned class."""
    for key, value in task.fixed.items():
        if keys.get(key, value) != value:
            raise UserError(f"config.json: {key}: {shown(keys[key])} is not supported, only {json.dumps(value)}")


def with_head(source: Source, head: str, shapes: Mapping[str, tuple[int, ...]], partial: bool = False) -> Source:
    """An open directory of a class without a head for fine-tuning, as the class with one whose tensors are elsewhere.

    Args:
      source: the open directory.
      head: name of our head, one of `source.family.tasks`.
      shapes: {their name: shape} of the tensors that are elsewhere, the classifier's among them.
      partial: more tensors of the head may be missing.

    Returns:
      The backbone with the head. `pieces` has what is in the directory. The labels are those of its config.json, if it
      has as many.

    Raises:
      UserError: without `partial` a tensor of the head is in neither of the two; config.json has an unsupported value.
    """
    keys, family = read_config(source.directory)
    try:
        _check_fixed(family.tasks[head], keys)
        outputs = shapes[f"{family.tasks[head].classifier}.weight"][0]
        network = family.network(source.network.config, (head,), outputs)
        table = family.table_of(network)
        found = mapping.find(source.tensors.shapes, table, network)
        missing = tuple(name for name in found.missing if name not in shapes)
        # What the class lacks belongs to the directory's own class, which was compared when it was opened.
        found = dataclasses.replace(found, missing=missing, unexpected=source.found.unexpected)
        if not partial:
            found.raise_on_mismatch(network)
        has_labels = len(keys.get("id2label") or ()) == outputs
        labels = tasks.labels_from_json(head, outputs, keys) if has_labels else None
        problem = tasks.problem_from_json(head, outputs, keys)
    except UserError as error:
        raise UserError(f"{source.directory}: {error}") from None
    return dataclasses.replace(source, network=network, table=table, found=found, labels=labels, problem=problem)


def _heads(family: Family, config: ModelConfig, names: Mapping[str, Any]) -> tuple[str, ...]:
    """The heads that the tensors contain: those of the largest matching class."""
    if isinstance(family.classes, str):
        return ()
    whole = family.network(config, family.heads)
    file_names = mapping.canonical_names(names, family.table_of(whole), whole)
    present = {
        name for name in family.heads if any(row.theirs in file_names for row in family.heads[name](config).rows)
    }
    return max((heads for heads in family.classes if present.issuperset(heads)), key=len)


def load(
    directory: str | Path, *, dtype: Any = None, partial: bool = False, ignore: Sequence[str] = ()
) -> tuple[Network, dict[str, Any]]:
    """Loads a model and its parameters from a Hugging Face directory.

    Args:
      directory: contains config.json and safetensors or .bin files.
      dtype: dtype of the parameters; by default that of the files.
      partial: load the matching tensors and initialise the rest at random.
      ignore: unknown keys of config.json to ignore.

    Returns:
      (network, params): the backbone with the heads that the tensors contain, and NumPy arrays in the tree of
      `Network.init`.

    Raises:
      UserError: as `open_directory`, and if a tensor is not finite or two tied tensors differ.

    Example: `network, params = jaxpt.hf.load("gpt2")`, then `network.bind(params).decode(tokens).hidden` are hidden
    states.
    """
    source = open_directory(directory, partial=partial, ignore=ignore)
    incomplete: stored.Growing = {}
    params = stored.gather(source.pieces(), stored.stored_params(source.network), incomplete)
    params = fill(source.network, params, incomplete)
    return source.network, params if dtype is None else jax.tree.map(lambda x: np.asarray(x, dtype), params)


def fill(
    network: Network, params: Mapping[str, Any], incomplete: stored.Growing | None = None, seed: int = 0
) -> dict[str, Any]:
    """Initialises missing parameters, and missing layers of others, at random.

    Args:
      network: the network of the parameters.
      params: an incomplete tree of its parameters.
      incomplete: those that lack layers.
      seed: random seed.

    Returns:
      The complete tree.
    """
    have = traverse_util.flatten_dict(dict(params), sep="/")
    paths = list(traverse_util.flatten_dict(network.shapes(), sep="/"))
    lacking = [path for path in paths if path not in have]
    if lacking:

        def draw(key: jax.Array) -> dict[str, jax.Array]:
            flat = traverse_util.flatten_dict(network.init(key), sep="/")
            return {path: flat[path] for path in lacking}

        have |= {path: np.asarray(x) for path, x in jax.jit(draw)(jax.random.key(seed)).items()}
    for path, (x, layers) in (incomplete or {}).items():
        missing = [n for n in range(len(x)) if n not in layers]
        x[missing] = have[path][missing]
        have[path] = x
    return traverse_util.unflatten_dict({path: have[path] for path in paths}, sep="/")


def save(
    directory: str | Path,
    network: Network,
    params: Mapping[str, Any],
    *,
    dtype: Any = None,
    extra: Mapping[str, Any] | None = None,
    shard_bytes: int = files.SHARD_BYTES,
    labels: Sequence[str] | None = None,
    problem: tasks.Problem | None = None,
) -> None:
    """Writes a Hugging Face directory: config.json and (sharded) safetensors.

    Args:
      directory: created if it does not exist.
      network: the backbone with its heads; heads that Hugging Face's class does not have are skipped.
      params: its parameters.
      dtype: dtype of the tensors; by default that of `params`.
      extra: additional keys of config.json, such as `pad_token_id`.
      shard_bytes: maximum size of a file.
      labels: names of the logits of the head "classes" or "tags"; by default LABEL_0, LABEL_1, …
      problem: the loss of the head "classes".

    Raises:
      UserError: `params` is not a tree of this model's parameters, Hugging Face has no class with the head, or there is
        another number of labels than of logits.
    """
    flat = traverse_util.flatten_dict(dict(params), sep="/")
    mapping.check_params(flat, network)
    dtypes = {path: np.dtype(dtype or x.dtype) for path, x in flat.items()}
    write(directory, network, flat, dtypes, extra, shard_bytes, labels, problem)


def write(
    directory: str | Path,
    network: Network,
    params: Mapping[str, Any],
    dtypes: Mapping[str, Any],
    extra: Mapping[str, Any] | None = None,
    shard_bytes: int = files.SHARD_BYTES,
    labels: Sequence[str] | None = None,
    problem: tasks.Problem | None = None,
    origin: Mapping[str, Any] | None = None,
) -> None:
    """`save` for lazily read parameters {jaxpt path: array} with known dtypes.

    Args:
      directory: created if it does not exist.
      network: as in `save`.
      params: {jaxpt path: array}.
      dtypes: {jaxpt path: dtype to write}.
      extra: as in `save`.
      shard_bytes: as in `save`.
      labels: as in `save`.
      problem: as in `save`.
      origin: the config.json that the model was read from, whose other keys are kept.
    """
    family = family_of(network.config, (origin or {}).get("model_type"))
    known = {name: network.heads[name] for name in family.known(network.heads)}
    network = dataclasses.replace(network, heads=known, deltas={})
    table = family.table_of(network)
    first = np.dtype(next(iter(dtypes.values())))
    keys = to_json(family, network, labels, problem) | {"dtype": first.name}
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    # pad_token_id defines RoBERTa's first position, and which one has no sinusoids in XGLM.
    decided = {*(option.theirs for option in family.options), *family.fixed}
    ids = {key: value for key, value in (extra or {}).items() if key not in decided}
    keys |= ids
    if origin is not None and origin.get("model_type") == family.model_type:
        keys = written_back(keys, origin, family, network, ids.get("pad_token_id"))
    (directory / files.CHECKSUMS).unlink(missing_ok=True)  # of what was written there before
    (directory / "config.json").write_text(json.dumps(keys, indent=2) + "\n")
    announced = mapping.announced(dtypes, table, network)
    files.write(directory, announced, mapping.tensors(params, table, network), shard_bytes)


@functools.cache
def families() -> dict[str, Family]:
    """{model_type: family}, of all modules of `jaxpt.hf.families`."""
    package = importlib.import_module(f"{__package__}.families")
    modules = [importlib.import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)]
    return {family.model_type: family for module in modules for family in module.FAMILIES}


def family_of(config: ModelConfig, model_type: str | None = None) -> Family:
    """The Hugging Face family of a configuration.

    Args:
      config: a model configuration.
      model_type: of the directory that it was read from; it is kept if it can express the configuration.

    Returns:
      The family.

    Raises:
      UserError: Hugging Face has no such architecture.
    """
    of_kind = [family for family in families().values() if config.kind in (family.kind, *family.kinds)]
    able = [family for family in of_kind if family.supports(config)]
    for family in able:
        if family.model_type == model_type:
            return family
    for family in able:
        if not family.only_of_origin:
            return family
    raise UserError(f"model.kind: {config.kind} of this configuration has no counterpart in transformers")


def _read_json(path: Path) -> dict[str, Any]:
    directory = path.parent
    if not directory.exists():
        raise UserError(f"{directory}: no such directory; {hub.hint()}")
    if not path.exists() and not path.is_symlink():
        words = files.describe_foreign(directory) if directory.is_dir() else None
        raise UserError(f"{directory}: {words or 'no config.json; expected a Hugging Face directory'}")
    return files.read_object(path)


# ---- experts of a layer in one tensor -------------------------------------------------------------------------------


def expert_names(fused: str, shape: tuple[int, ...], parts: tuple[str, str, str]) -> dict[str, tuple[int, int, int]]:
    """The tensors that one of all experts has.

    Args:
      fused: its name.
      shape: its shape.
      parts: names of an expert's gate, up and down.

    Returns:
      {name of an expert's tensor: (expert, first row, last row)}; none if it is no tensor of all experts.

    Example:
      >>> expert_names("mlp.experts.gate_up_proj", (1, 6, 4), ("w1", "w3", "w2"))
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
    """Tensors with one for each expert, where some were of all experts, as classes of transformers 5 keep them.

    experts.gate_up_proj [E, 2F, D]   →   experts.0.gate_proj.weight [F, D]   experts.0.up_proj.weight [F, D]   …
    experts.down_proj    [E, D, F]    →   experts.0.down_proj.weight [D, F]   …
    """

    def __init__(self, tensors: Any, parts: tuple[str, str, str]) -> None:
        """Takes tensors with the attributes of `files.Tensors`, and the names of an expert's gate, up and down."""
        self._tensors, self._last = tensors, ("", np.zeros(0))
        self._cuts: dict[str, tuple[str, int, int, int]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name, shape in tensors.shapes.items():
            cuts = expert_names(name, shape, parts)
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
