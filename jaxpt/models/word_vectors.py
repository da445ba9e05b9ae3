"""One vector for each word, the same in every sentence: word2vec, GloVe, fastText.

    h_i = E[token_i]

The objectives skip_gram, cbow and glove make the table; `jaxpt import` makes one of a file of vectors. A text of a task
is the mean of its words' vectors. Papers: https://arxiv.org/abs/1301.3781 (word2vec),
https://aclanthology.org/D14-1162 (GloVe), https://arxiv.org/abs/1607.04606 (fastText)

Shapes: B batch · L length · D width of the vectors
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import jax

from jaxpt.config import HeadName, ModelConfig, PoolerOptions, Size, TaskHead
from jaxpt.models.base import Encoder, compute_dtype
from jaxpt.models.layers import Embed, uniform
from jaxpt.models.output import Output


class WordVectorsConfig(ModelConfig):
    """Sizes of a table of word vectors."""

    family: ClassVar[str] = "encoder"
    text_layout: ClassVar[str] = "words"

    kind: Literal["word_vectors"] = "word_vectors"
    adapter: None = None
    """Null: adapters are for Transformers."""
    embed_dim: Size
    """Numbers of each vector."""

    @property
    def masked_lm_options(self) -> dict[str, Any] | None:
        """It has no masked-LM head."""
        return None

    def pooler(self, name: HeadName) -> PoolerOptions | None:
        """None: the head is linear in the vectors."""
        return None

    def task_head(self, name: HeadName) -> TaskHead:
        """A text is the mean of its words."""
        return TaskHead("encoder", "mean" if name in ("classes", "choice") else "each", drops_out=False)

    def build(self) -> WordVectors:
        return WordVectors(self)


class WordVectors(Encoder):
    """A table of word vectors."""

    config: WordVectorsConfig

    def setup(self) -> None:
        c = self.config
        self.token_embed = Embed(c.vocab_size, c.embed_dim, uniform(0.5 / c.embed_dim), compute_dtype(c))

    def embed(self, tokens_BxL: jax.Array, **options: Any) -> jax.Array:
        """The vectors: [B, L, D]."""
        return self.token_embed(tokens_BxL)

    def encode(
        self,
        tokens_BxL: jax.Array,
        *,
        token_types: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        layers: bool = False,
    ) -> Output:
        """The vectors of the words, which are the only layer's; all but `tokens_BxL` and `layers` is ignored."""
        x_BxLxD = self.token_embed(tokens_BxL)
        return Output(x_BxLxD, layers=x_BxLxD[None] if layers else None)
