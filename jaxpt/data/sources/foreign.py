"""Documents from TensorFlow Datasets and from SeqIO Tasks that anyone's module registered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from jaxpt.config import DataConfig
from jaxpt.config.kinds import nearest
from jaxpt.data._tf import seqio, tf
from jaxpt.data.records.store import MOST_SHARDS
from jaxpt.data.sources.base import Source
from jaxpt.data.tables import Offset, hf_datasets
from jaxpt.data.tables.tfds import first_line, prepared_builder, records
from jaxpt.errors import UserError
from jaxpt.runtime import plugins

_HELD = ("validation", "valid", "dev", "test")


def tfds_documents(data: DataConfig) -> Source:
    """The documents of a TFDS data set.

    Args:
      data: `path` is the data set's name ("wiki40b/en:1.3.0") or the directory of a prepared one, `field` its text
        field, `validation_path` the name of its validation split (by default documents of `train` are held out).

    Raises:
      UserError: no such data set, split or text field.
    """
    import tensorflow_datasets as tfds

    name = data.path if isinstance(data.path, str) else "+".join(data.path or ())
    builder = prepared_builder(name)
    held, splits = data.validation_path, builder.info.splits
    for key, split in (("data.path", "train"), ("data.validation_path", held)):
        if split is not None and split not in splits:
            raise UserError(f"{key}: {name} has no split {split!r}; it has {', '.join(splits)}")
    spec = builder.info.features.get_tensor_info()
    texts = [k for k, v in spec.items() if getattr(v, "tf_dtype", None) == tf.string and v.shape == ()]
    if data.field not in texts:
        raise UserError(f"data.field: {data.field!r} is no text field of {name}; it has {', '.join(texts) or 'none'}")

    def read(path: str, mark: Offset) -> Iterator[tuple[int, str]]:
        part = tfds.core.ReadInstruction(path.rpartition(" ")[2], from_=mark.number, unit="abs")
        ds = builder.as_dataset(split=part, shuffle_files=False).map(lambda r: r[data.field])
        for number, text in enumerate(records(ds, name), mark.number):
            yield number, text.decode("utf-8", "replace")

    def size(path: str) -> int:
        return splits[path.rpartition(" ")[2]].num_bytes

    def cut(path: str, every: int) -> Iterator[tuple[Offset, int]]:
        return _equal_pieces(splits[path.rpartition(" ")[2]].num_examples, size(path), every)

    full = builder.info.full_name
    files = {"train": [f"{full} train"], "validation": [f"{full} {held or 'train'}"]}
    return Source(files, read, None if held else data.validation_fraction, cut=cut, size=size)


def _equal_pieces(documents: int, num_bytes: int, every: int) -> Iterator[tuple[Offset, int]]:
    """(where a piece begins, its bytes) of pieces of a split with `every` bytes or more."""
    pieces = min(max(num_bytes // every, 1), max(documents, 1))
    for piece in range(pieces):
        yield Offset(number=documents * piece // pieces), num_bytes // pieces


def hf_documents(data: DataConfig) -> Source:
    """The documents of a data set of the Hugging Face hub.

    Args:
      data: `path` is the data set's name ("Salesforce/wikitext/wikitext-2-v1", also with @REVISION) or a directory of
        files, `field` its text field, `validation_path` the name of its validation split (by default documents of
        `train` are held out).

    Raises:
      UserError: no such data set, split or text field.
    """
    name = data.path if isinstance(data.path, str) else "+".join(data.path or ())
    held = data.validation_path
    names = ["train"] if held is None else ["train", str(held)]
    splits = {split: hf_datasets.open_split(name, split) for split in names}
    for split, dataset in splits.items():
        texts = [key for key, feature in dataset.features.items() if "string" in str(getattr(feature, "dtype", ""))]
        if data.field not in texts:
            has = ", ".join(texts) or "none"
            raise UserError(f"data.field: {data.field!r} is no text field of hf://{name} ({split}); it has {has}")

    def column(path: str) -> Any:
        return splits[path.rpartition(" ")[2]].select_columns([data.field])

    def read(path: str, mark: Offset) -> Iterator[tuple[int, str]]:
        texts = column(path)
        for begin in range(mark.number, len(texts), hf_datasets.ROWS_AT_ONCE):
            rows = texts[begin : begin + hf_datasets.ROWS_AT_ONCE]
            for number, text in enumerate(rows[data.field], begin):
                yield number, text or ""

    def size(path: str) -> int:
        return column(path).data.nbytes

    def cut(path: str, every: int) -> Iterator[tuple[Offset, int]]:
        return _equal_pieces(len(column(path)), size(path), every)

    files = {"train": [f"{name} train"], "validation": [f"{name} {held or 'train'}"]}
    identity = {"hf": {split: hf_datasets.revision(name, split) for split in splits}}
    fraction = None if held else data.validation_fraction
    return Source(files, read, fraction, cut=cut, size=size, identity=identity)


def task_documents(data: DataConfig) -> Source:
    """The documents of a registered SeqIO Task.

    The task's source and its preprocessors before `seqio.CacheDatasetPlaceholder` (all of them where there is none)
    make the documents: its `text` feature if it has one, else `targets`, as text or as token ids. Its validation
    split is used where it has one; else documents of `train` are held out.

    Args:
      data: `modules` are imported first, `task` is looked up.

    Returns:
      A source in which each shard of the task's own source counts as a file.

    Raises:
      UserError: a module that cannot be imported, an unknown task, or one without text or targets.
    """
    task, held = find_task(data)
    try:
        spec = _documents(task, "train").element_spec
    except Exception as error:  # whatever anyone's preprocessors raise
        raise UserError(f"data.task: {data.task}: its preprocessors fail: {first_line(error)}") from None
    if "inputs" in task.output_features and "targets" in spec and "text" not in spec:
        raise UserError(f"data.task: {data.task} has inputs and targets; objective.kind: seq2seq trains on both")
    feature = next((f for f in ("text", "targets") if f in spec), None)
    if feature is None or not (spec[feature].dtype == tf.string or spec[feature].dtype.is_integer):
        raise UserError(f"data.task: {data.task} gives {', '.join(spec)}; wants text or targets, strings or token ids")
    tokenized = spec[feature].dtype != tf.string

    files: dict[str, list[str]] = {}
    parts: dict[str, tuple[str, seqio.ShardInfo | None]] = {}
    for split, source_split in (("train", "train"), ("validation", held or "train")):
        shards = min(len(task.source.list_shards(source_split)), MOST_SHARDS)
        infos = [seqio.ShardInfo(i, shards) if shards > 1 else None for i in range(shards)]
        files[split] = [f"{data.task} {source_split}" + (f" {i.index} of {shards}" if i else "") for i in infos]
        parts |= {name: (source_split, info) for name, info in zip(files[split], infos)}

    def read(path: str, mark: Offset) -> Iterator[tuple[int, Any]]:
        ds = _documents(task, *parts[path])
        for number, value in enumerate(ds.map(lambda r: r[feature]).prefetch(64).as_numpy_iterator()):
            yield number, value.astype(np.int32) if tokenized else value.decode("utf-8", "replace")

    fraction = None if held else data.validation_fraction
    identity = {"modules": {module: plugins.digest(module) for module in data.modules}}
    below = files_of(task.source, {"train", held or "train"})
    return Source(files, read, fraction, tokenized=tokenized, identity=identity, below=below)


def files_of(source: seqio.DataSource, splits: Iterable[str]) -> dict[str, list[str]]:
    """{split: the files that a source reads}; empty for a source that reads none, or that has versions."""
    return {s: source.list_shards(s) for s in sorted(splits)} if isinstance(source, seqio.FileDataSource) else {}


def find_task(data: DataConfig) -> tuple[seqio.Task, str | None]:
    """Imports `data.modules` and looks `data.task` up.

    Args:
      data: names both.

    Returns:
      (the task, its validation split if it has one).

    Raises:
      UserError: a module that cannot be imported, an unknown task, a mixture, or a task without a train split.
    """
    mixed = subtasks(data)
    if mixed:
        shares = ", ".join(f"{name} ({rate:g})" for name, rate in mixed)
        raise UserError(f"data.task: {data.task} is a mixture of {shares}; name them as tasks of data.mixture")
    if data.task is None:
        raise UserError("data.task is missing: data.source: task needs the name of a registered SeqIO Task")
    names = list(seqio.TaskRegistry.names())
    if data.task not in names:
        known = "" if names else "; no task is: name the modules that register it in data.modules"
        raise UserError(f"data.task: {data.task!r} is not registered{nearest(data.task, names)}{known}")
    task = seqio.TaskRegistry.get(data.task)
    if "train" not in task.splits:
        raise UserError(f"data.task: {data.task} has no train split; it has {', '.join(task.splits)}")
    return task, next((split for split in _HELD if split in task.splits), None)


def subtasks(data: DataConfig) -> list[tuple[str, float]]:
    """The tasks of a registered SeqIO Mixture, those of mixtures in it included.

    Args:
      data: `modules` are imported first; `task` may name a mixture.

    Returns:
      (task, rate) for each; none if `task` is not a mixture.

    Raises:
      UserError: a module cannot be imported.
    """
    for module in data.modules:
        try:
            plugins.import_module(module, "data.modules")
        except ImportError as error:
            raise UserError(f"data.modules: {module}: {first_line(error)}") from None
    if data.task not in seqio.MixtureRegistry.names():
        return []
    mixture = seqio.MixtureRegistry.get(data.task)
    return sorted((task.name, mixture.get_rate(task)) for task in mixture.tasks)


def _documents(task: seqio.Task, split: str, shard: seqio.ShardInfo | None = None) -> tf.data.Dataset:
    ds = task.source.get_dataset(split=split, shuffle=False, shard_info=shard)
    if task.supports_caching:
        return task.preprocess_precache(ds, seed=0)
    return task.preprocess_postcache(ds, sequence_length=None, seed=0)
