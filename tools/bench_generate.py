"""Tokens per second of greedy decoding on this machine, next to transformers on torch, in one interleaved run.

    python tools/bench_generate.py [--models gpt2,t5] [--batches 1,8] [--prompt 128] [--new 128] [--rounds 3]

GPT-2 124M and T5-base sizes with random weights in float32. Each round runs ours, then transformers with its default
cache, then with its static cache; a figure is the median of the rounds. Compilation and warm-up are not counted, the
reading of the prompts is. Needs torch and transformers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import jax
import numpy as np

from jaxpt.generate.engine import Engine, Prompt
from jaxpt.generate.options import Options
from jaxpt.models.gpt2 import GPT2Config
from jaxpt.models.network import Network
from jaxpt.models.t5 import T5Config


def ours(name: str, batch: int, prompt: int, new: int) -> Callable[[], None]:
    """Runs our engine once."""
    if name == "gpt2":
        config = GPT2Config(vocab_size=50257, layers=12, embed_dim=768, heads=12, dtype="float32")
    else:
        config = T5Config(
            vocab_size=32128, layers=12, embed_dim=768, heads=12, mlp_dim=3072, feed_forward="relu",
            tie_embeddings=True, dtype="float32",
        )  # fmt: skip
    network = Network(config.build())
    engine = Engine(network, jax.jit(network.init)(jax.random.key(0)), batch_size=batch)
    ids = np.random.default_rng(0).integers(5, 30_000, (batch, prompt)).tolist()
    prompts = [Prompt(row) if name == "gpt2" else Prompt([0], row) for row in ids]
    options = Options(max_new_tokens=new)

    def run() -> None:
        assert sum(len(one.tokens) for one in engine.generate(prompts, options)) == batch * new

    return run


def theirs(name: str, batch: int, prompt: int, new: int, cache: str | None) -> Callable[[], None]:
    """Runs transformers once."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    if name == "gpt2":
        model = GPT2LMHeadModel(GPT2Config()).eval()
    else:
        config = T5Config(
            vocab_size=32128, d_model=768, num_layers=12, num_heads=12, d_ff=3072, decoder_start_token_id=0
        )
        model = T5ForConditionalGeneration(config).eval()
    ids = torch.randint(5, 30_000, (batch, prompt))
    options = {"cache_implementation": cache} if cache else {}

    def run() -> None:
        with torch.no_grad():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=False,
                pad_token_id=0, **options,
            )  # fmt: skip
        assert out.shape[1] == new + (prompt if name == "gpt2" else 1)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="gpt2,t5")
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    a = parser.parse_args()
    for name in a.models.split(","):
        for batch in map(int, a.batches.split(",")):
            sides = {
                "jaxpt": ours(name, batch, a.prompt, a.new),
                "transformers": theirs(name, batch, a.prompt, a.new, None),
                "transformers, static cache": theirs(name, batch, a.prompt, a.new, "static"),
            }
            for run in sides.values():
                run()
            seconds: dict[str, list[float]] = {side: [] for side in sides}
            for _ in range(a.rounds):
                for side, run in sides.items():
                    begun = time.perf_counter()
                    run()
                    seconds[side].append(time.perf_counter() - begun)
            rates = {side: batch * a.new / statistics.median(times) for side, times in seconds.items()}
            best = max(rate for side, rate in rates.items() if side != "jaxpt")
            shown = "   ".join(f"{side} {rate:7.1f}" for side, rate in rates.items())
            ratio = rates["jaxpt"] / best
            print(f"{name} batch {batch}: tokens/s  {shown}   {ratio:.2f} × the better peer", flush=True)


if __name__ == "__main__":
    main()
