"""TensorFlow is imported without a word and without Keras, which is there for who asks for it."""

import os
import subprocess
import sys

import pytest

from jaxpt.data.tables.quiet_tensorflow import quietly

pytest.importorskip("tensorflow")

IMPORTED = """
import inspect, os, sys
before = dict(os.environ)
from jaxpt.data._tf import seqio, tf
inspect.getmodule(inspect.currentframe())  # asks every module where it is from, as pydantic does
assert not {"keras", "tf_keras", "sklearn", "matplotlib"} & set(sys.modules)
assert dict(os.environ) == {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", **before}
"""


@pytest.mark.slow
def test_keras_is_imported_when_it_is_used_and_not_before():
    used = "import tensorflow_text\nprint(tensorflow_text.keras.layers.ToDense(0), tf.keras.__version__)"
    done = subprocess.run([sys.executable, "-c", IMPORTED + used], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("<ToDense"), done.stderr
    assert "keras" not in done.stderr.lower()


def test_who_chose_a_keras_keeps_it(monkeypatch):
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "0")
    with quietly():
        assert os.environ["TF_USE_LEGACY_KERAS"] == "0"
    assert os.environ["TF_USE_LEGACY_KERAS"] == "0"
