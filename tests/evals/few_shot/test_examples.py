"""From rows to what the model reads."""

import json

import pytest

from jaxpt.errors import UserError
from jaxpt.evals.few_shot import task
from jaxpt.evals.few_shot.examples import examples

CHOICE = {
    "form": "multiple_choice", "data": {"path": "rows.jsonl"}, "context": "Q: {{ q }}\nA:", "choices": "options",
    "answer": "right",
}  # fmt: skip


def rows(n):
    return [{"q": f"why {i}?", "options": ["yes", "no"], "right": i % 2, "kind": f"k{i % 3}"} for i in range(n)]


def made(folder, tree, lines):
    (folder / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "mine.yaml").write_text(json.dumps(tree))  # JSON is YAML
    return task.load(str(folder / "mine.yaml"))


def test_contexts_continuations_and_the_right_choice(tmp_path):
    first, second = examples(made(tmp_path, CHOICE, rows(2)))
    assert first.contexts == ("Q: why 0?\nA:",) * 2 and first.continuations == (" yes", " no")
    assert (first.gold, second.gold) == (0, 1)


def test_the_answer_may_be_the_text_of_a_choice(tmp_path):
    one = {"q": "why?", "options": ["yes", "no"], "right": "no"}
    assert examples(made(tmp_path, CHOICE, [one]))[0].gold == 1
    with pytest.raises(UserError, match=r"'maybe' is none of the choices: yes, no"):
        examples(made(tmp_path, CHOICE, [one | {"right": "maybe"}]))
    with pytest.raises(UserError, match=r"2 is no number of a choice; wants 0 to 1, or its text"):
        examples(made(tmp_path, CHOICE, [one | {"right": 2}]))


def test_digits_are_the_number_or_the_text_of_a_choice_but_not_of_two(tmp_path):
    """Rows of one task must not have numbers here and texts there."""

    def golds(*rows, **change):
        lines = [{"q": "why?", "options": options, "right": right} for options, right in rows]
        return [one.gold for one in examples(made(tmp_path, CHOICE | change, lines))]

    assert golds((["yes", "no"], "1"), (["3", "4"], "1"), (["0", "1"], "1")) == [1, 1, 1]
    assert golds((["7", "4"], "4"), (["a", "0", "2"], "2")) == [1, 2]
    mixed = (["1", "2"], "1")
    with pytest.raises(
        UserError, match=r"answer: .*line 1: '1' is the number of a choice and the text of another"
    ) as error:
        golds(mixed)
    assert str(error.value).endswith("; write `right | int` for the number, `options.index(right)` for the text")
    assert golds(mixed, answer="right | int") == [1] and golds(mixed, answer="options.index(right)") == [0]
    with pytest.raises(UserError, match=r"write `\(right \| string\) \| int` for the number, `\[…\]\.index\("):
        golds(mixed, answer="right | string", choices=["{{ options[0] }}", "{{ options[1] }}"])


def test_shots_are_drawn_per_example_and_never_the_row_itself(tmp_path):
    mine = made(tmp_path, CHOICE, rows(9))
    found = examples(mine, shots=3)
    for number, one in enumerate(found):
        shown, asked = one.contexts[0].rsplit("\n\n", 1)
        assert asked == f"Q: why {number}?\nA:" and asked not in shown and shown.count("Q:") == 3
        for block in shown.split("\n\n"):
            of = int(block.split()[2].rstrip("?"))
            assert block == f"Q: why {of}?\nA: {['yes', 'no'][of % 2]}"
    assert found[:4] == examples(mine, shots=3, limit=4)  # a limit changes nothing of what is left
    assert found != examples(mine, shots=3, seed=1)
    assert [one.contexts[0].rsplit("\n\n", 2)[1:] for one in found] == [
        one.contexts[0].rsplit("\n\n", 2)[1:] for one in examples(mine, shots=3)
    ]


@pytest.mark.parametrize(("shots_path", "others"), [("rows.jsonl", 0), ("./*.jsonl", 0), ("./*.jsonl", 1)])
def test_shots_from_the_scored_file_never_show_the_row_itself(tmp_path, shots_path, others):
    mine = made(tmp_path, CHOICE | {"data": {"path": "rows.jsonl", "shots_path": shots_path}}, rows(4))
    if others:
        (tmp_path / "more.jsonl").write_text(json.dumps(rows(1)[0] | {"q": "and then"}) + "\n")
    for example in examples(mine, shots=3 + others):
        shown, asked = example.contexts[0].rsplit("\n\n", 1)
        assert asked not in shown and shown.count("Q:") == 3 + others and shown.count("and then") == others


def test_an_empty_continuation_is_named_with_its_row(tmp_path):
    with pytest.raises(UserError, match=r"mine.yaml: continuation: .*rows.jsonl: line 1: choice 0 is empty"):
        examples(made(tmp_path, CHOICE | {"continuation": ""}, rows(1)))


def test_more_shots_than_rows_are_refused(tmp_path):
    mine = made(tmp_path, CHOICE, rows(3))
    assert len(examples(mine, shots=2)) == 3
    with pytest.raises(UserError, match=r"3 shots, but there are 2 rows beside the one that is asked; give fewer"):
        examples(mine, shots=3)


def test_pairs_are_limited_by_group(tmp_path):
    pair = {
        "form": "pair",
        "data": {"path": "rows.jsonl"},
        "choices": ["a {{ q }}", "b {{ q }}"],
        "group": "{{ kind }}",
    }
    found = examples(made(tmp_path, pair, rows(9)), limit=2)
    assert [one.group for one in found] == ["k0", "k1", "k2"] * 2
    assert all(one.gold == 0 and one.contexts == ("", "") for one in found)


def test_a_file_with_brackets_in_its_name_is_that_file(tmp_path):
    task = made(tmp_path, CHOICE | {"data": {"path": "rows[1].jsonl"}}, rows(2))
    (tmp_path / "rows.jsonl").rename(tmp_path / "rows[1].jsonl")
    assert len(examples(task)) == 2


def test_rows_that_do_not_count_are_left_out(tmp_path):
    assert len(examples(made(tmp_path, CHOICE | {"filter": "right == 1"}, rows(5)))) == 2
    with pytest.raises(UserError, match=r"mine.yaml: has no rows that count \(filter: right == 7\)"):
        examples(made(tmp_path, CHOICE | {"filter": "right == 7"}, rows(5)), shots=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context": "{{ question }}"}, r"context: .*rows.jsonl: line 1: 'question' is undefined; the row has q, opt"),
        ({"choices": ["yes", " "]}, r"choices: .*line 1: choice 1 is empty or no text: ' '"),
        ({"choices": "q"}, "wants a list of two texts or more, got 'why 0"),
        (
            {"data": {"path": "none.jsonl"}},
            r"no file none.jsonl, and no data.tfds; looked in .*; give --data DIR or mine",
        ),
        ({"data": {}}, r"no data.path, and no data.tfds"),
        ({"data": {"path": ""}}, r"no data.path, and no data.tfds"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, change, message):
    with pytest.raises(UserError, match=message) as error:
        examples(made(tmp_path, CHOICE | change, rows(2)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("gold", [42, None, [], ["a", 1]])
def test_an_answer_that_is_no_text_is_one_line(tmp_path, gold):
    tree = {"form": "generate_until", "data": {"path": "rows.jsonl"}, "answers": "a"}
    with pytest.raises(UserError, match=r"mine.yaml: answers: .*line 1: wants a text or a list of texts, got"):
        examples(made(tmp_path, tree, [{"a": gold}]))


@pytest.mark.parametrize("gold", [float("nan"), float("inf")])
def test_a_gold_that_is_not_finite_is_one_line(tmp_path, gold):
    with pytest.raises(UserError, match=r"answer: .*line 1: (nan|inf) is no number of a choice"):
        examples(made(tmp_path, CHOICE, [rows(1)[0] | {"right": gold}]))
    near = {"form": "similarity", "data": {"path": "rows.jsonl"}, "choices": "options", "answer": "right"}
    with pytest.raises(UserError, match=r"answer: .*line 1: (nan|inf) is not finite"):
        examples(made(tmp_path, near, [rows(1)[0] | {"right": gold}]))


def test_generation_has_all_right_answers(tmp_path):
    tree = {
        "form": "generate_until", "data": {"path": "rows.jsonl"}, "context": "Q: {{ q }}", "answers": "options",
        "shots": 1, "continuation": " A: {{ choice }}",
    }  # fmt: skip
    one = examples(made(tmp_path, tree, rows(2)))[0]
    assert one.gold == ["yes", "no"] and one.contexts == ("Q: why 1? A: yes\n\nQ: why 0?",)


def test_right_answers_lose_white_space_as_written_ones_do(tmp_path):
    tree = {"form": "generate_until", "data": {"path": "rows.jsonl"}, "context": "Q:", "answers": "a", "shots": 1}
    first, _ = examples(made(tmp_path, tree, [{"a": [" Paris\n", "Lyon"]}] * 2))
    assert first.gold == ["Paris", "Lyon"] and first.contexts == ("Q:  Paris\n\n\nQ:",), "shots are as they are written"


def test_a_zip_is_read_as_its_files(tmp_path):
    import zipfile

    with zipfile.ZipFile(tmp_path / "rows.zip", "w") as packed:
        for name in ("b", "a"):
            packed.writestr(f"data/{name}.jsonl", json.dumps({**rows(1)[0], "q": name}) + "\n")
        packed.writestr("__MACOSX/data/._a.jsonl", b"\0")
    found = examples(made(tmp_path, CHOICE | {"data": {"path": "rows.zip"}}, rows(1)))
    assert [one.contexts[0] for one in found] == ["Q: a\nA:", "Q: b\nA:"]


def test_a_limit_does_not_cut_a_question_that_has_several_rows(tmp_path):
    lines = [line | {"question": i // 3} for i, line in enumerate(rows(9))]
    mine = made(tmp_path, CHOICE | {"group": "{{ question }}", "metrics": ["acc", "acc_all"]}, lines)
    assert [one.group for one in examples(mine, limit=4)] == ["0"] * 3 + ["1"] * 3
    assert len(examples(mine, limit=3)) == 3 and len(examples(mine)) == 9
