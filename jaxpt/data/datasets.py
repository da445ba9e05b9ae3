"""From a configuration to batches: source → vocabulary → records on disk → streams."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from jaxpt.config import Config, at_phase, cache_key_fields
from jaxpt.data import chat_template, run_tokenizer
from jaxpt.data._tf import seqio
from jaxpt.data.base import Data
from jaxpt.data.calls import Transforms
from jaxpt.data.checks import cache_root, check, digest
from jaxpt.data.fingerprint import NEWEST, describe, fingerprint, transforms_of
from jaxpt.data.labelled import checks as labelled
from jaxpt.data.parts import Part
from jaxpt.data.parts import parts as parts_of
from jaxpt.data.records import cache
from jaxpt.data.records.growing import Growing, grow
from jaxpt.data.records.store import FORMAT, Store, together
from jaxpt.data.seqio_tasks import Offline, code, key
from jaxpt.data.sources.examples import Examples
from jaxpt.data.sources.opening import open_source
from jaxpt.data.sources.rows import ROWS_PER_SHARD, has_null_fields
from jaxpt.data.spec import DataSpec, Features
from jaxpt.data.stream import packing
from jaxpt.data.stream.loader import Stream, Task
from jaxpt.data.stream.online import Online, compile_online
from jaxpt.data.stream.order import SHARDINGS, ByShards, Mixture, Sharding, groups, proportional
from jaxpt.data.stream.updates import Updates
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.data.vocabularies import to_seqio
from jaxpt.data.warnings import warnings
from jaxpt.errors import UserError
from jaxpt.runtime import plugins
from jaxpt.runtime.progress import Report, progress

_SPLITS = ("train", "validation")
_LOOKED_AT = 256  # rows in which the actual fill is measured


def prepare(
    config: Config,
    phase: int = 0,
    report: Report | None = None,
    save: bool = True,
    workers: int | None = None,
    verify: bool = False,
    beam: Sequence[str] | None = None,
    check_source: Callable[[Any], None] = lambda source: None,
    order: int = NEWEST,
    beside: bool = False,
) -> Data:
    """Makes the data of one phase ready: what was prepared before is found again in the cache.

    Args:
      config: the run's configuration.
      phase: which of `train.phases`, from 0.
      report: called with a line of progress now and then; by default it shows on a terminal and is silent elsewhere.
      save: put the vocabulary into `run_dir/tokenizer`, so that the run is self-contained.
      workers: processes that make records; by default one for each core.
      verify: compare the checksums of records found in the cache, however many they are.
      beam: options of an Apache Beam pipeline that makes records instead.
      check_source: called with the "source" of the fingerprint, before anything is made of the files; may raise.
      order, beside: as of `jaxpt.data.preparing.prepare`. What reads all records waits for them: packing, mixtures,
        rows that continue, labelled rows; these have version 1 of the order, or the cuts of version 4.

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
    check(config)
    parts, spec = parts_of(config), objective.data_spec(data.length)
    order = min(order, _newest(parts))
    with progress(report) as say:
        sources = [open_source(part.config.data, spec.max_target_tokens, part.config.task) for part in parts]
        for line in dict.fromkeys(line for source in sources for line in source.found):
            say.note(line)
        known = [source.fingerprint() for source in sources]  # reads files: once
        fingerprints = {part.name: of_source for part, of_source in zip(parts, known)}
        check_source(fingerprints if len(fingerprints) > 1 else known[0])
        tokenizer = run_tokenizer.tokenizer_of(config, parts, sources, known, say, save)
        vocabulary = tokenizer.vocabulary
        for source in sources:
            if isinstance(source, Examples):
                source.check_tokenizer(tokenizer)
        objective.check(config.model, data.length, vocabulary)
        transforms = [transforms_of(part.config, vocabulary) for part in parts]
        order_key = None if any(x.corpus for x in transforms) else _order_key(config, phase, parts, order)
        builds = functools.partial(cache.build, say=say, workers=workers, verify=verify, beam=beam)
        if beside and order_key is not None:
            builds = functools.partial(grow, say=say)
        stores = _stores(list(zip(parts, known, transforms)), tokenizer, builds, order, order_key)
        streams = _streams(config, phase, parts, stores, transforms, to_seqio(tokenizer), order_key, order)
        lines = [(f"{part.name}: {source.tier}" for part, source in zip(parts, sources)), _lines(parts, streams)]
        lines.append(warnings(objective, spec, streams["train"], vocabulary.size))
        if config.task is not None:
            lines.append(labelled.store_lines(parts, stores))
        if spec.uses_chat_template and getattr(objective, "train_on", "answers") == "answers":
            lines.append(chat_template.report_lines(tokenizer))
        for line in chain(*lines):
            say.note(line)
        version = order if order_key is not None or config.task is not None or order > 3 else 1
        return _data(config, phase, fingerprints, tokenizer, transforms, stores, streams, version)


def _newest(parts: Sequence[Part]) -> int:
    """The newest version of the order that is another one for these tasks: runs and prepared batches of all others keep
    the number."""
    if any(part.config.task is not None and has_null_fields(part.config.data, part.config.task) for part in parts):
        return 5
    return 4 if any(part.config.data.documents == "blank_line" for part in parts) else 3


def _data(
    config: Config, phase: int, sources: Mapping[str, Any], tokenizer: Tokenizer, transforms: Sequence[Transforms],
    stores: dict[str, list[Store]], streams: dict[str, Stream], order: int,
) -> Data:  # fmt: skip
    """Streams, and what determines them; of stores in the making, as far as it is known yet."""
    names = [f"{name}/{split}" if len(sources) > 1 else split for split in _SPLITS for name in sources]
    named = dict(zip(names, chain(*stores.values())))
    growing = {name: store for name, store in named.items() if isinstance(store, Growing)}
    summary = {name: _so_far(store) if name in growing else _counts(store.manifest) for name, store in named.items()}
    checksums = {name: None if name in growing else store.checksum for name, store in named.items()}
    digests, quotas = {name: store.directory.name for name, store in named.items()}, streams["train"].mixture.quotas
    modules = code(call for of_part in transforms for call in (*of_part.offline, *of_part.online))
    data = Data(
        tokenizer=tokenizer,
        vocabulary=tokenizer.vocabulary,
        **streams,
        stores=named,
        fingerprint=fingerprint(
            config, phase, sources, tokenizer.digest(), checksums, transforms, quotas, order, digests
        ),
        summary=summary,
        text_per_row=_text_per_row(config.objective.data_spec(config.data.length), streams["train"]),
        code={module: digest for module, digest in modules.items() if plugins.is_plugin(module)},
    )
    for name, store in growing.items():
        store.when_whole(functools.partial(_complete, data, name))
    return data


# ---- records --------------------------------------------------------------------------------------------------------


def _stores(
    sets: Sequence[tuple[Part, dict[str, Any], Transforms]], tokenizer: Tokenizer, build: Callable[..., Store],
    order: int, order_key: int | None,
) -> dict[str, list[Store]]:  # fmt: skip
    """The records of all tasks, by split; the first training records are waited for before others are made."""
    stores: dict[str, list[Store]] = {}
    sharding = SHARDINGS.get(order) if order_key is not None else None
    most = sharding.most_together if sharding else 0

    def training_turn(shards: int) -> list[int]:
        return list(chain(*groups(shards, order_key, most)))

    for split in _SPLITS:
        if build.func is grow:
            turn = range if split == "validation" else training_turn
            build = functools.partial(build, turn=turn, like=stores["train"][0] if stores else None)
        stores[split] = [_store(split, *of_part, tokenizer, build, order, sharding) for of_part in sets]
    return stores


def _store(
    split: str, part: Part, source: dict[str, Any], transforms: Transforms, tokenizer: Tokenizer,
    build: Callable[..., Store], order: int, sharding: Sharding | None,
) -> Store:  # fmt: skip
    """The records of a split; built where they are not there yet."""
    config = part.config
    identity = {
        "format": FORMAT,
        "split": split,
        "source": source,
        "data": cache_key_fields(config.data, "records"),
        "tokenizer": tokenizer.digest(),
        "calls": describe(transforms)["offline"],
        "code": code(transforms.offline),
    }
    spec = config.objective.data_spec(config.data.length)
    if spec.uses_chat_template:
        identity["chat_templates"] = dict(tokenizer.chat_templates)
    if tokenizer.text_version > 1:
        identity["text_version"] = tokenizer.text_version
    if config.task is not None and tokenizer.label_version > 1:
        identity["label_version"] = tokenizer.label_version
    rows_per_shard = ROWS_PER_SHARD if order > 1 and config.task is not None else None
    if rows_per_shard is not None:
        identity["rows_per_shard"] = rows_per_shard
    shard_bytes = None if sharding is None or order < 3 else sharding.shard_bytes  # records of 2 are those of 1
    if shard_bytes is not None:
        identity["shard_bytes"] = shard_bytes
    has_blank_lines = config.data.documents == "blank_line"
    if has_blank_lines and order > 3:
        identity["blank_lines"] = "Unicode"
    if order > 4:
        identity["null_fields"] = False
    directory = cache_root(config) / "records" / f"{digest(identity)}-{split}"
    options = config.task, rows_per_shard, shard_bytes, has_blank_lines and order < 4, order < 5
    offline = Offline(config.data, transforms, spec.max_target_tokens, split, tokenizer, *options)
    store = build(offline, directory, identity, mirror=config.data.mirror)
    if transforms.corpus is None:
        return store
    whole = cache.Corpus(transforms.corpus, store, tokenizer.vocabulary.size, split)
    identity = {"format": FORMAT, "records": directory.name, **whole.identity()}
    return build(whole, directory.with_name(f"{digest(identity)}-{split}"), identity, mirror=config.data.mirror)


def _complete(data: Data, name: str, store: Store) -> None:
    """What is known of the data once a store is whole: the fingerprint of later checkpoints has its checksum."""
    data.fingerprint["records"][name] = store.checksum
    data.summary[name] = _counts(store.manifest)


def _so_far(store: Growing) -> dict[str, int]:
    shards = store.ready()
    if not shards:
        return {"records": 0, "tokens": 0}
    return _counts(together([store.meta(n) for n in shards])) | {"shards_left": store.shards - len(shards)}


def _counts(sums: Mapping[str, Any]) -> dict[str, int]:
    tokens = [f["values"] for name, f in sums["features"].items() if name in ("tokens", "inputs", "targets")]
    counts = {name: count for name, count in sums["counts"].items() if isinstance(count, int)}
    return counts | {"records": sums["records"], "tokens": sum(tokens)}


# ---- streams --------------------------------------------------------------------------------------------------------


def _order_key(config: Config, phase: int, parts: Sequence[Part], order: int) -> int | None:
    """Key of the order of the training records, where it has version 2; None: version 1."""
    needs_all = config.data.packing or config.objective.carries or len(parts) > 1 or config.task is not None
    return None if order < 2 or needs_all else key(key(config.seed, phase, "train"), "order")


def _streams(
    config: Config,
    phase: int,
    parts: Sequence[Part],
    stores: dict[str, list[Store]],
    transforms: Sequence[Transforms],
    vocabulary: seqio.Vocabulary,
    order_key: int | None,
    order: int,
) -> dict[str, Stream]:
    """The stream of each split over the records of all tasks."""
    data, objective = config.data, config.objective
    spec = objective.data_spec(data.length)
    graphs: dict[str, Online] = {}
    counts = functools.cache(lambda: sum(store.token_counts(vocabulary.vocab_size) for store in stores["train"]))

    def online(part: Part, of_part: Transforms, store: Store) -> Online:
        """Tasks of equal records and transforms go through one graph."""
        name, part_features = repr((store.spec, of_part.online)), part.config.objective.data_spec(data.length).features
        if name not in graphs:
            graphs[name] = compile_online(of_part.online, vocabulary, store.spec, part_features, data.packing, counts)
        return spec.wrap_for_mixture(part.name, graphs[name])

    def by_shards(store: Store) -> ByShards | None:
        return None if order_key is None else ByShards(store, order_key, SHARDINGS[order].most_together)

    streams: dict[str, Stream] = {}
    for split in _SPLITS:
        tasks = [
            Task(
                name=part.name,
                store=store,
                online=online(part, of_part, store),
                seed=key(config.seed, phase, split, *([part.name] if len(parts) > 1 else ())),
                packs=_packs(part.config, store, phase, split) if data.packing else None,
                copies=spec.static_mask_copies,
                by_shards=by_shards(store) if split == "train" else None,
            )
            for part, of_part, store in zip(parts, transforms, stores[split])
        ]
        shares = Mixture(_rates(config, parts, tasks), key(config.seed, phase, split, "mixture"))
        if objective.carries and split == "train" and len(tasks[0]) < data.batch_size:
            raise UserError(
                f"data.batch_size: {data.batch_size} rows that continue from batch to batch need as many records, "
                f"the text makes {len(tasks[0])} of data.length {data.length}"
            )
        streams[split] = Stream(tasks, spec.features, data.batch_size, data.readers, shares, objective.carries)
    return streams


def _rates(config: Config, parts: Sequence[Part], tasks: Sequence[Task]) -> list[float]:
    """The shares of the tasks, in rows, as the recipe has them; of labelled tasks the recipe's are of records, of which
    a packed row has several."""
    if len(parts) == 1:
        return [1.0]
    rates, sizes = [part.rate for part in parts], [len(task) for task in tasks]
    examples = sizes if config.task is None else [len(task.store) for task in tasks]
    if None in rates:
        rates = proportional(examples, config.data.mixture_temperature, config.data.mixture_cap)
    return rates if config.task is None else [r * rows / n for r, rows, n in zip(rates, sizes, examples)]


def _packs(config: Config, store: Store, phase: int, split: str) -> packing.Packs | Updates:
    """The rows that the records of a store share: planned once, then found in the cache, or for each epoch."""
    data = config.data
    sizes, room = _footprint(config, store)
    if data.batch_examples and split == "train":
        return Updates(sizes, room, data.batch_size, data.batch_examples, key(config.seed, phase, split, "order"))
    return packing.planned(cache_root(config) / "packs", sizes, room)


def _footprint(config: Config, store: Store) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """({feature: length of each record}, {feature: length of a row})."""
    ragged = [name for name, s in store.spec.items() if s.shape.as_list() == [None]]
    spec = config.objective.data_spec(config.data.length)
    sizes = spec.max_packed_lengths({name: store.lengths(name) for name in ragged})
    check_sizes(f"objective.kind: {config.objective.kind}: max_packed_lengths", sizes, spec.features, len(store))
    return sizes, {name: spec.features[name][0][0] for name in sizes}


def check_sizes(where: str, sizes: Any, features: Features, records: int) -> None:
    """Raises UserError where they are not the sizes of all records in features of the batch."""
    if not isinstance(sizes, Mapping):
        raise UserError(f"{where} must return {{feature: lengths}}, it returns {type(sizes).__name__}")
    for name, of_records in sizes.items():
        if name not in features:
            raise UserError(f"{where} has {name!r}, which is no feature of a batch; known: {', '.join(features)}")
        if np.shape(of_records) != (records,):
            raise UserError(
                f"{where}: {name!r} must have a length for each of {records:,} records, it has the shape "
                f"{list(np.shape(of_records))}"
            )


def _lines(parts: Sequence[Part], streams: dict[str, Stream]) -> Iterator[str]:
    """What packing and mixing come to, in words."""
    for split, stream in streams.items():
        for part, task in zip(parts, stream.tasks):
            if task.packs is not None:
                yield _packing_line(part.config, task, split, stream.features)
    train = streams["train"]
    if len(train.tasks) > 1:
        quotas = (f"{task.name} {quota}" for task, quota in zip(train.tasks, train.mixture.quotas))
        yield f"mixture, of every {train.mixture.block} rows: {', '.join(quotas)}"


def _text_per_row(spec: DataSpec, stream: Stream) -> float:
    """Mean tokens of text in a row, over all tasks as they are mixed."""
    task = stream.tasks[0]
    if task.by_shards is not None:  # of the first shards alone: the same number whether the others are made or not
        shards = task.by_shards.first_shards()
        counts = _counts(together([task.store.meta(n) for n in shards]))
        return counts["tokens"] / counts["records"] - spec.overhead_tokens
    counts = [_counts(task.store.manifest) for task in stream.tasks]
    texts = [(n["tokens"] - spec.overhead_tokens * n["records"]) / len(task) for n, task in zip(counts, stream.tasks)]
    return float(np.average(texts, weights=stream.mixture.quotas))


def _packing_line(config: Config, task: Task, split: str, features: Features) -> str:
    """What packing brings: fill without it, as planned, and as found in some rows."""
    sizes, room = _footprint(config, task.store)
    rows = np.arange(min(len(task), _LOOKED_AT))
    batch = Stream([task], features, len(rows)).rows(rows)
    without, planned = packing.fill(len(task.store), sizes, room), packing.fill(len(task), sizes, room)
    fills = []
    for name in room:
        side = name.partition("_")[0]
        names = f"{side}_segment_ids", f"{side}_weights", f"{task.name}/{side}_weights"
        real = next(batch[feature] for feature in names if feature in batch)
        fills.append(f"{side} {without[name]:.1%} full → {planned[name]:.1%} planned, {(real > 0).mean():.1%} found")
    line = f"packing {task.name}/{split}: {len(task.store):,} records in {len(task):,} rows; {'; '.join(fills)}"
    if isinstance(task.packs, Updates):
        line += f"; {task.packs.examples} examples in each of {task.packs.steps:,} updates of an epoch"
    return line
