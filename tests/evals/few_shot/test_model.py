"""A network as the harness asks it: how long texts and prompts are cut, and what it cannot answer."""

import contextlib
import dataclasses

import numpy as np
import pytest

from jaxpt.decode import likelihood
from jaxpt.decode.embed import Embeddings
from jaxpt.decode.prompts import PromptEncoder
from jaxpt.errors import UserError
from jaxpt.evals.few_shot.examples import Example
from jaxpt.evals.few_shot.model import NetworkModel
from jaxpt.evals.few_shot.task import HarnessTask
from jaxpt.objectives.formats import Format
from jaxpt.objectives.mbart import MBart
from jaxpt.objectives.seq2seq import Seq2Seq
from tests import families
from tests.inference.helpers import loaded, run_of

WRITES = HarnessTask(name="write", form="generate_until", answers="a", max_new_tokens=4, source="write.yaml")


@pytest.fixture(scope="module")
def models():
    return {name: loaded(name) for name in families.FAMILIES}


LAST = HarnessTask(name="last", form="loglikelihood", context="a", continuation="b", source="last.yaml")


def asked(model, complete=None, form=None, unit="piece", **reader):
    reader = dataclasses.replace(model.reader, **reader)
    return NetworkModel(model.network, model.params, reader, complete, form=form, unit=unit)


def test_the_blocks_of_a_long_text_hold_each_token_once(models):
    ids = list(range(5, 45))
    for name, model in models.items():
        blocks = asked(model).blocks(ids)
        assert [i for _, targets in blocks for i in targets] == ids, name
        for context, targets in blocks[1:]:
            at = ids.index(targets[0])
            assert context == ids[at - len(context) : at], name


def test_an_encoders_blocks_have_no_cls_of_the_tokenizers(models):
    """A tokenizer.json that puts [CLS] before a text names it as BOS; the pseudo-likelihood's rows have one already."""
    model = models["bert"]
    assert asked(model, bos=model.vocabulary.cls).blocks([5, 6, 7]) == [([], [5, 6, 7])]
    assert asked(models["gpt2"], bos=9).blocks([5, 6, 7]) == [([9], [5, 6, 7])]


def test_a_long_prompt_keeps_what_begins_it(models):
    gpt2 = asked(models["gpt2"])
    (cut,) = gpt2.prompts(["the cat sat on the mat " * 9], 4)
    assert len(cut.tokens) == 32 - 4 and gpt2.truncated == 1
    t5 = asked(models["t5"])
    assert t5.prompts(["the cat"], 4) == [models["t5"].reader.prompt("the cat")] and t5.truncated == 0


def test_what_was_cut_is_said_as_it_was_cut(models, monkeypatch):
    """A prompt loses its beginning, a text of which there is a vector its end."""
    gpt2 = asked(models["gpt2"])
    assert gpt2.report_lines() == []
    vectors = lambda self, network, _, ids: Embeddings([np.zeros(2)] * len(ids), self.lay(network, ids))  # noqa: E731
    monkeypatch.setattr(PromptEncoder, "embed", vectors)
    gpt2.embeddings(["the cat", "the cat sat on the mat " * 9])
    assert gpt2.report_lines() == ["1 texts lost their end: the model has 32 positions"]
    gpt2.prompts(["the cat sat on the mat " * 9], 4)
    assert gpt2.report_lines()[0] == "1 contexts were cut from the left to the model's positions"


@pytest.mark.slow
def test_a_long_prompt_of_mass_keeps_the_token_that_begins_it(tmp_path):
    model = run_of(tmp_path / "run", {"kind": "bart", "max_positions": 32}, "sentencepiece", "mass", extra_ids=5)
    asks = asked(model)
    (cut,) = asks.prompts(["the cat sat on the mat " * 9], 4)
    whole = model.reader.prompt("the cat sat on the mat " * 9).encoder
    assert cut.encoder == [whole[0], *whole[-31:]] and whole[0] == model.vocabulary.eos and asks.truncated == 1


def test_what_a_model_cannot_answer_is_refused(models):
    with pytest.raises(UserError, match=r"write.yaml: bert writes no answers, which form generate_until wants"):
        asked(models["bert"]).check(WRITES)
    with pytest.raises(UserError, match="max_new_tokens: 32 leaves nothing of the model's 32 positions"):
        asked(models["gpt2"], complete=lambda *_: []).check(WRITES.model_copy(update={"max_new_tokens": 32}))
    asked(models["gpt2"], complete=lambda *_: []).check(WRITES)
    asked(models["bert"]).check(HarnessTask(name="near", form="similarity", choices="[a, b]", answer="c"))


@pytest.mark.parametrize(
    ("family", "form", "texts", "words"),
    [
        ("gpt2", "loglikelihood", [" the cat"], None),
        (
            "gpt2",
            "loglikelihood",
            [" the cat" * 40],
            r"^x\.yaml: rows\.jsonl: line 3: \d+ tokens are too many for the mod",
        ),
        (
            "gpt2",
            "pair",
            ["the cat", "a dog " * 40],
            r"^x\.yaml: rows\.jsonl: line 3: choice 1: \d+ tokens are too many",
        ),
        (
            "bert",
            "multiple_choice",
            ["\u200b", "a"],
            r"^x\.yaml: rows\.jsonl: line 3: choice 0: has no tokens, at least",
        ),
        ("t5", "loglikelihood_rolling", [" the cat" * 40], None),
    ],
)
def test_a_text_that_cannot_be_scored_is_named_by_its_row(models, family, form, texts, words):
    task = HarnessTask(name="x", form=form, source="x.yaml")
    example = Example(7, ("",) * len(texts), tuple(texts), unconditional="", where="rows.jsonl: line 3")
    with pytest.raises(UserError, match=words) if words else contextlib.nullcontext():
        asked(models[family]).check_examples(task, [example])


def test_settings_without_effect_on_a_family_are_refused():
    encoder, decoder, both = (families.config(family).model for family in ("bert", "gpt2", "t5"))
    for model, form, unit in ((encoder, None, "word"), (both, "span", None), (decoder, None, None)):
        likelihood.check_settings(model, form, unit)
    with pytest.raises(UserError, match=r"^form: is for encoder-decoders, and bert is an encoder; leave it out$"):
        likelihood.check_settings(encoder, "span", None)
    with pytest.raises(UserError, match=r"^unit: is for encoders, and t5 is an encoder-decoder; leave it out$"):
        likelihood.check_settings(both, None, "word")


def test_what_a_models_objective_and_vocabulary_lack_is_refused_before_a_text_is_scored(models):
    """Spans that were not trained, and the language of mBART where a vocabulary has several."""
    t5 = models["t5"]
    asked(t5, form="span").check(LAST)
    asked(t5, objective=Seq2Seq()).check(LAST)
    with pytest.raises(UserError, match=r"^form: span needs an objective that fills spans; .*seq2seq does not$"):
        asked(t5, objective=Seq2Seq(), form="span").check(LAST)
    with pytest.raises(UserError, match=r"^target_language: the vocabulary has 0 languages; name"):
        asked(t5, objective=MBart()).check(LAST)


def test_a_query_stream_has_no_words_to_mask(models, monkeypatch):
    bert = models["bert"]
    asked(bert, unit="word").check(LAST)
    monkeypatch.setattr(PromptEncoder, "format", lambda *_: Format(permutes=True))
    with pytest.raises(UserError, match=r"^unit: word has no effect on bert, which is scored left to right"):
        asked(bert, unit="word").check(LAST)
