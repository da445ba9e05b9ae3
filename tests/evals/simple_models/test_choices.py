"""Multiple choice by counts: the most similar choice, and models that rank the choices of a row."""

import random

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import cosine_similarity

from jaxpt.data.tasks.multiple_choice import MultipleChoiceTask
from jaxpt.evals.simple_models import choices
from tests.evals.simple_models.helpers import candidates, splits_of

WORDS = ["cat", "dog", "house", "tree", "river", "stone", "bird", "moon"]
TASK = MultipleChoiceTask(text="context", choices="endings", most_choices=4)


def rows(count, seed):
    """The right ending shares a word with the context, and says so; there are two to four."""
    draw, made = random.Random(seed), []
    for _ in range(count):
        context, size = draw.sample(WORDS, 3), draw.randint(2, 4)
        endings = [" ".join(draw.sample(WORDS, 3)) for _ in range(size)]
        right = draw.randrange(size)
        endings[right] = f"{context[0]} indeed {context[1]}" if draw.random() < 0.8 else endings[right]
        made.append({"context": " ".join(context), "endings": endings, "label": right})
    return made


TRAIN, VALIDATION = rows(60, 0), rows(30, 1)
SPLITS = splits_of(TASK, train=TRAIN, validation=VALIDATION)


def vectors():
    texts = [row["context"] for row in TRAIN for _ in row["endings"]] + [e for row in TRAIN for e in row["endings"]]
    return TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\b\w+\b").fit(texts)


def test_the_most_similar_choice():
    (candidate,) = candidates(choices.MODELS, "similarity", SPLITS).values()
    of_text = vectors().transform
    for row, chosen in zip(VALIDATION, candidate.predictions["validation"], strict=True):
        cosines = cosine_similarity(of_text([row["context"]]), of_text(row["endings"]))[0]
        assert cosines[chosen] >= cosines.max() - 1e-12


def test_a_ranking_model_takes_the_choice_with_the_highest_output():
    of_text = vectors().transform

    def features(row):
        a = np.repeat(of_text([row["context"]]).toarray(), len(row["endings"]), 0)
        b = of_text(row["endings"]).toarray()
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        return np.concatenate([a, b, a * b, abs(a - b), ((a * b).sum(1) / np.maximum(lengths, 1e-12))[:, None]], 1)

    x = np.concatenate([features(row) for row in TRAIN])
    y = [int(n == row["label"]) for row in TRAIN for n in range(len(row["endings"]))]
    found = candidates(choices.MODELS, "words_logistic", SPLITS)
    for c, candidate in zip((1.0, 10.0), found.values(), strict=True):
        model = LogisticRegression(C=c, max_iter=200).fit(x, y)
        expected = [int(model.decision_function(features(row)).argmax()) for row in VALIDATION]
        assert candidate.predictions["validation"] == expected
        assert TASK.score(expected, SPLITS.targets["validation"], "accuracy")["accuracy"] > 0.7
