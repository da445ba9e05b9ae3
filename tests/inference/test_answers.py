"""A model's answers to prompts: what is checked before the first one."""

import pytest

from jaxpt.errors import UserError
from jaxpt.inference.answers import Answers, Texts
from tests.inference.helpers import directory, run_of

SAMPLING = {"temperature": 1.0, "seed": 3}


def assert_answers_of_a_part_are_the_same(path, texts, **settings):
    answers = Answers(str(path), SAMPLING | settings, 4)
    whole = dict(answers.answers(texts))
    part = {2 + i: answer for i, answer in answers.answers(texts[2:], first=2)}
    assert sorted(part) == list(range(2, len(texts)))
    for i, answer in part.items():
        if isinstance(answer, Texts):
            assert answer == whole[i]
            continue
        for one, other in zip(answer.missing, whole[i].missing, strict=True):
            assert [text for text, _ in one] == [text for text, _ in other]
            assert [p for _, p in one] == pytest.approx([p for _, p in other], rel=1e-4)  # batches round otherwise
    return whole


def test_samples_of_fills_depend_on_the_number_of_their_prompt():
    """As those of texts, in whichever parts a file is answered."""
    texts = ["the <extra_id_0> sat", "the cat", "a <extra_id_0>", "the <extra_id_0> sat", "a dog", "a <extra_id_0>"]
    settings = {"max_new_tokens": 8, "samples": 4}
    whole = assert_answers_of_a_part_are_the_same(directory("t5"), texts, **settings)
    for one, other in ((0, 3), (2, 5)):  # equal prompts have samples of their own
        first, second = ([p for _, p in whole[i].missing[0]] for i in (one, other))
        assert first != pytest.approx(second, rel=1e-2)


@pytest.mark.slow
def test_fills_of_a_whole_text_depend_on_no_other_text(tmp_path):
    """BART's answer has the length of its text, not of the longest one beside it."""
    model = {"kind": "bart", "max_positions": 256}
    run_of(tmp_path / "run", model, "sentencepiece", "bart", extra_ids=5)
    texts = ["the cat sat on the mat " * 6 + "<extra_id_0>", "the cat", "the <extra_id_0> sat", "a <extra_id_0>"]
    assert_answers_of_a_part_are_the_same(tmp_path / "run", texts, eos=())


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
