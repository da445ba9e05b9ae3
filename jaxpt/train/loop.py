"""`jaxpt train`: the one place where a run starts, goes on, stops and is interrupted."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpt import config as configs
from jaxpt import signals
from jaxpt.config import Config
from jaxpt.errors import UserError
from jaxpt.evals import heldout, samples
from jaxpt.models import base
from jaxpt.objectives.base import Objective
from jaxpt.parallel import compiler, distributed, failures, processes, rules
from jaxpt.train import checkpoint, compiled, flops, frozen, initial, programs, state, step
from jaxpt.train.display import Display, console, duration
from jaxpt.train.lock import hold
from jaxpt.train.metrics import Metrics, environment
from jaxpt.train.run_dir import check, check_fingerprint, claim, write_text
from jaxpt.train.state import Setup, State

if TYPE_CHECKING:
    from jaxpt.data.pipeline import Data

Figures = dict[str, jax.Array]

MOST_SKIPPED = 10
"""So many steps in a row without a finite loss and gradient end a run."""


def train(config: Config) -> int:
    """Trains as the recipe says, from where the run_dir stands.

    Args:
      config: the run's configuration.

    A signal ends the process (`jaxpt.signals`): at once while there is nothing to save, else after the step under way
    and a checkpoint.

    Returns:
      0, the exit code of a finished run.

    Raises:
      UserError: for all that a user can mend, before the first step; and where the numbers are not finite any more.
    """
    processes.start(config.distributed)
    console.quiet = not checkpoint.is_primary()
    with failures.shared():
        processes.agree(config)
        return _train(config)


def say(text: str) -> None:
    """A line for the person at the first process; square brackets are not markup."""
    console.print(text, markup=False)


def _train(config: Config) -> int:
    from jaxpt.data import pipeline

    begun = time.time()
    say(f"jaxpt train: {config.model.kind} · {config.objective.kind} · {config.train.steps} steps → {config.run_dir}")
    starts = configs.phase_starts(config)
    say("\n".join(configs.phase_lines(config)))
    compiler.keep_programs()
    frozen.find_all(config)
    for index in range(len(starts)):
        pipeline.check(configs.at_phase(config, index))
    run_dir = check(config)
    setup = frozen.attach(state.setup(config), say)
    checkpoint.check_space(setup, config.checkpoint, run_dir)
    with contextlib.ExitStack() as stack:
        if checkpoint.is_primary():
            stack.enter_context(hold(run_dir))
        checkpoints = checkpoint.Checkpoints(run_dir, config.checkpoint)
        stack.callback(checkpoints.close)
        current, meta = _start(setup, checkpoints, run_dir)
        done = int(current.step)
        run = Run(config, setup, run_dir, checkpoints, starts, begun)
        if done >= config.train.steps:
            say(f"{run_dir} is finished at step {done}; `train.steps={2 * done}` would go on")
            run.enter_phase(len(starts) - 1, meta)
            return run.finish(current)
        say(_describe(setup))
        return run.go(current, meta)


def _start(setup: Setup, checkpoints: checkpoint.Checkpoints, run_dir: Path) -> tuple[State, dict[str, Any] | None]:
    """The state to go on from, and what was saved beside it (None for a fresh one)."""
    latest = checkpoints.newest_whole(report=say)
    if latest is not None:
        say(f"going on from step {latest} in {run_dir}")
        meta = checkpoints.meta(latest)
        frozen.check_same(setup, meta, f"{run_dir} at step {latest}")
        return checkpoints.restore(_setup_of(setup, latest), latest), meta
    source = setup.config.init_from
    if source is None:
        return setup.init(), None
    if source.state and source.layers:
        raise UserError("init_from.layers: with state=true the whole state goes on; leave one of them out")
    other = initial.is_hugging_face(source.path) or source.partial or source.layers or source.vocabulary != "same"
    if not source.state and other:
        return initial.start(setup, source, say), None
    from_dir, at = checkpoint.find(source.path, source.step)
    reader = checkpoint.Checkpoints(from_dir, setup.config.checkpoint, read_only=True)
    try:
        if source.state:
            say(f"branching from {from_dir} at step {at}: the whole state")
            return reader.restore(_setup_of(setup, at), at), None
        say(f"starting from the weights of {from_dir} at step {at}")
        params = reader.restore_params(setup, at)
        fresh = setup.init()
        return fresh.replace(params=params, ema=None if fresh.ema is None else jax.tree.map(jnp.copy, params)), None
    except ValueError as error:
        raise UserError(f"init_from.path: {from_dir}: does not fit this model: {str(error).splitlines()[0]}") from None
    finally:
        reader.close()


def _setup_of(setup: Setup, step: int) -> Setup:
    """The setup of the phase in which the state of a step was saved."""
    return setup.at(configs.at_phase(setup.config, configs.phase_of(setup.config, step)))


def _describe(setup: Setup) -> str:
    config, device = setup.config, jax.devices()[0]
    shape = " × ".join(f"{axis} {size}" for axis, size in setup.mesh.shape.items())
    disk = checkpoint.disk_need(setup, config.checkpoint)
    whole = [] if config.mesh.preset == "replicated" else rules.left_whole(setup.shapes.params, setup.shardings.params)
    return (
        f"{base.count_params(setup.model):,} parameters; {jax.device_count()} × {device.device_kind}, mesh {shape}, "
        f"computing in {jnp.dtype(base.compute_dtype(config.model)).name}\n"
        f"state {state.per_device_size(setup) / 1e6:.1f} MB a device; checkpoints take up to {disk / 1e9:.2f} GB"
        + (f"\nlarge, yet whole on every device (mesh.rules would cut them): {', '.join(whole)}" if whole else "")
    )


@dataclasses.dataclass
class Run:
    """A run under way."""

    config: Config
    setup: Setup
    run_dir: Path
    checkpoints: checkpoint.Checkpoints
    starts: tuple[int, ...]
    begun: float
    phase: int = -1
    stopped: bool = False
    """By a signal, which this or another process received."""
    skipped: int = 0
    """Steps in a row, up to the last one logged, whose update was skipped."""
    last_loss: float | None = None
    validation: dict[str, float] | None = None
    """Means of the last step's validation, None where it had none."""

    # Set by enter_phase.
    here: Config = dataclasses.field(init=False)
    objective: Objective = dataclasses.field(init=False)
    data: Data = dataclasses.field(init=False)
    flops: float = dataclasses.field(init=False, default=0.0)

    def go(self, current: State, meta: dict[str, Any] | None) -> int:
        """Trains from `current` to the end, phase by phase."""
        done = first = int(current.step)
        self.skipped = int(current.skipped)
        metrics = Metrics(self.run_dir, self.config, done)
        ends = (*self.starts[1:], self.config.train.steps)
        try:
            for index, end in enumerate(ends):
                if done >= end:
                    continue
                self.enter_phase(index, meta if done == first else None)
                if done == self.starts[index]:
                    current = current.replace(carry=self.setup.empty_carry())
                current = self._phase(current, end, metrics)
                done = end
        finally:
            metrics.close()
        return self.finish(current)

    def enter_phase(self, index: int, meta: dict[str, Any] | None) -> None:
        """Prepares the phase's data and objective; refuses other data than those of the checkpoint in `meta`."""
        from jaxpt.data import pipeline

        self.phase, self.here = index, configs.at_phase(self.config, index)
        self.setup = self.setup.at(self.here)
        self.objective = self.here.objective
        later = [configs.at_phase(self.config, n) for n in range(index, len(self.starts))]
        for phase, config in enumerate(later, index):  # what is wrong with the last one is said before the first starts
            step.check(config, self.setup)
            if config.train.compiled is not None:
                compiled.check(self.setup.at(config), Path(config.train.compiled), phase)
        self.data = pipeline.prepare(self.here, phase=index, report=say)
        frozen.check_vocabulary(self.setup, self.data.tokenizer)
        for config in later:
            config.objective.check(config.model, config.data.length, self.data.vocabulary)
        if meta is not None and meta["phase"] == index:
            check_fingerprint(meta["data"], json.loads(json.dumps(self.data.fingerprint)), str(self.run_dir))
        if checkpoint.is_primary():
            claim(self.config)

    def _phase(self, current: State, end: int, metrics: Metrics) -> State:
        """The steps of one phase; ends the process where a signal came."""
        compiled = self._compile()
        done = int(current.step)
        feed = self.data.train.batches(done - self.starts[self.phase], rows=self._rows())
        tokens = self.here.data.batch_size * step.tokens_per_example(self.setup, self.objective)
        peak = flops.peak(jax.devices()[0])
        metrics.write(done, {"phase/text_tokens_per_step": self._text(), "phase/flops_per_step": self.flops})
        processes.meet(f"phase {self.phase + 1}", self.config.distributed.timeout, say)
        # From the first step on there is something to save.
        with signals.deferred():
            with (
                self.setup.use(),
                Display(done, self.config.train.steps, tokens, self.flops, peak and peak * jax.device_count()) as show,
            ):
                current = self._steps(current, end, feed, compiled, metrics, show)
            self.checkpoints.wait()
            if self.stopped:
                metrics.close()
                self._stop(current)
        return current

    def _steps(
        self,
        current: State,
        end: int,
        feed: Iterator[Any],
        run: programs.Programs,
        metrics: Metrics,
        display: Display,
    ) -> State:
        """The steps of one phase, or up to a signal; the last state is saved, unless updates are being skipped."""
        train, done, total = self.here.train, int(current.step), self.config.train.steps
        eval_every = train.eval_every or max(total // 10, 1)
        save_every = self.here.checkpoint.every or eval_every
        any_process, window, to_save = distributed.Agreement(self.setup.mesh), [], False

        def stop() -> bool:
            self.stopped = self.stopped or any_process(signals.received() is not None)
            return self.stopped

        batch = step.put(next(feed), self.setup)
        while done < end and not self.stopped:
            current, figures = run.train(current, batch, *self.setup.frozen_params())
            done += 1
            if done < end:  # the device works on this step while the host gets the next batch
                batch = step.put(next(feed), self.setup)
            window.append(figures)
            if stop() or done % train.log_every == 0 or done in (end, self.starts[self.phase] + 1):
                self._log(window, done, display, metrics)
                window = []
            self.validation = None
            if not self.stopped and (done % eval_every == 0 or done == total):
                self.validation = self._validate(current, run.evaluate, done, display, metrics, stop)
            to_save = to_save or done % save_every == 0
            if to_save or self.stopped or done == end:
                to_save = not self._save(current, run.check)
        return current

    def _rows(self) -> np.ndarray:
        """This process's rows of a global batch."""
        return distributed.rows(self.setup.mesh, self.here.data.batch_size)

    def _text(self) -> float:
        """Tokens of text that a step sees, whatever the objective makes of them."""
        return round(self.here.data.batch_size * self.data.text_per_row, 3)

    def _compile(self) -> programs.Programs:
        """Compiles the phase's programs ahead of time, and says what a step takes."""
        feed = next(iter(heldout.feeds(self.here, self.data, self._rows()).values()))
        phase = f"phase {self.phase + 1} of {len(self.starts)}: " if len(self.starts) > 1 else ""
        found = programs.build(self.setup, self.phase, next(feed), lambda line: say(phase + line))
        self.flops = found.flops
        return found

    def _log(self, window: list[Figures], done: int, display: Display, metrics: Metrics) -> None:
        values = jax.device_get(window)
        means = {name: np.mean([v[name] for v in values], axis=0) for name in values[0]}
        rates = display.rates(done)
        rate = float(self.setup.schedule(done - 1))
        self.last_loss = float(values[-1]["loss"])
        display.step(done, float(means["loss"]), rate, rates)
        metrics.write(
            done,
            {
                **{f"train/{name}": value for name, value in means.items()},
                "learning_rate": rate,
                **{f"speed/{name}": value for name, value in rates.items()},
            },
        )
        for value in values:
            self.skipped = self.skipped + 1 if value["skipped"] else 0
            if self.skipped == MOST_SKIPPED:
                raise UserError(self._ruined(f"loss or gradient was not finite in {MOST_SKIPPED} steps in a row"))
        if any(value["skipped"] for value in values):
            count = int(sum(value["skipped"] for value in values))
            display.say(f"step {done}: {count} update(s) skipped, the loss or its gradient was not finite")

    def _ruined(self, what: str) -> str:
        """The last words of a run whose numbers are not finite any more."""
        steps = self.checkpoints.steps()
        kept = f"its newest checkpoint, of step {steps[-1]}, is from before" if steps else "it has no checkpoint"
        return f"{self.run_dir}: {what}; {kept}; lower optimizer.learning_rate or set optimizer.clip_norm"

    def _validate(
        self, current: State, eval_step: Any, done: int, display: Display, metrics: Metrics, stop: Callable[[], bool]
    ) -> dict[str, float] | None:
        begun = time.perf_counter()
        means = self._means(current, eval_step, stop)
        if means is None:
            return None
        metrics.write(done, {f"validation/{name}": value for name, value in means.items()})
        shown = "  ".join(f"{k} {v:.4f}" for k, v in means.items() if "/" not in k or k.endswith("/loss"))
        display.say(f"step {done}/{self.config.train.steps}  validation: {shown}")
        display.paused(time.perf_counter() - begun)
        return means

    def _means(
        self, current: State, eval_step: Any, stop: Callable[[], bool] = lambda: False
    ) -> dict[str, float] | None:
        feeds = heldout.feeds(self.here, self.data, self._rows())
        return heldout.validate(self.setup, self.objective, eval_step, current.averaged, feeds, stop)

    def _save(self, current: State, check: Any) -> bool:
        """Starts to save the state; False where the last update was skipped: then the checkpoints before it are kept.

        Raises:
          UserError: the state is not finite.
        """
        done, skipped = int(current.step), int(current.skipped)
        if skipped:
            if done == self.config.train.steps:
                raise UserError(self._ruined(f"the updates of the last {skipped} steps were skipped"))
            return False
        if found := step.not_finite(current, check(current)):
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            raise UserError(self._ruined(f"{found[0]}{more} are not finite at step {done}, which is not saved"))
        loss = self.validation["loss"] if self.validation else None
        meta = {"phase": self.phase, "data": self.data.fingerprint, **frozen.identities(self.setup)}
        self.checkpoints.save(current, meta, loss if loss is not None and math.isfinite(loss) else None)
        return True

    def _stop(self, current: State) -> None:
        """Says where the run stands after a signal, and ends the process."""
        done, saved = int(current.step), self.checkpoints.steps()
        if done in saved:
            say(f"stopped by a signal after step {done}, saved; re-run the same command to resume")
        else:
            kept = f"step {saved[-1]}" if saved else "the start"
            say(f"stopped by a signal after step {done}, whose update was skipped; re-run the same command to resume "
                f"from {kept}")  # fmt: skip
        self._receipt(current, finished=False)
        signals.leave(signals.received() or signal.SIGTERM)

    def finish(self, current: State) -> int:
        """The last words: final validation beside the baseline, samples, receipt, what to do next."""
        means = self.validation or self._means(current, step.make_eval_step(self.setup, self.objective))
        trivial = heldout.baseline(self.here, self.data) if checkpoint.is_primary() else float("nan")
        for line in (heldout.verdict(self.objective, means["probe_loss"], trivial), *self.objective.remarks(means)):
            say(line)
        say("a few validation examples:")
        for line in samples.show(self.setup.model, current.averaged, self.here, self.data):
            say(line)
        self._receipt(current, finished=True, validation=means, baseline=trivial)
        say(
            f"done in {duration(time.time() - self.begun)}: {self.run_dir} holds checkpoints, metrics and tokenizer\n"
            f"next: jaxpt eval {self.run_dir} · jaxpt inspect {self.run_dir} · jaxpt train … "
            f"train.steps={2 * self.config.train.steps} run_dir={self.run_dir} trains on"
        )
        return 0

    def _receipt(self, current: State, finished: bool, **results: Any) -> None:
        """Writes run.json; the wall time adds up over the run's starts."""
        if not checkpoint.is_primary():
            return
        path = self.run_dir / "run.json"
        before = json.loads(path.read_text())["wall_seconds"] if path.exists() else 0.0
        done = int(current.step)
        receipt = {
            "finished": finished,
            "step": done,
            "skipped_steps": int(current.skipped_total),
            "parameters": base.count_params(self.setup.model),
            "tokens_per_step": self.here.data.batch_size * step.tokens_per_example(self.setup, self.objective),
            "text_tokens_per_step": self._text(),
            "flops_per_step": self.flops,
            "wall_seconds": round(before + time.time() - self.begun, 1),
            "train_loss": self.last_loss,
            **results,
            "data": {"summary": self.data.summary, "fingerprint": self.data.fingerprint},
            **frozen.identities(self.setup),
            "environment": environment(),
        }
        write_text(path, json.dumps(receipt, indent=2, default=str) + "\n")
