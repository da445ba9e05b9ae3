"""From a configuration to batches: source → vocabulary → records on disk → streams."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import os
import shutil
import sys
import uuid
from pathlib import Path
from typing import Any

from jaxpt.config import Config, at_phase
from jaxpt.data import cache, tokenizers
from jaxpt.data._tf import seqio
from jaxpt.data.examples import Examples
from jaxpt.data.loader import Stream
from jaxpt.data.progress import Progress, Report, progress
from jaxpt.data.sources import Source, open_source
from jaxpt.data.store import FORMAT, Store
from jaxpt.data.tasks import Prepare, key, make_task, present, resolve
from jaxpt.data.tokenizers import Tokenizer
from jaxpt.data.vocabularies import to_seqio
from jaxpt.errors import UserError
from jaxpt.objectives.base import Objective, Pipeline, Vocabulary


@dataclasses.dataclass(frozen=True)
class Data:
    """Everything that training and evaluation need of the data, for one phase."""

    tokenizer: Tokenizer
    vocabulary: Vocabulary
    train: Stream
    validation: Stream
    stores: dict[str, Store]
    """The records, by split."""
    task: seqio.Task
    """The same pipeline as SeqIO runs it."""
    fingerprint: dict[str, Any]
    """What determines the stream, ready for JSON: a resume under another one would be another run."""
    summary: dict[str, dict[str, int]]
    """{split: {"documents", "empty" (skipped), "records", "tokens"}}."""


def prepare(
    config: Config,
    phase: int = 0,
    report: Report | None = None,
    save: bool = True,
    workers: int | None = None,
    verify: bool = False,
) -> Data:
    """Makes the data of one phase ready: what was prepared before is found again in the cache.

    Args:
      config: the run's configuration.
      phase: which of `train.phases`, from 0.
      report: called with a line of progress now and then; by default it shows on a terminal and is silent elsewhere.
      save: put the vocabulary into `run_dir/tokenizer`, so that the run is self-contained.
      workers: processes that make records; by default one for each core.
      verify: compare the checksums of records found in the cache, however many they are.

    Returns:
      Tokenizer, streams, and what determines them.

    Raises:
      UserError: the data, vocabulary or settings are not as they should be.

    Example:
      >>> data = prepare(load("configs/smoke/t5_tiny.yaml"))            # doctest: +SKIP
      >>> batch = next(data.train.batches(start=1000))                  # doctest: +SKIP
      >>> batch["encoder_input_tokens"].shape                           # doctest: +SKIP
      (32, 128)
    """
    config = at_phase(config, phase)
    data, objective = config.data, config.objective
    assert isinstance(objective, Objective)
    with progress(report) as say:
        source = open_source(data, objective.examples(data.length))
        tokenizer = _tokenizer(config, source, say, save)
        vocabulary = tokenizer.vocabulary
        if isinstance(source, Examples):
            source.check_tokenizer(tokenizer)
        objective.check(config.model, data.length, vocabulary)
        pipeline = objective.pipeline(data.length, vocabulary, config.seed)
        features = objective.features(data.length)
        ours = to_seqio(tokenizer)
        task = make_task("jaxpt", source, pipeline, features, ours)
        stores = {
            split: _store(config, split, source, pipeline, tokenizer, say, workers, verify)
            for split in ("train", "validation")
        }
        say.note(f"data: {source.tier}")

    def stream(split: str) -> Stream:
        seed = key(config.seed, phase, split)
        return Stream(
            stores[split], present(pipeline.present, ours, seed), features, data.batch_size, seed, data.readers
        )

    return Data(
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        train=stream("train"),
        validation=stream("validation"),
        stores=stores,
        task=task,
        fingerprint={
            "source": source.fingerprint(),
            "tokenizer": tokenizer.digest(),
            "records": {split: store.checksum for split, store in stores.items()},
            "pipeline": _describe(pipeline),
            "length": data.length,
            "batch_size": data.batch_size,
            "seed": config.seed,
            "phase": phase,
        },
        summary={split: _counts(store) for split, store in stores.items()},
    )


def cache_root(config: Config) -> Path:
    """Where prepared data is kept: `data.cache_dir`, else `$XDG_CACHE_HOME/jaxpt`, else `~/.cache/jaxpt`."""
    if config.data.cache_dir:
        return Path(config.data.cache_dir).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxpt"


# ---- vocabulary -----------------------------------------------------------------------------------------------------


def _tokenizer(config: Config, source: Source, say: Progress, save: bool) -> Tokenizer:
    """Loaded from `data.tokenizer.path` or the run, found in the cache, or trained; and kept in the run."""
    settings, size = config.data.tokenizer, config.model.vocab_size
    own = Path(config.run_dir) / "tokenizer" if config.run_dir else None
    checks = {"lowercase": settings.lowercase, "extra_ids": settings.extra_ids, "max_size": size}
    if own is not None and own.is_dir():
        return tokenizers.load(own, settings.kind, **checks)
    if settings.path is not None:
        tokenizer = tokenizers.load(settings.path, settings.kind, **checks)
    elif isinstance(source, Examples) and source.sentencepiece is not None:
        path, sentinels = source.sentencepiece
        tokenizer = tokenizers.load(path, settings.kind, **checks | {"extra_ids": sentinels})
    else:
        tokenizer = _trained(config, source, say)
    if own is not None and save:
        _publish(tokenizer, own)
        tokenizer = tokenizers.load(own, settings.kind, **checks)
    return tokenizer


def _publish(tokenizer: Tokenizer, directory: Path) -> None:
    """The directory appears whole or not at all; another process's is kept."""
    temporary = directory.with_name(f".{directory.name}.{uuid.uuid4().hex}.partial")
    tokenizer.save(temporary)
    try:
        temporary.rename(directory)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)


def _trained(config: Config, source: Source, say: Progress) -> Tokenizer:
    """From the cache, or trained on the training split into it."""
    settings = config.data.tokenizer
    size = settings.vocab_size or config.model.vocab_size
    if size > config.model.vocab_size:
        raise UserError(f"data.tokenizer.vocab_size: {size} is more than model.vocab_size, {config.model.vocab_size}")
    if source.tokenized:
        raise UserError("data.tokenizer.path is missing: data.task gives token ids, so its vocabulary has to be named")
    identity = settings.model_dump() | {"source": source.fingerprint(), "size": size, "format": FORMAT}
    directory = cache_root(config) / "tokenizers" / _hash(identity)
    try:
        return tokenizers.load(directory, settings.kind)
    except UserError:  # not there yet, or torn
        say.update(f"training a {settings.kind} vocabulary of {size:,} ids")
    texts = (text for _, _, text in source.documents("train") if isinstance(text, str))
    shutil.rmtree(directory, ignore_errors=True)
    _publish(tokenizers.train(texts, settings, size), directory)
    return tokenizers.load(directory, settings.kind)


# ---- records --------------------------------------------------------------------------------------------------------


def _store(
    config: Config,
    split: str,
    source: Source,
    pipeline: Pipeline,
    tokenizer: Tokenizer,
    say: Progress,
    workers: int | None,
    verify: bool,
) -> Store:
    """The records of a split; built where they are not there yet."""
    calls = pipeline.prepare
    identity = {
        "format": FORMAT,
        "split": split,
        "source": source.fingerprint() | _reading(config),
        "tokenizer": tokenizer.digest(),
        "calls": _describe(pipeline)["prepare"],
        # A preprocessor that was edited makes other records.
        "code": [_hash(inspect.getsource(sys.modules[resolve(call.name).__module__])) for call in calls],
    }
    directory = cache_root(config) / "records" / f"{_hash(identity)}-{split}"
    recipe = Prepare(config, split, tokenizer)
    return cache.build(recipe, directory, identity, say, workers, verify, config.data.mirror)


def _reading(config: Config) -> dict[str, Any]:
    """Settings of the data that change which documents a file gives."""
    return config.data.model_dump(include={"source", "documents", "field", "task", "modules"}, mode="json")


def _counts(store: Store) -> dict[str, int]:
    described = store.manifest["features"]
    counts = {name: count for name, count in store.manifest["counts"].items() if isinstance(count, int)}
    return counts | {"records": len(store), "tokens": described.get("tokens", {}).get("values", 0)}


def _describe(pipeline: Pipeline) -> dict[str, dict[str, Any]]:
    """Names and arguments of the preprocessors, in their order."""
    return {
        half: {f"{number} {call.name}": call.kwargs for number, call in enumerate(getattr(pipeline, half))}
        for half in ("prepare", "present")
    }


def _hash(identity: Any) -> str:
    return hashlib.blake2b(json.dumps(identity, sort_keys=True, default=str).encode(), digest_size=10).hexdigest()
