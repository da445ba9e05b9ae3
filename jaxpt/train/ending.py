"""How a run ends: the last evaluations, the best checkpoint's test, the receipt, and commands for what comes next."""

from __future__ import annotations

import shlex
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.data.labelled.files import NAMED
from jaxpt.data.parts import each_task
from jaxpt.errors import UserError, fitted
from jaxpt.objectives.formats import Languages
from jaxpt.parallel import processes
from jaxpt.runtime import progress, signals
from jaxpt.runtime.stamp import stamped
from jaxpt.train import checkpoint, evaluation, goodput, run_dir, teachers
from jaxpt.train.display import duration, say
from jaxpt.train.evaluators import Result
from jaxpt.train.metrics import environment
from jaxpt.train.state import State

if TYPE_CHECKING:
    from jaxpt.data.base import Data
    from jaxpt.train.loop import Run


def finish(run: Run, current: State) -> int:
    """Evaluates what is missing, writes the receipt, and says what to do next.

    Args:
      run: a run whose steps are done.
      current: its state.

    Returns:
      0, the exit code of a finished run.
    """
    run.clock.switch("evaluation")
    for name, result in run.phase.evaluators.run(run.phase.evaluators.missing(), run.phase.setup.to_model(current)):
        for line in run.phase.evaluators.lines(name, result):
            say(line)
    results = run.phase.evaluators.found
    if missed := {name: results[name] for name in run.pending_evaluators if name in results}:
        evaluation.record(run.run_dir, run.config, int(current.step), evaluation.figures(missed), run.checkpoints)
    measured = {name: result.metrics for name, result in results.items() if result.metrics != {}}
    if checkpoint.is_primary():
        rows = ({"evaluator": name, "lines": result.lines} for name, result in results.items())
        run_dir.write_lines(run.run_dir / "evaluations" / "lines.jsonl", (row for row in rows if row["lines"]))
    if run.config.task is not None:
        measured |= _best(run, current)
    elif progress.display.quiet and (last := run.config.checkpoint.best_metric.partition("/")[0]) in results:
        _say_result(*run.phase.evaluators.lines(last, results[last]))
    write_receipt(run, current, finished=True, **measured)
    run.end_watch()
    if run.local is not None:
        run.local.forget()
    say(
        f"done in {duration(time.monotonic() - run.begun)}: {run.run_dir} holds checkpoints, metrics and tokenizer\n"
        + next_commands(run.phase.config, run.phase.data, run.run_dir, _extension(run, int(current.step)))
    )
    return 0


def _say_result(*lines: str) -> None:
    """Says lines with what the run reached; with `--quiet`, too, which leaves out its progress."""
    for line in lines:
        if progress.display.quiet and checkpoint.is_primary():
            print(stamped(fitted(line)), flush=True)
        else:
            say(line)


def stop(run: Run, current: State) -> None:
    """Says where a run stands after a signal, writes the receipt, and ends the process.

    Args:
      run: a run that a signal stopped.
      current: its state.
    """
    done, saved = int(current.step), run.checkpoints.steps()
    if done in saved:
        say(f"stopped by a signal after step {done}, saved; re-run the same command to resume")
    else:
        resume_point = f"step {saved[-1]}" if saved else "the start"
        say(f"stopped by a signal after step {done}, whose update was skipped; re-run the same command to resume "
            f"from {resume_point}")  # fmt: skip
    write_receipt(run, current, finished=False)
    run.end_watch()
    run.end_copies()
    signals.leave(signals.received() or signal.SIGTERM)


def _best(run: Run, current: State) -> dict[str, Any]:
    """Names the best checkpoint of a task, scores it once on the test set, and shows where it is wrong there, or on
    the validation set if there is no other."""
    best, metric = processes.from_first("the best step", run.checkpoints.best()), run.config.checkpoint.best_metric
    ranked = f"best checkpoint by {metric}" if best is not None else f"no checkpoint has {metric}; the last checkpoint"
    best = int(current.step) if best is None else best
    _say_result(f"{ranked}: step {best}; predict, export and evaluation use it")
    has_test = any(task_config.data.has_test for task_config in each_task(run.config).values())
    split = "test" if has_test else "validation"
    if (evaluate := run.phase.evaluators.of_task(split)) is None:
        return {"best_step": best}
    measured = run.checkpoints.metrics(best)
    is_evaluated = split == "validation" and best == int(current.step)
    result = run.phase.evaluators.rescored_task(measured) if is_evaluated else None
    if result is not None:
        params = run.phase.setup.to_model(current)
    else:
        params = run.checkpoints.restore_params(run.setup.for_evaluation(), best)
        result = evaluate(params, measured, lambda: False)
    details = result.details(params, measured)
    trivial = trivial_lines(result, metric.partition("/")[2], run.config.checkpoint.best_mode)
    is_new = split == "test" or progress.display.quiet  # those of the validation set were said as they were measured
    _say_result(*(evaluation.lines(split, result) if is_new else ()), *trivial)
    for line in details.lines:
        say(line)
    if checkpoint.is_primary():
        run_dir.write_lines(run.run_dir / "evaluations" / f"predictions_{split}.jsonl", details.rows)
        run_dir.write_lines(run.run_dir / "evaluations" / f"mistakes_{split}.jsonl", details.parts)
    known = {"best_step": best, "best_value": measured.get(metric), "best_mode": run.config.checkpoint.best_mode}
    if result.computed:
        known["computed"] = dict(result.computed)
    if details.simple_models:
        known["simple_models"] = dict(details.simple_models)
    if split == "test":
        return known | {"test": result.metrics, "test_constant": result.majority_baseline}
    return known | {"best": result.metrics, "task_constant": result.majority_baseline}


def trivial_lines(result: Result, name: str, mode: str) -> list[str]:
    """A line where a model is no better than a trivial prediction.

    Args:
      result: of the task.
      name: of the metric.
      mode: "max" or "min", whichever is best.

    Example:
      >>> trivial_lines(Result({"accuracy": 0.5}, majority_baseline={"accuracy": 0.625}), "accuracy", "max")
      ['accuracy 0.5000 is no better than 0.6250, that of a trivial prediction; train longer']
    """
    value, trivial = result.metrics.get(name), result.majority_baseline.get(name)
    if value is None or trivial is None or (value < trivial if mode == "min" else value > trivial):
        return []
    return [f"{name} {value:.4f} is no better than {trivial:.4f}, that of a trivial prediction; train longer"]


def write_receipt(run: Run, current: State, finished: bool, **results: Any) -> None:
    """Writes run.json; the wall time adds up over the run's starts.

    Args:
      run: a run that ends, at its last step or by a signal.
      current: its state.
      finished: whether all its steps are done.
      **results: what was measured at its end, by the keys of run.json.
    """
    if not checkpoint.is_primary():
        return
    before, done, seconds = run_dir.receipt(run.run_dir), int(current.step), run.clock.seconds()
    if not before.get("time"):  # of an earlier version, which knew the sum alone
        seconds["start"] += before.get("wall_seconds", 0.0)
    last = {
        record["step"]: record["train/loss"] for record in run_dir.records(run.run_dir)[0] if "train/loss" in record
    }.get(done)
    receipt = {
        "finished": finished,
        "step": done,
        "skipped_steps": int(current.skipped_total),
        "spikes": before.get("spikes", 0) + run.num_spikes,
        **run.rewinds.saved().get("spikes", {}),
        "parameters": run.setup.network.count_params(),
        "tokens_per_step": run.phase.tokens_per_step,
        "text_tokens_per_step": run.phase.text_tokens_per_step,
        "flops_per_step": run.phase.flops or before.get("flops_per_step", 0.0),  # 0.0 without a step in this process
        "wall_seconds": round(sum(seconds.values()) - seconds["down"], 1),
        "time": goodput.shares(seconds),
        # Without a step in this process: what was logged of the last one.
        "train_loss": before.get("train_loss", last) if run.last_loss is None else run.last_loss,
        **({"compiled": run.phase.digest} if run.phase.digest else {}),
        **({"code": run.phase.code} if run.phase.code else {}),
        **results,
        "data": {"summary": run.phase.data.summary, "fingerprint": run.phase.data.fingerprint},
        **teachers.identities(run.setup),
        "environment": environment(),
    }
    run_dir.write_receipt(run.run_dir, receipt)


def _extension(run: Run, done: int) -> str:
    """The overrides under which a finished run trains on."""
    steps, overrides = run.config.train.steps, ["train.patience=null"] * run.patience.is_over
    if done >= steps:
        overrides.append(configs.extension(run.config, 2 * steps))
    return " ".join(overrides)


def next_commands(config: Config, data: Data, run_dir: Path, extension: str) -> str:
    """Lines with a command each; the last one generates text, if the model does.

    Args:
      config: the run's configuration, of its last phase.
      data: the run's data.
      run_dir: the run.
      extension: the overrides under which it trains on.

    Returns:
      The lines.
    """
    run, prompt = shlex.quote(str(run_dir)), shlex.quote(example_prompt(config, data))
    lines = [f"to evaluate it: jaxpt eval {run}"]
    if config.data.source != "batches":  # which are those of its steps alone
        lines.append(f"to see its data: jaxpt inspect {run}")
        lines.append(f"to extend it: jaxpt train {run} {extension}")
    if config.task is not None and config.task.kind == "dialogue":
        lines.append(f"to try it: jaxpt chat {run}")
    elif config.task is not None:
        name, task_config = next(iter(each_task(config).items()))
        source, use = task_config.data, f" task.use={name}" if name else ""
        paths = source.test_path or source.validation_path
        file = "FILE" if source.source in NAMED or paths is None else paths if isinstance(paths, str) else paths[0]
        suffix = Path(file.removesuffix(".gz")).suffix
        out = f"predictions{suffix if suffix in ('.csv', '.tsv', '.parquet') else '.jsonl'}"
        lines.append(f"to try it: jaxpt predict {run} {shlex.quote(file)} --out {out}{use}")
    elif _generates(config, data):
        lines.append(f"to try it: jaxpt generate {run} --prompt {prompt}")
    return "\n".join(lines)


def example_prompt(config: Config, data: Data) -> str:
    """A prompt for the model: with a mask or a sentinel if it fills them, as its tokenizer writes it."""
    blank = _blank(config, data)
    return "The cat sat on" if blank is None else f"The {data.tokenizer.tokens([blank])[0]} sat on the mat."


def _generates(config: Config, data: Data) -> bool:
    """True if `jaxpt generate` can answer: an encoder fills masks, other models decode with a cache."""
    if config.objective.family == "encoder":
        is_trained = "masked_positions" in config.objective.data_spec(config.data.length).features
        return is_trained and data.vocabulary.mask is not None
    return config.objective.network(config.model).has_cache


def _blank(config: Config, data: Data) -> int | None:
    """The id of what the model fills."""
    vocabulary, family = data.vocabulary, config.objective.family
    if family == "encoder":
        return vocabulary.mask
    try:
        languages = next((Languages(i, i) for i in vocabulary.languages), None)
        kind = config.objective.text_format(config.model, vocabulary, languages=languages).blank
    except UserError:  # a finished run does not fail here
        return None
    return {"mask": vocabulary.mask, "sentinels": vocabulary.first_sentinel}.get(kind)
