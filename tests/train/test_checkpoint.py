"""A checkpoint comes back bit for bit, and one that was altered or torn is never used without a word."""

import contextlib
import errno
import json
import logging
import os
import shutil
import time
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from jaxpt.config import CheckpointConfig, DistributedConfig
from jaxpt.errors import UserError
from jaxpt.parallel import processes
from jaxpt.runtime import signals
from jaxpt.train import checkpoint, checksums, handlers, resources, stored
from jaxpt.train.state import State
from tests.processes import run


def state(step):
    params = {"kernel": jnp.arange(600.0).reshape(20, 30) + step, "bias": jnp.full(7, 0.1 * step)}
    zero = jnp.int32(0)
    return State(jnp.int32(step), params, {"mu": jnp.ones(5)}, ema=None, skipped=zero, skipped_total=zero)


SETUP = types.SimpleNamespace(
    placed_shapes=lambda: jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state(0))
)


@contextlib.contextmanager
def opened(run_dir, **settings):
    checkpoints = checkpoint.Checkpoints(run_dir, CheckpointConfig(keep_last=9, **settings))
    try:
        yield checkpoints
    finally:
        checkpoints.close()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved")
    with opened(path) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(state(step), {"phase": step}, metrics={"validation/loss": 1.0 / step})
    return path


@pytest.fixture
def run_dir(saved, tmp_path):
    """Checkpoints of steps 1, 2 and 3."""
    return shutil.copytree(saved, tmp_path, dirs_exist_ok=True)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def largest(directory):
    """The largest file with anything of the state in it."""
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != "commit_success.txt")
    return max((path for path in files if path.name != "checksums.json"), key=lambda path: path.stat().st_size)


def test_what_is_saved_comes_back(run_dir):
    with opened(run_dir) as checkpoints:
        assert checkpoints.newest_whole(print) == 3
        restored = checkpoints.restore(SETUP, 3)
        jax.tree.map(np.testing.assert_array_equal, restored, state(3))
        assert checkpoints.meta(2) == {"phase": 2}
        jax.tree.map(np.testing.assert_array_equal, checkpoints.restore_params(SETUP, 1), state(1).params)


def test_a_checkpoint_without_metrics_logs_nothing(tmp_path, monkeypatch, caplog):
    """Also in runs from prepared batches: whoever imports TensorFlow silences absl's warnings."""
    monkeypatch.setattr(logging.getLogger("absl"), "handlers", [caplog.handler])
    with caplog.at_level(logging.WARNING, "absl"), opened(tmp_path) as checkpoints:
        checkpoints.save(state(1), {"phase": 1})
    assert not [record for record in caplog.records if "metrics" in record.getMessage()]


def test_a_path_of_a_checkpoint_names_its_step(run_dir):
    path = run_dir / "checkpoints" / "2"
    assert checkpoint.find(path) == checkpoint.find(path, 2) == checkpoint.find(run_dir, 2) == (run_dir, 2)
    with pytest.raises(UserError, match=f"{path}: is the checkpoint of step 2, but step 1 is asked for; leave out one"):
        checkpoint.find(path, 1)


@pytest.mark.parametrize("part", ["state", "meta"])
@pytest.mark.parametrize(
    "harm", [flip, lambda path: path.unlink(), lambda path: path.write_bytes(b"")], ids=["flipped", "missing", "empty"]
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(run_dir, part, harm):
    file = largest(run_dir / "checkpoints" / "3" / part)
    harm(file)
    with opened(run_dir) as checkpoints:
        with pytest.raises(UserError, match=rf"{file} is (altered|missing).*other checkpoints there: 1, 2"):
            checkpoints.restore(SETUP, 3)
        lines = []
        assert checkpoints.newest_whole(lines.append) == 2
        (line,) = lines
        assert str(file) in line and "put aside as 3.damaged" in line
        assert checkpoints.steps() == [1, 2] and (run_dir / "checkpoints" / "3.damaged").is_dir()
        jax.tree.map(np.testing.assert_array_equal, checkpoints.restore(SETUP, 2), state(2))
        checkpoints.save(state(3), {"phase": 3})  # its place is free again
    with opened(run_dir) as checkpoints:
        assert checkpoints.newest_whole(print) == 3


def of_two(number, folder):
    """One of two processes, the first of which is late: writes the newest checkpoint, which there are, and the best."""
    processes.start(DistributedConfig())
    with opened(folder) as checkpoints:
        time.sleep(1 - number)
        newest = checkpoints.newest_whole(lambda line: None)
        steps = checkpoints.steps()
        time.sleep(1 - number)
        checkpoints.add_figures(2, {"validation/loss": 0.1})
        (folder / f"{number}.json").write_text(json.dumps([newest, steps, checkpoints.best()]))


@pytest.mark.slow
def test_the_first_process_decides_for_all(tmp_path):
    """Else another one would read a checkpoint before it is put aside, and figures before they are written."""
    folder = tmp_path / "run"
    with opened(folder) as checkpoints:
        for step, figures in ((1, {"validation/loss": 1.0}), (2, None), (3, {"validation/loss": 0.5})):
            checkpoints.save(state(step), {}, figures)
    flip(largest(folder / "checkpoints/3/state"))
    codes, logs = run(of_two, 2, 1, tmp_path / "logs", folder)
    assert codes == [0, 0], logs
    assert [json.loads((folder / f"{number}.json").read_text()) for number in range(2)] == [[2, [1, 2], 2]] * 2


def test_later_figures_join_those_that_are_there(run_dir):
    """A signal may come between two evaluators."""
    with opened(run_dir) as checkpoints:
        checkpoints.add_figures(3, {"validation/loss": 9.0, "task/temperature": 1.5})
        assert checkpoints.metrics(3) == {"validation/loss": 1 / 3, "task/temperature": 1.5}


def test_a_checkpoint_without_checksums_is_not_trusted(run_dir):
    (run_dir / "checkpoints" / "3" / "state" / "checksums.json").unlink()
    with opened(run_dir) as checkpoints:
        assert "checksums.json is missing" in checkpoints.damage(3)
        assert checkpoints.newest_whole(print) == 2


def rename(run_dir, other):
    (run_dir / "checkpoints" / "3").rename(run_dir / "checkpoints" / "9000")


def swap(run_dir, other):
    shutil.rmtree(run_dir / "checkpoints" / "3" / "state")
    shutil.copytree(run_dir / "checkpoints" / "1" / "state", run_dir / "checkpoints" / "3" / "state")


def swap_other(run_dir, other):
    shutil.rmtree(run_dir / "checkpoints" / "3" / "state")
    shutil.copytree(other / "checkpoints" / "3" / "state", run_dir / "checkpoints" / "3" / "state")


def take_other(run_dir, other):
    shutil.rmtree(run_dir / "checkpoints" / "3")
    shutil.copytree(other / "checkpoints" / "3", run_dir / "checkpoints" / "3")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (rename, "9000/meta is of step 3, not 9000"),
        (swap, "3/state is of step 1, not 3"),
        (swap_other, "3/state is of another run: "),
        (take_other, "3/meta is of another run: "),
    ],
)
def test_a_checkpoint_knows_its_step_and_its_run(run_dir, tmp_path_factory, harm, words):
    other = tmp_path_factory.mktemp("other")
    with opened(other) as checkpoints:
        checkpoints.save(state(3), {"phase": 3})
    harm(run_dir, other)
    with opened(run_dir) as checkpoints:
        newest = checkpoints.steps()[-1]
        for read in (checkpoints.meta, lambda n: checkpoints.restore(SETUP, n), checkpoints.check):
            with pytest.raises(UserError, match=rf"checkpoints/{words}.*; other checkpoints there: 1, 2"):
                read(newest)
        lines = []
        assert checkpoints.newest_whole(lines.append) == 2
        assert words in lines[0] and f"put aside as {newest}.damaged" in lines[0]


def test_the_step_in_the_state_is_compared_too(run_dir):
    rename(run_dir, None)
    for part in ("meta", "state"):
        file = run_dir / "checkpoints" / "9000" / part / "checksums.json"
        written = json.loads(file.read_text())
        written["of"]["step"] = 9000
        file.write_text(json.dumps(written))
    with opened(run_dir) as checkpoints:
        for read in (checkpoints.restore, checkpoints.restore_params):
            with pytest.raises(UserError, match=r"checkpoints/9000: its state is that of step 3"):
                read(SETUP, 9000)


def test_a_run_dir_may_be_copied_and_moved(run_dir, tmp_path_factory):
    copied = tmp_path_factory.mktemp("elsewhere") / "copied"
    shutil.copytree(run_dir, copied)
    run_dir.rename(run_dir.with_name("moved"))
    for place in (copied, run_dir.with_name("moved")):
        with opened(place) as checkpoints:
            assert checkpoints.newest_whole(print) == 3
            checkpoints.save(state(4), {"phase": 4})
        with opened(place) as checkpoints:
            assert checkpoints.newest_whole(print) == 4


def test_a_lost_id_and_an_older_layout_are_one_line(run_dir):
    (run_dir / "checkpoints" / "run_id").unlink()
    with (
        opened(run_dir) as checkpoints,
        pytest.raises(UserError, match=r"run_id is missing: it holds the run's id"),
    ):
        checkpoints.newest_whole(print)
    for file in run_dir.glob("checkpoints/*/*/checksums.json"):
        file.write_text(json.dumps(json.loads(file.read_text())["files"]))
    with opened(run_dir) as checkpoints:
        with pytest.raises(UserError, match=r"checkpoints/3/meta/checksums.json is of an older version of jaxpt"):
            checkpoints.restore(SETUP, 3)
        with pytest.raises(UserError, match=r"checksums.json is of an older version.*no other checkpoint is whole"):
            checkpoints.newest_whole(print)


def test_flips_in_an_id_and_in_an_owner_are_one_line(run_dir):
    file, owner = run_dir / "checkpoints" / "run_id", run_dir / "checkpoints" / "3" / "state" / "checksums.json"
    whole, text = file.read_bytes(), owner.read_text()
    for path, content, words in (
        (file, whole[:5] + b"\xe6" + whole[6:], "is of another run"),
        (owner, text.replace('"step"', '"stgp"').encode(), "is altered: it names no step and no run"),
    ):
        before = path.read_bytes()
        path.write_bytes(content)
        with opened(run_dir) as checkpoints, pytest.raises(UserError, match=words):
            checkpoints.restore(SETUP, 3)
        path.write_bytes(before)


@pytest.mark.parametrize("name", ["[lr=1e-4]/run", "run[x]", "a**b?", "b\n\"ü\U0001f642'%5B"])
def test_any_character_may_be_in_a_path(tmp_path, name):
    with opened(tmp_path / name) as checkpoints:
        checkpoints.save(state(1), {"phase": 1}, metrics={"validation/loss": 1.0})
        checkpoints.wait()
    with opened(tmp_path / name) as checkpoints:
        assert checkpoints.newest_whole(print) == 1
        jax.tree.map(np.testing.assert_array_equal, checkpoints.restore(SETUP, 1), state(1))
        jax.tree.map(np.testing.assert_array_equal, checkpoints.restore_params(SETUP, 1), state(1).params)


def test_a_save_that_cannot_be_read_is_no_checkpoint(tmp_path, monkeypatch):
    """Orbax finds nothing to merge under a `[`, and says nothing: so it was before, and the checksums were right."""
    monkeypatch.setattr(handlers, "_LiteralPath", epath.Path)
    words = r"state.* has arrays that cannot be read: .* does not exist; it is not kept as a checkpoint"
    with pytest.raises(UserError, match=words), opened(tmp_path / "[x]") as checkpoints:
        checkpoints.save(state(1), {})
        checkpoints.wait()
    assert not (tmp_path / "[x]" / "checkpoints" / "1").exists()


def test_a_checkpoint_whose_arrays_were_never_merged_is_named(run_dir):
    """As earlier versions have saved them, with checksums that agree."""
    part = run_dir / "checkpoints" / "3" / "state"
    owner = checksums.owner(part)
    (part / "manifest.ocdbt").unlink()
    checksums.write(part, owner)
    with opened(run_dir) as checkpoints:
        assert "3/state has arrays that cannot be read" in checkpoints.damage(3)
        assert checkpoints.newest_whole(lambda line: None) == 2


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/hf/x", "Orbax takes /hf/"), ("/gs/../s3/x", "takes /s3/"), ("~/x", "~ is expanded by shells"),
        (os.fsdecode(b"\xf6"), "not UTF-8"), ("runs/a\\b", "TensorStore, .* takes .* for /"),
    ],
)  # fmt: skip
def test_a_path_that_would_be_another_one_is_refused(path, words):
    with pytest.raises(UserError, match=words):
        checkpoint.Checkpoints(Path(path), CheckpointConfig(), read_only=True)


def test_another_model_is_named(run_dir):
    def smaller():
        shapes = SETUP.placed_shapes()
        bias = jax.ShapeDtypeStruct((5,), jnp.float32, sharding=shapes.params["bias"].sharding)
        return shapes.replace(params=shapes.params | {"bias": bias})

    setup = types.SimpleNamespace(placed_shapes=smaller)
    with opened(run_dir) as checkpoints:
        for read in (checkpoints.restore, checkpoints.restore_params):
            with pytest.raises(UserError, match=r"holds another model .* bias has shape \(7,\) there, shape \(5,\)"):
                read(setup, 3)


@pytest.mark.parametrize("content", ["", "[1]", '{"validation/loss": 1', '{"validation/loss": null}'])
def test_figures_that_cannot_be_read_harm_nothing(run_dir, content):
    (run_dir / "checkpoints" / "3" / "metrics" / "metrics").write_text(content)
    with opened(run_dir) as checkpoints:
        assert checkpoints.newest_whole(print) == 3
        checkpoints.save(state(4), {}, metrics={"validation/loss": 0.1})
        checkpoints.wait()
        assert checkpoints.steps() == [1, 2, 3, 4]


def test_an_optimizer_state_of_an_earlier_layout_is_one_line(run_dir):
    later = state(0).replace(opt_state={"nu": jnp.ones(5)})
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), later)
    with opened(run_dir) as checkpoints, pytest.raises(UserError) as caught:
        checkpoints.restore(types.SimpleNamespace(placed_shapes=lambda: shapes), 3)
    assert str(caught.value) == (
        f"{run_dir / 'checkpoints/3'}: its optimizer state is laid out as by an earlier version, at opt_state.mu; "
        f"start a new run from its weights: init_from.path={run_dir} run_dir=…"
    )


def test_nothing_is_put_aside_where_no_checkpoint_is_whole(run_dir):
    for step in (1, 2, 3):
        flip(largest(run_dir / "checkpoints" / str(step) / "state"))
    with opened(run_dir) as checkpoints:
        with pytest.raises(UserError, match=r"checkpoints/3/state.* is altered.*no other checkpoint is whole"):
            checkpoints.newest_whole(print)
        assert checkpoints.steps() == [1, 2, 3]


def test_a_clock_that_is_set_during_a_save_is_said(run_dir, monkeypatch, capfd):
    days = iter(range(0, 10**9, 400))
    real = time.time()
    words = r"cannot save: .* or the clock was set during it; re-run .* of step 3"
    with pytest.raises(UserError, match=words), opened(run_dir) as checkpoints:
        monkeypatch.setattr(time, "time", lambda: real + 86_400 * next(days))
        checkpoints.save(state(4), {})
        checkpoints.wait()
    assert "Traceback" not in capfd.readouterr().err


def test_sizes_alone_are_compared_where_that_is_wanted(run_dir):
    flip(largest(run_dir / "checkpoints" / "3" / "state"))
    with opened(run_dir, verify="sizes") as checkpoints:
        assert checkpoints.newest_whole(print) == 3


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        ValueError('RESOURCE_EXHAUSTED: Error writing "x": [OS error 28: ENOSPC No space left on device]'),
    ],
)
def test_a_full_disk_is_one_line(run_dir, monkeypatch, capfd, error):
    """The save runs in the background: what goes wrong there is said at the next save, or at the end."""

    def full(directory):
        raise error

    monkeypatch.setattr(checkpoint.checksums, "write", full)
    words = r"checkpoints: cannot save: No space left on device; the newest checkpoint is that of step 3"
    with pytest.raises(UserError, match=words), opened(run_dir) as checkpoints:
        checkpoints.save(state(4), {})
        checkpoints.wait()
    assert "Traceback" not in capfd.readouterr().err
    monkeypatch.undo()
    with opened(run_dir) as checkpoints:
        assert checkpoints.newest_whole(print) == 3


def test_the_space_of_the_runs_own_checkpoints_is_not_asked_for_again(run_dir, monkeypatch):
    """Three of a run that keeps three are there: what is missing is room for the one that is being written."""
    config, setup = CheckpointConfig(keep_last=3, keep_best=0), types.SimpleNamespace(shapes=state(0))
    one = resources.size(setup.shapes)
    monkeypatch.setattr(resources.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=one))
    resources.check_space(setup, config, run_dir)
    with pytest.raises(UserError, match=r"checkpoints need 0\.00 GB"):
        resources.check_space(setup, config, run_dir / "other")
    with pytest.raises(UserError, match="need more"):
        resources.check_space(setup, CheckpointConfig(keep_last=3, keep_best=0, keep_every=2), run_dir)


def test_a_checkpoint_of_the_layout_before_heads_is_refused(tmp_path):
    with pytest.raises(UserError, match=rf"^{tmp_path}: was written by an older version of jaxpt"):
        stored.compare_model(tmp_path, {"encoder": {"x": np.zeros(1)}}, {"model": {"x": np.zeros(1)}})


# ---- when a run saves besides every n steps -------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """The seconds that the clock shows, in a list of one."""
    seconds = [0.0]
    monkeypatch.setattr(checkpoint, "time", types.SimpleNamespace(monotonic=lambda: seconds[0]))
    signals.clear_save_request()
    yield seconds
    signals.clear_save_request()


def test_saves_by_the_clock(clock):
    saves, due = checkpoint.SaveClock(CheckpointConfig(every_minutes=2.0), lambda wish: wish), []
    for step in range(1, 100):  # one step takes 10 s
        clock[0] += 10
        if saves.wish(step) == checkpoint.SAVE:
            due.append(step)
            saves.saved(step)
    assert due == [13, 26, 39, 52, 65, 78, 91]


def test_never_by_the_clock_unless_asked(clock):
    saves = checkpoint.SaveClock(CheckpointConfig(), lambda wish: wish)
    clock[0] = 1e9
    assert saves.wish(1) == 0
    signals.request_save()
    assert saves.wish(2) == saves.wish(3) == checkpoint.SAVE  # until it is saved: an update may have been skipped
    saves.saved(3)
    assert saves.wish(5) == 0


def test_a_vote_that_comes_a_step_later_saves_once(clock):
    """With several processes the votes of a step are known after the next one."""
    under_way = [0]

    def votes(wish):
        under_way.append(wish)
        return under_way[-2]

    saves, saved = checkpoint.SaveClock(CheckpointConfig(), votes), []
    for step in range(1, 8):
        if step == 3:
            signals.request_save()
        if saves.wish(step) == checkpoint.SAVE:
            saved.append(step)
            saves.saved(step)
    assert saved == [4]


def test_a_stop_goes_before_a_save(clock, monkeypatch):
    signals.request_save()
    monkeypatch.setattr(signals, "received", lambda: 15)
    assert checkpoint.SaveClock(CheckpointConfig(), lambda wish: wish).wish(1) == checkpoint.STOP
