"""What an objective asks of the data: preprocessors by their names, and the ids of a vocabulary. No TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The ids that objectives need to know of a vocabulary; None where it has no such token."""

    size: int
    pad: int = 0
    unk: int | None = None
    bos: int | None = None
    eos: int | None = None
    eod: int | None = None
    """The end of a document, where that is another token than the end of a text (XLNet)."""
    cls: int | None = None
    sep: int | None = None
    mask: int | None = None
    sentinels: int = 0
    """How many sentinels; the first is the last id before the added tokens, the next the one before it, …"""
    languages: tuple[int, ...] = ()
    """The tokens of the recipe's languages."""
    added: tuple[tuple[str, int], ...] = ()
    """(token, id) of `data.tokenizer.add_tokens`."""
    behind: int = 0
    """How many of these are new: the last ids."""
    sentinels_end: int | None = None
    """The id behind the sentinels, if others than `added` follow them; None: they are the last before those."""
    spelled_from: int | None = None
    """The first of 512 ids that spell words which the vocabulary does not have: 256 for the first byte of a word, 256
    for the others (`spelled_words`)."""
    is_bos_of_decoders: bool = True
    """False where no decoder's data have BOS: <S> of whole words is for ELMo."""
    hides_word_starts: bool = False
    """Whether the text of a piece does not show that it starts a word, though the vocabulary says so ("▁the" of a
    tokenizer.json). Runs from before the vocabulary was asked took the words of such a text for one."""

    @property
    def decoder_bos(self) -> int | None:
        """BOS where decoders read it before a text."""
        return self.bos if self.is_bos_of_decoders else None

    @property
    def word_version(self) -> int:
        """The version of calls that need to know where words start."""
        return 2 if self.hides_word_starts else 1

    @property
    def sentinel_ids(self) -> range:
        """The ids of the sentinels; the last of them is the first sentinel."""
        end = self.size - self.behind if self.sentinels_end is None else self.sentinels_end
        return range(end - self.sentinels, end)

    @property
    def first_sentinel(self) -> int:
        """The id of `<extra_id_0>`, where there are sentinels: that of the last piece."""
        return self.sentinel_ids.stop - 1


class _Module:
    """`_Module("masked_lm").mask` is "masked_lm.mask"."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, function: str) -> str:
        return f"{self._name}.{_public(function)}"


class _Package:
    """`_Package().masked_lm.mask` is "masked_lm.mask"."""

    def __getattr__(self, module: str) -> _Module:
        return _Module(_public(module))


def _public(name: str) -> str:
    if name.startswith("_"):  # what `copy`, `pickle` and `inspect` ask any object for
        raise AttributeError(name)
    return name


# The real modules need TensorFlow: editors see them, and at run time there are the names of their functions.
if TYPE_CHECKING:
    from jaxpt.data import preprocessors as preprocessors
else:
    preprocessors = _Package()


@dataclasses.dataclass(frozen=True)
class Call:
    """A preprocessor by name, with its arguments: `Call(preprocessors.span_corruption.corrupt, {"density": 0.15})`.

    The name is `module.function` under `jaxpt.data.preprocessors`, or a full dotted path to anyone's own, as a string.
    """

    name: str
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    uses: tuple[str, ...] = ()
    """Names of functions that it is given by name: records made by other code are other records."""
    version: int = 1
    """More than 1 where the same arguments gave something else before; a run from then is not resumed with it."""


@dataclasses.dataclass(frozen=True)
class Transforms:
    """The two halves of a SeqIO task: before and after `seqio.CacheDatasetPlaceholder`.

    Offline transforms turn documents ({"text", "origin"}) into records, once: any number from any number, no random
    draw that is not frozen in the seed. Online transforms run in every epoch and are strictly one-to-one: record +
    stateless seed → the batch's features.
    """

    offline: tuple[Call, ...]
    online: tuple[Call, ...]
    corpus: Call | None = None
    """From all records of a split together to those that are kept, once: counts of a whole corpus. A function of
    (store, vocabulary size, …) → `jaxpt.data.records.shard.Batches`."""
