"""Words and their tags: what a row has to be, and what is said of one that is not."""

import collections
import json

import numpy as np
import pytest

from jaxpt.data.tables import Row
from jaxpt.data.tasks.base import LocatedRow
from jaxpt.data.tasks.tagging import TaggingTask, repaired
from jaxpt.errors import UserError

NER = TaggingTask(tags="ner", labels=("B-LOC", "B-PER", "I-LOC", "I-PER", "O"))


def row(words, tags, **more):
    return Row(3, {"tokens": words, "ner": tags, **more})


def test_iob1_becomes_iob2():
    assert repaired(["I-PER", "B-PER", "I-PER", "O", "I-LOC"]) == ["B-PER", "B-PER", "I-PER", "O", "B-LOC"]
    assert repaired(["B-PER", "I-LOC", "I-LOC"]) == ["B-PER", "B-LOC", "I-LOC"]
    assert repaired([]) == []


def test_repair_changes_no_entity():
    """seqeval reads the repaired tags as the same entities."""
    get_entities = pytest.importorskip("seqeval.metrics.sequence_labeling").get_entities
    rng = np.random.default_rng(0)
    for _ in range(200):
        tags = rng.choice(["O", "B-X", "I-X", "B-Y", "I-Y"], 9).tolist()
        assert get_entities(repaired(tags)) == get_entities(tags)
        assert repaired(repaired(tags)) == repaired(tags)


def test_schemes():
    tags = ["O", "I-PER"]
    assert NER.target(row(["a", "b"], tags), "f: line 3") == ["O", "B-PER"]
    with pytest.raises(UserError, match=r"^f: line 3: word 2 has I-PER after O; wants B-PER, or task.scheme: auto"):
        NER.model_copy(update={"scheme": "iob2"}).target(row(["a", "b"], tags), "f: line 3")
    assert NER.model_copy(update={"scheme": "none"}).target(row(["a", "b"], tags), "") == tags
    with pytest.raises(UserError, match="tag 'NOUN' is neither O, B-X nor I-X"):
        NER.model_copy(update={"scheme": "iob2"}).labels_in(row(["a"], ["NOUN"]), "f")


@pytest.mark.parametrize(
    ("rows", "scheme"),
    [
        ([["I-A", "I-A", "O"], ["I-A", "E-A", "I-A"]], "IOE2"),  # the first row alone could be IOB1
        ([["B-A", "I-A", "E-A"], ["S-A", "I-A"]], "IOBES"),
        ([["B-A", "L-A"], ["U-A", "O", "I-A"]], "BILOU"),
    ],
)
def test_an_inner_word_is_no_beginning_where_the_scheme_has_ends(rows, scheme):
    task = TaggingTask(tags="ner")
    read = [(row([str(n) for n in range(len(tags))], tags), "") for tags in rows]
    known = task.before_labels(iter(read))
    assert [known.labels_in(*one) for one in read] == rows
    task = task.model_copy(update={"labels": known.labels})
    assert [task.target(*one) for one in read] == rows and task.span_scheme == scheme
    assert task.score(rows, rows, "span_f1")["f1"] == 1


def test_iob1_is_known_by_all_rows():
    read = [(row(["a", "b"], tags), "") for tags in (["I-A", "I-A"], ["I-A", "B-A"])]
    known = TaggingTask(tags="ner").before_labels(iter(read))
    assert [known.labels_in(*one) for one in read] == [["B-A", "I-A"], ["B-A", "B-A"]]


def test_a_named_scheme():
    bilou = TaggingTask(tags="ner", labels=("O", "U-A", "B-A", "L-A"), scheme="bilou", metrics=("span_f1",))
    assert bilou.score([["U-A", "O"]], [["U-A", "U-A"]], "span_f1")["f1"] == pytest.approx(2 / 3)
    assert bilou.computed("span_f1", []) == "micro average over entities, BILOU, conlleval's rules"
    strict = bilou.model_copy(update={"metric_options": (("span_f1.strict", True),)})
    assert strict.score([["B-A", "O"]], [["U-A", "O"]], "span_f1")["f1"] == 0
    assert strict.computed("span_f1", []).endswith("BILOU, strict")
    with pytest.raises(UserError, match=r"^f: tag 'S-A' is neither O, B-X, I-X, L-X nor U-X \(task.scheme: bilou\)"):
        bilou.labels_in(row(["a"], ["S-A"]), "f")
    for labels in (("B-A", "E-A", "L-A"), ("NOUN", "VERB")):
        with pytest.raises(UserError, match=r"^task\.metrics: span_f1: the "):
            TaggingTask(labels=labels, metrics=("span_f1",)).check_metrics()


def test_bad_rows_in_one_line():
    with pytest.raises(
        UserError, match=r"^f: line 3: 3 words \(tokens\) and 2 tags \(ner\); wants a tag for each word"
    ):
        NER.target(row(["a", "b", "c"], ["O", "O"]), "f: line 3")
    with pytest.raises(UserError, match=r"tag 'B-ORG' is none of task.labels; did you mean B-"):
        NER.target(row(["a"], ["B-ORG"]), "f: line 3")
    with pytest.raises(UserError, match=r"^f: line 3: column 'tokens' \(task.tokens\) has no words"):
        NER.target(row([], []), "f: line 3")
    with pytest.raises(UserError, match="word 2, 'b', has an empty tag"):
        NER.target(row(["a", "b"], ["O", ""]), "f: line 3")
    with pytest.raises(UserError, match=r"column 'tokens' \(task.tokens\) wants a list, got int"):
        NER.words(row(7, []), "f: line 3")


def test_labels():
    assert NER.target(row("New York", "B-LOC I-LOC"), "") == ["B-LOC", "I-LOC"]  # of TSV
    for labels in (("O",), ("O", "O")):
        with pytest.raises(ValueError, match="labels"):
            TaggingTask(labels=labels)
    with pytest.raises(ValueError, match="'NOUN' is neither O, B-X nor I-X"):
        TaggingTask(labels=("O", "NOUN"), scheme="iob2")


def test_decisions_and_answers():
    outputs = [np.log([[0.7, 0.1, 0.1, 0.05, 0.05]]), np.log([[0.1, 0.1, 0.6, 0.1, 0.1]])]
    assert NER.decide(outputs) == ["B-LOC", "I-LOC"]
    found = NER.answer(outputs, ["New", "York"])
    assert found == {"tokens": ["New", "York"], "tags": ["B-LOC", "I-LOC"], "probabilities": [0.7, 0.6]}
    gold = [["B-LOC", "I-LOC"]]
    assert NER.score([NER.decide(outputs)], gold, "tag_accuracy") == {"tag_accuracy": 1.0}
    assert NER.score([NER.decide(outputs)], gold, "span_f1")["f1"] == 1.0


def test_losses_and_words_with_another_tag():
    outputs = [np.log([[0.7, 0.1, 0.1, 0.05, 0.05]]), np.log([[0.1, 0.1, 0.6, 0.1, 0.1]])]
    assert NER.labels[0] == "B-LOC" and NER.labels[2] == "I-LOC"
    assert NER.loss(outputs, ["B-LOC", "B-LOC"]) == pytest.approx(-np.log(0.7 * 0.1) / 2)
    two = row(["New", "York"], ["B-LOC", "B-LOC"])
    assert NER.difference(["B-LOC", "B-LOC"], ["B-LOC", "I-LOC"], two, "") == "York B-LOC → I-LOC"
    assert NER.text_of(two, "") == "New York"
    # Of generated text: a type that is no label's, and an entity that stands nowhere.
    assert NER.confusions([["B-LOC", "B-X", "B-PER"]], [["O", "O"]])[5].split() == ["O", "1", "0", "0", "0", "0", "1"]
    assert NER.confusions([["B-LOC", "I-LOC"]], [["B-LOC", "B-LOC"]])[1].split() == ["B-LOC", "1", "0", "1", "0", "0"]


def test_repaired_tags_are_counted():
    assert NER.repairs(row("a b c d", "I-LOC I-LOC O I-LOC"), "") == 2
    assert NER.repairs(row("a b c d", "B-LOC I-LOC O B-LOC"), "") == 0
    assert TaggingTask(tags="ner", scheme="none").repairs(row("a b", "I-LOC O"), "") == 0


def test_metrics_beside_those_of_each_words_most_frequent_tag():
    trained = [LocatedRow(row(["New", "York", "is"], ["B-LOC", "I-LOC", "O"]), "", (0, 1))]
    rows = [LocatedRow(row(["York", "here", "New"], ["B-LOC", "O", "O"]), "", (0, 2))]
    targets = [["B-LOC", "O", "O"]]
    assert NER.majority("tag_accuracy", trained, rows, targets) == {"tag_accuracy": 0.0}  # I-LOC, B-LOC, B-LOC
    assert NER.majority("macro_f1", trained, rows, targets) == NER.score([["B-LOC"] * 3], targets, "macro_f1")
    assert NER.score(targets, targets, "macro_f1") == {"macro_f1": 1.0}


def test_ids():
    """CoNLL-U's column `id` numbers words."""

    def row_id(row_number=None, **values):
        return NER.row_id(LocatedRow(row(["a"], ["O"], **values), "f: line 3", (0, 3), row_number))

    assert row_id(0, id=["1"], sent_id="doc-1") == "doc-1" and row_id(0, id="x") == "x"
    assert row_id(0, id=["1"], sent_id=None) == 0 and row_id(id=["1"]) == 3


def test_entities_as_text():
    """mT5's format; what is not in the sentence counts as in its span F1."""
    given = row(["Ada", "Lovelace", "met", "Ada", "in", "Paris"], ["B-PER", "I-PER", "O", "B-PER", "O", "B-LOC"])
    text = NER.target_text(given, "")
    assert NER.input_text(given, "") == "tag: Ada Lovelace met Ada in Paris"
    assert text == "PER: Ada Lovelace $$ PER: Ada $$ LOC: Paris"
    assert NER.parse(text, given, "") == NER.target(given, "")
    found = NER.parse("PER: Ada Lovelace $$ LOC: Rome $$ LOC: Paris $$ nothing", given, "")
    assert found == ["B-PER", "I-PER", "O", "O", "O", "B-LOC", "B-LOC"]
    scores = NER.score([found], [NER.target(given, "")], "span_f1")
    assert scores["precision"] == scores["recall"] == pytest.approx(2 / 3)
    assert NER.answer_text("LOC: Rome", given, "")["tags"] == ["O"] * 6
    for text in (": Ada", "a\nb: Ada", "PER:", "Ada"):
        assert NER.score([NER.parse(text, given, "")], [NER.target(given, "")], "span_f1")
    assert NER.target_text(row(["a"], ["O"]), "") == "" and NER.parse("", given, "") == ["O"] * 6
    with pytest.raises(UserError, match="text_to_text wants tags of entities: 'NOUN' is neither O, B-X nor I-X"):
        TaggingTask(tags="ner", labels=("NOUN", "VERB")).target_text(row(["a"], ["NOUN"]), "")


def test_a_written_entity_goes_to_the_words_that_it_is_meant_for():
    given = row(["in", "May", ",", "May", "spoke"], ["O", "O", "O", "B-PER", "O"])
    tags = NER.target(given, "")
    assert NER.parse(NER.target_text(given, ""), given, "") == tags
    assert NER.parse("LOC: May $$ PER: May", given, "") == ["O", "B-LOC", "O", "B-PER", "O"]
    assert NER.parse("PER: May $$ PER: May $$ PER: May", given, "")[1:] == ["B-PER", "O", "B-PER", "O", "B-PER"]
    # An answer, and a row without tags, or with ones of no entities, know no targets.
    assert NER.answer_text("PER: May", given, "")["tags"] == ["O", "B-PER", "O", "O", "O"]
    for other in (Row(3, {"tokens": given.values["tokens"]}), row(given.values["tokens"], ["NOUN"] * 5)):
        assert NER.parse("PER: May", other, "") == ["O", "B-PER", "O", "O", "O"]


def test_span_f1_of_written_entities_is_mt5s():
    """It compares types and texts, as often as they occur."""
    rng, words = np.random.default_rng(0), ["a", "b", "a", "a", "b", "c"]
    for _ in range(30):
        drawn = rng.choice(["O", "B-LOC", "B-PER", "I-PER"], len(words)).tolist()
        given = row(words, repaired(drawn))
        written = [f"{rng.choice(['LOC', 'PER'])}: {rng.choice(['a', 'b', 'a b', 'b c', 'd'])}" for _ in range(3)]
        gold = [entity for entity in NER.target_text(given, "").split(" $$ ") if entity]
        common = (collections.Counter(written) & collections.Counter(gold)).total()
        score = NER.score([NER.parse(" $$ ".join(written), given, "")], [NER.target(given, "")], "span_f1")
        assert score["f1"] == pytest.approx(2 * common / (len(written) + len(gold)))


def test_words_and_tags_as_cells_of_a_table():
    words, tags = ["EU", "rejects", "it"], ["B-LOC", "O", "O"]
    for written in (json.dumps, str, " ".join):
        cells = row(written(words), written(tags))
        assert NER.words(cells, "") == words and NER.target(cells, "") == tags and NER.repairs(cells, "") == 0
    numbers = TaggingTask(tags="ner", labels=("0", "3"))
    assert numbers.target(row("EU rejects", "[3, 0]"), "") == ["3", "0"]
    assert NER.words(row("[ 1 ]", ""), "") == ["[", "1", "]"] and NER.words(row("[1]", ""), "") == ["[1]"]
    for cells, key in ((row("['EU' 'rejects']", tags), "tokens"), (row("EU rejects", "[3 0]"), "tags")):
        with pytest.raises(UserError, match=rf"^f: line 3: column '\w+' \(task\.{key}\) wants a list of JSON, such as"):
            NER.labels_in(cells, "f: line 3")
