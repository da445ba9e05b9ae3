"""An optimizer from outside: one file, named by its dotted path."""

import hashlib
import json
import sys

import jax
import pytest

from jaxpt.config.kinds import _imported
from jaxpt.train import compiled
from tests import families
from tests.extending.test_schedule import RESTARTS

SIGN = '''
"""Sign descent with momentum. Paper: https://arxiv.org/abs/1802.04434"""

from typing import Literal

import optax

from jaxpt.config import Fraction, OptimizerConfig
from jaxpt.train.optimizers import decayed


class Signum(OptimizerConfig):
    """−η·(sign(trace) + λ·p), trace = g + b1·trace."""

    b1: Fraction = 0.9
    """Momentum."""
    kind: str = "signum"

    def build(self, schedule, logical_axes):
        scale = optax.chain(optax.trace(self.b1), optax.scale_by_sign())
        return decayed(scale, self, schedule, logical_axes)
'''


def test_what_build_returns_is_checked(lab, capsys):
    kind = lab.module("nothing", SIGN.replace("return decayed", "decayed"))
    assert lab.train("run", optimizer={"kind": kind}) == 2
    line = f"optimizer.kind: {kind}: build must return an optax.GradientTransformation, it returns null"
    assert line in capsys.readouterr().err


@pytest.mark.slow
def test_it_trains_and_resumes_and_an_edit_before_is_said(lab, capsys):
    optimizer = {"kind": lab.module("signum", SIGN), "b1": 0.5, "learning_rate": 0.001, "clip_norm": 1.0}
    end = lab.assert_resumes(optimizer=optimizer)
    said = " ".join(capsys.readouterr().out.split())
    assert "resuming from step 2" in said and "edited since" not in said
    moments = [x for x in jax.tree.leaves(end.opt_state) if x.ndim]
    assert sum(x.size for x in moments) == sum(x.size for x in jax.tree.leaves(end.params)), "one moment each"

    lab.module("signum", SIGN + "\n# now otherwise")
    del sys.modules[optimizer["kind"]]  # as a restart does
    _imported.cache_clear()
    assert lab.train("stopped", "train.steps=5", "checkpoint.every=2", optimizer=optimizer) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"edited since the checkpoint: {optimizer['kind']}; the steps from here on use the code as it is now" in said
    receipt = json.loads((lab.folder / "stopped" / "run.json").read_text())
    assert list(receipt["code"]) == [optimizer["kind"]]


@pytest.mark.slow
def test_an_update_of_another_shape_is_refused(lab, capsys):
    """optax adds a number to a whole matrix."""
    mean = SIGN.replace("optax.scale_by_sign()", "optax.stateless(lambda u, p: jax.tree.map(lambda x: x.mean(), u))")
    kind = lab.module("signum", mean.replace("import optax", "import jax\nimport optax"))
    assert lab.train("run", optimizer={"kind": kind}) == 2
    said = capsys.readouterr().err
    assert f"jaxpt: optimizer.kind: {kind}: the update of " in said and " has shape (); it wants (" in said
    assert len([line for line in said.splitlines() if not line.startswith("jaxpt: note: ")]) == 1


def test_a_key_that_it_does_not_have_is_refused(lab, capsys):
    kind = lab.module("signum", SIGN)
    assert lab.train("run", optimizer={"kind": kind, "b3": 0.5}) == 2
    assert f"unknown key optimizer.b3 of kind {kind}; did you mean optimizer.b1?" in capsys.readouterr().err
    assert lab.train("run", optimizer={"kind": kind, "eps": 0.5}) == 2
    known = f"unknown key optimizer.eps of kind {kind}, only of adafactor, adagrad, adamax, adamw, lamb, muon"
    assert known in capsys.readouterr().err


def test_a_saved_program_depends_on_its_code(lab):
    """On that of a schedule below it as well."""
    schedule = {"kind": lab.module("restarts", RESTARTS), "cycle": 2}
    config = families.config("gpt2", optimizer={"kind": lab.module("signum", SIGN), "schedule": schedule})
    sources = list(compiled._sources(config))
    for code in (SIGN, RESTARTS):
        assert hashlib.blake2b(code.encode(), digest_size=10).hexdigest().encode() in sources
