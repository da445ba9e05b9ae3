"""Byte-level BPE, GPT-2's tokenizer: every text has ids, none is unknown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers as library
from tokenizers import models, pre_tokenizers, trainers

from jaxpt.config import TokenizerConfig
from jaxpt.data.calls import Vocabulary
from jaxpt.data.tokenizers import rust_tokenizers
from jaxpt.data.tokenizers.base import END_OF_TEXT, Tokenizer
from jaxpt.data.tokenizers.declared import class_name
from jaxpt.errors import UserError


class BPETokenizer(rust_tokenizers.RustTokenizer):
    """…  <|endoftext|> is the last."""

    kind = "bpe"

    @classmethod
    def planned(cls, config: TokenizerConfig, vocab_size: int) -> Vocabulary:
        return Vocabulary(vocab_size, bos=vocab_size - 1, eos=vocab_size - 1)

    @classmethod
    def least(cls, config: TokenizerConfig) -> int:
        return 257

    @classmethod
    def train(
        cls, texts: Sequence[str], config: TokenizerConfig, vocab_size: int, languages: Sequence[str] = ()
    ) -> Tokenizer:
        rust = library.Tokenizer(models.BPE())
        rust.normalizer, rust.pre_tokenizer = rust_tokenizers.gpt2_steps(config.lowercase)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - 1, initial_alphabet=alphabet, min_frequency=2, show_progress=False
        )
        rust.train_from_iterator(texts, trainer)
        model = json.loads(rust.to_str())["model"]
        merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"]]
        return rust_tokenizers.bpe(model["vocab"] | {END_OF_TEXT: len(model["vocab"])}, merges, config.lowercase)

    @classmethod
    def load(
        cls, files: Sequence[Path], settings: dict[str, Any], lowercase: bool | None, extra_ids: int | None
    ) -> Tokenizer:
        said_class = settings.get("tokenizer_class") or ""
        name = class_name(said_class or settings.get("model_type") or "")
        if said_class and name not in ("", "openaigpt", *rust_tokenizers.GPT2_CLASSES):
            why = f"the ids of a {said_class} may be others than GPT-2's"
            raise UserError(f"{files[0]}: {why}; wants its tokenizer.json")
        lines = files[1].read_text("utf-8").split("\n")
        merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
        vocab = json.loads(files[0].read_text("utf-8"))
        if name == "openaigpt":
            return rust_tokenizers.openai_gpt(vocab, merges, settings.get("unk_token") or "<unk>")
        # No class of `transformers` folds case before bytes.
        folds = not said_class and bool(settings.get("do_lower_case", lowercase))
        return rust_tokenizers.bpe(
            vocab, merges, folds, add_prefix_space=bool(settings.get("add_prefix_space")),
            special=settings.get("special_tokens"),
        )  # fmt: skip
