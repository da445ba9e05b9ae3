import contextlib
import gc
import io
import json
import os
import pickle
import re
import subprocess
import sys
import weakref
from pydoc_data.topics import topics

import pytest

from jaxpt.config import TokenizerConfig
from jaxpt.data import tokenizers
from jaxpt.data.tokenizers.base import any_of
from jaxpt.errors import UserError
from jaxpt.runtime import progress

KINDS = ("sentencepiece", "wordpiece", "bpe")
SIZE = 600
SAMPLES = [
    "Hello, world! It's a test.", "naïve café — “quotes” … 中文字 ﬁne", "tabs\tand\nnew lines  twice ", "f(x)**2",
    "😀 emoji and e\u0301 combining", "", " ", "unaffable " * 30, "1,234.5% of $9.99", "a" * 150,
]  # fmt: skip


@pytest.fixture(scope="module")
def texts():
    return list(topics.values())[:60]


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


def test_ids_beyond_the_vocabulary_are_passed_over(trained):
    """A model may have more ids than its vocabulary, and say them."""
    tokenizer, _ = trained
    ids = tokenizer.encode("a value")
    assert tokenizer.decode([SIZE, *ids, SIZE + 7]) == tokenizer.decode(ids)


def test_other_processes_are_given_it(trained):
    """Those that prepare records."""
    tokenizer, _ = trained
    for one in (tokenizer, tokenizer.with_tokens(["<tool>"])):
        other = pickle.loads(pickle.dumps(one))
        assert other.digest() == one.digest() and other.vocabulary == one.vocabulary
        assert other.encode_batch([*SAMPLES, "a<tool>b"]) == one.encode_batch([*SAMPLES, "a<tool>b"])


def test_a_tokenizer_is_freed(trained):
    """With all that was asked of it once; what it remembers is no part of it elsewhere."""
    _, out = trained
    tokenizer = tokenizers.load(out)
    assert tokenizer.word_starts() is tokenizer.word_starts() and tokenizer.tokens([5])
    assert tokenizer.spelled(5) == tokenizer.spelled(5) and tokenizer.encode("a <extra_id_0> b", special=True)
    assert vars(pickle.loads(pickle.dumps(tokenizer))).keys() == vars(tokenizer).keys() - {"_cached"}
    freed = weakref.ref(tokenizer)
    del tokenizer
    gc.collect()
    assert freed() is None


def test_batch_equals_one_by_one(trained):
    tokenizer, _ = trained
    assert tokenizer.encode_batch(SAMPLES) == [tokenizer.encode(text) for text in SAMPLES]


def test_saved_and_loaded_is_the_same(trained):
    tokenizer, out = trained
    again = tokenizers.load(out)
    assert (again.kind, again.vocabulary, again.digest()) == (tokenizer.kind, tokenizer.vocabulary, tokenizer.digest())
    assert again.encode_batch(SAMPLES) == tokenizer.encode_batch(SAMPLES)
    written = " ".join(token.content for token in tokenizer.special_tokens().values())
    assert again.encode(written, special=True) == tokenizer.encode(written, special=True)
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


def test_special_tokens_in_a_document_are_plain_text_for_a_tokenizer_json(trained, tmp_path):
    ours, out = trained
    rust = tokenizers.load(out / "tokenizer.json")
    names = [token.content for token in ours.special_tokens().values()]
    documents = [*SAMPLES, *(f"a {name}b {name}" for name in names), "".join(names)]
    for _ in range(2):
        plain = ours.encode_batch(documents)
        assert rust.encode_batch(documents) == plain
        assert [row.ids for row in rust.encode_with_offsets(documents)] == plain
        assert all(rust.encode(name, special=True) == [rust.token_id(name)] for name in names)
        ours, rust = (tokenizers.add(tokenizer, ["<|im_end|>"]) for tokenizer in (ours, rust))
        assert rust.encode("a <|im_end|>")[-1] == rust.vocabulary.size - 1 == ours.vocabulary.size - 1
    assert rust.text_version == ours.text_version == (2 if rust.kind == "sentencepiece" else 1)


def test_no_tokens_are_nowhere_in_a_text():
    assert re.split(any_of([]), "a b") == ["a b"] and re.split(any_of(["b"]), "a b") == ["a ", "b", ""]


def test_decoding_leaves_out_what_stands_for_no_text(trained):
    tokenizer, _ = trained
    v, ids = tokenizer.vocabulary, tokenizer.encode("some words")
    around = [i for i in (v.cls, v.sep, v.eos, v.bos) if i is not None]
    assert tokenizer.decode([*around, *ids, *around]).strip() == "some words"


@pytest.mark.slow
def test_training_is_deterministic_across_processes():
    code = (
        "from pydoc_data.topics import topics\n"
        "from jaxpt.config import TokenizerConfig; from jaxpt.data import tokenizers\n"
        f"for kind in {KINDS}:\n"
        "    print(tokenizers.train(list(topics.values())[:40], TokenizerConfig(kind=kind), 700).digest())"
    )
    digests = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env=os.environ | {"PYTHONHASHSEED": str(seed)},
        ).stdout.split()
        for seed in range(2)
    ]  # fmt: skip
    assert digests[0] == digests[1] and len(set(digests[0])) == len(KINDS)


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


@pytest.mark.parametrize(("repeats", "shown"), [(20, (240, "characters")), (1000, (12, "thousand characters"))])
def test_a_small_text_is_counted_in_units_that_fit(repeats, shown, monkeypatch):
    """In millions it would be 0 of 0."""
    works = []

    def track(*of):
        works.append(progress.Work(*of))
        return contextlib.nullcontext(works[-1])

    monkeypatch.setattr(tokenizers, "track", track)
    tokenizers.train(["the cat sat " * repeats], TokenizerConfig(kind="wordpiece"), 60)
    assert [(work.total, work.unit) for work in works] == [(20, "million characters"), shown]
    assert works[-1].line.startswith("training a wordpiece vocabulary of 60 ids ████████████████████████ ")
    assert f"{shown[0]} of {shown[0]} {shown[1]}" in works[-1].line


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


@pytest.mark.parametrize(
    ("name", "beside"),
    [("spiece.model", ()), ("tokenizer.model", ()), ("vocab.txt", ()), ("tokenizer.json", ()),
     ("vocab.json", ("merges.txt",)), ("merges.txt", ("vocab.json",))],
)  # fmt: skip
def test_an_empty_file_is_named(name, beside, tmp_path):
    for other in beside:
        (tmp_path / other).write_text("{}")
    (tmp_path / name).touch()
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(UserError, match=f"{name}: is empty"):
            tokenizers.load(path)


def test_a_vocabulary_in_lower_case_is_not_taken_for_a_cased_one(tmp_path):
    special = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"
    path = tmp_path / "vocab.txt"
    path.write_text(special + "the\ncat\n")
    uncased = tokenizers.load(path)
    assert uncased.encode("The CAT") == [5, 6] and uncased.lowercase
    assert uncased.assumed == (
        f"{path}: no tokenizer_config.json says do_lower_case; assumed that it folds case, as it holds no upper-case "
        "letter"
    )
    assert tokenizers.load(path, lowercase=True).assumed is None
    with pytest.raises(UserError, match=r"vocab\.txt: holds no upper-case letter, data\.tokenizer\.lowercase is false"):
        tokenizers.load(path, lowercase=False)
    path.write_text(special + "The\ncat\n")
    cased = tokenizers.load(path)
    assert cased.encode("The cat") == [5, 6] and not cased.lowercase and "holds an upper-case" in cased.assumed
    assert tokenizers.load(path, lowercase=False).assumed is None
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert tokenizers.load(path).lowercase and tokenizers.load(path).assumed is None
    with pytest.raises(UserError, match=r"this vocabulary folds case, data\.tokenizer\.lowercase is false"):
        tokenizers.load(path, lowercase=False)


@pytest.mark.parametrize("kind", KINDS)
def test_too_few_ids_or_no_text(kind, tmp_path, texts):
    with pytest.raises(UserError, match="vocab_size: 5 is too small"):
        tokenizers.train(texts, TokenizerConfig(kind=kind), 5, tmp_path)
    with pytest.raises(UserError, match="no text"):
        tokenizers.train([], TokenizerConfig(kind=kind), SIZE, tmp_path)


# ---- published vocabularies -----------------------------------------------------------------------------------------


def by_spm(texts, **options):
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts[0].splitlines()), model_writer=model, hard_vocab_limit=False, minloglevel=2,
        **{"vocab_size": 200, **options},
    )  # fmt: skip
    return model.getvalue()


@pytest.fixture(scope="module")
def sentencepiece_model(texts):
    """As ALBERT's and XLM-R's are trained: <unk> <s> </s> first, no padding."""
    return by_spm(texts, control_symbols=["[CLS]", "[SEP]", "[MASK]"], user_defined_symbols=["(", '"'])


FAST = "PreTrainedTokenizerFast"


@pytest.mark.parametrize(
    ("options", "sentinels", "name", "ids"),
    [
        ({"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}, 9, "T5Tokenizer", (2, None, 1, 0)),
        ({"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}, 0, FAST, (2, None, 1, 0)),  # T5's class appends EOS
        ({}, 9, FAST, (0, 1, 2, None)),
        ({"unk_id": 3, "bos_id": 0, "eos_id": 1, "pad_id": 2}, 0, FAST, (3, 0, 1, 2)),
        ({"unk_piece": "[UNK]", "bos_id": -1, "eos_id": -1}, 0, FAST, (0, None, None, None)),
        ({"model_type": "bpe", "byte_fallback": True, "vocab_size": 400}, 0, FAST, (0, 1, 2, None)),
        ({"model_type": "bpe", "user_defined_symbols": ["**"]}, 9, FAST, (0, 1, 2, None)),
    ],
)  # fmt: skip
def test_special_ids_are_those_of_the_sentencepiece_model(options, sentinels, name, ids, texts, tmp_path):
    """`spm_train` without options gives <unk> <s> </s> and no padding, which is not T5's order."""
    (tmp_path / "spiece.model").write_bytes(by_spm(texts, **options))
    ours = tokenizers.load(tmp_path, extra_ids=sentinels)
    v = ours.vocabulary
    assert (v.unk, v.bos, v.eos) == ids[:3] and v.pad == (ids[3] or 0) and v.sentinels == sentinels
    ours.save(tmp_path / "saved")
    again = tokenizers.load(tmp_path / "saved")
    assert (again.digest(), again.vocabulary) == (ours.digest(), v)
    settings = json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == name and ("pad_token" in settings) == (ids[3] is not None)
    rust = ours_as_rust(tmp_path / "saved")
    for text in [*SAMPLES, "中文 a 中", *texts[0].splitlines()[:20]]:
        assert rust.encode(text, add_special_tokens=False).ids == ours.encode(text)
    if sentinels:
        assert rust.token_to_id("<extra_id_0>") == v.size - 1 == ours.encode("a <extra_id_0> b")[1]
    assert rust.encode("a").ids == ours.encode("a") + [v.eos] * (sentinels > 0)


def ours_as_rust(directory):
    from tokenizers import Tokenizer as Rust

    return Rust.from_file(str(directory / "tokenizer.json"))


def test_sentencepiece_models_that_cannot_be_carried_are_refused(texts, sentencepiece_model, tmp_path):
    path = tmp_path / "spiece.model"
    for options, words in (
        ({"model_type": "char"}, "of model_type char is not known; wants unigram or bpe"),
        ({"treat_whitespace_as_suffix": True}, "of treat_whitespace_as_suffix is not known"),
    ):
        path.write_bytes(by_spm(texts, **options))
        with pytest.raises(UserError, match=words):
            tokenizers.load(path)
    path.write_bytes(sentencepiece_model)
    assert "assumed 100 sentinels" in tokenizers.load(path).assumed
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "MarianTokenizer"}')
    with pytest.raises(UserError, match="the ids of a MarianTokenizer may be others"):
        tokenizers.load(path)
    (tmp_path / "tokenizer_config.json").unlink()
    path.write_bytes(sentencepiece_model[:1000])
    with pytest.raises(UserError, match=r"not a (whole )?SentencePiece model"):
        tokenizers.load(path)
    (tmp_path / "sentencepiece.bpe.model").write_bytes(by_spm(texts, pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
    with pytest.raises(UserError, match=r"to have XLM-R's ids, starts with \['<pad>', '</s>', '<unk>'\]"):
        tokenizers.load(tmp_path / "sentencepiece.bpe.model")


def test_alberts_rules_come_from_the_file_beside_the_model(sentencepiece_model, tmp_path):
    (tmp_path / "spiece.model").write_bytes(sentencepiece_model)
    plain = tokenizers.load(tmp_path, extra_ids=0)
    (tmp_path / "config.json").write_text('{"model_type": "albert"}')
    albert = tokenizers.load(tmp_path)
    v = albert.vocabulary
    assert (v.cls, v.sep, v.mask, v.sentinels) == (3, 4, 5, 0) and albert.lowercase
    assert albert.encode("The ``Café''") == plain.encode('the "cafe"') != plain.encode("The ``Café''")
    assert albert.digest() != plain.digest()
    albert.save(tmp_path / "saved")  # where no config.json is
    assert tokenizers.load(tmp_path / "saved").digest() == albert.digest()
    rust = ours_as_rust(tmp_path / "saved")
    rust.encode_special_tokens = True
    assert [rust.encode(text, add_special_tokens=False).ids for text in SAMPLES] == albert.encode_batch(SAMPLES)
    xlnet = {"tokenizer_class": "XLNetTokenizer", "keep_accents": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(xlnet))
    assert tokenizers.load(tmp_path).encode("The ``Café''") == plain.encode('The "Café"')


def test_xlm_r_has_fairseqs_ids(sentencepiece_model, tmp_path):
    (tmp_path / "spiece.model").write_bytes(sentencepiece_model)
    (tmp_path / "sentencepiece.bpe.model").write_bytes(sentencepiece_model)
    plain = tokenizers.load(tmp_path / "spiece.model", extra_ids=0)
    ours = tokenizers.load(tmp_path / "sentencepiece.bpe.model")
    v, size = ours.vocabulary, plain.vocabulary.size
    assert (v.bos, v.cls, v.pad, v.eos, v.sep, v.unk, v.mask, v.size) == (0, 0, 1, 2, 2, 3, size + 1, size + 2)
    assert ours.tokens([0, 1, 2, 3, size + 1]) == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    for text in SAMPLES:
        assert ours.encode(text) == [3 if i == 0 else i + 1 for i in plain.encode(text)]
    assert ours.encode("a <mask>", special=True)[-1] == size + 1 != ours.encode("a <mask>")[-1]
    assert ours.decode(ours.encode("return <mask> value", special=True)) == "return<mask> value"
    assert ours.decode([0, *ours.encode("return a value"), 2]) == "return a value"
    ours.save(tmp_path / "saved")
    assert tokenizers.load(tmp_path / "saved").digest() == ours.digest()
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "MBartTokenizer"}')
    with pytest.raises(UserError, match="mBART's language codes"):
        tokenizers.load(tmp_path / "sentencepiece.bpe.model")


def roberta(path, texts):
    """A vocabulary in fairseq's order: <s> <pad> </s> <unk> … <mask>."""
    tokenizers.train(texts[:10], TokenizerConfig(kind="bpe"), 300, path)
    for name in ("checksums.json", "tokenizer_config.json"):
        (path / name).unlink()
    pieces = [p for p in json.loads((path / "vocab.json").read_text("utf-8")) if p != "<|endoftext|>"]
    vocab = {p: i for i, p in enumerate(["<s>", "<pad>", "</s>", "<unk>", *pieces, "<mask>"])}
    (path / "vocab.json").write_text(json.dumps(vocab))
    (path / "tokenizer.json").unlink()
    return tokenizers.load(path)


def test_roberta_has_its_own_special_tokens(texts, tmp_path):
    ours = roberta(tmp_path, texts)
    v = ours.vocabulary
    assert (v.bos, v.cls, v.pad, v.eos, v.sep, v.unk, v.mask, v.size) == (0, 0, 1, 2, 2, 3, 303, 304)
    assert ours.tokens([0, 1, 2, 3, 303]) == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    assert ours.encode("a<mask>", special=True)[-1] == 303 not in ours.encode("a<mask>")
    assert ours.decode([0, *ours.encode("the end"), 2]) == "the end"
    ours.save(tmp_path / "saved")
    assert tokenizers.load(tmp_path / "saved").digest() == ours.digest()
    assert '"tokenizer_class": "RobertaTokenizer"' in (tmp_path / "saved" / "tokenizer_config.json").read_text()


def test_a_unigram_model_in_a_tokenizer_json(tmp_path):
    from tokenizers import Tokenizer as Rust
    from tokenizers import models, pre_tokenizers

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁a", -1.0), ("b", -2.0)]
    rust = Rust(models.Unigram(pieces, unk_id=2))
    rust.pre_tokenizer = pre_tokenizers.Metaspace()
    rust.add_special_tokens(["<pad>", "</s>", "<unk>", "<extra_id_1>", "<extra_id_0>"])
    rust.save(str(tmp_path / "tokenizer.json"))
    ours = tokenizers.load(tmp_path, "sentencepiece")
    v = ours.vocabulary
    assert (v.size, v.pad, v.eos, v.unk, v.sentinels) == (7, 0, 1, 2, 2)
    assert ours.encode("ab<extra_id_0>") == [3, 4, 6]
    # A document that spells special tokens: unknown characters here.
    assert ours.encode("ab<pad>b</s><unk>") == [3, 4, 2, 4, 2] and ours.encode("a<pad></s>", special=True) == [3, 0, 1]
    ours.save(tmp_path / "saved")
    assert tokenizers.load(tmp_path / "saved").digest() == ours.digest()
    with pytest.raises(UserError, match=r"has 2 sentinels, data\.tokenizer\.extra_ids is 100"):
        tokenizers.load(tmp_path, extra_ids=100)
    rust.add_special_tokens(["<extra_id_2>"])
    rust.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match="wants its 3 sentinels at the end"):
        tokenizers.load(tmp_path)
