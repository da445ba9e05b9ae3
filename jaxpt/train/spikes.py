"""Finite spikes of loss and gradient norm: told from the run's own scale, left out, or left behind by a rewind.

A window holds the logarithms of the last W accepted values of either figure. With med, its median, and
σ = 1.4826 · median |x - med|, the deviation where values are normally distributed, a value x is a spike if

    x > med + K · σ   and   x > max of the window + log(margin)

once the window holds MIN_STEPS values. The medians do not move until half of the window is spoiled. The maximum keeps
quiet where values of that size have just been seen: heavy tails, as of a loss near zero, and the steep start of a run.
Spikes stay out of the window, unless they are frequent: more than MAX_RECENT in about W steps are taken for the run's
scale. Each phase begins a new window.

    on_spike   in the step                         on the host
    keep       nothing: the program is as without  says so
    skip       the update leaves the weights       says so
    rewind     the update leaves the weights       goes back to the checkpoint before, without the batches around it

PaLM went back about 100 steps and left out 200 to 500 batches: https://arxiv.org/abs/2204.02311, section 5.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxpt.config import Config
from jaxpt.errors import DivergedError, UserError

if TYPE_CHECKING:
    from jaxpt.data.stream.feed import Batch, Which

WINDOW = 128
MIN_STEPS = 10
K = 5.0
MARGINS = {"loss": 1.25, "gradient_norm": 3.0}
"""{figure: how far above all of its window a spike is}."""
MAX_RECENT = 4
REACH = 3
"""A rewind leaves out so many batches before the spike's own, as far as they come after the checkpoint: the moments are
still full of them."""

Scale = dict[str, jax.Array]
"""{"window": f32 [2, WINDOW] logarithms, the newest last, "count": i32 [] values in it, "recent": f32 [] spikes, of
which each step forgets a share of 1 / WINDOW}."""


def fresh(xp: Any = jnp) -> Scale:
    """The scale before the first step."""
    window = xp.zeros((len(MARGINS), WINDOW), xp.float32)
    return {"window": window, "count": xp.zeros((), xp.int32), "recent": xp.zeros((), xp.float32)}


def axes() -> dict[str, tuple[None, ...]]:
    """Logical axes of `fresh`: replicated."""
    return {"window": (None, None), "count": (), "recent": ()}


def usual(scale: Scale, xp: Any = jnp) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Median, deviation and maximum of the window's values, f32 [2] each; meaningless while it is empty."""
    window, count = scale["window"], scale["count"]
    is_filled = xp.arange(WINDOW) >= WINDOW - count
    last = xp.maximum(count - 1, 0)

    def ascending(x: jax.Array) -> jax.Array:
        return xp.sort(xp.where(is_filled, x, xp.inf), -1)

    values = ascending(window)
    center = xp.where(count > 0, values[:, last // 2], 0.0)
    deviation = 1.4826 * ascending(xp.abs(window - center[:, None]))[:, last // 2]
    return center, deviation, values[:, last]


def judge(scale: Scale, loss: jax.Array, gradient_norm: jax.Array, xp: Any = jnp) -> tuple[jax.Array, Scale]:
    """Whether a step is a spike, and the scale after it; a pure function, of JAX or (`xp`) of NumPy.

    Args:
      scale: before the step.
      loss, gradient_norm: of the step, [] each. One that is not finite is no spike: it leaves the scale as it is.
      xp: jax.numpy or numpy.

    Returns:
      (bool [2]: which of the figures is a spike, the next scale).

    Example:
      >>> scale = fresh(np)
      >>> for norm in (1.0, 1.1, 0.9) * 5:
      ...     spike, scale = judge(scale, np.float32(4.0), np.float32(norm), np)
      >>> judge(scale, np.float32(4.0), np.float32(20.0), np)[0].tolist()
      [False, True]
    """
    values = xp.stack([loss, gradient_norm]).astype(xp.float32)
    is_finite = xp.isfinite(values).all()
    x = xp.log(xp.clip(xp.where(is_finite, values, 1.0), 1e-6, None))
    center, deviation, largest = usual(scale, xp)
    margins = xp.log(xp.asarray([*MARGINS.values()], xp.float32))
    is_far = (x > center + K * deviation) & (x > largest + margins)
    is_known = is_finite & (scale["count"] >= MIN_STEPS) & (scale["recent"] <= MAX_RECENT - 1)
    spike = is_known & is_far
    is_taken = is_finite & ~spike.any()
    pushed = xp.concatenate([scale["window"][:, 1:], x[:, None]], 1)
    return spike, {
        "window": xp.where(is_taken, pushed, scale["window"]),
        "count": xp.where(is_taken, xp.minimum(scale["count"] + 1, WINDOW), scale["count"]).astype(xp.int32),
        "recent": (scale["recent"] * (1 - 1 / WINDOW) + spike.any()).astype(xp.float32),
    }


class Spike(NamedTuple):
    """One spike of a run."""

    step: int
    batch: int
    """Its batch's number in the stream of its phase, from 0."""
    phase: int
    learning_rate: float
    ratios: dict[str, float]
    """{figure that spiked: how many times its median}."""

    def __str__(self) -> str:
        ratios = " and ".join(f"{name.replace('_', ' ')} {ratio:.3g} times" for name, ratio in self.ratios.items())
        return f"{ratios} the usual" if ratios else "as the step's own scale says"


class Watch:
    """Follows the figures of a phase on the host, as they are logged."""

    def __init__(self, phase: int, scale: Scale | None = None) -> None:
        """Starts from the scale in the state, if any."""
        self._phase, self._scale = phase, fresh(np) if scale is None else jax.device_get(scale)

    def see(self, step: int, batch: int, learning_rate: float, figures: Mapping[str, Any]) -> Spike | None:
        """The spike of a step, if it is one: the step's own verdict ("spike" among its figures) goes before.

        Args:
          step: its number, from 1.
          batch: its batch's number in the stream.
          learning_rate: of the step.
          figures: "loss", "gradient_norm" and, where the step judges, "spike".
        """
        values = {name: np.float32(figures[name]) for name in MARGINS}
        if not figures.get("spike") and self._is_within(np.array([*values.values()])):
            return None
        center, *_ = usual(self._scale, np)
        flags, self._scale = judge(self._scale, *values.values(), np)
        if not figures.get("spike", flags.any()):
            return None
        ratios = {
            name: math.exp(math.log(max(float(values[name]), 1e-6)) - float(middle))
            for name, middle, flag in zip(values, center, flags)
            if flag
        }
        return Spike(step, batch, self._phase, learning_rate, ratios)

    def _is_within(self, values: np.ndarray) -> bool:
        """Takes values that are no larger than those of the window, as `judge` would, without sorting it."""
        window, count = self._scale["window"], int(self._scale["count"])
        if count == 0 or not np.isfinite(values).all():
            return False
        x = np.log(np.clip(values, 1e-6, None))
        if (x > window[:, WINDOW - count :].max(-1)).any():
            return False
        self._scale = {
            "window": np.concatenate([window[:, 1:], x[:, None]], 1),
            "count": np.int32(min(count + 1, WINDOW)),
            "recent": np.float32(self._scale["recent"] * (1 - 1 / WINDOW)),
        }
        return True


def left_out(spike: Spike, first: int = 0) -> range:
    """The batches that a rewind leaves out: the spike's own and the `REACH` before it.

    Args:
      spike: why the run goes back.
      first: the first batch after the checkpoint that it goes back to: the run has trained on those before.

    Example:
      >>> spike = Spike(step=6, batch=5, phase=0, learning_rate=1e-3, ratios={})
      >>> list(left_out(spike)), list(left_out(spike, first=4))
      ([2, 3, 4, 5], [4, 5])
    """
    return range(max(spike.batch - REACH, first), spike.batch + 1)


def batch_number(place: int, omitted: Sequence[int]) -> int:
    """The number in the stream of the batch at a place among those that are not left out.

    Example:
      >>> [batch_number(place, [1, 2]) for place in range(4)]
      [0, 3, 4, 5]
    """
    for number in sorted(set(omitted)):
        if number > place:
            break
        place += 1
    return place


def in_common(spikes: Sequence[Spike]) -> str:
    """What spikes have in common, for the line that ends a run."""
    figures = {name for spike in spikes for name in spike.ratios}
    rates = [spike.learning_rate for spike in spikes]
    batches = ", ".join(str(spike.batch) for spike in spikes)
    names = " and ".join(sorted(name.replace("_", " ") for name in figures)) or "the step's own verdict"
    shared = [f"all of {names}" if len(figures) < 2 else f"of {names}"]
    if len({spike.phase for spike in spikes}) == 1:
        shared.append(f"all in phase {spikes[0].phase + 1}")
    shared.append(f"learning rates {min(rates):.2e} to {max(rates):.2e}")
    span = max(spike.step for spike in spikes) - min(spike.step for spike in spikes)
    shared.append(f"within {span} steps" if span else "at one step")
    cause = "other batches spike too: the weights or the learning rate, not the data" if len(
        {spike.batch for spike in spikes}
    ) == len(spikes) else "the same batches"  # fmt: skip
    return f"batches {batches} of the stream; {', '.join(shared)}; {cause}"


class Rewinds:
    """What a run knows of its spikes: those that it has said, how often it went back, which batches it leaves out.

    The stream of batches stays a pure function of configuration and seed. What is left out is a set of batch numbers,
    kept beside each checkpoint; the batch of a step is the one of that place among the others. A run that is killed
    between a rewind and its next checkpoint meets the same spike again, and goes back again.
    """

    def __init__(
        self, config: Config, meta: Mapping[str, Any] | None = None, origin: Mapping[str, Any] | None = None
    ) -> None:
        """Restores the state from what was saved beside a checkpoint.

        Args:
          config: the run's configuration.
          meta: of the run's own checkpoint, None without one.
          origin: of the one that the run branches from. The branch leaves out the same batches, and counts its own
            rewinds.
        """
        saved = (meta or {}).get("spikes", {})
        omitted = (meta or origin or {}).get("spikes", {}).get("omitted", {})
        self._config = config
        self.count = int(saved.get("rewinds", 0))
        self.omitted = {int(start): set(numbers) for start, numbers in omitted.items()}
        """{step at which a phase's data start: numbers of batches of its stream}."""
        self.history = [Spike(*entry) for entry in saved.get("history", ())]
        """The spikes that the run went back for."""

    def saved(self) -> dict[str, Any]:
        """What is kept beside a checkpoint, and in run.json."""
        if not self.history and not self.omitted:
            return {}
        omitted = {str(start): sorted(numbers) for start, numbers in self.omitted.items()}
        return {"spikes": {"rewinds": self.count, "omitted": omitted, "history": [[*spike] for spike in self.history]}}

    def go_back(self, spike: Spike, target: int, data_start: int, run_dir: str) -> list[int]:
        """Leaves out the batches of a spike from now on.

        Args:
          spike: why the run goes back.
          target: the step of the checkpoint that it goes back to.
          data_start: the step at which its phase's data start.
          run_dir: for the message.

        Returns:
          The numbers of the batches that are left out for it.

        Raises:
          DivergedError: the run went back `train.max_rewinds` times before; it says what the spikes have in common.
        """
        self.history.append(spike)
        if self.count >= self._config.train.max_rewinds:
            steps = ", ".join(str(earlier.step) for earlier in self.history)
            raise DivergedError(
                f"{run_dir}: spikes at steps {steps}, after {self.count} rewinds (train.max_rewinds): "
                f"{in_common(self.history)}; lower optimizer.learning_rate or set optimizer.clip_norm; "
                f"`jaxpt replay {run_dir} --step {spike.step} --batch {spike.batch}` runs the last one again"
            )
        self.count += 1
        first = self.batch_number(max(target, data_start) + 1, data_start)
        omitted = self.omitted.setdefault(data_start, set())
        new = [number for number in left_out(spike, first) if number not in omitted]
        omitted.update(new)
        return new

    def batch_number(self, step: int, data_start: int) -> int:
        """The number, in its phase's stream, of the batch of a step, which is counted from 1."""
        return batch_number(step - 1 - data_start, self.omitted.get(data_start, ()))

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
