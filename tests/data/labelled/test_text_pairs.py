"""Records of inputs and targets: special tokens, separators, and what is cut."""

import numpy as np
import pytest

from jaxpt.data.labelled.text_pairs import TextPairsEncoder
from jaxpt.data.tasks.generation import GenerationTask
from jaxpt.errors import UserError
from tests.text_pairs import Words, ids, rows

TASK = GenerationTask(inputs="say {mr}", targets="ref")
ROWS = rows({"mr": "the cat", "ref": "it is good"}, {"mr": "one two three four five six", "ref": ["seven", "eight"]})
WORDS = Words()


def encoded(has_targets=True, **keys):
    return list(TextPairsEncoder(TASK, **keys)(ROWS, WORDS, has_targets, train=True))


@pytest.mark.parametrize("before", [(), (2,)])
def test_an_encoder_decoder_reads_inputs_and_writes_targets(before):
    bos = "<s> " * len(before)
    first, second = encoded(inputs_length=10, targets_length=6, before=before, after=(1,))
    assert first["inputs"].tolist() == ids(WORDS, bos + "say the cat </s>")
    assert first["targets"].tolist() == ids(WORDS, bos + "it is good </s>")
    assert second["targets"].tolist() == ids(WORDS, bos + "seven </s>"), "the first of equally good targets"
    assert (first["truncated"], first["origin"].tolist()) == (0, [0, 1])


def test_a_decoder_reads_both_as_one_text():
    (first, _) = encoded(inputs_length=16, targets_length=6, after=(1,), is_decoder=True, separator="=>")
    assert first["tokens"].tolist() == ids(WORDS, "say the cat => it is good </s>")
    assert first["prefix"] == 4, "the tokens before the first target"


def test_what_is_too_long_is_cut_before_the_special_tokens():
    first, second = encoded(inputs_length=5, targets_length=3, before=(2,), after=(1,))
    assert second["inputs"].tolist() == ids(WORDS, "<s> say one two </s>") and second["truncated"] == 1
    assert first["targets"].tolist() == ids(WORDS, "<s> it is"), "a target that is cut has no end"
    assert first["truncated"] == 1


def test_a_decoders_prompt_is_the_same_with_and_without_target():
    keys = {"inputs_length": 10, "targets_length": 4, "after": (1,), "is_decoder": True, "separator": "=>"}
    for with_target, alone in zip(encoded(**keys), encoded(has_targets=False, **keys)):
        assert with_target["tokens"][: with_target["prefix"]].tolist() == alone["tokens"].tolist()
        assert with_target["prefix"] == alone["prefix"]
    assert alone["tokens"].tolist() == ids(WORDS, "say one two three four =>"), "the separator is never cut"


def test_rows_without_targets_need_no_such_column():
    (record,) = TextPairsEncoder(TASK, 8, 4, after=(1,))(rows({"mr": "the dog"}), WORDS, False, train=False)
    assert record["targets"].tolist() == []


def test_records_have_the_types_that_are_promised():
    for is_decoder in (True, False):
        keys = {"inputs_length": 16, "targets_length": 6, "after": (1,), "is_decoder": is_decoder, "separator": "=>"}
        like = TextPairsEncoder(TASK, **keys).like()
        for record in encoded(**keys):
            assert {name: (x.dtype, np.ndim(x)) for name, x in record.items()} == {
                name: (x.dtype, np.ndim(x)) for name, x in like.items()
            }


def test_error_cuts_nothing():
    with pytest.raises(UserError, match=r"rows:2: the inputs have 7 tokens, there is room for 4; raise data.length"):
        encoded(inputs_length=5, targets_length=6, after=(1,), truncate="error")
    with pytest.raises(UserError, match=r"rows:1: the targets have 4 tokens, .* 3; raise objective.targets_length"):
        encoded(inputs_length=12, targets_length=3, after=(1,), truncate="error")


@pytest.mark.parametrize("inputs, targets, key", [(1, 6, "data.length"), (8, 1, "objective.targets_length")])
def test_no_room_is_refused(inputs, targets, key):
    with pytest.raises(UserError, match=f"{key}: too small"):
        encoded(inputs_length=inputs, targets_length=targets, before=(2,), after=(1,))


def test_a_separator_without_a_token_is_refused():
    with pytest.raises(UserError, match=r"objective.separator: '\\n': has no token"):
        encoded(inputs_length=16, targets_length=6, after=(1,), is_decoder=True, separator="\n")
