"""What `jaxpt inspect` says above an example: where it is from, its lengths, labels and what its tokens see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


def facts(example: Mapping[str, np.ndarray], files: Sequence[str] = ()) -> dict[str, str]:
    """The figures of an example.

    Args:
      example: features of one example; "origin" says where it begins: file, document, and offset in tokens; a packed
        row has one line of them for each segment. "task" is the name of its task in a mixture.
      files: names of the files that "origin" counts.

    Returns:
      {name: value in words}.
    """
    said: dict[str, str] = {}
    if str(example.get("task", "data")) != "data":
        said["task"] = str(example["task"])
    if "origin" in example:
        said["origin"] = "; ".join(_place(origin, files) for origin in np.atleast_2d(example["origin"]))
    for side in ("encoder", "decoder"):
        if f"{side}_segment_ids" in example:
            real = int((example[f"{side}_segment_ids"] > 0).sum())
            said[f"{side} tokens"] = f"{real} (+ {example[f'{side}_segment_ids'].size - real} padding)"
    weights = example.get("masked_weights", example.get("decoder_loss_weights"))
    if weights is not None:
        said["targets"] = str(targets := int((weights > 0).sum()))
        if "masked_weights" in example and (real := (example["encoder_segment_ids"] > 0).sum()):
            said["targets"] += f" ({targets / real:.0%} of the tokens)"
    if "encoder_ranks" in example:
        ranks, ids = example["encoder_ranks"], example["encoder_segment_ids"]
        said["each token sees"] = "; ".join(_sees(ranks[ids == i]) for i in range(1, int(ids.max()) + 1))
    if example.get("next_sentence_weights", 1.0) > 0 and "next_sentence_labels" in example:
        said["next sentence"] = "B is random (label 1)" if example["next_sentence_labels"] else "B follows A (label 0)"
    if "sentence_order_labels" in example:
        said["sentence order"] = "swapped (label 1)" if example["sentence_order_labels"] else "A, then B (label 0)"
    if "is_random" in example:
        said["B"] = "drawn from the corpus" if example["is_random"] else "continues A"
    return said


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
