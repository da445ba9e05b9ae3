"""What the files beside a vocabulary say of it: its class, its added and special tokens, its options.

`transformers` reads them in this order, and so do we:

- added tokens: `added_tokens_decoder` of tokenizer_config.json, whose flags count before those of tokenizer.json;
  without it `added_tokens.json`, whose flags count after them;
- special tokens: tokenizer_config.json; special_tokens_map.json counts before it where there is no
  `added_tokens_decoder`; then what the class has of its own;
- the class: `tokenizer_class` of tokenizer_config.json, of config.json, `model_type` of config.json;
- BOS and EOS that none of these names: config.json.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxpt.data.tokenizers import added_tokens, vocabulary_files
from jaxpt.data.tokenizers.added_tokens import AddedToken
from jaxpt.data.tokenizers.base import BART_TOKENS, BERT_TOKENS, END_OF_TEXT, SPECIALS
from jaxpt.errors import UserError, shown

MAP, ADDED_TOKENS, DECODER = "special_tokens_map.json", "added_tokens.json", "added_tokens_decoder"
EXTRA = ("extra_special_tokens", "additional_special_tokens")
"""Keys of special tokens without a part: lists, or mappings with a name for each."""

_FAIRSEQ = BART_TOKENS | {"sep": "</s>", "cls": "<s>"}
_GPT2 = {"bos": END_OF_TEXT, "eos": END_OF_TEXT}
_LLAMA = {"unk": "<unk>", "bos": "<s>", "eos": "</s>"}
_GEMMA = {"pad": "<pad>", "eos": "<eos>", "bos": "<bos>", "unk": "<unk>", "mask": "<mask>"}
_QWEN = {"eos": END_OF_TEXT, "unk": END_OF_TEXT, "pad": END_OF_TEXT}
_T5 = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
CLASS_SPECIALS: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(("bert", "distilbert", "electra"), BERT_TOKENS),
    **dict.fromkeys(("roberta", "bart", "xlmroberta", "camembert", "mbart", "longformer", "led"), _FAIRSEQ),
    **dict.fromkeys(("gpt2", "opt"), _GPT2),
    **dict.fromkeys(("llama", "mistral", "codellama"), _LLAMA),
    **dict.fromkeys(("t5", "mt5", "umt5"), _T5),
    "openaigpt": {"unk": "<unk>"},
    "gemma": _GEMMA,
    "qwen2": _QWEN,
    "gptneox": _GPT2 | {"unk": END_OF_TEXT, "pad": "<|padding|>"},
    "albert": BERT_TOKENS | {"bos": "[CLS]", "eos": "[SEP]", "unk": "<unk>", "pad": "<pad>"},
    "debertav2": BERT_TOKENS | {"bos": "[CLS]", "eos": "[SEP]"},
    "xlnet": _FAIRSEQ | {"sep": "<sep>", "cls": "<cls>"},
}
"""Special tokens that a class of `transformers` has where no file names others."""

WITHOUT_CLASS = (
    "mistral", "mixtral", "modernbert", "modernbert-decoder", "olmo2", "olmo3", "phi3", "stablelm", "umt5",
)  # fmt: skip
"""Model types whose tokenizer.json `transformers` takes as it is, whichever class tokenizer_config.json names."""
MODEL_TYPE = "origin_model_type"
"""Key of a run's tokenizer_config.json: `model_type` of the config.json that was beside it, where it changes ids."""
FLAGS = (
    "do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space", "keep_accents", "remove_space",
    "split_by_punct", "legacy", "add_bos_token", "add_eos_token", "clean_up_tokenization_spaces",
)  # fmt: skip
"""Options of tokenizer_config.json that are true or false."""
CARRIED = (
    "add_bos_token", "add_eos_token", "clean_up_tokenization_spaces", "model_max_length", "padding_side", "src_lang",
    "tgt_lang", "truncation_side",
)  # fmt: skip
"""Keys that change no ids of a text here; they are kept, and written by export."""
OPTIONS: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "": {"split_special_tokens": (False,)},
    "wordpiece": {
        "do_basic_tokenize": (True,), "never_split": (None, []), "wordpieces_prefix": ("##",), "clean_text": (True,),
    },
    "sentencepiece": {"sp_model_kwargs": (None, {})},
    "debertav2": {"vocab_type": ("spm",), "split_by_punct": (False,)},
}  # fmt: skip
"""{kind or class: {option of tokenizer_config.json that changes ids: the values that are supported}}; "" are all. Other
options are honoured where a vocabulary is read. A tokenizer.json has in itself what such options say."""


@dataclasses.dataclass(frozen=True)
class Declared:
    """What the files of a directory say.

    Attributes:
      folder: the directory.
      settings: tokenizer_config.json.
      tokenizer_class: as it is written; "" where no file says it.
      model_type: config.json's; "" where there is none.
      added: added tokens; first those that have an id, in its order.
      specials: {"bos": "<s>", "pad": None, …}: the special tokens that files name, None where they say that there is
        none.
      model_ids: {"bos": 1, "eos": 2}: config.json's.
      carried: keys of tokenizer_config.json that are kept as they are: `CARRIED`, and special tokens without a part.
    """

    folder: Path
    settings: Mapping[str, Any]
    tokenizer_class: str
    model_type: str
    added: tuple[AddedToken, ...]
    specials: Mapping[str, AddedToken | None]
    model_ids: Mapping[str, int]
    carried: Mapping[str, Any]

    @property
    def specials_of_class(self) -> Mapping[str, str]:
        """Those of the class, where files name no others."""
        return CLASS_SPECIALS.get(class_name(self.tokenizer_class or self.model_type), {})

    @property
    def effective(self) -> dict[str, Any]:
        """tokenizer_config.json with what other files say in its place: the class, special tokens as texts."""
        options = {name: self.flag(name) for name in FLAGS if name in self.settings}
        named = {f"{part}_token": token and token.content for part, token in self.specials.items()}
        of_class = {"tokenizer_class": self.tokenizer_class} if self.tokenizer_class else {}
        further = {"model_type": self.model_type, "special_tokens": self.special_tokens}
        return {**self.settings, **options, **named, **of_class, **further}

    @property
    def special_tokens(self) -> list[str] | None:
        """The special tokens of all parts, as files or else the class name them; None where neither does."""
        named: dict[str, str | None] = {**self.specials_of_class}
        named |= {part: token and token.content for part, token in self.specials.items()}
        return list(dict.fromkeys(filter(None, named.values()))) if named else None

    def flag(self, name: str) -> bool | None:
        """An option of tokenizer_config.json that is true or false; None where it is null or missing.

        Raises:
          UserError: it is neither.
        """
        value = self.settings.get(name)
        if value is not None and not isinstance(value, bool):
            raise UserError(f"{self.folder / vocabulary_files.SETTINGS}: {name} is {shown(value)}; wants true or false")
        return value


def read(folder: Path, model_dir: Path | None = None) -> Declared:
    """Reads what the files of a directory say.

    Args:
      folder: a directory, with or without these files.
      model_dir: the model's directory, whose config.json counts where `folder` has none.

    Raises:
      UserError: one of them is damaged, or says what no such file says.
    """
    settings = vocabulary_files.read_settings(folder)
    is_beside = model_dir is None or (folder / "config.json").is_file()
    model = vocabulary_files.read_settings(folder if is_beside else model_dir, "config.json")
    name = settings.get("tokenizer_class") or model.get("tokenizer_class") or ""
    model_type = model.get("model_type") or settings.get(MODEL_TYPE) or ""
    if not isinstance(name, str) or not isinstance(model_type, str):
        raise UserError(f"{folder}: tokenizer_class {shown(name)}, model_type {shown(model_type)}: wants names")
    special_map = {} if DECODER in settings else vocabulary_files.read_settings(folder, MAP)
    specials, extra = _specials(folder, settings | special_map), _extra(folder, settings | special_map)
    listed = [token for key in EXTRA if key in extra for token in _tokens(extra[key])]
    special = {token.content for token in (*specials.values(), *listed) if token is not None}
    added = _with_ids(folder, settings, special)
    by_name = {token.content: token for token in added}
    specials = {part: token and by_name.get(token.content, token) for part, token in specials.items()}
    listed = [token for token in listed if token.content not in by_name]
    model_ids = {part: i for part in ("bos", "eos") if isinstance(i := model.get(f"{part}_token_id"), int)}
    carried = {key: settings[key] for key in CARRIED if key in settings} | _named(extra)
    return Declared(folder, settings, name, model_type, (*added, *listed), specials, model_ids, carried)


def class_name(name: str) -> str:
    """The class of a tokenizer in short.

    Example:
      >>> class_name("XLMRobertaTokenizerFast"), class_name("deberta-v2"), class_name("PreTrainedTokenizerFast")
      ('xlmroberta', 'debertav2', '')
    """
    short = re.sub("Tokenizer(Fast)?$", "", name).lower().replace("-", "").replace("_", "")
    return "" if short in ("pretrained", "tokenizersbackend", "python") else short


def check_options(declared: Declared, kind: str | None) -> None:
    """Raises UserError where tokenizer_config.json has an option that is not supported.

    Args:
      declared: what the files say.
      kind: the vocabulary's; None of a tokenizer.json.
    """
    of_class = class_name(declared.tokenizer_class or declared.model_type)
    for scope in ("",) if kind is None else ("", kind, of_class):
        for name, supported in OPTIONS.get(scope, {}).items():
            if name in declared.settings and declared.settings[name] not in supported:
                wants = " or ".join(map(shown, supported))
                file = declared.folder / vocabulary_files.SETTINGS
                raise UserError(f"{file}: {name}: {shown(declared.settings[name])} is not supported, only {wants}")


def _specials(folder: Path, settings: Mapping[str, Any]) -> dict[str, AddedToken | None]:
    """Special tokens by their part; null and what is not named are told apart."""
    where = folder / vocabulary_files.SETTINGS
    tokens = {part: settings[f"{part}_token"] for part in SPECIALS if f"{part}_token" in settings}
    return {
        part: None if token is None else added_tokens.parse(token, f"{where}: {part}_token", special=True)
        for part, token in tokens.items()
    }


def _extra(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Special tokens without a part as tokenizer_config.json has them, sentinels left out: `EXTRA`, and keys of their
    own, such as `image_token`."""
    extra: dict[str, Any] = {}
    for key, value in settings.items():
        where = f"{folder / vocabulary_files.SETTINGS}: {key}"
        if key in EXTRA and isinstance(value, str | int | float):
            raise UserError(f"{where} is {shown(value)}; wants a list of tokens")
        if key in EXTRA and isinstance(value, Mapping):
            extra[key] = {name: added_tokens.parse(token, where, special=True) for name, token in value.items()}
        elif key in EXTRA and value:
            tokens = [added_tokens.parse(token, where, special=True) for token in value]
            extra[key] = [token for token in tokens if not added_tokens.is_sentinel(token.content)]
        elif key.endswith("_token") and key.removesuffix("_token") not in SPECIALS and _is_token(value):
            extra[key] = added_tokens.parse(value, where, special=True)
    return extra


def _is_token(value: Any) -> bool:
    return "content" in value if isinstance(value, Mapping) else isinstance(value, str) and value != ""


def _tokens(tree: Any) -> Iterator[AddedToken]:
    """The tokens of a list or mapping."""
    yield from tree.values() if isinstance(tree, Mapping) else tree


def _named(tree: Any) -> Any:
    """Tokens, with the lists and mappings that they stand in, as tokenizer_config.json has them."""
    if isinstance(tree, AddedToken):
        return tree.named()
    if isinstance(tree, list):
        return [_named(token) for token in tree]
    return {name: _named(token) for name, token in tree.items()}


def _with_ids(folder: Path, settings: Mapping[str, Any], special: set[str]) -> list[AddedToken]:
    """Tokens of `added_tokens_decoder`, else of added_tokens.json, in the order of their ids."""
    if DECODER in settings:
        where, entries = folder / vocabulary_files.SETTINGS, settings[DECODER]
        if not isinstance(entries, Mapping) or not all(str(i).isdecimal() for i in entries):
            raise UserError(f"{where}: {DECODER} is {shown(entries)}; wants {{id: token}}")
        tokens = [added_tokens.parse(token, f"{where}: {DECODER}: {i}", int(i)) for i, token in entries.items()]
        tokens = [dataclasses.replace(token, special=token.special or token.content in special) for token in tokens]
    else:
        where, entries = folder / ADDED_TOKENS, vocabulary_files.read_settings(folder, ADDED_TOKENS)
        if wrong := next((t for t, i in entries.items() if not isinstance(i, int) or isinstance(i, bool)), None):
            raise UserError(f"{where}: {shown(wrong)}: {shown(entries[wrong])} is no id; wants {{token: id}}")
        rust = vocabulary_files.read_settings(folder, "tokenizer.json") if entries else {}
        listed = {token["content"]: added_tokens.parse(token, ADDED_TOKENS) for token in rust.get("added_tokens", ())}
        tokens = [
            dataclasses.replace(listed[token], id=i) if token in listed
            else AddedToken(token, i, normalized=token not in special, special=token in special)
            for token, i in entries.items()
        ]  # fmt: skip
    tokens = [token for token in tokens if not added_tokens.is_sentinel(token.content)]
    return sorted(tokens, key=lambda token: token.id or 0)
