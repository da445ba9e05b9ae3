"""A model's answers to prompts: what is checked before the first one."""

import pytest

from jaxpt.errors import UserError
from jaxpt.inference.answers import Answers
from tests.inference.helpers import directory, run_of


def test_more_spans_than_sentinels_are_told_before_the_first_answer():
    t5 = Answers(str(directory("t5")), {"max_new_tokens": 4}, 4)
    t5.check(["the cat", "<extra_id_0> " * 5], "prompt")
    with pytest.raises(UserError, match=r"^prompt 3: has 6 missing spans, the vocabulary 5 sentinels for them$"):
        t5.check(["the cat", "<extra_id_0> a", "<extra_id_0> " * 6], "prompt")


@pytest.mark.slow
def test_several_middles_are_told_before_the_first_answer(tmp_path):
    model = {"kind": "gpt2", "max_positions": 64}
    run_of(tmp_path / "run", model, "sentencepiece", "fill_in_the_middle", extra_ids=5)
    gpt2 = Answers(str(tmp_path / "run"), {"max_new_tokens": 4}, 4)
    with pytest.raises(UserError, match=r"^prompt 2: has <FILL> 2 times; this model fills one middle$"):
        gpt2.check(["a <FILL> b", "a <FILL> b <FILL> c"], "prompt")
    with pytest.raises(UserError, match=r"^f\.jsonl: row 1: it has .* tokens, but the model has 64 positions"):
        gpt2.check(["the cat " * 20 + "<FILL> sat" + " the cat" * 20], "f.jsonl: row")
