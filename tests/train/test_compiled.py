"""A compiled step that was saved runs as the one it was, without compiling, and serves no other run."""

import json
import os
import shutil

import jax
import numpy as np
import pytest

from jaxpt.errors import UserError
from jaxpt.plan import program
from jaxpt.train import checksums, compiled, state, step
from tests import compilations, families

pytestmark = pytest.mark.slow


def setup(**sections):
    return state.setup(
        families.config("gpt2", **{"mesh": {"data": 2, "fsdp": 4}, "train": {"layer_norms": True}, **sections})
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """(setup, where `jaxpt plan --save` wrote its step)."""
    folder, here = tmp_path_factory.mktemp("steps"), setup()
    assert str(folder / "phase_1") in program.save(here.config, program.Target(), 0, str(folder))
    return here, folder


def test_nothing_is_compiled_and_all_bits_are_the_same(saved):
    here, folder = saved
    ready = step.traced(here, here.config.objective).lower().compile()
    rng = np.random.default_rng(0)
    fresh = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), here.shapes)
    fresh = fresh.replace(params=jax.tree.map(lambda x: rng.normal(0, 0.05, x.shape).astype(x.dtype), fresh.params))
    batch = step.put(families.batch(here.config), here)

    def three_steps(update):
        current, losses = jax.device_put(fresh, here.shardings), []
        for _ in range(3):
            current, figures = update(current, batch)
            losses.append(figures)
        return jax.device_get((current, losses))

    wanted = three_steps(ready)
    with compilations.seen() as programs:
        got = three_steps(compiled.load(here, folder, 0))
    assert not programs
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert got[1][0]["loss"] > got[1][2]["loss"]


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"seed": 7}, "seed is 0 there, 7 here"),
        ({"data": {"batch_size": 16}}, "batch.decoder_input_tokens is .* there, .int32.16, .* here"),
        ({"model": {"dtype": "bfloat16"}}, "model.dtype is 'float32' there, 'bfloat16' here"),
        ({"optimizer": {"learning_rate": 0.5}}, "optimizer.learning_rate is 0.001 there, 0.5 here"),
        ({"mesh": {"data": 4, "fsdp": 2}}, "mesh.data is 2 there, 4 here"),
    ],
)
def test_another_configuration_is_named(saved, sections, words):
    with pytest.raises(UserError, match=f"phase_1 was compiled for another run: {words}; compile it again"):
        compiled.check(setup(**sections), saved[1], 0)


@pytest.mark.parametrize(
    ("key", "words"),
    [("digest of jaxpt's code", "digest of jaxpt's code is 'other' there"), ("jaxlib", "jaxlib is 'other' there, '")],
)
def test_another_version_and_another_code_are_named(saved, tmp_path, key, words):
    here, folder = saved
    place = shutil.copytree(folder, tmp_path / "steps") / "phase_1"
    made_for = json.loads((place / "made_for.json").read_text())
    (place / "made_for.json").write_text(json.dumps(made_for | {key: "other"}))
    checksums.write(place)
    with pytest.raises(UserError, match=words):
        compiled.check(here, tmp_path / "steps", 0)


def test_what_a_run_does_beside_its_steps_may_differ(saved):
    here, folder = saved
    other = setup(mesh={"data": -1, "fsdp": 4}, train={"layer_norms": True, "log_every": 3}, run_dir="elsewhere")
    assert compiled.check(other, folder, 0) == compiled.check(here, folder, 0) == folder / "phase_1"
    assert compiled.made_for(other) == compiled.made_for(here) and other.config != here.config


def test_a_damaged_file_and_a_missing_phase_are_named(saved, tmp_path):
    here, folder = saved
    with pytest.raises(UserError, match="holds no step of phase 2; jaxpt plan --save writes it"):
        compiled.load(here, folder, 1)
    file = shutil.copytree(folder, tmp_path / "steps") / "phase_1" / "step"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"train\.compiled: .*/phase_1/step is altered"):
        compiled.load(here, tmp_path / "steps", 0)


def test_code_that_others_may_have_written_is_refused(saved, tmp_path):
    here, folder = saved
    place = shutil.copytree(folder, tmp_path / "steps") / "phase_1"
    digest, line = compiled.origin(tmp_path / "steps", 0)
    assert digest in line and str(place) in line and line.endswith("is trusted")
    for path in (place, place / "step", place / "made_for.json"):
        mode = path.stat().st_mode
        path.chmod(mode | 0o020)
        with pytest.raises(UserError, match=rf"train\.compiled: others may write {path}, .*chmod -R go-w"):
            compiled.check(here, tmp_path / "steps", 0)
        path.chmod(mode)
    compiled.check(here, tmp_path / "steps", 0)
    if os.geteuid() == 0:
        os.chown(place / "step", 12345, -1)
        with pytest.raises(UserError, match=r"phase_1/step belongs to user 12345, and its code would run as you"):
            compiled.check(here, tmp_path / "steps", 0)
