"""The language of texts, as far as their letters tell it: metrics of text choose their tokenizer by it."""

from __future__ import annotations

import collections
import unicodedata
from collections.abc import Iterable

WITHOUT_SPACES = ("zh", "ja", "th", "lo", "km", "my", "bo")
"""Codes of languages that write no spaces between words."""
_OF_SCRIPT = {
    "CJK": "zh", "HIRAGANA": "ja", "KATAKANA": "ja", "HANGUL": "ko", "THAI": "th", "LAO": "lo", "KHMER": "km",
    "MYANMAR": "my", "TIBETAN": "bo", "LATIN": "en",
}  # fmt: skip
"""By the first word of a letter's name in Unicode."""
_ENOUGH = 20_000
"""Letters that are looked at."""


def language_of(texts: Iterable[str]) -> str:
    """A language that is written in the letters of most of these texts.

    Args:
      texts: references of a metric.

    Returns:
      Its code. Of Latin letters "en", of other alphabets with spaces "und" (undetermined). Without letters "en".

    Example:
      >>> language_of(["今日は雨です"]), language_of(["今天下雨"]), language_of(["Es regnet"]), language_of(["Дождь"])
      ('ja', 'zh', 'en', 'und')
    """
    counts: collections.Counter[str] = collections.Counter()
    left = _ENOUGH
    for text in texts:
        scripts = [unicodedata.name(letter, "?").split()[0] for letter in text[:left] if letter.isalpha()]
        counts.update(_OF_SCRIPT.get(script, "und") for script in scripts)
        if (left := left - len(scripts)) <= 0:
            break
    if counts["ja"] > 0.1 * counts["zh"]:  # Japanese is written in kanji and kana, Chinese has no kana
        counts["ja"] += counts.pop("zh", 0)
    return counts.most_common(1)[0][0] if counts else "en"


def primary(code: str) -> str:
    """The language of a code with a region or script.

    Example:
      >>> primary("zh-Hant"), primary("de_CH")
      ('zh', 'de')
    """
    return code.replace("_", "-").partition("-")[0].lower()
