"""Words a second of word vectors, beside gensim's on the same text, in one process and in turn.

    python tools/bench_vectors.py configs/pretrain/word2vec.yaml data.path=TEXT.jsonl.gz --rounds 3

A round is `--steps` steps of the recipe (the batches made from the records included), then gensim's pass over as many
words with one worker. Words are those of the text, before any is left out. "per core" divides by the CPU time of all
threads. Without gensim (pip install gensim) it is left out.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import command_line
import jax

from jaxpt.data.preparing import prepare
from jaxpt.study.recipes import load
from jaxpt.train import state, step


def timed(words: float, work: Callable[[], Any]) -> tuple[float, float]:
    """(words a second, words a second of CPU time) of some work."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return words / (time.perf_counter() - wall), words / (time.process_time() - cpu)


class Ours:
    """Training steps of a recipe."""

    def __init__(self, config: Any, data: Any) -> None:
        self._setup, self._batches = state.setup(config), data.train.batches()
        self._update = step.make_train_step(self._setup, config.objective)
        self._state = self._setup.init()
        self.words_per_step = data.text_per_row * config.data.batch_size

    def __call__(self, steps: int) -> None:
        """Makes so many steps."""
        with self._setup.use():
            for batch in itertools.islice(self._batches, steps):
                self._state, metrics = self._update(self._state, step.put(batch, self._setup))
            jax.block_until_ready(metrics)


def gensim_pass(config: Any, data: Any, words: float) -> Callable[[], Any]:
    """gensim's pass over the first records, about so many words of them, with the recipe's settings."""
    from gensim.models import Word2Vec

    h = config.objective
    store, names = data.stores["train"], data.tokenizer.tokens(range(data.vocabulary.size))
    texts, total = [], 0
    for text in _texts(store):
        texts.append([names[i] for i in text])
        total += len(text)
        if total >= words:
            break
    is_tree = h.classifier == "hierarchical_softmax"
    model = Word2Vec(
        vector_size=config.model.embed_dim, window=h.window, min_count=1, sample=h.subsample, sg=h.kind == "skip_gram",
        hs=is_tree, negative=0 if is_tree else h.negatives, workers=1, alpha=config.optimizer.learning_rate,
    )  # fmt: skip
    model.build_vocab([names, *texts])
    return lambda: model.train(texts, total_examples=len(texts), epochs=1)


def _texts(store: Any) -> Iterator[Any]:
    lengths, values, end = store.lengths("tokens"), store.values("tokens"), 0
    for length in lengths.tolist():
        yield values[end : end + length].tolist()
        end += length


@command_line.one_line()
def main() -> None:
    """Prints the median of the rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--steps", type=command_line.count, default=100)
    parser.add_argument("--rounds", type=command_line.count, default=3)
    arguments = parser.parse_args()
    config = load(arguments.recipe, [*arguments.overrides, "run_dir=/nonexistent"])
    data = prepare(config, save=False)
    ours = Ours(config, data)
    ours(5)  # compiles
    words = ours.words_per_step * arguments.steps
    programs = {"jaxpt": lambda: ours(arguments.steps)}
    try:
        programs["gensim"] = gensim_pass(config, data, words)
    except ModuleNotFoundError:
        print("gensim is not installed")
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for _ in range(arguments.rounds):
        for name, program in programs.items():
            rates[name].append(timed(words, program))
    print(f"{words:,.0f} words a round, median of {arguments.rounds}")
    for name, of_program in rates.items():
        wall, core = (statistics.median(column) for column in zip(*of_program))
        print(f"{name:8} {wall:12,.0f} words/s {core:12,.0f} words/s per core")


if __name__ == "__main__":
    main()
