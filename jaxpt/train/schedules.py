"""Learning rates over the steps, put together from optax's schedules.

Steps count from 0: the first update sees `schedule(0)`, the last one `schedule(total_steps - 1)`. A schedule keeps no
state, so a run can be continued under a larger `total_steps`: constant, inverse_sqrt and t5 do not depend on it, wsd
only in its final decay.
"""

from __future__ import annotations

import jax.numpy as jnp
import optax

from jaxpt.config import ScheduleConfig
from jaxpt.errors import UserError


def make(config: ScheduleConfig, learning_rate: float, total_steps: int) -> optax.Schedule:
    """The learning rate as a function of the step.

    With peak η, warm-up w, decay d, T = `total_steps`, end fraction e and p = clip((t − w) / (T − w), 0, 1):

        constant       η·min(1, t/w)
        linear         η·t/w for t < w, then η·(1 − (1 − e)·p)
        cosine         η·t/w for t < w, then η·(e + (1 − e)·(1 + cos(π·p))/2)
        inverse_sqrt   η·min(t/w, sqrt(w/t))
        wsd            η·t/w for t < w, η up to T − d, then linearly to e·η at T
        bert           η·t/w for t < w, then η·(1 − t/T): as in the released code the decay counts from step 0, so
                       that the rate falls from η to η·(1 − w/T) where the warm-up ends
        t5             η/sqrt(max(t, w)): no ramp, constant for w steps

    Args:
      config: kind, `warmup_steps`, `decay_steps`, `end_fraction`.
      learning_rate: the peak η, or the factor for `t5`.
      total_steps: updates in the whole run.

    Returns:
      A function from the step (an int or an int32 array) to the learning rate.

    Raises:
      UserError: warm-up and decay do not fit into the run, a key that the kind does not know is set, or `t5` or
        `inverse_sqrt` lack a warm-up.

    Example:
      >>> rate = make(ScheduleConfig(kind="bert", warmup_steps=10), 1.0, 100)
      >>> [round(float(rate(t)), 2) for t in (0, 5, 9, 10, 99)]
      [0.0, 0.5, 0.9, 0.9, 0.01]

    Papers: cosine https://arxiv.org/abs/1608.03983, inverse_sqrt https://arxiv.org/abs/1706.03762,
    wsd https://arxiv.org/abs/2404.06395, bert https://arxiv.org/abs/1810.04805, t5 https://arxiv.org/abs/1910.10683
    """
    _check(config, total_steps)
    peak, warmup, end = learning_rate, config.warmup_steps, config.end_fraction
    after = max(1, total_steps - warmup)
    if config.kind == "t5":
        return lambda step: peak / jnp.sqrt(jnp.maximum(step, warmup))
    if config.kind == "linear":
        return _warmed_up(warmup, peak, optax.linear_schedule(peak, end * peak, after))
    if config.kind == "cosine":
        return _warmed_up(warmup, peak, optax.cosine_decay_schedule(peak, after, alpha=end))
    if config.kind == "inverse_sqrt":
        return _warmed_up(warmup, peak, lambda step: peak * jnp.sqrt(warmup / (jnp.maximum(step, 0) + warmup)))
    if config.kind == "wsd":
        decay = config.decay_steps or max(1, min(total_steps // 10, after))
        return _warmed_up(warmup, peak, optax.linear_schedule(peak, end * peak, decay, total_steps - decay - warmup))
    if config.kind == "bert":
        decay = optax.linear_schedule(peak, 0.0, total_steps)
        return _warmed_up(warmup, peak, lambda step: decay(step + warmup))
    return _warmed_up(warmup, peak, optax.constant_schedule(peak))


def _warmed_up(warmup: int, peak: float, schedule: optax.Schedule) -> optax.Schedule:
    """A linear ramp from 0, then `schedule`, which counts its steps from the end of the ramp."""
    if not warmup:
        return schedule
    return optax.join_schedules([optax.linear_schedule(0.0, peak, warmup), schedule], [warmup])


def _check(config: ScheduleConfig, total_steps: int) -> None:
    warmup, decay, key = config.warmup_steps, config.decay_steps or 0, "optimizer.schedule"
    if config.kind in ("t5", "inverse_sqrt") and not warmup:
        raise UserError(f"{key}.warmup_steps: {config.kind} needs at least 1 (T5 has 10000), it is 0")
    if config.kind != "t5" and warmup > total_steps:  # t5 is constant at first, and may be so for a whole short run
        raise UserError(f"{key}.warmup_steps: {warmup} is longer than the run, train.steps is {total_steps}")
    if decay and config.kind != "wsd":
        raise UserError(f"{key}.decay_steps: only kind wsd has it, kind is {config.kind}")
    if config.end_fraction and config.kind not in ("linear", "cosine", "wsd"):
        raise UserError(f"{key}.end_fraction: only kinds linear, cosine and wsd have it, kind is {config.kind}")
    if warmup + decay > total_steps and config.kind == "wsd":
        raise UserError(
            f"{key}.decay_steps: {decay} + {warmup} warm-up steps are longer than the run, train.steps is {total_steps}"
        )
