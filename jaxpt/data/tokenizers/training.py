"""How each kind of vocabulary is trained: one function for each kind, all deterministic.

Each takes (texts, whether to fold case, ids wanted, sentinels) and gives a tokenizer; SentencePiece's also symbols that
no text gives.
"""

from __future__ import annotations

import collections
import io
import json
from collections.abc import Iterator, Sequence

from jaxpt.data.tokenizers import rust_tokenizers, sentencepiece_tokenizers
from jaxpt.data.tokenizers.base import BERT_SPECIALS, END_OF_TEXT, Tokenizer
from jaxpt.errors import UserError


def sentencepiece(
    texts: list[str], lowercase: bool, vocab_size: int, extra_ids: int, control_symbols: Sequence[str] = ()
) -> Tokenizer:
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_sentences(texts), model_writer=model, model_type="unigram",
            vocab_size=vocab_size - extra_ids, hard_vocab_limit=False, character_coverage=0.9995,
            pad_id=0, eos_id=1, unk_id=2, bos_id=-1, max_sentence_length=1 << 16,
            normalization_rule_name="nmt_nfkc_cf" if lowercase else "nmt_nfkc",
            control_symbols=list(control_symbols), minloglevel=2,
            num_threads=4,  # the pieces depend on the number of threads: it is fixed
        )  # fmt: skip
    except RuntimeError as error:
        raise UserError(f"data.tokenizer.vocab_size: {vocab_size}: {str(error).splitlines()[-1]}") from None
    return sentencepiece_tokenizers.SentencePieceTokenizer(model.getvalue(), extra_ids)


def _sentences(texts: list[str]) -> Iterator[str]:
    """Lines, the longest cut at a space: SentencePiece leaves out sentences longer than its limit."""
    for text in texts:
        for line in text.splitlines():
            while line:
                cut = line.rfind(" ", 0, 4096) if len(line) > 4096 else -1
                head, line = (line[:cut], line[cut + 1 :]) if cut > 0 else (line[:4096], line[4096:])
                yield head


def wordpiece(texts: list[str], lowercase: bool, vocab_size: int, extra_ids: int) -> Tokenizer:
    """The library numbers "##x" pieces in the order of a randomly seeded hash map: we name them all beforehand."""
    from tokenizers import Tokenizer as Rust
    from tokenizers import models, trainers

    rust = Rust(models.WordPiece(unk_token="[UNK]"))
    rust.normalizer, rust.pre_tokenizer = rust_tokenizers.bert_steps(lowercase)
    words: collections.Counter[str] = collections.Counter()
    for text in texts:
        words.update(word for word, _ in rust.pre_tokenizer.pre_tokenize_str(rust.normalizer.normalize_str(text)))
    letters: collections.Counter[str] = collections.Counter()
    for word, count in words.items():
        letters.update(dict.fromkeys(word, count))
    room = min(1000, (vocab_size - len(BERT_SPECIALS)) // 2)
    alphabet = sorted(sorted(letters, key=lambda c: (-letters[c], c))[:room])
    inner = sorted({c for word in words for c in word[1:]} & set(alphabet))
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=[*BERT_SPECIALS, *(f"##{c}" for c in inner)],
        initial_alphabet=alphabet, limit_alphabet=len(alphabet), min_frequency=2, show_progress=False,
    )  # fmt: skip
    rust.train_from_iterator(texts, trainer)
    return rust_tokenizers.wordpiece(rust.get_vocab(), lowercase)


def bpe(texts: list[str], lowercase: bool, vocab_size: int, extra_ids: int) -> Tokenizer:
    from tokenizers import Tokenizer as Rust
    from tokenizers import models, pre_tokenizers, trainers

    rust = Rust(models.BPE())
    rust.normalizer, rust.pre_tokenizer = rust_tokenizers.gpt2_steps(lowercase)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1, initial_alphabet=alphabet, min_frequency=2, show_progress=False
    )
    rust.train_from_iterator(texts, trainer)
    model = json.loads(rust.to_str())["model"]
    merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"]]
    return rust_tokenizers.bpe(model["vocab"] | {END_OF_TEXT: len(model["vocab"])}, merges, lowercase)
