"""mBART's language ids, the last token of both sides and the first that the decoder reads.

Paper: https://arxiv.org/abs/2001.08210
"""

from __future__ import annotations

from jaxpt.data._tf import tf
from jaxpt.data.preprocessors.batched import Batch, one_to_one


@one_to_one
def add_language(batch: Batch, keep_eos: bool) -> Batch:
    """Puts the language's token after inputs and targets; the decoder reads the targets turned by one, so it first.

    Args:
      batch: records with "inputs" and "targets" int32 [any], which end with EOS, and "language", the token, an int32
        scalar.
      keep_eos: EOS stands before the language's token.

    Returns:
      The records with "inputs", "targets" and "decoder_inputs".

    Example:
      >>> ex = {"inputs": tf.constant([7, 9, 2]), "targets": tf.constant([7, 8, 2]), "language": tf.constant(50)}
      >>> made = add_language.__wrapped__(ex, keep_eos=True)
      >>> [made[name].numpy().tolist() for name in ("inputs", "targets", "decoder_inputs")]
      [[7, 9, 2, 50], [7, 8, 2, 50], [50, 7, 8, 2]]
    """
    language, *sides = batch["language"][:, None], batch["inputs"], batch["targets"]
    inputs, targets = (side if keep_eos else side[:, :-1] for side in sides)
    return {
        **batch,
        "inputs": tf.concat([inputs, language], axis=1),
        "targets": tf.concat([targets, language], axis=1),
        "decoder_inputs": tf.concat([language, targets], axis=1),
    }
