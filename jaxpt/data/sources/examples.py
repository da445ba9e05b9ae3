"""Finished examples of anyone's SeqIO Task: its `inputs` and `targets`, as SeqIO itself makes them.

A Task may concatenate, filter and draw one number after the other behind its `seqio.CacheDatasetPlaceholder`, as T5's
own do. That is not addressable by an index, so the whole Task is run once, in `data.passes` passes with a seed each,
into records that are. Which guarantee follows from it is the source's `tier`.

    tier            every epoch has
    deterministic   the same examples: nothing is drawn and records map one to one, as if the Task ran anew; its
                    preprocessors are SeqIO's own or say so by `jaxpt.data.preprocessors.batched.one_record`
    frozen          the same `data.passes` versions: what concatenates, filters or draws was run that often

Either way the order is another in every epoch, a resume seeks, and the stream is the same on any number of hosts.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxpt.config import DataConfig
from jaxpt.data._tf import from_generator, seqio, tf
from jaxpt.data.records.store import MOST_SHARDS
from jaxpt.data.sources.base import Piece, Pieces, Source
from jaxpt.data.sources.foreign import files_of, find_task
from jaxpt.data.tables import Offset
from jaxpt.data.tables.tfds import first_line
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.errors import UserError
from jaxpt.runtime import plugins

_theirs = seqio.preprocessors
_ONE_TO_ONE = (_theirs.tokenize, _theirs.tokenize_and_append_eos, _theirs.append_eos, _theirs.append_eos_after_trim)
SHARD_EXAMPLES = 10_000  # of the source in a shard, at least, where it knows how many it has
_SENTENCE = "The quick brown fox, 1 of 23 (or so), jumps over the lazy dog's bed."


class Examples(Source):
    """The finished examples of a Task, where other sources have documents."""

    def __init__(self, data: DataConfig, targets_length: int) -> None:
        """Finds the task.

        Args:
          data: `modules`, `task`, `task_cache`, `passes`, and `length` of the inputs.
          targets_length: most tokens of the targets.

        Raises:
          UserError: no such task, no train split, or it gives no inputs and targets.
        """
        self._task, held = find_task(data)
        self._passes = data.passes
        self._lengths = {"inputs": data.length, "targets": targets_length}
        self._splits = {"train": "train", "validation": held or "train"}
        for name in ("inputs", "targets"):
            if name not in self._task.output_features:
                raise UserError(
                    f"data.task: {data.task} has no output feature {name!r}, which objective.kind: seq2seq trains on; "
                    f"it has {', '.join(self._task.output_features)}"
                )
        self._cache = _cache_dir(self._task, data.task_cache)
        shards = {split: self._count_shards(source_split) for split, source_split in self._splits.items()}
        files = {
            s: [f"{data.task} {self._splits[s]} {n} of {count}" for n in range(count)] for s, count in shards.items()
        }
        fraction = None if held else data.validation_fraction
        identity = {
            "preprocessors": [_name(f) for f in self._task.preprocessors],
            "lengths": self._lengths,
            "passes": self._passes,
            "modules": {module: plugins.digest(module) for module in data.modules},
            "cache": _cache_digest(self._cache, set(self._splits.values())) if self._cache else None,
        }
        below = {} if self._cache else files_of(self._task.source, self._splits.values())
        super().__init__(files, self._no_documents, fraction, tokenized=True, identity=identity, below=below)

    @property
    def tier(self) -> str:
        """Which guarantee the stream has, for people to read."""
        drawing = [_name(f) for f in self._after_cache() if not _one_to_one(f)]
        if not drawing:
            return "deterministic: any step is reached at once, every epoch has the same examples in another order"
        passes = f"{self._passes} passes" if self._passes > 1 else "one pass"
        return (
            f"frozen: {', '.join(drawing)} may concatenate, filter or draw and were run once, in {passes} "
            f"(data.passes); any step is reached at once, every epoch has the same examples in another order"
        )

    @property
    def sentencepiece(self) -> tuple[str, int] | None:
        """File and number of sentinels of the targets' vocabulary, if it is SentencePiece."""
        vocabulary = self._task.output_features["targets"].vocabulary
        if isinstance(vocabulary, seqio.SentencePieceVocabulary):
            return vocabulary.sentencepiece_model_file, vocabulary.extra_ids
        return None

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raises UserError where the task's vocabularies give other ids than the run's."""
        for name in ("inputs", "targets"):
            vocabulary = self._task.output_features[name].vocabulary
            if isinstance(vocabulary, seqio.PassThroughVocabulary):
                continue
            theirs, ours = list(vocabulary.encode(_SENTENCE)), tokenizer.encode(_SENTENCE)
            if theirs != ours:
                raise UserError(
                    f"data.tokenizer: is not the vocabulary of {self._task.name}'s {name}: it gives {ours[:6]} … where "
                    f"the task has {theirs[:6]} …; leave data.tokenizer.path out, or name the task's own"
                )

    def shards(self, split: str) -> list[Pieces]:
        """A shard for each of the source's own, in every pass."""
        passes = self._passes if split == "train" else 1
        return [Pieces([Piece(n, Offset(offset=p))]) for p in range(passes) for n in range(len(self._files[split]))]

    def dataset(self, split: str, pieces: Iterable[Piece] | None = None) -> tf.data.Dataset:
        """The examples of some shards; a mistake inside it is kept in `failure`.

        Args:
          split: "train" or "validation".
          pieces: only these; all by default.

        Returns:
          {"inputs": int32[n], "targets": int32[m], "origin": int64[3] = (source shard, example in it, pass)}.
        """
        selected = [piece for shard in self.shards(split) for piece in shard] if pieces is None else list(pieces)
        ids = tf.TensorSpec([None], tf.int32)
        signature = {"inputs": ids, "targets": ids, "origin": tf.TensorSpec([3], tf.int64)}
        return from_generator(functools.partial(self._elements, split, selected), signature, self.fail)

    def check(self, split: str, counts: dict[str, Any]) -> str:
        """Raises UserError where a split has no example at all.

        Args:
          split: "train" or "validation".
          counts: of all its shards together.

        Returns:
          "": a shard may have none.
        """
        if not counts["documents"]:
            raise UserError(f"data.task: {self._task.name} gives no examples for {split}")
        return ""

    def _elements(self, split: str, pieces: Sequence[Piece]) -> Iterator[dict[str, Any]]:
        counts: dict[str, Any] = {"documents": 0, "empty": 0, "files": {}}
        size = max(self._task.output_features[name].vocabulary.vocab_size for name in self._lengths)
        for piece in pieces:
            shard, run = piece.file, piece.start.offset
            num_examples = counts["files"].setdefault(str(shard), 0)
            for number, ex in enumerate(self._examples(split, shard, run).as_numpy_iterator()):
                num_examples += 1
                self.consumed += ex["inputs"].size + ex["targets"].size
                if not ex["targets"].size:
                    counts["empty"] += 1
                    continue
                for name in self._lengths:
                    if ex[name].size and not 0 <= ex[name].min() <= ex[name].max() < size:
                        raise UserError(
                            f"data.task: {self._task.name}: example {number} of {self._files[split][shard]}: {name} "
                            f"have ids from {ex[name].min()} to {ex[name].max()}, its vocabulary has {size}"
                        )
                counts["documents"] += 1
                yield {name: ex[name].astype(np.int32) for name in self._lengths} | {"origin": (shard, number, run)}
            counts["files"][str(shard)] = num_examples
        self.counts[split] = counts

    def _examples(self, split: str, shard: int, run: int) -> tf.data.Dataset:
        """One shard of the source through the whole task, as SeqIO runs it."""
        source_split, count = self._splits[split], len(self._files[split])
        source = self._task._get_cached_source(source_split) if self._cache else self._task.source
        keep = functools.partial(_held, fraction=self._fraction, validation=split == "validation", shard=shard)
        task = seqio.Task(
            self._task.name,
            _Filtered(source, source_split, keep if self._fraction is not None else None),
            output_features=self._task.output_features,
            preprocessors=self._after_cache() if self._cache else [f for f in self._task.preprocessors if _runs(f)],
        )
        try:
            ds = task.get_dataset(
                self._lengths,
                source_split,
                shuffle=False,
                seed=run,
                shard_info=seqio.ShardInfo(shard, count) if count > 1 else None,
                try_in_mem_cache=False,
            )
        except Exception as error:  # whatever anyone's preprocessors raise
            raise UserError(f"data.task: {self._task.name}: its preprocessors fail: {first_line(error)}") from None
        if ds.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise UserError(f"data.task: {self._task.name} repeats without end; examples are prepared from one pass")
        return ds.map(lambda ex: {name: ex[name] for name in self._lengths})

    def _after_cache(self) -> list[Callable[..., Any]]:
        """The preprocessors behind the placeholder; all where there is none."""
        after: list[Callable[..., Any]] = []
        for function in self._task.preprocessors:
            after = [*after, function] if _runs(function) else []
        return after

    def _count_shards(self, split: str) -> int:
        source = self._task._get_cached_source(split) if self._cache else self._task.source
        examples = source.num_input_examples(split)
        max_shards = MOST_SHARDS if examples is None else max(examples // SHARD_EXAMPLES, 1)
        return min(len(source.list_shards(split)), max_shards, MOST_SHARDS)

    def _no_documents(self, path: str, mark: Offset) -> Iterator[Any]:
        raise UserError("data.tokenizer.path is missing: the task's vocabulary is no SentencePiece model, name it")


class _Filtered(seqio.DataSource):
    """A source that holds out some of its examples, by a hash of their index."""

    def __init__(self, source: Any, split: str, keep: Callable[..., Any] | None) -> None:
        super().__init__([split], caching_permitted=False)
        self._source, self._keep = source, keep

    @property
    def supports_arbitrary_sharding(self) -> bool:
        return self._source.supports_arbitrary_sharding

    def list_shards(self, split: str) -> Sequence[str]:
        return self._source.list_shards(split)

    def get_dataset(
        self, split: str, shuffle: bool = True, seed: int | None = None, shard_info: seqio.ShardInfo | None = None
    ) -> tf.data.Dataset:
        ds = self._source.get_dataset(split=split, shuffle=False, seed=seed, shard_info=shard_info)
        return ds if self._keep is None else ds.enumerate().filter(self._keep).map(lambda number, ex: ex)


def _held(number: tf.Tensor, ex: Any, fraction: float, validation: bool, shard: int) -> tf.Tensor:
    place = tf.strings.join([f"{shard} ", tf.strings.as_string(number)])
    draw = tf.strings.to_hash_bucket_strong(place, 1 << 30, key=[7, 11])
    return (tf.cast(draw, tf.float64) < fraction * 2**30) == validation


def _runs(function: Any) -> bool:
    return not isinstance(function, seqio.CacheDatasetPlaceholder)


def _unwrapped(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _name(function: Any) -> str:
    function = _unwrapped(function)
    return getattr(function, "__name__", type(function).__name__)


def _one_to_one(function: Any) -> bool:
    """Whether a preprocessor says that it maps records one to one, without a draw (`batched.one_record`)."""
    function = _unwrapped(function)
    return function in _ONE_TO_ONE or (hasattr(function, "record") and function.seeds is None)


def _cache_dir(task: seqio.Task, root: str | None) -> str | None:
    """Where `seqio_cache_tasks` put the task, None where it did not."""
    if root is not None and root not in seqio.get_global_cache_dirs():
        seqio.add_global_cache_dirs([root])
    cache_dir = task.cache_dir if root is not None and task.supports_caching else None
    if root is not None and cache_dir is None:
        raise UserError(f"data.task_cache: {root} holds no cache of {task.name}; seqio_cache_tasks makes one")
    if task.requires_caching and cache_dir is None:
        raise UserError(f"data.task: {task.name} wants to be cached: give data.task_cache, made by seqio_cache_tasks")
    return cache_dir


def _cache_digest(directory: str, splits: set[str]) -> str:
    texts = []
    for split in sorted(splits):
        for path in (f"{directory}/info.{split}.json", f"{directory}/stats.{split}.json"):
            texts.append(tf.io.gfile.GFile(path).read())
    return hashlib.blake2b("".join(texts).encode(), digest_size=10).hexdigest()
