"""Taggers without a network: each word's most frequent tag, and logistic regression on affixes and neighbours.

The features are those of Ratnaparkhi's tagger (https://aclanthology.org/W96-0213) without the tags before the word:
the word, its affixes and signs, two words on each side. Each word is tagged by itself. Tags of entities (B-X, I-X, O)
are tags as others; the metric reads an I-X that continues nothing by its own rules.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from jaxpt.errors import UserError
from jaxpt.evals.simple_models.base import Candidate, SimpleModel, Splits
from jaxpt.metrics.majority import most_frequent_tags

_PENALTIES = (1e-6, 1e-5)  # α of stochastic gradient descent
_EPOCHS = 5
_LEARNING_RATE = 0.5  # constant, with the average of all steps' weights; EWT: 94.1 of 5 epochs, L-BFGS 94.1 of 150
_EDGES = ("<", "<"), (">", ">")


def word_features(words: Sequence[str]) -> Iterator[list[str]]:
    """What the classifier sees of each word of a sentence.

    Example:
      >>> " ".join(next(word_features(["Tea", "is", "hot"])))
      'word=tea begins=t begins=te begins=tea ends=a ends=ea ends=tea -2=< -1=< +1=is +2=hot -1ends=< +1ends=is \
is_first is_capital'
    """
    padded = [word.lower() for word in (*_EDGES[0], *words, *_EDGES[1])]
    for place, word in enumerate(words):
        before2, before, lower, after, after2 = padded[place : place + 5]
        signs = {
            "is_first": place == 0, "is_capital": word[:1].isupper(), "is_upper": word.isupper(),
            "has_digit": any(map(str.isdigit, word)), "has_hyphen": "-" in word,
        }  # fmt: skip
        yield [
            f"word={lower}",
            *(f"begins={lower[:n]}" for n in (1, 2, 3) if n <= len(lower)),
            *(f"ends={lower[-n:]}" for n in (1, 2, 3, 4) if n <= len(lower)),
            f"-2={before2}", f"-1={before}", f"+1={after}", f"+2={after2}",
            f"-1ends={before[-3:]}", f"+1ends={after[-3:]}",
            *itertools.compress(signs, signs.values()),
        ]  # fmt: skip


def words_of(splits: Splits) -> dict[str, list[list[str]]]:
    """The words of each row."""
    task: Any = splits.task
    return {split: [task.words(row.row, row.where) for row in rows] for split, rows in splits.rows.items()}


def _of_words(splits: Splits) -> Iterator[Candidate]:
    """Each word's most frequent tag."""
    words, tags = splits.shared("words", lambda: words_of(splits)), splits.targets["train"]
    predictions = {split: most_frequent_tags(words["train"], tags, words[split]) for split in splits.scored}
    yield Candidate("", len({word for sentence in words["train"] for word in sentence}), predictions)


def _logistic(splits: Splits) -> Iterator[Candidate]:
    """Logistic regression by averaged stochastic gradient descent, one for each penalty."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import SGDClassifier

    words = splits.shared("words", lambda: words_of(splits))
    features = {
        split: [of_word for sentence in words[split] for of_word in word_features(sentence)] for split in splits.rows
    }
    tags = list(itertools.chain.from_iterable(splits.targets["train"]))
    if len(set(tags)) < 2:
        raise UserError(f"data.path: all words of the training set have the tag {tags[0]!r}; wants two tags or more")
    counts = CountVectorizer(analyzer=list, binary=True)
    x = {"train": counts.fit_transform(features["train"])}
    x |= {split: counts.transform(features[split]) for split in splits.scored}
    for penalty in _PENALTIES:
        model = SGDClassifier(
            loss="log_loss", alpha=penalty, learning_rate="constant", eta0=_LEARNING_RATE, average=True,
            max_iter=_EPOCHS, tol=None, random_state=splits.seed, n_jobs=-1,
        ).fit(x["train"], tags)  # fmt: skip
        predictions = {split: _sentences(model.predict(x[split]).tolist(), words[split]) for split in splits.scored}
        yield Candidate(f"α={penalty:g}", x["train"].shape[1], predictions)


def _sentences(tags: Sequence[str], words: Sequence[Sequence[str]]) -> list[list[str]]:
    """The tags of all words as those of each sentence."""
    of_word = iter(tags)
    return [list(itertools.islice(of_word, len(sentence))) for sentence in words]


MODELS = (
    SimpleModel("most_frequent_tag", "each word's most frequent tag", _of_words, is_quick=True),
    SimpleModel("affixes_logistic", "affixes, signs and neighbours of a word with logistic regression", _logistic),
)
