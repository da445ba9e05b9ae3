"""How a run ends: the last evaluations, the best checkpoint's test, and the receipt."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from jaxpt.data.parts import each_task
from jaxpt.train import checkpoint, evaluation, run_dir, step, teachers
from jaxpt.train.display import duration, say
from jaxpt.train.metrics import environment
from jaxpt.train.next_commands import next_commands
from jaxpt.train.state import State

if TYPE_CHECKING:
    from jaxpt.train.loop import Run


def finish(run: Run, current: State) -> int:
    """The last words: what has not been evaluated yet, receipt, what to do next.

    Args:
      run: a run whose steps are done.
      current: its state.

    Returns:
      0, the exit code of a finished run.
    """
    for name, result in run.evaluators.run(run.evaluators.missing(), run.setup.to_model(current)):
        for line in evaluation.lines(name, result):
            say(line)
    if run.missed:
        missed = {name: run.evaluators.found[name] for name in run.missed}
        evaluation.record(run.run_dir, run.config, int(current.step), evaluation.figures(missed), run.checkpoints)
    measured = {name: result.metrics for name, result in run.evaluators.found.items() if result.metrics != {}}
    if checkpoint.is_primary():
        rows = ({"evaluator": name, "lines": result.lines} for name, result in run.evaluators.found.items())
        run_dir.write_lines(run.run_dir / "evaluations" / "lines.jsonl", (row for row in rows if row["lines"]))
    if run.config.task is not None:
        measured |= _best(run, current)
    write_receipt(run, current, finished=True, **measured)
    say(
        f"done in {duration(time.time() - run.begun)}: {run.run_dir} holds checkpoints, metrics and tokenizer\n"
        + next_commands(run.phase_config, run.data, run.run_dir)
    )
    return 0


def _best(run: Run, current: State) -> dict[str, Any]:
    """Names the best checkpoint of a task, scores it once on the test set, and shows where it is wrong there, or on
    the validation set if there is no other."""
    best, metric = run.checkpoints.best(), run.config.checkpoint.best_metric
    best = int(current.step) if best is None else best
    say(f"best checkpoint by {metric}: step {best}; predict, export and evaluation use it")
    has_test = any(task_config.data.has_test for task_config in each_task(run.config).values())
    split = "test" if has_test else "validation"
    if (evaluate := run.evaluators.of_task(split)) is None:
        return {"best_step": best}
    params = run.checkpoints.restore_params(run.setup.for_evaluation(), best)
    measured = run.checkpoints.metrics(best)
    result = evaluate(params, measured, lambda: False)
    details = result.details(params, measured)
    for line in (*(evaluation.lines(split, result) if split == "test" else ()), *details.lines):
        say(line)
    if checkpoint.is_primary():
        run_dir.write_lines(run.run_dir / "evaluations" / f"predictions_{split}.jsonl", details.rows)
        run_dir.write_lines(run.run_dir / "evaluations" / f"mistakes_{split}.jsonl", details.parts)
    known = {"best_step": best, "best_value": measured.get(metric), "best_mode": run.config.checkpoint.best_mode}
    if result.computed:
        known["computed"] = dict(result.computed)
    if split == "test":
        return known | {"test": result.metrics, "test_constant": result.majority_baseline}
    return known | {"best": result.metrics, "task_constant": result.majority_baseline}


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
    before, done = run_dir.receipt(run.run_dir), int(current.step)
    last = {
        record["step"]: record["train/loss"] for record in run_dir.records(run.run_dir)[0] if "train/loss" in record
    }.get(done)
    receipt = {
        "finished": finished,
        "step": done,
        "skipped_steps": int(current.skipped_total),
        "parameters": run.setup.network.count_params(),
        "tokens_per_step": run.phase_config.data.batch_size * step.tokens_per_example(run.setup, run.objective),
        "text_tokens_per_step": run.text(),
        "flops_per_step": run.flops,
        "wall_seconds": round(before.get("wall_seconds", 0.0) + time.time() - run.begun, 1),
        # Without a step in this process: what was logged of the last one.
        "train_loss": before.get("train_loss", last) if run.last_loss is None else run.last_loss,
        **({"compiled": run.digest} if run.digest else {}),
        **({"code": run.code} if run.code else {}),
        **results,
        "data": {"summary": run.data.summary, "fingerprint": run.data.fingerprint},
        **teachers.identities(run.setup),
        "environment": environment(),
    }
    run_dir.write_receipt(run.run_dir, receipt)
