"""Vocabularies that go on where another one ends: old ids stay, a text has fewer tokens.

A byte-level BPE goes on with its merges on other text: pairs of pieces that are frequent there become new pieces, whose
merges come after the old ones.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tokenizers as library

from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.data.tokenizers.rust_tokenizers import RustTokenizer
from jaxpt.errors import UserError

MIN_FREQUENCY = 2
"""A pair that is rarer becomes no piece."""

Pair = tuple[str, str]


def extend(tokenizer: Tokenizer, texts: Iterable[str], count: int) -> RustTokenizer:
    """A byte-level BPE with further pieces.

    Args:
      tokenizer: the vocabulary to extend.
      texts: what the new pieces are learned from.
      count: how many there are to be; a small corpus may give fewer.

    Returns:
      A tokenizer whose first ids are those of `tokenizer`.

    Raises:
      UserError: it is no byte-level BPE, its ids have gaps, or no text gives a new piece.

    Example: of GPT-2's vocabulary and medical text, `extend(gpt2, texts, 1000).encode("adenocarcinoma")` has fewer ids.
    """
    if not isinstance(tokenizer, RustTokenizer) or tokenizer.kind != "bpe" or tokenizer.byte_text != "all":
        raise UserError(
            f"data.tokenizer: a {tokenizer.kind} vocabulary that is no byte-level BPE cannot be extended by training; "
            "data.tokenizer.add_tokens adds words that you name"
        )
    rust = tokenizer.library
    known = rust.get_vocab(with_added_tokens=True)
    if sorted(known.values()) != list(range(len(known))):
        raise UserError("data.tokenizer: a vocabulary with gaps in its ids cannot be extended")
    words = _words(rust, texts)
    merges = list(itertools.islice(_merges(words, set(known)), count))
    if not merges:
        raise UserError(f"data.tokenizer: the text has no pair of pieces that comes {MIN_FREQUENCY} times")
    tree = json.loads(rust.to_str())
    model = tree["model"]
    # The library numbers added tokens behind the pieces, except for those that are pieces themselves.
    model["vocab"] = known | {a + b: len(known) + n for n, (a, b) in enumerate(merges)}
    in_pairs = bool(model["merges"]) and isinstance(model["merges"][0], list)
    model["merges"] += [list(pair) if in_pairs else " ".join(pair) for pair in merges]
    extended = RustTokenizer(
        library.Tokenizer.from_str(json.dumps(tree)), tokenizer.kind, tokenizer.vocabulary.sentinels,
        tokenizer.vocabulary.sentinel_ids.stop, tokenizer.added,
    )  # fmt: skip
    extended.chat_templates, extended.carried = tokenizer.chat_templates, tokenizer.carried
    extended.of_config = tokenizer.of_config
    if tokenizer.specials:
        extended.name_specials(tokenizer.specials)
    check(extended, tokenizer)
    return extended


def check(extended: Tokenizer, tokenizer: Tokenizer) -> None:
    """Raises UserError where a vocabulary does not begin with another one."""
    ids = range(tokenizer.vocabulary.size)
    if len(ids) > extended.vocabulary.size or extended.pieces(ids) != tokenizer.pieces(ids):
        raise UserError(
            f"data.tokenizer: the vocabulary of {extended.vocabulary.size} ids does not begin with the {len(ids)} ids "
            "of the one that it is to extend"
        )


def old_pieces(extended: Tokenizer, tokenizer: Tokenizer) -> dict[int, list[int]]:
    """What the tokens of an extended vocabulary were before.

    Args:
      extended: result of `extend`, or a tokenizer with added tokens.
      tokenizer: the vocabulary that it extends.

    Returns:
      {new id: ids of its pieces in `tokenizer`}.

    Raises:
      UserError: `extended` does not begin with `tokenizer`.
    """
    check(extended, tokenizer)
    return {i: _pieces(extended, tokenizer, i) for i in range(tokenizer.vocabulary.size, extended.vocabulary.size)}


def _pieces(extended: Tokenizer, tokenizer: Tokenizer, i: int) -> list[int]:
    token = extended.tokens([i])[0]
    if isinstance(extended, RustTokenizer) and isinstance(tokenizer, RustTokenizer):
        piece = extended.library.id_to_token(i)
        if piece not in {added.content for added in extended.library.get_added_tokens_decoder().values()}:
            return [token.id for token in tokenizer.library.model.tokenize(piece)]
    return tokenizer.encode(token)


def _words(rust: Any, texts: Iterable[str]) -> dict[tuple[str, ...], int]:
    """{pieces of a word: how often it comes}."""
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        text = text if rust.normalizer is None else rust.normalizer.normalize_str(text)
        cut = [(text, None)] if rust.pre_tokenizer is None else rust.pre_tokenizer.pre_tokenize_str(text)
        counts.update(word for word, _ in cut)
    words: collections.Counter[tuple[str, ...]] = collections.Counter()
    for word, n in counts.items():
        words[tuple(token.value for token in rust.model.tokenize(word))] += n
    return words


def _merges(words: Mapping[tuple[str, ...], int], known: set[str]) -> Iterable[Pair]:
    """Pairs to merge, the most frequent first; of equally frequent ones the first in the alphabet."""
    spelled, counts = [list(word) for word in words], list(words.values())
    totals: collections.Counter[Pair] = collections.Counter()
    places: dict[Pair, set[int]] = collections.defaultdict(set)
    for n, word in enumerate(spelled):
        for pair in itertools.pairwise(word):
            totals[pair] += counts[n]
            places[pair].add(n)
    queue = [(-total, pair) for pair, total in totals.items()]
    heapq.heapify(queue)
    while queue:
        total, pair = heapq.heappop(queue)
        if -total != totals[pair] or -total < MIN_FREQUENCY:
            continue  # it was counted anew since, or is too rare
        piece = "".join(pair)
        if piece in known:
            continue
        known.add(piece)
        yield pair
        changed: set[Pair] = set()
        for n in places[pair]:
            before, after = spelled[n], merged(spelled[n], pair)
            for old in itertools.pairwise(before):
                totals[old] -= counts[n]
                changed.add(old)
            for new in itertools.pairwise(after):
                totals[new] += counts[n]
                places[new].add(n)
                changed.add(new)
            spelled[n] = after
        for other in changed:
            heapq.heappush(queue, (-totals[other], other))


def merged(word: Sequence[str], pair: Pair) -> list[str]:
    """A word with a pair of its pieces as one, from left to right.

    Example:
      >>> merged(["a", "b", "a", "b"], ("a", "b"))
      ['ab', 'ab']
    """
    pieces: list[str] = []
    for piece in word:
        if pieces and (pieces[-1], piece) == pair:
            pieces[-1] += piece
        else:
            pieces.append(piece)
    return pieces
