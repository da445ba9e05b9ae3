"""Numbers that are not finite are never saved; a run that ends with them is no success, however often it is started."""

import pytest
import yaml

from jaxpt import cli
from tests import families
from tests.runs import final

TEXT = "\n".join(f"document number {i} says that the cat sat on the mat" for i in range(60))


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("not_finite")
    (folder / "text.txt").write_text(TEXT)
    data = {"path": str(folder / "text.txt"), "cache_dir": str(folder / "cache"), "length": 16, "batch_size": 8}
    tree = families.tree(
        "gpt2", model={"vocab_size": 300, "layers": 1}, data=data | {"validation_fraction": 0.2},
        train={"steps": 30, "log_every": 7, "eval_every": 5}, log={"tensorboard": False},
        checkpoint={"every": 1, "keep_last": 2},
    )  # fmt: skip
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
    return str(folder / "recipe.yaml")


@pytest.fixture
def train(recipe, tmp_path, capsys):
    """Runs a small GPT-2: (exit code, all that it printed)."""

    def run(*overrides):
        code = cli.main(["train", recipe, f"run_dir={tmp_path / 'run'}", *overrides])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    return run


def saved(tmp_path):
    return sorted(int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir() if path.name.isdigit())


@pytest.mark.slow
def test_an_update_that_is_not_finite_is_not_saved(train, tmp_path):
    """The loss and the gradient of the first step are finite: the update is not."""
    for _ in range(2):
        code, said = train("optimizer.kind=sgd", "optimizer.learning_rate=1e39", "evals=[]")
        assert code == 65 and saved(tmp_path) == []
        assert "are not finite at step 1, which is not saved; it has no checkpoint" in said, said


@pytest.mark.slow
def test_nothing_is_saved_while_updates_are_skipped(train, tmp_path):
    """Weights of 1e37 are finite, and give no finite loss: after the first step every update is skipped."""
    settings = ("optimizer.kind=sgd", "optimizer.learning_rate=1e38", "checkpoint.keep_best=2")
    for _ in range(2):  # the count does not depend on how often the run is started
        code, said = train(*settings)
        assert code == 65 and saved(tmp_path) == [1], said
        assert "loss or gradient was not finite in 10 steps in a row; its newest checkpoint, of step 1" in said
    state = final(tmp_path / "run", 1)
    assert (state.step, state.skipped, state.skipped_total) == (1, 0, 0)


@pytest.mark.slow
def test_a_run_whose_last_updates_were_skipped_is_not_finished(train, tmp_path):
    settings = ("optimizer.kind=sgd", "optimizer.learning_rate=1e38", "train.steps=6", "evals=[]")
    for _ in range(2):
        code, said = train(*settings)
        assert code == 65 and saved(tmp_path) == [1]
        assert "the updates of the last 5 steps were skipped; its newest checkpoint, of step 1" in said, said
    assert not (tmp_path / "run" / "run.json").exists()
