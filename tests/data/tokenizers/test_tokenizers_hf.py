"""What `transformers` reads of a vocabulary where we saved it has our ids, on real lines."""

import functools
import gzip
import io
import itertools
import json
import re
from pathlib import Path

import pytest

from jaxpt.config import TokenizerConfig
from jaxpt.data import builtin, tokenizers
from jaxpt.data.tokenizers.sentencepiece import SentencePieceTokenizer
from tests import grids
from tests.data.tokenizers.test_tokenizers import KINDS, SAMPLES, roberta

DATA = Path(__file__).parents[4] / "shared" / "data"


def unpacked(path, out):
    if not path.exists():
        pytest.skip("published vocabularies are not here")
    out.write_bytes(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())


@pytest.fixture(scope="module")
def lines():
    """10,000 lines in 26 languages: sentences, novels, an encyclopedia."""
    if not (DATA / "multilingual").is_dir():
        pytest.skip("real text is not here")

    def read(path):
        return gzip.decompress(path.read_bytes()).decode("utf-8").splitlines()

    found = []
    for path in sorted((DATA / "multilingual" / "tatoeba").glob("tatoeba.*.gz")):
        found += read(path)[: 100 if path.stem.endswith("eng") else 270]
    for path in [*(DATA / "multilingual" / "novels").glob("*.gz"), DATA / "text" / "wiki_en" / "valid.jsonl.gz"]:
        found += [line for record in read(path) for line in json.loads(record)["text"].splitlines() if line][:400]
    return (found + SAMPLES)[-10_000:]


PUBLISHED = {  # name: (files here: under which name, model_type, settings, size)
    "bert, uncased": ({"bert-base-uncased/vocab.txt.gz": "vocab.txt"}, "bert", {"do_lower_case": True}, 30522),
    "bert, cased": ({"bert-base-uncased/vocab.txt.gz": "vocab.txt"}, "bert", {"do_lower_case": False}, 30522),
    "gpt2": ({"gpt2/encoder.json.gz": "vocab.json", "gpt2/vocab.bpe.gz": "merges.txt"}, "gpt2", {}, 50257),
    "albert": ({"albert/spiece.model": "spiece.model"}, "albert", {}, 30000),
    "t5": ({"t5-seqio-test/sentencepiece.model": "spiece.model"}, "t5", {}, 126),
    "llama": (
        {"../weights/stories260K/tok512.model": "tokenizer.model"}, "llama", {"tokenizer_class": "LlamaTokenizer"}, 512,
    ),
}  # fmt: skip


def assert_equal(ours, theirs, lines):
    got, want = ours.encode_batch(lines), theirs(lines, add_special_tokens=False)["input_ids"]
    wrong = [i for i in range(len(lines)) if got[i] != want[i]]
    if isinstance(ours, SentencePieceTokenizer) and len(wrong) < 0.003 * len(lines):
        # Of two equally good ways to cut a text ("----" into "--" and "--" or "-" and "---") rounding takes one: the
        # library adds scores in 32 bits, `tokenizers` in 64.
        score = functools.cache(ours._sp.get_score)
        wrong = [i for i in wrong if abs(sum(map(score, got[i])) - sum(map(score, want[i]))) > 1e-3]
    assert not wrong, (len(wrong), lines[wrong[0]], ours.tokens(got[wrong[0]]), theirs.tokenize(lines[wrong[0]]))


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("name", grids.cases(PUBLISHED, "bert, uncased", "gpt2", "albert", "llama"))
def test_real_lines_have_hugging_faces_ids(name, lines, tmp_path):
    """Of the published files, and of what `transformers` reads where we saved them."""
    transformers = pytest.importorskip("transformers")
    files, model_type, settings, size = PUBLISHED[name]
    for source, wanted in files.items():
        unpacked(DATA / "vocab" / source, tmp_path / wanted)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    if settings:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours = tokenizers.load(tmp_path)
    assert ours.vocabulary.size == size
    ours.save(tmp_path / "saved")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert len(theirs) == size
    assert_equal(ours, theirs, lines)
    if name == "llama":  # this model squeezes spaces, their class does not
        lines = [line for line in lines if line == line.strip(" ") and "  " not in line]
        assert len(lines) > 9990
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    if name == "albert":  # `transformers` puts a space behind each of these; sentencepiece, ALBERT's own, does not
        clean = theirs.backend_tokenizer.normalizer.normalize_str
        lines = [line for line in lines if not set(clean(line)) & set('()"-.–£€')]
        assert len(lines) > 1000
    assert_equal(ours, theirs, lines[::2])
    theirs.save_pretrained(tmp_path / "theirs")  # which has a tokenizer.json alone
    assert_equal(tokenizers.load(tmp_path / "theirs"), theirs, lines[::5])


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("name", grids.cases([*KINDS, "xlm-r", "roberta"], "wordpiece", "xlm-r", "roberta"))
def test_multilingual_vocabularies_have_hugging_faces_ids(name, lines, tmp_path):
    transformers = pytest.importorskip("transformers")
    if name == "roberta":
        ours = roberta(tmp_path, lines)
    elif name == "xlm-r":
        import sentencepiece

        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines[::3]), model_writer=model, vocab_size=3000, minloglevel=2
        )
        (tmp_path / "sentencepiece.bpe.model").write_bytes(model.getvalue())
        ours = tokenizers.load(tmp_path)
    else:
        ours = tokenizers.train(lines[::3], TokenizerConfig(kind=name), 3000)
    ours.save(tmp_path / "saved")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    v = ours.vocabulary
    assert theirs.mask_token_id == v.mask and len(theirs) == v.size
    if name in ("xlm-r", "roberta"):
        assert theirs("a b")["input_ids"] == [v.cls, *ours.encode("a b"), v.sep]
        assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (v.bos, v.eos, v.pad) == (0, 2, 1)
    assert_equal(ours, theirs, lines)


# ---- every kind × lowercase × order of special tokens × family -------------------------------------------------------

FAMILIES = ("t5", "bert", "gpt2", "llama", "mistral", "modernbert", "roberta", "albert", "xlnet", "deberta-v2")
SENTENCEPIECE = {  # options of spm_train
    "t5": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "default": {},
    "last": {"unk_id": 3, "bos_id": 0, "eos_id": 1, "pad_id": 2},
    "named": {"unk_piece": "[UNK]", "pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "pad_id": 3},
    "symbols": {"user_defined_symbols": ["(", "->", '"'], "control_symbols": ["[MASK]"]},
    "spaces": {"remove_extra_whitespaces": False, "normalization_rule_name": "identity"},
    "no prefix": {"add_dummy_prefix": False, "byte_fallback": True},
    "llama": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity"},
    "bpe": {"model_type": "bpe", "user_defined_symbols": ["(", "->", '"'], "pad_id": 3},
}


@pytest.fixture(scope="module")
def thousand():
    """A thousand real lines: an encyclopedia's where it is here, else those of the built-in corpus."""
    path = DATA / "text" / "wiki_en" / "valid.jsonl.gz"
    if path.is_file():
        found = [json.loads(line)["text"] for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
    else:
        found = builtin.documents()
    # Rules of tables are left out: a run of dashes can be cut in many equally good ways, see `assert_equal`.
    rule = re.compile(r"([-=+_*.])\1{5}")
    found = [line for text in found for line in text.splitlines() if line.strip() and not rule.search(line)]
    return [*found[:: max(len(found) // 985, 1)][:985], *SAMPLES, "\ttab  spaces ", "漢字 are not known", "ÀÉÎ ǅ Ω"]


def by_spm(lines, lowercase, **options):
    import sentencepiece

    model = io.BytesIO()
    rules = {"normalization_rule_name": "nmt_nfkc_cf" if lowercase else "nmt_nfkc"}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines[::3]), model_writer=model, vocab_size=700, hard_vocab_limit=False, minloglevel=2,
        num_threads=1,  # the pieces depend on the number of threads
        **rules | options,
    )  # fmt: skip
    return model.getvalue()


def assert_carried(ours, lines, path):
    """AutoTokenizer gives our ids and special tokens, whatever config.json says beside the vocabulary."""
    transformers = pytest.importorskip("transformers")
    ours.save(path)
    v, seen = ours.vocabulary, set()
    for family in FAMILIES:
        (path / "config.json").write_text(json.dumps({"model_type": family}))
        theirs = transformers.AutoTokenizer.from_pretrained(path)
        assert len(theirs) == v.size, family
        if (steps := theirs.backend_tokenizer.to_str()) not in seen:  # most families take the same class
            assert_equal(ours, theirs, lines)
        seen.add(steps)
        for name in ("unk", "bos", "eos", "cls", "sep", "mask"):
            wanted, got = getattr(v, name), getattr(theirs, f"{name}_token_id")
            assert wanted is None or got == wanted, (family, name)
        if v.sentinels:
            assert theirs.convert_tokens_to_ids("<extra_id_0>") == v.size - 1
    assert tokenizers.load(path).digest() == ours.digest()


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize(
    ("order", "lowercase", "sentinels"),
    grids.cases(
        (
            (order, lowercase, sentinels)
            for order, lowercase, sentinels in itertools.product(SENTENCEPIECE, (False, True), (0, 100))
            if not (lowercase and "normalization_rule_name" in SENTENCEPIECE[order])  # which has its own
        ),
        ("t5", False, 100), ("named", True, 0), ("symbols", False, 100), ("spaces", False, 0), ("no prefix", True, 0),
        ("llama", False, 100), ("bpe", True, 0),
    ),
)  # fmt: skip
def test_sentencepiece_is_carried(order, lowercase, sentinels, thousand, tmp_path):
    (tmp_path / "spiece.model").write_bytes(by_spm(thousand, lowercase, **SENTENCEPIECE[order]))
    ours = tokenizers.load(tmp_path, extra_ids=sentinels)
    assert ours.lowercase == lowercase
    assert_carried(ours, thousand, tmp_path / "saved")


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize(
    ("order", "lowercase"),
    grids.cases(itertools.product(["first", "bert", "last"], (False, True)), ("bert", False), ("last", True)),
)
def test_wordpiece_is_carried(order, lowercase, thousand, tmp_path):
    trained = tokenizers.train(thousand, TokenizerConfig(kind="wordpiece", lowercase=lowercase), 900)
    pieces = trained.tokens(range(trained.vocabulary.size))
    special, rest = pieces[:5], pieces[5:]
    orders = {
        "first": pieces, "bert": [special[0], "[unused0]", *special[1:], *rest], "last": [*rest, *special[::-1]],
    }  # fmt: skip
    (tmp_path / "vocab.txt").write_text("\n".join(orders[order]) + "\n", "utf-8")
    assert_carried(tokenizers.load(tmp_path, lowercase=lowercase), thousand, tmp_path / "saved")


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize(
    ("order", "lowercase"),
    grids.cases(
        itertools.product(["last", "first", "roberta", "opt"], (False, True)),
        ("last", True), ("roberta", True), ("opt", False),
    ),
)  # fmt: skip
def test_bpe_is_carried(order, lowercase, thousand, tmp_path):
    trained = tokenizers.train(thousand, TokenizerConfig(kind="bpe", lowercase=lowercase), 900, tmp_path)
    *pieces, end = json.loads((tmp_path / "vocab.json").read_text("utf-8"))
    starts = ["<s>", "<pad>", "</s>", "<unk>"]
    orders = {
        "last": [*pieces, end], "first": [end, *pieces], "roberta": [*starts, *pieces, "<mask>"],
        "opt": [*starts, *pieces],
    }  # fmt: skip
    merges = (tmp_path / "merges.txt").read_text("utf-8")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "merges.txt").write_text(merges, "utf-8")
    (tmp_path / "other" / "vocab.json").write_text(json.dumps({p: i for i, p in enumerate(orders[order])}))
    ours = tokenizers.load(tmp_path / "other", lowercase=lowercase)
    assert order != "last" or ours.encode_batch(thousand) == trained.encode_batch(thousand)
    assert_carried(ours, thousand, tmp_path / "saved")
