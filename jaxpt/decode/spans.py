"""Missing spans: what an encoder-decoder or an infilling decoder reads, and what its answer says stands there.

T5, UL2   a b <X> e <Y> </s>         →  <X> c d <Y> f </s>
BART      <s> a b <M> e <M> </s>     →  <s> a b c d e f </s>     the whole text, aligned with the input
FIM       <PRE> a b <SUF> e f <MID>  →  c d </s>
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxpt.data.calls import Vocabulary
from jaxpt.errors import UserError
from jaxpt.objectives.fill_in_the_middle import mark_ids
from jaxpt.objectives.formats import Format
from jaxpt.objectives.seq2seq import mask_id

Ids = Sequence[int]
LEFT_OUT = 2  # more than a token that is added: what surrounds a mask is kept where it can be


def span_input(pieces: Sequence[Ids], layout: Format, vocabulary: Vocabulary) -> list[int]:
    """The encoder's input for a text with missing spans.

    Args:
      pieces: ids of the text before, between and after the missing spans: one more than there are spans.
      layout: format of the network's texts.
      vocabulary: vocabulary of the run.

    Returns:
      The ids, with special tokens and with a sentinel (T5, UL2) or the mask (BART) at each span.

    Raises:
      UserError: the network does not fill spans, or there are more spans than sentinels.

    Example:
      >>> t5 = Format(after=(1,), decoder_start=(0,), blank="sentinels")
      >>> span_input([[5, 6], [7], []], t5, Vocabulary(size=100, eos=1, sentinels=10))
      [5, 6, 99, 7, 98, 1]
    """
    spans = len(pieces) - 1
    if layout.blank is None:
        raise UserError("this model was not trained to fill spans: use one of span_corruption, ul2 or bart")
    if layout.blank == "mask":
        blanks = [mask_id(vocabulary, "bart")] * spans
    elif spans > (most := vocabulary.sentinels - len(layout.modes)):
        raise UserError(f"has {spans} missing spans, the vocabulary {most} sentinels for them")
    else:
        blanks = [vocabulary.first_sentinel - n for n in range(spans)]
    parts = zip(pieces, [*([blank] for blank in blanks), []])
    return layout.wrap([token for piece, blank in parts for token in (*piece, *blank)])


def spans_of_target(target: Ids, spans: int, vocabulary: Vocabulary) -> list[list[int]]:
    """The spans of a target with sentinels, in the order of the text; one that the target lacks is empty.

    Example:
      >>> spans_of_target([99, 5, 6, 97, 7, 1], 3, Vocabulary(size=100, eos=1, sentinels=10))
      [[5, 6], [], [7]]
    """
    by_sentinel = split_spans(target, vocabulary)
    return [by_sentinel.get(vocabulary.first_sentinel - n, []) for n in range(spans)]


def split_spans(target: Ids, vocabulary: Vocabulary) -> dict[int, list[int]]:
    """The span after each sentinel of a target sequence, up to EOS.

    Args:
      target: ids of a target.
      vocabulary: for size, number of sentinels and EOS.

    Returns:
      {sentinel id: ids of its span}, in order.

    Example:
      >>> split_spans([99, 5, 6, 98, 7, 1, 0], Vocabulary(size=100, eos=1, sentinels=10))
      {99: [5, 6], 98: [7]}
    """
    spans: dict[int, list[int]] = {}
    current: list[int] | None = None
    for token in map(int, target):
        if token == vocabulary.eos:
            break
        if token in vocabulary.sentinel_ids:
            current = spans.setdefault(token, [])
        elif current is not None:
            current.append(token)
    return spans


def aligned_spans(inputs: Ids, restored: Ids, mask: int) -> list[list[int]]:
    """What stands at the masks of an input in the whole text that was restored from it (BART).

    The alignment has the least cost, 2 for each token of the input that the text leaves out and 1 for each that it adds
    outside of the masks. A mask may stand for any number of tokens; of adjacent masks the first one has them all.

    Args:
      inputs: ids of the encoder's input.
      restored: ids of the restored text.
      mask: id of the mask in `inputs`.

    Returns:
      The span of each mask, from left to right.

    Example:
      >>> aligned_spans([3, 5, 6, 4, 7, 4, 1], [3, 5, 6, 8, 8, 7, 9, 1], mask=4)
      [[8, 8], [9]]
    """
    text_M = np.asarray(restored, np.int64)
    place_M1 = np.arange(len(text_M) + 1)
    # costs[n][m]: least cost of aligning the first n inputs with the first m tokens of the text.
    costs = [place_M1]
    for token in inputs:
        before_M1 = costs[-1]
        if token == mask:
            costs.append(np.minimum.accumulate(before_M1))
            continue
        cost_M1 = before_M1 + LEFT_OUT  # the token is left out
        cost_M1[1:] = np.where(text_M == token, before_M1[:-1], cost_M1[1:])
        costs.append(np.minimum.accumulate(cost_M1 - place_M1) + place_M1)  # tokens are added
    spans, m = [], len(text_M)
    for n in range(len(inputs), 0, -1):
        before_M1, token = costs[n - 1], inputs[n - 1]
        if token == mask:
            end, m = m, int(np.flatnonzero(before_M1[: m + 1] == costs[n][m])[-1])
            spans.append(text_M[m:end].tolist())
            continue
        while costs[n][m] < before_M1[m] + LEFT_OUT and text_M[m - 1] != token:
            m -= 1  # an added token
        if costs[n][m] < before_M1[m] + LEFT_OUT:
            m -= 1  # the token itself
    return spans[::-1]


def infilling_prompt(prefix: Ids, suffix: Ids, vocabulary: Vocabulary) -> list[int]:
    """The prompt of a fill-in-the-middle decoder, which continues it with the middle and EOS.

    Args:
      prefix: ids of the text before the middle.
      suffix: ids of the text after the middle.
      vocabulary: vocabulary of the run, whose first three sentinels are <PRE>, <SUF> and <MID>.

    Returns:
      The ids: <PRE> prefix <SUF> suffix <MID>.

    Raises:
      UserError: the vocabulary has fewer than three sentinels.

    Example:
      >>> infilling_prompt([5, 6], [7], Vocabulary(size=100, sentinels=10))
      [99, 5, 6, 98, 7, 97]
    """
    if vocabulary.sentinels < 3:
        raise UserError(
            f"infilling needs 3 sentinels for <PRE>, <SUF> and <MID>, the vocabulary has {vocabulary.sentinels}"
        )
    marks = mark_ids(vocabulary)
    return [marks["prefix"], *prefix, marks["suffix"], *suffix, marks["middle"]]
