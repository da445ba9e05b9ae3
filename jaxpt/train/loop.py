"""`jaxpt train`: the one place where a run starts, goes on, stops and is interrupted."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxpt import config as configs
from jaxpt.config import Config, TrainStage
from jaxpt.config.plain import leaves
from jaxpt.data import preparing, tokenizers
from jaxpt.data.base import Data
from jaxpt.data.checks import cache_root
from jaxpt.data.fingerprint import as_json
from jaxpt.errors import UserError
from jaxpt.objectives.base import Objective
from jaxpt.parallel import compiler, distributed, failures, processes
from jaxpt.runtime import plugins, signals
from jaxpt.train import (
    amounts,
    beginning,
    checkpoint,
    compiled,
    ending,
    evaluation,
    flops,
    foreign,
    out_of_memory,
    preflight,
    profile,
    programs,
    resources,
    state,
    step,
    teachers,
    trainable,
)
from jaxpt.train.display import Display, console, duration, say, warn
from jaxpt.train.lock import hold
from jaxpt.train.metrics import Metrics
from jaxpt.train.run_dir import (
    check_fingerprint,
    claim,
    edited_modules,
    has_checkpoint,
    make,
    moved,
    put_aside_damaged,
    removed_on_failure,
    settings,
)
from jaxpt.train.state import Setup, State
from jaxpt.train.timings import Timings

Figures = dict[str, jax.Array]

MOST_SKIPPED = 10
"""So many steps in a row without a finite loss and gradient end a run."""

SLOW = 60.0
"""From so many seconds on, what hosts prepare each for itself is said."""

_OF_RUN = (
    "that the run was trained with, which is kept in its directory: leave the path as it was, or choose another run_dir"
)

AHEAD = 4
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
    console.quiet = not checkpoint.is_primary()
    with failures.shared(config.distributed.heartbeat_timeout), plugins.explained():
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
    for line in trainable.lines(config, setup.network):
        say(line)
    phases = [setup.for_phase(configs.at_phase(config, index), index) for index in range(len(starts))]
    largest = max(phases, key=lambda phase: state.size(phase.shapes))  # one that trains more has a larger state
    checkpoint.check_space(largest, config.checkpoint, run_dir)
    with contextlib.ExitStack() as stack:
        new_dirs = make(run_dir)
        if checkpoint.is_primary():
            stack.enter_context(hold(run_dir))
            put_aside_damaged(run_dir, say)
            stack.enter_context(removed_on_failure(run_dir, new_dirs))
        checkpoints = checkpoint.Checkpoints(run_dir, config.checkpoint)
        stack.callback(checkpoints.close)
        timings.mark("model, mesh, shapes")
        current, meta = beginning.begin(setup, checkpoints, run_dir)
        done = int(current.step)
        timings.mark("weights and optimizer state")
        run = Run(config, setup, run_dir, checkpoints, starts, begun, evaluation.Patience(config, meta), timings)
        if done >= config.train.steps or run.patience.is_over:
            more = "train.patience=null" if run.patience.is_over else f"train.steps={2 * done}"
            say(f"{run_dir} is finished at step {done}; `{more}` continues it")
            run.enter_phase(configs.phase_of(config, done), meta, trains=False)
            run.missed = tuple(meta.get("missed", ()))
            return ending.finish(run, current)
        say(beginning.describe(setup, checkpoint.disk_need(largest, config.checkpoint)))
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
    phase: int = -1
    stopped: bool = False
    """By a signal, which this or another process received."""
    skipped: int = 0
    """Steps in a row, up to the last one logged, whose update was skipped."""
    last_loss: float | None = None
    missed: tuple[str, ...] = ()
    """Evaluators that were due when a signal came: they run before the next step."""

    # Set by enter_phase.
    programs: Callable[[], programs.Built] = dataclasses.field(init=False)
    """Waits for the phase's programs, which another thread makes."""
    phase_config: Config = dataclasses.field(init=False)
    objective: Objective = dataclasses.field(init=False)
    data: Data = dataclasses.field(init=False)
    data_start: int = dataclasses.field(init=False)
    """The step that saw the first batch of `data`."""
    evaluators: evaluation.Evaluators = dataclasses.field(init=False)
    flops: float = dataclasses.field(init=False, default=0.0)
    digest: str | None = dataclasses.field(init=False, default=None)
    code: dict[str, str] = dataclasses.field(init=False)
    """{module of one's own: digest of its source}, as it was imported."""

    def run(self, current: State, meta: dict[str, Any] | None) -> int:
        """Trains from `current` to the end, phase by phase."""
        done = first = int(current.step)
        self.missed = tuple((meta or {}).get("missed", ()))
        self.skipped = int(current.skipped)
        metrics = Metrics(self.run_dir, self.config, done)
        ends = (*self.starts[1:], self.config.train.steps)
        try:
            for index, end in enumerate(ends):
                if done >= end or self.patience.is_over:
                    continue
                self.enter_phase(index, meta if done == first else None)
                if done == self.starts[index]:
                    current = self.setup.begin_phase(current, new_data=done == self.data_start)
                with out_of_memory.explained(self.phase_config):
                    current = self._phase(current, end, metrics)
                done = int(current.step)
        finally:
            metrics.close()
        return ending.finish(self, current)

    def enter_phase(self, index: int, meta: dict[str, Any] | None, trains: bool = True) -> None:
        """Prepares the phase's data and objective; refuses other data than those of the checkpoint in `meta`.

        Its programs are compiled meanwhile, where it `trains`.
        """
        stage = configs.train_stages(self.config)[index]
        same_data = self.phase >= 0 and configs.train_stages(self.config)[self.phase].phase == stage.phase
        self.phase, self.phase_config = index, configs.at_phase(self.config, index)
        self.data_start = stage.phase_start
        self.setup = self.setup.for_phase(self.phase_config, index)
        self.objective = self.phase_config.objective
        later = [configs.at_phase(self.config, n) for n in range(index, len(self.starts))]
        for phase, config in enumerate(later, index):  # what is wrong with the last one is said before the first starts
            step.check(config, self.setup)
            if config.train.compiled is not None:
                compiled.check(self.setup.for_phase(config, phase), Path(config.train.compiled), phase)
        if trains:
            self.programs = programs.start(self.setup, index)
        if not same_data:
            preparing.import_pipeline(self.phase_config)
            self.timings.mark("import of the data pipeline (TensorFlow, SeqIO)")
            self._open_data(stage, meta if meta is not None and meta["phase"] == index else None)
        self.code = plugins.digests(configs.own_modules(self.phase_config)) | self.data.code
        names = edited_modules(self.code, meta or {})
        teachers.check_vocabulary(self.setup, self.data.tokenizer)
        for config in later:
            config.objective.check(config.model, config.data.length, self.data.vocabulary)
        if meta is not None and meta["phase"] == index:
            check_fingerprint(meta["data"], as_json(self.data.fingerprint), str(self.run_dir), names)
            if "data.tokenizer.path" in [key for key, _, _ in moved(self.config)]:
                tokenizers.check_same(self.phase_config, self.data.tokenizer, _OF_RUN)
        if names:
            say(f"edited since the checkpoint: {names}; the steps from here on use the code as it is now")
        if checkpoint.is_primary():
            if not has_checkpoint(self.run_dir):
                for reader in foreign.readers():
                    reader.carry(self.phase_config, self.data.vocabulary)
            claim(self.config)
        self.timings.mark("data")

    def _open_data(self, stage: TrainStage, meta: dict[str, Any] | None) -> None:
        """Prepares what the phases of a stage of data see; `meta`: of a checkpoint within it."""

        def check_source(found: Any) -> None:
            if meta is not None:  # before records are made of other files
                check_fingerprint({"source": meta["data"]["source"]}, {"source": as_json(found)}, str(self.run_dir))

        begun, root = time.perf_counter(), cache_root(self.phase_config)
        point, patience = f"data of phase {self.phase + 1}", self.config.distributed.timeout
        with processes.first_host_first(root, point, patience, warn) as apart:
            self.data = preparing.prepare(self.phase_config, stage.phase, say, check_source=check_source)
        if apart and (seconds := time.perf_counter() - begun) > SLOW:
            say(f"{len(apart) + 1} hosts prepared the data, each for itself, in {duration(seconds)}: {root} is not "
                "shared; with data.cache_dir on a disk that all of them have it is done once")  # fmt: skip
        for store in self.data.stores.values():
            store.check_in_background(jax.process_index(), jax.process_count())
        next_phases = [other.start for other in configs.train_stages(self.config) if other.phase > stage.phase]
        steps = min([*next_phases, self.config.train.steps]) - stage.phase_start
        say(amounts.line(self.phase_config, self.data, steps))
        self.evaluators = evaluation.Evaluators(self.setup.for_evaluation(), self.data)

    def _phase(self, current: State, end: int, metrics: Metrics) -> State:
        """The steps of one phase; ends the process where a signal came."""
        ready = self._compile()
        done = int(current.step)
        rows = distributed.rows(self.setup.mesh, self.phase_config.data.batch_size)
        feed = resources.InputWait(
            self.data.train.batches(done - self.data_start, rows=rows), self.phase_config.data.readers
        )
        tokens = self.phase_config.data.batch_size * step.tokens_per_example(self.setup, self.objective)
        peak = flops.peak(jax.devices()[0])
        metrics.write(done, {"phase/text_tokens_per_step": self.text(), "phase/flops_per_step": self.flops})
        processes.barrier(f"phase {self.phase + 1}", self.config.distributed.timeout, warn)
        # From the first step on there is something to save.
        with signals.deferred():
            with (
                self.setup.use(),
                failures.stepping(),
                Display(done, self.config.train.steps, tokens, self.flops, peak and peak * jax.device_count()) as show,
            ):
                current = self._steps(current, end, feed, ready, metrics, show)
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
        train, done = self.phase_config.train, int(current.step)
        save_every = self.phase_config.checkpoint.every or evaluation.default_every(self.phase_config)
        any_process, window, to_save = distributed.AnyProcess(self.setup.mesh), [], False

        def stop() -> bool:
            self.stopped = self.stopped or any_process(signals.received() is not None)
            return self.stopped

        if self.missed:
            self._evaluate(current, done, display, metrics, stop)
            self.checkpoints.add_figures(done, evaluation.figures(self.evaluators.found))
            self.missed = ()
        batch, tracing = (
            step.put(feed.next(), self.setup),
            profile.Profile(self.config.profile, self.run_dir, ready.train),
        )
        self.timings.mark("the first batch")
        while done < end and not self.stopped and not self.patience.is_over:
            tracing.before(done + 1)
            current, figures = ready.train(current, batch, *self.setup.teacher_params())
            done += 1
            tracing.after(done, figures)
            if self.timings.wanted:
                jax.block_until_ready(figures)
                self.timings.mark("the first step")
                say("\n".join(self.timings.end(ready)))
            if done < end:  # the device works on this step while the host gets the next batch
                batch = step.put(feed.next(figures), self.setup)
            window.append(figures)
            if len(window) > AHEAD:
                jax.block_until_ready(window[-1 - AHEAD])
            if stop() or done % train.log_every == 0 or done in (end, self.starts[self.phase] + 1):
                self._log(window, done, display, metrics, feed)
                window = []
            self.evaluators.forget()
            if not self.stopped:
                self._evaluate(current, done, display, metrics, stop)
            to_save = to_save or done % save_every == 0
            if to_save or self.stopped or self.patience.is_over or done == end:
                to_save = not self._save(current, ready.check)
        tracing.stop()
        return current

    def text(self) -> float:
        """Tokens of text that a step sees, whatever the objective makes of them."""
        return round(self.phase_config.data.batch_size * self.data.text_per_row, 3)

    def _compile(self) -> programs.Programs:
        """The phase's programs, compiled before its first step; says what a step takes."""
        phase = f"phase {self.phase + 1} of {len(self.starts)}: " if len(self.starts) > 1 else ""
        compiled_programs, lines = self.programs()
        for line in lines:
            say(phase + line)
        self.timings.mark("waiting for the step's program")
        self.evaluators.compile()
        self.timings.mark("programs of the evaluators")
        self.flops, self.digest = compiled_programs.flops, compiled_programs.digest
        return compiled_programs

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
            if self.skipped == MOST_SKIPPED:
                raise UserError(self._ruined(f"loss or gradient was not finite in {MOST_SKIPPED} steps in a row"))
        if any(value["skipped"] for value in values):
            count = int(sum(value["skipped"] for value in values))
            say(f"step {done}: {count} update(s) skipped, the loss or its gradient was not finite")

    def _ruined(self, problem: str) -> str:
        """The last words of a run whose numbers are not finite any more."""
        steps = self.checkpoints.steps()
        newest = f"its newest checkpoint, of step {steps[-1]}, is from before" if steps else "it has no checkpoint"
        return f"{self.run_dir}: {problem}; {newest}; lower optimizer.learning_rate or set optimizer.clip_norm"

    def _evaluate(
        self, current: State, done: int, display: Display, metrics: Metrics, stop: Callable[[], bool]
    ) -> None:
        """Runs the evaluators that are due."""
        begun, due = time.perf_counter(), self.evaluators.due(done)
        due = [evaluator for evaluator in due if not self.missed or evaluator.called in self.missed]
        if not due:
            return
        for name, result in self.evaluators.run(due, self.setup.to_model(current), stop):
            if figures := evaluation.figures({name: result}):
                metrics.write(done, figures)
            for n, line in enumerate(evaluation.lines(name, result)):
                say(line if n else f"step {done}/{self.config.train.steps}  {line}")
        for line in (self.evaluators.without_best(), self.patience.see(evaluation.figures(self.evaluators.found))):
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
                raise UserError(self._ruined(f"the updates of the last {skipped} steps were skipped"))
            return False
        if nonfinite := step.not_finite(current, check(current)):
            more = f" and {len(nonfinite) - 1} more" if len(nonfinite) > 1 else ""
            raise UserError(self._ruined(f"{nonfinite[0]}{more} are not finite at step {done}, which is not saved"))
        meta = {"phase": self.phase, "data": self.data.fingerprint, "config": settings(self.config)}
        meta |= teachers.identities(self.setup)
        meta |= self.patience.saved() | {"code": self.code}
        due = self.evaluators.due(done) if self.stopped else ()
        meta["missed"] = [evaluator.called for evaluator in due if evaluator.called not in self.evaluators.found]
        self.checkpoints.save(current, meta, evaluation.figures(self.evaluators.found))
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
