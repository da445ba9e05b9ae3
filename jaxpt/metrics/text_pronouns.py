"""T5's formats of the Winograd sets: a marked pronoun as input, what it refers to as text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxpt.errors import UserError

Row = Mapping[str, Any]

PRONOUNS = {"he", "she", "they", "it", "her", "his", "their", "them", "him"}
DETERMINERS = {
    "a", "an", "few", "her", "his", "each", "every", "many", "much", "my", "our", "some", "that", "the", "their",
    "these", "this", "those", "which", "whose", "your",
}  # fmt: skip
_PONY = (
    "The boy continued to whip the pony , and eventually the pony threw him over. John laughed out quite loud. "
    '"Good for him," he said. '
)
_PEBBLE = (
    "When they had eventually calmed down a bit , and had gotten home, Mr. Farley put the magic pebble in an iron "
    "safe . Some day they might want to use it , but really for now, what more could they wish for?"
)
_IRREGULAR = {
    _PONY: _PONY.replace('for him," he said. ', 'for X ," he said.'),
    _PEBBLE: _PEBBLE.replace("use it ,", "use X ,"),
}
"""Texts of WSC whose index of the pronoun is wrong, with X for the pronoun."""


def wsc_inputs(row: Row) -> str:
    """SuperGLUE's WSC: the pronoun between asterisks.

    Raises:
      UserError: the pronoun is not where the row says.

    Example:
      >>> wsc_inputs({"text": "Ann asked Tom if he came .", "span2_text": "he", "span2_index": 4})
      'wsc: Ann asked Tom if *he* came .'
    """
    text, pronoun, index = row["text"], row["span2_text"], int(row["span2_index"])
    if text in _IRREGULAR:
        blank = _IRREGULAR[text]
    else:
        words = text.split(" ")
        if not 0 < index < len(words) or words[index] != pronoun:
            raise UserError(f"wsc: word {index} (from 0) of {text!r} is not {pronoun!r}, which span2_index says")
        blank = " ".join([*words[:index], "X", *words[index + 1 :]])
    return "wsc: " + blank.replace(" X ", f" *{pronoun}* ")


def marked_wsc_inputs(row: Row) -> str:
    """WSC as a task with labels: the noun between *, the pronoun between #.

    Example:
      >>> row = {"text": "This is a test sentence .", "span1_text": "test", "span1_index": 3, "span2_text": "This"}
      >>> marked_wsc_inputs(row | {"span2_index": 0})
      'wsc text: # This # is a * test * sentence .'
    """
    first, second = int(row["span1_index"]), int(row["span2_index"])
    text = _mark(row["text"], row["span1_text"], first, "*")
    return "wsc text: " + _mark(text, row["span2_text"], second + 2 * (first < second), "#")


def dpr_inputs(row: Row) -> str:
    """Definite pronoun resolution: the first occurrence of the pronoun between asterisks.

    Example:
      >>> dpr_inputs({"sentence": "Bob asked Tom if he can lend money.", "pronoun": "he"})
      'wsc: Bob asked Tom if *he* can lend money.'
    """
    return "wsc: " + re.sub(rf" ({row['pronoun']})( |\.|,)", r" *\1*\2", row["sentence"], count=1)


def names_referent(text: str, referent: str) -> int:
    """1 if a generated text names the referent, 0 if not, −1 for a text without words.

    Case and determiners do not count. One may have more words than the other ("fuzzy bunny" and "bunny"), but no
    apostrophe that the other has not ("Bob's hat" and "Bob").

    Example:
      >>> names_referent("the fuzzy bunny", "Bunny"), names_referent("Bob", "Bob's hat"), names_referent("the", "Bob")
      (1, 0, -1)
    """
    text, referent = _content_words(text), _content_words(referent)
    if not text:
        return -1
    if ("'" in text) != ("'" in referent):
        return 0
    text_words, referent_words = set(text.split(" ")), set(referent.split(" "))
    return int(text_words <= referent_words or referent_words <= text_words)


def wnli_inputs(row: Row) -> str:
    """GLUE's WNLI as WSC: the premise with its pronoun between asterisks, found by comparison with the hypothesis.

    Example:
      >>> wnli_inputs({"sentence1": "The fish ate the worm. It was tasty.", "sentence2": "The worm was tasty."})
      'wsc: The fish ate the worm. *It* was tasty.'
    """
    words = row["sentence1"].split(" ")
    index, _ = _wnli_match(row)
    word = words[index]
    words[index] = f"*{word[:-1]}* {word[-1]}" if word[-1] in ".,!?" else f"*{word}*"
    return f"wsc: {' '.join(words)}"


def wnli_referent(row: Row) -> str:
    """What stands in WNLI's hypothesis for the pronoun of the premise.

    Example:
      >>> wnli_referent({"sentence1": "The fish ate the worm. It was tasty.", "sentence2": "The worm was tasty."})
      'The worm'
    """
    hypothesis, (_, candidate) = row["sentence2"], _wnli_match(row)
    words = candidate.split(" ")
    words = words[max((words.index(article) for article in ("a", "an", "the") if article in words), default=0) :]
    match = re.search(" ".join(rf"{re.escape(word)}(?:\.|,|\?|\!)?" for word in words), hypothesis, re.IGNORECASE)
    if not match:
        how = "there must be one space between words, and none before punctuation"
        raise UserError(f"wnli: {candidate!r} is not in the hypothesis {hypothesis!r}; {how}")
    referent = re.sub(r"[.,!?]$", "", match[0])
    return re.sub(r"('|'s)$", "", referent)


def _mark(text: str, span: str, index: int, mark: str) -> str:
    """Puts a mark on both sides of a span that begins at a word; nothing where it does not."""
    pattern = rf"^((?:[^\t\n\f\r ]+[\t\n\f\r ]){{{index}}})({re.escape(span)})"
    return re.sub(pattern, lambda match: f"{match[1]}{mark} {match[2]} {mark}", text)


def _content_words(text: str) -> str:
    return " ".join(word for word in text.strip().lower().split(" ") if word not in DETERMINERS)


def _wnli_match(row: Row) -> tuple[int, str]:
    """(index of the pronoun in the premise, what the hypothesis has in its place): of the pronoun with most words
    before and after it that are in the hypothesis too."""
    premise, hypothesis = _clean_words(row["sentence1"]), _clean_words(row["sentence2"])
    matches = []
    for index, word in enumerate(premise):
        if word in PRONOUNS:
            before, after = premise[:index], premise[index + 1 :]
            left, right = _common(before[::-1], hypothesis[::-1]), _common(after, hypothesis)
            context = before[len(before) - left :], after[:right]
            matches.append((left + right, index, _between(*context, hypothesis) if left + right else ""))
    if not matches:
        raise UserError(f"wnli: the premise {row['sentence1']!r} has no pronoun")
    _, index, candidate = max(matches, key=lambda match: match[0])
    return index, candidate


def _clean_words(sentence: str) -> list[str]:
    words = (re.sub(r"(\.|,|\?|\!)$", "", word) for word in sentence.strip().lower().split(" "))
    return [word for word in words if word]


def _common(words: Sequence[str], hypothesis: Sequence[str]) -> int:
    """How many of the first words stand together in the hypothesis."""
    text = " ".join(hypothesis)
    return next((i for i in range(len(words)) if " ".join(words[: i + 1]) not in text), len(words))


def _between(before: list[str], after: list[str], hypothesis: Sequence[str]) -> str:
    """What the hypothesis has between two contexts; where it begins or ends there, before or after one of them."""
    text, before, after = " ".join(hypothesis), [*map(re.escape, before)], [*map(re.escape, after)]
    for pattern in ([*before, "(.+)", *after], ["^(.+)", *after], [*before, "(.+)$"]):
        if match := re.search(" ".join(pattern), text):
            return match[1]
    return ""
