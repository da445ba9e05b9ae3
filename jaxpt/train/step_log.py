"""What a run shows and writes of its steps: a line on the terminal, metrics, and what is unusual about them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxpt.config import Config
from jaxpt.train import goodput, resources, routers, watchdog
from jaxpt.train.display import Display, say, warn
from jaxpt.train.metrics import Metrics


@dataclasses.dataclass
class StepLog:
    """The log of one phase's steps."""

    config: Config
    """Of the whole run."""
    clock: goodput.Clock
    router_watch: routers.Watch
    display: Display
    metrics: Metrics
    feed: resources.InputWait
    """The batches of the steps."""
    throughput: watchdog.Throughput = dataclasses.field(default_factory=watchdog.Throughput)

    def write(self, window: Sequence[Mapping[str, jax.Array]], done: int) -> list[dict[str, Any]]:
        """Shows and writes the figures of the last steps.

        Args:
          window: the figures of each step since the last call, on the devices.
          done: number of the last one.

        Returns:
          The same on the host.
        """
        values = jax.device_get(window)
        means = {name: np.mean([v[name] for v in values], axis=0) for name in values[0] if name != "learning_rate"}
        # NaN in steps without the task.
        prefixes = tuple(f"{name}/" for name in getattr(self.config.task, "task_names", ()))
        for name in (name for name in means if name.startswith(prefixes)):
            finite_values = [v[name] for v in values if np.isfinite(v[name])]
            means[name] = np.mean(finite_values) if finite_values else np.nan
        rates = self.display.rates(done)
        seconds = len(window) / rates["steps_per_second"]
        rates["input_wait"], hint = self.feed.share(seconds)
        self.clock.move(self.feed.take_idle(), "steps", "data")
        if (slow := self.throughput.see(rates["steps_per_second"], seconds)) is not None:
            say(f"step {done}: {slow}; input wait {rates['input_wait']:.0%}")
        rate = float(values[-1]["learning_rate"])
        self.display.step(done, float(means["loss"]), rate, rates)
        self.metrics.write(
            done,
            {
                **{f"train/{name}": value for name, value in routers.by_layer(self.config.model, means).items()},
                "learning_rate": rate,
                **{f"speed/{name}": value for name, value in rates.items()},
                **{f"memory/{name}": value for name, value in resources.device_memory().items()},
            },
        )
        if hint:
            warn(f"step {done}: {hint}")
        if news := self.router_watch.news(self.config.model, means, len(window)):
            say(f"step {done}: {news}")
        return values
