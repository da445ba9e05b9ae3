"""Trivial answers beside a model's."""

from jaxpt.evals.few_shot.baselines import baselines
from jaxpt.evals.few_shot.examples import Example
from jaxpt.evals.few_shot.ngram import NGrams
from jaxpt.evals.few_shot.task import HarnessTask


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


def test_the_most_frequent_answer_is_written():
    task = HarnessTask(name="x", form="generate_until", metrics=("exact_match",))
    examples = [Example(i, ("",), ("",), gold=[gold]) for i, gold in enumerate("aab")]
    assert round(baselines(task, examples)["majority"]["exact_match"].value, 3) == 0.667
