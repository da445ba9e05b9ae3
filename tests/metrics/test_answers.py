"""The rules by hand; tests/metrics/test_official.py compares with the official scripts."""

import pytest

from jaxpt.errors import UserError
from jaxpt.metrics import score
from jaxpt.metrics.answers import normalize, normalize_trivia_qa


@pytest.mark.parametrize(
    ("text", "squad", "trivia_qa"),
    [
        ("The  Cat", "cat", "cat"),
        ("the U.S. team's", "us teams", "u s team s"),
        ("a an the", "", ""),
        ("well-known", "wellknown", "well known"),
        ("the-end", "theend", "end"),
        ("‘x_y’", "‘xy’", "x y"),
        ("Über\tan\nÄtna", "über ätna", "über ätna"),
        ("?!", "", ""),
    ],
)
def test_normal_forms(text, squad, trivia_qa):
    assert normalize(text) == squad
    assert normalize_trivia_qa(text) == trivia_qa


def test_several_golds_and_ties():
    assert score("squad", ["big cat"], [["cat", "big dog", "cat"]]) == pytest.approx({"exact_match": 0, "f1": 200 / 3})
    assert score("squad", ["cat cat dog"], ["cat dog dog"])["f1"] == pytest.approx(200 / 3)  # words as often as in both


def test_empty_answers():
    assert score("squad", [""], ["cat"]) == {"exact_match": 0, "f1": 0}
    assert score("squad", ["the"], ["a"]) == {"exact_match": 100, "f1": 0}  # as the script of 1.1: no words, no overlap
    assert score("squad_v2", ["the"], ["a"]) == {  # 2.0: an answer without words is none
        "exact": 100, "f1": 100, "HasAns_exact": 100, "HasAns_f1": 100,
    }  # fmt: skip


@pytest.mark.parametrize("metric", ["squad", "trivia_qa", "record"])
def test_questions_without_answer_are_of_squad_2(metric):
    with pytest.raises(UserError, match=r"question 1 has no answer; .* squad_v2"):
        score(metric, ["a", ""], [["a"], []])


def test_questions_without_answer():
    scores = score("squad_v2", ["", "a dog", "cat"], [[], [], ["cat"]])
    assert scores == pytest.approx(
        {"exact": 200 / 3, "f1": 200 / 3, "HasAns_exact": 100, "HasAns_f1": 100, "NoAns_exact": 50, "NoAns_f1": 50}
    )


def test_only_questions_of_one_kind():
    assert set(score("squad_v2", [""], [[]])) == {"exact", "f1", "NoAns_exact", "NoAns_f1"}
    assert set(score("squad_v2", [""], ["x"])) == {"exact", "f1", "HasAns_exact", "HasAns_f1"}


def test_the_best_threshold():
    predictions, targets = ["cat", "dog", "pig"], [["cat"], [], ["pig"]]
    scores = score("squad_v2", predictions, targets, no_answer=[0.1, 0.6, 0.3], best=True)
    assert scores["exact"] == pytest.approx(200 / 3)
    assert scores["best_exact"] == 100 and scores["best_exact_thresh"] == 0.3
    chosen = score("squad_v2", predictions, targets, no_answer=[0.1, 0.6, 0.3], threshold=0.3)
    assert chosen["exact"] == 100
    with pytest.raises(UserError, match="the best threshold needs `no_answer`"):
        score("squad_v2", predictions, targets, best=True)


def test_a_query_of_record_counts_once():
    rows = ["x", "y", "z"], [["x"], ["q"], ["z"]]
    assert score("record", *rows, groups=[1, 1, 2]) == {"exact_match": 1, "f1": 1}
    assert score("record", *rows)["exact_match"] == pytest.approx(2 / 3)


def test_one_example():
    assert score("web_questions", ["Jazmyn"], [["jazmyn", "Jaxon"]]) == {"exact_match": 100, "f1": 100}
