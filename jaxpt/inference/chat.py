"""`jaxpt chat`: a dialogue with a model, by the chat template of its tokenizer.

history → template → ids → answer, shown while it is generated → history
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxpt import errors
from jaxpt.config import files
from jaxpt.data.chat_template import ChatTemplate
from jaxpt.data.tasks.dialogue import tools_of
from jaxpt.decode.engine import Prompt
from jaxpt.decode.options import ANSWER_TOKENS, Options
from jaxpt.errors import UserError
from jaxpt.inference import dialogue, loaded, outside
from jaxpt.inference.loaded import Loaded
from jaxpt.runtime import disk, signals

EXIT = "/exit"

Dialogue = list[dict[str, str]]


def chat(
    path: str,
    *,
    system: str | None = None,
    template: str | None = None,
    template_options: Sequence[str] = (),
    tools: str | None = None,
    **settings: Any,
) -> None:
    """Reads messages from stdin, a line each, and answers them until `/exit` or the end of input.

    Args:
      path: RUN_DIR or HF_DIR.
      system: the system message; by default that of the dialogues that the run learned from (`task.system`).
      template: a file with a chat template; by default the tokenizer's.
      template_options: NAME=VALUE, variables of the template.
      tools: a file with a JSON list of the schemas of tools.
      **settings: of `Options`.

    Raises:
      UserError: the model cannot be loaded, does not generate, or has no chat template; or the file of tools has no
        schemas; or the template does not read them or an option.
    """
    settings = {"max_new_tokens": ANSWER_TOKENS, **settings}
    Options(**settings)  # before a model is loaded
    outside.check_utf_8(system or "", "--system")
    schemas = None if tools is None else tools_of(disk.read_json(Path(tools)), f"--tools: {tools}")
    options: dict[str, Any] = {}
    for item in template_options:
        files.override(options, {}, item, "--template-option")
    model = loaded.load(path, batch_size=1)
    system = model.system if system is None else system
    session = Chat(model, dialogue.template_of(model, template, options), settings, system, schemas)
    if model.unapplied:
        errors.note(f"{path}: its settings of search are not applied: {', '.join(model.unapplied)}")
    for line in _lines():
        try:
            session.answer(line)
        except UserError as error:  # the dialogue goes on without this message
            print(f"jaxpt: {' '.join(str(error).split())}", file=sys.stderr)


def _lines() -> Iterator[str]:
    """Lines of stdin up to `/exit`, with line editing on a terminal."""
    with _terminal() as prompt:
        while True:
            try:
                line = input(prompt).strip()
            except EOFError:
                return
            except UnicodeDecodeError as error:
                raise UserError(f"stdin: not UTF-8 ({error.reason}); wants text in UTF-8") from None
            outside.check_utf_8(line, "stdin")
            if line == EXIT:
                return
            if line:
                yield line


@contextlib.contextmanager
def _terminal() -> Iterator[str]:
    """The prompt of a line on a terminal, which a signal leaves as it was."""
    if not sys.stdin.isatty():
        yield ""
        return
    import readline  # noqa: F401 (`input` uses it)
    import termios

    before = termios.tcgetattr(sys.stdin)
    with signals.on_leave(lambda number: termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)):
        yield "> "


class Chat:
    """A dialogue.

    Attributes:
      messages: the dialogue so far, as templates take it.
    """

    def __init__(
        self,
        model: Loaded,
        template: ChatTemplate,
        settings: Mapping[str, Any],
        system: str | None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Begins a dialogue.

        Args:
          model: a decoder or an encoder-decoder.
          template: its chat template.
          settings: of `Options`.
          system: the system message.
          tools: JSON schemas of tools.

        Raises:
          UserError: a setting is out of range, or the template does not read tools.
        """
        self._model, self._tools = model, tools
        self._template = template.select([{"role": "user", "content": ""}], tools)
        self.messages: Dialogue = [] if system is None else [{"role": "system", "content": system}]
        self._turns = 0
        self._options = dialogue.answer_options(model, template, settings)

    def answer(self, text: str) -> str:
        """Answers a message, on stdout while it comes.

        Args:
          text: what the user says.

        Returns:
          The answer; message and answer are in `messages`.

        Raises:
          UserError: the message alone is too long; the dialogue is as it was before.
        """
        messages = self._fitting([*self.messages, {"role": "user", "content": text}])
        seed = (self._options.seed + self._turns) % 2**32
        options = dataclasses.replace(self._options, seed=seed)

        def show(prompt: int, sample: int, piece: str) -> None:
            print(piece, end="", flush=True)

        prompt = self._prompt(messages)
        ((_, (completion, *_)),) = self._model.generate_iter([prompt], options, on_text=show, every=1)
        print(flush=True)
        self.messages = [*messages, {"role": "assistant", "content": completion.text}]
        self._turns += 1
        return completion.text

    def _fitting(self, messages: Dialogue) -> Dialogue:
        """The dialogue without the oldest turns, if all of it and an answer need more positions than there are."""
        limit = self._model.network.config.position_limit
        if limit is None:
            return messages
        head = messages[:1] if messages[0]["role"] == "system" else []
        turns = messages[len(head) :]
        room = min(self._options.max_new_tokens, limit // 2)  # for the answer
        dropped = 0
        while (size := self._size([*head, *turns])) > limit - room and len(turns) > 1:
            turns, dropped = turns[2:], dropped + 1
        if size > limit:
            raise UserError(f"the message needs {size} tokens, but the model has {limit} positions; shorten it")
        if dropped:
            phrase = "turn is" if dropped == 1 else f"{dropped} turns are"
            print(f"jaxpt: note: the oldest {phrase} forgotten: the model has {limit} positions", file=sys.stderr)
        return [*head, *turns]

    def _size(self, messages: Dialogue) -> int:
        prompt = self._prompt(messages)
        return len(prompt.tokens if prompt.encoder is None else prompt.encoder)

    def _prompt(self, messages: Dialogue) -> Prompt:
        return dialogue.prompt(self._model, self._template, messages, self._tools)
