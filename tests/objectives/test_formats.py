"""Texts begin and end as in training."""

import doctest

import numpy as np
import pytest

from jaxpt.data.calls import Vocabulary
from jaxpt.errors import UserError
from jaxpt.objectives import formats
from jaxpt.objectives.bart import Bart
from jaxpt.objectives.distillation import Distillation
from jaxpt.objectives.formats import Format, Languages
from jaxpt.objectives.mass import Mass
from jaxpt.objectives.mbart import MBart
from jaxpt.objectives.prefix_lm import PrefixLM
from jaxpt.objectives.seq2seq import Seq2Seq
from jaxpt.objectives.span_corruption import SpanCorruption
from jaxpt.objectives.translation_lm import TranslationLM
from jaxpt.objectives.ul2 import UL2
from tests import grids
from tests.decode.helpers import MLM, VOCABULARIES
from tests.models.helpers import EVERY
from tests.objectives import test_text_objectives as trained

LANGUAGE = ord("A") + 3
SEQ2SEQ = VOCABULARIES["encoder_decoder"]


@pytest.mark.slow
@pytest.mark.parametrize("name", grids.cases(
    trained.ENCODER_DECODERS, "bart", "mbart", "mass", "mass_without_eos", "span_corruption", "ul2", "prefix_and_rest"
))  # fmt: skip
def test_inputs_of_a_batch_have_the_format(name):
    """The special tokens at both ends of the encoder's input, and the first ones that the decoder reads."""
    objective = trained.ENCODER_DECODERS[name]
    languages = (LANGUAGE,) if name == "mbart" else ()
    vocabulary = Vocabulary(**vars(trained.VOCABULARY) | {"languages": languages})
    given = {"languages": Languages(LANGUAGE, LANGUAGE)} if languages else {}
    modes = ("NLU", "NLG", "S2S") if name == "ul2" else (None,)
    formats = [objective.text_format(EVERY["t5"](), vocabulary, mode=mode, **given) for mode in modes]
    _, batch = trained.made(name)
    found = set()
    for b, (row, segments) in enumerate(zip(batch["encoder_input_tokens"], batch["encoder_segment_ids"])):
        text = row[segments == 1].tolist()
        if not text:
            continue
        fitting = [n for n, x in enumerate(formats) if x.before == tuple(text[: len(x.before)])]
        found |= set(fitting)
        ends = tuple(text[len(text) - len(formats[0].after) :])
        if name == "mass" and ends != formats[0].after:  # the last EOS is in the fragment
            ends = tuple(batch["decoder_target_tokens"][b][batch["decoder_segment_ids"][b] == 1][-1:])
        assert fitting and ends == formats[0].after
    assert name == "ul2" or found == {0}
    start = formats[0].decoder_start
    real = batch["decoder_segment_ids"][:, 0] > 0
    read = batch["decoder_input_tokens"][real]
    if name in ("mass", "mass_without_eos"):  # a fragment is read from the token before it on, a text's first from EOS
        read = read[batch["decoder_positions"][real][:, 0] == 0]
    np.testing.assert_array_equal(read[:, : len(start)], [start] * len(read))
    assert len(start) == 1
    assert (formats[0].blank == "sentinels") == (name in ("span_corruption", "replace_spans", "ul2"))


@pytest.mark.parametrize(
    "model, objective, wanted",
    [
        ("bert", MLM, Format(before=(2,), after=(3,))),
        ("bert", TranslationLM(), Format(before=(3,), after=(3,))),
        ("xlnet", MLM, Format(after=(3, 2), permutes=True)),
        ("gpt2", Distillation(of=PrefixLM(), teacher="x"), Format(prefix_lm=True)),
        ("bart", Bart(), Format((3,), (1,), (1, 3), "mask")),
        ("bart", Mass(), Format((1,), (1,), (1,))),
        ("t5", Seq2Seq(), Format(after=(1,), decoder_start=(0,))),
        ("t5", UL2(), Format(after=(1,), decoder_start=(0,), blank="sentinels", modes=(185, 184, 183))),
    ],
)
def test_formats_by_objective(model, objective, wanted):
    config = EVERY[model]()
    assert objective.text_format(config, VOCABULARIES[config.family]) == wanted


@pytest.mark.parametrize("eos, wanted", [(True, Format((), (1, 7), (7,))), (False, Format((3,), (7,), (7, 3)))])
def test_mbarts_language_stands_after_eos_or_in_its_place(eos, wanted):
    vocabulary = Vocabulary(203, bos=3, eos=1, mask=4, languages=(7, 9))
    found = MBart(eos=eos).text_format(EVERY["bart"](), vocabulary, languages=Languages(7, 7))
    assert (found.before, found.after, found.decoder_start) == (wanted.before, wanted.after, wanted.decoder_start)


@pytest.mark.parametrize("source_first, wanted", [
    (False, Format((), (1, 9), (7,), "mask")), (True, Format((9,), (1,), (1, 7), "mask")),
])  # fmt: skip
def test_a_translation_has_the_language_of_each_side(source_first, wanted):
    vocabulary = Vocabulary(203, bos=3, eos=1, mask=4, languages=(7, 9))
    languages = Languages(9, 7, source_first)
    assert MBart().text_format(EVERY["bart"](), vocabulary, languages=languages) == wanted


def test_bos_that_is_also_eos_is_not_put_before():
    """GPT-2's vocabulary has one token for both."""
    vocabulary = Vocabulary(203, bos=1, eos=1, mask=4)
    assert Bart().text_format(EVERY["bart"](), vocabulary) == Format((), (1,), (1,), "mask")


def test_without_sentinels_no_span_is_filled():
    vocabulary = Vocabulary(203, eos=1)
    assert SpanCorruption().text_format(EVERY["t5"](), vocabulary) == Format(after=(1,), decoder_start=(0,))


def test_wrapped_texts_and_their_types():
    bert, xlnet = Format(before=(2,), after=(3,)), Format(after=(3, 2), permutes=True)
    assert bert.wrap([7, 8]) == [2, 7, 8, 3] and bert.token_types(4) == [0, 0, 0, 0]
    assert xlnet.wrap([7, 8]) == [7, 8, 3, 2] and xlnet.token_types(4) == [0, 0, 0, 2]
    assert (bert.cls, xlnet.cls, Format(after=(1,)).cls) == ("first", "last", None)


def test_bad_input_is_one_line():
    with pytest.raises(UserError, match=r"^target_language: the vocabulary has 2 languages; name the one that the"):
        MBart().text_format(EVERY["bart"](), Vocabulary(203, eos=1, mask=4, languages=(7, 9)))
    with pytest.raises(UserError, match=r"model.kind: bert needs a vocabulary with \[CLS\]"):
        MLM.text_format(EVERY["bert"](), Vocabulary(203))


def test_examples_in_docstrings():
    failed, tried = doctest.testmod(formats)
    assert tried and not failed
