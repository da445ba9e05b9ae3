import json

import pytest

from jaxpt.data.tables import Row, column, flag, in_order, label, parse_list, text
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


def test_truth_values():
    assert [flag(value) for value in (True, " Yes", 1.0, "1")] == [True] * 4
    assert [flag(value) for value in (False, "false", 0, "", None)] == [False] * 5
    assert flag("joy") is None


@pytest.mark.parametrize("entries", [["EU", "rejects"], ["a, b", 'it\'s "so"', "c\\n\n"], ["ö"]])
def test_a_list_in_a_cell_is_read_as_json_and_as_pandas_write_it(entries):
    for cell in (json.dumps(entries), json.dumps(entries, ensure_ascii=False), str(entries), f" {entries} "):
        assert parse_list(cell, "f") == entries


def test_cells_that_are_text():
    for cell in ("EU rejects", "[x] or ['y", "[see above]", "[", "", '{"text": ["a"]}', None, 3):
        assert parse_list(cell, "f") is cell
    assert [parse_list(cell, "f") for cell in ("[3, 0]", "[1]", "[]")] == [[3, 0], [1], []]
    assert [parse_list(cell, "f", numbers=False) for cell in ("[1]", "[ ]", '["a", 1]')] == ["[1]", "[ ]", ["a", 1]]
    assert parse_list('{"text": ["a"]}', "f", objects=True) == {"text": ["a"]}


@pytest.mark.parametrize("cell", ["['EU' 'rejects']", '["a" "b"]', "['a', None]", "[3 0 7]", "[ 0 17\n  3]"])
def test_lists_that_are_neither_are_refused(cell):
    """Python reads 'EU' 'rejects' as one string."""
    with pytest.raises(UserError, match=r'^f: column \'x\' wants a list of JSON, such as \["a", "b"\], got ') as error:
        parse_list(cell, "f: column 'x'")
    assert "\n" not in str(error.value)
