"""How fast each objective's preprocessors are: examples per CPU-second of one core, as a ratio to plain masked LM.

    python tools/bench_objectives.py TEXT.jsonl[.gz] [--documents 300] [--length 512] [--seconds 2] [--only NAME …]

Timed is all that a training step waits for: from the index to the batch. Rows are measured in turn, twice, and the
faster time is taken: what else the machine does weighs little. Rows below a third of plain masked LM are marked.
"""

import argparse
import gzip
import itertools
import os
import tempfile
from pathlib import Path

import command_line
from bench_data_peers import BATCH, measured

from jaxpt.config import Config, build
from jaxpt.data import datasets

_NO_PAIRS = {"kind": "masked_lm", "next_sentence": False}
_SENTENCES = {"permute_sentences": 1.0, "mask_rate": 0.0}
_TOKENS = {"permute_sentences": 0.0, "mask_length": "subword"}
ROWS = {
    "bert": {
        "masked_lm": _NO_PAIRS,
        "masked_lm, words": _NO_PAIRS | {"unit": "word"},
        "masked_lm, n-grams": _NO_PAIRS | {"unit": "ngram"},
        "masked_lm, spans": _NO_PAIRS | {"unit": "span", "rounding": "up"},
        "masked_lm, RoBERTa": _NO_PAIRS | {"inputs": "sentences", "rounding": "random", "random_specials": False},
        "masked_lm, next sentence": {"kind": "masked_lm"},
        "masked_lm, sentence order": _NO_PAIRS | {"sentence_order": True},
        "span_boundary": {"kind": "span_boundary"},
        "replaced_token": {"kind": "replaced_token", "generator": {"layers": 1}},
        "unilm": {"kind": "unilm"},
    },
    "gpt2": {
        "causal_lm": {"kind": "causal_lm"},
        "causal_lm, own documents": {"kind": "causal_lm", "reset_at_documents": True},
        "prefix_lm": {"kind": "prefix_lm"},
        "fill_in_the_middle": {"kind": "fill_in_the_middle"},
    },
    "t5": {
        "span_corruption": {"kind": "span_corruption"},
        **{
            f"denoising, {noise}": {"kind": "denoising", "noise": noise}
            for noise in ("replace_spans", "drop", "bert_style", "mass_style", "deshuffle", "prefix_lm")
        },
        "bart": {"kind": "bart"},
        "bart, infilling": {"kind": "bart", "permute_sentences": 0.0},
        "bart, token masking": {"kind": "bart", **_TOKENS},
        "bart, token deletion": {"kind": "bart", **_TOKENS, "replace": "nothing"},
        "bart, sentences": {"kind": "bart", **_SENTENCES},
        "bart, rotation": {"kind": "bart", **_SENTENCES, "permute_sentences": 0.0, "rotate": 1.0},
        "mass": {"kind": "mass"},
        "ul2": {"kind": "ul2"},
        "salient_spans": {"kind": "salient_spans"},
    },
    "xlnet": {"permutation_lm": {"kind": "permutation_lm", "memory": False}},
}  # fmt: skip
SIZE = 8192
MODELS = {
    "xlnet": {"mlp_dim": 8},
    "bert": {"mlp_dim": 8, "max_positions": 4096, "token_types": 6},
    "gpt2": {},
    "t5": {"mlp_dim": 8, "head_dim": 8},
}
TOKENIZERS = {
    "bert": {"kind": "wordpiece"},
    "xlnet": {"kind": "wordpiece"},
    "gpt2": {"kind": "sentencepiece", "extra_ids": 256},
    "t5": {"kind": "sentencepiece", "extra_ids": 256},
}


@command_line.one_line()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--documents", type=int, default=300)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=2.0)
    rows = list(dict.fromkeys(itertools.chain(*ROWS.values())))
    parser.add_argument("--only", nargs="*", default=[], choices=rows, help="rows beside plain masked LM")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # one core
    wanted = [(family, name) for family, rows in ROWS.items() for name in rows]
    wanted = [(family, name) for family, name in wanted if not arguments.only or name in ["masked_lm", *arguments.only]]
    rates: dict[str, list[float]] = {name: [] for _, name in wanted}
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.jsonl"
        with (gzip.open if arguments.text.endswith(".gz") else open)(arguments.text, "rt", encoding="utf-8") as file:
            text.write_text("".join(itertools.islice(file, arguments.documents)), encoding="utf-8")
        streams = {name: stream(family, name, text, arguments.length) for family, name in wanted}
        for _, (name, batches) in itertools.product(range(2), streams.items()):
            rates[name].append(measured(batches, arguments.seconds))
    best = {name: max(found) for name, found in rates.items()}
    print(f"length {arguments.length}, batches of {BATCH}, examples per CPU-second of one core")
    for name, rate in best.items():
        share = rate / best["masked_lm"]
        print(f"{name:28} {rate:9,.0f}   {share:5.2f} × plain masked LM{'' if share >= 1 / 3 else '   below a third'}")


def stream(family: str, name: str, text: Path, length: int):
    """The training batches of a row."""
    config = configuration(family, name, text, length)
    return datasets.prepare(config, save=False, workers=1).train.batches()


def configuration(family: str, name: str, text: Path, length: int) -> Config:
    """The recipe of a row."""
    objective = ROWS[family][name]
    kind = "electra" if objective["kind"] == "replaced_token" else family
    return build(
        {
            "model": {"kind": kind, "vocab_size": SIZE, "layers": 1, "embed_dim": 8, "heads": 1, **MODELS[family]},
            "objective": objective,
            "data": {"path": str(text), "cache_dir": str(text.parent), "tokenizer": TOKENIZERS[family],
                     "length": length, "batch_size": BATCH, "readers": 1},
        }
    )  # fmt: skip


if __name__ == "__main__":
    main()
