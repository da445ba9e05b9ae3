"""From the names of preprocessors to functions of a data set, and to the work that makes records of documents."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxpt.config import DataConfig, TaskConfig
from jaxpt.config.kinds import nearest
from jaxpt.data._tf import TRACING, seqio, tf
from jaxpt.data.calls import Call, Transforms
from jaxpt.data.records.shard import Batches
from jaxpt.data.sources.base import Pieces, Source
from jaxpt.data.sources.opening import open_source
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.data.vocabularies import to_seqio
from jaxpt.errors import UserError
from jaxpt.runtime import plugins

_PACKAGE = "jaxpt.data.preprocessors"
_COMPARED = 64  # records of the first shard that are made twice

Record = dict[str, tf.Tensor]


def resolve(name: str) -> Callable[..., Any]:
    """The preprocessor of a name.

    Args:
      name: "span_corruption.corrupt" under `jaxpt.data.preprocessors`, or "my_lab.noise.shuffle", anyone's own.

    Returns:
      The function.

    Raises:
      UserError: there is none of this name; the nearest is given.
    """
    module_name, _, function = name.rpartition(".")
    ours = [m.name for m in pkgutil.iter_modules(importlib.import_module(_PACKAGE).__path__)]
    if module_name not in ours and "." not in module_name and importlib.util.find_spec(module_name or "-") is None:
        raise UserError(f"preprocessor {name!r}: no module {module_name!r}{nearest(module_name, ours)}")
    path = f"{_PACKAGE}.{module_name}" if module_name in ours else module_name
    try:
        module = plugins.import_module(path, "preprocessor")
    except ModuleNotFoundError as error:
        raise UserError(f"preprocessor {name!r}: {error}") from None
    if not callable(getattr(module, function, None)):
        known = [k for k, v in vars(module).items() if callable(v) and not k.startswith("_")]
        raise UserError(f"preprocessor {name!r}: {path} has no {function!r}{nearest(function, known)}")
    return getattr(module, function)


def code(calls: Iterable[Call]) -> dict[str, str]:
    """What the code of preprocessors is, anyone's own included: edited code makes other records.

    Args:
      calls: preprocessors; functions that they use by name count too.

    Returns:
      {module: digest of its source}: the modules of the functions and of arguments that are dataclasses, and what these
      import of their own directory.
    """
    calls = tuple(calls)
    modules = [resolve(name).__module__ for call in calls for name in (call.name, *call.uses)]
    instances = (value for call in calls for value in call.kwargs.values() if dataclasses.is_dataclass(value))
    modules += [type(x).__module__ for value in instances for x in (value, *vars(value).values())]
    return plugins.digests(modules)


def bind(
    call: Call,
    vocabulary: seqio.Vocabulary,
    shard: int = 0,
    source: Source | None = None,
    split: str = "train",
    pieces: Pieces | None = None,
) -> Callable[[tf.data.Dataset], tf.data.Dataset]:
    """The SeqIO preprocessor of a call: its arguments bound, and what is known of the documents where it asks for it.

    Args:
      call: name and arguments.
      vocabulary: given to a parameter named `vocabulary`.
      shard: number of the run of documents, given to a parameter named `shard`: one more key of frozen random draws.
      source: of the documents; it, its `language`, `fields` and `sentences` are given to parameters of these names.
      split: name of the split, given to a parameter named `split_name`.
      pieces: the run of documents, given to a parameter of this name.

    Returns:
      A function of a data set.
    """
    function = resolve(call.name)
    return functools.partial(function, **arguments(function, call, vocabulary, shard, source, split, pieces=pieces))


def arguments(
    function: Callable[..., Any],
    call: Call,
    vocabulary: seqio.Vocabulary,
    shard: int = 0,
    source: Source | None = None,
    split: str = "train",
    token_counts: Callable[[], Any] | None = None,
    pieces: Pieces | None = None,
) -> dict[str, Any]:
    """The arguments of a call: its own, and those that are offered to parameters of their names.

    Args:
      function: what is called.
      call, vocabulary, shard, source, split, pieces: as of `bind`.
      token_counts: how often ids are in the training records.

    Returns:
      {parameter: value}.

    Raises:
      UserError: the function has no such parameter.
    """
    parameters = inspect.signature(function).parameters
    unknown = [k for k in call.kwargs if k not in parameters]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise UserError(f"preprocessor {call.name!r}: no argument {unknown[0]!r}; it takes {', '.join(parameters)}")
    offered = {"vocabulary": vocabulary, "shard": shard, "pieces": pieces, "split_name": split}
    offered |= {"token_counts": token_counts}
    if source is not None:
        known = {name: getattr(source, name) for name in ("language", "fields", "sentences")}
        offered |= {"source": source, **known}
    return {name: value for name, value in offered.items() if name in parameters} | call.kwargs


def calls_for(transforms: Transforms, source: Source) -> tuple[Call, ...]:
    """The calls that make records of a source's documents: token ids are not tokenized again."""
    offline = transforms.offline
    if not source.tokenized or not offline:
        return offline
    if offline[0].name != "documents.tokenize":
        raise UserError(f"data.task gives token ids, but {offline[0].name} wants text; use a Task that gives text")
    return offline[1:]


@dataclasses.dataclass(frozen=True)
class Offline:
    """What makes a split's records: an objective's offline transforms of the source's documents, shard by shard.

    A shard is a corpus of its own: windows do not cross its end, random next sentences come from within it. Of the
    configuration it has what identifies the records, and no more.
    """

    data: DataConfig
    transforms: Transforms
    examples: int | None
    """As `open_source` takes it."""
    split: str
    tokenizer: Tokenizer
    task: TaskConfig | None = None
    """Of labelled rows."""
    rows_per_shard: int | None = None
    """Of labelled rows, as `open_source` takes it."""
    shard_bytes: int | None = None
    """As `open_source` takes it."""
    ascii_blanks: bool = False
    """As `open_source` takes it."""
    null_fields: bool = False
    """Of labelled rows, as `open_source` takes it."""

    @property
    def name(self) -> str:
        """What is made, for messages."""
        return self.split

    def open(self) -> Documents:
        """Opens the source."""
        options = self.rows_per_shard, self.shard_bytes, self.ascii_blanks, self.null_fields
        return Documents(self, open_source(self.data, self.examples, self.task, *options))


class Documents:
    """The work of an `Offline`, as `jaxpt.data.records.cache` does it."""

    def __init__(self, spec: Offline, source: Source) -> None:
        """Resolves the objective's preprocessors."""
        self._split, self._source = spec.split, source
        self._vocabulary = to_seqio(spec.tokenizer)
        self._calls = calls_for(spec.transforms, source)

    @property
    def failure(self) -> Exception | None:
        """The mistake that ended the last reading."""
        return self._source.failure

    @property
    def consumed(self) -> int:
        """Characters read so far."""
        return self._source.consumed

    def shards(self) -> list[Pieces]:
        """Runs of documents."""
        return self._source.shards(self._split)

    def dataset(self, number: int, shard: Pieces) -> tf.data.Dataset | Batches:
        """The records of a shard."""
        self._source.failure = None
        plugin_names = [call.name for call in self._calls if plugins.is_plugin(resolve(call.name).__module__)]
        if plugin_names and number == 0:
            self._check_repeats(plugin_names, number, shard)
        return self._made(number, shard)

    def _made(self, number: int, shard: Pieces) -> tf.data.Dataset | Batches:
        with TRACING, seqio.map_seed_manager(number):
            ds = self._source.dataset(self._split, shard)
            for call in self._calls:
                records = self._one_by_one(ds)
                with lost_feature(call, records.element_spec):
                    ds = bind(call, self._vocabulary, number, self._source, self._split, shard)(records)
                _check_records(call, ds)
        return ds

    def _one_by_one(self, records: tf.data.Dataset | Batches) -> tf.data.Dataset:
        return records.dataset(self._source.fail) if isinstance(records, Batches) else records

    def _check_repeats(self, plugin_names: Sequence[str], number: int, shard: Pieces) -> None:
        """Raises UserError where the same documents give other records when they are made again.

        They are made once and kept: nothing else would show it, until they are made on another machine.
        """
        consumed = self._source.consumed
        first, second = (_first_records(self._one_by_one(self._made(number, shard))) for _ in range(2))
        self._source.consumed = consumed
        if first != second:
            raise UserError(
                f"preprocessor {' or '.join(map(repr, plugin_names))} makes other records of the same documents each "
                "time; offline, draws have to be frozen in a seed: tf.random.stateless_… with a seed among the "
                "arguments, or seqio.map_over_dataset(num_seeds=1)"
            )

    def counts(self) -> dict[str, Any]:
        """Of the shard that was read last."""
        return self._source.counts[self._split]

    def check(self, counts: dict[str, Any]) -> str:
        """Of all shards together; what was skipped, in words."""
        return self._source.check(self._split, counts)


@contextlib.contextmanager
def lost_feature(call: Call, features: Mapping[str, Any]) -> Iterator[None]:
    """Turns a `KeyError` of one of jaxpt's preprocessors into a line: one before it does not keep a feature.

    Args:
      call: what is called within it.
      features: those of the records that it is given.
    """
    try:
        yield
    except KeyError as error:
        name = error.args[0] if error.args else None
        if name in features or plugins.is_plugin(resolve(call.name).__module__):
            raise
        raise UserError(
            f"preprocessor {call.name}: its records must have {name!r}, they have {', '.join(sorted(features))}; what "
            "the preprocessor before it returns must keep it"
        ) from error


def _check_records(call: Call, output: Any) -> None:
    """Raises UserError where a preprocessor returns something else than a data set of records."""
    if isinstance(output, Batches):
        return
    is_dataset = isinstance(output, tf.data.Dataset)
    if not is_dataset or not isinstance(output.element_spec, Mapping):
        form = f"one of {type(output.element_spec).__name__}" if is_dataset else type(output).__name__
        raise UserError(f"preprocessor {call.name!r} must return a tf.data.Dataset of {{feature: tensor}}, not {form}")


def _first_records(ds: tf.data.Dataset) -> list[str]:
    """Records as texts, which are equal where all their values are, NaN too."""
    rows = ds.take(_COMPARED).as_numpy_iterator()
    return [repr({name: np.asarray(x).tolist() for name, x in row.items()}) for row in rows]


def key(*parts: int | str) -> int:
    """A 63-bit number that depends on all of `parts`, the same on every machine.

    Args:
      *parts: a seed, the name of a purpose, a phase, …

    Returns:
      The number.

    Example:
      >>> key(0, "noise") == key(0, "noise") != key(1, "noise")
      True
    """
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big") >> 1
