"""Settings of search and sampling, with the names and the defaults of Transformers where it has them."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Iterable
from typing import Any, Literal

from jaxpt.errors import UserError


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

    max_new_tokens: int = 64
    """Largest number of generated tokens, at least 1."""
    min_new_tokens: int = 0
    """Generated tokens before which no EOS is chosen."""
    min_length: int = 0
    """Tokens, prompt included, before which no EOS is chosen."""
    temperature: float = 0.0
    """Logits are divided by it; 0 chooses the most likely token and applies no filter."""
    top_k: int | None = None
    """Sample from the k most likely tokens."""
    top_p: float | None = None
    """Sample from the fewest most likely tokens with at least this probability together, in (0, 1]."""
    min_p: float | None = None
    """Sample from the tokens with at least this part of the largest probability, in [0, 1]."""
    typical_p: float | None = None
    """Sample from the fewest tokens with at least this probability together whose information is nearest to the
    entropy, in (0, 1). Paper: https://arxiv.org/abs/2202.00666"""
    repetition_penalty: float = 1.0
    """Logits of tokens of prompt and text are divided by it if positive, else multiplied; 1 is none.
    Paper: https://arxiv.org/abs/1909.05858"""
    presence_penalty: float = 0.0
    """Subtracted from the logits of generated tokens (OpenAI, vLLM)."""
    frequency_penalty: float = 0.0
    """Subtracted from the logits of generated tokens, times the number of their occurrences (OpenAI, vLLM)."""
    no_repeat_ngram: int = 0
    """No n-gram of this size occurs twice, prompt included; 0 allows all."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Sequences of ids that are never completed. An EOS alone is ignored, as in Transformers."""
    forced_first: int | None = None
    """The id that follows a prompt of one token, the decoder's start (mBART: the language). Transformers:
    `forced_bos_token_id`."""
    forced_last: int | tuple[int, ...] | None = None
    """The id at `max_new_tokens`, or several, one of which is chosen. Transformers: `forced_eos_token_id`."""
    suppress: tuple[int, ...] = ()
    """Ids that are never chosen. Transformers: `suppress_tokens`."""
    suppress_first: tuple[int, ...] = ()
    """Ids that are not chosen as the first token after the prompt, or after `forced_first`. Transformers:
    `begin_suppress_tokens`."""
    eos: tuple[int, ...] = ()
    """Ids that end a text."""
    first_sentinel: int | None = None
    """Ids from this one on are sentinels: after a sentinel neither a sentinel nor EOS follows, so no span is empty."""
    beams: int = 1
    """Beams of beam search; 1 is none."""
    length_penalty: float = 1.0
    """A finished beam's score is its log-probability / length ** length_penalty."""
    early_stopping: bool | Literal["never"] = False
    """When beam search ends. True: with as many finished beams as `beams`. False: when no beam that goes on is
    likely to be better. "never": when none can be better."""
    samples: int = 1
    """Texts per prompt: drawn, or the best of the beams."""
    seed: int = 0
    """A sample depends on (seed, row, number of the sample) alone."""
    stop: tuple[str, ...] = ()
    """Texts before which generation ends."""
    scores: bool = False
    """Return the log-probabilities of the chosen tokens."""

    def __post_init__(self) -> None:
        for name, (minimum, maximum) in _INTEGERS.items():
            self._set(name, _integer(name, getattr(self, name), minimum, maximum, optional=name in _OPTIONAL))
        for name, (expected, is_valid) in _NUMBERS.items():
            self._set(name, _number(name, getattr(self, name), expected, is_valid, optional=name in _OPTIONAL))
        for name in ("eos", "suppress", "suppress_first"):
            self._set(name, _ids(name, getattr(self, name)))
        if isinstance(self.forced_last, list | tuple):
            ids = _ids("forced_last", self.forced_last)
            self._set("forced_last", ids if len(ids) > 1 else next(iter(ids), None))
        else:
            self._set("forced_last", _integer("forced_last", self.forced_last, 0, optional=True))
        self._set("bad_words", _bad_words(self.bad_words))
        self._set("stop", _texts("stop", self.stop))
        if not isinstance(self.scores, bool):
            raise _wrong("scores", self.scores, "true or false")
        if not (isinstance(self.early_stopping, bool) or self.early_stopping == "never"):
            raise _wrong("early_stopping", self.early_stopping, 'true, false or "never"')
        self._check_combination()

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

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
        for name in ("top_k", "top_p", "min_p", "typical_p"):
            if self.temperature == 0 and getattr(self, name) not in (None, _OFF.get(name)):
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


_INTEGERS = {
    "max_new_tokens": (1, None), "min_new_tokens": (0, None), "min_length": (0, None), "top_k": (1, None),
    "no_repeat_ngram": (0, None), "forced_first": (0, None),
    "first_sentinel": (0, None), "beams": (1, None),
    "samples": (1, None), "seed": (0, 2**32 - 1),
}  # fmt: skip
_NUMBERS = {
    "temperature": ("0 or a number from 1e-6 on", lambda x: x == 0 or x >= 1e-6),  # logits / 1e-40 would be infinite
    "top_p": ("a number above 0 and at most 1, or None", lambda x: 0 < x <= 1),
    "min_p": ("a number from 0 to 1, or None", lambda x: 0 <= x <= 1),
    "typical_p": ("a number between 0 and 1, or None", lambda x: 0 < x < 1),
    "repetition_penalty": ("a number above 0", lambda x: x > 0),
    "presence_penalty": ("a number", lambda x: True),
    "frequency_penalty": ("a number", lambda x: True),
    "length_penalty": ("a number", lambda x: True),
}
_OPTIONAL = ("top_k", "top_p", "min_p", "typical_p", "forced_first", "first_sentinel")
_OFF = {"top_p": 1.0, "min_p": 0.0}
"""Values besides None with which a filter keeps all tokens."""


def _wrong(name: str, value: Any, expected: str) -> UserError:
    return UserError(f"{name} is {value!r}: must be {expected}")


def _integer(name: str, value: Any, minimum: int, maximum: int | None = None, *, optional: bool = False) -> int | None:
    if value is None and optional:
        return None
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_integer or value < minimum or (maximum is not None and value > maximum):
        bounds = f"an integer from {minimum} on" if maximum is None else f"an integer from {minimum} to {maximum}"
        raise _wrong(name, value, bounds + (", or None" if optional else ""))
    return int(value)


def _number(name: str, value: Any, expected: str, is_valid: Any, *, optional: bool) -> float | None:
    if value is None and optional:
        return None
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not is_valid(value):
        raise _wrong(name, value, expected)
    return float(value)


def _ids(name: str, value: Any) -> tuple[int, ...]:
    if isinstance(value, numbers.Integral):
        value = (value,)
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise _wrong(name, value, "ids, such as (2,)")
    return tuple(_integer(name, token_id, 0) for token_id in value)


def _bad_words(value: Any) -> tuple[tuple[int, ...], ...]:
    expected = "sequences of at least one id each, such as ((5,), (7, 8))"
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise _wrong("bad_words", value, expected)
    words = tuple(value)
    if any(isinstance(word, str) or not isinstance(word, Iterable) for word in words):
        raise _wrong("bad_words", value, expected)
    words = tuple(_ids("bad_words", word) for word in words)
    if not all(words):
        raise _wrong("bad_words", words, expected)
    return words


def _texts(name: str, value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, Iterable):
        raise _wrong(name, value, "texts")
    texts = tuple(texts)
    if not all(isinstance(text, str) and text for text in texts):
        raise _wrong(name, value, "texts of at least one character")
    return texts
