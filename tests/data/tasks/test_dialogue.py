"""Dialogues: the forms of rows, and what is refused."""

import doctest
import json

import pytest

from jaxpt.data.tables import Row
from jaxpt.data.tasks import dialogue
from jaxpt.data.tasks.dialogue import DialogueTask
from jaxpt.errors import UserError

USER, ASSISTANT = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}


def test_examples_in_docstrings():
    assert doctest.testmod(dialogue).failed == 0


@pytest.mark.parametrize(
    ("values", "keys"),
    [
        ({"messages": [USER, ASSISTANT]}, {}),
        ({"chat": [USER, ASSISTANT]}, {"messages": "chat"}),
        ({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]}, {}),
        ({"prompt": "Hi", "completion": "Ho"}, {}),
        ({"prompt": [USER], "completion": [ASSISTANT]}, {}),
        ({"instruction": "Hi", "input": "", "output": "Ho"}, {}),
        ({"question": "Hi", "answer": "Ho"}, {"prompt": "question", "answer": "answer"}),
    ],
)
def test_forms_of_rows(values, keys):
    row = Row(1, values)
    assert DialogueTask(**keys).dialogue(row, "line 1") == [USER, ASSISTANT]
    system = {"role": "system", "content": "s"}
    assert DialogueTask(system="s", **keys).dialogue(row, "line 1") == [system, USER, ASSISTANT]
    assert DialogueTask(**keys).content(row, "line 1") == ("Hi", "Ho")


def test_an_input_follows_its_instruction():
    row = Row(1, {"instruction": "Add.", "input": "2 2", "output": "4"})
    assert DialogueTask().dialogue(row, "line 1")[0] == {"role": "user", "content": "Add.\n\n2 2"}
    number, none = (Row(1, row.values | {"input": value}) for value in (5, None))
    assert DialogueTask().content(number, "line 1") == ("Add.\n\n5", "4")
    assert DialogueTask().content(none, "line 1") == ("Add.", "4")


def test_all_but_a_users_message_may_be_empty():
    """Alpaca has empty answers, as tools have empty results."""
    row = Row(1, {"instruction": "Say nothing.", "input": "", "output": ""})
    assert DialogueTask().content(row, "line 1") == ("Say nothing.", "")
    for role in ("system", "assistant", "tool"):
        messages = [{"role": role, "content": ""}, USER, ASSISTANT]
        assert DialogueTask().dialogue(Row(1, {"messages": messages}), "line 1") == messages


def test_an_unrelated_column_is_no_input():
    row = Row(1, {"question": "Add.", "input": "2 2", "answer": "4"})
    keys = {"prompt": "question", "answer": "answer"}
    assert DialogueTask(**keys).dialogue(row, "line 1")[0]["content"] == "Add."
    assert DialogueTask(input="input", **keys).dialogue(row, "line 1")[0]["content"] == "Add.\n\n2 2"
    with pytest.raises(UserError, match=r"line 1 \(task.input\): no column 'inptu'"):
        DialogueTask(input="inptu", **keys).dialogue(row, "line 1")


def test_a_system_message_of_the_row_is_kept():
    own = [{"role": "system", "content": "own"}, USER, ASSISTANT]
    assert DialogueTask(system="s").dialogue(Row(1, {"messages": own}), "line 1") == own


def test_tools_their_calls_and_reasoning_are_kept():
    schema = {"type": "function", "function": {"name": "add", "parameters": {}}}
    call = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "add"}}]}
    result = {"role": "tool", "content": "4", "name": "add"}
    answer = ASSISTANT | {"reasoning_content": "2 and 2"}
    row = Row(1, {"messages": [USER, call, result, answer], "tools": [schema]})
    bare = {"role": "assistant", "tool_calls": call["tool_calls"]}
    assert DialogueTask().dialogue(row, "line 1") == [USER, bare, result, answer]
    assert DialogueTask().content(row, "line 1") == ("Hi", "", "4", "Ho")
    assert DialogueTask().tools(row, "line 1") == [schema]
    assert DialogueTask().tools(Row(1, row.values | {"tools": json.dumps([schema])}), "line 1") == [schema]
    for none in (None, "", [], "[]"):
        assert DialogueTask().tools(Row(1, row.values | {"tools": none}), "line 1") is None
    assert DialogueTask().tools(Row(1, {"prompt": "Hi", "completion": "Ho", "tools": "hammer"}), "line 1") is None
    for wrong, words in (("hammer", "column 'tools': not JSON"), ([1], "column 'tools' wants a list of JSON schemas")):
        with pytest.raises(UserError, match=words):
            DialogueTask().tools(Row(1, row.values | {"tools": wrong}), "line 1")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"messages": [{"role": "asistant", "content": "x"}]},
            "message 1: no role 'asistant'; did you mean assistant",
        ),
        ({"messages": [{"role": ["user"], "content": "x"}]}, r"column 'messages': message 1: no role \['user'\]"),
        ({"instruction": "a", "input": ["b"], "output": "c"}, r"line 3 \(task.input\): column 'input' wants text"),
        ({"conversations": [{"from": "bot", "value": "x"}]}, "message 1: no role 'bot'; known here: human, gpt"),
        ({"messages": [ASSISTANT, {"role": "user", "content": " "}]}, r"line 3: message 2 \(user\) is empty"),
        ({"messages": [{"role": "assistant", "content": ""}]}, r"line 3: message 1 \(assistant\) is empty"),
        ({"instruction": "", "input": "", "output": ""}, r"line 3: message 1 \(user\) is empty"),
        ({"messages": [{"role": "user", "content": None}]}, r"message 1 \(user\): wants text, got null"),
        ({"messages": "Hi"}, "line 3: column 'messages' wants a list of .*, got 'Hi'"),
        ({"messages": []}, "column 'messages' wants a list"),
        ({"messages": ["Hi"]}, "message 1: wants"),
        ({"prompt": "Hi"}, "no dialogue in columns prompt; wants messages, conversations"),
        ({"prompt": 3, "completion": "x"}, r"column 'prompt' \(task.prompt\) wants a list"),
    ],
)
def test_bad_rows(values, words):
    with pytest.raises(UserError, match=words) as error:
        DialogueTask().dialogue(Row(3, values), "line 3")
    assert "\n" not in str(error.value)
