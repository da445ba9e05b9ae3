"""Tokens that stand beside a vocabulary's pieces and are looked for in a text before it is tokenized."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tokenizers as library
from tokenizers import models

from jaxpt.data.calls import Vocabulary
from jaxpt.errors import UserError, shown

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclasses.dataclass(frozen=True)
class AddedToken:
    """A token as files of `transformers` describe it."""

    content: str
    id: int | None = None
    """None: the next free id, or the one that its piece has."""
    single_word: bool = False
    """Found only where no letter is beside it."""
    lstrip: bool = False
    """The white space before it belongs to it."""
    rstrip: bool = False
    """The white space behind it belongs to it."""
    normalized: bool = False
    """Looked for in the normalized text."""
    special: bool = False
    """Not read in plain text, only where special tokens are (prompts, dialogues)."""

    def tree(self) -> dict[str, Any]:
        """Its entry in `added_tokens_decoder`."""
        return {"content": self.content, **{flag: getattr(self, flag) for flag in _FLAGS}}

    def named(self) -> Any:
        """How tokenizer_config.json names it as a special token: as a text, where that says all."""
        is_plain = self == AddedToken(self.content, self.id, special=True)
        return self.content if is_plain else {"__type": "AddedToken", **self.tree()}


def parse(value: Any, where: str, i: int | None = None, **flags: bool) -> AddedToken:
    """A token of a file.

    Args:
      value: its text, or an object with `content` and flags.
      where: file and key, for the message.
      i: its id, where the file says it.
      **flags: of a token that is only a text, or whose object does not say them.

    Raises:
      UserError: neither.

    Example:
      >>> parse({"content": "<ent>", "lstrip": True}, "added_tokens.json").lstrip
      True
    """
    tree = {"content": value} if isinstance(value, str) else value
    if not isinstance(tree, Mapping) or not isinstance(tree.get("content"), str) or not tree["content"]:
        raise UserError(f"{where}: is {shown(value)}; wants a token, or an object with its content")
    token_flags = {flag: tree[flag] for flag in _FLAGS if flag in tree}
    if wrong := next((flag for flag, on in token_flags.items() if not isinstance(on, bool)), None):
        raise UserError(f"{where}: {wrong} is {shown(token_flags[wrong])}; wants true or false")
    token_flags = flags | token_flags
    if isinstance(value, Mapping):  # as `tokenizers` does
        token_flags.setdefault("normalized", not token_flags.get("special", False))
    return AddedToken(tree["content"], i, **token_flags)


def numbered(tokens: Iterable[AddedToken], ids: Mapping[str, int], size: int) -> list[AddedToken]:
    """Tokens with their ids: that of a piece of the same name, else the next ones behind the vocabulary.

    Args:
      tokens: those with an id in its order, then those without.
      ids: of the vocabulary's pieces.
      size: the vocabulary's.

    Raises:
      UserError: a file gives a token another id than it gets here; `transformers` would not give it that id either.
    """
    by_name: dict[str, AddedToken] = {}
    for token in tokens:
        if token.content in by_name:
            continue
        i, size = (ids[token.content], size) if token.content in ids else (size, size + 1)
        if token.id not in (None, i):
            raise UserError(
                f"the added token {shown(token.content)} has id {token.id} in its file; "
                + (f"the vocabulary has it at {i}" if token.content in ids else f"the next free id is {i}")
            )
        by_name[token.content] = dataclasses.replace(token, id=i)
    return list(by_name.values())


def is_sentinel(token: str) -> bool:
    """Whether a token is written as T5's sentinels are; in mT5's model white space stands before them."""
    return "<extra_id_" in token and re.fullmatch(r"▁?<extra_id_\d+>", token) is not None


def sentinels(ids: Mapping[str, int], where: Any) -> tuple[int, int]:
    """(how many sentinels there are among pieces, the id behind them); (0, 0) where there are none.

    Args:
      ids: of the pieces.
      where: the file, for the message.

    Raises:
      UserError: their ids do not fall from one to the next.

    Example:
      >>> sentinels({"a": 0, "▁<extra_id_1>": 1, "▁<extra_id_0>": 2, "<ent>": 3}, "spiece.model")
      (2, 3)
    """
    pieces = sorted(filter(is_sentinel, ids), reverse=True)  # "<extra_id_0>" counts before "▁<extra_id_0>"
    sentinel_ids = {int(piece.partition("id_")[2][:-1]): ids[piece] for piece in pieces}
    end = sentinel_ids.get(0, -1) + 1
    if any(sentinel_ids.get(n) != end - 1 - n for n in range(len(sentinel_ids))):
        raise UserError(f"{where}: wants its {len(sentinel_ids)} sentinels at the end, <extra_id_0> the last")
    return len(sentinel_ids), end


def vocabulary(
    size: int, added: Mapping[str, int], sentinels: int, sentinels_end: int, hides_word_starts: bool = False,
    **ids: int | None,
) -> Vocabulary:  # fmt: skip
    """The ids of a vocabulary, some of whose last ones may be those of added tokens; sentinels are none.

    Args:
      size: how many ids there are.
      added: ids of the tokens that were added.
      sentinels: how many sentinels there are.
      sentinels_end: the id behind them.
      hides_word_starts: as `Vocabulary`'s.
      **ids: further fields.

    Example:
      >>> vocabulary(104, {"<s>": 1, "<extra_id_0>": 101, "<a>": 102, "<b>": 103}, 1, 102).behind
      2
    """
    tokens = {i for token, i in added.items() if not re.fullmatch(r"<extra_id_\d+>", token)}
    behind = next(count for count in itertools.count() if size - 1 - count not in tokens)
    end = sentinels_end if sentinels and sentinels_end != size - behind else None
    return Vocabulary(
        size, sentinels=sentinels, added=tuple(added.items()), behind=behind, sentinels_end=end,
        hides_word_starts=hides_word_starts, **ids,
    )  # fmt: skip


class Match(NamedTuple):
    """An added token in a text."""

    id: int
    start: int
    end: int


class Finder:
    """Looks for added tokens in texts, with the rules of `tokenizers`."""

    def __init__(self, tokens: Sequence[AddedToken], normalizer: Any = None) -> None:
        """Takes tokens with their ids, and the step that normalizes a text before those are looked for that are
        `normalized`."""
        # The library finds the tokens; its model gives id 0 to any text between them.
        self._rust = library.Tokenizer(models.WordLevel({"": 0}, unk_token=""))
        if normalizer is not None:
            self._rust.normalizer = normalizer
        plain = (dataclasses.replace(token, special=False).tree() for token in tokens)
        self._rust.add_tokens([library.AddedToken(**tree) for tree in plain])
        self._ids = {self._rust.token_to_id(token.content): token.id for token in tokens}

    def __call__(self, text: str) -> list[Match]:
        """The tokens of a text, in order."""
        encoding = self._rust.encode(text, add_special_tokens=False)
        return [Match(self._ids[i], *span) for i, span in zip(encoding.ids, encoding.offsets) if i]
