"""How fast batches are made: examples per CPU-second of one core, beside SeqIO with the t5 package and Hugging Face.

    python tools/bench_data.py TEXT.jsonl[.gz] --sentencepiece FILE.model [--t5-python PYTHON] [--seconds 5]

All sides get the same tokens of the same text, from memory or a local store. The peers run one after the other in
processes of their own (`tools/bench_data_peers.py`), t5's under the interpreter of an environment that has it (t5 0.9.4
installs its own SeqIO); without one SeqIO's converters run alone, and the rows that need t5 stay empty.

Ours makes instances, windows and packs once (`jaxpt cache`); what is timed is all that a training step waits for: from
the index to the batch. t5's pipeline cuts its windows, and SeqIO packs, while it runs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from bench_data_peers import BATCH, EOS, LENGTH, SIZE, TARGETS, measured

from jaxpt.config import build
from jaxpt.data import tokenizers
from jaxpt.data._tf import tf
from jaxpt.data.calls import Call, Vocabulary
from jaxpt.data.records.shard import write_shard
from jaxpt.data.records.store import publish, shard_name
from jaxpt.data.seqio_tasks import bind
from jaxpt.data.stream.loader import Stream, Task
from jaxpt.data.stream.online import compile_online
from jaxpt.data.stream.packing import plan
from jaxpt.objectives.span_corruption import lengths

VOCABULARY = Vocabulary(size=SIZE, eos=EOS, cls=2, sep=3, mask=4, sentinels=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--sentencepiece", required=True)
    parser.add_argument("--t5-python", default=None)
    parser.add_argument("--documents", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # one core
    with tempfile.TemporaryDirectory() as folder:
        tokens, once = prepared(arguments)
        path = Path(folder) / "tokens.npz"
        flat = {name: np.concatenate(rows) for name, rows in tokens.items()}
        np.savez(path, **flat, **{f"{name}_lengths": list(map(len, rows)) for name, rows in tokens.items()})
        ours = our_rows(tokens, Path(folder), arguments.seconds)
        peers = {"t5 + SeqIO" if arguments.t5_python else "SeqIO": peer("t5" if arguments.t5_python else "seqio", path,
                 arguments.t5_python or sys.executable, arguments.seconds),
                 "Hugging Face": peer("hf", path, sys.executable, arguments.seconds)}  # fmt: skip
    print(f"length {LENGTH}, batches of {BATCH}, examples per CPU-second of one core")
    for row, rate in ours.items():
        said = [f"{name} {rates[row]:8,.0f}" for name, rates in peers.items() if row in rates]
        best = max((rates[row] for rates in peers.values() if row in rates), default=float("nan"))
        print(f"{row:20} jaxpt {rate:8,.0f}   {'   '.join(said)}   {rate / best:5.1f} × the best peer")
    for name, rate in once.items():
        print(f"once, before training: {name} {rate:,.0f} per CPU-second")


def peer(which: str, path: Path, python: str, seconds: float) -> dict[str, float]:
    """The rates of a peer."""
    script = Path(__file__).with_name("bench_data_peers.py")
    done = subprocess.run([python, script, which, path, str(seconds)], capture_output=True, text=True)
    if done.returncode:
        print(f"{which}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return {}
    return json.loads(done.stdout.splitlines()[-1])


def prepared(arguments: argparse.Namespace) -> tuple[dict[str, list[np.ndarray]], dict[str, float]]:
    """{name: rows of ids}, and how fast BERT's instances were made."""
    tokenizer = tokenizers.load(arguments.sentencepiece)
    texts = [text for _, text in zip(range(arguments.documents), documents(arguments.text))]
    # Ids of another size than the vocabulary's: the same for all sides, below SIZE and above the special ones.
    ids = [np.array(x) % (SIZE - 200) + 5 for x in tokenizer.encode_batch(texts)]
    stream = np.concatenate(ids)
    text, _ = lengths(LENGTH, 0.15, 3.0)
    sentences = [np.array(x) % (SIZE - 200) + 5 for x in tokenizer.encode_batch(sentences_of(texts))]
    instances, rate = bert_instances(ids)
    rows = {
        "documents": ids,
        "windows": np.split(stream, range(text, len(stream), text)),
        "texts": np.split(stream, range(LENGTH + 1, len(stream), LENGTH + 1))[:-1],
        "instances": instances,
        "inputs": [s[:128] for s in sentences[:-1]],
        "targets": [s[:128] for s in sentences[1:]],
    }
    return {name: [r.astype(np.int32) for r in found] for name, found in rows.items()}, {"BERT instances": rate}


def documents(path: str):
    import gzip

    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["text"]


def sentences_of(texts: list[str]) -> list[str]:
    found = [s.strip() for text in texts for s in text.replace("\n", ". ").split(". ")]
    return [s for s in found if len(s) > 20]


def bert_instances(ids: list[np.ndarray]) -> tuple[list[np.ndarray], float]:
    """BERT's sentence pairs, sentences of 20 tokens; and how many are made in a CPU-second."""

    def examples():
        for number, document in enumerate(ids):
            sizes = [20] * (len(document) // 20)
            yield {"tokens": document[: sum(sizes)], "sentence_lengths": sizes, "origin": [0, number]}

    spec = {"tokens": tf.TensorSpec([None], tf.int32), "sentence_lengths": tf.TensorSpec([None], tf.int32),
            "origin": tf.TensorSpec([2], tf.int64)}  # fmt: skip
    call = Call("sentence_pairs.make", {"length": LENGTH, "short_probability": 0.1, "dupe_factor": 2, "seed": 0,
                                        "cls": 2, "sep": 3})  # fmt: skip
    begun = time.process_time()
    made = bind(call, None)(tf.data.Dataset.from_generator(examples, output_signature=spec))
    found = [ex["tokens"] for ex in made.as_numpy_iterator()]
    return found, len(found) / (time.process_time() - begun)


def our_rows(tokens: dict[str, list[np.ndarray]], folder: Path, seconds: float) -> dict[str, float]:
    """{row: examples per CPU-second}."""

    def objective(kind: str, **settings):
        tree = {
            "model": {"kind": "gpt2", "vocab_size": SIZE, "layers": 1, "embed_dim": 8, "heads": 1},
            "objective": {"kind": kind, **settings},
            "data": {"tokenizer": {"kind": "bpe"}, "length": LENGTH},
        }
        return build(tree).objective

    def stream(calls, features, packs=False, **columns):
        spec = {key: tf.TensorSpec([None], tf.int32) for key in columns}

        def examples():
            for row in zip(*(tokens[name] for name in columns.values())):
                made = dict(zip(columns, row))
                yield made

        name = folder / "-".join([*columns.values(), "packed" if packs else "alone"])
        name.mkdir(exist_ok=True)
        write_shard(tf.data.Dataset.from_generator(examples, output_signature=spec), name / shard_name(0, 1))
        store = publish(name, 1, {})
        plans = None
        if packs:
            sizes = {"encoder_input_tokens": store.lengths("inputs") + 0,
                     "decoder_input_tokens": store.lengths("targets") + 0}  # fmt: skip
            begun = time.process_time()
            plans = plan(sizes, {k: features[k][0][0] for k in sizes})
            spent = time.process_time() - begun
            print(
                f"packed short pairs: {len(store):,} planned in {spent:.2f} CPU-s, {len(store) / len(plans):.1f} a row"
            )
        task = Task("bench", store, compile_online(calls, None, spec, features, packs), 0, plans)
        return Stream([task], features, BATCH, readers=1).batches()

    spans, masked = objective("span_corruption"), objective("masked_lm", next_sentence=False)
    causal = objective("causal_lm")
    # Short pairs: as a sequence-to-sequence task has them.
    pair_features = {**spans.data_spec(LENGTH).features}
    pair_features |= {k: ((LENGTH,), d) for k, (_, d) in pair_features.items() if k.startswith("decoder")}
    pairs = (Call("features.encoder_decoder", {"inputs_length": LENGTH, "targets_length": LENGTH, "start": 0}),)

    def online(which):
        return which.data_spec(LENGTH).transforms(VOCABULARY, 0).online

    out = {}
    batches = stream(online(spans), spans.data_spec(LENGTH).features, tokens="windows")
    out["span corruption"] = measured(batches, seconds)
    tokens["token_types"] = [np.zeros_like(x) for x in tokens["instances"]]
    batches = stream(online(masked), masked.data_spec(LENGTH).features, tokens="instances", token_types="token_types")
    out["BERT masking"] = measured(batches, seconds)
    batches = stream(online(causal), causal.data_spec(LENGTH).features, tokens="texts")
    out["causal LM"] = measured(batches, seconds)
    batches = stream(pairs, pair_features, True, inputs="inputs", targets="targets")
    out["packed short pairs"] = measured(
        batches, seconds, lambda batch: int(batch["encoder_segment_ids"].max(axis=1).sum())
    )
    return out


if __name__ == "__main__":
    assert lengths(LENGTH, 0.15, 3.0)[1] == TARGETS
    main()
