"""A study as part of a page: its tables, the scores of its fine-tunings as dots, and the curves of its rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from jaxpt.config.finetunings import FOLDER
from jaxpt.config.studies import load_study
from jaxpt.errors import UserError
from jaxpt.report import runs
from jaxpt.report.page import costs, run_charts
from jaxpt.report.page import run_data as run_data_module
from jaxpt.report.page.run_data import RunData
from jaxpt.report.page.sections import Group, Section, figures, receipt, sections, without_empty
from jaxpt.runtime.disk import read_json
from jaxpt.study import curves, finetuned, summary, sweeps
from jaxpt.study.charts import Chart, Dots, Table
from jaxpt.study.tables import Result
from jaxpt.train import run_dir as run_dirs

TABLE = "table.json"
_NOTES = {
    summary.TITLE: "notes_summary", "Fine-tuned": "notes_finetuned", "Pretrained": "notes", sweeps.TITLE: "notes_sweep",
}  # fmt: skip
"""Which notes stand below which table: "±" is a standard error in one, a standard deviation in another."""


class StudyData(NamedTuple):
    """A study."""

    directory: Path
    table: dict[str, Any]
    """Its table.json, `tables` as `Table`."""
    rows: list[RunData]
    """The runs of its rows that were started."""
    scores: list[finetuned.Scores]
    """Of its fine-tunings that have any."""

    @property
    def name(self) -> str:
        """Of its directory: one file makes several studies, with other budgets, say."""
        return self.directory.resolve().name


def directory_of(path: Path) -> Path | None:
    """The directory of a study, from itself or from the study's file; None: it is no study.

    Raises:
      UserError: the file is no study, or the study was not run yet.
    """
    if path.is_file() and path.suffix in (".yaml", ".yml"):
        directory = Path(load_study(path).run_dir)
        if not (directory / TABLE).is_file():
            raise UserError(f"{path}: no {directory / TABLE} yet; jaxpt study {path} writes it")
        return directory
    return path if (path / TABLE).is_file() else None


def read(directory: Path) -> StudyData:
    """Reads a study and the runs of its rows.

    Args:
      directory: has a table.json.

    Raises:
      UserError: the table is of an earlier version, or one of the runs is damaged.
    """
    table = read_json(directory / TABLE)
    try:
        tables = [Table(**fields) for fields in table["tables"]]
        scores = [finetuned.Scores.of_json(fields) for fields in table.get("finetuned", ())]
        paths = [directory / row["name"] for row in table["rows"]]
    except (KeyError, TypeError, AttributeError):
        earlier = f"{directory / TABLE}: of an earlier version; jaxpt study FILE --table writes it anew"
        raise UserError(earlier) from None
    rows = run_data_module.read([path for path in paths if (path / "config.yaml").is_file()])
    named = [dataclasses.replace(run, name=run.path.name) for run in rows]
    return StudyData(directory, table | {"tables": tables}, named, [score for score in scores if score.by_seed])


def group(study: StudyData, assumed: costs.Assumptions) -> Group:
    """The part of a page about a study.

    Args:
      study: as `read` gives it.
      assumed: for the receipt.
    """
    return Group(study.name, study.table["question"], list(_sections(study, assumed)))


def charts(study: StudyData) -> list[Chart | Dots]:
    """All charts of a study."""
    return [*_sweep(study), *summary.charts(study.scores), *(run_charts.charts(study.rows) if study.rows else [])]


def _sections(study: StudyData, assumed: costs.Assumptions) -> Iterator[Section]:
    drawings = {"Fine-tuned": figures(summary.charts(study.scores)), sweeps.TITLE: figures(_sweep(study))}
    for table in study.table["tables"]:
        rows = [[cell_of(cell) for cell in row] for row in table.rows]
        if not rows:
            continue
        notes = study.table.get(_NOTES.get(table.title, ""), "")
        above = f"<p>{escape(study.table['budget'])}</p>" if table.title == "Pretrained" else ""
        content = without_empty([escape(head) for head in table.heads], rows, table.numeric)
        yield table.title, above + content + drawings.get(table.title, "") + _notes(notes)
    for heading, content in sections(study.rows, assumed) if study.rows else ():
        if heading not in ("Overview", "Runs", "Final figures", "Baselines"):
            yield heading, _receipt(study, assumed) if heading == "Cost estimate" else content
    if not study.rows and study.scores:  # of models that were there
        yield "Cost estimate", _receipt(study, assumed)


def cell_of(text: str) -> str:
    """A cell; the median, the best seed and the number of seeds stand below the mean, where they take no width.

    Args:
      text: of the table in Markdown.

    Returns:
      HTML.
    """
    mean, bracket, seeds = text.partition(" (")
    return f"{escape(mean)}<br><small>({escape(seeds)}</small>" if bracket and " ± " in mean else escape(text)


def _notes(markdown: str) -> str:
    """The notes of a table, a list in Markdown, as HTML."""
    items = " ".join(line.strip() for line in f"\n{markdown}".replace("\n- ", "\n\0").splitlines()).split("\0")
    bullets = "".join(f"<li>{_bold(item.strip())}</li>" for item in items if item.strip())
    return f'<ul class="notes">{bullets}</ul>' if bullets else ""


def _bold(text: str) -> str:
    """Markdown's **bold** as HTML, the rest escaped."""
    parts = escape(text).split("**")
    return "".join(f"<b>{part}</b>" if n % 2 else part for n, part in enumerate(parts))


def _sweep(study: StudyData) -> list[Chart | Dots]:
    """The losses against the swept values."""
    return sweeps.charts([Result(**row) for row in study.table["rows"]]) if "notes_sweep" in study.table else []


def _receipt(study: StudyData, assumed: costs.Assumptions) -> str:
    """What rows and fine-tunings took together, searches and discarded runs included.

    Rows of an earlier version of the file, such as other values of its grid, are apart.
    """
    row_dirs = {run.path.resolve() for run in study.rows}
    rows = [costs.estimate(run.receipt, run.lines, assumed) for run in study.rows]
    receipts = {path: run_dirs.receipt(path) for path in runs.run_dirs(study.directory)}
    folder = (study.directory / FOLDER).resolve()
    tuned, former = [], []
    for path, known in receipts.items():
        if path.resolve() in row_dirs or "simple_model" in known:  # which take seconds
            continue
        estimate = costs.estimate(known, list(curves.cumulated(run_dirs.records(path)[0])), assumed)
        (tuned if folder in path.resolve().parents else former).append(estimate)
    groups = {f"{len(rows)} pretrained": rows, f"{len(tuned)} fine-tuned": tuned}
    groups[f"{len(former)} no longer in the table"] = former
    nonempty = {name: members for name, members in groups.items() if members}
    return receipt(
        [costs.total(members) for members in nonempty.values()], [escape(name) for name in nonempty], assumed
    )
