"""Examples as one self-contained page: no scripts, no fonts, light or dark as the reader's system is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from jaxpt.report.batches import LEGEND, Shown, Span
from jaxpt.report.document import document, facts, folded

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


def page(
    title: str,
    line: str,
    examples: Sequence[Shown],
    about: Mapping[str, Mapping[str, str]] | None = None,
    recipe: str = "",
) -> str:
    """A whole HTML page.

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
    above = [folded(heading, facts(figures), is_open=True) for heading, figures in (about or {}).items()]
    above += [folded("recipe", f"<pre>{escape(recipe)}</pre>")] if recipe else []
    links = "".join(f'<a href="#{example.index}">{example.index}</a>' for example in examples)
    body = "\n".join(_example(example, examples, place) for place, example in enumerate(examples))
    head = f"<h1>{escape(title)}</h1>\n<p>{escape(line)}</p>\n{''.join(above)}\n"
    nav = f"<nav>examples: {links}<dl>{''.join(legend)}</dl></nav>"
    return document(title, f"{head}{nav}\n{body}", _STYLE)


def _example(example: Shown, examples: Sequence[Shown], place: int) -> str:
    near = {"previous": place - 1, "next": place + 1}
    links = "".join(f'<a href="#{examples[n].index}">{name}</a>' for name, n in near.items() if 0 <= n < len(examples))
    parts = "".join(
        (f"<h3>{escape(heading)}</h3>" if len(example.sections) > 1 else "") + f"<p>{spans_html(spans)}</p>"
        for heading, spans in example.sections.items()
    )
    heading = f"<h2>example {example.index}{links}</h2>"
    return f'<section id="{example.index}">{heading}{facts(example.facts)}{parts}</section>'


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
