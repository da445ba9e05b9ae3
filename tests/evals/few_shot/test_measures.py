"""Metrics with standard errors, against NumPy and hand-made cases."""

import math

import numpy as np
import pytest

from jaxpt.errors import UserError
from jaxpt.evals.few_shot import measures
from jaxpt.evals.few_shot.task import HarnessTask


def choice(log_probs, gold, group=None, chars=None):
    n = len(log_probs)
    return {
        "id": 0, "gold": gold, "group": group, "log_probs": log_probs, "chars": chars or [1] * n, "tokens": [2] * n,
        "unconditional": [-1.0] * n,
    }  # fmt: skip


def measured(form, metrics, outcomes):
    task = HarnessTask(name="x", form=form, metrics=metrics)
    return measures.measure(task, outcomes)


def test_a_constant_score_gets_half_of_pairs_and_none_strictly():
    found = measured("pair", ("acc",), [choice([-7.0, -7.0], 0)] * 10)
    assert found["acc"].value == 0.5 and found["acc_strict"].value == 0.0


def test_rounding_of_float32_is_a_tie():
    almost = [-100.0, -100.0 - 1e-4]  # float32 has 24 bits: seven digits
    assert measured("pair", ("acc",), [choice(almost, 0)])["acc"].value == 0.5
    assert measured("pair", ("acc",), [choice([-100.0, -100.1], 0)])["acc"].value == 1.0


def test_accuracy_and_its_error():
    outcomes = [choice([-1.0, -2.0], gold) for gold in (0, 0, 0, 1)]
    found = measured("multiple_choice", ("acc",), outcomes)["acc"]
    assert found.value == 0.75 and found.error == pytest.approx(np.std([1, 1, 1, 0], ddof=1) / 2)


def test_length_is_divided_out():
    long_one = choice([-10.0, -6.0], 0, chars=[10, 2])
    found = measured("multiple_choice", ("acc", "acc_norm"), [long_one])
    assert (found["acc"].value, found["acc_norm"].value) == (0.0, 1.0)


def test_f1_is_the_mean_over_the_choices_that_occur():
    found = measured("multiple_choice", ("f1",), [choice([-2.0, -1.0], 1), choice([-3.0, -1.0], 1)])
    assert (found["f1"].value, found["f1"].error) == (1.0, 0.0)


def test_groups():
    outcomes = [choice([-1.0, -2.0], gold, group) for gold, group in [(0, "a"), (0, "a"), (1, "b"), (0, "b"), (0, "c")]]
    found = measured("multiple_choice", ("acc", "acc_all"), outcomes)
    assert found["acc_all"].value == pytest.approx(2 / 3)
    assert found["acc_groups"].value == pytest.approx((1 + 0.5 + 1) / 3)


@pytest.mark.parametrize(("form", "rows", "is_drawn"), [
    ("pair", 2, False), ("pair", 1, True), ("multiple_choice", 2, True), ("loglikelihood", 1, True),
])  # fmt: skip
def test_the_error_of_a_mean_over_groups(form, rows, is_drawn):
    """Of groups that are drawn their spread; of paradigms of pairs that of the rows in each, if there are several."""
    golds = np.array([0, 0, 1] * 10)
    outcomes = [choice([-1.0, -2.0], int(gold), str(i // rows)) for i, gold in enumerate(golds)]
    if form == "loglikelihood":
        outcomes = [outcome | {"is_greedy": outcome["gold"] == 0} for outcome in outcomes]
    groups = (1 - golds).reshape(-1, rows)
    within = np.sqrt((groups.var(1, ddof=1) / rows).sum()) / len(groups) if rows > 1 else 0.0
    between = groups.mean(1).std(ddof=1) / np.sqrt(len(groups))
    found = measured(form, ("acc",), outcomes)["acc_groups"]
    assert found.value == pytest.approx(2 / 3) and found.error == pytest.approx(between if is_drawn else within)


def test_perplexities_are_ratios_of_sums():
    outcomes = [
        {"id": i, "gold": None, "group": None, "log_prob": -nats, "tokens": t, "words": w, "bytes": b}
        for i, (nats, t, w, b) in enumerate([(10.0, 5, 4, 20), (30.0, 10, 6, 40)])
    ]
    found = measured("loglikelihood_rolling", ("bits_per_byte", "word_perplexity", "token_perplexity"), outcomes)
    assert found["bits_per_byte"].value == pytest.approx(40 / 60 / math.log(2))
    assert found["word_perplexity"].value == pytest.approx(math.exp(4.0))
    assert found["token_perplexity"].value == pytest.approx(math.exp(40 / 15))


def test_the_error_of_a_ratio_is_that_of_resampling():
    random = np.random.default_rng(0)
    lengths = random.integers(5, 50, 400)
    outcomes = [
        {"id": 0, "gold": None, "group": None, "log_prob": -float(n * random.normal(3, 1)), "bytes": int(n)}
        for n in lengths
    ]
    found = measured("loglikelihood_rolling", ("bits_per_byte",), outcomes)["bits_per_byte"]
    nats, units = (np.array([one[key] for one in outcomes]) for key in ("log_prob", "bytes"))
    draws = random.integers(400, size=(2000, 400))
    wanted = np.std(-nats[draws].sum(1) / units[draws].sum(1) / math.log(2))
    assert found.error == pytest.approx(wanted, rel=0.05)


def test_written_answers():
    outcomes = [
        {"id": 0, "gold": golds, "group": None, "text": answer, "answer": answer}
        for answer, golds in [("the cat", ["cat", "dog"]), ("birds", ["bird"])]
    ]
    found = measured("generate_until", ("squad",), outcomes)
    assert found["exact_match"][::2] == (50.0, "percent") and found["f1"][::2] == (50.0, "percent")
    numbers = [
        {"id": 0, "gold": [gold], "group": None, "text": "", "answer": answer}
        for answer, gold in [("$1,200.", "1200"), ("3.0", "3"), ("", "5")]
    ]
    assert measured("generate_until", ("number",), numbers)["number"].value == pytest.approx(2 / 3)


def test_rouge_is_a_mean_over_examples():
    outcomes = [
        {"id": 0, "gold": [gold], "group": None, "text": answer, "answer": answer}
        for answer, gold in [("the cat", "the cat sat"), ("a dog ran", "a dog ran"), ("no", "yes")]
    ]
    found = measured("generate_until", ("rouge",), outcomes)["rouge1"]
    each = [80.0, 100.0, 0.0]
    assert found.value == pytest.approx(np.mean(each)) and found.error == pytest.approx(np.std(each, ddof=1) / 3**0.5)


def test_all_values_of_a_metric_have_the_same_resamples(monkeypatch):
    asked = []
    values = {"bleu": 1.0, "other": 2.0}
    monkeypatch.setattr(measures.metrics, "score", lambda metric, answers, golds, **_: asked.append(answers) or values)
    outcomes = [{"id": 0, "gold": ["a"], "group": None, "text": str(i), "answer": str(i)} for i in range(3)]
    assert list(measured("generate_until", ("bleu",), outcomes)) == ["bleu", "other"]
    assert len(asked) == 1 + measures.RESAMPLES


def test_options_of_metrics():
    """Of a mean too the language is that of all answers, not of each alone."""
    outcomes = [
        {"id": 0, "gold": [gold], "group": None, "text": answer, "answer": answer}
        for answer, gold in [("今天下雨了", "今天下雪了"), ("GPT 4", "gpt 4")]
    ]
    task = HarnessTask(name="x", form="generate_until", metrics=("rouge", "exact_match", "bleu"), answers="gold",
                       metric_options={"exact_match": {"ignore_case": True}})  # fmt: skip
    task.check()
    found = measures.measure(task, outcomes)
    assert found["rouge1"].value == pytest.approx((80 + 100) / 2) and found["exact_match"].value == 0.5
    how = measures.computed(task, outcomes)
    assert how["exact_match"] == "ignore_case:yes" and "|tok:zh|" in how["bleu"] and "|tok:char|" in how["rouge"]
    outcomes[0]["gold"] = outcomes[0]["gold"] * 2
    assert measures.computed(task, outcomes)["bleu"].startswith("nrefs:var|")
    with pytest.raises(UserError, match="metric_options: bleu is no metric of this task; it has rouge"):
        HarnessTask(name="x", form="generate_until", metrics=("rouge",), answers="gold",
                    metric_options={"bleu": {"tokenize": "zh"}}).check()  # fmt: skip


def test_correlations():
    outcomes = [{"id": 0, "gold": float(i), "group": None, "cosine": x} for i, x in enumerate([0.1, 0.3, 0.2, 0.9])]
    assert measured("similarity", ("spearman",), outcomes)["spearman"].value == pytest.approx(0.8)
