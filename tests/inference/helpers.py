"""Small random models with tokenizers as directories, each made once for all tests of a process."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

import numpy as np
from flax import traverse_util

import jaxpt
from jaxpt import config as configs
from jaxpt import hf
from jaxpt.config.kinds import resolve
from jaxpt.data import tokenizers
from jaxpt.train import weights
from tests import families
from tests.hf.test_directory import fresh
from tests.models.helpers import drawn

TEXTS = ["the cat sat on the mat", "a dog ran after the cat", "no one saw the dog run away"] * 5


@functools.cache
def directory(family, **model):
    """A Hugging Face directory of a small random model with a tokenizer, which nobody changes."""
    path = Path(tempfile.mkdtemp(prefix=family))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    settings = {**families.MODELS[family], "vocab_size": 300 if family == "gpt2" else 60, "dtype": "auto"}
    settings |= ({} if family == "bert" else {"layers": 1}) | model
    network, params = fresh(families.config(family, model=settings).model)
    hf.save(path, network, params)
    extra_ids = 5 if family == "t5" else 0 if family == "llama" else None
    kind = configs.TokenizerConfig(kind=families.TOKENIZERS[family], extra_ids=extra_ids)
    tokenizers.train(TEXTS, kind, 270 if family == "gpt2" else 50, path)
    return path


def made(path, family, **model):
    """A copy of it, for a test of its own."""
    return Path(shutil.copytree(directory(family, **model), path, dirs_exist_ok=True))


@functools.cache
def loaded(family, **model):
    """The model of it. What it compiles serves all tests that ask the same."""
    return jaxpt.load(directory(family, **model))


def run_of(path, model, tokenizer, objective, extra_ids=None, more=None, task=None, **data):
    """A run directory with random weights."""
    path.mkdir()
    settings = configs.TokenizerConfig(kind=tokenizer, extra_ids=extra_ids)
    languages = ("en_XX",) if objective == "mbart" else ()
    tokenizers.train(TEXTS, settings, 270 if tokenizer == "bpe" else 60, path / "tokenizer", languages)
    model = {**families.MODELS["t5"], "layers": 1, "dtype": "float32", "vocab_size": 300} | model
    known = resolve(model["kind"], "jaxpt.models", configs.ModelConfig).model_fields
    model = {key: value for key, value in model.items() if key in known}
    config = configs.build(
        {
            "run_dir": str(path), "model": model, "objective": {"kind": objective, **(more or {})},
            "data": {"tokenizer": settings.model_dump(), "length": 32, "batch_size": 8, **data},
            **({} if task is None else {"task": task}),
        }
    )  # fmt: skip
    (path / "config.yaml").write_text(configs.to_yaml(config))
    network = config.objective.network(config.model)
    params = traverse_util.flatten_dict(drawn(network), sep="/")  # to compile what draws them takes a second
    weights.write(path, network, {}, ((name, None, np.asarray(x)) for name, x in params.items()))
    return jaxpt.load(path)
