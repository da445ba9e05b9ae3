"""A module as T5's task files are: anyone's, registered with SeqIO, imported through `data.modules`."""

import functools
from pathlib import Path

import seqio
import tensorflow as tf

# A small model that SeqIO itself ships.
MODEL = str(Path(seqio.__file__).parent / "test_data/sentencepiece/sentencepiece.model")
VOCABULARY = seqio.SentencePieceVocabulary(MODEL, extra_ids=20)
FEATURES = {name: seqio.Feature(VOCABULARY, add_eos=True) for name in ("inputs", "targets")}
WORDS = ("cats", "dogs", "mice", "birds", "bees")


def documents(split, shuffle_files=False, seed=None, count=90):
    texts = [f"{WORDS[i % 5]} number {i} go on" for i in range(count if split == "train" else 20)]
    return tf.data.Dataset.from_tensor_slices({"text": texts, "number": tf.range(len(texts))})


def concatenate(ds, feature_key="targets", batch_size=4):
    """As T5's reduce_concat_tokens: several documents become one, without anything between them."""
    ds = ds.map(lambda x: {feature_key: x[feature_key]}).padded_batch(
        batch_size, {feature_key: [None]}, {feature_key: -1}
    )
    return ds.map(lambda x: {feature_key: tf.boolean_mask(x[feature_key], x[feature_key] >= 0)})


def split_tokens(ds, sequence_length, feature_key="targets"):
    """As T5's: one document becomes several, each as long as the inputs may be but for the last."""

    def split(x):
        tokens, length = x[feature_key], sequence_length["inputs"] - 2
        count = (tf.size(tokens) + length - 1) // length
        padded = tf.pad(tokens, [[0, count * length - tf.size(tokens)]], constant_values=-1)
        return tf.reshape(padded, [count, length])

    ds = ds.map(split).unbatch()
    return ds.map(lambda row: {feature_key: tf.boolean_mask(row, row >= 0)})


@seqio.map_over_dataset(num_seeds=1)
def drop_some(x, seed, rate=0.3):
    """A random map: the inputs lack some of the tokens that the targets have."""
    keep = tf.random.stateless_uniform(tf.shape(x["targets"]), seed) >= rate
    return {"inputs": tf.boolean_mask(x["targets"], keep), "targets": x["targets"]}


@seqio.map_over_dataset
def ask(x):
    return {"inputs": tf.strings.join(["number? ", x["text"]]), "targets": tf.strings.as_string(x["number"])}


def no_birds(ds):
    return ds.filter(lambda x: tf.strings.regex_full_match(x["inputs"], ".*(cats|dogs|mice).*"))


source = seqio.FunctionDataSource(documents, ["train", "validation"])
seqio.TaskRegistry.add(
    "style_denoise",
    source=source,
    preprocessors=[
        functools.partial(seqio.preprocessors.rekey, key_map={"targets": "text"}),
        seqio.preprocessors.tokenize,
        seqio.CacheDatasetPlaceholder(),
        concatenate,
        split_tokens,
        drop_some,
        seqio.preprocessors.append_eos_after_trim,
    ],
    output_features=FEATURES,
)
seqio.TaskRegistry.add(
    "style_ask",
    source=source,
    preprocessors=[
        ask,
        no_birds,
        seqio.preprocessors.tokenize,
        seqio.CacheDatasetPlaceholder(),
        seqio.preprocessors.append_eos,
    ],
    output_features=FEATURES,
)
seqio.TaskRegistry.add(
    "style_train_only",
    source=seqio.FunctionDataSource(documents, ["train"]),
    preprocessors=[ask, seqio.preprocessors.tokenize, seqio.preprocessors.append_eos],
    output_features=FEATURES,
)
seqio.TaskRegistry.add(
    "style_without_end",
    source=source,
    preprocessors=[ask, seqio.preprocessors.tokenize, lambda ds: ds.repeat(), seqio.preprocessors.append_eos],
    output_features=FEATURES,
)
seqio.MixtureRegistry.add("style_both", [("style_denoise", 3), ("style_ask", 1)])
