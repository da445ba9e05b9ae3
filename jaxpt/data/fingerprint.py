"""What determines a stream of batches, so that a resume knows it again. No TensorFlow."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from jaxpt.config import Config
from jaxpt.data.calls import Call, Transforms, Vocabulary
from jaxpt.errors import UserError, shown

NEWEST = 5
"""The version of the order of records that new runs have, where it fits them: `stream/order.py` has what it says."""


def fingerprint(
    config: Config,
    phase: int,
    sources: Mapping[str, Any],
    tokenizer: str,
    records: Mapping[str, str | None],
    transforms: Sequence[Transforms],
    quotas: Sequence[int],
    order: int = 1,
    stores: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """All that determines the stream of a phase; a resume needs equal values.

    Args:
      config: of the phase.
      phase: its number, from 0.
      sources: of each task the fingerprint of its files.
      tokenizer: the vocabulary's digest.
      records: checksums of the records, by split; of several tasks by "task/split"; None while they are being made.
      transforms: of each task.
      quotas: of each task its rows in a block of the mixture.
      order: version of the order of the records.
      stores: digests of what determines the records, which stand for checksums that are not known yet; of order 2 on.

    Returns:
      Values ready for JSON.
    """
    data, described = config.data, [describe(of_part) for of_part in transforms]
    alike = all(description == described[0] for description in described)
    later = {"batch_examples": data.batch_examples} if data.batch_examples else {}
    if order > 1:
        later |= {"order": order, "stores": dict(stores or {})}
    return {
        "source": dict(sources) if len(sources) > 1 else next(iter(sources.values())),
        "tokenizer": tokenizer,
        "records": dict(records),
        "transforms": described[0] if alike else dict(zip(sources, described)),
        "mixture": dict(zip(sources, quotas)),
        "packing": data.packing,
        "noise_copies": config.objective.data_spec(data.length).static_mask_copies,
        "length": data.length,
        "batch_size": data.batch_size,
        "seed": config.seed,
        "phase": phase,
    } | later


def order_of(known: Mapping[str, Any] | None) -> int:
    """The version of the order that a run goes on under: that of its fingerprint; of a new run (None), the newest."""
    return NEWEST if known is None else known.get("order", 1)


def transforms_of(config: Config, vocabulary: Vocabulary) -> Transforms:
    """What makes a task's records and features; someone's own may return anything."""
    transforms = config.objective.data_spec(config.data.length).transforms(vocabulary, config.seed)
    where = f"objective.kind: {config.objective.kind}: transforms must return Transforms"
    if not isinstance(transforms, Transforms):
        raise UserError(f"{where}(offline=…, online=…) of jaxpt.data.calls, it returns {type(transforms).__name__}")
    for half in ("offline", "online"):
        calls = getattr(transforms, half)
        if not isinstance(calls, tuple) or not all(isinstance(call, Call) for call in calls):
            raise UserError(f"{where}, whose {half} is a tuple of Call(name, arguments); it is {shown(calls)}")
    return transforms


def describe(transforms: Transforms) -> dict[str, dict[str, Any]]:
    """Names and arguments of the preprocessors, in their order."""

    def arguments(call: Call) -> dict[str, Any]:
        return _plain(call.kwargs) | ({"version": call.version} if call.version > 1 else {})

    halves = {
        half: {f"{number} {call.name}": arguments(call) for number, call in enumerate(getattr(transforms, half))}
        for half in ("offline", "online")
    }
    corpus = transforms.corpus
    return halves | ({} if corpus is None else {"corpus": {corpus.name: _plain(corpus.kwargs)}})


def _plain(value: Any) -> Any:
    """An argument as JSON has it: a dataclass as its fields, a part of a recipe as its keys."""
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return {name: _plain(each) for name, each in value.items()} if isinstance(value, dict) else value


def as_json(value: Any) -> Any:
    """As it is read back from a file."""
    return json.loads(json.dumps(value))


LATER = {"order": 1, "comments": False, "metric_options": {}}
"""Fields that older runs do not have, with the value that does what those runs did. Other fields are None there."""


def changes(was: Any, now: Any) -> dict[str, tuple[Any, Any]]:
    """{dotted key: (value there, value now)} of what differs in two fingerprints; a field that one of them does not
    have has the value of `LATER` there, or None."""
    old, new = map(leaves, _without_places(was, now))
    for records in [key for key in old if key.startswith("records.")]:
        # Checksums are compared where both are known, else what determines the records.
        stores = records.replace("records", "stores", 1)
        is_known = None not in (old[records], new.get(records)) or not (stores in old and stores in new)
        for each in (old, new):
            each.pop(stores if is_known else records, None)
    for name in [key for key in old if key.endswith(".name") and ".zip!" in str(old[key])]:
        # Older runs know a file in a .zip by its path alone.
        of_file = name.removesuffix("name")
        if f"{of_file}size" not in old and f"/{old[name]}".endswith(f"/{new.get(name)}"):
            for each in (old, new):
                for key in [key for key in each if key.startswith(of_file)]:
                    del each[key]
    for key in [key for key in new if ".contents." in key and key not in old]:
        del new[key]  # older runs know a Task by its name and code alone, without the files that it reads
    pairs = {key: tuple(each.get(key, LATER.get(key.rpartition(".")[2])) for each in (old, new)) for key in old | new}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _without_places(was: Any, now: Any) -> tuple[Any, Any]:
    """Both fingerprints; where both say what is in the splits of a data set of the hub or of TFDS, without its name,
    which may be a directory that was moved."""
    if not isinstance(was, dict) or not isinstance(now, dict):
        return was, now
    for kind in ("hf", "tfds"):
        if "files" in was and "files" in now and kind in was and kind in now:
            was, now = ({**known, "files": None, kind: _by_split(known[kind])} for known in (was, now))
    if "files" in was and "tfds" in now and "tfds" not in was:  # older runs know one by its name alone
        now = {key: value for key, value in now.items() if key != "tfds"}
    pairs = {key: _without_places(was[key], now[key]) for key in was if key in now}
    return was | {key: old for key, (old, _) in pairs.items()}, now | {key: new for key, (_, new) in pairs.items()}


def _by_split(contents: dict[str, Any]) -> dict[str, Any]:
    """What is in the splits of a data set, by their names.

    Example:
      >>> _by_split({"data/films (train)": 1}), _by_split({"train": 1})
      ({'train': 1}, {'train': 1})
    """
    return {name.rpartition(" ")[2].strip("()"): content for name, content in contents.items()}


def leaves(value: Any, key: str = "") -> dict[str, Any]:
    """Nested mappings and lists as dotted keys."""
    if not isinstance(value, dict | list) or not value:
        return {key: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {k: leaf for name, part in items for k, leaf in leaves(part, f"{key}.{name}" if key else str(name)).items()}
