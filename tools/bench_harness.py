"""Sequences per second of log-likelihood scoring on this machine, beside lm-eval and loops in torch, interleaved.

    python tools/bench_harness.py --peer VENV/bin/python --data arc_easy.jsonl hellaswag.jsonl --gpt2 DIR --bert DIR
                                  [--pairs blimp.jsonl] [--limit 48] [--rounds 3] [--batch 16] [--one-core]

Multiple choice: a GPT-2 of 124M parameters scores the choices of each line ({"query" or "ctx", "choices" or "endings"})
beside `HFLM.loglikelihood` of lm-eval with transformers. Pseudo-log-likelihood: a BERT-base scores both sentences of
each line ({"sentence_good", "sentence_bad"}, BLiMP), each token masked in turn, beside two loops in torch: over masks,
with a forward pass for each, and over sentences, with all masks of one in a pass (as minicons has it). What products
of matrices alone allow on this machine is printed too. Both sides get texts and have the same
random weights in float32; the largest difference of their scores is printed. A figure is the median of the rounds, a
ratio that of the ratios. The first run of each side, with compilation, is not counted. With --one-core both run on one
core and its CPU-seconds are counted: the ratios of a machine that is shared.

DIR has encoder.json and vocab.bpe (GPT-2's), vocab.txt (BERT's). The peer needs torch, transformers and lm-eval.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxpt
from jaxpt.runtime.process import keep_freed_memory

PEER = Path(__file__).with_name("bench_harness_peer.py")
Pair = tuple[str, str]
clocks = {True: time.process_time, False: time.perf_counter}


def lines(path: Path, limit: int) -> list[dict]:
    """The first lines."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in text.splitlines()[:limit]]


def choices(path: Path, limit: int) -> list[Pair]:
    """(context, choice) of all choices."""
    asked = [(x.get("query") or x["ctx"], x.get("choices") or x["endings"]) for x in lines(path, limit)]
    return [(context, f" {choice}") for context, of_line in asked for choice in of_line]


def sentences(path: Path, limit: int) -> list[Pair]:
    """("", sentence) of both sentences."""
    return [("", x[key]) for x in lines(path, limit) for key in ("sentence_good", "sentence_bad")]


@contextlib.contextmanager
def peer(python: str, kind: str, directory: str, pairs: list[Pair], batch: int) -> Iterator[Callable[[], dict]]:
    """Runs the peer once: its seconds and scores."""
    file = Path(directory, "pairs.json")
    file.write_text(json.dumps(pairs))
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    process = subprocess.Popen(
        [python, str(PEER), "run", kind, directory, str(file), str(batch)], env=offline, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip

    def run() -> dict:
        process.stdin.write("go\n")
        process.stdin.flush()
        for line in process.stdout:
            if line.startswith("RESULT "):
                return json.loads(line.removeprefix("RESULT "))
        raise SystemExit("the peer ended early")

    try:
        yield run
    finally:
        process.stdin.close()
        process.wait()


def masked_bound(directory: str, pairs: list[Pair]) -> str:
    """Sequences per second that the products of the layers allow: a text per mask, 24 · width² FLOPs a token and layer.

    The last layer needs keys and values alone (4 · width²) of tokens that are not masked.
    """
    model = jaxpt.load(directory, dtype="float32")
    config = model.network.config
    masked = [len(model.tokenizer.encode(text)) for _, text in pairs]
    tokens = sum(n * (n + 2) for n in masked)
    work = config.embed_dim**2 * ((24 * config.layers - 20) * tokens + 20 * sum(masked))
    product = jax.jit(jnp.matmul)
    x, w = jnp.ones((2048, config.embed_dim)), jnp.ones((config.embed_dim, config.mlp_dim))
    seconds = []
    for _ in range(50):
        begun = time.perf_counter()
        product(x, w).block_until_ready()
        seconds.append(time.perf_counter() - begun)
    speed = 2 * len(x) * w.size / statistics.median(seconds)
    return f"products alone: {len(pairs) * speed / work:.2f} sequences/s at this machine's {speed / 1e9:.0f} GFLOP/s"


def compare(title: str, kind: str, python: str, directory: str, pairs: list[Pair], batch: int, rounds: int) -> None:
    """Prints both sides' sequences per second."""
    model = jaxpt.load(directory, dtype="float32")
    clock = clocks[len(os.sched_getaffinity(0)) == 1]

    def ours() -> dict:
        begun = clock()
        found = model.loglikelihood(*map(list, zip(*pairs)))
        return {"seconds": clock() - begun, "scores": [one.total for one in found]}

    with peer(python, kind, directory, pairs, batch) as theirs:
        first, other = ours(), theirs()
        difference = np.abs(np.array(first["scores"]) - other["scores"]).max()
        seconds = [(ours()["seconds"], theirs()["seconds"]) for _ in range(rounds)]
    mine, peers = (len(pairs) / statistics.median(times) for times in zip(*seconds))
    ratios = sorted(b / a for a, b in seconds)
    print(
        f"{title}: {len(pairs)} sequences; sequences/s  jaxpt {mine:6.2f}   peer {peers:6.2f}   "
        f"{statistics.median(ratios):.2f} × ({ratios[0]:.2f} to {ratios[-1]:.2f});  first run with compilation "
        f"{first['seconds']:.0f} s;  scores differ by {difference:.1e} at most",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, help="Python of the peer's environment")
    parser.add_argument("--data", nargs="+", default=[], type=Path, help="multiple choice")
    parser.add_argument("--pairs", nargs="+", default=[], type=Path, help="pseudo-log-likelihood")
    parser.add_argument("--gpt2", type=Path, help="multiple choice: directory of encoder.json and vocab.bpe")
    parser.add_argument("--bert", type=Path, help="pseudo-log-likelihood: directory of vocab.txt")
    parser.add_argument("--limit", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16, help="lm-eval's batch size")
    parser.add_argument("--one-core", action="store_true")
    a = parser.parse_args()
    keep_freed_memory()  # as the command line does
    if a.one_core:
        os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    for kind, vocabulary, files, pairs in (
        ("choices", a.gpt2, a.data, choices),
        ("masks", a.bert, a.pairs, sentences),
        ("sentences", a.bert, a.pairs, sentences),
    ):
        with tempfile.TemporaryDirectory() as directory:
            if files:
                subprocess.run([a.peer, str(PEER), "make", kind, directory, str(vocabulary)], check=True)
            for path in files:
                asked = pairs(path, a.limit)
                compare(f"{kind} {path.name}", kind, a.peer, directory, asked, a.batch, a.rounds)
                if kind == "sentences":
                    print(masked_bound(directory, asked), flush=True)


if __name__ == "__main__":
    main()
