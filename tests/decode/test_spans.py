"""Missing spans: inputs as in training, and what answers say stands there."""

import numpy as np
import pytest

from jaxpt.data.calls import Vocabulary
from jaxpt.decode.spans import aligned_spans, infilling_prompt, span_input, spans_of_target
from jaxpt.errors import UserError
from jaxpt.objectives.formats import Format
from tests.decode.helpers import network

VOCABULARY = Vocabulary(100, eos=1, bos=3, mask=4, sentinels=10)


@pytest.mark.parametrize(
    "name, mode, wanted",
    [
        ("t5", None, [11, 99, 12, 13, 98, 1]),
        ("umt5", "NLU", [92, 11, 99, 12, 13, 98, 1]),
        ("bart", None, [3, 11, 4, 12, 13, 4, 1]),
    ],
)
def test_inputs_are_those_of_training(name, mode, wanted):
    made, _, objective, _ = network(name)
    layout = objective.text_format(made.config, VOCABULARY, mode=mode)
    assert span_input([[11], [12, 13], []], layout, VOCABULARY) == wanted


def test_a_span_that_the_target_lacks_is_empty():
    assert spans_of_target([98, 5, 1, 99, 6], 2, VOCABULARY) == [[], [5]]


def test_of_restored_texts_the_cheapest_alignment_is_taken():
    """Random short texts against brute force over how many tokens each mask stands for."""

    def cost(one, other):
        row = list(range(len(other) + 1))
        for n, x in enumerate(one, 1):
            last, row[0] = row[0], 2 * n
            for m, y in enumerate(other, 1):
                last, row[m] = row[m], min(row[m] + 2, row[m - 1] + 1, last + 3 * (x != y))
        return row[-1]

    rng = np.random.default_rng(0)
    for _ in range(300):
        inputs = rng.choice([4, 5, 6, 7], rng.integers(1, 6)).tolist()
        restored = rng.choice([5, 6, 7], rng.integers(0, 6)).tolist()
        spans = aligned_spans(inputs, restored, mask=4)
        assert len(spans) == inputs.count(4)
        # With its spans in place, the input is as near to the text as the best alignment.
        left = iter(spans)
        filled = [token for x in inputs for token in (next(left) if x == 4 else [x])]
        best = min(cost(*pair) for pair in alignments(inputs, restored))
        assert cost(filled, restored) == best


def alignments(inputs, restored):
    """(inputs with masks filled by tokens of the text, text), for all runs of tokens at the masks, in order."""

    def fill(rest, start):
        if not rest:
            yield []
            return
        if rest[0] != 4:
            yield from ([rest[0], *more] for more in fill(rest[1:], start))
            return
        for begin in range(start, len(restored) + 1):
            for end in range(begin, len(restored) + 1):
                yield from ([*restored[begin:end], *more] for more in fill(rest[1:], end))

    return [(filled, restored) for filled in fill(inputs, 0)]


@pytest.mark.parametrize(
    "restored, wanted",
    [
        ([3, 5, 8, 6, 9, 9, 7, 1], [[8], [9, 9]]),  # exact
        ([3, 5, 6, 7, 1], [[], []]),  # nothing is missing
        ([3, 5, 8, 6, 9, 1], [[8], [9]]),  # 7 was left out
        ([3, 50, 8, 6, 9, 7, 2, 1], [[50, 8], [9]]),  # 5 was changed, 2 added
    ],
)
def test_spans_of_a_restored_text(restored, wanted):
    assert aligned_spans([3, 5, 4, 6, 4, 7, 1], restored, mask=4) == wanted


def test_of_adjacent_masks_the_first_one_has_the_span():
    assert aligned_spans([3, 4, 4, 5], [3, 8, 9, 5], mask=4) == [[8, 9], []]


def test_bad_input_is_one_line():
    with pytest.raises(UserError, match="11 missing spans, the vocabulary 10 sentinels"):
        span_input([[]] * 12, Format(blank="sentinels"), VOCABULARY)
    with pytest.raises(UserError, match="8 missing spans, the vocabulary 7 sentinels"):  # UL2's modes are no blanks
        span_input([[]] * 9, Format(blank="sentinels", modes=(90, 91, 92)), VOCABULARY)
    with pytest.raises(UserError, match="not trained to fill spans"):
        span_input([[5], []], Format(), VOCABULARY)
    with pytest.raises(UserError, match="infilling needs 3 sentinels"):
        infilling_prompt([5], [6], Vocabulary(100, sentinels=2))
