"""Examples per second of fine-tuning BERT-base on this machine, beside transformers' Trainer, in one interleaved run.

    python tools/bench_finetune.py [--data SST-2/train.tsv.gz --vocab vocab.txt] [--rows 8] [--length 64] [--rounds 5]

BERT-base with random weights in float32, AdamW, clipped gradients, dropout, 32 examples in each update. Ours is the
trainer's step on packed rows (`data.batch_examples`) with the loader; theirs is Trainer with DataCollatorWithPadding on
the same token ids, shuffled, and grouped by length. Each round runs some updates of each. Theirs are drawn evenly from
all widths of an epoch's batches; of the first update of a call nothing is counted. A figure is the median of the
rounds. With --one-core both run on one core and its CPU-seconds are counted: the ratios of a machine that is shared,
where torch's threads wait for one another. Without --data there are 20,000 synthetic texts of min(geometric(1/9), 56)
words, two special tokens besides.

Needs torch, transformers and accelerate (`pip install --no-deps accelerate psutil` leaves torch as it is).
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

EXAMPLES = 32
clock = time.perf_counter
_MODEL = {
    "kind": "bert", "vocab_size": 30522, "layers": 12, "embed_dim": 768, "heads": 12, "mlp_dim": 3072,
    "max_positions": 512, "dtype": "float32",
}  # fmt: skip


def ours(recipe: Path) -> tuple[list[np.ndarray], Callable[[int, int], list[float]]]:
    """(token ids of the training set, a function that runs updates and gives the seconds of each)."""
    import jax

    from jaxpt.data import datasets
    from jaxpt.study import recipes
    from jaxpt.train import state, step

    config = recipes.load(recipe)
    data = datasets.prepare(config, report=lambda line: print(line, flush=True), save=False)
    setup = state.setup(config)
    update, batches = step.make_train_step(setup, config.objective), data.train.batches()
    held = [setup.init()]

    def run(updates: int, seed: int) -> list[float]:
        seconds = []
        with setup.use():
            for _ in range(updates):
                begun = clock()
                held[0], metrics = update(held[0], step.put(next(batches), setup))
                jax.block_until_ready((held[0], metrics))
                seconds.append(clock() - begun)
        return seconds

    tokens = data.stores["train"].fetch(np.arange(len(data.stores["train"])))["tokens"]
    return np.split(tokens.values, np.cumsum(tokens.lengths)[:-1]), run


def theirs(texts: Sequence[np.ndarray], folder: str, is_grouped: bool) -> Callable[[int, int], list[float]]:
    """A function that runs updates of Trainer and gives the seconds of each."""
    import tokenizers
    import torch
    import transformers
    from transformers.trainer_pt_utils import get_length_grouped_indices

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    pads = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel({"[PAD]": 0})), pad_token="[PAD]"
    )
    model = transformers.BertForSequenceClassification(transformers.BertConfig())

    class Timed(transformers.TrainerCallback):
        def __init__(self) -> None:
            self.ends: list[float] = []

        def on_step_end(self, *_: object, **__: object) -> None:
            self.ends.append(clock())

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *_: object) -> torch.utils.data.Sampler:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    def run(updates: int, seed: int) -> list[float]:
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(texts))
        if is_grouped:
            generator = torch.Generator().manual_seed(seed)
            lengths = [len(text) for text in texts]
            order = np.array(get_length_grouped_indices(lengths, EXAMPLES, generator=generator))
        whole = order[: len(order) // EXAMPLES * EXAMPLES].reshape(-1, EXAMPLES)
        widths = np.array([max(len(texts[i]) for i in batch) for batch in whole])
        by_width = whole[np.argsort(widths, kind="stable")]
        at = ((np.arange(updates) + rng.random()) / updates * len(whole)).astype(int)  # of every width its share
        drawn = by_width[[at[-1], *rng.permutation(at)]].ravel()
        rows = [{"input_ids": texts[i].tolist(), "attention_mask": [1] * len(texts[i]), "labels": 1} for i in drawn]
        options = transformers.TrainingArguments(
            folder, per_device_train_batch_size=EXAMPLES, max_steps=updates + 1, learning_rate=2e-5, report_to=[],
            save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        timed = Timed()
        collator = transformers.DataCollatorWithPadding(pads)
        InOrder(model, options, train_dataset=rows, data_collator=collator, callbacks=[timed]).train()
        return np.diff(timed.ends).tolist()

    return run


def recipe(folder: Path, a: argparse.Namespace) -> Path:
    """Writes the recipe of our side, and without --data the texts."""
    import yaml

    data, tokenizer = a.data, {"kind": "wordpiece", "lowercase": True}
    if data is None:
        rng = np.random.default_rng(0)
        words = np.minimum(rng.geometric(1 / 9, 20_000), 56)
        lines = (f"{' '.join(f'w{w}' for w in rng.integers(0, 500, n))}\t{n % 2}\n" for n in words)
        data = str(folder / "train.tsv")
        Path(data).write_text("sentence\tlabel\n" + "".join(lines))
    tokenizer |= {"path": a.vocab} if a.vocab else {"vocab_size": 2048}
    tree = {
        "task": {"kind": "classification", "text": "sentence"},
        "model": _MODEL,
        "objective": {"kind": "classification", "examples": a.examples},
        "data": {
            "path": data, "tokenizer": tokenizer, "length": a.length, "batch_size": a.rows, "packing": True,
            "batch_examples": EXAMPLES, "cache_dir": str(folder / "cache"),
        },
        "optimizer": {"kind": "adamw", "learning_rate": 2e-5},
        "train": {"steps": 1000},
    }  # fmt: skip
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data")
    parser.add_argument("--vocab")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--examples", type=int, default=16, help="most examples in a row")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=8, help="updates of each side in a round")
    parser.add_argument("--ours-only", action="store_true")
    parser.add_argument("--one-core", action="store_true")
    a = parser.parse_args()
    if a.one_core:
        global clock
        clock = time.process_time
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        texts, run = ours(recipe(Path(folder), a))
        print(f"{len(texts):,} texts of {np.mean([len(text) for text in texts]):.1f} tokens", flush=True)
        sides = {"jaxpt": run}
        if not a.ours_only:
            sides |= {"Trainer": theirs(texts, folder, False), "Trainer, by length": theirs(texts, folder, True)}
        sides["jaxpt"](2, 0)
        rates: dict[str, list[float]] = {side: [] for side in sides}
        for number in range(a.rounds):
            for side, one in sides.items():
                rates[side].append(EXAMPLES / statistics.mean(one(a.updates, number)))
            print("   ".join(f"{side} {found[-1]:.2f}" for side, found in rates.items()), flush=True)
    medians = {side: statistics.median(found) for side, found in rates.items()}
    print(f"examples/s, {a.rows} rows of {a.length}, medians of {a.rounds} rounds:")
    for side, rate in medians.items():
        print(
            f"  {side:20} {rate:6.2f}   {rate / medians['jaxpt']:.2f} × jaxpt's; jaxpt {medians['jaxpt'] / rate:.2f} ×"
        )


if __name__ == "__main__":
    main()
