"""Examples on a terminal in colour, and elsewhere with plain markers."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from jaxpt.report.batches import LEGEND, Shown, Span, Style

_COLOURS: dict[Style, str] = {
    "mask": "bold black on yellow",
    "random": "bold white on red",
    "kept": "bold black on green",
    "target": "bold black on cyan",
    "gone": "bold black on bright_yellow",
    "seam": "bold blue",
    "sentinel": "bold black on cyan",
    "special": "magenta",
    "context": "dim",
    "padding": "dim",
    "label": "bold blue",
}
_MARKS: dict[Style, tuple[str, str]] = {"context": ("~", "~"), "gone": ("«", "»")}


def show(title: str, line: str, examples: Sequence[Shown], console: Console | None = None) -> None:
    """Prints a header, examples under a rule each, then a legend of the styles that occur.

    Args:
      title: what they are examples of.
      line: how much text there is, and where it is from.
      examples: from `jaxpt.report.batches`.
      console: where to; standard output by default.
    """
    console = console or Console(highlight=False, emoji=False)
    plain = console.color_system is None or console.no_color
    console.print(Text(title, "bold"))
    console.print(Text(line), soft_wrap=True)
    for example in examples:
        console.print()
        console.print(Rule(Text(f"example {example.index}"), align="left"))
        console.print(Text("; ".join(f"{name}: {value}" for name, value in example.facts.items()), "dim"))
        for heading, spans in example.sections.items():
            if len(example.sections) > 1:
                console.print(Text(f"{heading}:", "bold"))
            console.print(as_text(spans, plain))
    used = {span.style for example in examples for spans in example.sections.values() for span in spans}
    if not used & {*LEGEND}:
        return
    console.print()
    console.print(Rule(Text("legend"), align="left"))
    for style, meaning in LEGEND.items():
        if style in used:
            console.print(as_text([Span(style, style), Span(f": {meaning}")], plain))


def as_text(spans: Sequence[Span], plain: bool) -> Text:
    """Spans as rich text, never read as markup: `[MASK]` is a token.

    Args:
      spans: styled text.
      plain: mark tokens without loss as ~…~ and those that are not in the inputs as «…», for want of a colour.

    Returns:
      The text, without space at its ends.
    """
    text = Text()
    for n, span in enumerate(spans):
        marks = _MARKS.get(span.style, ("", "")) if plain else ("", "")
        opens = marks[0] if n == 0 or spans[n - 1].style != span.style else ""
        closes = marks[1] if n + 1 == len(spans) or spans[n + 1].style != span.style else ""
        word = span.text.lstrip(" ")
        text.append(span.text[: len(span.text) - len(word)])  # no colour on the space before a word
        text.append(opens + word + closes, _COLOURS.get(span.style, ""))
        if span.note:
            text.append(f"⟨{span.note}⟩", "italic")
    text.rstrip()
    return text[len(text.plain) - len(text.plain.lstrip()) :]
