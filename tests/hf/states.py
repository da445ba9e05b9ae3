"""Whole models by a table: our tree of parameters as their state dict, and back."""

from flax import traverse_util

from jaxpt.hf import mapping
from jaxpt.models import stored


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
