"""Whole models: by a table our tree of parameters as their state dict, and back; a recipe as a run at step 0."""

from pathlib import Path

import numpy as np
from flax import traverse_util

from jaxpt.hf import mapping
from jaxpt.models import stored
from jaxpt.train import run_dir, weights


def to_hf(params, table, network, tied=True):
    """{their name: array} of our tree; tied tensors under each name, as in a PyTorch state dict, or once."""
    flat = traverse_util.flatten_dict(dict(params), sep="/")
    state = dict(mapping.tensors(flat, table, network))
    entries = mapping.tensors_of(table, network) if tied else ()
    return state | {name: state[entry.name] for entry in entries for name in entry.tied}


def from_hf(state, table, network):
    """Our tree of {their name: array}."""
    comparison = mapping.find({name: tuple(x.shape) for name, x in state.items()}, table, network)
    comparison.raise_on_mismatch(network)
    return stored.gather(mapping.pieces(state, comparison, table, network), stored.stored_params(network))


def as_run(config, adapter=None):
    """The recipe's run_dir at step 0 with random weights, as an import leaves it: {path: parameter}."""
    rng, network = np.random.default_rng(0), config.objective.network(config.model)
    shapes = traverse_util.flatten_dict(network.shapes(), sep="/")
    params = {path: rng.normal(size=x.shape).astype(np.float32) for path, x in shapes.items()}
    Path(config.run_dir).mkdir()
    run_dir.save_config(config)
    pieces = ((path, None, x) for path, x in params.items())
    weights.write(Path(config.run_dir), network, dict.fromkeys(params, np.float32), pieces, adapter=adapter)
    return params
