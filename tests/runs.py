"""What runs leave behind."""

import jax
import numpy as np

from jaxpt import config as configs
from jaxpt.train import checkpoint, state


def final(run_dir, step, devices=None, overrides=()):
    """The state that a run saved at a step, as NumPy; its checkpoint is whole."""
    config = configs.load(run_dir, overrides)
    phase = configs.phase_of(config, step)
    setup = state.setup(config, devices).for_phase(configs.at_phase(config, phase), phase)
    reader = checkpoint.Checkpoints(run_dir, config.checkpoint, read_only=True)
    assert reader.damage(step) is None
    restored = reader.restore(setup, step)
    reader.close()
    return jax.device_get(restored)


def assert_bit_equal(one, two):
    leaves = list(zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True))
    assert len(leaves) > 20
    for a, b in leaves:
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
