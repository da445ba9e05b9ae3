"""`jaxpt train`: the one place where a run starts, goes on, stops and is interrupted."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.config.plain import leaves
from jaxpt.errors import UserError, listed
from jaxpt.parallel import compiler, distributed, failures, processes
from jaxpt.runtime import plugins, progress, signals
from jaxpt.train import (
    checkpoint,
    ending,
    evaluation,
    flops,
    initial,
    out_of_memory,
    preflight,
    profile,
    programs,
    resources,
    state,
    step,
    teachers,
    trainable,
    vocabularies,
)
from jaxpt.train.display import Display, console, say, warn
from jaxpt.train.lock import hold
from jaxpt.train.metrics import Metrics
from jaxpt.train.phase import Phase, enter
from jaxpt.train.run_dir import make, moved, quarantine, removed_on_failure, settings
from jaxpt.train.state import Setup, State
from jaxpt.train.timings import Timings

Figures = dict[str, jax.Array]

MAX_NONFINITE_STEPS = 10
"""So many steps in a row without a finite loss and gradient end a run."""

MAX_INFLIGHT_STEPS = 4
"""So many steps are queued on the device at most: a signal or a peer's end does not wait for all that the host could
queue up to the next log line, nor do their batches fill the memory."""


def train(config: Config, timings: Timings | None = None) -> int:
    """Trains as the recipe says, from where the run_dir stands.

    Args:
      config: the run's configuration.
      timings: the clock of the process's start, whose table is said after the first step; None for none.

    A signal ends the process (`jaxpt.runtime.signals`): at once while there is nothing to save, else after the step
    under way and a checkpoint.

    Returns:
      0, the exit code of a finished run.

    Raises:
      UserError: for all that a user can mend, before the first step; and where the numbers are not finite any more.
    """
    processes.start(config.distributed)
    console.quiet = progress.display.quiet or not checkpoint.is_primary()
    with progress.display.on(console), failures.shared(config.distributed.heartbeat_timeout), plugins.explained():
        settings = leaves(configs.dump(config) | {"distributed": None})
        processes.assert_same_settings(dict(settings), config.distributed.timeout)
        with out_of_memory.explained(config):
            return _train(config, timings or Timings())


def _train(config: Config, timings: Timings) -> int:
    begun = time.time()
    timings.mark("Python, the recipe, imports of JAX and Orbax")
    say(f"jaxpt train: {config.model.kind} · {config.objective.kind} · {config.train.steps} steps → {config.run_dir}")
    starts = configs.phase_starts(config)
    say("\n".join(configs.phase_lines(config)))
    compiler.enable_compilation_cache()
    teachers.find_all(config)
    preflight.check(config)
    run_dir = Path(config.run_dir)
    for key, was, now in moved(config):
        say(f"{key} was {was}, is {now}: the run resumes if the files there are the same")
    setup = teachers.attach(state.setup(config), say)
    for line in trainable.lines(config, setup.layout):
        say(line)
    phases = [setup.for_phase(phase, index) for index, phase in enumerate(configs.phase_configs(config))]
    largest = max(phases, key=lambda phase: state.size(phase.shapes))  # one that trains more has a larger state
    resources.check_space(largest, config.checkpoint, run_dir)
    with contextlib.ExitStack() as stack:
        new_dirs = make(run_dir)
        if checkpoint.is_primary():
            stack.enter_context(hold(run_dir))
            quarantine(run_dir, say)
            stack.enter_context(removed_on_failure(run_dir, new_dirs))
        checkpoints = checkpoint.Checkpoints(run_dir, config.checkpoint)
        stack.callback(checkpoints.close)
        timings.mark("model, mesh, shapes")
        current, meta = initial.begin(setup, checkpoints, run_dir)
        done = int(current.step)
        timings.mark("weights and optimizer state")
        run = Run(config, setup, run_dir, checkpoints, starts, begun, evaluation.Patience(config, meta), timings)
        if done >= config.train.steps or run.patience.is_over:
            more = "train.patience=null" if run.patience.is_over else f"train.steps={2 * done}"
            say(f"{run_dir} is finished at step {done}; `{more}` continues it")
            run.phase = enter(config, setup, configs.phase_of(config, done), None, meta, timings, trains=False)
            run.pending_evaluators = tuple(meta.get("missed", ()))
            return ending.finish(run, current)
        say(initial.describe(setup, resources.disk_need(largest, config.checkpoint)))
        return run.run(current, meta)


@dataclasses.dataclass
class Run:
    """A run under way."""

    config: Config
    setup: Setup
    run_dir: Path
    checkpoints: checkpoint.Checkpoints
    starts: tuple[int, ...]
    begun: float
    patience: evaluation.Patience
    timings: Timings
    phase: Phase | None = None
    stopped: bool = False
    """By a signal, which this or another process received."""
    skipped: int = 0
    """Steps in a row, up to the last one logged, whose update was skipped."""
    last_loss: float | None = None
    begins: bool = False
    """Before its first step, and not resumed from a checkpoint."""
    pending_evaluators: tuple[str, ...] = ()
    """Evaluators that were due when a signal came: they run before the next step."""

    def run(self, current: State, meta: dict[str, Any] | None) -> int:
        """Trains from `current` to the end, phase by phase."""
        done = first = int(current.step)
        self.pending_evaluators = tuple((meta or {}).get("missed", ()))
        self.skipped, self.begins = int(current.skipped), not done and meta is None
        metrics = Metrics(self.run_dir, self.config, done)
        try:
            for index, (start, end) in enumerate(itertools.pairwise((*self.starts, self.config.train.steps))):
                if done >= end or self.patience.is_over:
                    continue
                saved = meta if done == first else None
                self.phase = enter(self.config, self.setup, index, self.phase, saved, self.timings)
                if self.begins:
                    current = vocabularies.with_constants(self.phase.setup, current, self.phase.data.tokenizer)
                if done == start:
                    current = self.phase.setup.begin_phase(current, new_data=done == self.phase.data_start)
                with out_of_memory.explained(self.phase.config):
                    current = self._phase(current, end, metrics)
                done = int(current.step)
        finally:
            metrics.close()
        return ending.finish(self, current)

    def _phase(self, current: State, end: int, metrics: Metrics) -> State:
        """The steps of one phase; ends the process where a signal came."""
        phase, done = self.phase, int(current.step)
        ready = phase.compile(len(self.starts), self.timings)
        rows = distributed.rows(phase.setup.mesh, phase.config.data.batch_size)
        batches = phase.data.train.batches(done - phase.data_start, rows=rows)
        feed = resources.InputWait(batches, phase.config.data.readers)
        peak = flops.peak(jax.devices()[0])
        metrics.write(
            done, {"phase/text_tokens_per_step": phase.text_tokens_per_step, "phase/flops_per_step": phase.flops}
        )
        processes.barrier(f"phase {phase.index + 1}", self.config.distributed.timeout, warn)
        steps, all_peaks = self.config.train.steps, peak and peak * jax.device_count()
        # From the first step on there is something to save.
        with signals.deferred():
            with (
                phase.setup.use(),
                failures.stepping(),
                Display(done, steps, phase.tokens_per_step, phase.flops, all_peaks) as display,
            ):
                current = self._steps(current, end, feed, ready, metrics, display)
            self.checkpoints.wait()
            if self.stopped:
                metrics.close()
                self._stop(current)
        return current

    def _steps(
        self,
        current: State,
        end: int,
        feed: resources.InputWait,
        ready: programs.Programs,
        metrics: Metrics,
        display: Display,
    ) -> State:
        """The steps of one phase, or up to a signal; the last state is saved, unless updates are being skipped."""
        phase, setup, done = self.phase, self.phase.setup, int(current.step)
        save_every = phase.config.checkpoint.every or evaluation.default_every(phase.config)
        any_process, window, to_save = distributed.AnyProcess(setup.mesh), [], False

        def stop() -> bool:
            self.stopped = self.stopped or any_process(signals.received() is not None)
            return self.stopped

        if self.begins and phase.config.train.eval_on_start:
            self._evaluate(current, done, display, metrics, stop)
        if self.begins and (self.stopped or phase.config.checkpoint.save_initial_state):
            self._save(current, ready.check)
        self.begins = False
        if self.pending_evaluators:
            self._evaluate(current, done, display, metrics, stop)
            self.checkpoints.add_figures(done, evaluation.figures(self.phase.evaluators.found))
            self.pending_evaluators = ()
        batch = step.put(feed.next(), setup)
        tracing = profile.Profile(self.config.profile, self.run_dir, ready.train)
        self.timings.mark("the first batch")
        while done < end and not self.stopped and not self.patience.is_over:
            tracing.before(done + 1)
            current, figures = ready.train(current, batch, *setup.teacher_params())
            done += 1
            tracing.after(done, figures)
            if self.timings.wanted:
                jax.block_until_ready(figures)
                self.timings.mark("the first step")
                say("\n".join(self.timings.end(ready)))
            if done < end:  # the device works on this step while the host gets the next batch
                batch = step.put(feed.next(figures), setup)
            window.append(figures)
            if len(window) > MAX_INFLIGHT_STEPS:
                jax.block_until_ready(window[-1 - MAX_INFLIGHT_STEPS])
            if stop() or done % phase.config.train.log_every == 0 or done in (end, self.starts[phase.index] + 1):
                self._log(window, done, display, metrics, feed)
                window = []
            self.phase.evaluators.forget()
            if not self.stopped:
                self._evaluate(current, done, display, metrics, stop)
            to_save = to_save or done % save_every == 0
            if to_save or self.stopped or self.patience.is_over or done == end:
                to_save = not self._save(current, ready.check)
        tracing.stop()
        return current

    def _log(
        self, window: list[Figures], done: int, display: Display, metrics: Metrics, feed: resources.InputWait
    ) -> None:
        values = jax.device_get(window)
        means = {name: np.mean([v[name] for v in values], axis=0) for name in values[0]}
        # NaN in steps without the task.
        prefixes = tuple(f"{name}/" for name in getattr(self.config.task, "task_names", ()))
        for name in (name for name in means if name.startswith(prefixes)):
            finite_values = [v[name] for v in values if np.isfinite(v[name])]
            means[name] = np.mean(finite_values) if finite_values else np.nan
        rates = display.rates(done)
        rates["input_wait"], hint = feed.share(len(window) / rates["steps_per_second"])
        rate = float(self.setup.schedule(done - 1))
        self.last_loss = float(values[-1]["loss"])
        display.step(done, float(means["loss"]), rate, rates)
        metrics.write(
            done,
            {
                **{f"train/{name}": value for name, value in means.items()},
                "learning_rate": rate,
                **{f"speed/{name}": value for name, value in rates.items()},
                **{f"memory/{name}": value for name, value in resources.device_memory().items()},
            },
        )
        if hint:
            warn(f"step {done}: {hint}")
        for value in values:
            self.skipped = self.skipped + 1 if value["skipped"] else 0
            if self.skipped == MAX_NONFINITE_STEPS:
                problem = f"loss or gradient was not finite in {MAX_NONFINITE_STEPS} steps in a row"
                raise UserError(self._nonfinite_message(problem))
        if count := int(sum(value["skipped"] for value in values)):
            say(f"step {done}: {count} update(s) skipped, the loss or its gradient was not finite")

    def _nonfinite_message(self, problem: str) -> str:
        """The message of a run that ends since its numbers are not finite."""
        steps = self.checkpoints.steps()
        newest = f"its newest checkpoint, of step {steps[-1]}, is from before" if steps else "it has no checkpoint"
        return f"{self.run_dir}: {problem}; {newest}; lower optimizer.learning_rate or set optimizer.clip_norm"

    def _evaluate(
        self, current: State, done: int, display: Display, metrics: Metrics, stop: Callable[[], bool]
    ) -> None:
        """Runs the evaluators that are due."""
        begun, evaluators, pending = time.perf_counter(), self.phase.evaluators, self.pending_evaluators
        due = [evaluator for evaluator in evaluators.due(done) if not pending or evaluator.called in pending]
        if not due:
            return
        for name, result in evaluators.run(due, self.phase.setup.to_model(current), stop):
            if figures := evaluation.figures({name: result}):
                metrics.write(done, figures)
            for n, line in enumerate(evaluation.lines(name, result)):
                say(line if n else f"step {done}/{self.config.train.steps}  {line}")
        for line in (evaluators.without_best(), self.patience.see(evaluation.figures(evaluators.found))):
            if line:
                say(line)
        display.paused(time.perf_counter() - begun)

    def _save(self, current: State, check: Any) -> bool:
        """Starts to save the state; False where the last update was skipped: then the checkpoints before it are kept.

        Raises:
          UserError: the state is not finite.
        """
        done, skipped = int(current.step), int(current.skipped)
        if skipped:
            if done == self.config.train.steps or self.patience.is_over:
                raise UserError(self._nonfinite_message(f"the updates of the last {skipped} steps were skipped"))
            return False
        if nonfinite := step.not_finite(current, check(current)):
            problem = f"{listed(nonfinite, 1)} are not finite at step {done}, which is not saved"
            raise UserError(self._nonfinite_message(problem))
        meta = {"phase": self.phase.index, "data": self.phase.data.fingerprint, "config": settings(self.config)}
        meta |= teachers.identities(self.setup) | self.patience.saved() | {"code": self.phase.code}
        evaluators = self.phase.evaluators
        due = evaluators.due(done) if self.stopped else ()
        meta["missed"] = [evaluator.called for evaluator in due if evaluator.called not in evaluators.found]
        self.checkpoints.save(current, meta, evaluation.figures(evaluators.found))
        return True

    def _stop(self, current: State) -> None:
        """Says where the run stands after a signal, and ends the process."""
        done, saved = int(current.step), self.checkpoints.steps()
        if done in saved:
            say(f"stopped by a signal after step {done}, saved; re-run the same command to resume")
        else:
            resume_point = f"step {saved[-1]}" if saved else "the start"
            say(f"stopped by a signal after step {done}, whose update was skipped; re-run the same command to resume "
                f"from {resume_point}")  # fmt: skip
        ending.write_receipt(self, current, finished=False)
        signals.leave(signals.received() or signal.SIGTERM)
