"""`jaxpt inspect`: examples as the model will see them, on the terminal or as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from jaxpt.config import Config, at_phase, phase_starts, to_yaml, without_unfreezing
from jaxpt.errors import UserError
from jaxpt.report import document
from jaxpt.report.batches import LEGEND, Shown, Span, Style, segments
from jaxpt.report.facts import facts, of_vocabulary, statistics
from jaxpt.runtime.disk import write_text
from jaxpt.train import amounts, preflight

if TYPE_CHECKING:
    from jaxpt.data.calls import Vocabulary
    from jaxpt.data.stream.loader import Stream

_LOOKED_AT = 256  # rows in the statistics of a page
_NAMES = {"lm": "LM", "bart": "BART", "mbart": "mBART", "mass": "MASS", "ul2": "UL2", "unilm": "UniLM"}
_HYPHENATED = ("fill_in_the_middle", "text_to_text")
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
_STYLE = """
html { scroll-padding-top: 4rem } body { line-height: 1.7 }
h2 { font-size: 1rem; margin: 0 } h3 { font-size: .85rem; margin: .8rem 0 0 }
section { border-top: 1px solid var(--line); padding: 1rem 0 } section:target h2 { text-decoration: underline }
nav { position: sticky; top: 0; z-index: 1; background: Canvas; border-bottom: 1px solid var(--line); padding: .3rem 0;
  font-size: .85rem; max-height: 5.5rem; overflow-y: auto }
nav a { margin-right: .6rem } h2 a { font-weight: 400; margin-left: .6rem }
dl { display: flex; flex-wrap: wrap; gap: 0 1.5rem; margin: .2rem 0; font-size: .85rem; opacity: .75 }
dl div { display: flex; gap: .4rem } dt::after { content: ":" } dt { white-space: nowrap } dd { margin: 0 }
details dl { display: block; opacity: 1 }
p { margin: .3rem 0; white-space: pre-wrap; overflow-wrap: anywhere }
.mask, .random, .kept, .gone, .target, .sentinel { border-radius: .25rem; padding: 0 .2rem; color: #111 }
.mask, .gone { background: #f5d547 } .random { background: #ff9b8a } .kept { background: #8fd694 }
.target, .sentinel { background: #7fd3e6 } .special { color: light-dark(#8a3bab, #d08be8) }
.label, .seam { color: var(--link); font-weight: 600 }
.context, .padding { opacity: .5 } i { font-size: .85em; opacity: .85 }
p:hover [data-id] { box-shadow: inset 1px 0 #8889 } [data-id]:hover { outline: 2px solid #4a7dd6; opacity: 1 }
[data-id]:hover::after { content: attr(data-id); position: fixed; bottom: 1rem; left: 50%; translate: -50%; z-index: 2;
  padding: .2rem .8rem; border: 1px solid var(--line); border-radius: .4rem; background: Canvas; color: CanvasText;
  font: 15px/1.6 ui-monospace, monospace; max-width: 90vw }
@media print { nav { position: static } }
"""


def inspect(
    config: Config, *, count: int = 8, at: int = 0, split: str = "train", phase: int = 1, html: str | None = None
) -> None:
    """Prints examples of a recipe's stream, or writes them to a page.

    Args:
      config: the run's configuration.
      count: how many examples.
      at: index of the first one: row at % batch_size of the phase's step at // batch_size, or of the validation split.
      split: "train" or "validation".
      phase: which of `train.phases`, from 1.
      html: a file to write instead of printing.

    Raises:
      UserError: the recipe has no such phase, the validation split ends before `at`, or the data cannot be read.
    """
    preflight.check_recipe(config)
    from jaxpt.data.datasets import prepare

    config = without_unfreezing(config)
    phases = len(phase_starts(config))
    if phase > phases:
        raise UserError(f"--phase {phase}: the recipe has {phases} phase{'s' if phases > 1 else ''}")
    data = prepare(config, phase - 1, save=False)
    stream = data.train if split == "train" else data.validation
    stop = at + count if split == "train" else min(at + count, len(stream))
    if at >= stop:
        raise UserError(f"--at {at}: the validation split ends with example {len(stream) - 1}")
    source = data.fingerprint["source"]
    files = {
        task.name: [file["name"] for file in source.get(task.name, source).get("files", {}).get(split, ())]
        for task in stream.tasks
    }
    labels = getattr(config.task, "labels", None)
    examples = [
        Shown(index, facts(example, files[example["task"]], stream.features, labels), segments(example, data.tokenizer))
        for index, example in ((i, stream.example(i, shuffled=split == "train")) for i in range(at, stop))
    ]
    title = f"{display_name(config.objective.kind)}, {_range(at, stop)} of {split}"
    title += f", phase {phase} of {phases}" if phases > 1 else ""
    starts = (*phase_starts(config), config.train.steps)
    line = amounts.line(at_phase(config, phase - 1), data, starts[phase] - starts[phase - 1])
    if html is None:
        show(title, line, examples)
    else:
        about = {"vocabulary": of_vocabulary(data.tokenizer), **_statistics(stream, data.vocabulary)}
        write_text(Path(html), page(title, line, examples, about, to_yaml(config)))
        print(f"wrote {html}")


def _statistics(stream: Stream, vocabulary: Vocabulary) -> dict[str, dict[str, str]]:
    """Figures of rows from all over a split, under a heading that says of how many."""
    rows = np.unique(np.linspace(0, len(stream) - 1, _LOOKED_AT).astype(np.int64))
    heading = f"statistics of {'all' if len(rows) == len(stream) else f'{len(rows)} of'} {len(stream):,} rows"
    return {heading: statistics(stream.rows(rows), vocabulary)}


def display_name(kind: str) -> str:
    """An objective's name as papers write it.

    Example:
      >>> display_name("masked_lm"), display_name("my_lab.reverse_lm"), display_name("text_to_text")
      ('masked LM', 'reverse LM', 'text-to-text')
    """
    name = kind.rpartition(".")[2]
    if name in _HYPHENATED:
        return name.replace("_", "-")
    return " ".join(_NAMES.get(word, word) for word in name.split("_"))


def _range(at: int, stop: int) -> str:
    return f"example {at}" if stop - at == 1 else f"examples {at}–{stop - 1}"


# ---- on a terminal --------------------------------------------------------------------------------------------------


def show(title: str, line: str, examples: Sequence[Shown], console: Console | None = None) -> None:
    """Prints a header, examples under a rule each, then a legend: in colour on a terminal, elsewhere with markers.

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


# ---- as a page ------------------------------------------------------------------------------------------------------


def page(
    title: str,
    line: str,
    examples: Sequence[Shown],
    about: Mapping[str, Mapping[str, str]] | None = None,
    recipe: str = "",
) -> str:
    """Examples as one self-contained page: no scripts, no fonts, light or dark as the reader's system is.

    Args:
      title: what they are examples of.
      line: how much text there is, and where it is from.
      examples: from `jaxpt.report.batches`.
      about: {heading: {name: value}}, such as the vocabulary's size.
      recipe: as YAML.

    Returns:
      The page, to be written as UTF-8.
    """
    used = {span.style for example in examples for spans in example.sections.values() for span in spans}
    legend = [
        f"<div>{spans_html([Span(style, style)])} {escape(meaning.partition(' (')[0])}</div>"
        for style, meaning in LEGEND.items()
        if style in used
    ]
    above = [
        document.folded(heading, document.facts(figures), is_open=True) for heading, figures in (about or {}).items()
    ]
    above += [document.folded("recipe", f"<pre>{escape(recipe)}</pre>")] if recipe else []
    links = "".join(f'<a href="#{example.index}">{example.index}</a>' for example in examples)
    body = "\n".join(_example(example, examples, place) for place, example in enumerate(examples))
    head = f"<h1>{escape(title)}</h1>\n<p>{escape(line)}</p>\n{''.join(above)}\n"
    nav = f"<nav>examples: {links}<dl>{''.join(legend)}</dl></nav>"
    return document.document(title, f"{head}{nav}\n{body}", _STYLE)


def _example(example: Shown, examples: Sequence[Shown], place: int) -> str:
    near = {"previous": place - 1, "next": place + 1}
    links = "".join(f'<a href="#{examples[n].index}">{name}</a>' for name, n in near.items() if 0 <= n < len(examples))
    parts = "".join(
        (f"<h3>{escape(heading)}</h3>" if len(example.sections) > 1 else "") + f"<p>{spans_html(spans)}</p>"
        for heading, spans in example.sections.items()
    )
    heading = f"<h2>example {example.index}{links}</h2>"
    figures = document.facts(example.facts)
    return f'<section id="{example.index}">{heading}{figures}{parts}</section>'


def spans_html(spans: Sequence[Span]) -> str:
    """Spans as HTML, everything in them escaped.

    Example:
      >>> spans_html([Span(" <pad>", "special"), Span(" [MASK]", "mask", "a & b"), Span(" <b", hover='7 "b')])
      ' <span class="special">&lt;pad&gt;</span> <span class="mask">[MASK]</span><i>⟨a &amp; b⟩</i> \
<span data-id="7 &quot;b">&lt;b</span>'
    """
    return "".join(map(_span, spans))


def _span(span: Span) -> str:
    word = span.text.lstrip(" ")
    space = " " * (len(span.text) - len(word))
    marks = "" if span.style == "text" else f' class="{span.style}"'
    marks += f' data-id="{escape(span.hover)}"' if span.hover else ""
    marked = f"<span{marks}>{escape(word)}</span>" if marks else escape(word)
    return space + marked + (f"<i>⟨{escape(span.note)}⟩</i>" if span.note else "")
