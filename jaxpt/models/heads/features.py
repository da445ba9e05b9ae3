"""What a head reads of a model that is not (or need not be) trained: states of chosen layers, with or without a BiLSTM.

    last          h_n, as in fine-tuning
    k, (k, …)     h_k; several are concatenated (BERT's best features: the last four)
    mix           γ · Σ_l softmax(w)_l · h_l over the embeddings h_0 and all layers, w = 0 and γ = 1 at the start (ELMo)

Papers: https://arxiv.org/abs/1802.05365, https://arxiv.org/abs/1810.04805 (section 5.3)

Shapes: N states: the embeddings and each layer's · B batch · L length · D width
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from pydantic import Field

from jaxpt.config import Frozen, ModelConfig, PositiveInt
from jaxpt.errors import UserError
from jaxpt.models import characters
from jaxpt.models.base import Bound, compute_dtype
from jaxpt.models.layers import Dropout, constrain, param
from jaxpt.models.network import Head, Network
from jaxpt.models.output import Output
from jaxpt.models.recurrent import LSTM

Stack = Literal["encoder", "decoder"]
EPSILON = 1e-12  # allennlp's


class BiLSTMConfig(Frozen):
    """Sizes of a bidirectional LSTM."""

    size: PositiveInt
    """Units of each direction; the output is twice as wide."""
    layers: PositiveInt = 1
    """Layers, each of which reads both directions of the one below."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout on the input of each layer."""


class FeaturesConfig(Frozen):
    """What the head reads."""

    layers: Literal["last", "mix"] | int | Annotated[tuple[int, ...], Field(min_length=1)] = "last"
    """The states: those of the `last` layer, ELMo's learned `mix` of all, those of one layer, or of several layers,
    concatenated. 0 are the embeddings, 1 the first layer, -1 the last one. Between the layers of a pre-norm model
    states have had no norm."""
    norm: bool = False
    """Layer norm of each chosen state before they are mixed or concatenated: over its width, without scale and bias.
    (allennlp's `do_layer_norm` takes the statistics of a whole batch, on which predictions would depend.)"""
    frozen: bool = True
    """The model is read as in evaluation, without dropout, and has no gradient: `train.trainable` is [heads] by
    default. False: it is trained too."""
    bilstm: BiLSTMConfig | None = None
    """Bidirectional LSTM between the states and the head. A whole text is then the maximum of its outputs over the
    text's tokens."""

    @property
    def is_plain(self) -> bool:
        """True if the head reads the last layer's states, as in fine-tuning."""
        return self.layers == "last" and not self.norm and self.bilstm is None


class LayerMix(nn.Module):
    """γ · Σ_l softmax(w)_l · h_l, in float32."""

    @nn.compact
    def __call__(self, states_NxBxLxD: jax.Array) -> jax.Array:
        """[N, B, L, D] → [B, L, D], in the same dtype."""
        weights_N = param(self, "weights", nn.initializers.zeros, (len(states_NxBxLxD),), ("norm",))
        scale = param(self, "scale", nn.initializers.ones, (), ())
        share_Nx1x1x1 = (scale * jax.nn.softmax(weights_N))[:, None, None, None]
        return (share_Nx1x1x1 * states_NxBxLxD).sum(0).astype(states_NxBxLxD.dtype)


class BiLSTM(nn.Module):
    """Layers of two LSTMs each, one in each direction, over the states of each text.

    The outputs of a layer are concatenated, and read by the next one. Their state starts at zero at each end of a text,
    so that neither padding nor a neighbour in a packed row is seen.
    """

    config: BiLSTMConfig
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x_BxLxD: jax.Array, segments_BxL: jax.Array) -> jax.Array:
        """Reads each text forwards and backwards.

        Args:
          x_BxLxD: inputs.
          segments_BxL: segment ids: 0 on padding, the same for all tokens of a text.

        Returns:
          [B, L, 2 · size].
        """
        for layer in range(self.config.layers):
            x_BxLxD = Dropout(self.config.dropout)(x_BxLxD)
            outputs = []
            for name, reverse in (("forward", False), ("backward", True)):
                options = {"recurrent_init": _orthogonal_gates, "reverse": reverse, "name": f"{name}_{layer}"}
                outputs.append(LSTM(self.config.size, self.dtype, **options)(x_BxLxD, segments_BxL)[0])
            x_BxLxD = constrain(jnp.concatenate(outputs, axis=-1), "act_embed")
        return x_BxLxD


def _orthogonal_gates(key: jax.Array, shape: tuple[int, int], dtype: DTypeLike) -> jax.Array:
    """An orthogonal matrix for each gate, side by side."""
    make = nn.initializers.orthogonal()
    return jnp.concatenate(
        [make(gate_key, (shape[0], shape[0]), dtype) for gate_key in jax.random.split(key, 4)], axis=1
    )


def declare(model: ModelConfig, config: FeaturesConfig, stack: Stack) -> tuple[dict[str, Head], int]:
    """The modules between a backbone and a head.

    Args:
      model: configuration of the backbone.
      config: what the head reads.
      stack: whose states.

    Returns:
      ({"layer_mix": head, "bilstm": head}, those that there are, width of the features).

    Raises:
      UserError: the model does not return the states of its layers, or has no such layer.

    Example:
      >>> declare(bert_base, FeaturesConfig(layers=(-4, -3, -2, -1)), "encoder")
      ({}, 3072)
    """
    count = 1 if config.layers == "last" else depth(model, stack) + 1
    chosen = () if isinstance(config.layers, str) else np.atleast_1d(config.layers)
    for layer in chosen:
        if not -count <= layer < count:
            raise UserError(
                f"objective.features.layers: {layer}: the {stack} has the layers 1 to {count - 1} (or -{count - 1} to "
                "-1), and 0, its embeddings"
            )
    heads, width = {}, model.embed_dim * max(len(chosen), 1)
    if config.layers == "mix":
        states = jax.ShapeDtypeStruct((count, 1, 1, model.embed_dim), jnp.float32)
        heads["layer_mix"] = Head(LayerMix(), (states,))
    if config.bilstm is not None:
        inputs = jax.ShapeDtypeStruct((1, 1, width), jnp.float32), jax.ShapeDtypeStruct((1, 1), jnp.int32)
        heads["bilstm"] = Head(BiLSTM(config.bilstm, compute_dtype(model)), inputs)
        width = 2 * config.bilstm.size
    return heads, width


@functools.lru_cache(64)
def depth(model: ModelConfig, stack: Stack) -> int:
    """Layers of a stack whose states the model returns: what the model itself says, since some run one twice.

    Raises:
      UserError: it returns none.
    """
    network, method = Network(model.build()), {"encoder": "encode", "decoder": "decode"}[stack]
    if "layers" not in inspect.signature(getattr(type(network.model), method)).parameters:
        raise UserError(
            f"objective.features.layers: model.kind: {model.kind} does not return the states of its layers; only last"
        )
    tokens_BxL = jnp.zeros((1, 1), jnp.int32)

    def states(params: Any) -> Any:
        bound = network.bind(params)
        encoded = (bound.encode(tokens_BxL).hidden,) if (model.family, stack) == ("encoder_decoder", "decoder") else ()
        return getattr(bound, method)(tokens_BxL, *encoded, layers=True).layers

    with nn.logical_axis_rules(()):  # a batch of one cannot be sharded
        return len(jax.eval_shape(states, network.shapes())) - 1


def reader(config: FeaturesConfig, model: Bound) -> tuple[Bound, dict[str, bool]]:
    """The backbone that makes the features, and the options of its `encode` or `decode`."""
    options = {} if config.layers == "last" else {"layers": True}
    return (dataclasses.replace(model, rngs={}) if config.frozen else model), options


def apply(config: FeaturesConfig, model: Bound, output: Output, segments_BxL: jax.Array) -> Output:
    """The features in the place of the hidden states.

    Args:
      config: what the head reads.
      model: a network with the heads of `declare`.
      output: of the backbone, as `reader` says.
      segments_BxL: segment ids of the stack's tokens.
    """
    states = output.hidden[None] if config.layers == "last" else output.layers
    states = jax.lax.stop_gradient(states) if config.frozen else states
    chosen = range(len(states)) if isinstance(config.layers, str) else np.atleast_1d(config.layers)
    if config.layers == "mix":
        features = model.heads["layer_mix"](_normalized(states) if config.norm else states)
    else:
        each = [states[layer] for layer in chosen]
        features = jnp.concatenate([_normalized(x) if config.norm else x for x in each], axis=-1)
    if config.bilstm is not None:
        features = _read_words(model.heads["bilstm"], features, segments_BxL, output.word_starts)
    return output.replace(hidden=features, layers=None)


def _read_words(bilstm: Bound, x_BxLxD: jax.Array, segments_BxL: jax.Array, starts_BxL: jax.Array | None) -> jax.Array:
    """The outputs of a BiLSTM that reads each word once, at all of its tokens, or each token where no words are known.

    Args:
      bilstm: the head.
      x_BxLxD: inputs.
      segments_BxL: segment ids.
      starts_BxL: `Output.word_starts`.
    """
    if starts_BxL is None:
        return bilstm(x_BxLxD, segments_BxL)
    return characters.at_first(bilstm(x_BxLxD, jnp.where(starts_BxL, segments_BxL, 0)), starts_BxL)


def report_lines(params: Mapping[str, Any]) -> list[str]:
    """The learned mix of layers in one line, to be read; [] without one.

    Args:
      params: of the network; fully replicated.

    Example:
      >>> report_lines({"heads": {"layer_mix": {"weights": np.zeros(3), "scale": np.ones(())}}})
      ['mix of layers: 1.000 × (embeddings 0.333  1 0.333  2 0.333)']
    """
    mix = params.get("heads", {}).get("layer_mix")
    if mix is None:
        return []
    shares = np.asarray(jax.nn.softmax(np.asarray(mix["weights"], np.float32)))
    layer_shares = "  ".join(f"{layer or 'embeddings'} {share:.3f}" for layer, share in enumerate(shares))
    return [f"mix of layers: {float(np.asarray(mix['scale'])):.3f} × ({layer_shares})"]


def _normalized(x: jax.Array) -> jax.Array:
    """(x − mean) / √(variance + ε) over the last axis, in float32."""
    y = x.astype(jnp.float32)
    y -= y.mean(-1, keepdims=True)
    return (y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + EPSILON)).astype(x.dtype)
