import pytest

from jaxpt.data.tables import Row, column, label, labels, text
from jaxpt.errors import UserError


def test_a_field_of_a_struct():
    row = Row(1, {"translation": {"de": "ja", "en": "yes"}, "a.b": "dotted"})
    assert column(row, "translation.de") == "ja" and column(row, "a.b") == "dotted"
    with pytest.raises(UserError, match=r"x: column 'translation': no column 'fr'; it has de, en"):
        column(row, "translation.fr", "x")
    with pytest.raises(UserError, match=r"^no column 'translatoin'; it has .*; did you mean translation\?"):
        column(row, "translatoin")


def test_text():
    row = Row(7, {"a": " as it is ", "n": 3, "f": 0.5, "t": True, "none": None, "list": ["a"]})
    assert text(row, "a") == " as it is "
    assert [text(row, name, as_text=True) for name in "nft"] == ["3", "0.5", "true"]
    for name, got in (("n", "int 3"), ("none", "nothing"), ("list", r"list \['a'\]")):
        with pytest.raises(UserError, match=f"a.json: row 7: column '{name}' wants text, got {got}"):
            text(row, name, "a.json: row 7")
    with pytest.raises(UserError, match="got nothing"):
        text(row, "none", as_text=True)


def rows(*values):
    return [Row(number, {"label": value}) for number, value in enumerate(values, 2)]


def test_labels_in_a_stable_order():
    assert list(labels(rows("10", "9", "-1", "2.5"), "label")) == ["-1", "2.5", "9", "10"]
    assert list(labels(rows("b", "10", "a", "9"), "label")) == ["10", "9", "a", "b"]
    assert labels(rows(1, "1", 0), "label") == {"0": 1, "1": 2}
    assert labels(rows(True, False, True), "label") == {"false": 1, "true": 2}
    assert labels(rows(["B", "O"], [], ["O"]), "label") == {"B": 1, "O": 2}


@pytest.mark.parametrize("empty", ["", " ", None, float("nan"), ["a", ""]])
def test_an_empty_label_is_named(empty):
    with pytest.raises(UserError, match=r"a\.tsv: line 3: column 'label': empty label"):
        labels(rows("a", empty), "label", "a.tsv")
    assert label(None) == label(float("nan")) == ""


def test_a_value_that_is_no_label():
    with pytest.raises(UserError, match=r"row 2: column 'label' wants labels, got dict"):
        labels(rows({"a": 1}), "label")
