"""Dialogues as text: chat templates in Jinja, rendered as `transformers` renders them.

A template comes with a tokenizer: `chat_template.jinja`, `chat_templates/NAME.jinja`, or `chat_template` in
tokenizer_config.json. It is a program from elsewhere, so it runs in Jinja's sandbox.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxpt.data.tokenizers import vocabulary_files
from jaxpt.data.tokenizers.base import SPECIALS, Tokenizer
from jaxpt.errors import UserError

ROLES = ("system", "developer", "user", "assistant", "tool")
Message = Mapping[str, Any]


class ChatTemplate:
    """A compiled template.

    Example:
      >>> template = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}")
      >>> template.render([{"role": "user", "content": "Hi"}], eos_token="</s>")
      'user: Hi</s>'
    """

    def __init__(self, source: str, name: str = "chat template", tokens: Mapping[str, str] | None = None) -> None:
        """Compiles a template.

        Args:
          source: Jinja.
          name: where it comes from, for messages.
          tokens: variables of every `render`, such as {"bos_token": "<s>"}.

        Raises:
          UserError: it is no Jinja; names the line.
        """
        import jinja2

        self.name, self.tokens = name, dict(tokens or {})
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise UserError(f"{name}: line {error.lineno}: {error.message}; wants a Jinja template") from None

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> str:
        """The text of a dialogue.

        Args:
          messages: [{"role": "user", "content": "…"}, …], the oldest first.
          add_generation_prompt: end with the start of the assistant's next message.
          variables: further variables of the template; they count before its `tokens`.

        Returns:
          The text, special tokens included: `tokenizer.encode(text, special=True)` reads them.

        Raises:
          UserError: a message is not as it must be, or the template refuses the dialogue.
        """
        check(messages)
        # Templates print a None where they test for a missing key alone.
        given = [{key: value for key, value in message.items() if value is not None} for message in messages]
        named = {"messages": given, "tools": None, "documents": None, "add_generation_prompt": add_generation_prompt}
        try:
            return self._template.render(self.tokens | named | variables)
        except Exception as error:  # a template can raise whatever Python raises
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UserError(f"{self.name}: does not take this dialogue: {reason}") from None


def load(
    directory: str | Path, tokenizer: Tokenizer, file: str | Path | None = None, name: str = "default"
) -> ChatTemplate:
    """The template of a tokenizer.

    Args:
      directory: RUN_DIR, RUN_DIR/tokenizer or HF_DIR.
      tokenizer: its tokenizer, for the special tokens that no file names.
      file: a template to take instead.
      name: which, where a tokenizer has several.

    Returns:
      The template, with the tokenizer's special tokens.

    Raises:
      UserError: there is no template, none of this name, or it cannot be read.
    """
    folder = Path(directory)
    folder = folder / "tokenizer" if (folder / "tokenizer").is_dir() else folder
    tokens = special_tokens(folder, tokenizer)
    if file is not None:
        try:
            return ChatTemplate(Path(file).read_text("utf-8"), str(file), tokens)
        except OSError as error:
            raise UserError(f"--template: {file}: cannot be read ({error.strerror}); wants a Jinja file") from None
        except UnicodeDecodeError as error:
            raise UserError(f"--template: {file}: not UTF-8 ({error.reason}); wants a Jinja file") from None
    found = vocabulary_files.read_chat_templates(folder)
    if not found:
        raise UserError(
            f"{folder}: has no chat template ({vocabulary_files.CHAT_TEMPLATE}, or chat_template in "
            f"{vocabulary_files.SETTINGS}); give one with --template FILE"
        )
    if name not in found:
        has = ", ".join(map(repr, found))
        raise UserError(f"{folder}: has no chat template {name!r}, only {has}; give one with --template FILE")
    return ChatTemplate(found[name], f"{folder}: chat template", tokens)


def special_tokens(folder: Path, tokenizer: Tokenizer) -> dict[str, str]:
    """Variables of templates: {"bos_token": "<s>", …}.

    Args:
      folder: the tokenizer's; its tokenizer_config.json says what a token is, or null that there is none.
      tokenizer: gives the tokens of which that file says nothing.
    """
    v = tokenizer.vocabulary
    said = vocabulary_files.read_settings(folder, "special_tokens_map.json") | vocabulary_files.read_settings(folder)
    tokens: dict[str, str] = {}
    for part in SPECIALS:
        i = getattr(v, part)
        ours = None if i is None else tokenizer.tokens([i])[0]
        if part == "pad" and ours not in SPECIALS["pad"]:  # a vocabulary without padding gives some id
            ours = None
        token = said.get(f"{part}_token", ours)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            tokens[f"{part}_token"] = token
    return tokens


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
        if not isinstance(message.get("content"), str):
            wrong = type(message["content"]).__name__ if "content" in message else "missing"
            raise UserError(f"message {number}: content is {wrong}; wants a string")


def _environment() -> Any:
    """Jinja's sandbox, with what `transformers` adds for templates."""
    import jinja2
    from jinja2 import ext, nodes, sandbox

    class Generation(ext.Extension):
        """`{% generation %}…{% endgeneration %}` marks what the assistant says; the text is that of the block."""

        tags = {"generation"}  # noqa: RUF012 (Jinja's)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

        def _text(self, caller: Any) -> str:
            return caller()

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson  # Jinja's own writes for HTML
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment
