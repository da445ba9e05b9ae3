"""Upcycling: a mixture of experts that begins as a dense model, each expert a copy of its layer's feed-forward.

With weights of experts that sum to 1 the mixture computes what the dense model does, whatever its routers choose.
Paper: https://arxiv.org/abs/2212.05055
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxpt.errors import UserError
from jaxpt.models.network import Network

Arrays = Iterator[tuple[str, np.ndarray]]
_STACKED = re.compile(r"(model/(encoder|decoder))/segment_0/block_0/(.+)")


def check(path: str, theirs: Network, config: Any) -> None:
    """Raises UserError if a model cannot begin as a dense one.

    Args:
      path: of the dense model, for messages.
      theirs: the dense network.
      config: of the mixture.
    """
    if not getattr(config, "experts", None):
        raise UserError("init_from.upcycle: the model has no experts; set model.experts")
    if getattr(theirs.config, "experts", None):
        raise UserError(f"init_from.upcycle: {path} is a mixture of experts itself; leave upcycle out")
    if not hasattr(theirs.config, "numbers") or getattr(theirs.config, "share_layers", False):
        raise UserError(
            f"init_from.upcycle: {path} is a {theirs.config.kind} whose layers are none of a {config.kind}; name a "
            f"dense {config.kind}"
        )
    if not config.router_normalized or config.router_scale != 1:
        raise UserError(
            "init_from.upcycle: the weights of a token's experts must sum to 1, so that the mixture begins as the "
            "dense model; set model.router_normalized=true and leave out model.router_scale"
        )
    if config.shared_experts:
        raise UserError("init_from.upcycle: a dense model has no shared expert; set model.shared_experts=0")
    if (config.expert_dim or config.mlp_dim) != theirs.config.mlp_dim:
        raise UserError(
            f"init_from.upcycle: {path} has mlp_dim {theirs.config.mlp_dim}; an expert is a copy of it: set "
            f"model.expert_dim={theirs.config.mlp_dim}"
        )
    stacks = ("encoder", "decoder") if config.family == "encoder_decoder" else ("decoder",)
    for stack in stacks:
        if [len(segment) for segment in theirs.config.numbers(stack)] != [1]:
            raise UserError(f"init_from.upcycle: {path}: its layers are of several kinds, which is not supported")
        count, wanted = _count(theirs.config, stack), _count(config, stack)
        if count != wanted:
            key = "decoder_layers" if stack == "decoder" and "encoder" in stacks else "layers"
            raise UserError(
                f"init_from.upcycle: {path} has {key} {count}, the mixture {wanted}, and each of its layers begins as "
                f"one of the dense model: set model.{key}={count}"
            )


def _count(config: Any, stack: str) -> int:
    """How many layers a stack has."""
    return sum(len(layers) for segment in config.numbers(stack) for layers in segment)


def experts(arrays: Arrays, config: Any) -> Arrays:
    """The parameters of a mixture, without its routers.

    Args:
      arrays: (path, array) of the dense model, whose stacks have one segment of one block.
      config: of the mixture.

    Yields:
      (path in the mixture, array): of sparse layers the feed-forward once for each expert.
    """
    for path, array in arrays:
        match = _STACKED.fullmatch(path)
        if match is None:
            yield path, array
            continue
        prefix, stack, rest = match.groups()
        for s, segment in enumerate(config.numbers(stack)):
            for b, layers in enumerate(segment):
                stacked = array[list(layers)]
                if rest.startswith("feed_forward/") and config.is_sparse(layers[0]):
                    stacked = np.repeat(stacked[:, None], config.experts, axis=1)
                yield f"{prefix}/segment_{s}/block_{b}/{rest}", stacked
