"""Dialogues as text: chat templates in Jinja, rendered as `transformers` renders them.

A template comes with a tokenizer: `chat_template.jinja`, `additional_chat_templates/NAME.jinja`, or `chat_template` in
tokenizer_config.json. It is a program from elsewhere, so it runs in a sandbox that bounds its steps and its output.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2
from jinja2 import ext, nodes

from jaxpt.data.tasks.dialogue import ROLES, has_content
from jaxpt.data.tokenizers import declared, vocabulary_files
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.errors import UserError
from jaxpt.runtime import sandbox

Message = Mapping[str, Any]
Spans = list[tuple[int, int]]
"""[(start, end)]: characters of a text."""

_OPENING = "{% if bos_token is defined and bos_token != eos_token %}{{ bos_token }}{% endif %}"
BUILT_IN = {
    "chatml": _OPENING
    + """{% for message in messages %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- if message.role == 'assistant' %}
{%- generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}
{%- else %}{{ message.content + '<|im_end|>' }}{% endif %}
{{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}""",
    "plain": _OPENING
    + """{% for message in messages %}
{{- message.role | capitalize + ':' }}
{%- if message.role == 'assistant' %}
{%- generation %}{{ ' ' + message.content | trim }}{{ eos_token | default('\n') }}{% endgeneration %}
{%- else %}{{ ' ' + message.content + '\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}""",
}
"""Templates for tokenizers that come without one. A marker that is no token of the vocabulary is plain text."""
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of what an assistant thinks before it answers: templates read one of them."""
RECORDS_DATE = datetime.datetime(2024, 7, 26)
"""What `strftime_now` says in records, which are the same on any day. Llama 3.2's template has it where there is no
clock."""
_MARKS = re.compile(r"{%[-+]?\s*generation\b")
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"  # around what a generation block renders; no characters, in no text
_ANSWER, _NEXT = "8d1f answer", "8d1f next"  # texts that no template has


class ChatTemplate:
    """A compiled template.

    Example:
      >>> template = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}")
      >>> template.render([{"role": "user", "content": "Hi"}], eos_token="</s>")
      'user: Hi</s>'

    Attributes:
      marks_answers: True if generation blocks of the template say what the assistant writes.
    """

    def __init__(
        self,
        source: str,
        name: str = "chat template",
        tokens: Mapping[str, Any] | None = None,
        tool_use: str | None = None,
    ) -> None:
        """Compiles a template.

        Args:
          source: Jinja.
          name: where it comes from, for messages.
          tokens: variables of every `render`, such as {"bos_token": "<s>"}.
          tool_use: Jinja of dialogues with tools, where it is another one.

        Raises:
          UserError: it is no Jinja; names the line.
        """
        self.name, self.tokens, self._words = name, dict(tokens or {}), frozenset(re.findall(r"\w+", source))
        self.marks_answers = _MARKS.search(source) is not None
        self._tool_use = None if tool_use is None else ChatTemplate(tool_use, f"{name} tool_use", tokens)
        try:
            self._template = sandbox.compiled(_environment().from_string, source)
        except jinja2.TemplateSyntaxError as error:
            raise UserError(f"{name}: line {error.lineno}: {error.message}; wants a Jinja template") from None

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> str:
        """The text of a dialogue.

        Args:
          messages: [{"role": "user", "content": "…"}, …], the oldest first.
          add_generation_prompt: end with the start of the assistant's next message.
          **variables: further variables of the template; they count before its `tokens`.

        Returns:
          The text, special tokens included: `tokenizer.encode(text, special=True)` reads them.

        Raises:
          UserError: a message is not as it must be, or the template refuses the dialogue or takes too many steps.
        """
        check(messages)
        # Templates print a None where they test for a missing key alone.
        clean_messages = [
            _with_reasoning({key: value for key, value in message.items() if value is not None}) for message in messages
        ]
        named = {"messages": clean_messages, "add_generation_prompt": add_generation_prompt}
        values = {"tools": None, "documents": None} | self.tokens | named | variables
        try:
            with sandbox.bounded(values):
                return self._template.render(values)
        except Exception as error:  # a template can raise whatever Python raises
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UserError(f"{self.name}: does not take this dialogue: {reason}") from None

    def set_options(self, options: Mapping[str, Any]) -> None:
        """Gives variables to every `render`.

        Args:
          options: such as {"enable_thinking": False}.

        Raises:
          UserError: the template reads no such variable, or the dialogue says it.
        """
        tool_use = self if self._tool_use is None else self._tool_use
        for name in options:
            if name in ("messages", "tools", "add_generation_prompt"):
                raise UserError(f"template_options: {name}: is said by the dialogue; leave it out")
            if name not in self._words | tool_use._words:
                raise UserError(f"template_options: {name}: is not read by {self.name}; leave it out")
        self.tokens.update(options)
        tool_use.tokens.update(options)

    def select(self, messages: Sequence[Message], tools: Any = None) -> ChatTemplate:
        """The template that renders a dialogue: with tools `tool_use`, where there is one, as in `transformers`.

        Args:
          messages: the dialogue.
          tools: JSON schemas.

        Raises:
          UserError: tools, calls of tools or reasoning are there that the template would leave out, or a message is not
            as it must be.
        """
        if tools and self._tool_use is not None:
            return self._tool_use.select(messages, tools)
        check(messages)
        has_reasoning = any(message.get(key) for message in messages for key in REASONING)
        has_calls = any(message.get("tool_calls") for message in messages)
        for is_there, key, names in (
            (tools, "tools", ("tools",)), (has_calls, "tool_calls", ("tool_calls",)),
            (has_reasoning, REASONING[0], REASONING),
        ):  # fmt: skip
            if is_there and self._words.isdisjoint(names):
                raise UserError(
                    f"{self.name}: does not read {key}, which the dialogue has; remove {key}, or give a template that "
                    "reads it (in a recipe objective.template)"
                )
        return self

    def answers(self, messages: Sequence[Message], **variables: Any) -> tuple[str, Spans]:
        """The text of a whole dialogue, and what of it the assistant writes.

        That is what the template's `{% generation %}` blocks render. Without such blocks it is what an answer adds to
        the dialogue before it: the answer and the token that ends it, without white space after that token.

        Args:
          messages: the dialogue; its last message may be the assistant's.
          **variables: as `render` has them.

        Returns:
          (the text, the characters of each answer).

        Raises:
          UserError: as `render`; or the template renders the messages before an answer differently once the answer is
            there, so that the difference is not the answer.

        Example:
          >>> template = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
          ...     "{% if add_generation_prompt %}<assistant>{% endif %}")
          >>> template.answers([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}])
          ('<user>Hi</s><assistant>Ho</s>', [(23, 29)])
        """
        if self.marks_answers:
            return _unmarked(self.render(messages, add_generation_prompt=False, _marks=True, **variables))
        whole = self.render(messages, add_generation_prompt=False, **variables)
        answers = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
        return whole, [self._added(messages[:n], messages[n], whole, variables) for n in answers]

    def _added(
        self, before: Sequence[Message], answer: Message, whole: str, variables: Mapping[str, Any]
    ) -> tuple[int, int]:
        """What an answer adds, in the text of the whole dialogue."""
        number = len(before) + 1
        if not before:
            raise UserError(
                f"{self.name}: message 1 is the assistant's: a template without a generation block cannot say where it "
                "starts; begin with a user's message"
            )
        prompt = self.render(before, **variables)
        text = self.render([*before, answer], add_generation_prompt=False, **variables)
        if not (text.startswith(prompt) and whole.startswith(text)):
            raise UserError(
                f"{self.name}: renders the messages before answer {number} differently once there are more, so the "
                "answer's tokens are not known; put {% generation %} … {% endgeneration %} around it in the template"
            )
        ended = prompt + text[len(prompt) :].rstrip()
        content = answer.get("content", "").strip()
        content_ends = len(prompt) + (text[len(prompt) :].rfind(content) + len(content) if content else 0)
        return len(prompt), len(ended) if len(ended) > content_ends else len(text)


def _with_reasoning(message: Message) -> Message:
    """A message with its reasoning under the names that templates read, as in transformers."""
    reasoning = next((message[key] for key in REASONING if message.get(key) is not None), None)
    return message if reasoning is None else {"thinking": reasoning, **message, REASONING[0]: reasoning}


def _unmarked(marked: str) -> tuple[str, Spans]:
    """The text without marks, and what was between them."""
    text, spans = "", []
    for part in re.split(f"({_OPEN}[^{_CLOSE}]*{_CLOSE})", marked):
        if part.startswith(_OPEN):
            spans.append((len(text), len(text) + len(part) - 2))
            part = part[1:-1]
        text += part
    return text, spans


def of_tokenizer(tokenizer: Tokenizer) -> ChatTemplate:
    """The template that a tokenizer has, for records: with its special tokens and a date that stays.

    Raises:
      UserError: it has none.
    """
    templates = tokenizer.chat_templates
    if "default" not in templates:
        built_in = " or ".join(BUILT_IN)
        raise UserError(f"objective.template: the tokenizer has no chat template; give a file, or {built_in}")
    tokens = special_tokens(None, tokenizer) | {"strftime_now": RECORDS_DATE.strftime}
    return ChatTemplate(templates["default"], tokens=tokens, tool_use=templates.get("tool_use"))


def end_of_answer(tokenizer: Tokenizer, template: ChatTemplate) -> tuple[Sequence[int], Sequence[str]]:
    """What a template writes after the assistant's message: where an answer ends.

    Args:
      tokenizer: the tokenizer.
      template: its chat template.

    Returns:
      (ids that end it, strings that end it): one of them, or none if the template says nothing.
    """
    before = [{"role": "user", "content": "8d1f"}, {"role": "assistant", "content": _ANSWER}]
    try:
        text = template.render([*before, {"role": "user", "content": _NEXT}], add_generation_prompt=False)
    except UserError:
        return (), ()
    between = text.partition(_ANSWER)[2].partition(_NEXT)[0].rstrip()
    mark = between.lstrip()
    ids = tokenizer.encode(mark, special=True) if mark else []
    if not ids:
        return (), ()
    if tokenizer.spelled(ids[0]) == b"" or _is_special(tokenizer, ids[0]):
        return (ids[0],), ()
    return (), (between[: len(between) - len(mark)] + mark.splitlines()[0],)


def _is_special(tokenizer: Tokenizer, i: int) -> bool:
    """Whether an id is a token of its own, whatever text surrounds it, such as <|im_end|>."""
    (piece,) = tokenizer.tokens([i])
    is_marked = len(piece) > 2 and piece[0] in "<[" and piece[-1] in ">]"
    return is_marked and tokenizer.encode(f"a{piece}b", special=True).count(i) == 1


def end_ids(tokenizer: Tokenizer) -> Sequence[int]:
    """Ids that end an answer by the tokenizer's own template; () if it has none, or one that names no token."""
    return end_of_answer(tokenizer, of_tokenizer(tokenizer))[0] if "default" in tokenizer.chat_templates else ()


def report_lines(tokenizer: Tokenizer) -> Iterator[str]:
    """Says that answers end in white space, or with their last word: what follows them is then no target."""
    messages = [{"role": "user", "content": "8d1f"}, {"role": "assistant", "content": _ANSWER}]
    try:
        text, spans = of_tokenizer(tokenizer).answers(messages)
    except UserError:  # which names a row where it is raised for one
        return
    if spans and text[slice(*spans[-1])].rstrip().endswith(_ANSWER):
        yield (
            "objective.template: no token ends an answer, so that a model may not learn to end one; put "
            "{{ eos_token }} behind the content, in the generation block if there is one"
        )


def source(given: str) -> str:
    """The Jinja of a built-in template or of a file.

    Args:
      given: `chatml`, `plain`, or a path.

    Raises:
      UserError: it cannot be read.
    """
    return BUILT_IN[given] if given in BUILT_IN else _read(given, "objective.template")


def _read(file: str | Path, key: str) -> str:
    try:
        return Path(file).read_text("utf-8")
    except OSError as error:
        raise UserError(f"{key}: {file}: cannot be read ({error.strerror}); wants a Jinja file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{key}: {file}: not UTF-8 ({error.reason}); wants a Jinja file") from None


def load(
    tokenizer: Tokenizer,
    file: str | Path | None = None,
    name: str = "default",
    options: Mapping[str, Any] = MappingProxyType({}),
) -> ChatTemplate:
    """The template of a tokenizer.

    Args:
      tokenizer: the tokenizer.
      file: a template to take instead.
      name: which, where a tokenizer has several.
      options: as of `ChatTemplate.set_options`.

    Returns:
      The template, with the tokenizer's special tokens.

    Raises:
      UserError: there is no template, none of this name, or it cannot be read; or as `ChatTemplate.set_options`.
    """
    template = _compiled(tokenizer, file, name)
    template.set_options(options)
    return template


def _compiled(tokenizer: Tokenizer, file: str | Path | None, name: str) -> ChatTemplate:
    """The template without options."""
    tokens = special_tokens(tokenizer.folder, tokenizer)
    if file is not None:
        return ChatTemplate(_read(file, "--template"), str(file), tokens)
    templates, where = tokenizer.chat_templates, tokenizer.folder or "the tokenizer"
    if not templates:
        raise UserError(
            f"{where}: has no chat template ({vocabulary_files.CHAT_TEMPLATE}, or chat_template in "
            f"{vocabulary_files.SETTINGS}); give one with --template FILE, in Python chat(template=FILE)"
        )
    if name not in templates:
        has = ", ".join(map(repr, templates))
        raise UserError(f"{where}: has no chat template {name!r}, only {has}; give one with --template FILE")
    tool_use = templates.get("tool_use") if name == "default" else None
    return ChatTemplate(templates[name], f"{where}: chat template", tokens, tool_use)


def special_tokens(folder: Path | None, tokenizer: Tokenizer) -> dict[str, str]:
    """Variables of templates: {"bos_token": "<s>", …}.

    Args:
      folder: the tokenizer's; its files say what a token is, or null that there is none; None: the tokenizer says all,
        as that of a run does.
      tokenizer: gives the tokens of which they say nothing.
    """
    tokens = tokenizer.special_tokens(None if folder is None else declared.read(folder).specials)
    return {f"{part}_token": token.content for part, token in tokens.items() if token is not None}


def check(messages: Sequence[Message]) -> None:
    """Raises UserError, naming the message, where a dialogue is not as templates want it."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise UserError('messages: wants a list with one or more {"role": …, "content": …}')
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping):
            raise UserError(f"message {number}: wants an object with role and content, got {type(message).__name__}")
        if message.get("role") not in ROLES:
            wrong = repr(message["role"]) if "role" in message else "missing"
            raise UserError(f"message {number}: role is {wrong}; wants one of {', '.join(ROLES)}")
        if not has_content(message):
            wrong = type(message["content"]).__name__ if "content" in message else "missing"
            raise UserError(f"message {number}: content is {wrong}; wants a string, or tool_calls without content")


class _Generation(ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks what the assistant says; the text is that of the block."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's)

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_text", [nodes.ContextReference()]), [], [], body).set_lineno(line)

    def _text(self, context: Any, caller: Any) -> str:
        return f"{_OPEN}{caller()}{_CLOSE}" if context.get("_marks") else caller()


def _environment() -> Any:
    """Jinja's sandbox, with what `transformers` adds for templates."""

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    extensions = [_Generation, ext.loopcontrols]
    # Jinja's own `tojson` writes for HTML.
    environment = sandbox.Sandbox({"tojson": tojson}, trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment
