import pytest

from jaxpt.errors import UserError
from jaxpt.metrics import scheme_of, score

GOLD = [["B-PER", "I-PER", "O", "B-LOC"], ["B-ORG", "O"]]


def test_entities_by_hand():
    predictions = [["B-PER", "I-PER", "O", "B-ORG"], ["B-ORG", "I-ORG"]]  # right, wrong type, too long
    scores = score("span_f1", predictions, GOLD, by_type=True)
    assert scores == {
        "precision": 1 / 3, "recall": 1 / 3, "f1": 1 / 3,
        "LOC/precision": 0, "LOC/recall": 0, "LOC/f1": 0,
        "ORG/precision": 0, "ORG/recall": 0, "ORG/f1": 0,
        "PER/precision": 1, "PER/recall": 1, "PER/f1": 1,
    }  # fmt: skip
    assert score("tag_accuracy", predictions, GOLD) == {"tag_accuracy": 4 / 6}


@pytest.mark.parametrize(
    ("tags", "lenient", "strict"),
    [
        (["I-PER", "I-PER", "O", "B-LOC"], 1, 2 / 3),  # an I- that nothing opens begins an entity for conlleval alone
        (["B-PER", "I-LOC", "O", "B-LOC"], 2 / 5, 1 / 2),  # B-PER I-LOC: two entities, or one and a word in none
        (["B-PER", "B-PER", "O", "B-LOC"], 2 / 5, 2 / 5),  # two neighbours of one type
        (["B-PER", "I-PER", "O", "I-LOC"], 1, 2 / 3),
    ],
)
def test_conlleval_and_strict_iob2(tags, lenient, strict):
    gold = GOLD[:1]
    assert score("span_f1", [tags], gold)["f1"] == pytest.approx(lenient)
    assert score("span_f1", [tags], gold, strict=True)["f1"] == pytest.approx(strict)


def test_entities_do_not_cross_texts():
    gold, predictions = [["O", "B-PER"], ["I-PER", "O"]], [["O", "B-PER"], ["O", "O"]]
    assert score("span_f1", predictions, gold) == pytest.approx({"precision": 1, "recall": 1 / 2, "f1": 2 / 3})


@pytest.mark.parametrize("strict", [False, True])
def test_no_entities(strict):
    zero = {"precision": 0, "recall": 0, "f1": 0}
    assert score("span_f1", [["O", "O"]], [["O", "O"]], strict=strict, by_type=True) == zero
    assert score("span_f1", [["O", "O"]], [["O", "B-X"]], strict=strict) == zero
    assert score("span_f1", [["O", "B-X"]], [["O", "O"]], strict=strict) == zero


@pytest.mark.parametrize("metric", ["span_f1", "tag_accuracy"])
def test_tags_are_as_many_as_words(metric):
    with pytest.raises(UserError, match="row 1: 1 predicted tags for 2 words"):
        score(metric, [GOLD[0], ["O"]], GOLD)


@pytest.mark.parametrize("strict", [False, True])
def test_single_words_of_bilou_are_entities(strict):
    gold, predictions = [["U-A", "U-A"]], [["U-A", "O"]]
    assert score("span_f1", predictions, gold, strict=strict)["f1"] == pytest.approx(2 / 3)
    same = [[["S" + tag[1:] if tag[0] == "U" else tag for tag in row] for row in rows] for rows in (predictions, gold)]
    assert score("span_f1", *same, strict=strict)["f1"] == pytest.approx(2 / 3)


def test_schemes():
    assert scheme_of(["O"]) == scheme_of(["I-A", "O"]) == "IOB2" and scheme_of(["E-A", "I-A"]) == "IOE2"
    assert scheme_of(["S-A", "O"]) == scheme_of(["B-A", "I-A", "E-A"]) == "IOBES" and scheme_of(["L-A"]) == "BILOU"
    with pytest.raises(UserError, match="span_f1: the prefixes B, E, L are of no single scheme: IOB1 has B, I, O; "):
        score("span_f1", [["B-A", "L-A"]], [["B-A", "E-A"]])
    with pytest.raises(UserError, match="span_f1: the tag 'U-A' is none of the scheme IOB2"):
        score("span_f1", [["U-A"]], [["U-A"]], scheme="IOB2")


def test_tags_that_are_no_entities():
    with pytest.raises(UserError, match="the tag 'NOUN' is neither O nor B-TYPE"):
        score("span_f1", [["NOUN"]], [["NOUN"]])
    assert score("tag_accuracy", [["NOUN"], []], [["NOUN"], []]) == {"tag_accuracy": 1}
