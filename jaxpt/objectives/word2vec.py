"""What skip-gram and CBOW share: text whose frequent words are thinned out, windows, and two outputs over the words.

    text, window 2        a b c d e                    the neighbours of c: of a drawn window 1 b d, of 2 a b d e
    negative sampling     −log σ(h · u_w) + k · mean over noise n of −log σ(−h · u_n)
    hierarchical softmax  Σ over the inner nodes on the way to w in a Huffman tree of −log σ(± h · u_node)

h is the vector of a word (skip-gram) or the mean of its neighbours' (CBOW), u are rows of a second table, the head
`contexts`. With `subwords` (fastText) a word's vector is the mean of its own row and those of its n-grams.

As in the released code (word2vec.c, fastText), a row that stands in a mean is given the gradient of the sum. Unlike it,
noise is drawn for a block of words, not for each pair: so the scores are dense products, and the mean over many noise
words has the weight of `negatives`. Noise that happens to be the word itself is not left out.
Papers: https://arxiv.org/abs/1301.3781, https://arxiv.org/abs/1310.4546, https://arxiv.org/abs/1607.04606

Shapes: B rows of a batch · T words of a row · M blocks of all rows · S words of a block · H words that a block's words
have as neighbours · K noise words of a block · C nodes on the way to a word · G n-grams of a word · D width
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from jaxpt.config import Frozen, ModelConfig
from jaxpt.data import subwords
from jaxpt.data.calls import Call, Transforms, Vocabulary, preprocessors
from jaxpt.data.spec import Arrays, DataSpec, text_windows
from jaxpt.errors import UserError
from jaxpt.models.layers import uniform
from jaxpt.models.network import Head
from jaxpt.objectives.base import Baseline, Batch, LossOutputs, Metrics
from jaxpt.objectives.rows import TOKENS, RowObjective, Rows, Tables, table_head, width_of

BLOCK = 32
"""S: scores with neighbours that are further away than the window are computed and thrown away; smaller products are
slower."""
SUBWORDS = "heads/subwords/table"
_OF_SAMPLING, _OF_TREE = ("negatives", "noise", "noise_exponent"), ("code_length",)
"""Fields that one of the two classifiers alone reads."""


class SubwordsConfig(Frozen):
    """fastText's n-grams of characters, hashed."""

    buckets: PositiveInt = 2_000_000
    """Rows that all n-grams share."""
    min_length: PositiveInt = 3
    """Shortest n-gram, in characters, with the signs < and > around the word."""
    max_length: PositiveInt = 6
    """Longest n-gram."""
    per_word: PositiveInt = 40
    """G: n-grams of a word beyond the first so many are left out (a word of 10 letters has 34)."""


class Word2Vec(RowObjective):
    """Hyperparameters of skip-gram and CBOW."""

    family: ClassVar[str] = "encoder"
    window: PositiveInt = 5
    """Most neighbours on each side: of each word a number of 1 … window is drawn."""
    classifier: Literal["negative_sampling", "hierarchical_softmax"] = "negative_sampling"
    """How a word is told from the others."""
    negatives: PositiveInt = 5
    """k: the weight of the noise against one neighbour."""
    noise: PositiveInt = 32
    """K: noise words of a block of 32 words."""
    noise_exponent: Annotated[float, Field(ge=0.0, le=1.0)] = 0.75
    """Noise is drawn from the counts of the training text to this power."""
    subsample: NonNegativeFloat = 1.0e-3
    """Words with a larger share of the text than this are left out often; 0: never."""
    stretch: PositiveFloat = 1.3
    """Words of text for each place of a row: of English 7 of 10 stay. Those for which no place is left are left out.
    Without `subsample` it counts as 1."""
    code_length: PositiveInt = 24
    """C: longest way in the Huffman tree that there is room for."""
    subwords: SubwordsConfig | None = None
    """fastText's n-grams; none by default."""
    scale: PositiveFloat = 1.0
    """h is so many times a row of the table: a Transformer whose embeddings are normalized wants a small table (16)."""

    # ---- data -------------------------------------------------------------------------------------------------------

    def data_spec(self, length: int) -> DataSpec:
        blocks, is_tree = -(-length // BLOCK), self.classifier == "hierarchical_softmax"
        noise = 0 if is_tree else blocks * self.noise
        names = ("encoder_input_tokens", "encoder_segment_ids", "windows")
        features = dict.fromkeys(names, ((length,), "int32"))
        features |= {"huffman_paths": ((length, self.code_length), "int32")} if is_tree else {}
        features |= {} if is_tree else {"noise_tokens": ((noise,), "int32")}
        features |= {"subwords": ((length, self.subwords.per_word), "int32")} if self.subwords else {}
        draws = {"subsample": self.subsample, "most": length, "window": self.window, "noise": noise}
        rows = {"length": length, "noise": noise, "code_length": self.code_length if is_tree else 0}
        rows |= {"subwords": self.subwords}
        stretch = self.stretch if self.subsample else 1.0  # all words stay
        transforms = Transforms(
            offline=text_windows(max(round(stretch * length), 2), join=False, shortest=2),
            online=(
                Call(preprocessors.word2vec.draw, draws | {"noise_exponent": self.noise_exponent}),
                Call(preprocessors.word2vec.features, rows),
            ),
        )
        return DataSpec(features=features, transforms=lambda vocabulary, seed: transforms)

    # ---- tables -----------------------------------------------------------------------------------------------------

    def heads(self, model: ModelConfig) -> dict[str, Head]:
        width = width_of(model)
        heads = {"contexts": table_head(model.vocab_size, width, nn.initializers.zeros)}
        if self.subwords is not None:
            heads["subwords"] = table_head(self.subwords.buckets, width, uniform(1 / width))  # as fasttext.cc
        return heads

    def coefficients(self) -> dict[str, float]:
        return {self.kind: 1.0}

    def input_rows(self, words: jax.Array, grams: jax.Array | None) -> Rows:
        """Rows whose means are vectors of words: [M, S or H] and of their n-grams [M, S or H, G]."""
        return {TOKENS: words} | ({} if grams is None else {SUBWORDS: grams})

    def input_sums(self, rows: Rows, grams: jax.Array | None) -> tuple[jax.Array, jax.Array | float]:
        """(Σ of the rows of each word [M, S or H, D], how many they are)."""
        if grams is None:
            return self.scale * rows[TOKENS], 1.0
        is_gram = (grams >= 0).astype(jnp.float32)
        total = rows[TOKENS] + jnp.einsum("msgd,msg->msd", rows[SUBWORDS], is_gram)
        return self.scale * total, 1.0 + is_gram.sum(-1)

    def word_vectors(self, tables: Tables, ids: np.ndarray, words: Sequence[str]) -> np.ndarray:
        """Rows of the model's table; with `subwords` their means with the rows of n-grams."""
        rows, grams = tables[TOKENS][ids], self.subwords
        if grams is None:
            return rows
        buckets = ((row, self._buckets(word)) for row, word in zip(rows, words))
        return np.stack([(row + tables[SUBWORDS][of_word].sum(0)) / (1 + len(of_word)) for row, of_word in buckets])

    def composer(self, tables: Tables) -> Callable[[str], np.ndarray | None] | None:
        """With `subwords` the mean of the rows of a word's n-grams; a short word has none."""
        if self.subwords is None:
            return None

        def compose(word: str) -> np.ndarray | None:
            buckets = self._buckets(word)
            return tables[SUBWORDS][buckets].mean(0) if buckets else None

        return compose

    def _buckets(self, word: str) -> list[int]:
        grams = self.subwords
        return subwords.buckets(word, grams.min_length, grams.max_length, grams.buckets)[: grams.per_word]

    # ---- losses -----------------------------------------------------------------------------------------------------

    def examples(self, batch: Batch) -> Batch:
        """Blocks of words with those of a window before and behind: "words", "segments", "paths", "subwords" [M, H, …],
        "noise" [M, K]; "windows" and "eval_mask" [M, S]."""
        size, w = batch["encoder_input_tokens"].shape[1], self.window
        blocks = -(-size // BLOCK)
        place_NxH = np.arange(blocks)[:, None] * BLOCK + np.arange(BLOCK + 2 * w)

        def around(name: str, fill: int = 0) -> jax.Array:
            pad = ((0, 0), (w, w + blocks * BLOCK - size), *[(0, 0)] * (batch[name].ndim - 2))
            return _flat(jnp.pad(batch[name], pad, constant_values=fill)[:, place_NxH])

        named = {"words": "encoder_input_tokens", "segments": "encoder_segment_ids"}
        examples = {name: around(feature) for name, feature in named.items()}
        own = (name for name in ("windows", "eval_mask") if name in batch)
        examples |= {name: around(name)[:, w : w + BLOCK] for name in own}
        named = {"paths": "huffman_paths", "subwords": "subwords"}
        examples |= {name: around(feature, -1) for name, feature in named.items() if feature in batch}
        if "noise_tokens" in batch:
            examples["noise"] = batch["noise_tokens"].reshape(-1, batch["noise_tokens"].shape[1] // blocks)
        return examples

    def own(self, x_MxH: jax.Array | None) -> jax.Array | None:
        """What there is of a block's own words: [M, H, ...] → [M, S, ...]."""
        return None if x_MxH is None else x_MxH[:, self.window : self.window + BLOCK]

    def pairs(self, examples: Batch) -> jax.Array:
        """1 where a word [S] has another one [H] in its window, else 0: float32 [M, S, H]."""
        segments_MxH = examples["segments"]
        segments_MxS = self.own(segments_MxH)
        distance_SxH = np.abs(np.arange(BLOCK)[:, None] - np.arange(BLOCK + 2 * self.window) + self.window)
        is_near = (distance_SxH > 0) & (distance_SxH <= examples["windows"][..., None])
        is_text = (segments_MxS[..., None] == segments_MxH[:, None]) & (segments_MxS[..., None] > 0)
        return (is_near & is_text).astype(jnp.float32)

    def noise_loss(self, scores_MxSxK: jax.Array) -> jax.Array:
        """k · mean over the noise of −log σ(−score): [M, S]."""
        return self.negatives * jax.nn.softplus(scores_MxSxK).mean(-1)

    def finished(self, loss_MxS: jax.Array, weight_MxS: jax.Array, examples: Batch) -> LossOutputs:
        """The loss and its metrics from those of each word."""
        metrics: Metrics = {}
        if (mask_MxS := examples.get("eval_mask")) is not None:
            metrics["target_loss"] = (loss_MxS * mask_MxS).sum(), (weight_MxS * mask_MxS).sum()
        return {self.kind: loss_MxS.sum()}, metrics

    # ---- baseline and checks ----------------------------------------------------------------------------------------

    @property
    def baseline(self) -> Baseline:
        """Vectors of zeros: every decision is as likely as the other."""
        return Baseline(
            "uniform",
            "neighbours of each token",
            eval_mask=lambda batch, vocabulary: (batch["encoder_segment_ids"] > 0).astype(np.float32),
            loss=self._zero_loss,
        )

    def _zero_loss(self, validation: Iterable[Arrays]) -> float:
        if self.classifier == "negative_sampling":
            return (1 + self.negatives) * math.log(2)

        def sums(batch: Batch) -> tuple[jax.Array, jax.Array]:
            examples = self.examples(batch)
            zeros = {path: jnp.zeros((*ids.shape, 1)) for path, ids in self.rows(examples).items()}
            return self.loss_from_rows(zeros, examples)[1]["target_loss"]

        total, count = np.sum([jax.device_get(jax.jit(sums)(batch)) for batch in validation], axis=0)
        return float(total / count)

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        super().check(model, length, vocabulary)
        if self.window >= length:
            raise UserError(f"objective.window: {self.window} must be less than data.length, {length}")
        if self.subwords is not None and self.subwords.min_length > self.subwords.max_length:
            shortest, longest = self.subwords.min_length, self.subwords.max_length
            raise UserError(f"objective.subwords.min_length: {shortest} is more than max_length, {longest}")
        is_tree = self.classifier == "hierarchical_softmax"
        for name in _OF_SAMPLING if is_tree else _OF_TREE:
            default = type(self).model_fields[name].default
            if getattr(self, name) != default:
                reason = f"not used with objective.classifier={self.classifier}"
                raise UserError(f"objective.{name}: {reason}; remove it, or give its default, {default}")


def path_loss(scores: jax.Array, paths: jax.Array) -> jax.Array:
    """Σ over the nodes of a way in the Huffman tree of −log σ(± score).

    Args:
      scores: [..., C], of the nodes.
      paths: int32 [..., C], 2 · node + direction; below 0 behind the end of the way.

    Returns:
      [...].
    """
    sign = 1.0 - 2.0 * (paths & 1)
    return (jax.nn.softplus(-sign * scores) * (paths >= 0)).sum(-1)


def mean_like_sum(total: jax.Array, count: jax.Array | float) -> jax.Array:
    """total / count, with the gradient of `total`."""
    return total if isinstance(count, float) else total + jax.lax.stop_gradient(total / count[..., None] - total)


def _flat(x: jax.Array) -> jax.Array:
    return x.reshape(-1, *x.shape[2:])
