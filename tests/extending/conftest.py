"""A folder outside of jaxpt whose modules a recipe names by dotted path, and a small recipe to name them in."""

import os
import shutil
import uuid

import pytest
import yaml

from jaxpt import cli
from tests import families
from tests.runs import assert_bit_equal, final

WORDS = "says that the cat sat on the mat and the dog ran to the house"


class Lab:
    """A package of one's own, with a name that is new in each test, as modules stay imported."""

    def __init__(self, folder):
        self.folder, self.name = folder, f"lab_{uuid.uuid4().hex[:8]}"
        (folder / self.name).mkdir()
        (folder / self.name / "__init__.py").touch()
        (folder / "corpus.txt").write_text("\n".join(f"document number {i} {WORDS}" for i in range(60)))

    def module(self, name, text):
        """Writes a module; returns its dotted path."""
        (self.folder / self.name / f"{name}.py").write_text(text, encoding="utf-8")
        return f"{self.name}.{name}"

    def train(self, run, *overrides, **sections):
        """`jaxpt train` of a small GPT-2 with these sections; returns the exit code."""
        data = {
            "path": str(self.folder / "corpus.txt"), "cache_dir": str(self.folder / "cache"), "length": 16,
            "validation_fraction": 0.1, **sections.pop("data", {}),
        }  # fmt: skip
        model = {"vocab_size": 300, "layers": 1}
        tree = families.tree("gpt2", model=model, data=data, mesh={"data": 8}, log={"tensorboard": False})
        path = self.folder / "recipe.yaml"
        path.write_text(yaml.safe_dump({**tree, **sections}))
        return cli.main(["train", str(path), f"run_dir={self.folder / run}", *overrides])

    def assert_resumes(self, *overrides, **sections):
        """A run that goes on from its second step ends with the bits of one that was not stopped."""
        overrides = ("train.steps=4", "checkpoint.every=2", *overrides)
        assert self.train("whole", *overrides, **sections) == 0
        shutil.copytree(self.folder / "whole", self.folder / "stopped")
        shutil.rmtree(self.folder / "stopped" / "checkpoints" / "4")
        assert (self.folder / "stopped" / "checkpoints" / "2").is_dir()
        assert self.train("stopped", *overrides, "evals=[]", **sections) == 0  # the first one has evaluated
        states = [final(self.folder / run, 4) for run in ("whole", "stopped")]
        assert_bit_equal(*states)
        return states[0]


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return Lab(tmp_path)
