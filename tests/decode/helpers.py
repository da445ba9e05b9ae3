"""Small random networks of each family with an objective and a vocabulary."""

import functools

import jax
import numpy as np

from jaxpt.data.calls import Vocabulary
from jaxpt.models.network import Network
from jaxpt.objectives.bart import Bart
from jaxpt.objectives.causal_lm import CausalLM
from jaxpt.objectives.masked_lm import MaskedLM
from jaxpt.objectives.permutation_lm import PermutationLM
from jaxpt.objectives.prefix_lm import PrefixLM
from jaxpt.objectives.replaced_token import ReplacedToken
from jaxpt.objectives.span_corruption import SpanCorruption
from jaxpt.objectives.ul2 import UL2
from tests.models.helpers import EVERY, V, drawn

VOCABULARIES = {
    "encoder": Vocabulary(V, unk=1, cls=2, sep=3, mask=4),
    "decoder": Vocabulary(V, bos=2, eos=1),
    "encoder_decoder": Vocabulary(V, unk=2, bos=3, eos=1, mask=4, sentinels=20),
}
MLM = MaskedLM(next_sentence=False)
SMALL = {"embed_dim": 8, "heads": 2, "mlp_dim": 16}
OBJECTIVES = {
    "gpt2": CausalLM(), "gpt": CausalLM(), "opt": CausalLM(), "llama": CausalLM(), "mistral": CausalLM(),
    "decoder_only": CausalLM(),
    "t5_lm": PrefixLM(), "t5": SpanCorruption(), "umt5": UL2(), "bart": Bart(), "xlnet": PermutationLM(memory=False),
    "electra": ReplacedToken(generator=SMALL),
    **dict.fromkeys(("bert", "roberta", "albert", "distilbert", "deberta", "modernbert"), MLM),
}  # fmt: skip
ENCODERS = tuple(name for name, objective in OBJECTIVES.items() if objective.family == "encoder")
DECODERS = tuple(name for name, objective in OBJECTIVES.items() if objective.family == "decoder")


@functools.cache
def network(name, **options):
    """(network, parameters, objective, vocabulary): the first arguments of all functions of lists of ids."""
    objective = OBJECTIVES[name]
    if name == "modernbert":
        options = {"heads": 6} | options
    made = objective.network(EVERY[name](**options))
    return made, drawn(made), objective, VOCABULARIES[made.config.family]


def texts(*lengths, seed=0):
    """Random ids without special tokens and sentinels."""
    rng = np.random.default_rng(seed)
    return [rng.integers(10, V - 30, n).tolist() for n in lengths]


@functools.cache
def jitted(made: Network, method: str, *static: str):
    """(params, *arrays) → logits of a method's hidden states at all positions, each shape compiled once."""

    def run(params, *args, **options):
        bound = made.bind(params)
        bound = bound.heads.get("generator", bound)
        return bound.logits(getattr(bound, method)(*args, **options).hidden)

    return jax.jit(run)


def log_softmax(logits):
    """In float64, by NumPy."""
    x = np.asarray(logits, np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))
