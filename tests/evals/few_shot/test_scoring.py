"""Outcomes, from a model that is written by hand."""

import numpy as np
import pytest

from jaxpt.evals.few_shot import scoring
from jaxpt.evals.few_shot.examples import Example
from jaxpt.evals.few_shot.scoring import LoglikelihoodResult, extracted
from jaxpt.evals.few_shot.task import HarnessTask


class ByLength:
    """The longer a text, the less likely; writes its prompt backwards."""

    def likelihoods(self, contexts, continuations):
        return [
            LoglikelihoodResult(-float(len(a) / 10 + len(b)), len(b.split()), len(b) < 4)
            for a, b in zip(contexts, continuations)
        ]

    def rolling(self, texts):
        return self.likelihoods([""] * len(texts), texts)

    def completions(self, prompts, max_new_tokens, stop):
        return [prompt[::-1] for prompt in prompts]

    def embeddings(self, texts):
        return np.array([[len(text), 1.0] for text in texts])


def of(form, **example):
    task = HarnessTask(name="x", form=form, extract=r"(\d+)" if form == "generate_until" else None)
    return scoring.score(task, ByLength(), [Example(7, **example)])[0]


def test_choices_have_their_scores_with_and_without_the_context():
    found = of(
        "multiple_choice", contexts=("0123456789",) * 2, continuations=(" yes", " no"), choices=("yes", "no"), gold=1,
        unconditional="",
    )  # fmt: skip
    assert found["log_probs"] == [-5.0, -4.0] and found["unconditional"] == [-4.0, -3.0]
    assert found["chars"] == [3, 2] and found["tokens"] == [1, 1] and (found["id"], found["gold"]) == (7, 1)


def test_of_each_form():
    assert of("loglikelihood", contexts=("",), continuations=(" so",))["is_greedy"] is True
    rolled = of("loglikelihood_rolling", contexts=("",), continuations=("two wörds",))
    assert (rolled["log_prob"], rolled["words"], rolled["bytes"]) == (-9.0, 2, 10)
    cleaned = of("loglikelihood_rolling", contexts=("",), continuations=("a, b",), counted=" a , b ")
    assert (cleaned["log_prob"], cleaned["words"], cleaned["bytes"]) == (-4.0, 5, 7)  # an empty one at each end
    written = of("generate_until", contexts=("a 21",), continuations=("",), gold=["12"])
    assert (written["text"], written["answer"]) == ("12 a", "12")
    near = of("similarity", contexts=("", ""), continuations=("ab", "cd"), gold=5.0)
    assert near["cosine"] == pytest.approx(1.0)


def test_the_last_match_is_the_answer():
    assert extracted("1 then 2.", r"\d") == "2" and extracted("none", r"\d") == "" and extracted(" x ", None) == "x"
    assert extracted("abc(x)", "abc(x)?") == "" and extracted("abcx", "abc(x)?") == "x"
