"""Examples as one self-contained page: no scripts, no fonts, light or dark as the reader's system is."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from jaxpt.report.batches import LEGEND, Shown, Span

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --dim: #8889 }
body { font: 16px/1.7 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.3rem } h2 { font-size: 1rem; margin: 0 } h3 { font-size: .85rem; margin: .8rem 0 0 }
section { border-top: 1px solid var(--line); padding: 1rem 0 }
dl { display: flex; flex-wrap: wrap; gap: 0 1.5rem; margin: .2rem 0; font-size: .85rem; opacity: .75 }
dl div { display: flex; gap: .4rem } dt::after { content: ":" } dd { margin: 0 }
p { margin: .3rem 0; white-space: pre-wrap; overflow-wrap: anywhere }
.mask, .random, .kept, .gone, .target, .sentinel { border-radius: .25rem; padding: 0 .2rem; color: #111 }
.mask, .gone { background: #f5d547 } .random { background: #ff9b8a } .kept { background: #8fd694 }
.target, .sentinel { background: #7fd3e6 } .special { color: #a34fc0 }
.label, .seam { color: #4a7dd6; font-weight: 600 }
.context, .padding { opacity: .5 } i { font-size: .85em; opacity: .85 }
"""


def page(title: str, line: str, examples: Sequence[Shown]) -> str:
    """A whole HTML page.

    Args:
      title: what they are examples of.
      line: how much text there is, and where it is from.
      examples: from `jaxpt.report.batches`.

    Returns:
      The page, to be written as UTF-8.
    """
    used = {span.style for example in examples for spans in example.sections.values() for span in spans}
    legend = [
        f"<div>{spans_html([Span(style, style)])} {escape(meaning.partition(' (')[0])}</div>"
        for style, meaning in LEGEND.items()
        if style in used
    ]
    body = "\n".join(_example(example) for example in examples)
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<style>{_STYLE}</style>\n<h1>{escape(title)}</h1>\n<p>{escape(line)}</p>\n<dl>{''.join(legend)}</dl>\n{body}\n</html>\n"
    )


def _example(example: Shown) -> str:
    facts = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in example.facts.items())
    parts = "".join(
        (f"<h3>{escape(heading)}</h3>" if len(example.sections) > 1 else "") + f"<p>{spans_html(spans)}</p>"
        for heading, spans in example.sections.items()
    )
    return f"<section><h2>{example.index}</h2><dl>{facts}</dl>{parts}</section>"


def spans_html(spans: Sequence[Span]) -> str:
    """Spans as HTML, everything in them escaped.

    Example:
      >>> spans_html([Span(" <pad>", "special"), Span(" [MASK]", "mask", "a & b")])
      ' <span class="special">&lt;pad&gt;</span> <span class="mask">[MASK]</span><i>⟨a &amp; b⟩</i>'
    """
    return "".join(map(_span, spans))


def _span(span: Span) -> str:
    word = span.text.lstrip(" ")
    space = " " * (len(span.text) - len(word))
    marked = escape(word) if span.style == "text" else f'<span class="{span.style}">{escape(word)}</span>'
    return space + marked + (f"<i>⟨{escape(span.note)}⟩</i>" if span.note else "")
