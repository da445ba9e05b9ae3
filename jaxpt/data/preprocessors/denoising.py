"""T5's other unsupervised objectives, one record to one example, in graph code.

Every token is noise by itself with the probability `density`, so that a text may have much noise or none. The published
code trims what is then too long for a feature; here noise ends where the targets or the sentinels would run out, and
the rest of the text stays as it is.

Paper: https://arxiv.org/abs/1910.10683 (table 3)

Shapes: R records · N tokens of all records end to end
"""

from __future__ import annotations

from jaxpt.data._tf import tf
from jaxpt.data.preprocessors.batched import (
    Batch,
    at_starts,
    bits,
    fold_in,
    one_to_one,
    origin,
    places,
    ragged_mask,
    randint,
    reordered,
    uniform,
)
from jaxpt.data.preprocessors.span_corruption import ended, with_sentinels


@one_to_one
def replace_spans(
    batch: Batch, keys: tf.Tensor, density: float, first_sentinel: int, sentinels: int, targets_length: int, eos: int
) -> Batch:
    """Replaces each run of noise tokens by a sentinel; in the targets each run of kept tokens becomes one.

    On either side the first run has the first sentinel, as in the published code: where a text begins with noise, the
    targets' sentinels are one ahead of the inputs'.

    Args:
      batch: records with "tokens" int32 [length]; "origin" is passed through where there is one.
      keys: of the records' draws.
      density: probability of noise.
      first_sentinel: id of the first sentinel; the next ones count down from it.
      sentinels: how many there are.
      targets_length: most tokens of the targets.
      eos: id put after the inputs and after the targets.

    Returns:
      {"inputs": int32 [at most length + 1], "targets": int32 [at most targets_length], "origin"}.

    Example:
      >>> settings = {"first_sentinel": 99, "sentinels": 10, "targets_length": 10, "eos": 1}
      >>> ex = replace_spans.__wrapped__({"tokens": tf.range(11, 19)}, (0, 4), density=0.4, **settings)
      >>> {name: x.numpy().tolist() for name, x in ex.items()}
      {'inputs': [99, 12, 98, 15, 97, 18, 1], 'targets': [11, 99, 13, 14, 98, 16, 17, 97, 1]}
    """
    tokens = batch["tokens"]
    is_noise_N = uniform(fold_in(keys, 1), tokens) < density
    is_first_N = is_noise_N & ~at_starts(tf.roll(is_noise_N, 1, 0), tokens, False)
    # In the targets each noise token takes a place, and each run of noise the sentinel before it.
    spans_N = so_far(is_first_N, tokens)
    taken_N = so_far(is_noise_N, tokens) + spans_N
    is_noise_N &= (taken_N <= targets_length - 2) & (spans_N < sentinels)
    return with_sentinels(batch, is_noise_N, first_sentinel, eos)


@one_to_one
def drop(batch: Batch, keys: tf.Tensor, density: float, targets_length: int, eos: int) -> Batch:
    """Leaves the noise tokens out; the targets are these tokens.

    Args:
      batch: records with "tokens" int32 [length]; "origin" is passed through where there is one.
      keys: of the records' draws.
      density: probability of noise.
      targets_length: most tokens of the targets.
      eos: id put after the inputs and after the targets.

    Returns:
      {"inputs": int32 [kept + 1], "targets": int32 [noise + 1], "origin"}.

    Example:
      >>> ex = drop.__wrapped__({"tokens": tf.range(11, 19)}, (0, 4), density=0.4, targets_length=9, eos=1)
      >>> {name: x.numpy().tolist() for name, x in ex.items()}
      {'inputs': [12, 15, 18, 1], 'targets': [11, 13, 14, 16, 17, 1]}
    """
    tokens = batch["tokens"]
    is_noise_N = uniform(fold_in(keys, 1), tokens) < density
    is_noise_N &= so_far(is_noise_N, tokens) < targets_length
    return _sides(batch, ragged_mask(tokens, ~is_noise_N), ragged_mask(tokens, is_noise_N), eos)


@one_to_one
def mask(
    batch: Batch, keys: tf.Tensor, density: float, mask: int, random_probability: float, reserved_ids: int,
    vocab_size: int, eos: int,
) -> Batch:  # fmt: skip
    """Replaces each noise token by a mask or a random token; the targets are the whole text.

    Args:
      batch: records with "tokens" int32 [length]; "origin" is passed through where there is one.
      keys: of the records' draws.
      density: probability of noise.
      mask: id of the mask.
      random_probability: share of the noise that becomes a random id instead.
      reserved_ids: random ids are none of the first ones.
      vocab_size: random ids are below it.
      eos: id put after the inputs and after the targets.

    Returns:
      {"inputs": int32 [length + 1], "targets": int32 [length + 1], "origin"}.

    Example:
      >>> settings = {"mask": 99, "random_probability": 0.0, "reserved_ids": 3, "vocab_size": 100, "eos": 1}
      >>> ex = mask.__wrapped__({"tokens": tf.range(11, 19)}, (0, 4), density=0.4, **settings)
      >>> {name: x.numpy().tolist() for name, x in ex.items()}
      {'inputs': [99, 12, 99, 99, 15, 99, 99, 18, 1], 'targets': [11, 12, 13, 14, 15, 16, 17, 18, 1]}
    """
    tokens = batch["tokens"]
    is_noise_N = uniform(fold_in(keys, 1), tokens) < density
    is_random_N = uniform(fold_in(keys, 2), tokens) < random_probability
    random_N = reserved_ids + randint(fold_in(keys, 3), vocab_size - reserved_ids, tokens)
    noise_N = tf.where(is_random_N, random_N, mask)
    return _sides(batch, tokens.with_values(tf.where(is_noise_N, noise_N, tokens.values)), tokens, eos)


@one_to_one
def deshuffle(batch: Batch, keys: tf.Tensor, eos: int) -> Batch:
    """Shuffles the tokens; the targets are the text in its order.

    Args:
      batch: records with "tokens" int32 [length]; "origin" is passed through where there is one.
      keys: of the records' draws.
      eos: id put after the inputs and after the targets.

    Returns:
      {"inputs": int32 [length + 1], "targets": int32 [length + 1], "origin"}.

    Example:
      >>> ex = deshuffle.__wrapped__({"tokens": tf.range(11, 19)}, (0, 4), eos=1)
      >>> {name: x.numpy().tolist() for name, x in ex.items()}
      {'inputs': [15, 11, 13, 12, 17, 14, 18, 16, 1], 'targets': [11, 12, 13, 14, 15, 16, 17, 18, 1]}
    """
    tokens = batch["tokens"]
    return _sides(batch, reordered(tokens, bits(keys, tokens)), tokens, eos)


@one_to_one
def split(batch: Batch, keys: tf.Tensor, eos: int) -> Batch:
    """Cuts the text in two, the inputs and the targets, at a place uniform on 1 … length - 1.

    A sequence of one token stays whole.

    Args:
      batch: records with "tokens" int32 [length]; "origin" is passed through where there is one.
      keys: of the records' draws.
      eos: id put after the inputs and after the targets.

    Returns:
      {"inputs": int32 [prefix + 1], "targets": int32 [length - prefix + 1], "origin"}.

    Example:
      >>> ex = split.__wrapped__({"tokens": tf.range(11, 19)}, (0, 4), eos=1)
      >>> {name: x.numpy().tolist() for name, x in ex.items()}
      {'inputs': [11, 12, 13, 1], 'targets': [14, 15, 16, 17, 18, 1]}
    """
    tokens = batch["tokens"]
    in_prefix_N = places(tokens) < tf.repeat(_prefix_lengths(keys, tokens), tokens.row_lengths())
    return _sides(batch, ragged_mask(tokens, in_prefix_N), ragged_mask(tokens, ~in_prefix_N), eos)


@one_to_one
def mark_prefix(batch: Batch, keys: tf.Tensor) -> Batch:
    """Says how much of each text is its prefix, uniform on 1 … length - 1: 1 for a text of one token.

    Args:
      batch: records with "tokens" int32 [length]; their other features are passed through.
      keys: of the records' draws.

    Returns:
      The records with "prefix", an int32 scalar.

    Example:
      >>> mark_prefix.__wrapped__({"tokens": tf.range(11, 19)}, (0, 4))["prefix"].numpy().item()
      3
    """
    return {**batch, "prefix": _prefix_lengths(keys, batch["tokens"])}


def _prefix_lengths(keys: tf.Tensor, tokens: tf.RaggedTensor) -> tf.Tensor:
    """Length of each record's prefix, uniform on 1 … length - 1; 1 for a record of one token: int32 [R]."""
    lengths_R = tf.cast(tokens.row_lengths(), tf.int32)
    return 1 + randint(keys, tf.maximum(lengths_R - 1, 1))


def so_far(chosen_N: tf.Tensor, tokens: tf.RaggedTensor) -> tf.Tensor:
    """How many of the chosen tokens of its record stand up to each token, itself counted: int32 [N]."""
    count_N = tf.cumsum(tf.cast(chosen_N, tf.int32))
    before_R = tf.gather(tf.pad(count_N, [[1, 0]]), tokens.row_starts())
    return count_N - tf.repeat(before_R, tokens.row_lengths())


def _sides(batch: Batch, inputs: tf.RaggedTensor, targets: tf.RaggedTensor, eos: int) -> Batch:
    """Inputs and targets, EOS after each."""
    return {"inputs": ended(inputs, eos), "targets": ended(targets, eos)} | origin(batch)
