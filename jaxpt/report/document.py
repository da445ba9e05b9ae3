"""What all pages of jaxpt have in common: one file without scripts and fonts, light or dark as the system is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --line: #8884; --link: light-dark(#2b5fc0, #7fa8f0) }
body { font: 16px/1.6 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto 5rem; padding: 0 1rem }
h1 { font-size: 1.3rem } a { color: var(--link); text-decoration: none }
details { margin: .4rem 0 } summary { cursor: pointer; font-weight: 600; font-size: .9rem }
pre { font-size: .8rem; line-height: 1.4; overflow-x: auto }
table { border-collapse: collapse; width: 100% } td, th { border-top: 1px solid var(--line); padding: .35rem .6rem }
th { text-align: left; font-weight: 600 } .number { text-align: right; font-variant-numeric: tabular-nums }
td { vertical-align: top }
"""
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def document(title: str, body: str, style: str = "") -> str:
    """A whole HTML page, to be written as UTF-8.

    Args:
      title: plain text.
      body: HTML, in which all texts are escaped.
      style: CSS, after the common one.

    Returns:
      The page; control characters and halves of surrogate pairs are shown as �.
    """
    page = (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<style>{STYLE}{style}</style>\n{body}\n</html>\n"
    )
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", page)


def folded(heading: str, content: str, is_open: bool = False) -> str:
    """HTML that a click on its heading shows.

    Example:
      >>> folded("a & b", "<p>c</p>")
      '<details><summary>a &amp; b</summary><p>c</p></details>'
    """
    return f"<details{' open' if is_open else ''}><summary>{escape(heading)}</summary>{content}</details>"


def facts(figures: Mapping[str, str]) -> str:
    """Names with their values as a list."""
    return f"<dl>{''.join(f'<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>' for k, v in figures.items())}</dl>"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], numeric: Iterable[int] = ()) -> str:
    """A table that scrolls in its own box where it is wider than the page.

    Args:
      heads: of the columns: HTML.
      rows: of cells: HTML, in which texts are escaped.
      numeric: columns whose cells are numbers.

    Returns:
      HTML; the first cell of a row is its heading.

    Example:
      >>> table(["run", "loss"], [["a", "2.1"]], [1]).count("number")
      2
    """
    numbers = set(numeric)

    def cell(column: int, content: str) -> str:
        if column == 0:
            return f'<th scope="row"><div>{content}</div></th>'
        return f'<td class="number">{content}</td>' if column in numbers else f"<td><div>{content}</div></td>"

    marks = [' class="number"' if column in numbers else "" for column in range(len(heads))]
    head = "".join(f'<th scope="col"{mark}>{heading}</th>' for heading, mark in zip(heads, marks))
    lines = "".join(f"<tr>{''.join(cell(n, content) for n, content in enumerate(cells))}</tr>\n" for cells in rows)
    kind = ' class="many"' if len(heads) > 8 else ""
    return f'<div class="scroll"><table{kind}><thead><tr>{head}</tr></thead><tbody>\n{lines}</tbody></table></div>'
