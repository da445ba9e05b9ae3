"""Data sets of TensorFlow Datasets."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from typing import Any

from jaxpt.config.kinds import nearest
from jaxpt.data.tables.quiet_tensorflow import tensorflow
from jaxpt.data.tables.rows import Row
from jaxpt.errors import UserError
from jaxpt.runtime import packages


def tfds(name: str, split: str = "train") -> Iterator[Row]:
    """Reads a split of a data set.

    Args:
      name: as TFDS has it ("glue/sst2", "squad:3.0.0"), or the directory of a prepared one.
      split: "train", "validation", … as the data set names them.

    Yields:
      Rows, numbered from 1 in the order of the data set. Strings are str, sequences lists, and classes their names,
      None where a row has no class (-1).

    Raises:
      UserError: no such data set or split, or it cannot be prepared (no network, say).
    """
    builder = _builder_of(name, split)
    for number, record in enumerate(records(builder.as_dataset(split=split, shuffle_files=False), name), 1):
        yield Row(number, {key: plain(builder.info.features[key], value) for key, value in record.items()})


@functools.cache
def splits_of(name: str) -> tuple[str, ...]:
    """The names of the splits of a data set.

    Args:
      name: as for `tfds`.

    Raises:
      UserError: as `prepared_builder`.
    """
    return tuple(prepared_builder(name).info.splits)


def revision(name: str, split: str) -> dict[str, Any]:
    """What identifies a split, wherever it lies: the data set's name and version, and how much is in the split.

    Its files are not compared: TFDS may write the same records in other bytes when it prepares them again.

    Args:
      name: as for `tfds`.
      split: its name.

    Raises:
      UserError: as `tfds`.
    """
    info = _builder_of(name, split).info
    return {"name": info.full_name, "rows": info.splits[split].num_examples, "bytes": info.splits[split].num_bytes}


def _builder_of(name: str, split: str) -> Any:
    """The builder of a data set that has this split."""
    builder = prepared_builder(name)
    splits = list(builder.info.splits)
    if split not in splits:
        raise UserError(f"TFDS data set {name}: no split {split!r}{nearest(split, splits)}")
    return builder


def prepared_builder(name: str) -> Any:
    """The builder of a data set; it is downloaded and prepared where it is not yet.

    Args:
      name: as TFDS has it, or the directory of a prepared one.

    Raises:
      UserError: no such data set, or it cannot be prepared.
    """
    tensorflow()
    import tensorflow_datasets as tf_datasets

    try:
        is_directory = os.path.isdir(name) or "://" in name
        builder = tf_datasets.builder_from_directory(name) if is_directory else tf_datasets.builder(name)
        if not builder.is_prepared():
            builder.download_and_prepare()
    except Exception as error:  # tfds has many, with messages of many lines
        if re.search("apache[_ ]beam", str(error), re.IGNORECASE):
            raise UserError(
                f"TFDS prepares {name} with Apache Beam, which is not installed: "
                f"{packages.install_command('beam')}; or name the files of the data set"
            ) from None
        raise UserError(f"TFDS data set {name}: {first_line(error)}") from None
    return builder


def records(dataset: Any, name: str) -> Iterator[Any]:
    """The records of a part of the data set `name`, in NumPy's types.

    Raises:
      UserError: they cannot be read.
    """
    try:
        yield from dataset.prefetch(64).as_numpy_iterator()
    except (tensorflow().errors.OpError, OSError) as error:
        raise UserError(f"TFDS data set {name}: {first_line(error)}") from None


def plain(feature: Any, value: Any) -> Any:
    """A value as Python has it.

    Args:
      feature: of TensorFlow Datasets: it says what the value is.
      value: as `as_numpy_iterator` gives it.

    Returns:
      Numbers, strings, lists and dicts; the name of a class.
    """
    if hasattr(value, "to_list"):  # a ragged tensor: lists of unequal lengths
        value = value.to_list()
    if isinstance(value, dict):
        inner = getattr(feature, "feature", feature)  # of a sequence of objects TFDS makes an object of sequences
        many = inner is not feature
        return {
            key: [plain(inner[key], element) for element in field] if many else plain(inner[key], field)
            for key, field in value.items()
        }
    if hasattr(feature, "feature"):
        return [plain(feature.feature, element) for element in value]
    if hasattr(feature, "int2str"):  # after sequences: they answer for what they hold
        return feature.int2str(int(value)) if value >= 0 else None
    return _decoded(value.tolist() if hasattr(value, "tolist") else value)


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(element) for element in value]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def first_line(error: BaseException) -> str:
    """What went wrong, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
