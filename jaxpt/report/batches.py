"""`jaxpt inspect`: examples as the model will see them, in words: masks, spans, documents, padding.

[CLS] the cat [MASK]⟨sat⟩ on a dog⟨random, was mat⟩ . [SEP] ⟨118 × padding⟩          encoder
Thank you <extra_id_0>⟨for inviting⟩ me to your party</s>                           encoder-decoder
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from jaxpt.data.calls import Vocabulary

Example = Mapping[str, np.ndarray]
Style = Literal[
    "text", "mask", "random", "kept", "gone", "target", "sentinel", "special", "context", "padding", "label", "seam"
]  # fmt: skip

LEGEND: dict[Style, str] = {
    "mask": "masked, ⟨what stood there⟩",
    "random": "replaced by a random token",
    "kept": "chosen, left as it was",
    "target": "predicted, ⟨its place in the order⟩; before it all that is not predicted is seen",
    "gone": "not in the inputs («…» without colours)",
    "seam": "what follows ↩ stands earlier in the text",
    "sentinel": "stands for ⟨these tokens⟩",
    "special": "special token",
    "context": "carries no loss (~…~ without colours)",
}


# Control characters must not reach the terminal: a text may hold an escape sequence.
_VISIBLE = {"\n": "⏎\n", "\t": "⇥"}
_LONG = 3  # tokens of a stretch that is surely the same text in both


class Pieces(Protocol):
    """What is needed of a tokenizer."""

    kind: str
    vocabulary: Vocabulary

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The piece of each id."""


@dataclasses.dataclass(frozen=True)
class Span:
    """A stretch of text in one style."""

    text: str
    style: Style = "text"
    note: str = ""
    """What the text stands for: printed after it."""
    hover: str = ""
    """Of a token: its id and piece, and those of its target. A page shows them under the pointer."""


@dataclasses.dataclass(frozen=True)
class Shown:
    """One example, ready to be drawn."""

    index: int
    facts: dict[str, str]
    sections: dict[str, list[Span]]


# ---- from features to spans -----------------------------------------------------------------------------------------


def segments(example: Example, tokenizer: Pieces) -> dict[str, list[Span]]:
    """An example's features as styled text.

    Args:
      example: the features of one example by their names, as `jaxpt.objectives.base` lists them; without a batch axis.
      tokenizer: makes words of ids.

    Returns:
      {title: spans}: "pairs" of words for GloVe, "inputs" for an encoder and for a decoder with a head, "inputs" and
      "targets" for an encoder-decoder, "text" for a decoder.
    """
    if "encoder_order" in example:
        parts = {"inputs": _permuted(example, tokenizer)}
    elif "contexts" in example:
        parts = {"pairs": _pairs(example, tokenizer)}
    elif "decoder_target_tokens" not in example:
        side = "encoder" if "encoder_input_tokens" in example else "decoder"  # a decoder that answers by a head
        parts = {"inputs": _masked(example, tokenizer, side)}
    elif "encoder_input_tokens" in example:
        parts = {"inputs": _corrupted(example, tokenizer), "targets": _targets(example, tokenizer)}
    else:
        parts = {"text": _running(example, tokenizer)}
    return {title: _spaced(spans) for title, spans in parts.items()}


def _spaced(spans: Sequence[Span]) -> list[Span]:
    """One space after each label, whatever the token there begins with."""
    after = [False, *(span.style == "label" for span in spans)]
    return [dataclasses.replace(s, text=f" {s.text.lstrip(' ')}") if label else s for s, label in zip(spans, after)]


def _masked(example: Example, tokenizer: Pieces, side: str) -> list[Span]:
    """The input of a model that writes no text, each chosen position, if there are such, with its target."""
    tokens = example[f"{side}_input_tokens"]
    masked = zip(*(example.get(f"masked_{name}", ()) for name in ("positions", "targets", "weights")))
    chosen = {int(position): int(target) for position, target, weight in masked if weight > 0}
    types = example.get(f"{side}_token_types", np.zeros_like(tokens))
    if "masked_kinds" in example and example["encoder_segment_ids"].max() == 1:  # UniLM's types are of its masks
        types = np.cumsum(np.append(False, tokens[:-1] == tokenizer.vocabulary.sep)) > 0
    of_two = "masked_kinds" in example or any(name.endswith("_labels") for name in example)
    pair = of_two and types.max() > types[0]
    spans: list[Span] = []
    for position in _real(example, side):
        if pair and (position == 0 or types[position] != types[position - 1]):
            spans += [Span("\n" if spans else ""), Span(f"{'AB'[int(types[position] > types[0])]}:", "label")]
        elif _restarts(example, side, position):
            spans += [Span("\n"), Span("translation:", "label")]
        else:
            spans += _document_end(example, side, position)
        token, target = int(tokens[position]), chosen.get(position)
        spans.append(_token(token, tokenizer) if target is None else _chosen(token, target, tokenizer))
    return spans + _padding(example, side)


def _pairs(example: Example, tokenizer: Pieces) -> list[Span]:
    """Pairs of words, each with its count, a line each."""
    columns = (example[name].tolist() for name in ("words", "contexts", "counts"))
    rows = ((*tokenizer.tokens([word, context]), count) for word, context, count in zip(*columns) if count > 0)
    return [span for word, context, count in rows for span in (Span(f"{word} {context} {count:.3g}"), Span("\n"))]


def _restarts(example: Example, side: str, position: int) -> bool:
    """True if positions restart inside a segment, at a translation of the text before."""
    ids, positions = example[f"{side}_segment_ids"], example.get(f"{side}_positions", np.arange(position + 1))
    return position > 0 and ids[position] == ids[position - 1] and positions[position] == 0


def _permuted(example: Example, tokenizer: Pieces) -> list[Span]:
    """An encoder's input, each token to predict with its place in the order of prediction."""
    tokens, types, order = (example[f"encoder_{name}"] for name in ("input_tokens", "token_types", "order"))
    targets = example["masked_positions"][example["masked_weights"] > 0]
    place = {int(position): n for n, position in enumerate(targets[np.argsort(order[targets])], 1)}
    spans: list[Span] = [Span("text and A:", "label")] if types.any() else []
    for position in _real(example, "encoder"):
        if types[position] == 1 and types[position - 1] == 0:
            spans += [Span("\n"), Span("B:", "label")]
        token = int(tokens[position])
        if position in place:
            spans.append(_token(token, tokenizer, "target", str(place[position])))
        else:
            spans.append(_token(token, tokenizer))
    return spans + _padding(example, "encoder")


def _corrupted(example: Example, tokenizer: Pieces) -> list[Span]:
    """An encoder's input with sentinels or masks, each with the tokens that it stands for."""
    vocabulary, stands_for = tokenizer.vocabulary, _by_sentinel(example, tokenizer)
    restored = None if stands_for else _restored(example, tokenizer)
    spans: list[Span] = []
    for position in _real(example, "encoder"):
        spans += _document_end(example, "encoder", position)
        token = int(example["encoder_input_tokens"][position])
        segment = int(example["encoder_segment_ids"][position])
        if restored is not None:
            spans += [Span(" ↩", "seam")] if position in restored.seams else []
            spans.append(restored.spans.get(position) or _token(token, tokenizer))
        elif _is_sentinel(token, vocabulary):
            note = stands_for.get((segment, token), "nothing in the targets")
            spans.append(_token(token, tokenizer, note=note))
        else:
            spans.append(_token(token, tokenizer))
    return spans + _padding(example, "encoder")


def _by_sentinel(example: Example, tokenizer: Pieces) -> dict[tuple[int, int], str]:
    """{(segment, sentinel): the text after it in the targets}."""
    texts: dict[tuple[int, int], str] = {}
    at: tuple[int, int] | None = None
    for position in _real(example, "decoder"):
        token = int(example["decoder_target_tokens"][position])
        segment = int(example["decoder_segment_ids"][position])
        if _is_sentinel(token, tokenizer.vocabulary):
            at = (segment, token)
            texts[at] = ""
        elif token == tokenizer.vocabulary.eos:
            at = None
        elif at:
            texts[at] += _word(token, tokenizer)
    return {key: text.strip() for key, text in texts.items()}


class _Restored(NamedTuple):
    """How the inputs differ from targets that hold the text that was corrupted, and no sentinels."""

    spans: dict[int, Span]
    """What stands at some positions of the inputs."""
    seams: set[int]
    """Positions of the inputs from which on text is earlier."""
    gone: set[int]
    """Positions of targets that are not in the inputs."""


def _restored(example: Example, tokenizer: Pieces) -> _Restored:
    """Compares inputs and targets, in place where noise kept the places, else by what both have in common."""
    vocabulary, all_ = tokenizer.vocabulary, _Restored({}, set(), set())
    mask = vocabulary.first_sentinel if vocabulary.mask is None else vocabulary.mask
    at = {side: np.array(_real(example, side), np.int64) for side in ("encoder", "decoder")}
    ids = {side: example[f"{side}_segment_ids"][places] for side, places in at.items()}
    inputs, targets = example["encoder_input_tokens"], example["decoder_target_tokens"]
    for segment in np.unique(ids["decoder"]):
        encoder, decoder = (at[side][ids[side] == segment] for side in ("encoder", "decoder"))
        places = example.get("decoder_positions", np.arange(len(targets)))[decoder]
        whole, corrupted = targets[decoder].tolist(), inputs[encoder].tolist()
        if len(places) and places.max() < len(encoder):
            aligned = inputs[encoder[places]].tolist()
            if in_place(aligned, whole, mask):
                part = len(whole) < len(corrupted)  # of a fragment it is known which tokens were chosen
                chosen = ((int(encoder[n]), x, y) for n, x, y in zip(places, aligned, whole) if part or x != y)
                all_.spans.update({n: _chosen(x, y, tokenizer) for n, x, y in chosen})
                continue
        noise = find_noise(corrupted, whole, mask)
        if noise is not None:
            all_.gone.update(int(decoder[n]) for n in noise.gone)
            all_.seams.update(int(encoder[n]) for n in noise.seams)
            for place, token in enumerate(corrupted):
                if token == mask:
                    first, end = noise.filled.get(place, (0, 0))
                    was = "".join(_word(x, tokenizer) for x in whole[first:end]).strip()
                    nothing = "inserted" if place in noise.filled and first == end else ""
                    all_.spans[int(encoder[place])] = _token(token, tokenizer, "mask", was or nothing)
    return all_


def _chosen(token: int, target: int, tokenizer: Pieces) -> Span:
    """A token of the inputs that noise has chosen, with what stood there."""
    was = _word(target, tokenizer).strip() or "␣"
    vocabulary = tokenizer.vocabulary
    if token == target:
        span = _token(token, tokenizer, "kept", "kept")
    elif token == vocabulary.mask or (vocabulary.mask is None and token == vocabulary.first_sentinel):
        span = _token(token, tokenizer, "mask", was)
    else:
        span = _token(token, tokenizer, "random", f"random, was {was}")
    text = span.text if span.text.strip() else " ␣"  # a space by itself, chosen, would not be seen
    return dataclasses.replace(span, text=text, hover=f"{span.hover}; target {_named(target, tokenizer)}")


def _targets(example: Example, tokenizer: Pieces) -> list[Span]:
    """What a decoder is to say."""
    spans: list[Span] = []
    gone = set() if _by_sentinel(example, tokenizer) else _restored(example, tokenizer).gone
    for position in _real(example, "decoder"):
        span = _target(example, position, tokenizer)
        span = dataclasses.replace(span, style="gone") if position in gone and span.style == "text" else span
        spans += [*_document_end(example, "decoder", position), span]
    return spans + _padding(example, "decoder")


def _running(example: Example, tokenizer: Pieces) -> list[Span]:
    """A decoder's text: of each segment the first input, which is no target, then its targets."""
    spans: list[Span] = []
    segment_ids = example["decoder_segment_ids"]
    for position in _real(example, "decoder"):
        if position == 0 or segment_ids[position] != segment_ids[position - 1]:
            spans += _document_end(example, "decoder", position)
            spans.append(_token(int(example["decoder_input_tokens"][position]), tokenizer, "context"))
        elif int(example["decoder_target_tokens"][position - 1]) == tokenizer.vocabulary.eos:
            spans.append(Span("\n"))
        spans.append(_target(example, position, tokenizer))
    return spans + _padding(example, "decoder")


def _target(example: Example, position: int, tokenizer: Pieces) -> Span:
    token = int(example["decoder_target_tokens"][position])
    return _token(token, tokenizer, None if example["decoder_loss_weights"][position] > 0 else "context")


def _token(token: int, tokenizer: Pieces, style: Style | None = None, note: str = "") -> Span:
    """A token, by default in the style of its kind."""
    style = style or _style(token, tokenizer.vocabulary)
    return Span(_word(token, tokenizer), style, note, _named(token, tokenizer))


def _named(token: int, tokenizer: Pieces) -> str:
    """A token's id and piece."""
    return f"{token} {_visible(tokenizer.tokens([token])[0])}".replace("\n", "")


def _real(example: Example, side: str) -> list[int]:
    """Positions that are not padding."""
    return np.flatnonzero(example[f"{side}_segment_ids"] > 0).tolist()


def _document_end(example: Example, side: str, position: int) -> list[Span]:
    """A line break and the segment number where the next segment of a packed row starts."""
    segment_ids = example[f"{side}_segment_ids"]
    if position == 0 or segment_ids[position] == segment_ids[position - 1]:
        return []
    return [Span("\n"), Span(f"segment {int(segment_ids[position])}:", "label")]


def _padding(example: Example, side: str) -> list[Span]:
    count = int((example[f"{side}_segment_ids"] == 0).sum())
    return [Span(f" ⟨{count} × padding⟩", "padding")] if count else []


def _is_sentinel(token: int, vocabulary: Vocabulary) -> bool:
    return token in vocabulary.sentinel_ids


def _style(token: int, vocabulary: Vocabulary) -> Style:
    if _is_sentinel(token, vocabulary):
        return "sentinel"
    named = ("pad", "unk", "bos", "eos", "cls", "sep", "mask")
    special = [*vocabulary.languages, *(getattr(vocabulary, name) for name in named)]
    return "special" if token in special else "text"


def _word(token: int, tokenizer: Pieces) -> str:
    """A token as running text: spaces separate words, WordPiece's pieces and sentinels, others contain their spaces."""
    piece = tokenizer.tokens([token])[0]
    apart = tokenizer.kind in ("wordpiece", "words", "spelled_words") or _is_sentinel(token, tokenizer.vocabulary)
    text = f" {piece}" if apart else piece.replace("▁", " ")
    return _visible(text)


def _visible(text: str) -> str:
    """A text without control characters."""
    return "".join(c if c.isprintable() else _VISIBLE.get(c) or f"\\x{ord(c):02x}" for c in text)


# ---- where the tokens of a corrupted text stand in the whole one ----------------------------------------------------


class Stretch(NamedTuple):
    """Tokens that stand in both texts."""

    at: int
    """The first one's place in the corrupted text."""
    whole_at: int
    size: int


class Noise(NamedTuple):
    """What became of a text."""

    gone: frozenset[int]
    """Positions of the original text whose tokens are not in the corrupted one."""
    seams: frozenset[int]
    """Positions of the corrupted text that are followed by text from an earlier position of the original."""
    filled: dict[int, tuple[int, int]]
    """{place of a mask: the stretch of the whole text that it stands for, alone or with the masks right before it}."""


def in_place(corrupted: Sequence[int], whole: Sequence[int], mask: int | None) -> bool:
    """True if a text was corrupted token by token: nearly every position has its original token, or the mask.

    Example:
      >>> in_place([7, 9, 9, 8], [7, 5, 6, 8], mask=9), in_place([7, 9, 8], [7, 5, 6, 8], mask=9)
      (True, False)
    """
    same = [x in (y, mask) for x, y in zip(corrupted, whole)]
    return len(corrupted) == len(whole) > 0 and sum(same) >= 0.8 * len(same)


def find_noise(corrupted: Sequence[int], whole: Sequence[int], mask: int | None) -> Noise | None:
    """Finds what was taken from a text and what was moved, the longest common stretches first.

    Args:
      corrupted: the text that has lost, or moved, some of its tokens.
      whole: the text.
      mask: id that stands for what is gone.

    Returns:
      The noise; None where most of `whole` is not in `corrupted`, or its tokens are shuffled.

    Example:
      >>> find_noise([15, 16, 17, 18, 19, 11, 12, 9, 14], [11, 12, 13, 14, 15, 16, 17, 18, 19], mask=9)
      Noise(gone=frozenset({2}), seams=frozenset({5}), filled={7: (2, 3)})
    """
    stretches = sorted(_stretches(corrupted, whole))
    if 2 * sum(s.size for s in stretches if s.size >= _LONG) < len(whole):
        return None
    matched = {n for s in stretches for n in range(s.whole_at, s.whole_at + s.size)}
    seams, filled = set(), {}
    ends = [Stretch(0, 0, 0), *stretches, Stretch(len(corrupted), len(whole), 0)]
    for before, after in itertools.pairwise(ends):
        first, last = before.whole_at + before.size, after.whole_at
        between = range(before.at + before.size, after.at)
        if last < first:
            seams |= {after.at} if after.size else set()
        elif between and corrupted[between[-1]] == mask and matched.isdisjoint(range(first, last)):
            filled[between[-1]] = first, last
    return Noise(frozenset(range(len(whole))) - matched, frozenset(seams), filled)


def _stretches(corrupted: Sequence[int], whole: Sequence[int]) -> list[Stretch]:
    """Common stretches, the longest first; each token is in one at most."""
    a, b, stretches = list(corrupted), list(whole), []
    while (match := difflib.SequenceMatcher(None, a, b, autojunk=False).find_longest_match()).size:
        stretches.append(Stretch(*match))
        if len(stretches) > 3 and match.size < _LONG and sum(s.size for s in stretches) < len(whole) // 2:
            return stretches  # shuffled: nothing to be seen
        a[match.a : match.a + match.size] = [-1] * match.size
        b[match.b : match.b + match.size] = [-2] * match.size
    return stretches
