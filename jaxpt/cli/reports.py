"""The commands that show what is there: runs, their differences, recipes. Each imports what it runs."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxpt.cli.parsing import command
from jaxpt.errors import UserError, escaped

if TYPE_CHECKING:
    from rich.table import Table


def add(commands: Any) -> None:
    """Adds the commands.

    Args:
      commands: the subparsers.
    """
    runs = command(commands, "runs", _runs, "list runs with step, loss, best metric and age", ("", "runs/studies"))
    runs.add_argument("directory", metavar="DIR", nargs="?", default="runs", help="where they are (runs)")
    runs.add_argument("--json", action="store_true", help="print JSON")
    compare = command(commands, "compare", _compare, "print how configurations and results of runs differ", (
        "runs/bert_tiny runs/mine",
    ))  # fmt: skip
    compare.add_argument("runs", metavar="RUN_DIR", nargs="+", help="two runs or more")
    compare.add_argument("--json", action="store_true", help="print JSON")
    report = command(commands, "report", _report, "write an HTML page about runs and studies", (
        "runs/bert_tiny                                  # runs/bert_tiny/report.html",
        "runs/bert_tiny runs/mine --out both.html --picture both.png",
        "runs/studies/smoke --watts 120 --price 0.40     # of this machine, dollars an hour",
        "configs/studies/bert_ablation.yaml --out page.html",
    ), writes="a page (--out), and with --picture a picture")  # fmt: skip
    report.add_argument("paths", metavar="RUN_DIR|STUDY", nargs="+", help="runs; studies' directories or files")
    report.add_argument("--out", metavar="FILE", help="the page (report.html in the first study, else run)")
    report.add_argument("--picture", metavar="FILE", help="also draw the curves into this .png or .svg")
    report.add_argument("--watts", type=_positive, metavar="W", help="power of a chip, or of a machine with CPUs alone")
    report.add_argument("--price", type=_positive, metavar="DOLLARS", help="price of an hour of the same")
    report.add_argument("--carbon", type=_positive, metavar="KG", help="CO₂ per kilowatt-hour (0.4)")
    share = functools.partial(_positive, most=1.0)
    report.add_argument("--load", type=share, metavar="SHARE", help="share of the power that is drawn (1)")
    recipes = command(commands, "recipes", _recipes, "list the files of configs with a line each", ("", "squad"))
    recipes.add_argument("word", metavar="WORD", nargs="?", default="", help="only those that have this word")


def _runs(arguments: argparse.Namespace) -> None:
    from jaxpt.report.runs import runs
    from jaxpt.train.display import duration

    all_runs = runs(Path(arguments.directory))
    if arguments.json:
        print(json.dumps([dataclasses.asdict(run) for run in all_runs], indent=2))
        return
    table = _table("run", "model · objective", "state", "step", "loss", "best", "age")
    for run in all_runs:
        step = f"{run.step:,}" + (f" of {run.steps:,}" if run.steps not in (None, run.step) else "")
        best = "" if run.value is None else f"{run.metric} {run.value:.4g}"
        age = "" if run.seconds_ago is None else duration(run.seconds_ago)
        loss = "" if run.loss is None else f"{run.loss:.4g}"
        status = run.status + (f", damaged lines of metrics: {run.damaged_lines:,}" if run.damaged_lines else "")
        _add_row(table, run.path, run.what, status, step, loss, best, age)
    _print(table)


def _compare(arguments: argparse.Namespace) -> None:
    from jaxpt.report.runs import compare

    if len(arguments.runs) < 2:
        raise UserError("compare wants two runs or more")
    settings, metrics = compare(arguments.runs)
    if arguments.json:
        print(json.dumps({"configuration": settings, "metrics": metrics}, indent=2))
        return
    names = [Path(path).name for path in arguments.runs]
    names = names if len(set(names)) == len(names) else list(arguments.runs)
    two = len(names) == 2
    table = _table("key", *names)
    for key, values in settings.items():
        _add_row(table, key, *values)
    _print(table) if settings else print("the configurations are equal, but for run_dir")
    table = _table("metric", *names, *["difference"] * two)
    for name, values in metrics.items():
        difference = f"{values[1] - values[0]:+.4g}" if two and None not in values else ""
        _add_row(table, name, *("" if v is None else f"{v:.6g}" for v in values), *[difference] * two)
    _print(table)


def _report(arguments: argparse.Namespace) -> None:
    from jaxpt.report.page.command import report
    from jaxpt.report.page.receipts import Assumptions

    options = {name: getattr(arguments, name) for name in ("watts", "price", "carbon", "load")}
    assumed = Assumptions(**{name: value for name, value in options.items() if value is not None})
    report(arguments.paths, arguments.out, arguments.picture, assumed)


def _recipes(arguments: argparse.Namespace) -> None:
    from jaxpt.config.kinds import nearest
    from jaxpt.report.recipes import recipes

    matches = recipes(arguments.word)
    if not matches:
        names = [Path(recipe.path).stem for recipe in recipes()]
        raise UserError(f"no recipe has the word {arguments.word!r}{nearest(arguments.word, names, '')}")
    table = _table("recipe", "what it is")
    for recipe in matches:
        _add_row(table, recipe.path, recipe.line)
    _print(table)


def _positive(text: str, most: float = sys.float_info.max) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:
        expected = "number from 0 on" if most > 1 else "share from 0 to 1"
        raise argparse.ArgumentTypeError(f"expected a {expected}, got {text!r}")
    return value


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(*map(escaped, columns), box=None, pad_edge=False, header_style="bold")
    table.columns[0].overflow = "fold"  # a path stays whole
    return table


def _add_row(table: Table, *cells: str) -> None:
    """Adds a row; names of files and values of recipes can hold codes that a terminal would obey."""
    table.add_row(*map(escaped, cells))


def _print(table: Table) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:  # a file has no width
        console.width = 200
    console.print(table)
