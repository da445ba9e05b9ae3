"""Token ids to text while they are generated: streams that never show half a character, and stop strings.

stream.push(ids) → text that no later id changes → without what may begin a stop string → shown
"""

from __future__ import annotations

import codecs
import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

from jaxpt.data.tokenizers.base import Tokenizer, cached_method
from jaxpt.decode.engine import Engine, Generated, Prompt
from jaxpt.decode.options import Options, StopStrings

_HELD_IDS = 16  # ids of a tokenizer that does not say how it spells bytes are held no longer than this


OnText = Callable[[int, int, str], None]
"""(number of the prompt, of the sample, new text), called while the text is generated."""


@dataclasses.dataclass(frozen=True)
class Completion:
    """A generated text."""

    text: str
    """Up to EOS or the stop string, neither included."""
    tokens: list[int]
    """Generated ids; with EOS if there is one, before the stop string if there is one."""
    finish: Literal["eos", "length", "stop", "banned"]
    """Why it ended: EOS, the limit of tokens, a stop string, or options that ban every token that could follow."""
    logprobs: list[float] | None = None
    """log p of each token, with `scores=True`."""
    score: float | None = None
    """Of beam search: that of the text before a stop string cuts it."""


class TextStream:
    """The text of one row, piece by piece.

    All pieces together are what `decode(prompt + ids)` adds to `decode(prompt)`, so a continuation keeps its leading
    space. Where the prompt ends inside a character, the whole character belongs to the stream. The time for an id does
    not depend on the number of ids before it. A tokenizer of which one invalid byte spoils all bytes beside it
    (`byte_text` "runs") shows a run of bytes at its end alone.

    Attributes:
      is_stopped: whether a stop string is complete. Later ids change nothing.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Iterable[int] = (), stops: StopStrings | None = None) -> None:
        """Starts after a prompt.

        Args:
          tokenizer: the tokenizer.
          prompt: ids before the first generated one.
          stops: strings that end the text.
        """
        self._tokenizer, self._prompt, self._stops = tokenizer, list(prompt), stops or StopStrings()
        self._ids: list[int] = []
        self._source = _Bytes(tokenizer) if tokenizer.byte_text == "all" else _Window(tokenizer)
        self._source.push(self._prompt)
        self._shown_by_prompt = self._source.unsettled()
        self._held = ""
        self._before = 0  # characters that were returned
        self._cut: int | None = None  # characters before the stop string
        self.is_stopped = False

    def push(self, ids: Iterable[int]) -> str:
        """Takes further ids.

        Args:
          ids: generated ids.

        Returns:
          The new text that is final.
        """
        if self.is_stopped:
            return ""
        new = list(map(int, ids))
        self._ids += new
        return self._show(self._source.push(new), is_last=False)

    def finish(self) -> str:
        """The rest of the text, when no further id comes; half a character becomes "\\ufffd", as in `decode`."""
        return "" if self.is_stopped else self._show(self._source.finish(), is_last=True)

    def kept(self) -> int:
        """Number of generated ids whose text lies before the stop string; all of them where there is none.

        These are the most ids that `decode` to nothing but a beginning of the text. A token with both the end of the
        text and the start of the stop string is not among them: the text is exact, the ids may fall short of it.
        """
        if self._cut is None:
            return len(self._ids)
        text = self._tokenizer.decode([*self._prompt, *self._ids])
        start = len(_common(self._tokenizer.decode(self._prompt), text))
        for count in reversed(range(len(self._ids))):
            if text[: start + self._cut].startswith(self._tokenizer.decode([*self._prompt, *self._ids[:count]])):
                return count
        return 0

    def _show(self, text: str, is_last: bool) -> str:
        common = _common(self._shown_by_prompt, text)
        is_through = len(common) < min(len(text), len(self._shown_by_prompt))  # the two differ from here on
        self._shown_by_prompt = "" if is_through else self._shown_by_prompt[len(common) :]
        text = self._held + text[len(common) :]
        end = self._stops.first(text)
        if end is not None:
            self.is_stopped, self._cut = True, self._before + end
        else:
            end = len(text) - (0 if is_last else self._stops.held(text))
        self._held = text[end:]
        self._before += end
        return text[:end]


class TextStreams:
    """The texts of all rows while they are generated."""

    def __init__(
        self, tokenizer: Tokenizer, prompts: Sequence[Prompt], options: Options, on_text: OnText | None
    ) -> None:
        """For prompts.

        Args:
          tokenizer: the tokenizer.
          prompts: of the rows.
          options: ids and strings that end a text.
          on_text: is given new text.
        """
        self._tokenizer, self._prompts, self._options, self._on_text = tokenizer, prompts, options, on_text
        self._stops = StopStrings(options.stop)
        self._rows: dict[tuple[int, int], tuple[TextStream, str, int]] = {}
        """(stream, its text, number of ids that it has) of each (prompt, sample)."""

    def watch(self, index: int, sample: int, ids: list[int]) -> bool:
        """Takes the new ids of a row; True if a stop string is complete."""
        stream, text, num_ids = self._rows.get((index, sample)) or (self._stream(self._prompts[index]), "", 0)
        new = stream.push(i for i in ids[num_ids:] if i not in self._options.eos)
        self._show(index, sample, new)
        self._rows[index, sample] = (stream, text + new, len(ids))
        return stream.is_stopped

    def completed(self, row: Generated) -> Completion:
        """The text of a finished row."""
        self.watch(row.index, row.sample, row.tokens)
        stream, text, num_ids = self._rows.pop((row.index, row.sample))
        rest = stream.finish()
        self._show(row.index, row.sample, rest)
        if stream.is_stopped:
            num_ids = stream.kept()
        logprobs = None if row.logprobs is None else row.logprobs[:num_ids]
        finish = "stop" if stream.is_stopped else row.finish
        return Completion(text + rest, row.tokens[:num_ids], finish, logprobs, row.score)

    def generate(self, engine: Engine, every: int) -> Iterator[tuple[int, list[Completion]]]:
        """Generates the texts, in the order in which they are finished; see `Loaded.generate_iter`.

        Args:
          engine: of the model.
          every: tokens between two looks at the new text, for stop strings and `on_text`.

        Yields:
          (number of the prompt, its samples); each prompt once. Beam search may find fewer than requested, or none.
        """
        watch = self.watch if self._on_text is not None or self._options.stop else None
        waiting: dict[int, dict[int, Completion]] = collections.defaultdict(dict)
        incomplete = dict.fromkeys(range(len(self._prompts)))
        for generated in engine.generate(self._prompts, self._options, watch=watch, every=every):
            samples = waiting[generated.index]
            samples[generated.sample] = self.completed(generated)
            if len(samples) == self._options.samples:
                del incomplete[generated.index]
                yield generated.index, [samples[n] for n in sorted(waiting.pop(generated.index))]
        for index in incomplete:
            yield index, [completion for _, completion in sorted(waiting[index].items())]

    def _stream(self, prompt: Prompt) -> TextStream:
        return TextStream(self._tokenizer, prompt.tokens if prompt.encoder is None else (), self._stops)

    def _show(self, index: int, sample: int, text: str) -> None:
        if text and self._on_text is not None:
            self._on_text(index, sample, text)


class _Bytes:
    """Text of byte-level ids: the text is that of all their bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._spelled = tokenizer.spelled
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Sequence[int]) -> str:
        """Text that these ids settle."""
        return self._decoder.decode(b"".join(self._spelled(i) or b"" for i in ids))

    def unsettled(self) -> str:
        """What the last bytes give if nothing follows."""
        return self._decoder.getstate()[0].decode("utf-8", "replace")

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _Window:
    """Text of other ids: that of the new ones after one or two settled ones, which give them their context.

    Ids of bytes wait until their characters are settled. Everything else is settled at once: later ids add to the text
    of these tokenizers and change nothing in it, spaces between words included.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._has_text = False
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, ids: Sequence[int]) -> str:
        """Text that these ids settle."""
        self._pending += [i for i in ids if self._tokenizer.spelled(i) != b""]
        size = self._settled()
        return self._settle(size) if size else ""

    def unsettled(self) -> str:
        """What the last ids give if nothing follows."""
        return self._text(self._pending)

    def finish(self) -> str:
        return self._settle(len(self._pending)) if self._pending else ""

    def _text(self, ids: list[int]) -> str:
        before = self._tokenizer.decode(self._context) if self._has_text else ""
        return self._tokenizer.decode(self._context + ids)[len(before) :] if ids else ""

    def _settle(self, size: int) -> str:
        text, last = self._text(self._pending[:size]), self._pending[size - 1]
        # Tokenizers strip the start of a text. So while there is none, the ids before give the state; after that, an id
        # of a word stands before the last one, which may be a space or half a character.
        self._has_text |= bool(text)
        self._context = [*_word(self._tokenizer), last] if self._has_text else [last]
        del self._pending[:size]
        return text

    def _settled(self) -> int:
        """Number of pending ids whose text no later id changes."""
        pending, kind = self._pending, self._tokenizer.byte_text
        if kind is None:
            sizes = range(len(pending), max(len(pending) - _HELD_IDS, 0), -1)
            return next((n for n in sizes if not self._text(pending[:n]).endswith("\ufffd")), len(pending) - len(sizes))
        size = 3 if kind == "characters" else len(pending)
        run = b""
        for i in reversed(pending[-size:]):
            spelled = self._tokenizer.spelled(i)
            if spelled is None:
                break
            run = spelled + run
        return len(pending) - (unfinished(run) if kind == "characters" else len(run))


def unfinished(run: bytes) -> int:
    """Number of bytes at the end, up to three, that may begin a character.

    Args:
      run: any bytes.

    Returns:
      From 0 to 3.

    Example:
      >>> [unfinished(run) for run in ("中".encode(), "中".encode()[:2], b"\\xad\\xe4", b"\\xff")]
      [0, 2, 1, 0]
    """
    for size in range(min(3, len(run)), 0, -1):
        try:
            if codecs.utf_8_decode(run[-size:], "strict", False)[1] == 0:
                return size
        except UnicodeDecodeError:
            continue
    return 0


@cached_method
def _word(tokenizer: Tokenizer) -> list[int]:
    """An id whose text is letters; none where the vocabulary has no such id."""
    ids = range(tokenizer.vocabulary.size)
    return next(([i] for i in ids if tokenizer.spelled(i) is None and tokenizer.decode([i]).isalpha()), [])


def _common(text: str, other: str) -> str:
    """The longest beginning of both."""
    size = next((n for n, (a, b) in enumerate(zip(text, other)) if a != b), min(len(text), len(other)))
    return text[:size]
