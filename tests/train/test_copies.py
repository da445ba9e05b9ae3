"""A second place for checkpoints: what is whole there is fetched where the run_dir has none or a damaged one."""

import filecmp
import itertools
import os
import shutil
import signal
import sys
import time

import pytest
import yaml

from jaxpt import cli
from jaxpt.config import DistributedConfig
from jaxpt.errors import UserError
from jaxpt.parallel import failures
from jaxpt.runtime import signals
from jaxpt.train import checksums, copies
from tests import families, processes
from tests.runs import assert_bit_equal, final


def checkpoint(run_dir, step, words="some weights"):
    """Files with checksums, as a run leaves them."""
    for part in copies.PARTS:
        (run_dir / "checkpoints" / str(step) / part).mkdir(parents=True)
        (run_dir / "checkpoints" / str(step) / part / "file").write_text(f"{words} {step} {part}")
        checksums.write(run_dir / "checkpoints" / str(step) / part)


def spoil(run_dir, step):
    (run_dir / "checkpoints" / str(step) / "state" / "file").write_text("altered")


@pytest.fixture
def places(tmp_path):
    run_dir, copy = tmp_path / "run", tmp_path / "elsewhere" / "copy"
    for step in (10, 20):
        checkpoint(run_dir, step)
    (run_dir / "checkpoints" / "run_id").write_text("1234")
    (run_dir / "config.yaml").write_text("model: {}")
    return run_dir, copy


def test_a_copy_follows_the_run(places, monkeypatch):
    run_dir, copy = places
    lines = []
    with copies.copying(run_dir, str(copy), lines.append) as finish:
        finish()
        assert copies.steps(copy) == [10, 20]
    shutil.rmtree(run_dir / "checkpoints/10")  # the run keeps the newest ones
    checkpoint(run_dir, 30)
    (copy / "checkpoints/30.partial").mkdir()  # of a copy that was killed
    with copies.copying(run_dir, str(copy), lines.append):
        pass
    assert copies.steps(copy) == [20, 30] and lines == []
    assert sorted(path.name for path in (copy / "checkpoints").iterdir()) == ["20", "30", "run_id"]
    assert (copy / "config.yaml").read_text() == "model: {}"
    checkpoint(run_dir, 40)
    checkpoint(run_dir, 50)
    (copy / "checkpoints/10.partial").mkdir()  # of a step that the run has removed since
    copied = copies.copy_checkpoint

    def slow(source, target):
        """The run goes on while the newest one is copied: it removes the oldest."""
        copied(source, target)
        shutil.rmtree(run_dir / "checkpoints/40", ignore_errors=True)

    monkeypatch.setattr(copies, "copy_checkpoint", slow)
    with copies.copying(run_dir, str(copy), lines.append):
        pass
    assert copies.steps(copy) == [20, 30, 50] and not [*copy.glob("checkpoints/*.partial")] and lines == []
    shutil.rmtree(run_dir / "checkpoints")  # nothing is removed from the copy of a run that lost all
    with copies.copying(run_dir, str(copy), lines.append):
        pass
    assert copies.steps(copy) == [20, 30, 50]


def test_all_processes_wait_for_the_last_copy(places, monkeypatch):
    """Wherever they leave the block: the first one has copied by then."""
    run_dir, copy = places
    copied = []
    monkeypatch.setattr(copies.processes, "from_first", lambda point: copied.append(copies.steps(copy)))
    for place in (str(copy), None):  # of the first process, and of another
        with copies.copying(run_dir, place, print) as finish:
            finish()
    assert copied == [[10, 20]] * 4
    with pytest.raises(OSError), copies.copying(run_dir, None, print):
        raise OSError
    assert len(copied) == 4, "the others end as well"


def stopped(number, run_dir, copy):
    """One process of a run that is told to stop, as all of them are."""
    copied, failures._SAME_ERROR_SECONDS = copies.copy_checkpoint, 0.1
    copies.copy_checkpoint = lambda *paths: (time.sleep(1.5), copied(*paths))
    copies.processes.start(DistributedConfig())
    signals.start()
    with failures.shared(), copies.copying(run_dir, None if number else str(copy), print) as finish, signals.deferred():
        os.kill(os.getpid(), signal.SIGTERM)
        finish()
        signals.leave(signal.SIGTERM)


@pytest.mark.slow
def test_a_stop_of_several_processes_leaves_time_for_the_last_copy(places, tmp_path):
    run_dir, copy = places
    codes, logs = processes.run(stopped, 2, 1, tmp_path / "logs", run_dir, copy)
    assert codes == [128 + signal.SIGTERM] * 2, logs
    assert copies.steps(copy) == [10, 20] and "failed" not in logs


def test_a_damaged_checkpoint_is_named_once_and_copied_when_it_is_mended(places, monkeypatch):
    run_dir, copy = places
    lines, attempts, copied = [], [], copies.copy_checkpoint
    monkeypatch.setattr(copies, "copy_checkpoint", lambda *of: (attempts.append(of[0].name), copied(*of)))
    file = run_dir / "checkpoints/20/state/file"
    whole = file.read_text()
    spoil(run_dir, 20)
    copier = copies.Copier(run_dir, copy, lines.append)
    for _ in range(3):
        copier.copy()
    assert copies.steps(copy) == [10] and attempts == ["20", "10"]
    (line,) = lines
    assert line.startswith(f"checkpoint.copy_to: {file} is altered: 7 bytes, ") and line.endswith("; the run goes on")
    file.write_text(whole)
    copier.copy()
    assert copies.steps(copy) == [10, 20] and len(lines) == 1


@pytest.mark.parametrize(
    ("lost", "spoiled", "fetched"),
    [
        ((), (), []), ((20,), (), [20]), ((), (20,), [20]), ((10, 20), (), [10, 20]), ((), (10,), []), ((10,), (), []),
        ((10,), (20,), [10, 20]),
    ],
)  # fmt: skip
def test_the_newest_whole_one_is_fetched_after_the_older_ones(places, lost, spoiled, fetched):
    run_dir, copy = places
    shutil.copytree(run_dir, copy)
    for step in lost:
        shutil.rmtree(run_dir / "checkpoints" / str(step))
    for step in spoiled:
        spoil(run_dir, step)
    lines = []
    copies.fetch(run_dir, copy, lines.append)
    assert [int(line.split()[1]) for line in lines] == fetched
    assert copies.damage(run_dir / "checkpoints/20") is None


def test_a_run_that_lost_its_directory_keeps_the_older_ones(places):
    run_dir, copy = places
    checkpoint(run_dir, 5)
    shutil.copytree(run_dir, copy)
    spoil(copy, 5)
    shutil.rmtree(run_dir)
    run_dir.mkdir()
    copies.fetch(run_dir, copy, print)
    assert copies.steps(run_dir) == [10, 20]  # the damaged one is left
    checkpoint(run_dir, 30)
    with copies.copying(run_dir, str(copy), print):
        pass
    assert copies.steps(copy) == copies.steps(run_dir) == [10, 20, 30]


def test_a_damaged_copy_is_renewed(places):
    """Where the run_dir's checkpoint is whole; and one that has the checksums of another state."""
    run_dir, copy = places
    checkpoint(run_dir, 30)
    shutil.copytree(run_dir, copy)
    spoil(copy, 10)
    shutil.rmtree(copy / "checkpoints/20")
    checkpoint(copy, 20, "the weights before a step that was taken again")
    spoil(copy, 30)
    spoil(run_dir, 30)
    lines = []
    with copies.copying(run_dir, str(copy), lines.append):
        pass
    both, other, damaged = lines
    mine, theirs = run_dir / "checkpoints", copy / "checkpoints"
    assert both.startswith(f"checkpoint.copy_to: {theirs}/30: the copy of {mine}/30 is not whole")
    assert other == f"checkpoint.copy_to: {theirs}/20 is no copy of {mine}/20; copied again"
    assert damaged.startswith(f"checkpoint.copy_to: {theirs}/10/state/file is altered")
    for step in (10, 20):
        name = f"checkpoints/{step}/state"
        assert not filecmp.dircmp(run_dir / name, copy / name).diff_files
    file = copy / "checkpoints/10/state/file"
    file.write_text("x" * (run_dir / "checkpoints/10/state/file").stat().st_size)
    with copies.copying(run_dir, str(copy), lines.append, contents=False):  # checkpoint.verify: sizes
        pass
    assert file.read_text()[:3] == "xxx"


def test_figures_that_are_added_later_are_copied(places):
    run_dir, copy = places
    copied(run_dir, copy)
    figures = run_dir / "checkpoints/20" / copies.FIGURES / copies.FIGURES
    figures.parent.mkdir()
    figures.write_text('{"accuracy": 0.5}')
    copied(run_dir, copy)
    assert (copy / figures.relative_to(run_dir)).read_text() == '{"accuracy": 0.5}'
    assert not (copy / "checkpoints/10" / copies.FIGURES).exists()


def test_a_damaged_copy_is_left_and_another_runs_refused(places):
    run_dir, copy = places
    shutil.copytree(run_dir, copy)
    spoil(copy, 20)
    shutil.rmtree(run_dir / "checkpoints/20")
    lines = []
    copies.fetch(run_dir, copy, lines.append)
    assert lines == [] and copies.steps(run_dir) == [10]
    (copy / "checkpoints/run_id").write_text("5678")
    with pytest.raises(UserError, match="holds the copy of another run"):
        copies.fetch(run_dir, copy, lines.append)
    checkpoint(run_dir, 30)
    with copies.copying(run_dir, str(copy), lines.append):  # of two runs that began at once
        pass
    holds = f"checkpoint.copy_to: {copy}: cannot copy: holds the copy of another run; choose another directory"
    assert lines == [f"{holds}; the run goes on, and tries again"]
    assert copies.steps(copy) == [10, 20] and (copy / "checkpoints/run_id").read_text() == "5678"
    with pytest.raises(UserError, match="is the run_dir itself"):
        copies.fetch(run_dir, run_dir, lines.append)


def copied(run_dir, copy):
    with copies.copying(run_dir, str(copy), print):
        pass


ACTIONS = {
    "copy": copied,
    "fetch": lambda run_dir, copy: copies.fetch(run_dir, copy, print),
    "repair": lambda run_dir, copy: [*copies.repair(run_dir, copy)],
}


def killed(action, run_dir, copy, at):
    """A process that is killed as it is about to touch the files for the `at`th time."""
    count = 0

    def hook(event, _):
        nonlocal count
        if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.copyfile"):
            count += 1
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    ACTIONS[action](run_dir, copy)


@pytest.mark.slow
@pytest.mark.parametrize("action", ACTIONS)
def test_killed_anywhere_it_loses_nothing_and_the_next_call_ends_it(places, action):
    run_dir, copy = places
    (run_dir / "tokenizer").mkdir()
    for name in ("vocabulary", "config.json"):
        (run_dir / "tokenizer" / name).write_text(name)
    shutil.copytree(run_dir, run_dir.with_name("whole"))
    for at in itertools.count(1):
        for directory in (run_dir, copy):
            shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(run_dir.with_name("whole"), run_dir)
        if action != "copy":
            shutil.copytree(run_dir, copy)
        if action == "fetch":
            shutil.rmtree(run_dir)
            run_dir.mkdir()
        elif action == "repair":
            spoil(run_dir, 20)
        process = processes.forked().Process(target=killed, args=(action, run_dir, copy, at))
        process.start()
        process.join()
        for step in (10, 20):
            places_of_step = [directory / "checkpoints" / str(step) for directory in (run_dir, copy)]
            assert any(path.is_dir() and copies.damage(path) is None for path in places_of_step), at
        ACTIONS[action](run_dir, copy)
        wanted = ["checkpoints/10", "checkpoints/20", "tokenizer"]
        for name, directory in itertools.product(wanted, (run_dir, copy)):
            found = filecmp.dircmp(run_dir.with_name("whole") / name, directory / name)
            assert not found.left_only and not found.right_only and not found.diff_files, (at, name, directory)
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    assert at > 20


@pytest.mark.slow
def test_a_run_that_loses_its_directory_goes_on_from_the_copy(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("".join(f"document number {i} says that the cat sat\n" for i in range(60)))
    data = {"path": str(tmp_path / "text.txt"), "cache_dir": str(tmp_path / "cache"), "length": 16, "batch_size": 8}
    tree = families.tree(
        "gpt2", model={"vocab_size": 300, "layers": 1}, data=data, log={"tensorboard": False},
        train={"steps": 4}, evals=[], checkpoint={"every": 2, "copy_to": str(tmp_path / "copy")},
    )  # fmt: skip
    recipe, run_dir = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(yaml.safe_dump(tree))

    def call(*argv):
        code = cli.main([str(word) for word in argv])
        said = capsys.readouterr()
        return code, " ".join((said.out + said.err).split())

    assert call("train", recipe, f"run_dir={run_dir}")[0] == 0
    whole = final(run_dir, 4)
    damaged = next(path for path in (run_dir / "checkpoints/4/state").rglob("*") if path.is_file())
    damaged.write_bytes(b"x" + damaged.read_bytes()[1:])
    code, said = call("verify", run_dir)
    assert code == 2 and "--repair` fetches it" in said
    code, said = call("verify", run_dir, "--repair")
    assert code == 0 and f"checkpoint 4, fetched from {tmp_path / 'copy'}: whole" in said
    shutil.rmtree(tmp_path / "copy/checkpoints/4")  # as if the run had been lost before it was copied
    shutil.rmtree(run_dir)
    code, said = call("train", recipe, f"run_dir={run_dir}")
    assert code == 0 and "checkpoint 2 is missing here: fetched from" in said and "resuming from step 2" in said
    assert_bit_equal(final(run_dir, 4), whole)
    code, said = call("train", recipe, f"run_dir={tmp_path / 'other'}", "seed=3")
    assert code == 2 and f"{tmp_path / 'copy'}: belongs to another run: seed is" in said
    assert not (tmp_path / "other").exists()
