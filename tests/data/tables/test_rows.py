import pytest

from jaxpt.data.tables import Row, column, in_order, label, text
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
    for name, got in (("n", "3"), ("none", "null"), ("list", r"\['a'\]")):
        with pytest.raises(UserError, match=f"a.json: row 7: column '{name}' wants text, got {got}"):
            text(row, name, "a.json: row 7")
    with pytest.raises(UserError, match="got null"):
        text(row, "none", as_text=True)


def test_labels():
    assert in_order(["10", "9", "-1", "2.5"]) == ["-1", "2.5", "9", "10"]
    assert in_order(["b", "10", "a", "9"]) == ["10", "9", "a", "b"]
    assert label(None) == label(float("nan")) == ""
