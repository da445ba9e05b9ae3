import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from jaxpt.config import TokenizerConfig
from jaxpt.data import builtin, tokenizers
from jaxpt.errors import UserError

KINDS = ("sentencepiece", "wordpiece", "bpe")
SIZE = 600
VOCAB = Path(__file__).parents[3] / "shared" / "data" / "vocab"
SAMPLES = [
    "Hello, world! It's a test.", "naïve café — “quotes” … 中文字 ﬁne", "tabs\tand\nnew lines  twice ", "f(x)**2",
    "😀 emoji and e\u0301 combining", "", " ", "unaffable " * 30, "1,234.5% of $9.99", "a" * 150,
]  # fmt: skip


@pytest.fixture(scope="module")
def texts():
    return builtin.documents()[:60]


@pytest.fixture(scope="module", params=KINDS)
def trained(request, texts, tmp_path_factory):
    out = tmp_path_factory.mktemp(request.param)
    return tokenizers.train(texts, TokenizerConfig(kind=request.param), SIZE, out), out


def test_layout(trained):
    tokenizer, _ = trained
    v = tokenizer.vocabulary
    assert v.size == SIZE and v.pad == 0
    if tokenizer.kind == "sentencepiece":
        assert (v.eos, v.unk, v.bos, v.sentinels) == (1, 2, None, 100)
        assert tokenizer.tokens([0, 1, 2, SIZE - 1, SIZE - 100]) == [
            "<pad>", "</s>", "<unk>", "<extra_id_0>", "<extra_id_99>",
        ]  # fmt: skip
    elif tokenizer.kind == "wordpiece":
        assert (v.unk, v.cls, v.sep, v.mask, v.eos, v.sentinels) == (1, 2, 3, 4, None, 0)
        assert tokenizer.tokens(range(5)) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    else:
        assert (v.eos, v.unk, v.mask) == (SIZE - 1, None, None)
        assert tokenizer.tokens([SIZE - 1]) == ["<|endoftext|>"]


def test_text_comes_back(trained, texts):
    tokenizer, _ = trained
    for text in ["the quick brown fox", "return a value", *(t[:500] for t in texts[:5])]:
        ids = tokenizer.encode(text)
        assert all(0 <= i < SIZE for i in ids)
        back = tokenizer.decode(ids)
        if tokenizer.kind == "bpe":
            assert back == text
        else:  # these two forget what space there was
            assert "".join(back.split()) == "".join(text.split())


def test_bpe_gives_any_text_back(trained):
    tokenizer, _ = trained
    if tokenizer.kind == "bpe":
        for text in SAMPLES:
            assert tokenizer.decode(tokenizer.encode(text)) == text


def test_batch_equals_one_by_one(trained):
    tokenizer, _ = trained
    assert tokenizer.encode_batch(SAMPLES) == [tokenizer.encode(text) for text in SAMPLES]


def test_saved_and_loaded_is_the_same(trained):
    tokenizer, out = trained
    again = tokenizers.load(out)
    assert (again.kind, again.vocabulary, again.digest()) == (tokenizer.kind, tokenizer.vocabulary, tokenizer.digest())
    assert again.encode_batch(SAMPLES) == tokenizer.encode_batch(SAMPLES)
    single = {"sentencepiece": "spiece.model", "wordpiece": "vocab.txt", "bpe": "vocab.json"}[tokenizer.kind]
    assert tokenizers.load(out / single).encode_batch(SAMPLES) == tokenizer.encode_batch(SAMPLES)


def test_special_tokens_in_a_document_are_plain_text_unless_asked_for(trained):
    tokenizer, _ = trained
    v = tokenizer.vocabulary
    if tokenizer.kind == "wordpiece":
        assert v.mask not in tokenizer.encode("a [MASK] here")
        assert tokenizer.encode("a [MASK] here", special=True).count(v.mask) == 1
        assert "[MASK]" in tokenizer.decode(tokenizer.encode("a [MASK] here", special=True))
    elif tokenizer.kind == "bpe":
        assert v.eos not in tokenizer.encode("x<|endoftext|>y")
        assert tokenizer.encode("x<|endoftext|>y", special=True).count(v.eos) == 1
    else:
        assert tokenizer.encode("a <extra_id_0> b")[-2 - len(tokenizer.encode("b")) + 1] == SIZE - 1


def test_decoding_leaves_out_what_stands_for_no_text(trained):
    tokenizer, _ = trained
    v, ids = tokenizer.vocabulary, tokenizer.encode("some words")
    around = [i for i in (v.cls, v.sep, v.eos, v.bos) if i is not None]
    assert tokenizer.decode([*around, *ids, *around]).strip() == "some words"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_training_is_deterministic_across_processes(kind, tmp_path):
    code = (
        "import sys; from jaxpt.config import TokenizerConfig; from jaxpt.data import builtin, tokenizers\n"
        f"t = tokenizers.train(builtin.documents()[:40], TokenizerConfig(kind={kind!r}), 700, sys.argv[1])\n"
        "print(t.digest())"
    )
    digests = [
        subprocess.run(
            [sys.executable, "-c", code, tmp_path / f"{i}"], capture_output=True, text=True, check=True
        ).stdout
        for i in range(2)
    ]
    assert digests[0] == digests[1]


def test_importing_needs_no_tensorflow():
    code = "import sys, jaxpt.data.tokenizers as t; print({'tensorflow', 'seqio', 'jax'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_lowercase_folds_case_and_is_kept(texts, tmp_path):
    for kind in KINDS:
        config = TokenizerConfig(kind=kind, lowercase=True)
        tokenizer = tokenizers.train(texts[:20], config, 500, tmp_path / kind)
        assert tokenizer.encode("The CLASS") == tokenizer.encode("the class")
        again = tokenizers.load(tmp_path / kind, kind, lowercase=True)
        assert again.encode("The CLASS") == tokenizer.encode("the class")
        with pytest.raises(UserError, match="this vocabulary folds case"):
            tokenizers.load(tmp_path / kind, kind, lowercase=False)


def test_only_the_first_characters_are_used(texts, tmp_path):
    config = TokenizerConfig(kind="bpe", characters=20_000)
    read = []
    tokenizers.train((read.append(t) or t for t in texts), config, 400, tmp_path)
    *used, _ = read  # the last is looked at and left
    assert sum(map(len, used[:-1])) < 20_000 <= sum(map(len, used))


# ---- mistakes -------------------------------------------------------------------------------------------------------


def test_wrong_files_are_named(trained, tmp_path):
    tokenizer, out = trained
    other = next(k for k in KINDS if k != tokenizer.kind)
    damaged = (
        tmp_path / {"sentencepiece": "spiece.model", "wordpiece": "vocab.txt", "bpe": "tokenizer.json"}[tokenizer.kind]
    )
    damaged.write_bytes(b"\x00\x01{ nonsense \xff")
    cases = [
        (lambda: tokenizers.load(tmp_path / "gone"), "no such vocabulary"),
        (lambda: tokenizers.load(tmp_path / "gone", tokenizer.kind), "no such vocabulary"),
        (lambda: tokenizers.load(out, other), f"{other}"),
        (lambda: tokenizers.load(out, max_size=SIZE - 1), f"{SIZE} token ids.* but model.vocab_size is {SIZE - 1}"),
        (lambda: tokenizers.load(damaged), str(damaged)),
        (lambda: tokenizers.load(__file__), "wants a .model, vocab.txt"),
    ]
    for call, words in cases:
        with pytest.raises(UserError, match=words) as error:
            call()
        assert "\n" not in str(error.value)


def test_a_directory_without_a_vocabulary(tmp_path):
    with pytest.raises(UserError, match="no known vocabulary in this directory"):
        tokenizers.load(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_too_few_ids_or_no_text(kind, tmp_path, texts):
    with pytest.raises(UserError, match="vocab_size: 5 is too small"):
        tokenizers.train(texts, TokenizerConfig(kind=kind), 5, tmp_path)
    with pytest.raises(UserError, match="no text"):
        tokenizers.train([], TokenizerConfig(kind=kind), SIZE, tmp_path)


# ---- the same ids as Hugging Face -----------------------------------------------------------------------------------


def unpacked(name, tmp_path):
    path = VOCAB / name
    if not path.exists():
        pytest.skip("published vocabularies are not here")
    out = tmp_path / path.name.removesuffix(".gz")
    out.write_bytes(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
    return out


@pytest.mark.parity
def test_bert_ids_equal_hugging_face(tmp_path):
    transformers = pytest.importorskip("transformers")
    path = unpacked("bert-base-uncased/vocab.txt.gz", tmp_path)
    for lowercase in (True, False):
        theirs = transformers.BertTokenizerFast(vocab=str(path), do_lower_case=lowercase)
        ours = tokenizers.load(path, "wordpiece", lowercase=lowercase)
        assert ours.vocabulary.size == 30522 and ours.vocabulary.mask == 103
        for text in [*SAMPLES, *builtin.documents()[:20]]:
            assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"], text[:50]


@pytest.mark.parity
def test_gpt2_ids_equal_hugging_face(tmp_path):
    transformers = pytest.importorskip("transformers")
    vocab = unpacked("gpt2/encoder.json.gz", tmp_path)
    merges = unpacked("gpt2/vocab.bpe.gz", tmp_path)
    pairs = [tuple(m.split()) for m in merges.read_text("utf-8").splitlines()[1:]]
    theirs = transformers.GPT2Tokenizer(vocab=json.loads(vocab.read_text("utf-8")), merges=pairs)
    ours = tokenizers.load(tmp_path, "bpe")
    assert ours.vocabulary.size == 50257 and ours.vocabulary.eos == 50256
    for text in [*SAMPLES, *builtin.documents()[:20]]:
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"], text[:50]
        assert ours.decode(ours.encode(text)) == text


@pytest.mark.parity
def test_what_we_save_hugging_face_reads(trained):
    transformers = pytest.importorskip("transformers")
    tokenizer, out = trained
    theirs = transformers.AutoTokenizer.from_pretrained(out)
    for text in ["the quick brown fox", "It's 12 o'clock."]:
        assert theirs(text, add_special_tokens=False)["input_ids"] == tokenizer.encode(text)
