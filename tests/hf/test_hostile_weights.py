"""Hostile and odd files of weights and vocabularies: each is imported, or refused in one plain line."""

import os

import numpy as np
import pytest

from jaxpt.hf import files
from tests.hf.hostile import (
    CONTROL,
    DEEP_LIST,
    DEEP_MAP,
    INDEX,
    LFS,
    PART,
    QUERY,
    both,
    check_refused,
    fifo,
    folder,
    gone,
    header,
    index,
    link,
    renamed,
    tensors,
    write,
)

# {case: (architecture, what is changed, words of the message)}
REFUSED = {
    # index
    "index: a list": ("bert", index([]), INDEX),
    "index: null": ("bert", index("null"), INDEX),
    "index: a map of a list": ("bert", index({"weight_map": [1]}), INDEX),
    "index: numbers": ("bert", index({"weight_map": {"a": 1}}), INDEX),
    "index: lists": ("bert", index({"weight_map": {"a": ["x"]}}), INDEX),
    "index: nothing": ("bert", index({"weight_map": {}}), INDEX),
    "index: null file": ("bert", index({"weight_map": {"a": None}}), INDEX),
    "index: deep": ("bert", index(DEEP_LIST), INDEX),
    "index: LFS pointer": ("bert", index(LFS), "a Git LFS pointer"),
    "index: up": ("bert", index({"weight_map": {"a": "../hf/part.safetensors"}}), "'../hf/part.safetensors'"),
    "index: absolute": ("bert", index({"weight_map": {"a": "/etc/passwd"}}), "'/etc/passwd'"),
    "index: a directory": ("bert", index({"weight_map": {"a": "."}}), INDEX),
    "index: another format": ("bert", index({"weight_map": {"a": "config.json"}}), "config.json"),
    "index: control characters": ("bert", index({"weight_map": {"a": CONTROL}}), INDEX),
    "index: NUL": ("bert", index({"weight_map": {"a": "a\0b.safetensors"}}), INDEX),
    "index: name of a megabyte": ("bert", index({"weight_map": {"a": "x" * 2**20}}), INDEX),
    # safetensors
    "weights: LFS pointer": ("bert", write("model.safetensors", LFS), "model.safetensors: a Git LFS pointer"),
    "weights: empty": ("bert", write("model.safetensors", b""), "not a valid safetensors file"),
    "weights: huge header": ("bert", write("model.safetensors", b"\xff" * 64), "not a valid safetensors file"),
    "weights: deep header": ("bert", header(DEEP_MAP.encode()), "not a valid safetensors file"),
    "weights: no tensors": ("bert", header({}), "weights"),
    "weights: metadata number": ("bert", header({"__metadata__": 5}), "not a valid safetensors file"),
    "weights: name with controls": (
        "bert", tensors(lambda known: known | {CONTROL: np.ones(1, np.float32)}), "not in a bert",
    ),
    "weights: name of a megabyte": (
        "bert", tensors(lambda known: known | {"x" * 2**20: np.ones(1, np.float32)}), "not in a bert",
    ),
    "weights: float8": (
        "bert", header({"x": {"dtype": "F8_E4M3", "shape": [24, 24], "data_offsets": [0, 576]}}, b"0" * 576),
        "weights",
    ),
    "weights: scalar": (
        "bert", tensors(lambda known: known | {f"{QUERY}.bias": np.ones((), np.float32)}), "has shape ()",
    ),
    "weights: no elements": (
        "bert", tensors(lambda known: known | {f"{QUERY}.bias": np.ones((0,), np.float32)}), "has shape (0,)",
    ),
    "weights: one missing": (
        "bert", tensors(lambda known: {n: x for n, x in known.items() if n != f"{QUERY}.bias"}), "is missing",
    ),
    "weights: pipe": ("bert", fifo("model.safetensors"), "model.safetensors: not a regular file"),
    "weights: a directory": ("bert", folder("model.safetensors"), "model.safetensors"),
    "weights: /dev/zero": ("bert", link("model.safetensors", "/dev/zero"), "not a regular file"),
    "weights: broken link": ("bert", link("model.safetensors", "nowhere"), "model.safetensors: a link to nowhere"),
    "weights: TensorFlow's": (
        "bert", renamed("model.safetensors", "tf_model.h5"), "tf_model.h5: weights of TensorFlow are not supported",
    ),
    "weights: Flax's": (
        "bert", renamed("model.safetensors", "flax_model.msgpack"), "flax_model.msgpack: is damaged, half-written",
    ),
    "weights: GGUF": ("bert", renamed("model.safetensors", "model-q4.gguf"), "model-q4.gguf: weights of GGUF are not"),
    "weights: of two wrappers": (
        "bert", tensors(lambda known: known | {f"module.{QUERY}.bias": known[f"{QUERY}.bias"]}),
        f"contains module.{QUERY}.bias beside {QUERY}.bias",
    ),
    "weights: none": ("bert", gone("model.safetensors"), "contains no weights"),
    # the vocabulary
    "vocabulary: a link outside": (
        "bert", link("vocab.txt", "/etc/hostname"), "vocab.txt: a link to /etc/hostname, outside",
    ),
    "vocabulary: LFS pointer": ("bert", write("spiece.model", LFS), "spiece.model: a Git LFS pointer"),
    "template: a link outside": (
        "bert", link("chat_template.jinja", "/etc/hostname"), "chat_template.jinja: a link to /etc/hostname, outside",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line(name, attempt):
    check_refused(REFUSED[name], attempt)


def pooler_without_heads(known):
    """The layout of albert-base-v2: masked LM and pooler, no classifier of sentence pairs."""
    return {name: x for name, x in known.items() if not name.startswith(("cls.seq_", "sop_classifier"))}


def prefixed(wrapper):
    return tensors(lambda known: {wrapper + name: x for name, x in known.items()})


ACCEPTED = {
    "albert: a pooler without its head": ("albert", tensors(pooler_without_heads), ()),
    "bert: a pooler without its head": ("bert", tensors(pooler_without_heads), ()),
    "weights: of DataParallel": ("bert", prefixed("module."), ()),
    "weights: of torch.compile": ("bert", prefixed("_orig_mod."), ()),
    "weights: of both": ("bert", prefixed("_orig_mod.module."), ()),
    "weights: of FSDP": ("llama", prefixed("_fsdp_wrapped_module."), ()),
    "weights: of parts that are compiled": ("llama", tensors(lambda known: {
        name.replace("layers.0.", "layers.0._orig_mod."): x for name, x in known.items()}), ()),
    "index": ("bert", index({"weight_map": PART}), ()),
    "vocabulary: a link inside": ("bert", both(write("mine.txt", "[PAD]\n[UNK]\n"), link("vocab.txt", "mine.txt")), ()),
    "vocabulary: an array as settings": ("bert", write("tokenizer_config.json", "[]"), ()),
    "vocabulary: deep tokenizer.json": ("bert", write("tokenizer.json", DEEP_LIST), ()),
    "vocabulary: empty tokenizer.json": ("bert", write("tokenizer.json", "{}"), ()),
    "vocabulary: a list as tokenizer.json": ("bert", write("tokenizer.json", "[1]"), ()),
    "vocabulary: model null": ("bert", write("tokenizer.json", '{"model": null}'), ()),
    "vocabulary: binary": ("bert", write("vocab.txt", bytes(range(256))), ()),
    "vocabulary: garbage as SentencePiece": ("bert", write("spiece.model", b"\x00\xff" * 90), ()),
    "vocabulary: list as vocab.json": ("gpt2", both(write("vocab.json", "[]"), write("merges.txt", "a b\n")), ()),
    "vocabulary: odd merges": ("gpt2", both(write("vocab.json", '{"a": 0}'), write("merges.txt", "a\x00 b c d\n")), ()),
    "vocabulary: template number": ("bert", both(
        write("vocab.txt", "[PAD]\n[UNK]\n"), write("tokenizer_config.json", '{"chat_template": 5}')), ()),
    "vocabulary: deep settings": ("bert", both(
        write("vocab.txt", "[PAD]\n[UNK]\n"), write("tokenizer_config.json", DEEP_LIST)), ()),
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name, attempt):
    of, change, options = ACCEPTED[name]
    code, said = attempt(change, of, *options)
    assert code == 0, said


# ---- .bin files -----------------------------------------------------------------------------------------------------


def pickled(edit):
    """Writes the tensors as torch does, after a change."""

    def change(directory):
        import torch

        state = {name: torch.from_numpy(np.array(x)) for name, x in files.Tensors(directory).items()}
        (directory / "model.safetensors").unlink()
        torch.save(edit(state, torch), directory / "pytorch_model.bin")

    return change


def at_query(change):
    return lambda state, torch: state | {f"{QUERY}.weight": change(state[f"{QUERY}.weight"], torch)}


class Code:
    def __reduce__(self):
        return os.system, ("true",)


PICKLES = {
    "parameters": (lambda state, torch: {n: torch.nn.Parameter(x) for n, x in state.items()}, None),
    "wrapped": (lambda state, torch: {"state_dict": state, "epoch": 3}, None),
    "wrapped twice": (lambda state, torch: {"model": {"model": state}}, "expected a state_dict"),
    "not contiguous": (at_query(lambda x, torch: x.T.contiguous().T), None),
    "a list": (lambda state, torch: [*state.values()], "expected a state_dict"),
    "numbers as names": (lambda state, torch: dict(enumerate(state.values())), "expected a state_dict"),
    "a number": (lambda state, torch: state | {"epoch": 3}, "expected a state_dict"),
    "sparse": (at_query(lambda x, torch: x.to_sparse()), "has type sparse_coo float32"),
    "float8": (at_query(lambda x, torch: x.to(torch.float8_e4m3fn)), "has type float8_e4m3fn"),
    "quantized": (at_query(lambda x, torch: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)), "has type qint8"),
    "meta": (at_query(lambda x, torch: x.to("meta")), "has type meta float32"),
    "complex": (at_query(lambda x, torch: x.to(torch.complex64)), "has type complex64"),
    "code": (lambda state, torch: state | {"x": Code()}, "refused: besides tensors it contains"),
    "a module": (lambda state, torch: torch.nn.Linear(2, 2), "refused: besides tensors it contains torch.nn"),
}


@pytest.mark.parity
@pytest.mark.parametrize("name", PICKLES)
def test_files_of_torch(name, attempt):
    pytest.importorskip("torch")
    edit, words = PICKLES[name]
    code, said = attempt(pickled(edit))
    assert code == (0 if words is None else 2), said
    assert words is None or words in said


@pytest.mark.parity
@pytest.mark.parametrize("content", [b"", LFS.encode(), b"PK\x03\x04garbage", b"\x80\x02]q\x00" * 9, b"\x80\x04("])
def test_files_that_are_none_of_torch(content, attempt):
    pytest.importorskip("torch")
    code, said = attempt(both(gone("model.safetensors"), write("pytorch_model.bin", content)))
    assert code == 2 and "pytorch_model.bin: " in said
