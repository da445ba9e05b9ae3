"""Settings of search and sampling, with the names and the defaults of Transformers where it has them.

A field is described once: its default, its rule, and the placeholder and help of its flag. Beside it an option needs
the place that uses it, in `jaxpt.decode.logits` for most.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import numbers
from collections.abc import Callable, Iterable
from typing import Any, Literal

from jaxpt.errors import UserError


def _wrong(name: str, value: Any, expected: str) -> UserError:
    return UserError(f"{name} is {value!r}: must be {expected}")


@dataclasses.dataclass(frozen=True)
class Integer:
    """The rule of an integer."""

    minimum: int
    maximum: int | None = None
    parse = int
    """Of a text on the command line."""

    def __call__(self, name: str, value: Any, optional: bool = False) -> int | None:
        """The value as a plain integer; UserError if it is none, or out of range."""
        if value is None and optional:
            return None
        is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        if not is_integer or value < self.minimum or (self.maximum is not None and value > self.maximum):
            end = "on" if self.maximum is None else f"to {self.maximum}"
            raise _wrong(name, value, f"an integer from {self.minimum} {end}{', or None' if optional else ''}")
        return int(value)


@dataclasses.dataclass(frozen=True)
class Number:
    """The rule of a finite number."""

    expected: str = "a number"
    is_valid: Callable[[float], bool] = lambda x: True
    parse = float

    def __call__(self, name: str, value: Any, optional: bool = False) -> float | None:
        """The value as a plain number; UserError if it is none, or out of range."""
        if value is None and optional:
            return None
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not self.is_valid(value):
            raise _wrong(name, value, self.expected)
        return float(value)


class Ids:
    """The rule of ids; one id is a tuple of one."""

    def __call__(self, name: str, value: Any, optional: bool = False) -> tuple[int, ...]:
        """The value as a tuple; UserError if it is none of ids."""
        if isinstance(value, numbers.Integral):
            value = (value,)
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise _wrong(name, value, "ids, such as (2,)")
        return tuple(Integer(0)(name, token_id) for token_id in value)

    def parse(self, text: str) -> tuple[int, ...]:
        """The value of a command line."""
        if not all(word.isdecimal() for word in text.split(",")):
            raise argparse.ArgumentTypeError(f"expected ids such as 2,7, got {text!r}")
        return tuple(map(int, text.split(",")))


class IdOrIds(Ids):
    """The rule of an id, or several."""

    def __call__(self, name: str, value: Any, optional: bool = False) -> int | tuple[int, ...] | None:
        """The value: a single id is no tuple."""
        if not isinstance(value, list | tuple):
            return Integer(0)(name, value, optional=True)
        ids = super().__call__(name, value)
        return ids if len(ids) > 1 else next(iter(ids), None)


class Words(Ids):
    """The rule of sequences of ids."""

    def __call__(self, name: str, value: Any, optional: bool = False) -> tuple[tuple[int, ...], ...]:
        """The value as tuples; UserError if it is none of sequences."""
        words = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (None,)
        if all(isinstance(word, Iterable) and not isinstance(word, str) for word in words):
            words = tuple(super(Words, self).__call__(name, word) for word in words)
            if all(words):
                return words
        raise _wrong(name, value, "sequences of at least one id each, such as ((5,), (7, 8))")

    def parse(self, text: str) -> tuple[tuple[int, ...], ...]:
        """The value of a command line."""
        return tuple(super(Words, self).parse(word) for word in text.split(";"))


class Texts:
    """The rule of texts; one text is a tuple of one."""

    def __call__(self, name: str, value: Any, optional: bool = False) -> tuple[str, ...]:
        """The value as a tuple; UserError if it is none of texts."""
        if not isinstance(value, Iterable):
            raise _wrong(name, value, "texts")
        texts = (value,) if isinstance(value, str) else tuple(value)
        if not all(isinstance(text, str) and text for text in texts):
            raise _wrong(name, value, "texts of at least one character")
        return texts


@dataclasses.dataclass(frozen=True)
class Choice:
    """The rule of one of a few values."""

    values: tuple[Any, ...]
    expected: str

    def __call__(self, name: str, value: Any, optional: bool = False) -> Any:
        """The value; UserError if it is none of them."""
        if not any(value is known or (isinstance(known, str) and value == known) for known in self.values):
            raise _wrong(name, value, self.expected)
        return value

    def parse(self, text: str) -> Any:
        """The value of a command line."""
        spelled = {str(value).lower(): value for value in self.values}
        expected = self.expected.replace('"', "")
        if text not in spelled:
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
        return spelled[text]


def _option(default: Any, rule: Any, placeholder: str = "", text: str = "") -> Any:
    """A field: its default and rule; the placeholder and the help of its flag, if the command line has one."""
    return dataclasses.field(default=default, metadata={"rule": rule, "placeholder": placeholder, "help": text})


ANSWER_TOKENS = 512
"""`max_new_tokens` of an answer in a dialogue, where it is not set."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Settings of search and sampling. Hashable: a static argument of compiled functions.

    A list counts as a tuple, a single id or stop string as a tuple of one. A setting that would have no effect beside
    the others is refused.

    Raises:
      UserError: a value is out of range, or two settings exclude each other.

    Example:
      >>> Options(temperature=0.7, top_p=0.9, eos=2).eos
      (2,)
    """

    max_new_tokens: int = _option(64, Integer(1), "N", "tokens at most, as far as the model's positions go (64)")
    """Largest number of generated tokens, at least 1."""
    min_new_tokens: int = _option(0, Integer(0), "N", "number of tokens before which no text ends (0)")
    """Generated tokens before which no EOS is chosen."""
    min_length: int = _option(0, Integer(0), "N", "the same with the prompt's tokens (0)")
    """Tokens, prompt included, before which no EOS is chosen."""
    temperature: float = _option(
        0.0, Number("0 or a number from 1e-6 on", lambda x: x == 0 or x >= 1e-6),  # logits / 1e-40 would be infinite
        "T", "0: the most likely token; above: sample from softmax(logits / T) (0)",
    )  # fmt: skip
    """Logits are divided by it; 0 chooses the most likely token and applies no filter."""
    top_k: int | None = _option(
        None, Integer(1), "K", "sample from the K most likely tokens; encoders: number of candidates for a mask (5)"
    )
    """Sample from the k most likely tokens."""
    top_p: float | None = _option(
        None, Number("a number above 0 and at most 1, or None", lambda x: 0 < x <= 1), "P",
        "sample from the fewest most likely tokens with probability P together",
    )  # fmt: skip
    """Sample from the fewest most likely tokens with at least this probability together, in (0, 1]."""
    min_p: float | None = _option(
        None, Number("a number from 0 to 1, or None", lambda x: 0 <= x <= 1), "P",
        "sample from the tokens with at least P × the largest probability",
    )  # fmt: skip
    """Sample from the tokens with at least this part of the largest probability, in [0, 1]."""
    typical_p: float | None = _option(
        None, Number("a number between 0 and 1, or None", lambda x: 0 < x < 1), "P",
        "sample from tokens of typical information with probability P together",
    )  # fmt: skip
    """Sample from the fewest tokens with at least this probability together whose information is nearest to the
    entropy, in (0, 1). Paper: https://arxiv.org/abs/2202.00666"""
    repetition_penalty: float = _option(
        1.0, Number("a number above 0", lambda x: x > 0), "R", "above 1: tokens that were there are less likely (1)"
    )
    """Logits of tokens of prompt and text are divided by it if positive, else multiplied; 1 is none.
    Paper: https://arxiv.org/abs/1909.05858"""
    presence_penalty: float = _option(
        0.0, Number(), "X", "is subtracted from the logits of tokens that were generated (0)"
    )
    """Subtracted from the logits of generated tokens (OpenAI, vLLM)."""
    frequency_penalty: float = _option(0.0, Number(), "X", "is subtracted for each time that a token was generated (0)")
    """Subtracted from the logits of generated tokens, times the number of their occurrences (OpenAI, vLLM)."""
    no_repeat_ngram: int = _option(0, Integer(0), "N", "no N-gram of tokens occurs twice")
    """No n-gram of this size occurs twice, prompt included; 0 allows all."""
    bad_words: tuple[tuple[int, ...], ...] = _option(
        (), Words(), "IDS;IDS", "sequences of ids that are never completed"
    )
    """Sequences of ids that are never completed. An EOS alone is ignored, as in Transformers."""
    forced_first: int | None = _option(None, Integer(0), "ID", "id that follows the decoder's start")
    """The id that follows a prompt of one token, the decoder's start (mBART: the language). Transformers:
    `forced_bos_token_id`."""
    forced_last: int | tuple[int, ...] | None = _option(
        None, IdOrIds(), "IDS", "id at the last place, or several, one of which is chosen"
    )
    """The id at `max_new_tokens`, or several, one of which is chosen. Transformers: `forced_eos_token_id`."""
    suppress: tuple[int, ...] = _option((), Ids(), "IDS", "ids that are never chosen, with commas")
    """Ids that are never chosen. Transformers: `suppress_tokens`."""
    suppress_first: tuple[int, ...] = _option((), Ids(), "IDS", "ids that are not the first one after the prompt")
    """Ids that are not chosen as the first token after the prompt, or after `forced_first`. Transformers:
    `begin_suppress_tokens`."""
    eos: tuple[int, ...] = _option((), Ids(), "IDS", "ids that end a text, with commas (those of the model's files)")
    """Ids that end a text."""
    first_sentinel: int | None = _option(None, Integer(0))
    """Ids from this one on are sentinels: after a sentinel neither a sentinel nor EOS follows, so no span is empty."""
    beams: int = _option(1, Integer(1), "B", "beam search with B beams (1: none)")
    """Beams of beam search; 1 is none."""
    length_penalty: float = _option(1.0, Number(), "L", "beams: score = log-probability / length ** L (1)")
    """A finished beam's score is its log-probability / length ** length_penalty."""
    early_stopping: bool | Literal["never"] = _option(
        False, Choice((True, False, "never"), 'true, false or "never"'), "WHEN",
        "beams: end with B finished ones: true, false or never (false)",
    )  # fmt: skip
    """When beam search ends. True: with as many finished beams as `beams`. False: when no beam that goes on is
    likely to be better. "never": when none can be better."""
    samples: int = _option(1, Integer(1), "N", "texts for each prompt (1)")
    """Texts per prompt: drawn, or the best of the beams."""
    seed: int = _option(0, Integer(0, 2**32 - 1), "S", "a sample depends on the seed and the number of the prompt (0)")
    """A sample depends on (seed, row, number of the sample) alone."""
    stop: tuple[str, ...] = _option(
        (), Texts(), "TEXT", "end before this text; may be repeated; texts of beams are cut after the search"
    )
    """Texts before which generation ends. Beam search does not look for them: it ranks whole texts, which are then
    cut."""
    scores: bool = _option(False, Choice((True, False), "true or false"))
    """Return the log-probabilities of the chosen tokens."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = field.metadata["rule"](field.name, getattr(self, field.name), field.default is None)
            object.__setattr__(self, field.name, value)
        self._check_combination()

    def _check_combination(self) -> None:
        if self.min_new_tokens > self.max_new_tokens:
            raise _wrong("min_new_tokens", self.min_new_tokens, f"at most max_new_tokens, {self.max_new_tokens}")
        if self.beams > 1:
            if self.temperature > 0:
                raise _wrong("temperature", self.temperature, f"0 with beams={self.beams}, which draw no samples")
            if self.samples > self.beams:
                raise _wrong("samples", self.samples, f"at most beams, {self.beams}")
        else:
            for name in ("length_penalty", "early_stopping"):
                if getattr(self, name) != getattr(Options, name):
                    raise _wrong(
                        name, getattr(self, name), f"{getattr(Options, name)} without beams: set beams above 1"
                    )
            if self.samples > 1 and self.temperature == 0:
                raise _wrong("samples", self.samples, "1 at temperature 0: set temperature above 0, or beams")
        for name in ("forced_first", "forced_last"):
            value = getattr(self, name)
            if value is not None and {*(value if isinstance(value, tuple) else (value,))} <= {*self.suppress}:
                raise _wrong(name, value, "an id that suppress leaves")
        last = {*(self.forced_last if isinstance(self.forced_last, tuple) else (self.forced_last,))} - {None}
        if self.max_new_tokens == 1 and self.forced_first is None and last and last <= {*self.suppress_first}:
            raise _wrong("forced_last", self.forced_last, "an id that suppress_first leaves, at max_new_tokens 1")
        for name in ("top_k", "top_p", "min_p", "typical_p"):
            if self.temperature == 0 and getattr(self, name) not in (None, {"top_p": 1.0, "min_p": 0.0}.get(name)):
                raise _wrong(name, getattr(self, name), "None at temperature 0: set temperature above 0 to sample")

    @property
    def static(self) -> Options:
        """A copy without what no compiled function reads, `seed` and `stop`: the key of a compiled function."""
        return dataclasses.replace(self, seed=0, stop=())

    def check_vocabulary(self, vocab_size: int) -> None:
        """Checks that all ids are in the vocabulary.

        Args:
          vocab_size: number of ids.

        Raises:
          UserError: an id is not in the vocabulary.
        """
        ids = {name: getattr(self, name) for name in ("eos", "suppress", "suppress_first")}
        ids |= {"bad_words": sum(self.bad_words, ()), "forced_first": (self.forced_first,)}
        ids["forced_last"] = self.forced_last if isinstance(self.forced_last, tuple) else (self.forced_last,)
        for name, values in ids.items():
            for value in values:
                if value is not None and value >= vocab_size:
                    raise _wrong(name, value, f"ids below the vocabulary's size, {vocab_size}")


class StopStrings:
    """Strings that end a generated text. The text stops before the first of them that is complete.

    Of several that end at the same character the longest counts. This depends on the text alone, not on how it was
    cut into tokens or how many of them came at once.

    Example:
      >>> stops = StopStrings(["\\n\\n", "User:"])
      >>> stops.first("yes\\nUser: and"), stops.held("yes\\nUs")
      (4, 2)
    """

    def __init__(self, strings: Iterable[str] = ()) -> None:
        """Takes the strings; none never stops.

        Raises:
          UserError: an empty one.
        """
        self.strings = tuple(dict.fromkeys(strings))
        if "" in self.strings:
            raise UserError("--stop: is empty; wants a text that ends the generation")

    def first(self, text: str) -> int | None:
        """Where the first complete stop string begins; None where there is none."""
        matches = [(start + len(stop), start) for stop in self.strings if (start := text.find(stop)) >= 0]
        return min(matches)[1] if matches else None

    def cut(self, text: str) -> str:
        """The text before the first complete stop string."""
        return text[: self.first(text)]

    def held(self, text: str) -> int:
        """Number of characters at the end of `text` that may begin a stop string."""
        longest = max(map(len, self.strings), default=1) - 1
        sizes = range(min(longest, len(text)), 0, -1)
        return next((n for n in sizes if any(stop.startswith(text[-n:]) for stop in self.strings)), 0)
