"""Learning rates that differ from layer to layer: factors of the schedule's, and how they are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from jaxpt.config import OptimizerConfig
from jaxpt.train import patterns

MOST_NAMES = 8
"""So many patterns of a rate are shown."""


def factors(config: OptimizerConfig, tree: Mapping[str, patterns.Leaf]) -> dict[str, np.ndarray] | None:
    """Of each parameter, for each of its layers, the factor of the learning rate.

    Args:
      config: has `layer_decay`, `layer_decay_offset` and `rate_multipliers`.
      tree: all parameters.

    Returns:
      {path: float [layers], or []}; None where all are 1.

    Raises:
      UserError: a pattern holds for nothing.
    """
    if config.layer_decay is None and not config.rate_multipliers:
        return None
    multipliers = patterns.product(config.rate_multipliers, tree, "optimizer.rate_multipliers")
    depth = max((leaf.depth for leaf in tree.values()), default=0)
    for path, leaf in tree.items():
        above = np.zeros(())
        if leaf.layers is not None:
            above = leaf.depth - 1 - np.array(leaf.layers)
        elif leaf.of_embeddings:
            above = np.array(depth)
        if not leaf.of_head:
            above = above + config.layer_decay_offset
        multipliers[path] = multipliers[path] * (config.layer_decay or 1.0) ** above
    return multipliers


def lines(
    config: OptimizerConfig, tree: Mapping[str, patterns.Leaf], trained: Sequence[Mapping[str, np.ndarray]]
) -> list[str]:
    """The table of rates that a run shows: one line for each rate, the highest first.

    Args:
      config: of the optimizer.
      tree: all parameters.
      trained: what each phase trains, {path: bool [layers], or []}.

    Returns:
      Lines such as "  6.4e-05  model/encoder[11]"; [] where all parameters have one rate.
    """
    multipliers = factors(config, tree)
    if multipliers is None:
        return []
    ever = {path: np.any([phase[path] for phase in trained], axis=0) for path in multipliers}
    # Equal products of factors may differ in their last bit.
    rates = {path: np.round(config.learning_rate * x, 15) for path, x in multipliers.items() if ever[path].any()}
    distinct = sorted({float(f"{y:.6g}") for path, x in rates.items() for y in x[ever[path]].reshape(-1)})
    rows = ["learning rates at the peak:"]
    for rate in reversed(distinct):
        held = {path: np.isclose(x, rate, rtol=1e-5, atol=0) & ever[path] for path, x in rates.items()}
        names = patterns.names(held, tree)
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        rows.append(f"  {rate:<9.4g} {', '.join(names[:MOST_NAMES])}{more}")
    return rows
