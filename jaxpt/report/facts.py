"""What `jaxpt inspect` says above an example: where it is from, its lengths, labels and what its tokens see.

And of many examples together, and of the vocabulary, for the head of a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxpt.data.calls import Vocabulary
    from jaxpt.data.tokenizers.base import Tokenizer

_KNOWN = ("encoder_", "decoder_", "masked_", "next_sentence_", "sentence_order_", "is_random", "label")
_MOST_LABELS = 16  # of a row, that are shown
_PAIR_LABELS = {
    "next_sentence_labels": ("next sentence", "B follows A (label 0)", "B is random (label 1)"),
    "sentence_order_labels": ("sentence order", "A, then B (label 0)", "swapped (label 1)"),
    "is_random": ("B", "continues A", "drawn from the corpus"),
}
"""{feature: (heading, what 0 means, what 1 means)}."""
_SPECIALS = ("pad", "unk", "bos", "eos", "cls", "sep", "mask")


def facts(
    example: Mapping[str, np.ndarray],
    files: Sequence[str] = (),
    features: Iterable[str] = (),
    labels: Sequence[str] | None = None,
) -> dict[str, str]:
    """The figures of an example.

    Args:
      example: features of one example; "origin" says where it begins: file, document, and offset in tokens; a packed
        row has one line of them for each segment. "task" is the name of its task in a mixture.
      files: names of the files that "origin" counts.
      features: all that the objective declares; of those that jaxpt does not know it says how many values are not 0.
      labels: of the task, by their numbers; None: numbers are shown.

    Returns:
      {name: value in words}.
    """
    figures: dict[str, str] = {}
    if str(example.get("task", "data")) != "data":
        figures["task"] = str(example["task"])
    if "origin" in example:
        figures["origin"] = "; ".join(_place(origin, files) for origin in np.atleast_2d(example["origin"]))
    for side in ("encoder", "decoder"):
        if f"{side}_segment_ids" in example:
            real = int((example[f"{side}_segment_ids"] > 0).sum())
            figures[f"{side} tokens"] = f"{real} (+ {example[f'{side}_segment_ids'].size - real} padding)"
    weights = example.get("masked_weights", example.get("decoder_loss_weights"))
    if weights is not None:
        figures["targets"] = str(targets := int((weights > 0).sum()))
        if "masked_weights" in example and (real := (example["encoder_segment_ids"] > 0).sum()):
            figures["targets"] += f" ({targets / real:.0%} of the tokens)"
    if "encoder_ranks" in example:
        ranks, ids = example["encoder_ranks"], example["encoder_segment_ids"]
        figures["each token sees"] = "; ".join(_sees(ranks[ids == i]) for i in range(1, int(ids.max()) + 1))
    for name, (heading, if_false, if_true) in _PAIR_LABELS.items():
        if name in example and (name != "next_sentence_labels" or example.get("next_sentence_weights", 1.0) > 0):
            figures[heading] = if_true if example[name] else if_false
    if "label_weights" in example:
        of_row = example["labels"][example["label_weights"] > 0]
        named = [labels[i] if labels and of_row.ndim == 1 else str(i) for i in of_row.tolist()]
        figures["labels"] = ", ".join(named[:_MOST_LABELS]) + (" …" if len(named) > _MOST_LABELS else "")
    for name in features:
        if not name.startswith(_KNOWN):
            value = np.asarray(example[name])
            figures[name] = f"{np.count_nonzero(value)} of {value.size} not 0" if value.ndim else f"{value:g}"
    return figures


def _sees(ranks: np.ndarray) -> str:
    """What the tokens of a segment see, by their ranks."""
    step = np.diff(ranks)
    kinds = {
        "all tokens (bidirectional)": step == 0,
        "itself and those before (left to right)": step > 0,
        "itself and those after (right to left)": step < 0,
    }
    for name, is_so in kinds.items():
        if is_so.all():
            return name
    return "in A all of A, in B itself and those before (sequence to sequence)"


def _place(origin: np.ndarray, files: Sequence[str]) -> str:
    file, document, *offset = map(int, origin)
    name = files[file] if file < len(files) else f"file {file}"
    return ", token ".join([f"{name}, document {document}", *map(str, offset)])


def statistics(batch: Mapping[str, np.ndarray], vocabulary: Vocabulary) -> dict[str, str]:
    """The figures of many rows.

    Args:
      batch: their features.
      vocabulary: says which id masks.

    Returns:
      {name: value in words}: tokens in a row and the share of padding for each side of the model, targets, and what
      became of masked tokens.
    """
    figures: dict[str, str] = {}
    real = {side: batch[f"{side}_segment_ids"] > 0 for side in ("encoder", "decoder") if f"{side}_segment_ids" in batch}
    for side, is_real in real.items():
        counts = is_real.sum(-1)
        spread = f"{counts.mean():.1f} in a row, from {counts.min()} to {counts.max()}, median {np.median(counts):.0f}"
        figures[f"{side} tokens"] = f"{spread}; {1 - is_real.mean():.1%} padding"
        if (segments := batch[f"{side}_segment_ids"].max(-1)).max() > 1:
            figures[f"{side} segments"] = f"{segments.mean():.1f} in a row"
    weights = batch.get("masked_weights", batch.get("decoder_loss_weights"))
    if weights is not None:
        is_target = weights > 0
        side = "encoder" if "masked_weights" in batch else "decoder"
        figures["targets"] = (
            f"{is_target.sum(-1).mean():.1f} in a row, {is_target.sum() / real[side].sum():.1%} of the {side} tokens"
        )
        if "masked_weights" in batch and "encoder_order" not in batch:
            tokens = np.take_along_axis(batch["encoder_input_tokens"], batch["masked_positions"], -1)[is_target]
            masked, unchanged = tokens == vocabulary.mask, tokens == batch["masked_targets"][is_target]
            shares = {"masked": masked, "left as they were": unchanged & ~masked, "random": ~masked & ~unchanged}
            figures["of the targets"] = ", ".join(f"{share.mean():.1%} {name}" for name, share in shares.items())
    return figures


def of_vocabulary(tokenizer: Tokenizer) -> dict[str, str]:
    """Kind, size and special tokens of a vocabulary, in words."""
    vocabulary = tokenizer.vocabulary
    ids = {name: getattr(vocabulary, name) for name in _SPECIALS}
    properties = {
        "kind": tokenizer.kind + (", lowercase" if tokenizer.lowercase else ""),
        "size": f"{vocabulary.size:,} ids",
    }
    named = (f"{name} {tokenizer.tokens([i])[0]} {i}" for name, i in ids.items() if i is not None)
    properties["special tokens"] = ", ".join(named)
    if vocabulary.sentinels:
        properties["sentinels"] = f"{vocabulary.sentinels:,}"
    if vocabulary.added:
        properties["added"] = ", ".join(f"{token} {i}" for token, i in vocabulary.added)
    return properties
