"""The table and the picture of a study, from the run_dirs of its rows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.config.kinds import is_unread
from jaxpt.config.studies import Study, SweptRow
from jaxpt.errors import UserError
from jaxpt.objectives.base import Objective
from jaxpt.runtime.disk import write_text
from jaxpt.study import curves, finetuned, pictures, summary, sweeps
from jaxpt.study.charts import Chart, Series, Table, is_drawable
from jaxpt.train import run_dir as run_dirs
from jaxpt.train.display import duration, number

NOTE = """\
- **tokens** are tokens of text: what the windows of a row's steps hold of the documents, each once, whether the model
  reads it, restores it or both; [CLS], sentinels and padding do not count, repetitions of the text do.
- **FLOPs** are those of the training steps: matrix products forward × 3, attention as masked.{glove}{probe}
- Comparable between all rows: parameters, tokens, FLOPs{and_probe} and time (if nothing else ran on the machine).
  Tokens are equal texts only where the vocabularies are equal.
- Not comparable between all rows: **losses**, **target loss**, **baseline** and **margin**. Objectives predict other
  tokens from other contexts; these figures can be compared between rows with the same letter under **task**, which have
  the same targets, inputs and validation text. The target loss is that at the positions that the baseline is computed
  on; the margin is baseline − target loss. All are in nats, unless their objective's line below
  says otherwise."""
_GLOVE = """ GloVe has none, and reads
  pairs of words, which are no tokens of text."""
_PROBE = """
- **probe**: texts of a test file whose label a linear classifier reads off the frozen model's mean last hidden state;
  **untrained**: the same before training."""


@dataclasses.dataclass(frozen=True)
class Result:
    """One row of the table; None where it is not known yet."""

    name: str
    status: str
    """ "finished", "under way", "not started", or "failed: why"."""
    recipe: str
    run_dir: str
    architecture: str | None = None
    objective: str | None = None
    parameters: int | None = None
    text_tokens: int | None = None
    steps: int | None = None
    flops: float | None = None
    wall_seconds: float | None = None
    validation: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Means over the validation split at the end: "loss", each part of it, "target_loss", accuracies, …"""
    loss_parts: tuple[str, ...] = ()
    targets: str | None = None
    """In words, the positions of `target_loss` and of the baseline."""
    baseline_kind: str | None = None
    baseline: float | None = None
    margin: float | None = None
    """baseline − target_loss."""
    metric: str | None = None
    """Of a fine-tuning, what its best checkpoint was chosen by."""
    score: float | None = None
    """The metric on the validation split."""
    probe: Mapping[str, Any] | None = None
    """What the linear probe found: "accuracy", "untrained", "most_frequent"."""
    task: str | None = None
    """Rows of one letter have the same targets, inputs and validation text."""
    paper: str | float | None = None
    minutes: float | None = None
    """Budget of training steps."""
    train_seconds: float | None = None
    """Of the steps alone; of `wall_seconds`."""
    row: str | None = None
    """Of a study with a grid or seeds: the row of which this is a run."""
    point: Sequence[Sequence[str]] = ()
    """Its values of the grid: (key, value as JSON)."""
    seed: int | None = None
    unit: str = "nats"
    """Of the losses."""


_Points = tuple[Result, list[curves.Point]]
"""A row, and what it has validated."""


def write(study: Study, failures: Mapping[str, str] | None = None) -> list[Result]:
    """Writes table.md, table.json, picture.png and picture.svg into the study's directory, each atomically.

    Args:
      study: from `load_study`.
      failures: {row: why it failed}; what an earlier table says of other rows is kept, unless they have finished since.

    Returns:
      The rows of the table.
    """
    directory = Path(study.run_dir)
    failed = _known_failures(directory) | dict(failures or {})
    tasks: dict[str, str] = {}
    results = [_result(study, row, failed.get(row.name), tasks) for row in study.rows if row.is_trained]
    directory.mkdir(parents=True, exist_ok=True)
    known = {"name": study.name, "question": study.question, "tokens": study.tokens, "minutes": study.minutes}
    known["notes"] = notes(study, results)
    known["rows"] = [dataclasses.asdict(result) for result in results]
    tables = [table(study, results)] if results else []
    if study.is_swept and results:
        tables.insert(0, sweeps.table(results, study.evaluate.probe is not None))
        known["notes_sweep"] = sweeps.NOTE
    if study.evaluate.finetune is not None:
        known |= {"finetuned": finetuned.as_json(study), "notes_finetuned": finetuned.NOTE}
        known["notes_summary"] = summary.note(_has_glove(results))
        tables = [summary.table(study), *finetuned.tables(study), *tables]
    known |= {"budget": budget(study), "tables": [text_table._asdict() for text_table in tables]}
    write_text(directory / "table.json", json.dumps(known, indent=2, ensure_ascii=False) + "\n")
    scores = [finetuned.Scores(**cell) for cell in known.get("finetuned", ()) if cell["by_seed"]]
    charts = [*sweeps.charts(results), *summary.charts(scores), *_charts(results)]
    has_picture = any(map(is_drawable, charts))
    write_text(directory / "table.md", markdown(study, results, has_picture))
    for suffix in ("png", "svg") if has_picture else ():
        pictures.draw(f"{study.name}: {study.question}", charts, directory / f"picture.{suffix}")
    return results


def _known_failures(directory: Path) -> dict[str, str]:
    """What the last table of a study says of rows that failed, and have not finished since by `jaxpt train`."""
    table = directory / "table.json"
    rows = json.loads(table.read_text(encoding="utf-8"))["rows"] if table.exists() else []
    failed = {row["name"]: row["status"] for row in rows if row["status"].startswith("failed: ")}

    def has_finished_since(name: str) -> bool:
        file = directory / name / "run.json"
        is_newer = file.is_file() and file.stat().st_mtime_ns > table.stat().st_mtime_ns
        return is_newer and bool(run_dirs.receipt(directory / name).get("finished"))

    return {name: why.removeprefix("failed: ") for name, why in failed.items() if not has_finished_since(name)}


def _result(study: Study, row: Any, failure: str | None, tasks: dict[str, str]) -> Result:
    run_dir = Path(study.run_dir) / row.name
    known: dict[str, Any] = {"recipe": row.recipe, "run_dir": str(run_dir), "paper": row.paper}
    known["minutes"] = study.minutes_of(row)
    if isinstance(row, SweptRow):
        known |= {"row": row.row, "point": row.point, "seed": row.seed}
    receipt, started = run_dirs.receipt(run_dir), (run_dir / "config.yaml").exists()
    finished = receipt.get("finished") and not failure
    if study.evaluate.probe is not None:
        known["probe"] = curves.probe(run_dir, study.evaluate.probe)
    status = "finished" if finished else f"failed: {failure}" if failure else "under way" if started else "not started"
    try:
        config = configs.load(run_dir) if started else configs.load(row.recipe, study.overrides(row))
    except UserError:  # said where the row was to start
        return Result(row.name, status, **known)
    objective = config.objective
    known |= {"architecture": config.model.kind, "objective": objective.kind}
    if isinstance(objective, Objective) and not is_unread(objective):
        known |= {"objective": describe(objective)}
        known |= {"targets": objective.baseline.target_name, "baseline_kind": objective.baseline.name}
        known |= {"loss_parts": tuple(objective.coefficients()), "unit": objective.baseline.unit}
    if points := curves.points(run_dir):
        last = points[-1]
        known |= {"text_tokens": round(last.text_tokens), "steps": last.step, "flops": last.flops}
        known |= {"validation": last.means}
        known["train_seconds"] = round(curves.train_seconds(run_dirs.records(run_dir)[0]), 1)
    if receipt:
        known |= {"parameters": receipt["parameters"], "wall_seconds": receipt["wall_seconds"]}
        siblings = json.dumps([row.row, row.point]) if isinstance(row, SweptRow) else None
        known |= {"task": letter_of(config, receipt, tasks, siblings)}
    if receipt and receipt["finished"]:
        means, trivial = receipt.get("validation", {}), receipt.get("baseline")  # what of them the recipe's `evals` has
        reached = means.get("target_loss")
        known |= {"validation": means, "baseline": trivial}
        known |= {"margin": None if trivial is None or reached is None else trivial - reached}
        known |= {"metric": config.checkpoint.best_metric, "score": receipt.get("best_value")} if config.task else {}
    return Result(row.name, status, **known)


def describe(objective: Objective) -> str:
    """The kind and what differs from its defaults.

    Example:
      >>> from jaxpt.objectives.masked_lm import MaskedLM
      >>> describe(MaskedLM(next_sentence=False, unit="span"))
      'masked_lm (unit span, next_sentence false)'
    """
    fields = type(objective).model_fields
    values = objective.model_dump(mode="json")
    values |= {name: describe(part) for name, part in objective if isinstance(part, Objective)}
    changed = [
        f"{name.replace('probability', 'p.')} {json.dumps(value)}".replace('"', "")
        for name, value in values.items()
        if name not in ("kind", "loss_chunk", "denoisers") and value != fields[name].default
    ]
    return f"{objective.kind} ({', '.join(changed)})" if changed else objective.kind


def letter_of(config: Config, receipt: Mapping[str, Any], tasks: dict[str, str], siblings: str | None) -> str:
    """The same letter for rows with the same targets, inputs and validation text, whatever their seeds.

    Args:
      config: of a run.
      receipt: its run.json.
      tasks: the letters so far; this one is added.
      siblings: what the runs share that differ by their seed alone: their masks may be stored, with other checksums.
    """
    data = receipt["data"]["fingerprint"]
    records = {name: checksum for name, checksum in data["records"].items() if name.endswith("validation")}
    drawn = [_without_seeds(data[name]) for name in ("tokenizer", "transforms", "packing", "length", "phase")]
    key = json.dumps([config.objective.kind, config.train.eval_examples, records, drawn], sort_keys=True)
    count = len(set(tasks.values()))
    letter = tasks.get(siblings or key) or tasks.get(key)
    letter = letter or (chr(ord("A") + count) if count < 26 else str(count))
    tasks.setdefault(key, letter)
    tasks.setdefault(siblings or key, letter)
    return letter


def _without_seeds(tree: Any) -> Any:
    """Plain values without the keys that are a seed."""
    if isinstance(tree, dict):
        return {key: _without_seeds(part) for key, part in tree.items() if key != "seed"}
    return [_without_seeds(part) for part in tree] if isinstance(tree, list | tuple) else tree


def _charts(results: Sequence[Result]) -> list[Chart]:
    """The losses of the rows that have validated, over tokens of text; each with its baseline.

    Rows whose losses can be compared share a chart, and have a second one over FLOPs.
    """
    points = [
        (result, [point for point in curves.points(Path(result.run_dir)) if point.means.get("target_loss") is not None])
        for result in results
    ]
    points = [(result, row) for result, row in points if row]
    colours = {name: n for n, name in enumerate(dict.fromkeys(_of_all_seeds(result) for result, _ in points))}
    groups: dict[str, list[_Points]] = {}
    for result, row in points:
        groups.setdefault(_comparable(result, results), []).append((result, row))
    axes = {"text_tokens": "tokens of text seen", "flops": "training FLOPs"}
    charts = []
    for name, group in groups.items():
        title = f"validation loss at the objective's targets, {group[0][0].unit}" + f"; {name}" * (len(groups) > 1)
        has_several = len({_of_all_seeds(result) for result, _ in group}) > 1
        for x in axes if has_several or len(groups) == 1 else ("text_tokens",):
            charts.append(_chart(title, axes[x], x, group, colours))
    return charts


def _comparable(result: Result, results: Sequence[Result]) -> str:
    """What rows whose losses can be compared have in common: the task; of one under way that of its objective."""
    of_objective = {other.task for other in results if other.task and other.objective == result.objective}
    task = result.task or (of_objective.pop() if len(of_objective) == 1 else None)
    return f"task {task}" if task else str(result.objective)


def _chart(title: str, label: str, x: str, group: Sequence[_Points], colours: Mapping[str, int]) -> Chart:
    """The losses of some rows over a figure of their points."""
    series, named = [], set()
    for result, row in group:
        name = _of_all_seeds(result)
        is_first, colour, xs = name not in named, colours[name], [getattr(point, x) for point in row]
        named.add(name)
        losses = [point.means["target_loss"] for point in row]
        series.append(Series(name if is_first else "", xs, losses, colour, is_faint=not is_first))
        if result.baseline is not None and is_first:
            series.append(Series("", xs[-1:], [result.baseline], colour, is_reference=True))
    others = [line for line in series if line.is_faint]
    seeds = "bold: the first seed" * bool(others)
    seeds += ", thin: the others" * any(len(line.x) > 1 for line in others)  # a single point has no line
    baselines = "dashed: trivial baseline" * any(line.is_reference for line in series)
    return Chart(title, label, series, "; ".join(filter(None, (baselines, seeds))))


def _of_all_seeds(result: Result) -> str:
    """The name of a run without its seed: the row and its values of the grid."""
    return result.name if result.row is None else " ".join([result.row, *(choice for _, choice in result.point)])


# ---- tables ---------------------------------------------------------------------------------------------------------


def table(study: Study, results: Sequence[Result]) -> Table:
    """The rows as cells."""
    heads = ["row", "architecture", "objective", "parameters", "tokens", "steps", "FLOPs", "time"]
    with_minutes = any(result.minutes is not None for result in results)
    metrics = {result.metric for result in results if result.score is not None}
    heads += ["in steps"] * with_minutes + ["losses", "target loss", "baseline", "margin"]
    heads += [sweeps.metric_name(metrics)] * bool(metrics) + ["task"]
    with_paper = any(result.paper is not None for result in results)
    with_probe = study.evaluate.probe is not None
    heads += ["probe", "untrained"] * with_probe + ["paper"] * with_paper + ["status"]
    rows = tuple(tuple(_row(result, with_minutes, with_probe, with_paper, bool(metrics))) for result in results)
    numeric = {"parameters", "tokens", "steps", "FLOPs", "time", "in steps", "target loss", "baseline", "margin"}
    numeric |= {sweeps.metric_name(metrics)}
    return Table("Pretrained", tuple(heads), tuple(n for n, head in enumerate(heads) if head in numeric), rows)


def budget(study: Study) -> str:
    """How much text each row sees, or how long it is trained, in words."""
    if study.tokens:
        return f"{study.tokens:,} tokens of text in each row."
    if not any(study.minutes_of(row) for row in study.rows):
        return "Each recipe has its own steps."
    others = [f"{row.name} {row.minutes:g}" for row in study.rows if row.minutes not in (None, study.minutes)]
    alike = f"{study.minutes:g} minutes of training steps in each row" if study.minutes else "Minutes of training steps"
    note = "; preparing data, compiling, evaluating and saving are not counted, but are in **time**."
    return alike + (f" ({', '.join(others)})" if others else "") + note


def _has_glove(results: Sequence[Result]) -> bool:
    return any((result.objective or "").partition(" ")[0] == "glove" for result in results)


def notes(study: Study, results: Sequence[Result]) -> str:
    """What the columns mean and which rows can be compared, as a list in Markdown."""
    has_probe = study.evaluate.probe is not None
    columns = NOTE.format(
        glove=_GLOVE * _has_glove(results), probe=_PROBE * has_probe, and_probe=", the probe" * has_probe
    )
    targets = {
        f"- targets of {r.objective}: {r.targets}; baseline: {r.baseline_kind}"
        + (f"; losses: {r.unit}" if r.unit != "nats" else "")
        for r in results if r.targets
    }  # fmt: skip
    metrics = sorted({r.metric for r in results if r.metric and r.score is not None})
    scores = [f"- **{name}**: of the best checkpoint by it, on the validation split" for name in metrics]
    return "\n".join([columns, *scores, *sorted(targets)])


def markdown(study: Study, results: Sequence[Result], has_picture: bool) -> str:
    """The table as Markdown, with the picture if there is one, and what its columns mean and which can be compared."""
    tuned = ""
    if study.evaluate.finetune is not None:
        tuned = f"{summary.markdown(study, _has_glove(results))}\n{finetuned.markdown(study)}\n"
    head = f"# {study.name}\n\n{study.question}\n\n"
    if not results:
        return head + tuned
    rows = table(study, results).markdown()
    pictures = ("![loss curves](picture.png)",) if has_picture else ()
    parts = ("## Pretrained", budget(study), rows, *pictures, notes(study, results))
    if study.is_swept:
        swept = sweeps.table(results, study.evaluate.probe is not None).markdown()
        parts = (f"## {sweeps.TITLE}", swept, sweeps.NOTE, *parts)
    return head + tuned + "\n\n".join(parts) + "\n"


def _row(r: Result, with_minutes: bool, with_probe: bool, with_paper: bool, with_score: bool) -> list[str]:
    def loss(value: float | None) -> str:
        return "" if value is None else f"{value:.3f}"

    parts = (f"{part} {r.validation[part]:.3f}" for part in r.loss_parts if r.validation.get(part) is not None)
    cells = [r.name, r.architecture or "", r.objective or ""]
    cells += [f"{value:,}" if value else "" for value in (r.parameters, r.text_tokens, r.steps)]
    cells += [number(r.flops) if r.flops else ""]
    cells += ["" if r.wall_seconds is None else duration(r.wall_seconds)]
    cells += ["" if r.train_seconds is None else duration(r.train_seconds)] * with_minutes + [", ".join(parts)]
    cells += [loss(r.validation.get("target_loss")), loss(r.baseline), loss(r.margin)]
    cells += [loss(r.score)] * with_score + [r.task or ""]
    cells += [f"{r.probe[name]:.1%}" if r.probe else "" for name in ("accuracy", "untrained") if with_probe]
    return cells + [str(r.paper if r.paper is not None else "")] * with_paper + [r.status]
