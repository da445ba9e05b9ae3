"""A mixture-of-experts layer beside Transformers' MixtralSparseMoeBlock on this machine: time of forward and backward.

    python tools/bench_moe.py [--rows 4] [--length 256] [--width 256] [--hidden 512] [--experts 8] [--top 2]

All have the same weights and inputs, in float32, and must agree in output and gradient of the input. They take turns in
one process; a figure is the median, a ratio the median of the ratios of the turns. `eager` is a loop over experts,
`grouped_mm` torch's grouped product. Ours is compiled with the options of a training step.
"""

from __future__ import annotations

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
import torch
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

from jaxpt.models.decoder_only import DecoderOnlyConfig
from jaxpt.models.moe import MoE
from jaxpt.parallel import compiler
from jaxpt.runtime import process

THEIR = ("eager", "grouped_mm")


def weights(rng, experts, width, hidden):
    shapes = {"router": (width, experts), "up": (experts, width, hidden), "down": (experts, hidden, width)}
    shapes["gate"] = shapes["up"]
    return {name: (rng.normal(size=shape) / shape[-2] ** 0.5).astype(np.float32) for name, shape in shapes.items()}


def ours(given, x, dy, top):
    """A function that runs forward and backward; it gives the output and the gradient of the input."""
    experts, width, hidden = given["up"].shape
    config = DecoderOnlyConfig(
        vocab_size=128, layers=1, embed_dim=width, heads=1, mlp_dim=hidden, experts=experts, experts_per_token=top,
        router_normalized=True, dtype="float32",
    )  # fmt: skip
    init = jax.nn.initializers.zeros
    layer = MoE(config, "silu", init, init, jnp.float32, gated=True)

    @compiler.jit
    def run(kernels, x):
        params = {name: {"kernel": kernel} for name, kernel in kernels.items()}
        y, pull = jax.vjp(lambda params, x: layer.apply({"params": params}, x, None, False)[0], params, x)
        return y, pull(dy)

    def once():
        y, (_, dx) = jax.block_until_ready(run(given, x))
        return np.asarray(y), np.asarray(dx)

    return once


def theirs(given, x, dy, top, implementation):
    """The same of their class."""
    experts, width, hidden = given["up"].shape
    config = MixtralConfig(
        hidden_size=width, intermediate_size=hidden, num_local_experts=experts, num_experts_per_tok=top
    )
    config._experts_implementation = implementation
    block = MixtralSparseMoeBlock(config)
    with torch.no_grad():
        block.gate.weight.copy_(torch.tensor(given["router"].T))
        gate_up = np.concatenate([given["gate"], given["up"]], -1)
        block.experts.gate_up_proj.copy_(torch.tensor(gate_up.swapaxes(1, 2)))
        block.experts.down_proj.copy_(torch.tensor(given["down"].swapaxes(1, 2)))
    x, dy = torch.tensor(x, requires_grad=True), torch.tensor(dy)

    def once():
        block.zero_grad()
        x.grad = None
        y = block(x)
        y.backward(dy)
        return y.detach().numpy(), x.grad.numpy()

    return once


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"rows": 4, "length": 256, "width": 256, "hidden": 512, "experts": 8, "top": 2, "repeats": 7}
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    args = parser.parse_args()
    process.keep_freed_memory()  # as `jaxpt train`; of both sides
    rng = np.random.default_rng(0)
    given = weights(rng, args.experts, args.width, args.hidden)
    x, dy = (rng.normal(size=(args.rows, args.length, args.width)).astype(np.float32) for _ in range(2))
    works = {"jaxpt": ours(given, x, dy, args.top)}
    works |= {name: theirs(given, x, dy, args.top, name) for name in THEIR}
    wanted = works["eager"]()
    for name, work in works.items():
        for found, exact in zip(work(), wanted, strict=True):
            np.testing.assert_allclose(found, exact, atol=1e-4 * np.abs(exact).max(), err_msg=name)
    seconds = {name: [] for name in works}
    for _ in range(args.repeats):
        for name, work in works.items():
            begun = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - begun)
    for name, times in seconds.items():
        ratio = statistics.median(other / own for own, other in zip(seconds["jaxpt"], times, strict=True))
        print(f"{name}: {statistics.median(times) * 1e3:.1f} ms, {ratio:.2f} × jaxpt's time")


if __name__ == "__main__":
    main()
