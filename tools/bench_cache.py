"""Building a cache against the tokenizer alone, in MB of text per CPU-second; reading it against ArrayRecord.

    python tools/bench_cache.py CORPUS.jsonl.gz --tokenizer DIR [--length 512] [--megabytes 16]

CPU-seconds are those of the whole process, all threads: what a figure means on a machine with other work. The text is
the first so many megabytes; it is read, cut and written as `jaxpt cache` does it, in one process.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from jaxpt import config as configs
from jaxpt.data import seqio_tasks, tokenizers
from jaxpt.data._tf import tf
from jaxpt.data.records import cache
from jaxpt.data.records.store import Ragged
from jaxpt.data.sources.readers import read
from jaxpt.data.tables import Offset
from jaxpt.runtime.progress import Progress


def measured(name, work, megabytes):
    """Runs and prints MB of text per CPU-second and per second."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{name:34} {megabytes / cpu:6.2f} MB/CPU-s  {megabytes / wall:6.2f} MB/s", flush=True)
    return result, cpu


def recipe(corpus, tokenizer, length, directory):
    """Span corruption over the corpus: tokenize and cut."""
    return configs.build(
        {
            "model": {"kind": "t5", "vocab_size": 65536, "layers": 1, "embed_dim": 8, "heads": 1, "head_dim": 8,
                      "mlp_dim": 8},
            "objective": {"kind": "span_corruption"},
            "data": {"path": str(corpus), "validation_path": str(corpus), "length": length,
                     "cache_dir": str(directory), "tokenizer": {"kind": "sentencepiece", "path": str(tokenizer)}},
        }
    )  # fmt: skip


def excerpt(corpus, data, megabytes, directory):
    """The first documents of the corpus, as JSONL without compression."""
    import json

    texts, size = [], 0
    for _, text in read(str(corpus), data, Offset()):
        texts.append(text)
        size += len(text.encode())
        if size >= megabytes * 1e6:
            break
    path = Path(directory) / "text.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path, texts, size / 1e6


def build(directory, corpus, vocabulary, length, megabytes):
    """Tokenizer alone (as Python calls it, and in TensorFlow), then the whole build."""
    data = recipe(corpus, vocabulary, length, directory).data
    path, texts, size = excerpt(corpus, data, megabytes, directory)
    config = recipe(path, vocabulary, length, directory)
    tokenizer = tokenizers.load(vocabulary, "sentencepiece")
    from jaxpt.data.vocabularies import to_seqio

    encode = to_seqio(tokenizer).encode_tf
    print(f"{size:.1f} MB of text in {len(texts)} documents; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    _, alone = measured("tokenizer alone, from Python", lambda: [tokenizer.encode_batch([t]) for t in texts], size)
    _, in_tf = measured("tokenizer alone, in TensorFlow", lambda: [encode(tf.constant(t)) for t in texts], size)
    where = Path(directory) / "records"
    pipeline = config.objective.data_spec(length).transforms(tokenizer.vocabulary, config.seed)
    work = seqio_tasks.Offline(config.data, pipeline, None, "train", tokenizer)
    store, whole = measured(
        "cache: read, tokenize, cut, write", lambda: cache.build(work, where, {}, Progress(), 1), size
    )
    print(f"the cache costs {whole / alone:.2f} × the tokenizer from Python, {whole / in_tf:.2f} × that in TensorFlow")
    return store


def random_reads(store, directory, rows=8192, batch=64):
    """Records per second in random order, and bytes a record, of the store and of the same records in ArrayRecord."""
    from array_record.python import array_record_module as array_record

    ours = sum(shard["size"] for shard in store.manifest["shards"])
    path = str(Path(directory) / "records.array_record")
    writer = array_record.ArrayRecordWriter(path, "group_size:1,uncompressed")
    packed = str(Path(directory) / "packed.array_record")
    zstd = array_record.ArrayRecordWriter(packed, "group_size:1,zstd:3")
    features = {name: "int64" if f["dtype"] == "int64" else "int32" for name, f in store.manifest["features"].items()}
    for i in range(len(store)):
        record = store.fetch(np.array([i]))
        values = {n: (v.values if isinstance(v, Ragged) else v[0]).tolist() for n, v in record.items()}
        feature = {n: tf.train.Feature(int64_list=tf.train.Int64List(value=v)) for n, v in values.items()}
        example = tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
        writer.write(example)
        zstd.write(example)
    writer.close()
    zstd.close()
    order = np.random.default_rng(0).integers(0, len(store), rows)

    def timed(name, size, fetch):
        fetch(order[:batch])
        begun = time.process_time()
        for at in range(0, rows, batch):
            fetch(order[at : at + batch])
        cpu = time.process_time() - begun
        print(f"{name:34} {rows / cpu:10,.0f} records/CPU-s  {size / len(store):8,.0f} bytes a record", flush=True)

    spec = {name: tf.io.RaggedFeature(tf.int64) for name in features}
    timed("jaxpt, memory-mapped", ours, store.fetch)
    for name, file in (("ArrayRecord, tf.Example", path), ("ArrayRecord, tf.Example, zstd", packed)):
        reader = array_record.ArrayRecordReader(file)

        def fetch(at, reader=reader):
            return tf.io.parse_example(reader.read(at.tolist()), spec)

        timed(name, os.path.getsize(file), fetch)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True, help="a SentencePiece vocabulary's directory")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--megabytes", type=float, default=16)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        store = build(directory, arguments.corpus, arguments.tokenizer, arguments.length, arguments.megabytes)
        random_reads(store, directory)


if __name__ == "__main__":
    main()
