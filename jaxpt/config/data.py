"""Settings of the data: where text or labelled rows come from, the vocabulary, and the shape of a batch."""

from __future__ import annotations

import importlib
import json
from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from jaxpt.config.fields import Frozen, NonNegativeInt, PositiveInt, content, execution, unaffected
from jaxpt.config.kinds import kinds, nearest, resolve
from jaxpt.runtime import plugins

_TOKENIZERS = "jaxpt.data.tokenizers"


def tokenizer_kinds() -> list[str]:
    """The kinds of tokenizers that jaxpt has."""
    return kinds(_TOKENIZERS, importlib.import_module(f"{_TOKENIZERS}.base").Tokenizer)


def _tokenizer(value: str) -> str:
    """A kind of tokenizer of which there is a class, where its module may be imported."""
    if plugins.are_unread() and "." in value:
        return value
    resolve(value, _TOKENIZERS, importlib.import_module(f"{_TOKENIZERS}.base").Tokenizer, "data.tokenizer")
    return value


def _added(tokens: tuple[str, ...]) -> tuple[str, ...]:
    """Tokens to add: each once, none empty."""
    if blank := [token for token in tokens if not token or token != token.strip()]:
        raise ValueError(f"wants tokens without white space around them, got {json.dumps(blank[0])}")
    if twice := [token for token in tokens if tokens.count(token) > 1]:
        raise ValueError(f"has {json.dumps(twice[0])} twice")
    return tokens


class TokenizerConfig(Frozen):
    """Which vocabulary, and how to train one when no path is given."""

    kind: Annotated[str, AfterValidator(_tokenizer)]
    """`sentencepiece` (unigram: T5), `wordpiece` (BERT), `bpe` (byte-level: GPT-2), `words` (whole ones) or
    `spelled_words` (whole ones, and bytes of others: ELMo). A dotted path names a module of one's own with a subclass
    of `jaxpt.data.tokenizers.base.Tokenizer`."""
    path: str | None = content(None)
    """A `.model`, `vocab.txt`, `tokenizer.json`, or a directory with one of these or `vocab.json` + `merges.txt`.
    Or a model of the hub: `OWNER/NAME@REVISION`."""
    vocab_size: PositiveInt | None = None
    """Ids to train, special ones included, `add_tokens` aside; `model.vocab_size` without these by default."""
    add_tokens: Annotated[tuple[str, ...], AfterValidator(_added)] = ()
    """Further tokens, such as `<|im_start|>`, that are read as such in every text. One that the vocabulary has keeps
    its id; the others get the next ids, and `model.vocab_size` grows where they do not fit. From `init_from.path` the
    model takes the rows that are there, and draws the new ones."""
    lowercase: bool = False
    """Fold case and strip accents before tokenizing (BERT uncased)."""
    extra_ids: NonNegativeInt | None = None
    """Sentinels at the end of a SentencePiece vocabulary; 100 by default (T5's)."""
    min_count: PositiveInt | None = None
    """Of `words` and `spelled_words`: one that occurs less often in the `characters` is unknown; 5 by default."""
    pre_tokenizer: Literal["bert", "whitespace"] | None = None
    """Of `words` and `spelled_words`: a text is cut at white space and around each mark of punctuation (`bert`), or at
    white space alone (`whitespace`: text whose words are parted already). By default as the vocabulary's directory
    says, else `bert`; of a vocabulary that is named this key counts."""
    characters: PositiveInt = 20_000_000
    """A vocabulary is trained on about the first so many characters of the training split."""

    @model_validator(mode="after")
    def _cuts_words(self) -> Self:
        if self.pre_tokenizer is not None and self.kind in ("sentencepiece", "wordpiece", "bpe"):
            raise ValueError(f"pre_tokenizer: is of the kinds words and spelled_words, not of {self.kind}; remove it")
        return self


SourceKind = Literal["auto", "builtin", "text", "jsonl", "parquet", "array_record", "tfds", "hf", "task", "batches"]

HF_SCHEME = "hf://"

_SOURCE_SCHEMA = {"anyOf": [{"enum": list(get_args(SourceKind))}, {"type": "string", "pattern": r"\."}]}


def _source(value: str) -> str:
    """A kind of source, or a dotted path; of one word only those that there are."""
    if "." not in value and value not in get_args(SourceKind):
        known = list(get_args(SourceKind))
        names = ", ".join(map(repr, known))
        raise ValueError(f"wants one of {names}, or a dotted path, got {json.dumps(value)}{nearest(value, known, '')}")
    return value


class SourceConfig(Frozen):
    """Where text comes from."""

    source: Annotated[str, AfterValidator(_source), WithJsonSchema(_SOURCE_SCHEMA)] = content("auto")
    """`builtin` (text that CPython ships), `text`, `jsonl`, `parquet`, `array_record`, `tfds`, `hf` or `task`; `auto`
    goes by the suffix of `path`, without a path it is `builtin`. `batches` are those that `jaxpt cache --batches` wrote
    into the directory `path`: a run needs no TensorFlow then. A dotted path names a module of one's own, whose
    `open_source(data)` returns a `jaxpt.data.sources.base.Source`."""
    # Records depend on the files' content.
    path: Annotated[str | tuple[str, ...] | None, unaffected("records")] = content(None)
    """Files; globs (`*/` is one directory, `**/` any number of them), `gs://` and `.gz` are fine. A directory stands
    for all files in it and below whose suffix says how to read them (all that are not hidden, where `source` says it).
    For `tfds` the data set's name. `hf://OWNER/NAME`, `hf://OWNER/NAME/CONFIGURATION`, each also with @REVISION, is a
    data set of the Hugging Face hub."""
    validation_path: Annotated[str | tuple[str, ...] | None, unaffected("records")] = content(None)
    """Files of the validation split; without them a fraction of the documents is held out, chosen by hash. For `tfds`
    and `hf` the name of the split; of a task's rows from `tfds` it is `validation` where the data set has it."""
    validation_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.02
    """Fraction of documents held out when there is no `validation_path`; of a task's rows, of each label."""
    train_rows: PositiveInt | None = None
    """Of a task: train on about so many rows, of each label its share, chosen by a hash; all by default."""
    test_path: Annotated[str | tuple[str, ...] | None, unaffected("records", "program")] = execution(None)
    """Of a task: files on which the best checkpoint is scored once, at the end."""
    test_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """Of a task: score it, beside the files of `test_path`, on this fraction of the rows of `path`, of each label. They
    are not trained on. With `train_rows` it makes a test set that is larger than the published one."""
    documents: Literal["line", "blank_line", "file"] = "line"
    """Text files: one document per line, documents parted by blank lines, or one document per file."""
    sentences: Literal["rule", "lines"] = "rule"
    """Where objectives of sentences cut a document: at line ends and by a rule of . ! ? and the like, or at line ends
    alone: text with a sentence a line, as BERT's and ALBERT's data creation takes it."""
    field: str = "text"
    """JSONL, Parquet and TFDS: the field that holds the text."""
    fields: tuple[str, str] | None = None
    """JSONL and Parquet: two fields, a text and its translation, for `objective.kind: translation_lm`. The built-in
    corpus has `code` and `en`: signatures of functions and what is said of them."""
    language: str | None = None
    """The text's language, as its token in the vocabulary is written (`de_DE`); `objective.kind: mbart` wants it."""
    task: str | None = None
    """Name of a registered SeqIO Task (`source: task`)."""
    modules: tuple[str, ...] = ()
    """Python modules to import first: they may register SeqIO Tasks."""
    task_cache: Annotated[str | None, unaffected("records")] = content(None)
    """Directory in which `seqio_cache_tasks` cached the task: it is read from there."""
    passes: PositiveInt = 1
    """Passes over a Task that concatenates, filters or draws, each run once, with a seed of its own (`seq2seq`)."""

    @model_validator(mode="after")
    def _scheme_names_the_source(self) -> Self:
        """hf://NAME is NAME of the source `hf`."""
        if isinstance(self.path, str) and self.path.startswith(HF_SCHEME):
            if self.source not in ("auto", "hf"):
                raise ValueError(f"path {self.path} is of the source hf, not of {self.source}; leave source out")
            # Before the class is in use; a validator of the input would make lists of YAML a mistake (strict types).
            object.__setattr__(self, "path", self.path.removeprefix(HF_SCHEME))
            object.__setattr__(self, "source", "hf")
            self.__pydantic_fields_set__.add("source")
        return self

    @property
    def has_test(self) -> bool:
        """True if a task is scored at the end on rows of its own."""
        return self.test_path is not None or self.test_fraction is not None


class MixtureTask(SourceConfig):
    """One of the tasks that `data.mixture` mixes."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]
    """How metrics and messages call it."""
    rate: Annotated[float, Field(gt=0)] | None = None
    """Its share of the rows, in any unit; on all tasks, or on none: then shares go by size. A row is an example, with
    `packing` several: the shorter a task's examples, the more of them it then gives. Of `task.kind: mixture` it is the
    share of the examples, packed or not."""


class DataConfig(SourceConfig):
    """Where the text comes from, and the shape of a batch."""

    mixture: tuple[MixtureTask, ...] = ()
    """Several tasks, instead of `path` or `task`: each with the keys of a source, a `name`, and possibly a `rate`. With
    `task.kind: mixture` the files of its tasks."""
    mixture_temperature: Annotated[float, Field(gt=0), unaffected("records")] = 1.0
    """Without rates, a task of n examples has the share min(n, cap)^(1/temperature); mT5: 3.33, that is 1/0.3. With
    `packing` n counts packed rows, but examples of `task.kind: mixture`."""
    mixture_cap: Annotated[PositiveInt | None, unaffected("records")] = None
    """Without rates, the most that counts of a task's size (T5: 2^19 … 2^21)."""
    # Records depend on the vocabulary's content, and on the length where an argument of a preprocessor has it.
    tokenizer: Annotated[TokenizerConfig, unaffected("records")]
    length: Annotated[PositiveInt, unaffected("records")] = 128
    """Tokens in an example (of the encoder's input for an encoder-decoder)."""
    batch_size: Annotated[PositiveInt, unaffected("records")] = 32
    """Rows in a step, over all devices and accumulation steps."""
    packing: Annotated[bool, unaffected("records")] = False
    """Pack several short records into a row, each as a segment; in validation too."""
    batch_examples: Annotated[PositiveInt | None, unaffected("records")] = None
    """With `packing`: each step has exactly so many examples of the shuffled training set, in `batch_size` rows; the
    last step of an epoch has what is left. Without it the number follows from what the rows hold."""
    cache_dir: str | None = execution(None)
    """Where prepared data is kept; `$XDG_CACHE_HOME/jaxpt` or `~/.cache/jaxpt` by default."""
    mirror: str | None = execution(None)
    """Where prepared records are looked for before they are made: a copy of `records` of another cache (https://, gs://)."""
    readers: NonNegativeInt = execution(0)
    """Threads that prepare batches; 0: one for each core, four at most."""

    @model_validator(mode="after")
    def _examples_are_packed(self) -> Self:
        if self.batch_examples is not None and not self.packing:
            raise ValueError("batch_examples wants packing: true; without it batch_size is the number of examples")
        return self

    @model_validator(mode="after")
    def _one_kind_of_source(self) -> Self:
        if not self.mixture:
            return self
        for key in ("path", "task", "validation_path", "test_path"):
            if getattr(self, key) is not None and self.source != "batches":
                raise ValueError(f"{key} belongs into the tasks of mixture, where there is a mixture")
        names = [task.name for task in self.mixture]
        if len(set(names)) < len(names):
            raise ValueError(f"mixture: two tasks have the name {max(names, key=names.count)!r}")
        if len({task.rate is None for task in self.mixture}) > 1:
            raise ValueError("mixture: wants a rate on every task, or on none (shares by size)")
        if self.mixture[0].rate is not None:
            for key, default in (("mixture_temperature", 1.0), ("mixture_cap", None)):
                if getattr(self, key) != default:
                    raise ValueError(f"{key}: does nothing where the tasks of mixture have a rate; leave out either")
        return self
