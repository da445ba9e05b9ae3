"""Equal to the official scorers: golden.json has their values (`tests/metrics/oracle.py` says how they were made)."""

import json
from pathlib import Path

import pytest

from jaxpt.metrics import score

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text("utf-8"))
ROWS, VALUES = GOLDEN["rows"], GOLDEN["values"]


def equal(ours, official):
    assert ours == pytest.approx(official, rel=1e-12)


@pytest.mark.parametrize("metric", ["squad", "web_questions", "natural_questions"])
def test_squad_1_1(metric):
    equal(score(metric, ROWS["predictions"], ROWS["answers"]), VALUES["squad"])


def test_record():
    equal(score("record", ROWS["predictions"], ROWS["answers"]), VALUES["record"])


def test_trivia_qa():
    official = VALUES["trivia_qa"]
    equal(
        score("trivia_qa", ROWS["predictions"], ROWS["answers"]),
        {"exact_match": official["em"], "f1": official["f1"]},
    )


@pytest.mark.parametrize(("name", "threshold"), [("squad_v2", 1.0), ("squad_v2_half", 0.5)])
def test_squad_2_0(name, threshold):
    """Ties of the no-answer probabilities, and answers without words, are among the rows."""
    options = {"no_answer": ROWS["no_answer"], "threshold": threshold, "best": True}
    equal(score("squad_v2", ROWS["predictions"], ROWS["or_none"], **options), VALUES[name])


def test_squad_2_0_without_probabilities():
    ours = score("squad_v2", ROWS["predictions"], ROWS["or_none"])
    equal(ours, {name: value for name, value in VALUES["squad_v2"].items() if "best" not in name})


def test_f1_and_multirc_of_t5_count_unparseable_text_as_wrong():
    labels, predicted = ROWS["labels"], ROWS["predicted"]
    assert -1 in predicted
    equal(score("f1", predicted, labels)["f1"], VALUES["f1_invalid"]["f1"] / 100)
    ours = score("multirc", predicted, labels, groups=ROWS["groups"])
    equal(100 * ours["f1a"], VALUES["multirc_t5"]["f1"])
    equal(100 * ours["exact_match"], VALUES["multirc_t5"]["exact_match"])


def test_bleu_and_rouge_of_t5():
    long = [" . ".join(texts) for texts in ROWS["answers"]]
    said = [" . ".join(reversed(texts)) for texts in ROWS["answers"][1:] + ROWS["answers"][:1]]
    equal(score("bleu", said, long, tokenize="intl"), VALUES["bleu"])
    ours = score("rouge", said, long, stemmer=False)
    assert ours["rougeL"] < ours["rougeLsum"]  # sentences count
    equal({name: ours[name] for name in VALUES["rouge"]}, VALUES["rouge"])


def test_multirc_of_the_superglue_script():
    plain = [max(p, 0) for p in ROWS["predicted"]]
    ours = score("multirc", plain, ROWS["labels"], groups=ROWS["groups"])
    equal(ours, {"f1a": VALUES["multirc"]["f1_a"], "exact_match": VALUES["multirc"]["exact_match"]})
