"""Dialogues and instructions, for a decoder that learns to answer.

    messages                      [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}, …]
    conversations                 [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}, …]   (ShareGPT)
    prompt, completion            texts, or lists of messages
    instruction, input, output    texts (Alpaca); an input stands after the instruction and an empty line

The form of rows is found by the names of their columns. Other keys of a message (`tool_calls`, `reasoning_content`, …)
and the column `tools` beside lists of messages are for the chat template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from jaxpt.config.kinds import nearest
from jaxpt.data import tables
from jaxpt.data.tables import Row
from jaxpt.data.tasks.base import Task
from jaxpt.errors import UserError, shown

ROLES = ("system", "developer", "user", "assistant", "tool")
SHAREGPT = {"human": "user", "gpt": "assistant", "system": "system", "user": "user", "assistant": "assistant"}
PAIRS = (("prompt", "completion"), ("instruction", "output"))
"""Columns of one turn that are found by their names."""

Message = dict[str, Any]


class DialogueTask(Task):
    """A task whose rows are dialogues: messages, ShareGPT's conversations, or a prompt and an answer.

    Example:
      >>> task = DialogueTask(prompt="question", answer="answer", system="Be brief.")
      >>> task.dialogue(Row(1, {"question": "2 + 2?", "answer": "4"}), "line 1")
      [{'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': '2 + 2?'}, {'role': 'assistant', \
'content': '4'}]
    """

    kind: Literal["dialogue"] = "dialogue"
    messages: str | None = None
    """Column of the messages; by default `messages` or `conversations`."""
    prompt: str | None = None
    """Column of what the user says, of rows of one turn; by default `prompt` or `instruction`."""
    answer: str | None = None
    """Column of the assistant's answer; by default `completion` or `output`."""
    input: str | None = None
    """Column of what the prompt is about, possibly empty; by default `input` beside `instruction`."""
    system: str | None = None
    """System message of dialogues that have none."""

    objective: ClassVar[str] = "dialogue"
    default_metrics: ClassVar[tuple[str, ...]] = ()
    default_evals: ClassVar[tuple[dict[str, Any], ...]] = ({"kind": "heldout"}, {"kind": "answers"})

    def columns(self) -> tuple[str, ...]:
        return tuple(name for name in (self.messages, self.prompt) if name is not None)

    def content(self, row: Row, where: str) -> tuple[str, ...]:
        return tuple(message.get("content", "") for message in self.dialogue(row, where))

    def dialogue(self, row: Row, where: str) -> list[Message]:
        """The messages of a row, the oldest first.

        Args:
          row: the columns of a row.
          where: file and line, for messages.

        Returns:
          [{"role", "content", …}]; possibly without an answer. A call of tools may have no content, and all but a
          user's message may be empty: Alpaca has empty answers.

        Raises:
          UserError: no such columns, an unknown role, an empty message of a user, no message with text.
        """
        messages = self._messages(row, where)
        empty = [not message.get("content", "").strip() and not message.get("tool_calls") for message in messages]
        for number, (message, is_empty) in enumerate(zip(messages, empty), 1):
            if is_empty and (message["role"] == "user" or all(empty)):
                raise UserError(f"{where}: message {number} ({message['role']}) is empty; wants text")
        return with_system(messages, self.system)

    def tools(self, row: Row, where: str) -> list[Mapping[str, Any]] | None:
        """The tools of a row of messages, as JSON schemas; None if it has none.

        Args:
          row: the columns of a row.
          where: file and line, for messages.

        Raises:
          UserError: the column `tools` is no list of schemas, nor its JSON.
        """
        has_messages = any(isinstance(value, list) for name, value in row.values.items() if name != "tools")
        return tools_of(row.values.get("tools"), f"{where}: column 'tools'") if has_messages else None

    def _messages(self, row: Row, where: str) -> list[Message]:
        listed = self.messages or next((name for name in ("messages", "conversations") if name in row.values), None)
        if listed is not None and self.prompt is None:
            return _listed(tables.column(row, listed, where), f"{where}: column {listed!r}")
        names = next((pair for pair in PAIRS if all(name in row.values for name in pair)), (None, None))
        prompt, answer = self.prompt or names[0], self.answer or names[1]
        if prompt is None or answer is None:
            known = ", ".join(row.values)
            raise UserError(
                f"{where}: no dialogue in columns {known}; wants messages, conversations, prompt and completion, or "
                "instruction and output; or name them: task.messages, or task.prompt and task.answer"
            )
        first = _turn(tables.column(row, prompt, where), "user", f"{where}: column {prompt!r} (task.prompt)")
        has_input = prompt == "instruction" and row.values.get("input") is not None
        if (name := self.input or ("input" if has_input else None)) is not None:
            more = tables.text(row, name, f"{where} (task.input)", as_text=True)
            first[-1]["content"] = first[-1].get("content", "") + (f"\n\n{more}" if more.strip() else "")
        reply = tables.column(row, answer, where)
        return first + _turn(reply, "assistant", f"{where}: column {answer!r} (task.answer)")


def tools_of(tools: Any, where: str) -> list[Mapping[str, Any]] | None:
    """The tools of a dialogue, as JSON schemas; None if there are none.

    Args:
      tools: a list of them, or its JSON as text.
      where: for messages.

    Raises:
      UserError: it is neither.
    """
    if tools in (None, ""):
        return None
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError:
            raise UserError(f"{where}: not JSON: {shown(tools)}") from None
    if not isinstance(tools, list | tuple) or not all(isinstance(tool, Mapping) for tool in tools):
        raise UserError(f"{where} wants a list of JSON schemas, got {shown(tools)}")
    return list(tools) or None


def has_content(message: Mapping[str, Any]) -> bool:
    """True if the content of a message is text; a call of tools may have none."""
    content = message.get("content")
    return isinstance(content, str) or (content is None and bool(message.get("tool_calls")))


def with_system(messages: Sequence[Message], system: str | None) -> list[Message]:
    """A dialogue that begins with a system message: its own, else `system`, where this is not None."""
    is_missing = system is not None and messages and messages[0]["role"] not in ("system", "developer")
    return [{"role": "system", "content": system}, *messages] if is_missing else list(messages)


def _turn(value: Any, role: str, where: str) -> list[Message]:
    """A text as a message of `role`; a list of messages as it is."""
    return [{"role": role, "content": value}] if isinstance(value, str) else _listed(value, where)


def _listed(value: Any, where: str) -> list[Message]:
    """Messages of a list of {"role", "content"}, or of ShareGPT's {"from", "value"}."""
    if not isinstance(value, list) or not value:
        raise UserError(f'{where} wants a list of {{"role", "content"}}, got {shown(value)}')
    messages = []
    for number, message in enumerate(value, 1):
        if not isinstance(message, Mapping):
            raise UserError(f'{where}: message {number}: wants {{"role", "content"}}, got {shown(message)}')
        is_sharegpt = "from" in message and "role" not in message
        role, content = (message.get(key) for key in (("from", "value") if is_sharegpt else ("role", "content")))
        roles = SHAREGPT if is_sharegpt else dict(zip(ROLES, ROLES))
        if not isinstance(role, str) or role not in roles:
            raise UserError(f"{where}: message {number}: no role {role!r}{nearest(str(role), list(roles))}")
        if not has_content({**message, "content": content}):
            raise UserError(f"{where}: message {number} ({role}): wants text, got {shown(content)}")
        more = {key: x for key, x in message.items() if key not in ("role", "content", "from", "value")}
        messages.append({"role": roles[role]} | ({} if content is None else {"content": content}) | more)
    return messages
