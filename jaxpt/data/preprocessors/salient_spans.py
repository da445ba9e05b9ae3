"""Salient span masking: sentences with one name or date left out, an example for each.

    inputs   nem: The mill burned down in _X_ .
    targets  May 1912

Papers: https://arxiv.org/abs/2002.08909, for T5 https://arxiv.org/abs/2002.08910
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

import numpy as np

from jaxpt.data._tf import numpy_call, seqio, tf
from jaxpt.data.preprocessors.documents import split_lines, split_sentences
from jaxpt.data.seqio_tasks import resolve

Finder = Callable[[str], list[tuple[int, int]]]

_MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
_DAY = r"\d{1,2}(?:st|nd|rd|th)?"
_DATES = re.compile(
    rf"\b(?:{_DAY} (?:of )?{_MONTH}(?:,? \d{{4}})?|{_MONTH}(?: {_DAY}\b)?(?:,? \d{{4}})?|1\d{{3}}s?|20\d{{2}}s?)\b"
)
_NAME = r"[A-Z](?:[^\W\d_]|['’-](?=[^\W\d_]))+"
_NAMES = re.compile(rf"\b{_NAME}(?: (?:(?:of|the|de|la|van|von) )*{_NAME})*\b")
_OPENERS = re.compile(
    "(?:An|And|As|At|But|By|For|From|He|Her|His|If|In|It|Its|On|She|That|The|Then|There|These|They|This|To|We|When) "
)


def dates_and_names(sentence: str) -> list[tuple[int, int]]:
    """Dates, years and capitalised names of a sentence, found by regular expressions.

    At the beginning one capitalised word is no name, and of several a common one is left out.

    Args:
      sentence: any text.

    Returns:
      [(first character, character after the last)], ascending; none overlaps another.

    Example:
      >>> text = "On 4 July 1912 the Duke of York saw Paris."
      >>> [text[a:b] for a, b in dates_and_names(text)]
      ['4 July 1912', 'Duke of York', 'Paris']
    """
    opener = _OPENERS.match(sentence)
    spans = [match.span() for match in _DATES.finditer(sentence)]
    for match in _NAMES.finditer(sentence, opener.end() if opener else 0):
        first, end = match.span()
        is_first_word = first == 0 and " " not in match.group()
        if not is_first_word and all(end <= a or b <= first for a, b in spans):
            spans.append((first, end))
    return sorted(spans)


def blanks(sentence: str, finder: Finder, prefix: str, blank: str) -> list[tuple[str, str]]:
    """A sentence with one of its spans left out, for each of them.

    Args:
      sentence: any text.
      finder: gives the spans.
      prefix: put before the sentence.
      blank: stands for the span.

    Returns:
      [(inputs, targets)].

    Example:
      >>> blanks("We left Paris in May.", dates_and_names, "nem: ", "_X_")
      [('nem: We left _X_ in May.', 'Paris'), ('nem: We left Paris in _X_.', 'May')]
    """
    return [(f"{prefix}{sentence[:a]}{blank}{sentence[b:]}", sentence[a:b]) for a, b in finder(sentence)]


def make(
    ds: tf.data.Dataset,
    vocabulary: seqio.Vocabulary,
    finder: str,
    prefix: str,
    blank: str,
    inputs_length: int,
    targets_length: int,
    eos: int,
    sentences: Literal["rule", "lines"] = "rule",
) -> tf.data.Dataset:
    """Examples of documents' sentences; those that do not fit are left out.

    Args:
      ds: documents.
      vocabulary: gives the ids.
      finder: name of the function that finds the spans: `salient_spans.dates_and_names`, or one's own, dotted.
      prefix: put before each sentence.
      blank: stands for the span.
      inputs_length: most tokens of the inputs, EOS included.
      targets_length: most tokens of the targets, EOS included.
      eos: id put after the inputs and after the targets.
      sentences: "lines": each line is a sentence.

    Returns:
      {"inputs": int32 [any], "targets": int32 [any], "origin": int64 [3] = (file, document, sentence)}.

    Raises:
      UserError: there is no finder of this name.

    Example:
      >>> ds = tf.data.Dataset.from_tensors({"text": "He saw Bo.", "origin": np.array([0, 0])})
      >>> settings = {"prefix": "", "blank": "_", "inputs_length": 99, "targets_length": 9, "eos": 1}
      >>> ds = make(ds, seqio.ByteVocabulary(), finder="salient_spans.dates_and_names", **settings)
      >>> [ex["targets"].tolist() for ex in ds.as_numpy_iterator()]  # B and o are 66 and 111, three ids before them
      [[69, 114, 1]]
    """
    find, room = resolve(finder), (inputs_length, targets_length)
    split = split_lines if sentences == "lines" else split_sentences

    def encode_all(texts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rows, numbers = [], []
        for number, sentence in enumerate(texts):
            for pair in blanks(sentence.decode(), find, prefix, blank):
                sides = [[*vocabulary.encode(text), eos] for text in pair]
                if all(len(side) <= most for side, most in zip(sides, room)):
                    rows += sides
                    numbers.append(number)
        flat = np.concatenate([np.zeros(0, np.int32), *(np.array(row, np.int32) for row in rows)])
        return flat, np.array([len(row) for row in rows], np.int64), np.array(numbers, np.int64)

    def examples(ex: dict[str, tf.Tensor]) -> tf.data.Dataset:
        types = [tf.TensorSpec([None], dtype) for dtype in (tf.int32, tf.int64, tf.int64)]
        flat, lengths, numbers = numpy_call(encode_all, [split(ex["text"])], types)
        sides = tf.RaggedTensor.from_row_lengths(flat, lengths, validate=False)
        document = tf.tile(tf.cast(ex["origin"], tf.int64)[None], [tf.size(numbers), 1])
        origin = tf.concat([document, numbers[:, None]], axis=1)
        return tf.data.Dataset.from_tensor_slices({"inputs": sides[::2], "targets": sides[1::2], "origin": origin})

    return ds.flat_map(examples)
