"""Filling of missing spans by models that generate."""

import pytest

from jaxpt.errors import UserError
from tests.inference.helpers import loaded, run_of

TEXT = "the <extra_id_0> sat on <extra_id_1>"


def is_sorted(candidates):
    return [p for _, p in candidates] == sorted((p for _, p in candidates), reverse=True)


@pytest.mark.parametrize(
    "keys", [{"temperature": 1.0, "samples": 8, "seed": 1}, {"beams": 6, "samples": 6, "length_penalty": 4.0}]
)
def test_the_most_likely_candidates_come_first(keys):
    model = loaded("t5")
    (spans,) = model.fill([TEXT], max_new_tokens=6, **keys)
    assert [len(candidates) for candidates in spans] == [keys["samples"]] * 2
    assert all(map(is_sorted, spans)) and len({p for _, p in spans[0]}) > 1
    assert [p for _, p in spans[0]] == [p for _, p in spans[1]]  # of all spans together


def test_candidates_have_probabilities_in_any_case():
    model = loaded("t5")
    with pytest.raises(UserError, match="scores: False has no effect on candidates, which have probabilities; leave"):
        model.fill([TEXT], max_new_tokens=6, scores=False)


@pytest.mark.slow
def test_the_most_likely_middles_come_first(tmp_path):
    model = run_of(
        tmp_path / "run", {"kind": "gpt2", "max_positions": 64}, "sentencepiece", "fill_in_the_middle", extra_ids=5
    )
    ((candidates,),) = model.fill(["the cat <FILL> mat"], max_new_tokens=5, temperature=1.0, samples=8)
    assert len(candidates) == 8 and is_sorted(candidates)
