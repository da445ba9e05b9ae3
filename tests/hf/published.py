"""Directories of files as families publish them, with tiny vocabularies that are trained here.

Contents are made; which files there are, what they name and what they leave out is each family's.
"""

import dataclasses
import functools
import json

import tokenizers as rust
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from jaxpt.data import builtin

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Llama 3 and what came after it cut texts into words; digits by three, or one by one."""
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' "
    "+ m.content | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n'"
    " + m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
PHI3 = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
OLMO = (
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '<｜User｜>' + m.content }}"
    "{% else %}{{ '<｜Assistant｜>' + m.content + '<｜end▁of▁sentence｜>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}"
)


@dataclasses.dataclass(frozen=True)
class Published:
    """What a family's files say; ids are written as the tokens that have them."""

    model_type: str
    kind: str
    """How words are made of bytes: "words" (WORDS, digits by three), "digits" (WORDS, one by one), "gpt2", "numbers"
    (GPT-2's with digits one by one), "llama" or "gemma" (spaces as ▁, bytes where no piece is known)."""
    tokenizer_class: str
    first: tuple[str, ...] = ()
    """Special tokens before all others."""
    last: tuple[str, ...] = ()
    """Special tokens behind all others."""
    named: dict = dataclasses.field(default_factory=dict)
    """What tokenizer_config.json names: {"bos_token": …, "eos_token": …}, and its options."""
    around: str | None = None
    """What tokenizer.json puts around a text."""
    config: dict = dataclasses.field(default_factory=dict)
    generation: dict | None = None
    template: str | None = None
    rows: int = 0
    """How many more rows the model's table has than there are ids."""
    nfc: bool = False
    rstrip: tuple[str, ...] = ()
    """Special tokens to which the white space behind them belongs."""


END = "<|endoftext|>"
IM = ("<|im_start|>", "<|im_end|>")
L3 = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|finetune_right_pad_id|>",
    "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>",
)  # fmt: skip
EURO = ("<|begin_of_text|>", "<|end_of_text|>", "<|mask|>", "<|parallel_sep|>")
BERT = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
DS = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")
GEMMA_FIRST = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>")
GEMMA_NAMED = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
FAMILIES = {
    "llama 3": Published(
        "llama", "words", "PreTrainedTokenizerFast", last=L3, around="<|begin_of_text|> $A", template=LLAMA3,
        named={"bos_token": L3[0], "eos_token": "<|eot_id|>"},
        config={"bos_token_id": L3[0], "eos_token_id": [L3[1], "<|eom_id|>", "<|eot_id|>"]},
        generation={"bos_token_id": L3[0], "eos_token_id": [L3[1], "<|eom_id|>", "<|eot_id|>"], "do_sample": True},
    ),
    "mistral": Published(
        "mistral", "llama", "LlamaTokenizer", first=("<unk>", "<s>", "</s>"), around="<s> $A", template=MISTRAL,
        named={"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": None, "add_bos_token": True,
               "add_eos_token": False, "legacy": True, "sp_model_kwargs": {}},
        config={"bos_token_id": "<s>", "eos_token_id": "</s>"},
        generation={"bos_token_id": "<s>", "eos_token_id": "</s>"},
    ),
    "qwen 2.5": Published(
        "qwen2", "digits", "Qwen2Tokenizer", last=(END, *IM), nfc=True, rows=37, template=CHATML,
        named={"bos_token": None, "eos_token": "<|im_end|>", "pad_token": END, "unk_token": None,
               "add_bos_token": False, "add_prefix_space": False, "split_special_tokens": False, "errors": "replace"},
        config={"bos_token_id": END, "eos_token_id": "<|im_end|>"},
        generation={"bos_token_id": END, "pad_token_id": END, "eos_token_id": ["<|im_end|>", END], "do_sample": True},
    ),
    "qwen 3, base": Published(
        "qwen3", "digits", "Qwen2Tokenizer", last=(END, *IM), nfc=True, rows=37, template=CHATML,
        named={"bos_token": None, "eos_token": END, "pad_token": END, "unk_token": None, "add_bos_token": False,
               "errors": "replace"},
        config={"bos_token_id": END, "eos_token_id": END}, generation={"bos_token_id": END, "eos_token_id": END},
    ),
    "deepseek r1 distilled": Published(
        "qwen2", "digits", "LlamaTokenizerFast", last=DS, nfc=True, rows=37, around=f"{DS[0]} $A", template=DEEPSEEK,
        named={"bos_token": {"__type": "AddedToken", "content": DS[0]}, "pad_token": DS[1],
               "eos_token": {"__type": "AddedToken", "content": DS[1]}, "unk_token": None, "add_bos_token": True,
               "add_eos_token": False, "legacy": True, "sp_model_kwargs": {}},
        config={"bos_token_id": DS[0], "eos_token_id": DS[1]},
        generation={"bos_token_id": DS[0], "eos_token_id": DS[1], "temperature": 0.6},
    ),
    "olmo 2": Published(
        "olmo2", "words", "GPT2Tokenizer", last=(END, "<|pad|>"), rows=75, template=OLMO,
        named={"bos_token": END, "eos_token": END, "unk_token": END, "pad_token": "<|pad|>",
               "add_prefix_space": False},
        config={"eos_token_id": END, "pad_token_id": "<|pad|>"},
        generation={"eos_token_id": END, "pad_token_id": "<|pad|>"},
    ),
    "smollm 2": Published(
        "llama", "numbers", "GPT2Tokenizer", first=(END, *IM, "<repo_name>"), template=CHATML,
        named={"bos_token": IM[0], "eos_token": IM[1], "unk_token": END, "pad_token": IM[1],
               "add_prefix_space": False},
        config={"bos_token_id": IM[0], "eos_token_id": IM[1], "pad_token_id": IM[1]},
        generation={"bos_token_id": IM[0], "eos_token_id": IM[1], "pad_token_id": IM[1]},
    ),
    "gemma 2": Published(
        "gemma2", "gemma", "GemmaTokenizer", first=GEMMA_FIRST, around="<bos> $A", template=GEMMA,
        named=GEMMA_NAMED | {"add_bos_token": True, "add_eos_token": False, "sp_model_kwargs": {},
                             "spaces_between_special_tokens": False},
        config={"bos_token_id": "<bos>", "eos_token_id": "<eos>", "pad_token_id": "<pad>"},
        generation={"bos_token_id": "<bos>", "eos_token_id": ["<eos>", "<end_of_turn>"], "pad_token_id": "<pad>"},
    ),
    "phi 3": Published(
        "phi3", "llama", "LlamaTokenizer", first=("<unk>", "<s>", "</s>"), rows=21, template=PHI3,
        last=(END, "<|assistant|>", "<|system|>", "<|end|>", "<|user|>"),
        rstrip=("<|assistant|>", "<|system|>", "<|end|>", "<|user|>"),
        named={"bos_token": "<s>", "eos_token": END, "pad_token": END, "unk_token": "<unk>", "add_bos_token": False,
               "add_eos_token": False, "legacy": False, "sp_model_kwargs": {}},
        config={"bos_token_id": "<s>", "eos_token_id": END, "pad_token_id": END},
        generation={"bos_token_id": "<s>", "eos_token_id": [END, "<|end|>"], "pad_token_id": END},
    ),
    "stablelm 2": Published(
        "stablelm", "words", "GPT2Tokenizer", last=(END, *IM), rows=9, template=CHATML,
        named={"bos_token": END, "eos_token": END, "pad_token": END, "unk_token": END, "add_prefix_space": False},
        config={"bos_token_id": END, "eos_token_id": END}, generation={"bos_token_id": END, "eos_token_id": END},
    ),
    "pythia": Published(
        "gpt_neox", "gpt2", "GPTNeoXTokenizer", first=(END, "<|padding|>"), nfc=True, rows=27,
        named={"bos_token": END, "eos_token": END, "unk_token": END, "add_prefix_space": False},
        config={"bos_token_id": END, "eos_token_id": END},
    ),
    "bloom": Published(
        "bloom", "gpt2", "BloomTokenizerFast", first=("<unk>", "<s>", "</s>", "<pad>"),
        named={"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>",
               "add_prefix_space": False, "padding_side": "left"},
        config={"bos_token_id": "<s>", "eos_token_id": "</s>", "pad_token_id": "<pad>"},
    ),
    "ettin, decoder": Published(
        "modernbert-decoder", "gpt2", "PreTrainedTokenizerFast", first=(END,), last=BERT, nfc=True,
        around="[CLS] $A [SEP]",
        named=dict(zip(("unk_token", "cls_token", "sep_token", "pad_token", "mask_token"), BERT)),
        config={"bos_token_id": "[CLS]", "eos_token_id": "[SEP]", "pad_token_id": "[PAD]", "cls_token_id": "[CLS]",
                "sep_token_id": "[SEP]"},
    ),
    "eurobert": Published(
        "eurobert", "words", "PreTrainedTokenizerFast", last=EURO, around="<|begin_of_text|> $A <|end_of_text|>",
        named={"bos_token": EURO[0], "eos_token": EURO[1], "pad_token": EURO[1], "mask_token": EURO[2]},
        config={"bos_token_id": EURO[0], "eos_token_id": EURO[1], "pad_token_id": EURO[1], "mask_token_id": EURO[2]},
    ),
    "mmbert": Published(
        "modernbert", "gemma", "GemmaTokenizer", first=GEMMA_FIRST, around="<bos> $A <eos>",
        named=GEMMA_NAMED | {"mask_token": "<mask>", "add_bos_token": True, "add_eos_token": True},
        config={"bos_token_id": "<bos>", "eos_token_id": "<eos>", "pad_token_id": "<pad>", "cls_token_id": "<eos>",
                "sep_token_id": "<eos>", "mask_token_id": "<mask>"},
    ),
    "ettin, encoder": Published(
        "modernbert", "gpt2", "PreTrainedTokenizerFast", first=(END,), last=BERT, nfc=True, around="[CLS] $A [SEP]",
        named=dict(zip(("unk_token", "cls_token", "sep_token", "pad_token", "mask_token"), BERT)),
        config={"bos_token_id": "[CLS]", "eos_token_id": "[SEP]", "pad_token_id": "[PAD]", "cls_token_id": "[CLS]",
                "sep_token_id": "[SEP]"},
    ),
}  # fmt: skip
ENCODERS = ("eurobert", "mmbert", "ettin, encoder")
SIZES = {"hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}


DIGITS = ("1 12 123 1234 2024 " * 20,)


@functools.cache
def _merges(kind):
    """(pieces, merges) of a BPE of bytes, or of characters where spaces are ▁."""
    trained, is_metaspace = rust.Tokenizer(models.BPE()), kind in ("llama", "gemma")
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never") if is_metaspace else _cut(kind)
    alphabet = [] if is_metaspace else pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(builtin.documents()[:8] + DIGITS, trainer)
    model = json.loads(trained.to_str())["model"]
    return tuple(model["vocab"]), tuple(map(tuple, model["merges"]))


def _cut(kind):
    """The step that cuts texts into words, of bytes."""
    cut = pre_tokenizers.Split(Regex(WORDS % ("" if kind == "digits" else "{1,3}")), "isolated")
    of_words = [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    numbers = [pre_tokenizers.Digits(individual_digits=True), byte_level]
    return pre_tokenizers.Sequence({"gpt2": [byte_level], "numbers": numbers}.get(kind, of_words))


def tokenizer(spec):
    """The tokenizer of a family."""
    is_metaspace = spec.kind in ("llama", "gemma")
    pieces, merges = _merges(spec.kind)
    of_bytes = [f"<0x{i:02X}>" for i in range(256)] if is_metaspace else []
    vocab = {piece: i for i, piece in enumerate(dict.fromkeys((*spec.first, *of_bytes, *pieces)))}
    options = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True} if is_metaspace else {}
    built = rust.Tokenizer(models.BPE(vocab, list(merges), **options))
    spaces = {
        "llama": [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")],
        "gemma": [normalizers.Replace(" ", "▁")],
    }
    if steps := [*([normalizers.NFC()] if spec.nfc else []), *spaces.get(spec.kind, [])]:
        built.normalizer = normalizers.Sequence(steps)
    if spec.kind == "gemma":
        built.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    elif spec.kind != "llama":
        built.pre_tokenizer = _cut(spec.kind)
    joined = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    strip = [decoders.Strip(" ", 1, 0)] if spec.kind == "llama" else []
    built.decoder = decoders.Sequence([*joined, *strip]) if is_metaspace else decoders.ByteLevel()
    for token in (*spec.first, *spec.last):
        built.add_special_tokens([rust.AddedToken(token, normalized=False, rstrip=token in spec.rstrip)])
    ids = {token: built.token_to_id(token) for token in (*spec.first, *spec.last)}
    after = [] if is_metaspace else [processors.ByteLevel(trim_offsets=False)]
    if spec.around:
        pairs = [(token, ids[token]) for token in spec.around.split() if token != "$A"]
        after.append(processors.TemplateProcessing(single=spec.around, special_tokens=pairs))
    if after:
        built.post_processor = processors.Sequence(after)
    return built


def write(folder, name):
    """Writes the files of a family to a new directory, without weights; gives it."""
    spec, folder = FAMILIES[name], folder / name.replace(" ", "_")
    built = tokenizer(spec)

    def with_ids(keys):
        def ids(value):
            return list(map(built.token_to_id, value)) if isinstance(value, list) else built.token_to_id(value)

        return {key: ids(value) if key.endswith("_token_id") else value for key, value in keys.items()}

    size = built.get_vocab_size(with_added_tokens=True)
    decoder = {
        str(built.token_to_id(token)): {
            "content": token, "lstrip": False, "normalized": False, "rstrip": token in spec.rstrip,
            "single_word": False, "special": True,
        }
        for token in (*spec.first, *spec.last)
    }  # fmt: skip
    folder.mkdir()
    built.save(str(folder / "tokenizer.json"))
    settings = {"added_tokens_decoder": decoder, "tokenizer_class": spec.tokenizer_class, "model_max_length": 1024}
    settings |= spec.named | ({} if spec.template is None else {"chat_template": spec.template})
    special = {key: value for key, value in spec.named.items() if key.endswith("_token") and value is not None}
    config = {"model_type": spec.model_type, "vocab_size": size + spec.rows, **SIZES, **with_ids(spec.config)}
    files = {
        "tokenizer_config.json": settings, "special_tokens_map.json": special, "config.json": config,
        "generation_config.json": None if spec.generation is None else with_ids(spec.generation),
    }  # fmt: skip
    for file, keys in files.items():
        if keys is not None:
            (folder / file).write_text(json.dumps(keys, ensure_ascii=False), "utf-8")
    return folder
