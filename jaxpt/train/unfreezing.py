"""Gradual unfreezing: which layers are open when. Paper: https://arxiv.org/abs/1801.06146"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.errors import UserError
from jaxpt.train import patterns


def opened(config: Config, tree: Mapping[str, patterns.Leaf], count: int) -> dict[str, np.ndarray]:
    """What is open after some openings.

    Args:
      config: of the run.
      tree: all parameters.
      count: openings after the first; the last of the recipe opens everything.

    Returns:
      {path: bool [layers], or []}.

    Raises:
      UserError: layers share their parameters, or there are more openings than groups.
    """
    groups, steps = _groups(tree), configs.train_stages(config)
    last_group, last = max(int(x.max()) for x in groups.values()), max(stage.unfrozen for stage in steps)
    if config.train.unfreeze.steps is not None and last > last_group:
        raise UserError(
            f"train.unfreeze.steps: {last + 1} steps, but the model opens in {last_group + 1}: heads, {last_group - 1} "
            "layers, embeddings"
        )
    return {path: (x <= count) | (count == last) for path, x in groups.items()}


def _groups(tree: Mapping[str, patterns.Leaf]) -> dict[str, np.ndarray]:
    """In which place each parameter, or each of its layers, is opened: int [layers], or []."""
    stacks: dict[str, int] = {}
    for leaf in tree.values():
        if leaf.stack is not None and not leaf.of_head:
            if leaf.layers is None:
                raise UserError(f"train.unfreeze: the layers of {leaf.stack} share their parameters")
            stacks[leaf.stack.removeprefix("adapter/")] = leaf.depth
    above, places = 1, {}
    for stack in sorted(stacks):  # the decoder, then the encoder
        places[stack] = above
        above += stacks[stack]

    def place(leaf: patterns.Leaf) -> np.ndarray:
        if leaf.of_embeddings:
            return np.array(above)
        if leaf.of_head or leaf.stack is None:
            return np.array(0)
        return places[leaf.stack.removeprefix("adapter/")] + leaf.depth - 1 - np.array(leaf.layers)

    return {path: place(leaf) for path, leaf in tree.items()}


def lines(config: Config, tree: Mapping[str, patterns.Leaf], trained: Sequence[Mapping[str, np.ndarray]]) -> list[str]:
    """What is opened when, as a run shows it.

    Args:
      config: of the run.
      tree: all parameters.
      trained: what each stage of the recipe trains, {path: bool [layers], or []}.

    Returns:
      Lines such as "  step 101  model/encoder[11]"; [] without `train.unfreeze`.
    """
    if config.train.unfreeze is None:
        return []
    rows, before = ["gradual unfreezing, from step:"], {path: np.zeros_like(x) for path, x in trained[0].items()}
    for stage, now in zip(configs.train_stages(config), trained, strict=True):
        new = patterns.names({path: x & ~before[path] for path, x in now.items()}, tree)
        late = " (the run ends before)" if stage.start >= config.train.steps else ""
        if new:
            rows.append(f"  {stage.start + 1:<6} {', '.join(new)}{late}")
        before = {path: x | before[path] for path, x in now.items()}
    return rows
