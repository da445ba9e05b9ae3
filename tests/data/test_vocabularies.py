from pydoc_data.topics import topics

import numpy as np
import pytest

from jaxpt.config import TokenizerConfig
from jaxpt.data import tokenizers
from jaxpt.data._tf import seqio, tf
from jaxpt.data.vocabularies import TokenizerVocabulary, to_seqio

TEXTS = ["The open function returns a file.", "", "café 😀", "x = [1, 2]"]


@pytest.mark.parametrize("kind", ["sentencepiece", "wordpiece", "bpe"])
def test_tensorflow_gives_the_tokenizers_ids(kind, tmp_path):
    tokenizer = tokenizers.train(list(topics.values())[:20], TokenizerConfig(kind=kind), 500, tmp_path)
    vocabulary = to_seqio(tokenizer)
    assert isinstance(vocabulary, seqio.SentencePieceVocabulary if kind == "sentencepiece" else TokenizerVocabulary)
    assert vocabulary.vocab_size == tokenizer.vocabulary.size
    ds = tf.data.Dataset.from_tensor_slices(TEXTS).map(vocabulary.encode_tf)
    for text, ids in zip(TEXTS, ds.as_numpy_iterator(), strict=True):
        assert ids.dtype == np.int32
        assert ids.tolist() == list(vocabulary.encode(text)) == tokenizer.encode(text)
    assert vocabulary.encode_tf(tf.constant(TEXTS)).to_list() == tokenizer.encode_batch(TEXTS)
    assert vocabulary == to_seqio(tokenizers.load(tmp_path))
    grown = tokenizers.add(tokenizer, ["<|im_end|>"])
    text = f"{TEXTS[0]}<|im_end|>{TEXTS[2]}"
    ids = grown.encode(text)
    assert to_seqio(grown).encode_tf(tf.constant(text)).numpy().tolist() == ids and grown.vocabulary.size - 1 in ids
    assert to_seqio(grown).decode_tf(tf.constant(ids)).numpy() == grown.decode(ids).encode()
