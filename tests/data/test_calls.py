"""Objectives name preprocessors without TensorFlow, and an editor finds the functions."""

import ast
import copy
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from jaxpt.config import ObjectiveConfig
from jaxpt.config.kinds import kinds
from jaxpt.data import preprocessors as package
from jaxpt.data import seqio_tasks
from jaxpt.data.calls import Call, preprocessors

ROOT = Path(__file__).parents[2]
OBJECTIVES = kinds("jaxpt.objectives", ObjectiveConfig)


def attributes(source):
    """The dotted names after `preprocessors.` in a file."""
    found = (ast.unparse(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute))
    return {name.removeprefix("preprocessors.") for name in found if name.startswith("preprocessors.")} - {""}


def test_an_attribute_is_a_name():
    assert preprocessors.masked_lm.mask == "masked_lm.mask"
    assert preprocessors.translations.join == "translations.join"  # and no method of a string
    call = Call(preprocessors.span_corruption.corrupt, {"density": 0.15})
    assert call == Call("span_corruption.corrupt", {"density": 0.15})
    assert pickle.loads(pickle.dumps(call)) == copy.deepcopy(call) == call
    assert not hasattr(preprocessors, "__wrapped__") and not hasattr(preprocessors.masked_lm, "__wrapped__")


def test_every_name_in_the_objectives_is_that_of_a_function():
    files = (ROOT / "jaxpt" / "objectives").glob("*.py")
    names = {name for file in files for name in attributes(file.read_text("utf-8")) if "." in name}
    assert len(names) > 20
    for name in names:
        home = seqio_tasks.resolve(name).__module__  # rows of labelled data are laid out without TensorFlow
        assert home.removeprefix("jaxpt.data.preprocessors.") == name.partition(".")[0] or ".labelled." in home, name


def test_an_editor_finds_every_module():
    source = Path(package.__file__)
    (known,) = (node for node in ast.parse(source.read_text("utf-8")).body if isinstance(node, ast.If))
    files = sorted(file.stem for file in source.parent.glob("*.py") if file != source)
    assert [alias.asname for node in known.body for alias in node.names] == files


@pytest.mark.slow
def test_the_transforms_of_all_objectives_are_made_without_tensorflow():
    code = """
import sys
from jaxpt.config import ObjectiveConfig
from jaxpt.config.kinds import kinds, resolve
from jaxpt.data.calls import Vocabulary

vocabulary = Vocabulary(size=200, bos=0, eos=1, cls=2, sep=3, mask=4, sentinels=60)
from tests.any_objective import any_objective

for name in kinds("jaxpt.objectives", ObjectiveConfig):
    spec = any_objective(name).data_spec(64)
    transforms = spec.transforms(vocabulary, 0)
    assert spec.features and all(isinstance(c.name, str) for c in transforms.offline + transforms.online)
    print(name)
print(sorted({name.partition(".")[0] for name in sys.modules} & {"tensorflow", "tensorflow_datasets", "seqio"}))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *made, tensorflow = done.stdout.splitlines()
    assert made == OBJECTIVES and tensorflow == "[]"
