"""The peers of tools/bench_data.py, each in a process of its own: SeqIO with the t5 package, Hugging Face's collators.

Imports nothing of jaxpt, so that it runs in an environment made for the peer:

    python tools/bench_data_peers.py t5|seqio|hf TOKENS.npz SECONDS      prints {row: examples per CPU-second} as JSON

TOKENS.npz holds, each as NAME and NAME_lengths: documents (of text), windows (of inputs + noise), instances (of BERT),
texts (of length + 1), inputs and targets (short pairs).
"""

import argparse
import json
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

LENGTH, TARGETS, BATCH = 512, 114, 128
SIZE, EOS = 32_000, 1


def measured(batches, seconds, count=None):
    """Examples per CPU-second of all threads, after five batches that warm up; `count` of a batch, or its rows."""
    for _ in range(5):
        next(batches)
    begun, examples = time.process_time(), 0
    while time.process_time() - begun < seconds:
        batch = next(batches)
        examples += BATCH if count is None else count(batch)
    return examples / (time.process_time() - begun)


def rows(tokens, name):
    return np.split(tokens[name], np.cumsum(tokens[f"{name}_lengths"])[:-1])


# ---- SeqIO's feature converters, with the t5 package's preprocessors ------------------------------------------------


def seqio_rows(tokens, seconds, with_t5):
    import seqio
    import tensorflow as tf

    vocabulary = seqio.PassThroughVocabulary(SIZE, eos_id=EOS)
    features = {
        "inputs": seqio.Feature(vocabulary, add_eos=True),
        "targets": seqio.Feature(vocabulary, add_eos=True),
    }

    def dataset(**names):
        """Examples without end, shuffled as a training task is, from tensors in memory."""
        parts = {
            key: tf.RaggedTensor.from_row_lengths(tokens[name].astype(np.int32), tokens[f"{name}_lengths"])
            for key, name in names.items()
        }
        return tf.data.Dataset.from_tensor_slices(parts).shuffle(1000, seed=0).repeat()

    def batches(ds, converter, **lengths):
        with_eos = {name: f for name, f in features.items() if lengths.get(name)}
        ds = seqio.preprocessors.append_eos_after_trim(ds, with_eos, lengths)
        ds = converter(ds, {k: v for k, v in lengths.items() if v})
        return ds.batch(BATCH, drop_remainder=True).prefetch(2).as_numpy_iterator()

    def no_task(converter):
        converter._validate_dataset = lambda ds, *args, **kwargs: ds
        return converter

    def examples_in(batch):
        return int(batch["encoder_segment_ids"].max(axis=1).sum())

    out = {}
    if with_t5:
        from t5.data import preprocessors as t5

        both = {"inputs": LENGTH, "targets": TARGETS}
        with seqio.map_seed_manager(0):
            ds = t5.span_corruption(dataset(targets="documents"), both, features)
        out["span corruption"] = measured(batches(ds, seqio.EncDecFeatureConverter(pack=False), **both), seconds)
        with seqio.map_seed_manager(0):
            ds = t5.denoise(
                dataset(targets="instances"),
                features,
                noise_density=0.15,
                noise_mask_fn=t5.iid_noise_mask,
                inputs_fn=t5.noise_token_to_random_token_or_sentinel,
                targets_fn=None,
            )
        encoder = {"inputs": LENGTH + 1, "targets": LENGTH + 1}
        converter = seqio.EncoderFeatureConverter(mask_id=SIZE - 1, pack=False)
        out["BERT masking"] = measured(batches(ds, converter, **encoder), seconds)
    lm = batches(dataset(targets="texts"), seqio.LMFeatureConverter(pack=False), targets=LENGTH + 2)
    out["causal LM"] = measured(lm, seconds)
    pairs = dataset(inputs="inputs", targets="targets")
    packed = seqio.EncDecFeatureConverter(pack=True)
    out["packed short pairs"] = measured(batches(pairs, packed, inputs=LENGTH, targets=LENGTH), seconds, examples_in)
    return out


# ---- Hugging Face's collators ---------------------------------------------------------------------------------------


def hf_rows(tokens, seconds):
    import torch
    from transformers import BertTokenizerFast, DataCollatorForLanguageModeling, DataCollatorWithFlattening

    torch.set_num_threads(1)
    vocab = {t: i for i, t in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])}
    vocab |= {f"w{i}": i for i in range(5, SIZE)}
    tokenizer = BertTokenizerFast(vocab=vocab)

    def batches(examples, collator):
        rng = np.random.default_rng(0)
        while True:
            yield collator([examples[i] for i in rng.integers(len(examples), size=BATCH)])

    def listed(name, **more):
        """As the `datasets` library gives examples: lists of whole numbers."""
        return [{"input_ids": row.tolist()} | {k: f(row) for k, f in more.items()} for row in rows(tokens, name)]

    special = {"special_tokens_mask": lambda row: np.isin(row, (2, 3)).astype(int).tolist()}
    masking = DataCollatorForLanguageModeling(tokenizer)
    causal = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    flat = [{"input_ids": a.tolist() + b.tolist()} for a, b in zip(rows(tokens, "inputs"), rows(tokens, "targets"))]
    return {
        "BERT masking": measured(batches(listed("instances", **special), masking), seconds),
        "causal LM": measured(batches(listed("texts"), causal), seconds),
        "packed short pairs": measured(batches(flat, DataCollatorWithFlattening(return_tensors="pt")), seconds),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=["t5", "seqio", "hf"])
    parser.add_argument("path", metavar="TOKENS.npz")
    parser.add_argument("budget", metavar="SECONDS", type=float)
    arguments = parser.parse_args()
    which, path, budget = arguments.which, arguments.path, arguments.budget
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # one core
    made = np.load(path)
    made = {name: made[name] for name in made.files}
    print(json.dumps(hf_rows(made, budget) if which == "hf" else seqio_rows(made, budget, which == "t5")))
