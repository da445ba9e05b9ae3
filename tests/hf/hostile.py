"""Changes of a Hugging Face directory that someone else made: functions of the directory."""

import json
import os
import struct

import numpy as np

from jaxpt.hf import files

CONTROL = "\x1b[2J\x1b]0;owned\x07"
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 438955488\n"
DEEP = 100_000


def keys(**changes):
    """Changes keys of config.json."""

    def change(directory):
        path = directory / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def write(name, content):
    def change(directory):
        (directory / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return change


def index(content, others=None):
    """Puts the weights behind an index."""

    def change(directory):
        (directory / "model.safetensors").rename(directory / "part.safetensors")
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / "model.safetensors.index.json").write_text(text)
        for name, text in (others or {}).items():
            (directory / name).write_text(text)

    return change


def tensors(edit):
    """Changes the tensors of the file."""

    def change(directory):
        known = {name: np.array(x) for name, x in files.Tensors(directory).items()}
        known = edit(known)
        files.write(directory, {name: (x.shape, x.dtype) for name, x in known.items()}, known.items())

    return change


def header(entries, data=b""):
    """Replaces the weights by a safetensors file with this header."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return write("model.safetensors", struct.pack("<Q", len(text)) + text + data)


def renamed(old, new):
    return lambda directory: (directory / old).rename(directory / new)


def gone(*names):
    def change(directory):
        for name in names:
            (directory / name).unlink()

    return change


def both(*changes):
    def change(directory):
        for one in changes:
            one(directory)

    return change


def fifo(name):
    def change(directory):
        (directory / name).unlink(missing_ok=True)
        os.mkfifo(directory / name)

    return change


def folder(name):
    def change(directory):
        (directory / name).unlink(missing_ok=True)
        (directory / name).mkdir()

    return change


def link(name, target):
    def change(directory):
        (directory / name).unlink(missing_ok=True)
        (directory / name).symlink_to(target)

    return change


QUERY = "bert.encoder.layer.0.attention.self.query"
DEEP_LIST, DEEP_MAP = "[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP
ROPE = {"rope_parameters": None}
LLAMA3 = {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
INDEX = "model.safetensors.index.json: "
PART = {"a": "part.safetensors"}


def check_refused(case, attempt):
    """A change of a directory of an architecture ends in one line with these words, and exit code 2."""
    architecture, change, words = case
    code, output = attempt(change, architecture)
    assert code == 2, output
    assert words in output
