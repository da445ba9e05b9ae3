"""Records what the t5 package's preprocessors make of a few inputs: tests/data/oracles/t5.json.

t5 installs a nightly of seqio over the one that jaxpt uses, so it has an environment of its own:

    python -m venv t5 && t5/bin/pip install t5
    t5/bin/python tools/t5_oracle.py > tests/data/oracles/t5.json        # t5 0.9.4, seqio-nightly 0.0.18

The layouts are those of sequences whose noise mask is the same whatever is drawn: one span, or spans of one token.
"""

import argparse
import functools
import json

import numpy as np


def layouts(length, density, mean_span):
    """All (inputs, targets) of forty seeds."""
    import seqio
    import t5.data.preprocessors as t5
    import tensorflow as tf

    features = {name: seqio.Feature(seqio.ByteVocabulary(extra_ids=100)) for name in ("inputs", "targets")}
    ds = tf.data.Dataset.from_tensors({"targets": np.arange(11, 11 + length, dtype=np.int32)})
    seen = set()
    for seed in range(40):
        with seqio.map_seed_manager(seed):
            made = t5.denoise(
                ds,
                features,
                noise_density=density,
                noise_mask_fn=functools.partial(t5.random_spans_noise_mask, mean_noise_span_length=mean_span),
                inputs_fn=t5.noise_span_to_unique_sentinel,
                targets_fn=t5.nonnoise_span_to_unique_sentinel,
            )
        ex = next(made.as_numpy_iterator())
        seen.add((tuple(ex["inputs"].tolist()), tuple(ex["targets"].tolist())))
    return sorted(seen)


def main():
    """Prints the record."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    import t5.data.preprocessors as t5

    lengths = [
        [length, density, mean, *map(int, t5.random_spans_helper(length, density, mean, 1, 1))]
        for length in (64, 128, 171, 172, 173, 256, 512, 1024)
        for density in (0.15, 0.5, 0.3)
        for mean in (3.0, 5.0, 10.0)
    ]
    cases = [
        (2, 0.15, 3.0),
        (3, 0.15, 3.0),
        (8, 0.5, 4.0),
        (8, 0.5, 1.0),
        (12, 0.5, 1.0),
        (9, 0.15, 3.0),
        (6, 0.5, 3.0),
    ]
    print(json.dumps({"lengths": lengths, "layouts": [[*case, layouts(*case)] for case in cases]}))


if __name__ == "__main__":
    main()
