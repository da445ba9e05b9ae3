"""`jaxpt train`: the one place where a run starts, goes on, stops and is interrupted."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxpt import config as configs
from jaxpt.config import Config, EvaluatorConfig
from jaxpt.config.plain import leaves
from jaxpt.errors import DivergedError, listed
from jaxpt.parallel import compiler, distributed, failures, processes
from jaxpt.runtime import background, maintenance, plugins, progress, signals
from jaxpt.train import (
    checkpoint,
    copies,
    corruption,
    ending,
    evaluation,
    flops,
    goodput,
    initial,
    local_checkpoints,
    out_of_memory,
    preflight,
    profile,
    programs,
    resources,
    routers,
    spikes,
    state,
    step,
    teachers,
    trainable,
    vocabularies,
    watchdog,
)
from jaxpt.train import run_dir as run_dirs
from jaxpt.train.display import Display, console, say, warn
from jaxpt.train.evaluators import default_every
from jaxpt.train.lock import hold
from jaxpt.train.metrics import Metrics
from jaxpt.train.phase import Phase, Started, enter, start_programs
from jaxpt.train.run_dir import make, moved, quarantine, removed_on_failure, settings
from jaxpt.train.state import Setup, State
from jaxpt.train.step_log import StepLog
from jaxpt.train.timings import Timings

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
    asked = processes.start(config.distributed)
    console.quiet = progress.display.quiet or not checkpoint.is_primary()
    with progress.display.on(console), failures.shared(config.distributed.heartbeat_timeout), plugins.explained():
        settings = leaves(configs.dump(config) | {"distributed": None})
        processes.assert_same_settings(dict(settings), config.distributed.timeout)
        watch = maintenance.watch(_save_before_maintenance)
        with out_of_memory.explained(config), signals.save_requests(), watch, background.scope():
            return _train(config, timings or Timings(), asked)


def _save_before_maintenance(line: str) -> None:
    """Says what is announced, and asks for a save."""
    warn(f"{line}; saving after this step")
    signals.request_save()


def _train(config: Config, timings: Timings, asked: int | None) -> int:
    begun = timings.begun
    epoch = time.time() - (time.monotonic() - begun)  # that clock may be set while the run is under way
    timings.mark("Python, the recipe, imports of JAX and Orbax")
    say(f"jaxpt train: {config.model.kind} · {config.objective.kind} · {config.train.steps} steps → {config.run_dir}")
    steps, starts, run_dir = config.train.steps, configs.phase_starts(config), Path(config.run_dir)
    say("\n".join(configs.phase_lines(config)))
    compiler.enable_compilation_cache()
    teachers.find_all(config)
    preflight.check(config)
    config = run_dirs.with_own_warmup(config)
    for key, was, now in moved(config):
        say(f"{key} was {was}, is {now}: the run resumes if the files there are the same")
    setup = teachers.attach(state.setup(config, asked=asked), say)
    corruption.check(setup)
    preflight.refuse_to_begin(config, trainable.problems(config, setup.layout))
    for line in trainable.lines(config, setup.layout):
        say(line)
    phases = [setup.for_phase(phase, index) for index, phase in enumerate(configs.phase_configs(config))]
    largest = max(phases, key=lambda phase: state.size(phase.shapes))  # one that trains more has a larger state
    resources.check_space(largest, config.checkpoint, run_dir)
    with contextlib.ExitStack() as stack:
        _open_run_dir(config, run_dir, stack)
        checkpoints = checkpoint.Checkpoints(run_dir, config.checkpoint)
        stack.callback(checkpoints.close)
        timings.mark("model, mesh, shapes")
        local = local_checkpoints.open_for(config.checkpoint, checkpoints.directory, largest, warn)
        if local is not None:
            stack.callback(local.close)
        # That of the newest checkpoint, or the first: its programs are compiled while the state is made or read.
        expected = initial.expected_phase(config, checkpoints)
        started = None if expected is None else start_programs(config, setup, expected)
        current, meta, origin = initial.begin(setup, checkpoints, run_dir, local)
        done = int(current.step)
        timings.mark("weights and optimizer state")
        clock = goodput.Clock(begun)
        clock.add(
            goodput.of_killed(run_dir, epoch, done) or run_dirs.receipt(run_dir).get("time", {}).get("seconds", {})
        )
        clock.begin(done)
        copied = config.checkpoint.copy_to if checkpoint.is_primary() else None
        contents = config.checkpoint.verify == "contents"
        end_copies = stack.enter_context(copies.copying(run_dir, copied, warn, contents))
        end_watch = stack.enter_context(watchdog.watching(config, run_dir, clock, checkpoint.is_primary()))
        run = Run(
            config, setup, run_dir, checkpoints, local, starts, begun, evaluation.Patience(config, meta), timings,
            spikes.Rewinds(config, meta, origin), clock, end_watch, end_copies, started,
        )  # fmt: skip
        del started  # `run` alone holds it
        if done >= steps or run.patience.is_over:
            more = "train.patience=null" if run.patience.is_over else configs.extension(config, 2 * done)
            say(f"{run_dir} is finished at step {done}; `{more}` continues it")
            run.phase = enter(config, setup, configs.phase_of(config, done), None, meta, timings, trains=False)
            run.pending_evaluators = tuple(meta.get("missed", ()))
            return ending.finish(run, current)
        say(initial.describe(setup, resources.disk_need(largest, config.checkpoint)))
        return run.run(current, meta, origin)


def _open_run_dir(config: Config, run_dir: Path, stack: contextlib.ExitStack) -> None:
    """Creates and locks the run directory until the stack closes, and fetches what only its copy has."""
    new_dirs = make(run_dir)
    if checkpoint.is_primary():
        stack.enter_context(hold(run_dir))
        quarantine(run_dir, say)
        stack.enter_context(removed_on_failure(run_dir, new_dirs))
        if config.checkpoint.copy_to is not None:
            copies.fetch(run_dir, Path(config.checkpoint.copy_to), say)
    if config.checkpoint.copy_to is not None:
        processes.barrier("the copy of the checkpoints", config.distributed.timeout, warn)


@dataclasses.dataclass
class Run:
    """A run under way."""

    config: Config
    setup: Setup
    run_dir: Path
    checkpoints: checkpoint.Checkpoints
    local: local_checkpoints.LocalCheckpoints | None
    starts: tuple[int, ...]
    begun: float
    patience: evaluation.Patience
    timings: Timings
    rewinds: spikes.Rewinds
    clock: goodput.Clock
    end_watch: Callable[[], None]
    """Ends the watchdog."""
    end_copies: Callable[[], None]
    """Copies what `checkpoint.copy_to` lacks."""
    started: Started | None = None
    """The phase whose programs are being compiled since before there was a state."""
    phase: Phase | None = None
    save_clock: checkpoint.SaveClock | None = None
    """Of the current phase."""
    stopped: bool = False
    """By a signal, which this or another process received."""
    save_wanted: bool = False
    """By the clock, or by a process that was asked to save."""
    skipped: int = 0
    """Steps in a row, up to the last one logged, whose update was skipped."""
    rewind_to: int | None = None
    """The step that the run is about to go back to, since there was a spike."""
    num_spikes: int = 0
    """That this process has seen."""
    last_loss: float | None = None
    router_watch: routers.Watch = dataclasses.field(default_factory=routers.Watch)
    begins: bool = False
    """Before its first step, and not resumed from a checkpoint of its own."""
    pending_evaluators: tuple[str, ...] = ()
    """Evaluators that were due when a signal came: they run before the next step."""

    def run(self, current: State, meta: dict[str, Any] | None, origin: dict[str, Any] | None) -> int:
        """Trains from `current` to the end, phase by phase; `meta` and `origin` as of `initial.Beginning`."""
        done = first = int(current.step)
        self.pending_evaluators = tuple((meta or {}).get("missed", ()))
        self.skipped, self.begins = int(current.skipped), meta is None
        metrics: Metrics | None = None
        stages = [*enumerate(itertools.pairwise((*self.starts, self.config.train.steps)))]
        try:
            while (stage := next((n for n, (_, end) in stages if done < end), None)) is not None:
                if self.patience.is_over:
                    break
                if self.pending_evaluators:
                    stage = configs.phase_of(self.config, done)  # of the last step: at its end that is the one before
                _, (start, end) = stages[stage]
                if self.phase is None or self.phase.index != stage:
                    saved, started, trains = meta if done == first else None, None, done < end
                    if trains:
                        started, self.started = self.started, None  # or its programs would outlive the phase
                    with self.clock.during("start"):
                        self.phase = enter(
                            self.config, self.setup, stage, self.phase, saved, self.timings, trains, started, origin
                        )
                    if self.begins and origin is not None and not self.phase.has_data_of(origin):
                        self.rewinds = spikes.Rewinds(self.config)
                    if self.begins and not done:
                        current = vocabularies.with_constants(self.phase.setup, current, self.phase.data.tokenizer)
                if done == start:
                    current = self.phase.setup.begin_phase(current, new_data=done == self.phase.data_start)
                if metrics is None:  # after `enter`: TensorBoard's import takes a second, beside the data and programs
                    metrics = Metrics(self.run_dir, self.config, int(current.step))
                if self.pending_evaluators:
                    self._evaluate_pending(current, metrics)
                    continue  # with what the patience says, or the next phase
                with out_of_memory.explained(self.phase.config):
                    current = self._phase(current, end, metrics)
                if self.rewind_to is not None:
                    metrics.close()
                    metrics = None
                    first, self.rewind_to = self.rewind_to, None
                    current, meta = self._rewind(current, first)
                done = int(current.step)
        finally:
            if metrics is not None:
                metrics.close()
        return ending.finish(self, current)

    def _rewind_target(self, spike: spikes.Spike, current: State) -> int | None:
        """The step to go back to after a spike; None where nothing was saved before it: then it is as with `skip`.

        Raises:
          DivergedError: the run went back often enough.
        """
        with self.clock.during("saves"):
            self.checkpoints.wait()
        target = self.checkpoints.newest_whole(report=say)
        if target is None:
            say(f"step {spike.step}: no checkpoint is from before: the run goes on")
            return None
        try:
            new = self.rewinds.go_back(spike, target, self.phase.data_start, str(self.run_dir))
        except DivergedError:
            ending.write_receipt(self, current, finished=False)  # `jaxpt replay` needs to know what was left out
            raise
        omitted = listed([str(number) for number in new], 4)
        back = f"going back to step {target} (train.on_spike: rewind)"
        say(f"step {spike.step}: {back} without the batches {omitted}")
        return target

    def _rewind(self, current: State, step: int) -> tuple[State, dict[str, Any]]:
        """The state of a checkpoint in place of the current one, which is deleted, and what was saved beside it."""
        for leaf in jax.tree.leaves(current):
            leaf.delete()
        self.clock.lose_steps(step)
        if self.local is not None:
            self.local.forget()
        meta = self.checkpoints.meta(step)
        current = self.checkpoints.restore(initial.setup_at(self.setup, step), step)
        self.patience, self.skipped = evaluation.Patience(self.config, meta), int(current.skipped)
        self.pending_evaluators = tuple(meta.get("missed", ()))
        self.phase.evaluators.forget()
        return current, meta

    def _phase(self, current: State, end: int, metrics: Metrics) -> State:
        """The steps of one phase; ends the process where a signal came."""
        phase, done = self.phase, int(current.step)
        with self.clock.during("compile"):
            ready = phase.compile(len(self.starts), self.timings)
        rows = distributed.rows(phase.setup.mesh, phase.config.data.batch_size)
        batches = self.rewinds.batches(phase.data.train, done, phase.data_start, rows)
        feed = resources.InputWait(batches, phase.config.data.readers)
        peak = flops.peak(jax.devices()[0])
        facts = {"text_tokens_per_step": phase.text_tokens_per_step, "flops_per_step": phase.flops}
        facts |= {"processes": jax.process_count()}
        metrics.write(done, {f"phase/{name}": value for name, value in facts.items()})
        processes.barrier(f"phase {phase.index + 1}", self.config.distributed.timeout, warn)
        steps, all_peaks = self.config.train.steps, peak and peak * jax.device_count()
        # From the first step on there is something to save.
        with signals.deferred(checkpoint.hard_end(self.config.checkpoint, self.checkpoints.finished_steps)):
            with (
                phase.setup.use(),
                failures.stepping(),
                Display(done, steps, phase.tokens_per_step, phase.flops, all_peaks) as display,
                self.clock.during("steps"),
            ):
                log = StepLog(self.config, self.clock, self.router_watch, display, metrics, feed)
                current = self._steps(current, end, ready, log)
            with self.clock.during("saves"):
                self.checkpoints.wait()
            if self.stopped:
                metrics.close()
                ending.stop(self, current)
        return current

    def _steps(self, current: State, end: int, ready: programs.Programs, log: StepLog) -> State:
        """The steps of one phase, or up to a signal; the last state is saved, unless updates are being skipped."""
        phase, setup, done = self.phase, self.phase.setup, int(current.step)
        save_every = phase.config.checkpoint.every or default_every(phase.config)
        self.save_clock = checkpoint.SaveClock(phase.config.checkpoint, distributed.AnyProcess(setup.mesh))
        window, to_save, watch = [], False, spikes.Watch(phase.index, current.scale)
        checks = corruption.Checks(setup, str(self.run_dir), self._newest)
        must_judge = phase.config.train.on_spike == "rewind"  # before a save: what is saved is from before any spike

        self._before_first_step(current, ready.check, log)
        with self.clock.during("data"):
            batch = step.put(log.feed.next(), setup)
        tracing = profile.Profile(self.config.profile, self.run_dir, ready.train)
        self.timings.mark("the first batch")
        while done < end and not self.stopped and not self.patience.is_over:
            tracing.before(done + 1)
            before, rest = checks.kept(current, done), (batch, *setup.teacher_params())
            current, figures = ready.train(current, *rest)
            done += 1
            if before is not None:
                checks.compare_again(ready.train, before, rest, current)
            tracing.after(done, figures)
            if self.timings.wanted:
                jax.block_until_ready(figures)
                self.timings.mark("the first step")
                say("\n".join(self.timings.end(ready)))
            if done < end:  # the device works on this step while the host gets the next batch
                with self.clock.fetching():
                    batch = step.put(log.feed.next(figures), setup)
            window.append(figures)
            if len(window) > MAX_INFLIGHT_STEPS:
                jax.block_until_ready(window[-1 - MAX_INFLIGHT_STEPS])
            self.clock.beat(done)
            is_last = self._must_stop(done) or done == end
            to_save = to_save or self.save_wanted or done % save_every == 0
            is_logged = done % phase.config.train.log_every == 0 or done == self.starts[phase.index] + 1
            is_local = self.local is not None and done % self.local.every == 0
            if is_last or is_logged or (must_judge and (to_save or is_local)):
                window = self._log(window, current, log, watch, checks)
            if self.rewind_to is not None:
                break
            self.phase.evaluators.forget()
            if not self.stopped:
                log.display.paused(self._evaluate(current, log.metrics, self.phase.evaluators.due(done)))
            if self.patience.is_over and window:
                window = self._log(window, current, log, watch, checks)
                if self.rewind_to is not None:
                    break
            is_saved = to_save or self.stopped or done == end
            checks.compare_replicas(current, done, is_saved or is_local)
            if is_saved or self.patience.is_over:
                to_save, self.save_wanted = not self._save(current, ready.check, self.checkpoints), False
                self.save_clock.saved(done)
            elif is_local:
                self._save(current, ready.check, self.local)
        tracing.stop()
        return current

    def _before_first_step(self, current: State, check: Any, log: StepLog) -> None:
        """Evaluates and saves the initial state of a new run."""
        done, config = int(current.step), self.phase.config
        if self.begins and config.train.eval_on_start:
            every = self.phase.evaluators.due(0)  # wherever a branch begins
            log.display.paused(self._evaluate(current, log.metrics, every))
        # Where a branch begins a later stage, its state has the form of that stage already: it is in the source alone.
        is_kept = not done or done != self.starts[self.phase.index]
        if self.begins and is_kept and (self.stopped or config.checkpoint.save_initial_state):
            self._save(current, check, self.checkpoints)
        self.begins = False

    def _must_stop(self, done: int) -> bool:
        """True if all processes stop after `done` steps; notes a save that one of them asks for."""
        wish = checkpoint.STOP if self.stopped else self.save_clock.wish(done)
        self.stopped, self.save_wanted = wish == checkpoint.STOP, self.save_wanted or wish == checkpoint.SAVE
        return self.stopped

    def _log(
        self, window: list[dict], current: State, log: StepLog, watch: spikes.Watch, checks: corruption.Checks
    ) -> list[dict]:
        """Logs and judges the steps since the last log line; a new window."""
        values = log.write(window, int(current.step))
        self.last_loss = float(values[-1]["loss"])
        self._judge(values, current, watch, checks)
        return []

    def _judge(self, values: list[dict], current: State, watch: spikes.Watch, checks: corruption.Checks) -> None:
        """Says which of the last steps were spikes or not finite, and keeps the first one for which the run goes back;
        compares the replicas first, as a flipped bit may be why. Too many in a row that are not finite end the run."""
        action, spiked, done = self.config.train.on_spike, self.num_spikes, int(current.step)
        first: spikes.Spike | None = None
        for step_number, value in enumerate(values, done - len(values) + 1):
            number = self.rewinds.batch_number(step_number, self.phase.data_start)
            spike = watch.see(step_number, number, float(value["learning_rate"]), value)
            if spike is None:
                continue
            hint = "; train.on_spike=skip or rewind would leave it out" if not self.num_spikes else ""
            self.num_spikes += 1
            say(f"step {step_number}: a spike: {spike}{hint if action == 'keep' else '; its update is left out'}")
            first = first or spike
        if count := int(sum(value["skipped"] for value in values)):
            say(f"step {done}: {count} update(s) skipped, the loss or its gradient was not finite")
        if count or self.num_spikes > spiked:
            checks.compare_replicas(current, done, True)
        for value in values:
            self.skipped = self.skipped + 1 if value["skipped"] else 0
            if self.skipped == MAX_NONFINITE_STEPS:
                problem = f"loss or gradient was not finite in {MAX_NONFINITE_STEPS} steps in a row"
                raise DivergedError(self._nonfinite_message(problem))
        if first is not None and action == "rewind":
            self.rewind_to = self._rewind_target(first, current)

    def _newest(self) -> str:
        """Where the run would resume from."""
        steps = self.checkpoints.steps()
        return f"its newest checkpoint, of step {steps[-1]}, is from before" if steps else "it has no checkpoint"

    def _nonfinite_message(self, problem: str) -> str:
        """The message of a run that ends since its numbers are not finite."""
        return f"{self.run_dir}: {problem}; {self._newest()}; lower optimizer.learning_rate or set optimizer.clip_norm"

    def _evaluate_pending(self, current: State, metrics: Metrics) -> None:
        """Runs the evaluators that an earlier signal stopped; a signal now ends the process, and they stay pending."""
        pending = [evaluator for evaluator in self.config.evals if evaluator.called in self.pending_evaluators]
        done, evaluators = int(current.step), self.phase.evaluators
        evaluators.earlier = self.checkpoints.meta(done).get("measured", {})
        with self.phase.setup.use():
            self._evaluate(current, metrics, pending, stops=False)
        self.checkpoints.add_figures(done, evaluators.measured)
        self.pending_evaluators = ()

    def _evaluate(self, current: State, metrics: Metrics, due: Sequence[EvaluatorConfig], stops: bool = True) -> float:
        """Runs evaluators on a state, up to a signal if it `stops` them; the seconds that it took."""
        if not due:
            return 0.0
        begun, evaluators, done = time.perf_counter(), self.phase.evaluators, int(current.step)
        with self.clock.during("evaluation"):
            params = self.phase.setup.to_model(current)
            for name, result in evaluators.run(due, params, lambda: stops and self._must_stop(done)):
                figures = evaluation.figures({name: result})
                if figures and not (self.pending_evaluators and evaluation.is_recorded(self.run_dir, done, figures)):
                    metrics.write(done, figures)
                for n, line in enumerate(evaluators.lines(name, result)):
                    say(line if n else f"step {done}/{self.config.train.steps}  {line}")
        for line in (evaluators.without_best(), self.patience.see(evaluators.found, self.phase.data_start)):
            if line:
                say(line)
        return time.perf_counter() - begun

    def _save(
        self, current: State, check: Any, place: checkpoint.Checkpoints | local_checkpoints.LocalCheckpoints
    ) -> bool:
        """Starts to save the state; False where the last update was skipped: then the checkpoints before it are kept.

        Args:
          current: the state.
          check: the program that says whether it is finite, and gives its digests.
          place: the checkpoints of the run_dir, or of the hosts.

        Raises:
          DivergedError: the state is not finite.
        """
        done, skipped = int(current.step), int(current.skipped)
        if skipped:
            if done == self.config.train.steps or self.patience.is_over:
                raise DivergedError(self._nonfinite_message(f"the updates of the last {skipped} steps were skipped"))
            return False
        is_finite, digests = check(current)
        if nonfinite := step.not_finite(current, is_finite):
            problem = f"{listed(nonfinite, 1)} are not finite at step {done}, which is not saved"
            raise DivergedError(self._nonfinite_message(problem))
        meta = {"phase": self.phase.index, "data": self.phase.data.fingerprint, "config": settings(self.config)}
        meta |= teachers.identities(self.setup) | self.patience.saved() | self.rewinds.saved()
        meta["digests"] = corruption.named(current, jax.device_get(digests))
        evaluators = self.phase.evaluators
        due = evaluators.due(0 if self.begins else done) if self.stopped else ()
        meta |= evaluators.progress(due) | {"code": self.phase.code}
        with self.clock.during("saves"):
            place.save(current, meta, evaluation.figures(evaluators.found))
        return True
