"""Packed rows beside padded ones on sentences of real lengths: real tokens per second of jaxpt's training step.

  packed                 sentences share rows of the case's length, each a segment of its own, as `data.packing` does
  padded                 a sentence a row, filled up to the case's length
  padded to the longest  a sentence a row, filled up to the longest of its batch, to a multiple of 8, so that there are
                         few programs; of a masked LM the masked positions are then as many as that length has

A step has the same number of rows in all three ways, so that packed and padded ones have the same area. All three pass
over the same sentences, with the same noise, in each round, in turn in one process, and train one model: `--steps`
packed steps, and as many of the others as it takes. The packed rows are drawn from those that the trainer plans for the
whole file; the others have the drawn sentences in random order, and the last batch the rest alone. A sentence that is
longer than a row is cut, in all three.

Real tokens are those of the sentences, [CLS], [SEP] and EOS counted, on both sides of an encoder-decoder; padding is
the share of a batch's places that has none. Making the batches is not measured.
"""

from __future__ import annotations

import dataclasses
import gzip
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ours
from cases import Case
from compare import quartiles

PACKED, PADDED, LONGEST = "packed", "padded", "padded to the longest"
TOKENIZERS = {
    "masked_lm": {"kind": "wordpiece", "lowercase": True, "vocab_size": 8192},
    "span_corruption": {"kind": "sentencepiece", "vocab_size": 8192},
}
"""By objective; the size is that of a vocabulary that is trained."""
MULTIPLE = 8

Batch = dict[str, np.ndarray]
Ways = dict[str, list[Batch]]
Result = dict[str, Any]
clock = time.perf_counter


def measured(
    name: str, case: Case, path: Path, dtype: str, rounds: int, steps: int, vocabularies: Sequence[Path] = ()
) -> Result:
    """The three ways in turn.

    Args:
      name: of the case.
      case: gives the model, the rows of a step and their length.
      path: sentences: CoNLL-U, or text with one a line; .gz too.
      dtype: in which is computed.
      rounds: passes over the sentences.
      steps: packed steps in a round.
      vocabularies: WordPiece's (.txt), SentencePiece's (.model), or both; the case's is looked for.

    Returns:
      What goes into the JSON.

    Raises:
      ValueError: the file has too few sentences.
    """
    import jax

    config, ways, sentences = prepared(case, path, dtype, steps, vocabularies)
    seconds, compiled = _times(config, ways, rounds)
    tokens = real_tokens(ways[PACKED])
    rates = {way: [tokens / one for one in of] for way, of in seconds.items()}
    ratios = {way: [a / b for a, b in zip(rates[PACKED], rates[way])] for way in (PADDED, LONGEST)}
    return {
        "case": name, **dataclasses.asdict(case), "dtype": dtype, "device": jax.devices()[0].device_kind,
        "version": f"jax {jax.__version__}", "file": path.name, "sentences": sentences, "tokens": tokens,
        "compile_seconds": compiled,
        "ways": {
            way: {
                "steps": len(batches), "padding": 1 - tokens / places(batches), "shapes": _shapes(batches),
                "seconds": seconds[way], "real_tokens_per_second": statistics.median(rates[way]),
                "quartiles": quartiles(rates[way]),
            }
            for way, batches in ways.items()
        },
        "ratios": {
            way: {"median": statistics.median(of), "least": min(of), "most": max(of), "rounds": of}
            for way, of in ratios.items()
        },
    }  # fmt: skip


def prepared(
    case: Case, path: Path, dtype: str, steps: int, vocabularies: Sequence[Path] = ()
) -> tuple[Any, Ways, int]:
    """(the configuration, the batches of each way, how many sentences they have): arguments as `measured`'s."""
    from jaxpt.data import datasets

    suffix = ".model" if case.objective == "span_corruption" else ".txt"
    given = [str(one) for one in vocabularies if suffix in one.suffixes]
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "sentences.txt")
        text.write_text("".join(f"{line}\n" for line in read(path)), encoding="utf-8")
        data = {
            "path": str(text), "validation_path": str(text), "documents": "line", "packing": True,
            "cache_dir": folder, "readers": 1,
            "tokenizer": TOKENIZERS[case.objective] | ({"path": given[0]} if given else {}),
        }  # fmt: skip
        config = ours.configuration(case, dtype, data, join_documents=False)
        train = datasets.prepare(config, save=False, workers=1, report=lambda line: None).train
        ways, sentences = _batches(train, case, steps, getattr(config.objective, "predictions", None))
    return config, ways, sentences


def read(path: Path) -> list[str]:
    """The sentences of a file: what `# text = ` says in CoNLL-U, else lines that are not blank."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        lines = [line.strip() for line in file]
    if ".conllu" in path.suffixes:
        mark = "# text = "
        lines = [line.removeprefix(mark) for line in lines if line.startswith(mark)]
    return [line for line in lines if line]


def _batches(
    train: Any, case: Case, steps: int, predictions: Callable[[int], int] | None, seed: int = 0
) -> tuple[Ways, int]:
    """(the batches of each way, the number of sentences)"""
    from jaxpt.data.stream.loader import Stream
    from jaxpt.data.stream.packing import Packs

    (task,) = train.tasks
    if len(task) < case.rows:
        raise ValueError(f"{len(task)} packed rows of {case.length} tokens, a step takes {case.rows}: wants more text")
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(task))[: min(steps, len(task) // case.rows) * case.rows]
    records, splits = task.packs.of(rows)

    def made(packs: Packs) -> list[Batch]:
        stream = Stream([dataclasses.replace(task, packs=packs)], train.features, case.rows, readers=1)
        found = list(stream.epoch(case.rows))
        rest = len(packs) % case.rows or case.rows
        return [*found[:-1], {name: x[:rest] for name, x in found[-1].items()}]  # without the rows that fill it up

    padded = made(Packs(rng.permutation(records), np.arange(len(records) + 1)))
    ways = {PACKED: made(Packs(records, splits)), PADDED: padded, LONGEST: [cut(one, predictions) for one in padded]}
    return ways, len(records)


def cut(batch: Batch, predictions: Callable[[int], int] | None = None) -> Batch:
    """Rows of one sentence each, cut to the longest.

    Args:
      batch: rows of a fixed length.
      predictions: from the length of a row to the number of its masked positions, where there are any.

    Returns:
      The same of another length on each side of the model, a multiple of `MULTIPLE` or the length itself.
    """
    length = {}
    for side, ids in _segments(batch).items():
        longest = int((ids > 0).sum(-1).max())
        length[side] = min(-(-longest // MULTIPLE) * MULTIPLE, ids.shape[1])
    if predictions is not None:
        length["masked"] = predictions(length["encoder"])
    return {name: x[:, : length[name.partition("_")[0]]] for name, x in batch.items()}


def _segments(batch: Batch) -> Batch:
    """{side: the ids of its segments}"""
    return {side: batch[f"{side}_segment_ids"] for side in ("encoder", "decoder") if f"{side}_segment_ids" in batch}


def real_tokens(batches: Sequence[Batch]) -> int:
    """Tokens of sentences, on all sides of the model."""
    return sum(int((ids > 0).sum()) for batch in batches for ids in _segments(batch).values())


def places(batches: Sequence[Batch]) -> int:
    """Places for tokens, on all sides of the model."""
    return sum(ids.size for batch in batches for ids in _segments(batch).values())


def _shapes(batches: Sequence[Batch]) -> str:
    """How long the rows are: "128", "40–64", "128/29"."""

    def span(lengths: set[int]) -> str:
        return "–".join(str(length) for length in sorted({min(lengths), max(lengths)}))

    return "/".join(span({_segments(batch)[side].shape[1] for batch in batches}) for side in _segments(batches[0]))


def _times(config: Any, ways: Ways, rounds: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """({way: seconds of its steps in each round}, {way: seconds of compiling its programs and a step of each})"""
    import jax

    from jaxpt.train import state, step

    setup = state.setup(config, jax.devices()[:1])
    update, held = step.make_train_step(setup, config.objective), [setup.init()]
    placed = {way: [jax.device_put(batch, jax.devices()[0]) for batch in batches] for way, batches in ways.items()}

    def steps(batches: Sequence[Any]) -> float:
        begun = clock()
        for batch in batches:
            held[0], metrics = update(held[0], batch)
            jax.block_until_ready((held[0], metrics))
        return clock() - begun

    seconds: dict[str, list[float]] = {way: [] for way in ways}
    with setup.use():
        compiled = {
            way: steps(list({str(jax.tree.map(np.shape, batch)): batch for batch in batches}.values()))
            for way, batches in placed.items()
        }
        for _ in range(rounds):
            for way, batches in placed.items():
                seconds[way].append(steps(batches))
    return seconds, compiled
