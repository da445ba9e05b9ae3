"""`jaxpt report`: runs and studies as one self-contained page, and as a picture."""

from __future__ import annotations

import dataclasses
import re
import shlex
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path

from jaxpt.errors import UserError
from jaxpt.report.document import document
from jaxpt.report.page import costs, mistakes, run_charts, studies, trust
from jaxpt.report.page.costs import DEFAULTS, Assumptions
from jaxpt.report.page.run_data import RunData, read
from jaxpt.report.page.sections import Group, sections
from jaxpt.report.page.studies import StudyData
from jaxpt.runtime import plugins
from jaxpt.runtime.disk import check_writable, write_text
from jaxpt.study import pictures, svg
from jaxpt.study.charts import Chart, Dots, is_drawable

STYLE = """
html { scroll-padding-top: 3.5rem } body { max-width: 80rem; line-height: 1.5 }
h2 { font-size: 1.15rem; margin: 2rem 0 0 } h3 { font-size: 1rem; margin: 0 0 .5rem }
h4 { font-size: .9rem; margin: 1rem 0 .2rem } h4 small { font-weight: 400; opacity: .75 }
section { border-top: 1px solid var(--line); padding: 1rem 0 } section:target h3 { text-decoration: underline }
nav { position: sticky; top: 0; z-index: 1; background: Canvas; border-bottom: 1px solid var(--line); padding: .3rem 0;
  font-size: .85rem; max-height: 4.5rem; overflow-y: auto } nav a { margin-right: .8rem; white-space: nowrap }
.scroll { overflow-x: auto; margin: .3rem 0 } table { font-size: .85rem; line-height: 1.4; width: auto }
.cards { display: flex; flex-wrap: wrap; gap: .6rem 2rem; font-size: 1.15rem }
.cards div { max-width: 24rem } .cards small { display: block; font-size: .75rem; opacity: .75 }
td, th { padding: .25rem .6rem } tbody th { font-weight: 400 } thead th { border-top: 0; vertical-align: bottom }
tbody tr:hover { background: #8881 } td small { opacity: .75 } tbody th { vertical-align: top }
.scroll th:first-child { position: sticky; left: 0; background: Canvas }
.number { white-space: nowrap } .scroll td > div, tbody th > div { width: max-content; max-width: 19rem }
.scroll td > div, tbody th > div { overflow-wrap: anywhere } .scroll td:last-child > div { max-width: 34rem }
.many { font-size: .78rem } .many td, .many th { padding: .25rem .3rem } .many tbody th > div { max-width: 15rem }
.many td > div, .scroll .many td:last-child > div { max-width: 8.5rem }
p { margin: .3rem 0; max-width: 48rem } .lead { opacity: .75; font-size: .9rem } .notes { font-size: .85rem }
dl { font-size: .85rem } dl div { display: flex; gap: .4rem } dt::after { content: ":" } dd { margin: 0 }
dd, .wrap { overflow-wrap: anywhere } .wrap { white-space: pre-wrap } .dot { font-size: .8em }
@media (max-width: 40rem) { body { margin-top: 1rem; padding: 0 .7rem } td, th { padding: .25rem .4rem }
  .scroll td > div, tbody th > div, .scroll td:last-child > div { max-width: 13rem } }
@media print { nav { position: static } body { max-width: none; margin: 0; font-size: 11pt }
  .scroll { overflow: visible } table { font-size: 8pt } tr { break-inside: avoid } h2, h3, h4 { break-after: avoid } }
"""


@plugins.unread()
def report(paths: Sequence[str], out: str | None = None, picture: str | None = None, **assumptions: float) -> None:
    """Writes a page about runs and studies.

    Args:
      paths: run directories, studies' directories and studies' files.
      out: the page; `report.html` in the first study, else in the first run, by default.
      picture: also draw its charts into this .png or .svg.
      **assumptions: for the receipt: fields of `Assumptions`.

    Raises:
      UserError: one of them is neither, or a file cannot be written.
    """
    assumed = Assumptions(**assumptions)
    runs, all_studies = _sorted(paths)
    page = Path(out) if out is not None else (all_studies[0].directory if all_studies else runs[0].path) / "report.html"
    for path, kinds in ((page, (".html", ".htm")), (picture and Path(picture), (".png", ".svg"))):
        if path is not None:
            _check_name(path, kinds)
    charts: Sequence[Chart | Dots] = ()
    if picture is not None:
        charts = _charts(all_studies, runs)
        if not any(map(is_drawable, charts)):
            raise UserError(f"--picture {picture}: nothing to draw: no metrics were logged yet")
    groups = [studies.group(study, assumed) for study in all_studies]
    if runs:
        groups.append(_of_runs(runs, assumed))
    title = ", ".join(group.title for group in groups)
    write_text(page, html(title, groups, _command(paths, out, picture, assumed)))
    print(f"wrote {page}")
    if picture is not None:
        pictures.draw(title, charts, Path(picture))
        print(f"wrote {picture}")


def _charts(all_studies: Sequence[StudyData], runs: Sequence[RunData]) -> list[Chart | Dots]:
    """All charts; where they are of several studies, or of runs as well, a study's say its name."""
    charts = []
    for study in all_studies:
        name = f"{study.name}: " if len(all_studies) > 1 or runs else ""
        charts += [dataclasses.replace(chart, title=name + chart.title) for chart in studies.charts(study)]
    return charts + (run_charts.charts(runs) if runs else [])


def _check_name(path: Path, kinds: Sequence[str]) -> None:
    """Raises UserError where a file of such a name cannot be written."""
    if path.suffix.lower() not in kinds:
        raise UserError(f"{path}: wants a name that ends in {' or '.join(kinds)}")
    if path.is_dir():
        raise UserError(f"{path}: is a directory, expected a file")
    if not path.parent.is_dir():
        raise UserError(f"{path}: {path.parent} is no directory")
    check_writable(path.parent)


def _sorted(paths: Sequence[str]) -> tuple[list[RunData], list[StudyData]]:
    """The runs and the studies among some paths, each once."""
    runs: dict[Path, Path] = {}
    all_studies: dict[Path, StudyData] = {}
    for name in paths:
        path = Path(name)
        directory = studies.directory_of(path)
        if directory is not None:
            all_studies.setdefault(directory.resolve(), studies.read(directory))
        elif (path / "config.yaml").is_file():
            runs.setdefault(path.resolve(), path)
        else:
            raise UserError(_refusal(path))
    return read(list(runs.values())) if runs else [], list(all_studies.values())


def _refusal(path: Path) -> str:
    """Why a path is neither run nor study."""
    if not path.exists():
        return f"{path}: no such directory"
    if path.is_dir() and (path / "config.json").is_file():
        return f"{path}: is in Hugging Face's form, which keeps no metrics; a report wants a run of jaxpt train"
    if path.is_dir() and next(path.glob("*/config.yaml"), None) is not None:
        return f"{path}: is no run, but holds some: name them, such as {path}/*"
    return f"{path}: is no run (no config.yaml) and no study (no table.json)"


def _of_runs(runs: Sequence[RunData], assumed: Assumptions) -> Group:
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    if len(runs) == 1:
        lead = f"{runs[0].config.model.kind}, trained on {runs[0].kind}"
    else:
        lead = ", ".join(dict.fromkeys(run.kind for run in runs))
    return Group(title, lead, list(sections(runs, assumed)))


def html(title: str, groups: Sequence[Group], command: str) -> str:
    """The page.

    Args:
      title: plain text.
      groups: its parts.
      command: that makes it again.
    """
    many = len(groups) > 1
    links, parts = [], []
    for number, group in enumerate(groups, 1):
        if many:
            links.append(f'<a href="#g{number}"><b>{escape(group.title)}</b></a>')
            parts.append(f'<h2 id="g{number}">{escape(group.title)}</h2>')
        parts.append(f'<p class="lead">{escape(group.lead)}</p>')
        for heading, content in group.sections:
            anchor = f"{number}-{re.sub('[^a-z0-9]+', '-', heading.lower())}"
            links.append(f'<a href="#{anchor}">{escape(heading)}</a>')
            parts.append(f'<section id="{anchor}"><h3>{escape(heading)}</h3>{content}</section>')
    timestamp = time.strftime("%Y-%m-%d %H:%M")
    foot = f'<p class="lead">Made on {timestamp} by <code>{escape(command)}</code></p>'
    body = f"<h1>{escape(title)}</h1>\n{foot}<nav>{' '.join(links)}</nav>\n{chr(10).join(parts)}"
    return document(f"{title} · jaxpt report", body, STYLE + svg.STYLE + costs.STYLE + mistakes.STYLE + trust.STYLE)


def _command(paths: Sequence[str], out: str | None, picture: str | None, assumed: Assumptions) -> str:
    words = ["jaxpt", "report", *paths]
    words += ["--out", out] * (out is not None) + ["--picture", picture] * (picture is not None)
    for name in ("watts", "price", "carbon", "load"):
        if (value := getattr(assumed, name)) != getattr(DEFAULTS, name):
            words += [f"--{name}", f"{value:g}"]
    return shlex.join(map(str, words))
