"""Hostile and odd adapters, checkpoints and paths: each is refused in one plain line, and nothing is left behind."""

import contextlib
import io
import json
import os
import resource
import shutil

import numpy as np
import pytest

from jaxpt.cli import main
from jaxpt.hf import files
from jaxpt.runtime import exit_codes
from tests import processes
from tests.hf.hostile import (
    CONTROL,
    LFS,
    QUERY,
)

LORA = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["query"]}
ADAPTERS = {
    "a list": ([], "expected a JSON object"),
    "another kind": ({"peft_type": ["LORA"]}, "peft_type: ['LORA'] is not supported"),
    "alpha text": ({"lora_alpha": "4"}, "lora_alpha: wants a number, got '4'"),
    "alpha NaN": ({"lora_alpha": float("nan")}, "lora_alpha: wants a number, got nan"),
    "dropout 2": ({"lora_dropout": 2}, "lora_dropout: wants a number from 0 to 1, got 2"),
    "pattern list": ({"alpha_pattern": [1]}, "alpha_pattern: wants a mapping of modules to numbers, got [1]"),
    "pattern of no expression": ({"alpha_pattern": {"(": 1}}, "alpha_pattern: '(': missing ): ("),
    "pattern text": ({"alpha_pattern": {"x": "1"}}, "alpha_pattern: wants a mapping of modules to numbers"),
    "base number": ({"base_model_name_or_path": 5}, "base_model_name_or_path: wants a string, got 5"),
    "base far": ({"base_model_name_or_path": CONTROL}, "is no directory here"),
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters(name, attempt, sources):
    change, words = ADAPTERS[name]

    def adapter(directory):
        base = directory / "base"
        base.mkdir()
        for file in [*directory.glob("*.*")]:
            file.rename(base / file.name)
        given = change if isinstance(change, list) else LORA | {"base_model_name_or_path": str(base)} | change
        (directory / "adapter_config.json").write_text(json.dumps(given))
        factors = {
            f"base_model.model.{QUERY}.lora_{x}.weight": np.ones((2, 24)[:: 1 if x == "A" else -1], np.float32)
            for x in "AB"
        }
        announced = {name: (x.shape, x.dtype) for name, x in factors.items()}
        files.write(directory, announced, factors.items(), stem="adapter_model")

    code, said = attempt(adapter)
    assert code == 2 and words in said, said


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a checkpoint of llama2.c"),
        (np.array([2**31 - 1] * 7, np.int32).tobytes(), "not a checkpoint of llama2.c"),
        (np.array([24, 24, 2**31 - 1, 2, 2, 9, 9], np.int32).tobytes(), "not a checkpoint of llama2.c"),
        (LFS.encode(), "a Git LFS pointer"),
        (b"GGUF" * 99, "not a checkpoint of llama2.c"),
        (None, "not a regular file"),
    ],
)
def test_files_that_are_no_checkpoint(content, words, tmp_path, capsys):
    path = tmp_path / "model.bin"
    path.write_bytes(content) if content is not None else os.mkfifo(path)
    assert main(["import", str(path), str(tmp_path / "run")]) == 2
    assert words in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_a_name_of_the_hub(tmp_path, capsys):
    assert main(["import", "google-bert/bert-base-uncased", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "google-bert/bert-base-uncased: no such directory, and the hub cannot be reached" in said
    assert "; a model of the hub: hf download google-bert/bert-base-uncased --local-dir DIR" in said


def test_links_of_the_hubs_cache_are_followed(sources, tmp_path):
    """snapshots/REVISION has links into blobs."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1234"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    shutil.copytree(sources("bert"), source := tmp_path / "source")
    (source / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    for file in [*source.iterdir()]:
        file.rename(blobs / file.name)
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    assert main(["import", str(snapshot), str(tmp_path / "run")]) == 0
    assert not (tmp_path / "run" / "tokenizer" / "vocab.txt").is_symlink()


@pytest.mark.parametrize("size", ["nan", "-1", "0", "inf", "x", "1e-20"])
def test_sizes_of_files(size, tmp_path, capsys):
    with pytest.raises(SystemExit) if size != "1e-20" else contextlib.nullcontext() as left:
        assert main(["export", str(tmp_path / "none"), str(tmp_path / "out"), "--shard-gb", size]) == 2
    assert size == "1e-20" or left.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def limited(kilobytes, argv, answer):
    """Runs a command while no file may grow beyond a limit; sends (exit code, stderr)."""
    import jax

    jax.config.update("jax_enable_compilation_cache", False)
    resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes * 1024, kilobytes * 1024))
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(argv)
    answer.send((code, said.getvalue()))


@pytest.mark.slow
@pytest.mark.parametrize("kilobytes", [0, 1, 4, 12])
def test_a_full_disk(kilobytes, sources, tmp_path):
    """The disk is full at another place of the import each time."""
    ours, theirs = processes.forked().Pipe(duplex=False)
    argv = ["import", str(sources("bert")), str(tmp_path / "run")]
    process = processes.forked().Process(target=limited, args=(kilobytes, argv, theirs))
    process.start()
    assert ours.poll(120)
    code, said = ours.recv()
    process.join()
    assert code == exit_codes.STORAGE and len(said.splitlines()) == 1 and str(tmp_path / "run") in said, said
    assert not [*tmp_path.iterdir()]
