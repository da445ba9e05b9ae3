"""UL2 over three thousand texts: each is one denoiser's, with its counts and its mode token."""

import collections
import math

import pytest

from jaxpt.data.preprocessors import ul2
from jaxpt.objectives.span_corruption import noise_counts
from jaxpt.objectives.ul2 import UL2
from tests.data.preprocessors import corpus

FIRST, EOS = 5000, 1
SHARES = (1.0, 1.0, 3.0, 1.0, 1.0, 1.0, 2.0)
DENOISERS = [
    (d.density, d.mean_span, 300 + n, share) for n, (d, share) in enumerate(zip(UL2().denoisers, SHARES, strict=True))
]


def test_each_text_has_the_counts_of_its_denoiser():
    rows = corpus.numbered(corpus.lengths(longest=256))
    made = corpus.run(ul2.mix, rows, denoisers=DENOISERS, first_sentinel=FIRST, eos=EOS)
    seen = collections.Counter()
    for text, inputs, targets in zip(rows, made["inputs"], made["targets"]):
        density, mean, mode, _ = DENOISERS[inputs[0] - 300]
        noise, spans = noise_counts(len(text), density, math.inf if mean is None else mean)
        assert (len(inputs), len(targets)) == (len(text) - noise + spans + 2, noise + spans + 1)
        assert inputs[-1] == targets[-1] == EOS
        kept, lost = inputs[1:-1], targets[:-1]
        is_sentinel, is_mark = kept >= FIRST - 300, lost >= FIRST - 300
        for sentinels in (kept[is_sentinel], lost[is_mark]):
            assert sentinels.tolist() == [FIRST - i for i in range(spans)]
        together = sorted([*kept[~is_sentinel], *lost[~is_mark]])
        assert together == text.tolist()
        if mean is None and noise:
            assert lost[1:].tolist() == text[-noise:].tolist()
        seen[mode] += 1
    for n, share in enumerate(SHARES):
        assert seen[300 + n] / len(rows) == pytest.approx(share / sum(SHARES), abs=0.015)
