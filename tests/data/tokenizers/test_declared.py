"""Directories of others, as AutoTokenizer reads them: classes, added tokens, special tokens, options."""

import itertools
import json
import re
import shutil
import unicodedata

import pytest

from jaxpt.config import TokenizerConfig
from jaxpt.data import builtin, tokenizers
from jaxpt.errors import UserError
from jaxpt.hf import vocabularies
from tests.data.tokenizers.test_tokenizers import SAMPLES
from tests.data.tokenizers.test_tokenizers_hf import by_spm
from tests.grids import cases
from tests.hf import published

BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LANGUAGES = (
    "schön Größe Übung naïve café", "İstanbul ığdır çağrı", "zażółć gęślą jaźń", "Привет, мир! Ёлка",
    "Γειά σου Κόσμε", "漢字 と カナ", "中文没有空格的句子。", "한국어 문장", "नमस्ते दुनिया", "สวัสดีชาวโลก",
    "مرحبا بالعالم", "שלום עולם", "ﬁne ½ ① Ａｂｃ", "e\u0301tude", "a\u00a0b\u2003c", "zero\u200bwidth",
    "tab\there", "new\nline", "👩‍👩‍👧 🎉🎉", "½×¾ ≠ ∞",
)  # fmt: skip
MARKED = (
    "<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n", "<s>[INST] Write code [/INST]", "a <ent> b",
    "<ent>a<ent> <ent>", "A<ENT>b", "Question: <|im_end|>", "x<|im_start|>y", "<|im_start|> spaced <|im_end|> end",
)  # fmt: skip
ADDED = {"<|im_start|>": True, "<|im_end|>": True, "<ent>": False}
"""Added tokens, and whether they are special."""
OPTIONS = {  # of tokenizer_config.json; each is tried at both values
    "do_lower_case": (True, False), "strip_accents": (True, False), "tokenize_chinese_chars": (True, False),
    "add_prefix_space": (True, False), "remove_space": (True, False), "keep_accents": (True, False),
    "split_by_punct": (True, False), "clean_up_tokenization_spaces": (True, False), "legacy": (True, False),
    "add_bos_token": (True, False), "add_eos_token": (True, False), "model_max_length": (8, 512),
}  # fmt: skip
T5_IDS = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
LLAMA = {
    "model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
}  # fmt: skip
ALBERT_IDS = {
    "pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
}  # fmt: skip
XLNET_IDS = {"control_symbols": ["<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]}
DEBERTA_IDS = {
    "pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "pad_piece": "[PAD]", "bos_piece": "[CLS]",
    "eos_piece": "[SEP]", "unk_piece": "[UNK]",
}  # fmt: skip
MT5_IDS = T5_IDS | {"user_defined_symbols": [f"▁<extra_id_{i}>" for i in reversed(range(20))]}
CLASSES = {  # name: (model_type, tokenizer_class, the files, what trains them)
    "bert": ("bert", "BertTokenizer", ("vocab.txt",), {}),
    "distilbert": ("distilbert", "DistilBertTokenizer", ("vocab.txt",), {}),
    "electra": ("electra", "ElectraTokenizer", ("vocab.txt",), {}),
    "gpt2": ("gpt2", "GPT2Tokenizer", ("vocab.json", "merges.txt"), {"special": ("<|endoftext|>",)}),
    "opt": ("opt", "GPT2Tokenizer", ("vocab.json", "merges.txt"), {"special": ("<s>", "<pad>", "</s>", "<unk>")}),
    "roberta": (
        "roberta", "RobertaTokenizer", ("vocab.json", "merges.txt"),
        {"special": ("<s>", "<pad>", "</s>", "<unk>", "<mask>")},
    ),
    "bart": (
        "bart", "BartTokenizer", ("vocab.json", "merges.txt"),
        {"special": ("<s>", "<pad>", "</s>", "<unk>", "<mask>")},
    ),
    "openai-gpt": ("openai-gpt", "OpenAIGPTTokenizer", ("vocab.json", "merges.txt"), {"special": ("<unk>",)}),
    "llama": ("llama", "LlamaTokenizer", ("tokenizer.model",), LLAMA),
    "mistral": ("mistral", "LlamaTokenizer", ("tokenizer.model",), LLAMA),
    "mixtral": ("mixtral", "LlamaTokenizer", ("tokenizer.model",), LLAMA),
    "t5": ("t5", "T5Tokenizer", ("spiece.model",), T5_IDS),
    "mt5": ("mt5", "T5Tokenizer", ("spiece.model",), MT5_IDS),
    "umt5": ("umt5", "T5Tokenizer", ("spiece.model",), T5_IDS),
    "albert": ("albert", "AlbertTokenizer", ("spiece.model",), ALBERT_IDS),
    "xlnet": ("xlnet", "XLNetTokenizer", ("spiece.model",), XLNET_IDS),
    "xlm-roberta": ("xlm-roberta", "XLMRobertaTokenizer", ("sentencepiece.bpe.model",), {}),
    "camembert": ("camembert", "CamembertTokenizer", ("sentencepiece.bpe.model",), {}),
    "deberta-v2": ("deberta-v2", "DebertaV2Tokenizer", ("spm.model",), DEBERTA_IDS),
    "mbart": ("mbart", "MBartTokenizer", ("sentencepiece.bpe.model",), {}),
    "modernbert": ("modernbert", "PreTrainedTokenizerFast", ("vocab.json", "merges.txt"), {"special": BERT}),
}  # fmt: skip
SPECIALS = {  # those that the class does not have of its own
    "opt": {"bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "</s>"},
    "modernbert": dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), BERT)),
}


def write(folder, **files):
    """A directory of JSON and text files: `__` in a name is a point."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name.replace("__", ".")).write_text(text, "utf-8")
    return folder


VOCAB = "\n".join([*BERT, "schon", "schön", "中", "文", "中文", "a", "b"]) + "\n"
CONFIG = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}


def test_options_of_bert_are_honoured(tmp_path):
    """The right ids are those of BertTokenizer 5.24."""
    for options, ids in (
        ({}, [5, 7, 8]), ({"strip_accents": False}, [6, 7, 8]), ({"strip_accents": None}, [5, 7, 8]),
        ({"tokenize_chinese_chars": False}, [5, 9]), ({"do_lower_case": False}, [1, 7, 8]),
        ({"do_lower_case": False, "strip_accents": True}, [1, 7, 8]),
    ):  # fmt: skip
        folder = write(tmp_path, vocab__txt=VOCAB, tokenizer_config__json=CONFIG | options)
        ours = tokenizers.load(folder)
        assert ours.encode("Schön 中文") == ids, options
        ours.save(tmp_path / "saved")
        assert tokenizers.load(tmp_path / "saved").encode("Schön 中文") == ids, options
        # tokenizer_config.json counts before the tokenizer.json beside it, in `transformers` 4 and 5
        rust = json.loads((tmp_path / "saved" / "tokenizer.json").read_text("utf-8"))
        rust["normalizer"] |= {"lowercase": True, "strip_accents": None, "handle_chinese_chars": True}
        both = write(tmp_path / "both", tokenizer__json=rust, tokenizer_config__json=CONFIG | options)
        assert tokenizers.load(both).encode("Schön 中文") == ids, options


def test_options_are_saved_for_the_class_that_has_them(tmp_path):
    """Whose template AutoTokenizer puts around a text; where there is no such class it is in the tokenizer.json."""
    for options in (
        {"strip_accents": False}, {"do_lower_case": False, "strip_accents": True}, {"tokenize_chinese_chars": False},
    ):  # fmt: skip
        write(tmp_path / "bert", vocab__txt=VOCAB, tokenizer_config__json=CONFIG | options)
        assert saved_settings(tmp_path / "bert").items() >= {**CONFIG, **options}.items()
    write(tmp_path / "none", vocab__txt=VOCAB.replace("[MASK]", "c"), tokenizer_config__json=CONFIG)
    assert saved_settings(tmp_path / "none")["tokenizer_class"] == "PreTrainedTokenizerFast"
    rust = json.loads((tmp_path / "none" / "saved" / "tokenizer.json").read_text("utf-8"))
    assert (rust["post_processor"]["cls"], rust["post_processor"]["sep"]) == (["[CLS]", 2], ["[SEP]", 3])
    for first, name in ((["<s>", "<pad>", "</s>", "<unk>", "<mask>"], "Roberta"), (["<|endoftext|>"], "GPT2")):
        settings = {"tokenizer_class": f"{name}Tokenizer", "add_prefix_space": True}
        vocab = {piece: i for i, piece in enumerate([*first, "a", "Ġ", "Ġa"])}
        files = {"vocab__json": vocab, "merges__txt": "Ġ a\n", "tokenizer_config__json": settings}
        assert saved_settings(write(tmp_path / name, **files)).items() >= settings.items()
        assert tokenizers.load(tmp_path / name / "saved").encode("a a") == [vocab["Ġa"]] * 2


@pytest.mark.parity
def test_transformers_puts_cls_and_sep_around_what_was_saved(tmp_path):
    transformers = pytest.importorskip("transformers")
    for options in ({}, {"strip_accents": False}, {"strip_accents": True}, {"tokenize_chinese_chars": False}):
        for folds in (True, False):
            settings = CONFIG | options | {"do_lower_case": folds}
            write(tmp_path, vocab__txt=VOCAB, tokenizer_config__json=settings, config__json={"model_type": "bert"})
            saved_settings(tmp_path)
            vocabularies.take(tmp_path, tmp_path / "run", {"extra_ids": 0}, lambda line: None)
            ids = [
                transformers.AutoTokenizer.from_pretrained(folder)("Schön 中文")["input_ids"]
                for folder in (tmp_path, tmp_path / "saved", tmp_path / "run")
            ]
            assert ids[0] == ids[1] == ids[2] and (ids[0][0], ids[0][-1]) == (2, 3), settings
            shutil.rmtree(tmp_path / "run")


def saved_settings(folder):
    """tokenizer_config.json of a directory's vocabulary, saved in it."""
    tokenizers.load(folder).save(folder / "saved")
    return json.loads((folder / "saved" / "tokenizer_config.json").read_text("utf-8"))


def test_added_tokens_beside_a_vocab_txt(tmp_path):
    files = {"vocab__txt": VOCAB, "tokenizer_config__json": CONFIG}
    ours = tokenizers.load(write(tmp_path / "none", **files))
    assert ours.encode("a <ent> b") == [10, 1, 1, 1, 11]
    legacy = write(
        tmp_path / "legacy", **files, added_tokens__json={"<ent>": 12, "<sys>": 13},
        special_tokens_map__json={"additional_special_tokens": ["<sys>"], "pad_token": {"content": "[PAD]"}},
    )  # fmt: skip
    decoder = {"12": {"content": "<ent>", "normalized": True}, "13": {"content": "<sys>", "special": True}}
    later = write(tmp_path / "later", **files | {"tokenizer_config__json": CONFIG | {"added_tokens_decoder": decoder}})
    for folder in (legacy, later):
        ours = tokenizers.load(folder)
        assert ours.encode("a<ENT>b") == [10, 12, 11] and ours.vocabulary.size == 14  # a `normalized` one
        assert ours.encode("a <sys>", special=True) == [10, 13] != ours.encode("a <sys>")
        ours.save(folder / "saved")
        again = tokenizers.load(folder / "saved")
        assert (again.digest(), again.vocabulary) == (ours.digest(), ours.vocabulary)
        assert again.encode("a<ENT>b <sys>", special=True) == [10, 12, 11, 13]


def test_special_tokens_are_those_that_files_name(tmp_path):
    from tokenizers import Tokenizer, models

    words = ["<|endoftext|>", "<|im_end|>", "<bos>", "<eos>", "<pad>", "<|begin|>", "<|end|>", "a"]
    rust = json.loads(Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [])).to_str())
    for said, ids in (  # bos, eos, pad
        ({"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}, (2, 3, 4)),  # Gemma
        ({"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}, (None, 1, 0)),  # Qwen
        ({"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}, "pad_token": "<|end|>"}, (5, 6, 6)),
        ({"eos_token": "<|im_end|>"}, (None, 1, 0)),  # no file names the others
        ({}, (0, 0, 4)),  # by their usual names
    ):  # fmt: skip
        folder = write(tmp_path / "hf", tokenizer__json=rust, tokenizer_config__json=said)
        ours = tokenizers.load(folder)
        assert (ours.vocabulary.bos, ours.vocabulary.eos, ours.vocabulary.pad) == ids, said
        assert (ours.assumed is not None and "by their usual names: bos <|endoftext|>" in ours.assumed) == (not said)
        ours.save(tmp_path / "saved")
        assert tokenizers.load(tmp_path / "saved").vocabulary == ours.vocabulary, said
    # special_tokens_map.json counts before tokenizer_config.json, unless this lists the added tokens
    special = {"special_tokens_map__json": {"eos_token": "<eos>"}}
    folder = write(tmp_path / "hf", **special, tokenizer_config__json={"eos_token": "<|end|>"})
    assert tokenizers.load(folder).vocabulary.eos == 3
    folder = write(tmp_path / "hf", tokenizer_config__json={"eos_token": "<|end|>", "added_tokens_decoder": {}})
    assert tokenizers.load(folder).vocabulary.eos == 6


OF_FAMILIES = {  # name: bos, eos, pad, and CLS, SEP and mask of an encoder
    "llama 3": ("<|begin_of_text|>", "<|eot_id|>", None),
    "qwen 2.5": (None, "<|im_end|>", "<|endoftext|>"),
    "deepseek r1 distilled": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "smollm 2": ("<|im_start|>", "<|im_end|>", "<|im_end|>"),
    "pythia": ("<|endoftext|>", "<|endoftext|>", "<|padding|>"),
    "ettin, decoder": ("[CLS]", "[SEP]", "[PAD]"),  # config.json alone names the first two
    "gemma 2": ("<bos>", "<eos>", "<pad>"),
    "mmbert": ("<bos>", "<eos>", "<pad>", "<bos>", "<eos>", "<mask>"),
    "eurobert": (
        "<|begin_of_text|>", "<|end_of_text|>", "<|end_of_text|>", "<|begin_of_text|>", "<|end_of_text|>", "<|mask|>"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_FAMILIES)
def test_special_tokens_of_published_directories(name, tmp_path):
    """Beside transformers they are in tests/hf/families/test_special_tokens.py."""
    ours = tokenizers.load(published.write(tmp_path, name), extra_ids=0)
    want = OF_FAMILIES[name]
    parts = ("bos", "eos", "pad", "cls", "sep", "mask")[: len(want)]
    ids = [None if token is None else ours.token_id(token) for token in want]
    assert [getattr(ours.vocabulary, part) for part in parts] == [
        0 if part == "pad" and i is None else i for part, i in zip(parts, ids)
    ]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"added_tokens__json": {"<ent>": 20}}, "added token '<ent>' has id 20 in its file; the next free id is 12"),
        ({"added_tokens__json": {"a": 3}}, "added token 'a' has id 3 in its file; the vocabulary has it at 10"),
        ({"added_tokens__json": {"<ent>": "x"}}, "added_tokens.json: '<ent>': 'x' is no id; wants {token: id}"),
        ({"tokenizer_config__json": CONFIG | {"added_tokens_decoder": [1]}}, "added_tokens_decoder is [1]; wants"),
        ({"tokenizer_config__json": CONFIG | {"pad_token": 3}}, "pad_token: is 3; wants a token, or an object"),
        ({"tokenizer_config__json": CONFIG | {"strip_accents": "no"}}, "strip_accents is 'no'; wants true"),
        ({"tokenizer_config__json": CONFIG | {"never_split": ["x"]}}, "never_split: ['x'] is not"),
        ({"tokenizer_config__json": CONFIG | {"do_basic_tokenize": False}}, "do_basic_tokenize: false is not"),
        ({"tokenizer_config__json": {"tokenizer_class": "BertJapaneseTokenizer"}}, "ids of a BertJapaneseTokenizer"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(files, words, tmp_path):
    files = {"vocab__txt": VOCAB, "tokenizer_config__json": CONFIG} | files
    with pytest.raises(UserError) as error:
        tokenizers.load(write(tmp_path, **files))
    assert str(error.value).startswith(str(tmp_path)) and words in str(error.value) and "\n" not in str(error.value)


def test_vocab_json_of_other_classes(tmp_path):
    """GPT-1's pieces end words with "</w>"; Qwen's vocab.json is read by other rules than GPT-2's."""
    vocab = {"<unk>": 0, "a": 1, "b": 2, "a</w>": 3, "b</w>": 4, "ab</w>": 5}
    files = {"vocab__json": vocab, "merges__txt": "#version: 0.2\na b</w>\n"}
    folder = write(tmp_path, **files, config__json={"model_type": "openai-gpt"})
    ours = tokenizers.load(folder)
    assert ours.encode("AB a bé") == [5, 3, 2, 0] and ours.vocabulary.unk == 0
    write(tmp_path, tokenizer_config__json={"tokenizer_class": "Qwen2Tokenizer"})
    with pytest.raises(UserError, match="the ids of a Qwen2Tokenizer may be others than GPT-2's"):
        tokenizers.load(folder)


# ---- the grid: classes × files × added tokens × options, 300 texts each ---------------------------------------------


@pytest.fixture(scope="module")
def texts():
    """300 texts: prose, code, scripts, chat markers."""
    rule = re.compile(r"([-=+_*.])\1{5}")  # can be cut in many equally good ways, see `assert_equal`
    lines = [line for text in builtin.documents()[:40] for line in text.splitlines()]
    lines = [line for line in lines if line.strip() and not rule.search(line)]
    prose = lines[:: len(lines) // 230][:230]
    found = [*MARKED, *LANGUAGES, *SAMPLES, *prose, *(f"{a} {b}" for a, b in zip(MARKED * 6, prose))]
    return found[:300]


@pytest.fixture(scope="module")
def corpus(texts):
    lines = [line for text in builtin.documents()[40:70] for line in text.splitlines()]
    return [*LANGUAGES * 3, *filter(str.strip, lines)]


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    """The files of each class, trained once: `trained(name)` is their directory."""
    folders = {}

    def train(name):
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp(name)
            _, _, files, options = CLASSES[name]
            write_files(folders[name], files, options, corpus, name)
        return folders[name]

    return train


def write_files(folder, files, options, corpus, name):
    if files[0].endswith(".model"):
        (folder / files[0]).write_bytes(by_spm(corpus, False, **options))
    elif files == ("vocab.txt",):
        trained = tokenizers.train(corpus, TokenizerConfig(kind="wordpiece", lowercase=False), 900)
        (folder / "vocab.txt").write_text("\n".join(trained.tokens(range(trained.vocabulary.size))) + "\n", "utf-8")
    elif name == "openai-gpt":
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

        rust = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
        rust.normalizer = normalizers.BertNormalizer(lowercase=True)
        rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.BpeTrainer(
            vocab_size=700, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
        )
        rust.train_from_iterator(corpus, trainer)
        rust.model.save(str(folder))
    else:
        trained = tokenizers.train(corpus, TokenizerConfig(kind="bpe", lowercase=False), 700, folder)
        pieces = [p for p in json.loads((folder / "vocab.json").read_text("utf-8")) if p != "<|endoftext|>"]
        first, last = options["special"], ()
        if "<mask>" in first:
            first, last = first[:-1], first[-1:]
        vocab = {piece: i for i, piece in enumerate([*first, *pieces, *last])}
        for file in ("checksums.json", "tokenizer.json", "tokenizer_config.json"):
            (folder / file).unlink()
        (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), "utf-8")
        assert trained.vocabulary.size == 700


def directory(trained, out, name, form, added, options):
    """A directory as others publish it; None where there is no such one."""
    import transformers

    model_type, class_name, files, _ = CLASSES[name]
    if form == "slow" and (class_name == "PreTrainedTokenizerFast" or name == "umt5"):  # which it does not read
        return None
    out.mkdir(parents=True)
    for file in files:
        shutil.copy(trained(name) / file, out / file)
    (out / "config.json").write_text(json.dumps({"model_type": model_type.removeprefix("u")}))
    settings = {"tokenizer_class": class_name, **SPECIALS.get(name, {}), **options}
    settings |= {"extra_ids": 0} if name == "mt5" else {}
    if files == ("vocab.txt",):
        settings.setdefault("do_lower_case", True)
    (out / "tokenizer_config.json").write_text(json.dumps(settings))
    if class_name == "PreTrainedTokenizerFast":
        tokenizers.load(out / "vocab.json").save(out / "saved")
        shutil.copy(out / "saved" / "tokenizer.json", out / "tokenizer.json")
        shutil.rmtree(out / "saved")
    if added:
        size = len(transformers.AutoTokenizer.from_pretrained(out))
        ids = {"[MASK]": size - 1} if name == "deberta-v2" else {}
        ids |= {token: size + n for n, token in enumerate(ADDED)}
        if added == "added_tokens.json":
            (out / "added_tokens.json").write_text(json.dumps(ids))
            special = {"additional_special_tokens": [token for token in ids if ADDED.get(token)]}
            (out / "special_tokens_map.json").write_text(json.dumps(special))
        else:
            flags = {"lstrip": False, "rstrip": False, "single_word": False}
            settings["added_tokens_decoder"] = {
                str(i): {"content": token, **flags, "normalized": not special, "special": special}
                for token, i in ids.items()
                for special in [ADDED.get(token, True)]
            }
            (out / "tokenizer_config.json").write_text(json.dumps(settings))
    if form != "slow":
        theirs = transformers.AutoTokenizer.from_pretrained(out)
        for file in ("added_tokens.json", "special_tokens_map.json"):
            (out / file).unlink(missing_ok=True)
        theirs.save_pretrained(out)
        saved = json.loads((out / "tokenizer_config.json").read_text("utf-8"))  # which forgets some options
        (out / "tokenizer_config.json").write_text(json.dumps(saved | options))
        if form == "fast":
            for file in files:
                (out / file).unlink()
        (out / "config.json").write_text(json.dumps({"model_type": model_type}))
    return out


def comparable(name, form, options, text):
    """Whether the classes of `transformers` 5 do with a text what their model says, see jaxpt/hf/README.md."""
    if form != "slow":
        return True
    parts = [part for part in re.split("|".join(map(re.escape, [*ADDED, "<s>", "</s>", "<unk>"])), text) if part]
    if name in ("mistral", "mixtral") or (name == "llama" and options.get("legacy")):
        return not any(part.startswith((" ", "▁")) for part in parts)
    if name == "deberta-v2":
        plain = unicodedata.normalize("NFKC", text) == text and "\u200b" not in text
        return plain and all(part and " ".join(part.split()) == part for part in parts)
    if name == "xlnet" and options.get("keep_accents"):
        return not any(unicodedata.category(c).startswith("M") for c in unicodedata.normalize("NFKD", text))
    return True


def exported(folder, limits):
    """What import and export make of a directory's vocabulary, beside the same config.json."""
    run, out = folder / "run", folder / "exported"
    out.mkdir()
    vocabularies.take(folder, run / "tokenizer", limits, lambda line: None)
    vocabularies.give(run, out)
    shutil.copy(folder / "config.json", out / "config.json")
    return out


def compare(folder, name, form, options, texts):
    """("equal", "refused" or "other", why)"""
    import transformers

    limits = {"extra_ids": None if name in ("t5", "umt5", "mt5") else 0}  # as `jaxpt import` has them
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    after = transformers.AutoTokenizer.from_pretrained(exported(folder, limits))
    assert after(texts)["input_ids"] == theirs(texts)["input_ids"]
    assert after.special_tokens_map == theirs.special_tokens_map
    try:
        ours = tokenizers.load(folder, **limits)
    except UserError as error:
        assert str(folder) in str(error) and "\n" not in str(error)
        return "refused", str(error)
    texts = [text for text in texts if comparable(name, form, options, text)]
    want = theirs(texts, add_special_tokens=False)["input_ids"]
    got = [ours.encode(text, special=True) for text in texts]
    in_run = tokenizers.load(folder / "run" / "tokenizer", **limits)
    assert [in_run.encode(text, special=True) for text in texts] == got and in_run.vocabulary == ours.vocabulary
    wrong = [i for i in range(len(texts)) if got[i] != want[i]]
    if wrong:
        text, ids, other = (of[wrong[0]] for of in (texts, got, want))
        why = f"{text!r}: {ours.tokens(ids)}, theirs {theirs.convert_ids_to_tokens(other)}"
        return "other", f"{len(wrong)} of {len(texts)}, {why}"
    unused = ("unk",) if ours.byte_text == "all" else ()  # no text gets it
    for part in sorted({"bos", "eos", "pad", "unk", "cls", "sep", "mask"}.difference(unused)):
        i, j = getattr(ours.vocabulary, part), getattr(theirs, f"{part}_token_id")
        if i != j and not (part == "pad" and j is None) and (j is None or j < ours.vocabulary.size):
            return "other", f"{part}: {i}, {j}"
    return "equal", len(texts)


REFUSED = {  # options that are refused beside a SentencePiece model alone, by class
    ("add_prefix_space", False): (
        "mistral", "mixtral", "t5", "mt5", "albert", "xlnet", "xlm-roberta", "camembert", "deberta-v2",
    ),
    ("split_by_punct", True): ("deberta-v2",),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize(("name", "form"), cases(itertools.product(CLASSES, ("slow", "fast", "both"))))
def test_a_directory_is_read_as_transformers_reads_it(name, form, trained, texts, tmp_path):
    """Ids and special tokens are equal, or the directory is refused by name; import and export change nothing."""
    pytest.importorskip("transformers")
    tried = [(None, None), *((option, value) for option, values in OPTIONS.items() for value in values)]
    for added, (option, value) in itertools.product((None, "added_tokens.json", "added_tokens_decoder"), tried):
        options = {} if option is None else {option: value}
        out = tmp_path / f"{added}-{option}-{value}"
        if directory(trained, out, name, form, added, options) is None:
            pytest.skip("transformers does not read these files")
        outcome, why = compare(out, name, form, options, texts)
        is_refused = form == "slow" and (name == "mbart" or name in REFUSED.get((option, value), ()))
        assert outcome == ("refused" if is_refused else "equal"), (added, options, why)
        shutil.rmtree(out)


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("name", CLASSES)
def test_every_class_with_added_tokens(name, trained, texts, tmp_path):
    """The grid in short: one directory of each class."""
    pytest.importorskip("transformers")
    form = "both" if name in ("modernbert", "umt5", "mbart") else "slow"
    out = directory(trained, tmp_path / "hf", name, form, "added_tokens_decoder", {})
    assert compare(out, name, form, {}, texts[::3])[0] == "equal"
