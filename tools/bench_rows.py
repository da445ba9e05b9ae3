"""Preparing labelled rows against a fast tokenizer alone, in milliseconds of CPU a row.

    python tools/bench_rows.py sst2.tsv.gz --vocab vocab.txt [--rows 20000] [--text sentence] [--repeats 5]

The tokenizer is Hugging Face's BertTokenizerFast, called with 1,000 rows at a time as `datasets` does: ids, token types
and masks. Records: jaxpt reads the file, tokenizes, lays out and writes records. Prepare: all that a run does with the
rows before its first batch, with labels, checks, and texts that are in two splits. They take turns in one process; CPU
is that of all its threads, and the ratios are those of the medians.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import statistics
import tempfile
import time
from pathlib import Path

from transformers import BertTokenizerFast

from jaxpt import config as configs
from jaxpt.data import datasets, seqio_tasks, tables, tokenizers
from jaxpt.data.records import cache
from jaxpt.runtime.progress import Progress

TOGETHER = 1000


def cpu_seconds(work):
    """CPU of all threads that a call takes."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def first_rows(table, rows, directory):
    """Files with the first rows of a table and with some of the next ones, and the first rows."""
    paths = [Path(directory) / name for name in ("train.tsv", "validation.tsv")]
    with gzip.open(table, "rt") if str(table).endswith(".gz") else open(table) as file:
        header = next(file)
        for path, count in zip(paths, (rows, rows // 20)):
            path.write_text(header + "".join(itertools.islice(file, count)))
    return paths, list(tables.read(str(paths[0])))


def recipe(paths, vocabulary, text, directory):
    """Classification with a BERT."""
    return configs.build(
        {
            "model": {"kind": "bert", "vocab_size": 30522, "layers": 1, "embed_dim": 8, "heads": 1, "mlp_dim": 8,
                      "max_positions": 128},
            "objective": {"kind": "classification"},
            "task": {"kind": "classification", "text": text, "labels": ["0", "1"]},
            "data": {"path": str(paths[0]), "validation_path": str(paths[1]), "length": 128,
                     "cache_dir": str(directory),
                     "tokenizer": {"kind": "wordpiece", "path": str(vocabulary), "lowercase": True}},
        }
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--vocab", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--text", default="sentence")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="print where the time of one build goes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        paths, rows = first_rows(arguments.table, arguments.rows, directory)
        texts = [row.values[arguments.text] for row in rows]
        config = recipe(paths, arguments.vocab, arguments.text, directory)
        tokenizer = tokenizers.load(arguments.vocab, "wordpiece", lowercase=True)
        fast = BertTokenizerFast(vocab_file=str(arguments.vocab), do_lower_case=True)
        transforms = config.objective.data_spec(config.data.length).transforms(tokenizer.vocabulary, config.seed)
        spec = seqio_tasks.Offline(config.data, transforms, None, "train", tokenizer, config.task)
        numbers = itertools.count()

        def alone():
            for at in range(0, len(texts), TOGETHER):
                fast(texts[at : at + TOGETHER], truncation=True, max_length=128)

        def ours():
            store = cache.build(spec, Path(directory) / f"records-{next(numbers)}", {}, Progress(), workers=1)
            assert len(store) == len(rows)

        def prepare():
            settings = config.data.model_copy(update={"cache_dir": str(Path(directory) / f"cache-{next(numbers)}")})
            datasets.prepare(config.model_copy(update={"data": settings}), save=False, workers=1, report=lambda line: 0)

        ours()
        prepare()
        if arguments.profile:
            import cProfile

            cProfile.runctx("prepare()", {"prepare": prepare}, {}, sort="tottime")
        times = [[cpu_seconds(side) for side in (alone, ours, prepare)] for _ in range(arguments.repeats)]
        tokens, records, whole = (1000 * statistics.median(side) / len(rows) for side in zip(*times))
        print(
            f"{len(rows):,} rows: fast tokenizer {tokens:.4f} ms of CPU a row, records {records:.4f} "
            f"({records / tokens:.2f} ×), prepare {whole:.4f} ({whole / tokens:.2f} ×)"
        )


if __name__ == "__main__":
    main()
