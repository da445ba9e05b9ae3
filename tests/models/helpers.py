"""Small models and what is asked of each of them."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxpt.models.albert import AlbertConfig
from jaxpt.models.bart import BartConfig
from jaxpt.models.bert import BertConfig
from jaxpt.models.deberta import DebertaConfig
from jaxpt.models.decoder_only import DecoderOnlyConfig
from jaxpt.models.distilbert import DistilBertConfig
from jaxpt.models.electra import ElectraConfig
from jaxpt.models.gpt import GPTConfig
from jaxpt.models.gpt2 import GPT2Config
from jaxpt.models.heads import masked_lm, replaced_token, sentence_pair
from jaxpt.models.layers import Embed
from jaxpt.models.llama import LlamaConfig
from jaxpt.models.modernbert import ModernBertConfig
from jaxpt.models.network import Network
from jaxpt.models.opt import OPTConfig
from jaxpt.models.output import Output
from jaxpt.models.roberta import RobertaConfig
from jaxpt.models.t5 import T5Config
from jaxpt.models.t5_lm import T5LMConfig
from jaxpt.models.xlnet import XLNetConfig

V = 203
SIZES = {"vocab_size": V, "layers": 2, "embed_dim": 24, "heads": 3, "dtype": "float32"}


def bert(**options):
    return BertConfig(**SIZES | {"mlp_dim": 40, "max_positions": 32} | options)


def gpt2(**options):
    return GPT2Config(**SIZES | {"mlp_dim": 40, "max_positions": 32} | options)


def t5(**options):
    return T5Config(**SIZES | {"mlp_dim": 40, "head_dim": 5, "max_distance": 16, "buckets": 8} | options)


def t5_old(**options):
    return t5(feed_forward="relu", tie_embeddings=True, **options)


ALL = {"bert": bert, "gpt2": gpt2, "t5": t5, "t5_old": t5_old}


def _maker(kind, **more):
    return lambda **options: kind(**SIZES | {"mlp_dim": 40} | more | options)


# The other architectures: each differs from one of the four above in a few parts.
OTHERS = {
    "albert": _maker(AlbertConfig, max_positions=32, embedding_dim=10, layers=4, groups=2, inner_layers=2),
    "bart": _maker(BartConfig, max_positions=32, decoder_layers=1, decoder_heads=4, decoder_mlp_dim=20),
    "mbart": _maker(
        BartConfig, max_positions=32, decoder_layers=1, decoder_heads=3, decoder_mlp_dim=40, pre_norm=True,
        scale_embeddings=True,
    ),
    "deberta": _maker(DebertaConfig, max_positions=32, buckets=4),
    "deberta_v2": _maker(
        DebertaConfig, max_positions=32, buckets=4, share_projections=False, convolution=3, token_types=2,
        absolute_positions=True,
    ),
    "distilbert": _maker(DistilBertConfig, max_positions=32),
    "electra": _maker(ElectraConfig, max_positions=32, embedding_dim=10),
    "gpt": _maker(GPTConfig, max_positions=32, mlp_dim=None),
    "llama": _maker(LlamaConfig, max_positions=32, heads=6, kv_heads=2),
    "mistral": _maker(LlamaConfig, max_positions=32, heads=6, kv_heads=2, window=3),
    "decoder_only": _maker(
        DecoderOnlyConfig, max_positions=32, heads=6, kv_heads=2, pattern=("other", "main"), other_window=3,
        other_rope="unscaled", other_rope_theta=100.0, norm_position="both", norm="rms_plus_one", qk_norm="head",
        score_cap=2.0, logit_cap=3.0, scale_embeddings=True,
    ),
    "modernbert": _maker(ModernBertConfig, max_positions=32, heads=6, layers=8, window=4),
    "opt": _maker(OPTConfig, max_positions=32),
    "roberta": _maker(RobertaConfig, max_positions=34),
    "t5_shared": lambda **options: t5(share_layers=True, **options),
    "t5_lm": _maker(T5LMConfig, head_dim=5, max_distance=16, buckets=8),
    "umt5": lambda **options: t5(bias_per_layer=True, scale_logits=True, **options),
    "xlnet": _maker(XLNetConfig, head_dim=8),
}  # fmt: skip
EVERY = ALL | OTHERS
OF_THEIR_OWN = (
    "bert", "gpt2", "t5", "albert", "bart", "deberta_v2", "gpt", "llama", "modernbert", "t5_lm", "xlnet",
)  # fmt: skip
"""Those with blocks or stacks of their own; the others differ from one of these in options."""
SHORTER = {"albert": {"layers": 2, "groups": 1, "inner_layers": 1}, "modernbert": {"layers": 6}}
"""With one segment, of each kind of block, that is run twice."""


# The heads that published models have.
HEADS = {
    "bert": (masked_lm, sentence_pair), "albert": (masked_lm, sentence_pair), "roberta": (masked_lm,),
    "distilbert": (masked_lm,), "deberta": (masked_lm,), "modernbert": (masked_lm,), "electra": (replaced_token,),
}  # fmt: skip


def whole(config):
    """A backbone with its published heads."""
    heads = {name: head for module in HEADS.get(config.kind, ()) for name, head in module.declare(config).items()}
    return Network(config.build(), heads)


def drawn(model):
    """Parameters of a model or network: all N(0, 0.1²), the norms' scales about 1, so that biases and norms matter too.

    Not `Network.init`: compiling that takes longer than what tests ask of a small model.
    """
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        x = 0.1 * rng.normal(size=leaf.shape).astype(np.float32)
        return jnp.asarray(x + 1 if path[-1].key == "scale" else x)

    return jax.tree_util.tree_map_with_path(
        draw, model.shapes() if isinstance(model, Network) else Network(model).shapes()["model"]
    )


@functools.cache
def made(name, **options):
    """(model, variables)"""
    model = EVERY[name](**options).build()
    return model, {"params": drawn(model)}


def tokens(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, V, shape)


@functools.cache
def _compiled(model, method):
    return jax.jit(functools.partial(model.apply, method=method))


def output(model, variables, method, *args, **kwargs):
    """What a method gives."""
    return _compiled(model, method)(variables, *args, **kwargs)


def apply(model, variables, method, *args, **kwargs):
    """What a method gives: of encode and decode the hidden states alone."""
    found = output(model, variables, method, *args, **kwargs)
    return found.hidden if isinstance(found, Output) else found


def packed(run, length):
    """Two sequences of 5 and 7 tokens in one row of `length`, and each alone, with other padding behind.

    `run(tokens, segment_ids, positions)` gives hidden states, of all three rows at once: one program. Returns those of
    both sequences, packed and alone.
    """
    first, second, padding = tokens(5, seed=1), tokens(7, seed=2), tokens(3, length, seed=3)
    rows = [(first, second), (first,), (second,)]
    ids, segments, positions = padding, np.zeros((3, length), int), np.zeros((3, length), int)
    for row, parts in enumerate(rows):
        at = 0
        for number, part in enumerate(parts, 1):
            own = slice(at, at + len(part))
            ids[row, own], segments[row, own], positions[row, own] = part, number, np.arange(len(part))
            at = own.stop
    together, one, other = run(ids, segments, positions)
    return (together[:5], together[5:12]), (one[:5], other[:7])


def influence(model, variables, method, ids, *args, **kwargs):
    """d(output t) / d(embedding of token s), summed in absolute value over the width: [L, L]."""

    def outputs(delta_LxD):
        def shift(call, a, k, context):
            out = call(*a, **k)
            looked_up = isinstance(context.module, Embed) and context.method_name == "__call__"
            return out + delta_LxD if looked_up else out

        with nn.intercept_methods(shift):
            hidden = model.apply(variables, ids, *args, method=method, **kwargs).hidden
        return hidden[0] @ jnp.linspace(-1, 1, hidden.shape[-1])

    zeros = jnp.zeros((ids.shape[1], model.config.embed_dim))
    return np.abs(jax.jit(jax.jacrev(outputs))(zeros)).sum(-1)
