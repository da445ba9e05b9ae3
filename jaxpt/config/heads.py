"""The heads with which a backbone is fine-tuned: what each architecture says of them (`ModelConfig.task_head`)."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

HeadName = Literal["classes", "tags", "span", "choice"]
"""classes: a whole text's logits · tags: each token's · span: each token's as start and end · choice: one per text."""
HEAD_NAMES: tuple[str, ...] = get_args(HeadName)


@dataclasses.dataclass(frozen=True)
class PoolerOptions:
    """A layer between the hidden states and the logits: LN(f(dropout(x) · W + b))."""

    activation: str = "tanh"
    """f: a name of `jaxpt.models.layers.ACTIVATIONS`."""
    drops_out: bool = False
    """True: dropout on x."""
    use_bias: bool = True
    """Use b."""
    epsilon: float | None = None
    """ε of LN; None: no norm."""
    norm_bias: bool = False


@dataclasses.dataclass(frozen=True)
class TaskHead:
    """How an architecture's fine-tuning class makes logits: dropout(pooler(x)) · W + b, with the hidden states x."""

    stack: Literal["encoder", "decoder"]
    """Whose hidden states x are. A decoder after an encoder reads the same text as the encoder, shifted to the right by
    one position (T5: after padding, BART: after EOS, mBART: after the text's last token)."""
    position: Literal["first", "last", "eos", "mean", "each"]
    """Where x is taken: at the text's first token, its last one that is no padding, where the encoder's input has its
    last EOS, the mean of all tokens that are no padding, or at each token."""
    pooler: PoolerOptions | None = None
    drops_out: bool = True
    """True: dropout before W by default."""
    use_bias: bool = True
    """Use b."""
