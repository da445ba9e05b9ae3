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
from jaxpt.data import chat_template
from jaxpt.data.chat_template import ChatTemplate
from jaxpt.decode.engine import Prompt
from jaxpt.decode.options import Options
from jaxpt.errors import UserError
from jaxpt.inference import loading
from jaxpt.inference.loaded import Loaded
from jaxpt.runtime import hub, signals

MAX_NEW_TOKENS = 512
"""Of an answer."""
EXIT = "/exit"
_ANSWER, _NEXT = "8d1f answer", "8d1f next"  # texts that no template has

Dialogue = list[dict[str, str]]


def chat(path: str, *, system: str | None = None, template: str | None = None, **settings: Any) -> None:
    """Reads messages from stdin, a line each, and answers them until `/exit` or the end of input.

    Args:
      path: RUN_DIR or HF_DIR.
      system: the system message.
      template: a file with a chat template; by default the tokenizer's.
      **settings: of `Options`.

    Raises:
      UserError: the model cannot be loaded, does not generate, or has no chat template.
    """
    Options(**settings)  # before a model is loaded
    model = loading.load(path, batch_size=1)
    if model.family == "encoder":
        raise UserError(f"{path}: is an encoder, which does not generate; wants a dialogue model")
    dialogue_template = chat_template.load(_folder(hub.local(path)), model.tokenizer, template)
    session = Chat(model, dialogue_template, {"max_new_tokens": MAX_NEW_TOKENS, **settings}, system)
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
                raise UserError(f"stdin: not UTF-8 ({error.reason})") from None
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

    def __init__(self, model: Loaded, template: ChatTemplate, settings: Mapping[str, Any], system: str | None) -> None:
        """Begins a dialogue.

        Args:
          model: a decoder or an encoder-decoder.
          template: its chat template.
          settings: of `Options`.
          system: the system message.

        Raises:
          UserError: a setting is out of range.
        """
        self._model, self._template = model, template
        self.messages: Dialogue = [] if system is None else [{"role": "system", "content": system}]
        self._turns = 0
        options = model.options(**settings)
        eos, stop = end_of_answer(model, template)
        if new := [i for i in eos if i not in options.eos]:
            errors.note(f"an answer ends with {model.tokenizer.tokens(new)[0]} (id {new[0]}) of the chat template, too")
        self._options = dataclasses.replace(
            options,
            eos=tuple(dict.fromkeys((*options.eos, *eos))),
            stop=tuple(dict.fromkeys((*options.stop, *stop))),
        )

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

        ((_, (completion, *_)),) = self._model.generate_iter([self._ids(messages)], options, on_text=show, every=1)
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

    def _ids(self, messages: Dialogue) -> Prompt:
        """The prompt of a dialogue. Templates write BOS themselves."""
        prompt = self._model.prompt_ids(self._template.render(messages))
        bos = self._model.vocabulary.bos
        if prompt.encoder is None and bos is not None and list(prompt.tokens[:2]) == [bos, bos]:
            return prompt._replace(tokens=prompt.tokens[1:])
        return prompt

    def _size(self, messages: Dialogue) -> int:
        prompt = self._ids(messages)
        return len(prompt.tokens if prompt.encoder is None else prompt.encoder)


def end_of_answer(model: Loaded, template: ChatTemplate) -> tuple[Sequence[int], Sequence[str]]:
    """What a template writes after the assistant's message: where an answer ends.

    Args:
      model: the model.
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
    ids = model.tokenizer.encode(mark, special=True) if mark else []
    if not ids:
        return (), ()
    if model.tokenizer.spelled(ids[0]) == b"" or _is_special(model, ids[0]):
        return (ids[0],), ()
    return (), (between[: len(between) - len(mark)] + mark.splitlines()[0],)


def _is_special(model: Loaded, i: int) -> bool:
    """Whether an id is a token of its own, whatever text surrounds it, such as <|im_end|>."""
    (piece,) = model.tokenizer.tokens([i])
    is_marked = len(piece) > 2 and piece[0] in "<[" and piece[-1] in ">]"
    return is_marked and model.tokenizer.encode(f"a{piece}b", special=True).count(i) == 1


def _folder(path: Path) -> Path:
    """Where the tokenizer is: of RUN_DIR/checkpoints/STEP, in RUN_DIR."""
    return path.parents[1] if path.parent.name == "checkpoints" else path
