"""Trivial answers beside a model's; the byte n-gram model, against the formula counted by hand."""

import math

import numpy as np
import pytest

from jaxpt.evals.few_shot.baselines import NGrams, baselines
from jaxpt.evals.few_shot.examples import Example
from jaxpt.evals.few_shot.task import HarnessTask
from jaxpt.metrics.base import METRICS, Metric


def test_the_most_frequent_number_and_the_shortest_choice():
    task = HarnessTask(name="x", form="multiple_choice", metrics=("acc", "acc_norm", "acc_mutual_info"))
    examples = [
        Example(i, ("", ""), (" longer", " no"), ("longer", "no"), gold, unconditional="")
        for i, gold in enumerate([0, 0, 1])
    ]
    found = baselines(task, examples)
    assert round(found["majority"]["acc"].value, 3) == 0.667 and round(found["shortest"]["acc"].value, 3) == 0.333
    assert "acc_mutual_info" not in found["majority"] and "ngram" not in found


def test_the_n_gram_model_answers_as_a_model_does():
    task = HarnessTask(name="x", form="pair", metrics=("acc",))
    pairs = [Example(0, ("", ""), ("the cats are", "the cats is"), ("the cats are", "the cats is"), 0)]
    found = baselines(task, pairs, NGrams(b"the cats are here. the dogs are there. " * 5))
    assert found["ngram"]["acc"].value == 1.0 and "majority" not in found


def test_what_an_n_gram_model_of_bytes_does_not_know_of_tokens_is_left_out():
    task = HarnessTask(name="x", form="loglikelihood", metrics=("acc", "perplexity"))
    examples = [Example(i, ("the",), (" cat",), gold=0, group=str(i)) for i in range(2)]
    assert list(baselines(task, examples, NGrams(b"the cat " * 5))["ngram"]) == ["perplexity"]


def test_the_most_frequent_answer_is_written():
    task = HarnessTask(name="x", form="generate_until", metrics=("exact_match",))
    examples = [Example(i, ("",), ("",), gold=[gold]) for i, gold in enumerate("aab")]
    assert round(baselines(task, examples)["majority"]["exact_match"].value, 3) == 0.667


def test_a_metric_of_ones_own_sees_no_made_up_likelihoods(monkeypatch):
    def gain(outcomes):
        return [outcome["log_probs"][0] - outcome["unconditional"][0] for outcome in outcomes]

    monkeypatch.setitem(METRICS, "lab.gain", Metric("lab.gain", gain, ("multiple_choice",), aggregation="mean"))
    task = HarnessTask(name="x", form="multiple_choice", metrics=("acc", "lab.gain"))
    examples = [Example(0, ("", ""), (" longer", " no"), ("longer", "no"), 0, unconditional="")]
    found = baselines(task, examples, NGrams(b"no longer " * 5))
    assert {name: "lab.gain" in of for name, of in found.items()} == {"majority": 0, "shortest": 0, "ngram": 1}
    assert list(baselines(task.model_copy(update={"metrics": ("lab.gain",)}), examples)) == []


def test_a_metric_of_ones_own_scores_the_most_frequent_answer(monkeypatch):
    def length(outcomes):
        return [len(outcome["answer"]) for outcome in outcomes]

    monkeypatch.setitem(METRICS, "lab.length", Metric("lab.length", length, ("generate_until",), aggregation="mean"))
    task = HarnessTask(name="x", form="generate_until", metrics=("lab.length",))
    examples = [Example(i, ("",), ("",), gold=[gold]) for i, gold in enumerate(("aa", "aa", "b"))]
    assert baselines(task, examples)["majority"]["lab.length"].value == 2


def by_hand(text, context, byte, order):
    """Witten–Bell by loops over the text."""
    probability = 1 / 256
    for n in range(order):
        if n > len(context):
            break
        head = context[len(context) - n :]
        followers = [text[i + n] for i in range(len(text) - n) if text[i : i + n] == head]
        if followers:
            kinds = len(set(followers))
            probability = (followers.count(byte) + kinds * probability) / (len(followers) + kinds)
    return probability


@pytest.mark.parametrize("order", [1, 2, 4])
def test_it_is_the_formula(order):
    text = b"the cat sat on the mat, the rat ate the cat"
    model = NGrams(text, order)
    for context, after in [("the ", "rat"), ("", "q"), ("on the", " mat"), ("zz", "the")]:
        wanted = sum(
            math.log(by_hand(text, (context + after[:i]).encode(), after.encode()[i], order)) for i in range(len(after))
        )
        assert model.likelihoods([context], [after])[0].log_prob == pytest.approx(wanted, abs=1e-9)


def test_the_probabilities_of_all_bytes_sum_to_one():
    model = NGrams(b"abracadabra" * 3, 3)
    texts = [bytes([b]).decode("latin-1") for b in range(128)]
    total = sum(math.exp(one.log_prob) for one in model.likelihoods(["ab"] * 128, texts))
    rest = 128 * by_hand(b"abracadabra" * 3, b"ab", 200, 3)  # bytes that are no characters of one byte
    assert total + rest == pytest.approx(1.0)


def test_a_text_is_scored_as_one_piece():
    model = NGrams(b"hello world, hello there", 4)
    whole = model.rolling(["hello"])[0]
    parts = model.likelihoods(["", "he"], ["he", "llo"])
    assert whole.log_prob == pytest.approx(sum(one.log_prob for one in parts)) and whole.tokens == 5
    assert np.isfinite(model.rolling([""])[0].log_prob)
