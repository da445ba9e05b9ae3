"""Scripts that are written without spaces between words: in them each piece counts as a word, as in fairseq's mBART."""

from __future__ import annotations

import functools
import re

_UNSPACED = (
    (0x0E00, 0x109F),  # Thai, Lao, Tibetan, Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x19FF),  # Tai Le, New Tai Lue, Khmer symbols
    (0x1A20, 0x1AAF),  # Tai Tham
    (0x2E80, 0x312F),  # radicals, CJK punctuation, Hiragana, Katakana, Bopomofo
    (0x31A0, 0x31FF),  # Bopomofo and Katakana, extended; strokes
    (0x3400, 0x9FFF),  # Han
    (0xA980, 0xA9FF),  # Javanese, Myanmar
    (0xAA60, 0xAADF),  # Myanmar, Tai Viet
    (0xF900, 0xFAFF),  # Han
    (0xFF00, 0xFF9F),  # wide forms, halfwidth Katakana
    (0x20000, 0x3FFFF),  # Han
)
_LEADS = ("<0x", *map(chr, range(0xE0, 0xF5)))
"""How pieces begin that spell out bytes of three or four in a character."""


def is_unspaced(text: str) -> bool:
    """Whether a text begins with a character of such a script.

    Args:
      text: any text; the empty one does not.

    Example:
      >>> [is_unspaced(text) for text in ("日本", "カナ", "ไทย", "。", "한국", "word", "")]
      [True, True, True, True, False, False, False]
    """
    return bool(text) and any(first <= ord(text[0]) <= last for first, last in _UNSPACED)


def may_spell_bytes(piece: str) -> bool:
    """Whether a piece of a vocabulary may stand for bytes from the start of a character on, not for its own letters.

    "é" of a byte-level vocabulary is either the letter or the byte E9: whoever asks has to know which.
    """
    return piece.startswith(_LEADS)


def is_unspaced_bytes(piece: str) -> bool:
    """Whether a piece that spells bytes begins with those of a character of such a script alone.

    A first byte that other scripts have as well (E0: Thai and Devanagari) is not enough.

    Args:
      piece: "<0xE6>" (SentencePiece's byte fallback), or as GPT-2 spells bytes, such as "æĹ".

    Example:
      >>> [is_unspaced_bytes(piece) for piece in ("<0xE6>", "æĹ", "à¸", "à", "à¤", "ìĿ")]
      [True, True, True, False, False, False]
    """
    spelled = [*(fallback_byte(piece) or (_byte_of().get(c, 0) for c in piece))]
    size = 4 if spelled[0] >= 0xF0 else 3
    # The first and the last of the characters that these bytes may begin.
    whole = (bytes([*spelled, *[more] * size][:size]) for more in (0x80, 0xBF))
    try:
        return all(is_unspaced(character.decode()) for character in whole)
    except UnicodeDecodeError:
        return False


def fallback_byte(piece: str) -> bytes | None:
    """The byte that a piece of SentencePiece's byte fallback stands for; None for other pieces.

    Example:
      >>> fallback_byte("<0xE6>"), fallback_byte("word")
      (b'\\xe6', None)
    """
    match = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", piece)
    return match and bytes.fromhex(match[1])


def gpt2_bytes(piece: str) -> bytes:
    """The bytes of a byte-level piece. One with letters that GPT-2 has for no byte, as added tokens have, is text.

    Example:
      >>> gpt2_bytes("Ġcafé"), gpt2_bytes("a b")
      (b' caf\\xe9', b'a b')
    """
    spelled = [_byte_of().get(letter) for letter in piece]
    return piece.encode() if None in spelled else bytes(spelled)


@functools.cache
def _byte_of() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others follow from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
