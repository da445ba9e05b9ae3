"""What each architecture does around its SentencePiece model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

from tokenizers import normalizers

from jaxpt.data.tokenizers import declared, vocabulary_files
from jaxpt.errors import UserError


@dataclasses.dataclass(frozen=True)
class Style:
    """What an architecture does around its SentencePiece model.

    T5 appends sentinels. ALBERT and XLNet make ``quotes'' plain and strip accents before they tokenize; ALBERT folds
    case. XLM-R has fairseq's ids: `<s> <pad> </s> <unk>` first, whatever the model has in their place, `<mask>` last.
    CamemBERT has four tokens before the model's own `<unk> <s> </s>`, of which the first is not used.
    DeBERTa v2 and v3 have `[MASK]` last.
    """

    name: str = "t5"
    tokenizer_class: str = "T5Tokenizer"
    file: str = "spiece.model"
    unk: int | None = 2
    """The id that this class of `transformers` gives to unknown pieces, whatever the model says; None: it is not used,
    as it has other steps than the model."""
    template: str = "$A </s>"
    """What the class puts around a text; it needs these tokens."""
    cleans: bool = False
    lowercase: bool = False
    keeps_accents: bool = False
    prefix: Literal["every", "first", "none"] = "every"
    """Of the texts between added tokens: which get the space that a model puts before a text. "first": the one that
    starts the text, if it has none."""
    first: tuple[str, ...] = ()
    """Instead of the model's first three pieces."""
    last: tuple[str, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether the ids are those of the model, sentinels aside."""
        return not (self.cleans or self.lowercase or self.first or self.last) and self.prefix == "every"

    @property
    def takes_sentinels(self) -> bool:
        """Whether sentinels are added where nobody says how many."""
        return self.name == "t5"

    def cleaning(self) -> Any:
        """The steps before the model's own normalizer, those of `transformers`; None where there are none."""
        quotes = [normalizers.Replace(mark, '"') for mark in ("``", "''")] if self.cleans else []
        accents = [normalizers.NFKD(), normalizers.StripAccents()] if self.cleans and not self.keeps_accents else []
        steps = [*quotes, *accents, *[normalizers.Lowercase()] * self.lowercase]
        return normalizers.Sequence(steps) if steps else None


PLAIN = Style()
STYLES = {
    "albert": Style("albert", "AlbertTokenizer", unk=1, template="[CLS] $A [SEP]", cleans=True, lowercase=True),
    "xlnet": Style("xlnet", "XLNetTokenizer", unk=0, template="$A <sep> <cls>", cleans=True),
    "xlmroberta": Style(
        "xlmroberta", "XLMRobertaTokenizer", "sentencepiece.bpe.model", unk=3, template="<s> $A </s>",
        first=("<s>", "<pad>", "</s>", "<unk>"), last=("<mask>",),
    ),
    "camembert": Style(
        "camembert", "CamembertTokenizer", "sentencepiece.bpe.model", unk=3, template="<s> $A </s>",
        first=("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"), last=("<mask>",),
    ),
    "debertav2": Style(
        "debertav2", "DebertaV2Tokenizer", "spm.model", unk=3, template="[CLS] $A [SEP]", last=("[MASK]",)
    ),
    "llama": Style("llama", "LlamaTokenizer", "tokenizer.model", unk=None, template=""),
}  # fmt: skip
# Classes that take the model's ids as they are, and what `transformers` says where it names no class of its own.
_PLAIN = {"", "t5", "mt5", "umt5", "bigbird", "rembert", "reformer", "gemma"}
XLM_R_STARTS = ["<unk>", "<s>", "</s>"]


def style_of(file: Path, settings: dict[str, Any], model_type: str | None) -> Style:
    """The style of a model's file.

    Args:
      file: its path; the name `sentencepiece.bpe.model` is XLM-R's alone.
      settings: tokenizer_config.json beside it.
      model_type: config.json's, where there is one, or that of the config.json that was there at the import.

    Returns:
      The style; `PLAIN` where nothing says otherwise.

    Raises:
      UserError: mBART's, whose language codes stand between the pieces and `<mask>`, or a class that is not known.
    """
    tokenizer_class = settings.get("tokenizer_class")
    saved_style = settings.get(vocabulary_files.STYLE)
    name = declared.class_name(saved_style or tokenizer_class or model_type or "")
    name = "llama" if name in ("codellama", "mistral", "mixtral", "phi3") else name
    where = file.parent / vocabulary_files.SETTINGS
    if name.startswith("mbart"):
        raise UserError(f"{file}: mBART's language codes are not known here; wants its tokenizer.json")
    has_first = file.name == STYLES["xlmroberta"].file  # a model whose class has other ids: XLM-R's, XGLM's, …
    if (tokenizer_class or has_first) and name not in STYLES.keys() | _PLAIN:
        raise UserError(
            f"{file}: the ids of a {tokenizer_class or model_type} may be others than the model's; wants its "
            "tokenizer.json"
        )
    is_xlm_r = has_first and name != "camembert"
    style = STYLES.get("xlmroberta" if is_xlm_r else name, PLAIN)
    if style.name == "llama":
        has_no_class = model_type in declared.WITHOUT_CLASS  # but one of all, with other defaults: Mistral, Phi
        if settings.get("add_prefix_space") is False and not has_no_class:
            return dataclasses.replace(style, prefix="none")
        legacy = saved_style is not None or has_no_class if settings.get("legacy") is None else settings["legacy"]
        style = dataclasses.replace(style, prefix="every" if legacy else "first")
    if settings.get("add_prefix_space") is False:
        raise UserError(f"{where}: add_prefix_space: false is not supported beside {file.name}, only true")
    if style.cleans or style.name == "debertav2":
        folds = settings.get("do_lower_case")
        style = dataclasses.replace(style, lowercase=style.lowercase if folds is None else folds)
    return dataclasses.replace(style, keeps_accents=bool(settings.get("keep_accents"))) if style.cleans else style
