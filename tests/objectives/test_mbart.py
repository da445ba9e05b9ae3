"""mBART: language tokens in their places on real text and in a run's data, and what is refused."""

import numpy as np
import pytest
import seqio
import tensorflow as tf

from jaxpt.config import TokenizerConfig
from jaxpt.data import datasets, tokenizers
from jaxpt.data.calls import Vocabulary
from jaxpt.data.preprocessors import bart, features, mbart
from jaxpt.data.records.shard import Ragged
from jaxpt.errors import UserError
from jaxpt.objectives.mbart import MBart
from tests import families
from tests.data.preprocessors import corpus

PAD, EOS, MASK, LANGUAGES, SIZE = 0, 1, 259, (260, 261, 262), 263
COUNT = 2_500


def shifted(labels):
    """What the decoder reads in transformers: all turned right by one, the last that is no padding first."""
    last = (labels != PAD).sum(1) - 1
    return np.concatenate([labels[np.arange(len(labels)), last][:, None], labels[:, :-1]], axis=1)


@pytest.fixture(scope="module")
def made():
    """(texts, their languages, the batch) of real texts."""
    texts, languages = corpus.texts(COUNT), np.resize(LANGUAGES, COUNT).astype(np.int32)
    vocabulary = Vocabulary(size=SIZE, eos=EOS, mask=MASK, bos=5, languages=LANGUAGES)
    noise, language, last = MBart().data_spec(66).transforms(vocabulary, 0).online
    batch = {"tokens": corpus.ragged(texts), "language": tf.constant(languages)}
    batch = bart.noise.batched(batch, corpus.keys(COUNT), seqio.ByteVocabulary(SIZE - 259), **noise.kwargs)
    batch = mbart.add_language.batched(batch, **language.kwargs)
    rows = {name: x for name, x in batch.items() if name != "language"}
    rows = {name: Ragged(x.values.numpy(), x.row_lengths().numpy()) for name, x in rows.items()}
    return texts, languages, features.encoder_decoder.rows(rows, **last.kwargs)


def test_every_side_ends_with_its_language_and_the_decoder_starts_with_it(made):
    texts, languages, batch = made
    inputs, targets, read = (
        batch[name] for name in ("encoder_input_tokens", "decoder_target_tokens", "decoder_input_tokens")
    )
    real = batch["decoder_segment_ids"] > 0
    for side in (inputs, targets):
        last = (side != PAD).sum(1) - 1
        np.testing.assert_array_equal(side[np.arange(COUNT), last], languages)
        np.testing.assert_array_equal(side[np.arange(COUNT), last - 1], EOS)
    np.testing.assert_array_equal(read[:, 0], languages)
    np.testing.assert_array_equal(read[real], shifted(targets)[real])
    for text, target in zip(texts, targets):
        np.testing.assert_array_equal(target[: len(text)], text)
    assert set(np.unique(batch["decoder_loss_weights"][real])) == {1.0}


def test_fairseqs_sides_begin_with_bos_and_have_no_eos():
    """fairseq/tasks/multilingual_denoising.py with `--add-lang-token`."""
    texts = [np.arange(70, 79, dtype=np.int32), np.arange(80, 84, dtype=np.int32)]
    vocabulary = Vocabulary(size=SIZE, eos=EOS, mask=MASK, bos=5, languages=LANGUAGES)
    objective = MBart(eos=False, mask_rate=0.0)
    noise, language, _ = objective.data_spec(12).transforms(vocabulary, 0).online
    batch = {"tokens": corpus.ragged(texts), "language": tf.constant(LANGUAGES[:2])}
    batch = bart.noise.batched(batch, corpus.keys(2), seqio.ByteVocabulary(SIZE - 259), **noise.kwargs)
    batch = mbart.add_language.batched(batch, **language.kwargs)
    for text, tag, target, read in zip(
        texts, LANGUAGES, *map(corpus.rows, (batch["targets"], batch["decoder_inputs"]))
    ):
        assert target.tolist() == [5, *text, tag] and read.tolist() == [tag, 5, *text]


def test_thirty_five_percent_of_the_words(made):
    """Masks stand for spans of 3.5 words on average, 35 % of them in all, rounded up in each text."""
    texts, _, batch = made
    starts = sum(int((text == ord(" ") + 3).sum()) for text in texts)
    gone = sum(len(t) for t in texts) - (~np.isin(batch["encoder_input_tokens"], (PAD, EOS, MASK, *LANGUAGES))).sum()
    masks = (batch["encoder_input_tokens"] == MASK).sum()
    assert 0.3 < gone / sum(len(t) for t in texts) < 0.5  # more than a third: short texts round up
    assert 0.05 < masks / starts < 0.35


@pytest.mark.parity
def test_the_decoder_reads_what_transformers_makes_it_read(made):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers.models.mbart.modeling_mbart import shift_tokens_right

    targets, read = made[2]["decoder_target_tokens"], made[2]["decoder_input_tokens"]
    theirs = shift_tokens_right(torch.tensor(targets), PAD).numpy()
    real = made[2]["decoder_segment_ids"] > 0
    np.testing.assert_array_equal(read[real], theirs[real])


WORDS = {
    "de_DE": "die Katze saß auf der Matte",
    "fr_XX": "le chat dort sur le tapis",
    "en_XX": "the cat sat on the mat",
}


def config(folder, languages=tuple(WORDS), **data):
    for name, words in WORDS.items():
        (folder / f"{name}.txt").write_text("\n".join(f"{words} {i} ." for i in range(40)), "utf-8")
    tasks = [{"name": n[:2], "path": str(folder / f"{n}.txt"), "validation_fraction": 0.2} for n in WORDS]
    tasks = [t | ({"language": x} if x else {}) for t, x in zip(tasks, languages)]
    settings = {"cache_dir": str(folder / "cache"), "length": 32, "batch_size": 8}
    settings |= {"tokenizer": {"kind": "sentencepiece", "extra_ids": 2}, "mixture": tasks}
    return families.config("t5", model={"vocab_size": 100}, objective={"kind": "mbart"}, data=settings | data)


@pytest.mark.slow
def test_a_run_of_three_languages(tmp_path):
    """A trained vocabulary holds the languages, and each row the one of its task; packed rows start anew."""
    data = datasets.prepare(config(tmp_path))
    names = dict(zip(("de", "fr", "en"), data.vocabulary.languages))
    assert data.tokenizer.tokens(names.values()) == list(WORDS)
    assert data.tokenizer.encode("de_DE") != [names["de"]]  # no text gives it
    for name, stream in data.train.each().items():
        batch = next(stream.batches())
        assert set(batch["decoder_input_tokens"][:, 0]) == {names[name]}
        probe = MBart().baseline.eval_mask(batch, data.vocabulary)
        assert not np.isin(batch["decoder_target_tokens"][probe > 0], list(names.values())).any()
    packed = datasets.prepare(config(tmp_path, packing=True)).train
    batch = next(packed.batches())
    starts = (batch["decoder_positions"] == 0) & (batch["decoder_segment_ids"] > 0)
    assert set(batch["decoder_input_tokens"][starts]) <= set(names.values())

    with pytest.raises(UserError, match=r"data.mixture, task fr: data.language is missing: objective.kind: mbart"):
        datasets.prepare(config(tmp_path, languages=("de_DE", None, "en_XX")))
    data.tokenizer.save(tmp_path / "vocabulary")
    with pytest.raises(UserError, match=r"no token 'it_IT' \(data.language\) in this vocabulary"):
        tokenizers.load(tmp_path / "vocabulary", languages=["it_IT"])
    with pytest.raises(UserError, match="a bpe vocabulary is not trained with tokens of languages"):
        tokenizers.train(["a"], TokenizerConfig(kind="bpe"), 300, languages=["it_IT"])
