"""Tokens per second of greedy decoding on this machine, next to transformers on torch, in one interleaved run.

    python tools/bench_generate.py [--cases gpt2,t5,llama] [--batches 1,16] [--sides jaxpt,transformers] [--rounds 3]
                                   [--dtype float32|bfloat16] [--budget SECONDS] [--layers N] [--out bench.json]

Cases: GPT-2 124M, T5-base and Llama 3.2 1B, with random weights. On a GPU all three are run in bfloat16 with batches of
1 and 16; on a CPU GPT-2 and T5 in float32 with batches of 1 and 8. A TPU is used by jaxpt alone. Sides:

  jaxpt                 `jaxpt.decode.engine.Engine`
  transformers          `generate` with its default cache
  transformers-static   its static cache, not compiled
  transformers-compile  its static cache, the decoding step compiled by torch.compile; on a CPU only if it is named

Each round runs each side once, in turn; a figure is the median of the rounds. Compilation and warm-up are not counted
(`first_seconds` has them), the reading of the prompts is. Float32 products are rounded alike on a GPU: to TF32, the
default of JAX. `--budget` is wall time of a case, with preparation: rounds stop when it is used up, and no further side
is prepared. A side that fails or is not prepared has an "error" in the JSON, and the exit code is then 1. Needs torch
and transformers for the other sides.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxpt.cli.parsing import Parser, count, positive

CONFIGS = Path(__file__).parents[1] / "configs" / "models"
CASES = {"gpt2": "gpt2_124m", "t5": "t5_base", "llama": "llama3_2_1b"}
"""{case: file of `configs/models`}."""
SIDES = ("jaxpt", "transformers", "transformers-static", "transformers-compile")
DEFAULTS = {
    "gpu": {"cases": tuple(CASES), "batches": (1, 16), "sides": SIDES, "dtype": "bfloat16"},
    "tpu": {"cases": tuple(CASES), "batches": (1, 16), "sides": SIDES[:1], "dtype": "bfloat16"},
    "cpu": {"cases": ("gpt2", "t5"), "batches": (1, 8), "sides": SIDES[:3], "dtype": "float32"},
}
"""What is run, by the platform of JAX's default device."""
PROMPT, NEW, ROUNDS = 128, 128, 3

Result = dict[str, Any]
Run = Callable[[], None]
"""Generates once; returns when all tokens are there."""
clock = time.perf_counter


def measured(
    case: str,
    batch: int,
    sides: Sequence[str],
    dtype: str,
    rounds: int = ROUNDS,
    budget: float | None = None,
    *,
    prompt: int = PROMPT,
    new: int = NEW,
    layers: int | None = None,
) -> Result:
    """A case on some sides, in turn.

    Args:
      case: a key of `CASES`.
      batch: number of prompts, all decoded at once.
      sides: of `SIDES`.
      dtype: "float32" or "bfloat16", of weights and computation.
      rounds: how often each side runs, at most.
      budget: seconds of wall time, preparation included; None: no limit. The first round is always finished.
      prompt: tokens of a prompt.
      new: tokens generated for each prompt.
      layers: of the model, instead of its own: to try things out.

    Returns:
      {"case", "batch", …, "rounds_run", "sides": {side: {"tokens_per_second", "median", "quartiles", "seconds",
      "first_seconds"} or {"error"}}, "ratio": jaxpt's tokens per second / those of the best other side, or None}.
    """
    begun = clock()
    _share_gpu()
    _free_memory()
    model = model_config(case, dtype, layers)
    peers = Peers(model, batch, prompt, new)

    def prepare(side: str) -> Run:
        return ours(model, batch, prompt, new) if side == "jaxpt" else peers.side(side)

    result = {
        "case": case, "model": CASES[case], "layers": model.layers, "batch": batch, "prompt": prompt, "new": new,
        "dtype": dtype, **_device(), "rounds": rounds, "budget": budget,
    }  # fmt: skip
    seconds, first, errors, rounds_run = timed(sides, prepare, rounds, budget, begun)
    rates = {side: batch * new / statistics.median(times) for side, times in seconds.items()}
    result["sides"] = {
        side: {"error": errors[side]} if side in errors else {
            "tokens_per_second": rates[side], "median": statistics.median(seconds[side]),
            "quartiles": _quartiles(seconds[side]), "seconds": seconds[side], "first_seconds": first[side],
        } for side in sides
    }  # fmt: skip
    others = [rate for side, rate in rates.items() if side != "jaxpt"]
    result |= {"rounds_run": rounds_run, "ratio": rates["jaxpt"] / max(others) if others and "jaxpt" in rates else None}
    result |= {"versions": _versions(), "wall_seconds": clock() - begun}
    return result


def timed(
    sides: Sequence[str], prepare: Callable[[str], Run], rounds: int, budget: float | None, begun: float
) -> tuple[dict[str, list[float]], dict[str, float], dict[str, str], int]:
    """Prepares each side and runs it once, then runs those that work in turn.

    Args:
      sides: names.
      prepare: makes a side's run.
      rounds: at most.
      budget: seconds from `begun` on; a round is begun and a side prepared only within them, but for the first ones.
      begun: by `clock`.

    Returns:
      ({side: seconds of each round}, {side: seconds of preparation and first run}, {side: error}, rounds run).
    """
    deadline = math.inf if budget is None else begun + budget
    runs: dict[str, Run] = {}
    seconds: dict[str, list[float]] = {}
    first: dict[str, float] = {}
    errors: dict[str, str] = {}
    for side in sides:
        if runs and clock() > deadline:
            errors[side] = f"not prepared: the budget of {budget:g} s was used up before"
            continue
        start = clock()
        try:
            run = prepare(side)
            run()
        except Exception as error:
            errors[side] = _line(error)
            continue
        runs[side], first[side] = run, clock() - start
    done = 0
    while runs and done < rounds and (not done or clock() < deadline):
        for side, run in list(runs.items()):
            start = clock()
            try:
                run()
            except Exception as error:
                errors[side] = _line(error)
                del runs[side]
                seconds.pop(side, None)
                continue
            seconds.setdefault(side, []).append(clock() - start)
        done += 1
    return seconds, first, errors, done


def model_config(case: str, dtype: str, layers: int | None = None) -> Any:
    """jaxpt's configuration of a case."""
    import yaml

    from jaxpt.config import ModelConfig, resolve

    fields = yaml.safe_load((CONFIGS / f"{CASES[case]}.yaml").read_text())["model"]
    fields |= {"dtype": dtype} | ({"layers": layers} if layers else {})
    return resolve(fields["kind"], "jaxpt.models", ModelConfig)(**fields)


def _ids(model: Any, batch: int, prompt: int) -> Any:
    """Random prompts [batch, prompt], the same on all sides."""
    import numpy as np

    return np.random.default_rng(0).integers(5, min(30_000, model.vocab_size), (batch, prompt))


def ours(model: Any, batch: int, prompt: int, new: int) -> Run:
    """Makes a run of jaxpt's engine."""
    import jax

    from jaxpt.decode.engine import Engine, Prompt
    from jaxpt.decode.options import Options
    from jaxpt.models.network import Network

    network = Network(model.build())
    engine = Engine(network, jax.jit(network.init)(jax.random.key(0)), batch_size=batch)
    ids = _ids(model, batch, prompt).tolist()
    prompts = [Prompt(row) if model.family == "decoder" else Prompt([0], row) for row in ids]
    options = Options(max_new_tokens=new)

    def run() -> None:
        _check_count(sum(len(one.tokens) for one in engine.generate(prompts, options)), batch * new)

    return run


class Peers:
    """The sides of transformers, which share one model."""

    def __init__(self, model: Any, batch: int, prompt: int, new: int) -> None:
        """`model`: jaxpt's configuration; the rest as `measured`."""
        self._model, self._batch, self._prompt, self._new = model, batch, prompt, new
        self._made: Any = None

    def side(self, name: str) -> Run:
        """Makes a run of one of `SIDES`."""
        import torch

        model, device = self._network()
        ids = torch.from_numpy(_ids(self._model, self._batch, self._prompt)).to(device)
        mask, length = torch.ones_like(ids), self._new + (self._prompt if self._model.family == "decoder" else 1)
        options: dict[str, Any] = {}
        if name != "transformers":
            options = {"cache_implementation": "static", "disable_compile": name != "transformers-compile"}
        compiles = name == "transformers-compile"
        if compiles:
            from transformers import CompileConfig

            torch._dynamo.reset()
            options["compile_config"] = CompileConfig()
            options["compile_config"]._compile_all_devices = True  # else on GPUs alone
        graphs = torch._dynamo.utils.counters["stats"] if compiles else {}
        graphs_before = graphs["unique_graphs"] if compiles else 0

        def run() -> None:
            with torch.no_grad():
                out = model.generate(
                    ids, attention_mask=mask, max_new_tokens=self._new, do_sample=False, pad_token_id=0, **options
                )
            if device.type == "cuda":
                torch.cuda.synchronize()
            _check_count(out.shape[0] * out.shape[1], self._batch * length)
            if compiles and graphs["unique_graphs"] == graphs_before:
                raise RuntimeError("torch.compile compiled nothing: transformers did not use it here")

        return run

    def _network(self) -> tuple[Any, Any]:
        """(transformers' model of the same configuration with random weights, its device)"""
        if self._made is None:
            import jax
            import torch
            import transformers

            from jaxpt.hf.directory import family_of
            from jaxpt.hf.options import to_json
            from jaxpt.models.network import Network

            on_gpu = jax.default_backend() == "gpu"
            if on_gpu and not torch.cuda.is_available():
                raise RuntimeError("jaxpt computes on the GPU, and this torch sees none")
            torch.manual_seed(0)
            torch.set_num_threads(len(os.sched_getaffinity(0)))
            torch.set_float32_matmul_precision("high")  # TF32 as JAX
            device = torch.device("cuda" if on_gpu else "cpu")
            network = Network(self._model.build())
            keys = to_json(family_of(self._model), network) | {"decoder_start_token_id": 0, "pad_token_id": 0}
            config = transformers.AutoConfig.for_model(**keys)
            decoder = self._model.family == "decoder"
            of_class = transformers.AutoModelForCausalLM if decoder else transformers.AutoModelForSeq2SeqLM
            with device:
                model = of_class.from_config(config, dtype=getattr(torch, self._model.dtype)).eval()
            model.generation_config.eos_token_id = None  # all rows have the same length
            count, wanted = sum(x.numel() for x in model.parameters()), network.count_params()
            if abs(count - wanted) > 0.01 * wanted:
                raise RuntimeError(f"jaxpt's model has {wanted:,} parameters, transformers' {count:,}")
            self._made = model, device
        return self._made


def _check_count(count: int, wanted: int) -> None:
    if count != wanted:
        raise RuntimeError(f"{count} tokens came of {wanted}")


def _share_gpu() -> None:
    """JAX takes what it needs of a GPU's memory, not three quarters at once, as torch has the same one."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def _free_memory() -> None:
    """What is left of models measured before is given back."""
    gc.collect()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()


def _device() -> dict[str, str]:
    import jax

    return {"platform": jax.default_backend(), "device": jax.devices()[0].device_kind}


def _versions() -> list[str]:
    """Of what is loaded."""
    names = ("jax", "torch", "transformers")
    return [f"{name} {sys.modules[name].__version__}" for name in names if name in sys.modules]


def _quartiles(values: Sequence[float]) -> list[float]:
    return statistics.quantiles(values, n=4, method="inclusive")[::2] if len(values) > 1 else [values[0]] * 2


def _line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"[:300]


def table(result: Mapping[str, Any]) -> str:
    """Lines of a case."""
    limit = "" if result["rounds_run"] == result["rounds"] else f" of {result['rounds']}: the budget was used up"
    lines = [
        f"{result['case']} batch {result['batch']}: {result['new']} tokens after {result['prompt']}, "
        f"{result['dtype']}, {result['device']}, {result['rounds_run']} rounds{limit}"
    ]
    width = max(map(len, result["sides"]))
    for side, one in result["sides"].items():
        if "error" in one:
            lines.append(f"  {side:{width}} {one['error']}")
            continue
        low, high = one["quartiles"]
        lines.append(
            f"  {side:{width}} {one['tokens_per_second']:9,.1f} tokens/s, {one['median']:.3f} s ({low:.3f}–{high:.3f}),"
            f" first run {one['first_seconds']:.0f} s"
        )
    if result["ratio"] is not None:
        lines.append(f"  jaxpt has {result['ratio']:.2f} × the tokens per second of the best other side")
    return "\n".join(lines)


def chosen(text: str, known: Sequence[str], what: str) -> list[str]:
    """Names that are separated by commas.

    Raises:
      argparse.ArgumentTypeError: one is not known.

    Example:
      >>> chosen("jaxpt,transformers", SIDES, "side")
      ['jaxpt', 'transformers']
    """
    names = text.split(",")
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"no {what} {unknown[0]!r}; there are {', '.join(known)}")
    return list(dict.fromkeys(names))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python tools/bench_generate.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cases", type=lambda text: chosen(text, tuple(CASES), "case"), help=", ".join(CASES))
    parser.add_argument("--batches", type=lambda text: [count(one) for one in text.split(",")])
    parser.add_argument("--sides", type=lambda text: chosen(text, SIDES, "side"), help=", ".join(SIDES))
    parser.add_argument("--dtype", choices=("float32", "bfloat16"))
    parser.add_argument("--prompt", type=count, default=PROMPT, help="tokens of a prompt")
    parser.add_argument("--new", type=count, default=NEW, help="tokens generated for each prompt")
    parser.add_argument("--rounds", type=count, default=ROUNDS)
    parser.add_argument("--budget", type=positive, metavar="SECONDS", help="of a case, preparation included")
    parser.add_argument("--layers", type=count, help="of each model, instead of its own: to try things out")
    parser.add_argument("--out", type=Path, help="JSON, written after each case")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    a = _parser().parse_args(arguments)
    _share_gpu()
    defaults = DEFAULTS[_device()["platform"]]
    cases, batches = a.cases or defaults["cases"], a.batches or defaults["batches"]
    sides, dtype = a.sides or defaults["sides"], a.dtype or defaults["dtype"]
    results: list[Result] = []
    for case in cases:
        for batch in batches:
            options = {"prompt": a.prompt, "new": a.new, "layers": a.layers}
            results.append(measured(case, batch, sides, dtype, a.rounds, a.budget, **options))
            print(table(results[-1]), flush=True)
            if a.out:
                a.out.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if any("error" in one for result in results for one in result["sides"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
