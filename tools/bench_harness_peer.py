"""The peers of tools/bench_harness.py: lm-eval's HFLM, and loops over masks in torch. Imports no jax.

    python tools/bench_harness_peer.py make choices|masks DIR VOCAB      # a random model and its tokenizer
    python tools/bench_harness_peer.py run choices|sentences|masks DIR PAIRS.json BATCH

`run` reads lines from stdin: each runs everything once and prints {"seconds", "scores"}. On one core the seconds are
those of its CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path


def make(kind: str, directory: str, vocabulary: Path) -> None:
    """GPT-2 124M or BERT-base with random weights."""
    import torch
    import transformers as hf

    torch.manual_seed(0)
    if kind == "choices":
        files = {"vocab": vocabulary / "encoder.json", "merges": vocabulary / "vocab.bpe"}
        tokenizer = hf.GPT2TokenizerFast(**{name: str(path) for name, path in files.items()})
        model = hf.GPT2LMHeadModel(hf.GPT2Config())
    else:
        tokenizer = hf.BertTokenizerFast(vocab=str(vocabulary / "vocab.txt"), do_lower_case=True)
        model = hf.BertForMaskedLM(hf.BertConfig())
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def choices(directory: str, pairs: list[tuple[str, str]], batch: int):
    """lm-eval's log-likelihoods."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    lm = HFLM(pretrained=directory, device="cpu", dtype="float32", batch_size=batch)
    requests = [Instance("loglikelihood", {}, tuple(pair), i) for i, pair in enumerate(pairs)]
    return lambda: [score for score, _ in lm.loglikelihood(requests, disable_tqdm=True)]


def masks(directory: str, pairs: list[tuple[str, str]], at_once: int | None):
    """A sentence's rows, one for each of its tokens, in forward passes of `at_once`, None: all; all logits are made."""
    import torch
    import transformers as hf

    tokenizer = hf.AutoTokenizer.from_pretrained(directory)
    model = hf.AutoModelForMaskedLM.from_pretrained(directory).eval()

    def score(sentence: str) -> float:
        ids, total = torch.tensor(tokenizer(sentence)["input_ids"]), 0.0
        for at in torch.arange(1, len(ids) - 1).split(at_once or len(ids)):
            row, rows = torch.arange(len(at)), ids.repeat(len(at), 1)
            rows[row, at] = tokenizer.mask_token_id
            with torch.no_grad():
                logits = model(input_ids=rows, attention_mask=torch.ones_like(rows)).logits[row, at]
            total += float(torch.log_softmax(logits, -1)[row, ids[at]].sum())
        return total

    return lambda: [score(sentence) for _, sentence in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["make", "run"])
    parser.add_argument("kind", choices=["choices", "sentences", "masks"])
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("file", metavar="VOCAB|PAIRS.json", type=Path)
    parser.add_argument("batch", metavar="BATCH", type=int, nargs="?", help="of run")
    arguments = parser.parse_args()
    kind, directory, file = arguments.kind, arguments.directory, arguments.file
    if arguments.command == "make":
        make(kind, directory, file)
        return
    if arguments.batch is None and kind == "choices":
        parser.error("run choices wants BATCH")
    import torch

    cores = len(os.sched_getaffinity(0))
    clock = time.process_time if cores == 1 else time.perf_counter
    torch.set_num_threads(cores)
    pairs = json.loads(file.read_text())
    if kind == "choices":
        run = choices(directory, pairs, arguments.batch)
    else:
        run = masks(directory, pairs, 1 if kind == "masks" else None)
    for _ in sys.stdin:
        begun = clock()
        scores = run()
        answer = {"seconds": clock() - begun, "scores": scores}
        print("RESULT " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
