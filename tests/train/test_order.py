"""Runs go on in the order of records that they began with, and while records are made."""

import json

import pytest
import yaml

from jaxpt import cli
from jaxpt.data.records import cache
from jaxpt.data.sources import base
from jaxpt.data.stream import order
from jaxpt.errors import UserError
from jaxpt.train import phase
from tests import families
from tests.runs import assert_bit_equal, final

TEXT = "\n".join(f"document number {i} says that the cat sat on mat {i % 7} and ran home" for i in range(60))


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "SHARD_BYTES", 600)
    monkeypatch.setitem(order.SHARDINGS, 3, order.Sharding(400, 8))
    monkeypatch.setattr(cache, "_STARTUP", 1e9)  # no processes
    (tmp_path / "text.txt").write_text(TEXT)
    tree = families.tree(
        "gpt2",
        model={"vocab_size": 300},
        data={
            "path": str(tmp_path / "text.txt"), "cache_dir": str(tmp_path / "cache"), "validation_fraction": 0.2,
            "length": 16, "batch_size": 8,
        },
        mesh={"data": 8},
        train={"steps": 6, "log_every": 1, "eval_every": 6},
        evals=[],
    )  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    return tmp_path


def run(folder, name, *overrides):
    return cli.main(["train", str(folder / "recipe.yaml"), f"run_dir={folder / name}", *overrides])


def data_of(folder, name):
    return json.loads((folder / name / "run.json").read_text())["data"]["fingerprint"]


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 2])
def test_runs_go_on_in_their_order(workplace, monkeypatch, capsys, version):
    with monkeypatch.context() as before:  # there was this version
        before.setattr(phase, "order_of", lambda known: version)
        assert run(workplace, "old") == 0
        assert run(workplace, "resumed", "train.steps=3") == 0
    assert run(workplace, "resumed") == 0 and data_of(workplace, "resumed").get("order", 1) == version
    assert_bit_equal(final(workplace / "old", 6), final(workplace / "resumed", 6))


@pytest.mark.slow
def test_a_new_run_goes_on_with_some_of_its_records(workplace):
    assert run(workplace, "new") == 0 and data_of(workplace, "new")["order"] == 3
    # The first steps of another run, and some of the records, are all that there is.
    assert run(workplace, "killed", "train.steps=3") == 0
    (directory,) = (workplace / "cache" / "records").glob("*-train")
    for file in [directory / "manifest.json", *sorted(directory.glob("records-*"))[2:]]:
        file.unlink()
    assert run(workplace, "killed") == 0
    assert_bit_equal(final(workplace / "new", 6), final(workplace / "killed", 6))


def test_records_that_cannot_be_made_end_the_run_in_one_line(workplace, monkeypatch, capsys):
    make_shard, numbers = cache.make_shard, []

    def broken(work, number, shard, path, report):
        if work._split == "train":
            numbers.append(number)
            if len(numbers) == 4:
                raise UserError("text.txt: line 31: broken")
        return make_shard(work, number, shard, path, report)

    monkeypatch.setattr(cache, "make_shard", broken)
    assert run(workplace, "broken") == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert [line for line in lines if "broken" in line and "run_dir" not in line][-1].endswith(
        "text.txt: line 31: broken"
    )
    assert not any("Traceback" in line for line in lines)
