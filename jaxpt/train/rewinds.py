"""What a run knows of its spikes: those that it has said, how often it went back, and which batches it leaves out.

The stream of batches stays a pure function of configuration and seed. What is left out is a set of batch numbers, kept
beside each checkpoint; the batch of a step is the one of that place among the others. A run that is killed between a
rewind and its next checkpoint meets the same spike again, and goes back again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jaxpt.config import Config
from jaxpt.data.stream.feed import Batch, Which
from jaxpt.errors import DivergedError, UserError
from jaxpt.train import spikes


class Rewinds:
    """Spikes and what was done about them."""

    def __init__(self, config: Config, meta: Mapping[str, Any] | None) -> None:
        """Goes on from what was kept beside a checkpoint, if there is one."""
        saved = (meta or {}).get("spikes", {})
        self._config = config
        self.count = int(saved.get("rewinds", 0))
        self.omitted = {int(start): set(numbers) for start, numbers in saved.get("omitted", {}).items()}
        """{step at which a phase's data start: numbers of batches of its stream}."""
        self.history = [spikes.Spike(*entry) for entry in saved.get("history", ())]
        """The spikes that the run went back for."""

    def saved(self) -> dict[str, Any]:
        """What is kept beside a checkpoint."""
        if not self.count:
            return {}
        omitted = {str(start): sorted(numbers) for start, numbers in self.omitted.items()}
        return {"spikes": {"rewinds": self.count, "omitted": omitted, "history": [[*spike] for spike in self.history]}}

    def go_back(self, spike: spikes.Spike, data_start: int, run_dir: str) -> None:
        """Leaves out the batches of a spike from now on.

        Args:
          spike: why the run goes back.
          data_start: the step at which its phase's data start.
          run_dir: for the message.

        Raises:
          DivergedError: the run went back `train.max_rewinds` times before; it says what the spikes have in common.
        """
        self.history.append(spike)
        if self.count >= self._config.train.max_rewinds:
            steps = ", ".join(str(earlier.step) for earlier in self.history)
            raise DivergedError(
                f"{run_dir}: spikes at steps {steps}, after {self.count} rewinds (train.max_rewinds): "
                f"{spikes.in_common(self.history)}; lower optimizer.learning_rate or set optimizer.clip_norm; "
                f"`jaxpt replay {run_dir} --step {spike.step} --batch {spike.batch}` runs the last one again"
            )
        self.count += 1
        self.omitted.setdefault(data_start, set()).update(spikes.left_out(spike))

    def batch_number(self, step: int, data_start: int) -> int:
        """The number, in its phase's stream, of the batch of a step, which is counted from 1."""
        return spikes.batch_number(step - 1 - data_start, self.omitted.get(data_start, ()))

    def batches(self, stream: Any, done: int, data_start: int, rows: Which = None) -> Iterator[Batch]:
        """Batches of the steps after `done`, without those that are left out.

        Args:
          stream: of the phase.
          done: steps of the run.
          data_start: the step at which the stream starts.
          rows: this process's rows of the global batch.

        Raises:
          UserError: prepared batches end; those that were left out would have to be replaced.
        """
        omitted = frozenset(self.omitted.get(data_start, ()))
        first = self.batch_number(done + 1, data_start)
        feed = stream.batches(first, rows=rows)  # its threads begin now
        return _without(feed, first, omitted)


def _without(feed: Iterator[Batch], first: int, omitted: frozenset[int]) -> Iterator[Batch]:
    for number, batch in enumerate(feed, first):
        if number not in omitted:
            yield batch
    if omitted:
        raise UserError(f"data.path: the prepared batches end, {len(omitted)} were left out for spikes; write more")
