"""`jaxpt eval RUN_DIR|HF_DIR --tasks …`: the harness on a trained model.

OUT/TASK_Kshot.jsonl    an example a line: what was read, what the model says; re-run the same command to resume
OUT/results.json        metrics with standard errors, baselines, settings, of all such files in OUT
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxpt.config import DistributedConfig, MeshConfig
from jaxpt.data import tables
from jaxpt.decode import likelihood
from jaxpt.decode.engine import Prompt
from jaxpt.errors import UserError
from jaxpt.evals.few_shot import baselines, measures, scoring, task
from jaxpt.evals.few_shot.examples import Example, examples
from jaxpt.evals.few_shot.model import NetworkModel
from jaxpt.evals.few_shot.task import HarnessTask
from jaxpt.inference import files, loaded, opening
from jaxpt.inference.loaded import Loaded
from jaxpt.models.base import compute_dtype
from jaxpt.parallel import processes
from jaxpt.runtime import hub, terminal
from jaxpt.runtime.disk import write_text
from jaxpt.runtime.progress import progress
from jaxpt.train.checkpoint import is_primary
from jaxpt.train.display import console, say

CHUNK = 1024
"""Examples that are scored together: what a killed process loses at most; of written answers four batches."""
CORPUS_BYTES = 20_000_000
"""Of the n-gram model's text."""


@dataclasses.dataclass(frozen=True)
class Result:
    """The metrics of a task."""

    task: HarnessTask
    shots: int
    examples: int
    metrics: Mapping[str, measures.Value]
    baselines: Mapping[str, Mapping[str, measures.Value]]
    groups: Mapping[str, measures.Value]
    """Accuracy of each group, of a task with groups that are few."""
    computed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """{metric: how it is computed}, where its name does not say all."""

    def plain(self) -> dict[str, Any]:
        """As JSON."""

        def as_json(metrics: Mapping[str, measures.Value]) -> dict[str, Any]:
            return {
                name: {"value": estimate.value, "standard_error": estimate.error, "unit": estimate.unit}
                for name, estimate in metrics.items()
            }

        return {
            "task": self.task.name, "shots": self.shots, "examples": self.examples, "metrics": as_json(self.metrics),
            "baselines": {name: as_json(metrics) for name, metrics in self.baselines.items()},
            "groups": as_json(self.groups), "computed": dict(self.computed), "settings": _task_settings(self.task),
        }  # fmt: skip


def evaluate(
    path: str,
    names: Sequence[str],
    *,
    shots: Sequence[int] | None = None,
    limit: int | None = None,
    data: str | None = None,
    out: str | None = None,
    corpus: str | None = None,
    form: Literal["plain", "span"] | None = None,
    unit: Literal["piece", "word"] | None = None,
    batch_size: int = 32,
    dtype: Literal["auto", "float32", "bfloat16"] | None = None,
    seed: int = 0,
    source_language: str | None = None,
    target_language: str | None = None,
    overrides: Sequence[str] = (),
) -> list[Result]:
    """Scores a model on tasks and prints a table.

    Args:
      path: RUN_DIR, RUN_DIR/checkpoints/STEP, HF_DIR, or OWNER/NAME[@REVISION] on the hub (extra [hub]).
      names: of tasks, or their files.
      shots: numbers of examples shown before each; by default each task's own.
      limit: the first examples of each task alone, or of each of its groups.
      data: the directory with the tasks' files.
      out: where results go; by default PATH/harness, of RUN_DIR/checkpoints/STEP RUN_DIR/harness/STEP. A model of the
        hub has no default.
      corpus: a file of text (.txt, or .jsonl with a field `text`) for the n-gram baseline.
      form: of an encoder-decoder; by default as it was pretrained.
      unit: of an encoder; `piece` by default.
      batch_size: rows that are generated at a time.
      dtype: compute dtype, as `loaded.load`.
      seed: of the shots.
      source_language, target_language: tokens of the languages that mBART reads and writes, as `loaded.load`.
      overrides: `TASK.key=value`.

    Returns:
      The results, one for each task and number of shots.

    Raises:
      UserError: a task, its data or the model is not as it must be, `form` or `unit` has no effect on it, or a model of
        the hub has no `out`.
    """
    if out is None and hub.parse(path) is not None:
        raise UserError(f"--out DIR is missing: {path} is a model of the hub, which has no directory for results")
    task_examples = _read(task.load_all(names, overrides), shots, limit, data, seed)
    ngrams = None if corpus is None else baselines.NGrams(_corpus(corpus))
    processes.start(DistributedConfig())
    console.quiet = not is_primary()
    mesh = MeshConfig() if jax.device_count() > 1 else None
    chosen, step = opening.resolve_checkpoint(path)
    languages = {"source_language": source_language, "target_language": target_language}
    model = loaded.load(chosen, mesh=mesh, batch_size=batch_size, dtype=dtype, **languages)
    try:
        asks = make_adapter(model, form, unit)
    except UserError as error:
        raise UserError(f"--{error}") from None
    for harness_task, _, of_task in task_examples:
        asks.check(harness_task)
        asks.check_examples(harness_task, of_task)
    folder = Path(out) if out else results_folder(Path(path), chosen, step)
    earlier = _earlier(folder)
    say(f"{path}: {model.network.config.kind}, {asks.scoring_method}")
    settings = {
        "model": str(hub.local(path).resolve()), "step": step, "seed": seed, "form": form,
        "unit": unit or "piece", "dtype": jnp.dtype(compute_dtype(model.network.config)).name,
    }  # fmt: skip
    settings |= {name: language for name, language in languages.items() if language is not None}
    task_results = []
    for harness_task, n, of_task in task_examples:
        if is_primary():
            before = earlier.get((harness_task.name, n))
            _replace(_path(folder, harness_task.name, n), harness_task, len(of_task), settings, before)
        chunk = min(CHUNK, 4 * batch_size) if harness_task.form == "generate_until" else CHUNK
        outcomes = _outcomes(asks, harness_task, n, of_task, folder, settings, chunk)
        if not is_primary():
            continue
        trivial = baselines.baselines(harness_task, of_task, ngrams)
        task_results.append(_result(harness_task, n, outcomes, trivial))
    if not is_primary():
        return []
    _show(asks, task_results)
    _write_summary(folder, earlier, task_results, {"run": settings, "scored_by": asks.scoring_method})
    for harness_task, n, _ in task_examples:
        files.state_of(_path(folder, harness_task.name, n)).unlink(missing_ok=True)
    say(f"{folder}: results.json, and each example")
    return task_results


def make_adapter(
    model: Loaded, form: Literal["plain", "span"] | None, unit: Literal["piece", "word"] | None
) -> NetworkModel:
    """A loaded model as the harness asks it.

    Args:
      model: of any family.
      form: of an encoder-decoder; by default as it was pretrained.
      unit: of an encoder; `piece` by default.

    Raises:
      UserError: `form` or `unit` has no effect on the model; the message begins with its name.
    """
    likelihood.check_settings(model.network.config, form, unit)

    def complete(prompts: Sequence[Prompt], max_new_tokens: int, stop: Sequence[str]) -> list[str]:
        completions = model.generate(list(prompts), max_new_tokens=max_new_tokens, stop=tuple(stop))
        return [samples[0].text if samples else "" for samples in completions]

    writes = None if model.family == "encoder" else complete
    return NetworkModel(
        model.network, model.params, model.reader, writes, form=form, unit=unit or "piece", current=model.current
    )


def _read(
    tasks: Sequence[HarnessTask], shots: Sequence[int] | None, limit: int | None, data: str | None, seed: int
) -> list[tuple[HarnessTask, int, list[Example]]]:
    """The examples of each task, for each number of shots."""
    if data and not Path(data).is_dir():
        raise UserError(f"--data: {data}: no such directory")
    if any(shots or ()) and not any(harness_task.has_shots for harness_task in tasks):
        forms = " and ".join(dict.fromkeys(harness_task.form for harness_task in tasks))
        raise UserError(f"--shots: has no effect on tasks of form {forms}; leave it out")
    # A task without shots has 0 of them, whatever was asked for: several numbers may come to the same.
    distinct = [
        (harness_task, n) for harness_task in tasks for n in dict.fromkeys(map(harness_task.num_shots, shots or [None]))
    ]
    task_examples = [(harness_task, n, examples(harness_task, n, limit, data, seed)) for harness_task, n in distinct]
    for harness_task, _, of_task in task_examples:
        # A package that a metric needs and that is not installed is named now, not after the scoring.
        measures.computed(harness_task, [{"gold": example.gold} for example in of_task])
    return task_examples


def _show(asks: NetworkModel, task_results: list[Result]) -> None:
    """Prints the table of results, and how each metric was computed."""
    for line in asks.report_lines():
        say(line)
    terminal.console().print(_table(task_results))
    for line in dict.fromkeys(
        f"{r.task.name}: {metric}: {how}" for r in task_results for metric, how in r.computed.items()
    ):
        say(line)


def _result(
    harness_task: HarnessTask,
    shots: int,
    outcomes: Sequence[measures.SampleResult],
    trivial: Mapping[str, Mapping[str, measures.Value]],
) -> Result:
    """The result of a task from its outcomes.

    Args:
      harness_task: the task.
      shots: examples shown before each.
      outcomes: at least one.
      trivial: of `baselines.baselines`.
    """
    has_groups = harness_task.form == "pair" and harness_task.group is not None
    return Result(
        harness_task, shots, len(outcomes), measures.measure(harness_task, outcomes), trivial,
        measures.by_group(outcomes) if has_groups else {}, measures.computed(harness_task, outcomes),
    )  # fmt: skip


def _table(results: Sequence[Result]) -> Any:
    """A `rich` table of results: a row for each metric, the baselines beside it."""
    from rich.table import Table

    names = list(dict.fromkeys(name for entry in results for name in entry.baselines))
    rich_table = Table()
    for name in ("task", "shots", "n", "metric", "value", *names):
        rich_table.add_column(name, no_wrap=True)
    for entry in results:
        for number, (metric, value) in enumerate(entry.metrics.items()):
            head = (entry.task.name, str(entry.shots), f"{entry.examples:,}") if number == 0 else ("", "", "")
            beside = [
                str(entry.baselines[name][metric]) if metric in entry.baselines.get(name, {}) else "" for name in names
            ]
            rich_table.add_row(*head, metric, str(value), *beside)
    return rich_table


def _outcomes(
    asks: NetworkModel,
    harness_task: HarnessTask,
    shots: int,
    of_task: list[Example],
    folder: Path,
    settings: dict[str, Any],
    size: int,
) -> list[measures.SampleResult]:
    """The outcomes of a task; those of a file that an earlier process left are taken from there.

    All processes score the same chunks, the first one writes; the others return none.
    """
    path = _path(folder, harness_task.name, shots)
    rows = [_row(harness_task, n, example) for n, example in enumerate(of_task)]
    identity = {**settings, "task": harness_task.model_dump(mode="json", exclude={"source"}), "shots": shots}
    with contextlib.ExitStack() as stack:
        results_file = None
        if is_primary():
            say = stack.enter_context(progress(None, "scoring"))
            results_file = stack.enter_context(
                files.ResumableJsonl(path, rows, identity, ["outcome"], say, "scoring", "examples", keeps_state=True)
            )
            _check_kept(path, harness_task, of_task)
        done = int(_of_first(np.int32(results_file.done if results_file else 0)))
        for first in range(0, len(of_task), size):
            if first + size <= done or done == len(of_task):
                continue
            chunk = of_task[first : first + size]
            if results_file:
                asks.progress = lambda share, first=first, of=chunk: results_file.show(first + int(share * len(of)))
            outcomes = scoring.score(harness_task, asks, chunk)
            for number, outcome in enumerate(outcomes, first):
                if results_file and number in results_file.remaining():
                    results_file.write(number, {"outcome": outcome})
    if results_file is None:
        return []
    return [json.loads(line)["outcome"] for line in path.read_bytes().splitlines()]  # text has other ends of lines


def _row(harness_task: HarnessTask, number: int, example: Example) -> dict[str, Any]:
    """What the model reads of an example; a context that says nothing is a setting of the task where it is constant."""
    row = {"example": number, "contexts": list(dict.fromkeys(example.contexts))}
    if example.unconditional != harness_task.unconditional:
        row["unconditional"] = example.unconditional
    return row | {"continuations": list(example.continuations)}


def _check_kept(path: Path, harness_task: HarnessTask, of_task: Sequence[Example]) -> None:
    """Refuses to keep outcomes of examples that have other right answers, groups or lengths now."""
    for number, (line, example) in enumerate(zip(path.read_bytes().splitlines(), of_task), 1):
        outcome, now = json.loads(line)["outcome"], scoring.of_example(harness_task, example)
        for name, value in now.items():
            old, new = json.dumps(outcome.get(name)), json.dumps(value)
            if old != new:
                raise UserError(
                    f"{path}: line {number}: was scored with {name} {old}, now it is {new}; resume with the same, "
                    "delete both files, or choose another --out"
                )


def results_folder(path: Path, chosen: Path, step: int | None) -> Path:
    """Where results go: never into a checkpoint, which training deletes.

    Args:
      path: what the user named.
      chosen: the checkpoint's directory, or the model's.
      step: of the checkpoint, if it is one.

    Returns:
      The directory.
    """
    if step is None or (path / "checkpoints").is_dir():
        return path / "harness"
    return chosen.parents[1] / "harness" / str(step)


def _path(folder: Path, name: str, shots: int) -> Path:
    return folder / f"{name}_{shots}shot.jsonl"


def _earlier(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """What `results.json` has of earlier commands, by task and number of shots."""
    path = folder / "results.json"
    try:
        entries = json.loads(path.read_text("utf-8"))["results"]
        return {(entry["task"], entry["shots"]): entry for entry in entries}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: is damaged; delete it, or choose another --out") from None


def _replace(
    path: Path, harness_task: HarnessTask, count: int, settings: dict[str, Any], before: dict[str, Any] | None
) -> None:
    """Deletes the complete file of an earlier command; says in which settings it differed, if in any."""
    if not files.is_complete(path):
        return
    path.unlink()
    if before is None:
        return
    old = _told(harness_task, before.get("run", settings), before["settings"], before["examples"])
    new = _told(harness_task, settings, _task_settings(harness_task), count)
    wrong = [name for name in new | old if old.get(name) != new.get(name)]
    if changes := "; ".join(f"{name} {json.dumps(old.get(name))}, now {json.dumps(new.get(name))}" for name in wrong):
        say(f"{path}: replaces results of other settings: {changes}")


def _task_settings(harness_task: HarnessTask) -> dict[str, Any]:
    """The keys of a task that are not the defaults, as JSON."""
    return harness_task.model_dump(mode="json", exclude_defaults=True, exclude={"source"})


def _told(harness_task: HarnessTask, run: dict[str, Any], keys: dict[str, Any], count: int) -> dict[str, Any]:
    """Settings as a user gives them."""
    return {**run, **{f"{harness_task.name}.{key}": value for key, value in keys.items()}, "examples": count}


def _write_summary(
    folder: Path, earlier: dict[tuple[str, int], dict[str, Any]], task_results: list[Result], more: dict[str, Any]
) -> None:
    """Writes `results.json`: what was made, and what earlier commands left."""
    entries = {key: entry for key, entry in earlier.items() if files.is_complete(_path(folder, *key))}
    entries |= {(r.task.name, r.shots): {**r.plain(), **more} for r in task_results}
    results = files.without_nan({"results": list(entries.values())})  # such as a correlation of equal scores
    text = json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "results.json", f"{text}\n")


def _of_first(value: np.ndarray) -> np.ndarray:
    """The first process's value, in all."""
    if jax.process_count() == 1:
        return value
    from jax.experimental import multihost_utils

    return multihost_utils.broadcast_one_to_all(value)


def _corpus(path: str) -> bytes:
    """The beginning of a file's text."""
    text = bytearray()
    for file in tables.expand(path, "--corpus"):
        format = "jsonl" if ".jsonl" in file else "text"
        for row in tables.read(file, format):
            line = str(tables.column(row, "text", tables.where(file, row, format)))
            text += line.rstrip("\n").encode() + b"\n"
            if len(text) > CORPUS_BYTES:
                return bytes(text[:CORPUS_BYTES])
    return bytes(text)
