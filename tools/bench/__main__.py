"""Time and memory of a training step of jaxpt beside transformers on torch, on this machine, in one interleaved run.

    python tools/bench [CASE …] [--gpu] [--rounds 5] [--steps 3] [--dtype float32|bfloat16] [--compile] [--largest]
                       [--sides jaxpt,torch.compile] [--budget SECONDS] [--plain-malloc] [--layers N] [--out bench]
    python tools/bench [CASE …] --packing SENTENCES [--vocab FILE] …

Both sides have one device, the same weights, the same random batch, AdamW (torch's fused one), clipped gradients and
dropout; torch has its scaled dot-product attention where the model's class takes it. Before the first step the losses
without dropout have to be equal. Each round runs some steps of each side in turn, and a figure is the median over all
of a side's steps, with quartiles. Each side is a process of its own; memory is the peak of the GPU, or of the process
on a CPU. Where it is too small for all sides at once, they run one after the other, and the result says so
("interleaved": false). `--compile` adds torch.compile, `--sides` names the sides; jaxpt, which makes the weights, is
always among them. `--budget` is wall time of a case, preparation included: no round is begun after it, and a side of
torch that is not ready then is not measured. `--largest` doubles the rows until a side's memory is full (GPUs only), up
to 8,192. A case that fails is an "error" in the JSON, a side that fails is in the "errors" of its case; the exit code
is then 1. The JSON is written after each case.

Without names of cases those for a GPU are run where JAX finds one, and those for a CPU elsewhere; on a GPU in bfloat16.

jaxpt computes a masked LM's logits at the masked positions alone, AutoModelForMaskedLM at all. So there is a side more
of torch whose head sees the masked positions alone; what the other one computes besides is said beside its ratio.

On a CPU jaxpt has malloc keep what is freed for the next step (`jaxpt.runtime.process`), and so has torch here, which
comes without: `--plain-malloc` leaves torch as it comes. The JSON says it of each side ("keeps_freed_memory").

MFU = FLOPs / seconds / the chip's bf16 peak, in bfloat16 alone: float32 has other peaks, by what its products are
rounded to. FLOPs are three times those of the forward pass's matrix products, of which the masked-LM head counts on
masked positions alone and causal attention by half; all sides have the same. Where the peak is not known (CPUs) there
is none.

`--packing` compares jaxpt with itself on sentences of real lengths: see `packing.py`. It needs TensorFlow, as all
preparation of data does, and no torch. The rest needs torch and transformers for the other side, and no TensorFlow.
Cases: `python tools/bench --list`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import compare
import packing
import show
import worker
from cases import CASES, CPU, GPU, Case

from jaxpt.cli.parsing import Parser, count, positive

Result = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    a = parser.parse_args(arguments)
    if a.list:
        print("\n".join(f"{name}: {case}" for name, case in CASES.items()))
        return 0
    if unknown := [name for name in a.case if name not in CASES]:
        parser.error(f"no case {unknown[0]!r}; there are {', '.join(CASES)}")
    if a.packing and (a.sides or a.budget):
        parser.error("--packing measures jaxpt alone, on all sentences: neither --sides nor --budget goes with it")
    if not a.gpu and not (a.case and a.dtype):  # else the device decides nothing
        a.gpu = compare.platform() == "gpu"
    names = a.case or (["bert_base_16x128"] if a.packing else list(GPU if a.gpu else CPU))
    cases = {name: dataclasses.replace(CASES[name], layers=a.layers) for name in names}
    if a.packing and (odd := [name for name, case in cases.items() if case.objective not in packing.TOKENIZERS]):
        parser.error(f"--packing is for encoders and encoder-decoders; {odd[0]} is {cases[odd[0]].objective}")
    if a.packing and not a.packing.is_file():
        parser.error(f"--packing: there is no file {a.packing}")
    if a.largest and (platform := compare.platform()) != "gpu":
        parser.error(f"--largest wants a GPU, this is a {platform}: where its memory is full the host is stopped too")
    results = run(cases, _packed(a) if a.packing else _compared(a), a.out)
    return 1 if any("error" in result or result.get("errors") for result in results) else 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python tools/bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("case", nargs="*", help="by default those for a GPU if there is one, else those for a CPU")
    parser.add_argument("--gpu", action="store_true", help="the cases for a GPU, in bfloat16, wherever JAX computes")
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--steps", type=count, default=3, help="of each side in a round; with --packing of packed rows")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"))
    parser.add_argument("--compile", action="store_true", help="sides with torch.compile")
    parser.add_argument("--sides", type=sides, help=f"of {', '.join(compare.NAMES)}; *-masked are of masked LMs")
    parser.add_argument("--budget", type=positive, metavar="SECONDS", help="wall time of a case")
    parser.add_argument("--largest", action="store_true", help="the largest batch of each side")
    parser.add_argument("--plain-malloc", action="store_true", help="torch with glibc's malloc as it comes")
    parser.add_argument("--layers", type=count, help="of each model, instead of its own: to try things out")
    parser.add_argument("--packing", type=Path, metavar="SENTENCES", help="CoNLL-U, or a sentence a line; .gz too")
    parser.add_argument(
        "--vocab", type=Path, action="append", default=[], metavar="FILE",
        help="of --packing: WordPiece's (.txt) for encoders, SentencePiece's (.model) for encoder-decoders; both may "
        "be given.\nBy default one is trained on the sentences.",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, help="writes OUT.json and OUT.png")
    parser.add_argument("--list", action="store_true")
    return parser


def sides(text: str) -> list[str]:
    """Names of sides with commas between them: an argument's type."""
    names = text.split(",")
    if unknown := [name for name in names if name not in compare.NAMES]:
        raise argparse.ArgumentTypeError(f"no side {unknown[0]!r}; there are {', '.join(compare.NAMES)}")
    return names


def run(cases: dict[str, Case], measure: Callable[[str, Case], Result], out: Path | None) -> list[Result]:
    """Measures each case; what fails is an error of its own.

    Args:
      cases: by name.
      measure: (name, case) → result.
      out: its .json is written after each case, its .png at the end.

    Returns:
      The results, or {"case", "error"}.
    """
    results: list[Result] = []
    for name, case in cases.items():
        try:
            results.append(measure(name, case))
        except Exception as error:
            results.append({"case": name, "error": f"{type(error).__name__}: {error}"})
        print(show.table(results[-1]), flush=True)
        if out:
            out.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    if out and any("error" not in result for result in results):
        show.picture(results, out.with_suffix(".png"))
    return results


def _compared(a: argparse.Namespace) -> Callable[[str, Case], Result]:
    dtype = _dtype(a)

    def measure(name: str, case: Case) -> Result:
        programs = compare.sides_of(case, a.compile, a.plain_malloc, a.sides)
        result = compare.measured(name, case, programs, dtype, a.rounds, a.steps, a.budget)
        for side in result["sides"] if a.largest else ():
            try:
                result["sides"][side]["largest_rows"] = compare.largest(side, programs[side], case, dtype)
            except worker.Failed as error:  # the times are kept
                result["sides"][side]["largest_error"] = str(error)
        return result

    return measure


def _packed(a: argparse.Namespace) -> Callable[[str, Case], Result]:
    from jaxpt.runtime import process

    process.keep_freed_memory()  # as the command line does
    return lambda name, case: packing.measured(name, case, a.packing, _dtype(a), a.rounds, a.steps, a.vocab)


def _dtype(a: argparse.Namespace) -> str:
    return a.dtype or ("bfloat16" if a.gpu else "float32")


if __name__ == "__main__":
    sys.exit(main())
