"""Hostile and odd Hugging Face directories: each is imported, or refused in one plain line; nothing is left behind."""

import contextlib
import io
import json
import os
import resource
import shutil
import signal
import struct

import numpy as np
import pytest

from jaxpt import hf
from jaxpt.cli import main
from jaxpt.hf import files
from tests import processes
from tests.hf.test_directory import AS_READ, fresh
from tests.models.helpers import EVERY

SECONDS = 60  # of a hang; the machine may be busy
CONTROL = "\x1b[2J\x1b]0;owned\x07"
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 438955488\n"
DEEP = 100_000


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """{architecture: directory}, made once; a case changes a copy."""
    made = {}

    def of(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            hf.save(made[name], *fresh(EVERY[name](**AS_READ)))
        return made[name]

    return of


@pytest.fixture
def attempt(sources, tmp_path, capsys):
    """Imports a changed copy of a directory; gives exit code and what was printed."""

    def run(change, of="bert", *options):
        directory = tmp_path / "hf"
        shutil.copytree(sources(of), directory)
        change(directory)

        def late(*_):
            raise TimeoutError("too slow")

        before = signal.signal(signal.SIGALRM, late)
        signal.alarm(SECONDS)
        try:
            code = main(["import", str(directory), str(tmp_path / "run"), *options])
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
        out, err = capsys.readouterr()
        assert all(line.isprintable() for line in (out + err).splitlines()), repr(out + err)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", *["run"] * (code == 0)]
        if code:
            assert code == 2 and len(err.splitlines()) == 1, err
        assert len(max((out + err).splitlines(), key=len)) < 1500
        return code, out + err

    return run


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

# {case: (architecture, what is changed, words of the message)}
REFUSED = {
    # config.json
    "config: a list": ("bert", write("config.json", "[]"), "config.json: expected a JSON object"),
    "config: deep lists": ("bert", write("config.json", DEEP_LIST), "config.json: nested too deeply"),
    "config: deep maps": ("bert", write("config.json", DEEP_MAP), "config.json: nested too deeply"),
    "config: deep key": ("bert", keys(flavour=json.loads('{"a":' * 500 + "1" + "}" * 500)), "nested too deeply"),
    "config: long integer": ("bert", write("config.json", '{"a": ' + "9" * 5000 + "}"), "config.json: not JSON"),
    "config: not UTF-8": ("bert", write("config.json", b"\xff\xfe{}"), "config.json: not JSON"),
    "config: pipe": ("bert", fifo("config.json"), "config.json: not a regular file"),
    "config: a directory": ("bert", folder("config.json"), "config.json"),
    "config: LFS pointer": ("bert", write("config.json", LFS), "config.json: a Git LFS pointer, not the file itself"),
    "config: model_type list": ("bert", keys(model_type=["bert"]), "model_type ['bert'] is not supported"),
    "config: model_type map": ("bert", keys(model_type={}), "model_type {} is not supported"),
    "config: model_type control": ("bert", keys(model_type=CONTROL), "is not supported"),
    "config: model_type of a megabyte": ("bert", keys(model_type="x" * 2**20), "is not supported"),
    "config: value of a megabyte": ("bert", keys(flavour="x" * 2**20), "flavour"),
    "config: key of a megabyte": ("bert", keys(**{"x" * 2**20: 1}), "is unknown"),
    "config: control characters": ("bert", keys(**{CONTROL: CONTROL}), "is unknown for model_type bert"),
    "config: line breaks in a value": ("bert", keys(flavour="a\nb\u2028c"), "flavour"),
    "config: architectures text": ("bert", keys(architectures="BertModel"), "architectures: wants a list"),
    "config: architectures number": ("bert", keys(architectures=5), "architectures: wants a list"),
    "config: architectures nested": ("bert", keys(architectures=[["x"]]), "architectures"),
    "config: heads 0": ("bert", keys(num_attention_heads=0), "num_attention_heads: wants "),
    "config: heads -1": ("bert", keys(num_attention_heads=-1), "num_attention_heads: wants "),
    "config: heads 5": ("bert", keys(num_attention_heads=5), "num_attention_heads: 5 does not divide hidden_size 24"),
    "config: heads text": ("bert", keys(num_attention_heads="12"), "num_attention_heads: wants "),
    "config: heads list": ("bert", keys(num_attention_heads=[3]), "num_attention_heads: wants "),
    "config: heads true": ("bert", keys(num_attention_heads=True), "num_attention_heads: wants "),
    "config: heads 2.5": ("bert", keys(num_attention_heads=2.5), "num_attention_heads: wants "),
    "config: layers 0": ("bert", keys(num_hidden_layers=0), "num_hidden_layers: wants "),
    "config: layers 10^9": ("bert", keys(num_hidden_layers=10**9), "num_hidden_layers: wants "),
    "config: layers of 400 digits": ("bert", keys(num_hidden_layers=10**400), "num_hidden_layers"),
    "config: vocabulary 10^12": ("bert", keys(vocab_size=10**12), "vocab_size: wants "),
    "config: vocabulary of 30 digits": ("bert", keys(vocab_size=10**30), "vocab_size"),
    "config: hidden_size 0": ("bert", keys(hidden_size=0), "hidden_size: wants "),
    "config: hidden_size 10^15": ("bert", keys(hidden_size=3 * 10**15), "hidden_size"),
    "config: null sizes": ("bert", keys(hidden_size=None), "hidden_size: wants "),
    "config: epsilon text": ("bert", keys(layer_norm_eps="1e-12"), "layer_norm_eps: wants "),
    "config: epsilon NaN": ("bert", keys(layer_norm_eps=float("nan")), "layer_norm_eps"),
    "config: dropout 2": ("bert", keys(hidden_dropout_prob=2), "hidden_dropout_prob: wants "),
    "config: activation list": ("bert", keys(hidden_act=["gelu"]), "hidden_act: ['gelu'] is not supported, only"),
    "config: activation map": ("bert", keys(hidden_act={"a": 1}), "hidden_act"),
    "config: activation null": ("bert", keys(hidden_act=None), "hidden_act: null is not supported"),
    "config: activation control": ("bert", keys(hidden_act=CONTROL), "hidden_act"),
    "config: is_decoder list": ("bert", keys(is_decoder=[]), "is_decoder: [] is not supported"),
    "config: quantized": (
        "bert", keys(quantization_config={"quant_method": "gptq", "bits": 4}),
        "quantization_config: quantized weights are not supported; import the unquantized model",
    ),
    "config: quantized, flat": ("bert", keys(quantization_config="int8"), "quantization_config: quantized weights"),
    "rope: text": ("llama", keys(rope_scaling="linear"), "rope_scaling: wants "),
    "rope: list": ("llama", keys(rope_scaling=[1]), "rope_scaling: wants "),
    "rope: number": ("llama", keys(rope_parameters=7), "rope_parameters: wants "),
    "rope: type list": ("llama", keys(rope_parameters={"rope_type": ["x"]}), "rope_type: ['x'] is not supported"),
    "rope: type map": ("llama", keys(rope_scaling={"type": {"a": 1}}, **ROPE), "rope_type"),
    "rope: yarn": ("llama", keys(rope_parameters={"rope_type": "yarn"}), "rope_type: 'yarn' is not supported"),
    "rope: factor text": ("llama", keys(rope_parameters={"rope_type": "linear", "factor": "2"}), "factor: wants "),
    "rope: factor 0": ("llama", keys(rope_parameters={"rope_type": "linear", "factor": 0}), "factor: wants "),
    "rope: theta 0": ("llama", keys(rope_parameters={"rope_theta": 0}), "rope_theta: wants "),
    "rope: theta list": ("llama", keys(rope_theta=[1], **ROPE), "rope_theta: wants "),
    "rope: llama3 without factors": (
        "llama", keys(rope_scaling={"rope_type": "llama3"}, **ROPE),
        "rope_parameters.factor: is missing; rope_type llama3 needs it",
    ),
    "rope: llama3 without a frequency": (
        "llama", keys(rope_parameters=LLAMA3 | {"high_freq_factor": None}),
        "rope_parameters.high_freq_factor: is missing",
    ),
    "rope: llama3 with frequencies in no order": (
        "llama", keys(rope_parameters=LLAMA3 | {"low_freq_factor": 4.0}),
        "rope_parameters.high_freq_factor: wants more than low_freq_factor (4.0), got 4.0",
    ),
    "rope: linear without a factor": (
        "llama", keys(rope_scaling={"type": "linear"}, **ROPE), "rope_parameters.factor: is missing; rope_type linear",
    ),
    "llama: heads 0": ("llama", keys(num_attention_heads=0), "num_attention_heads: wants "),
    "llama: kv heads 0": ("llama", keys(num_key_value_heads=0), "num_key_value_heads: wants "),
    "llama: kv heads 5": ("llama", keys(num_key_value_heads=5), "num_key_value_heads"),
    "llama: odd head_dim": ("llama", keys(head_dim=3), "head_dim"),
    "llama: head_dim 0": ("llama", keys(head_dim=0), "head_dim: wants "),
    "deberta: heads 0": ("deberta", keys(num_attention_heads=0), "num_attention_heads: wants "),
    "deberta: heads text": ("deberta", keys(num_attention_heads="3"), "num_attention_heads: wants "),
    "deberta: pos_att_type 5": ("deberta", keys(pos_att_type=5), "pos_att_type: wants "),
    "deberta: buckets text": ("deberta", keys(position_buckets="4"), "position_buckets: wants "),
    "deberta: norm_rel_ebd 1": ("deberta", keys(norm_rel_ebd=1), "norm_rel_ebd: wants "),
    "deberta: norm_rel_ebd of another kind": (
        "deberta", keys(norm_rel_ebd="rms_norm"), "norm_rel_ebd: 'rms_norm' is not supported, only none or layer_norm",
    ),
    "deberta: pos_att_type of another kind": (
        "deberta", keys(pos_att_type="c2p|p2x"), "pos_att_type: 'p2x' is not supported, only c2p or p2c",
    ),
    "deberta: pos_att_type numbers": ("deberta", keys(pos_att_type=[1]), "pos_att_type: 1 is not supported"),
    "modernbert: layer_types 5": ("modernbert", keys(layer_types=5), "layer_types: wants "),
    "modernbert: layer_types []": ("modernbert", keys(layer_types=[]), "global_attn_every_n_layers: wants"),
    "modernbert: window text": ("modernbert", keys(sliding_window="4"), "sliding_window: wants "),
    "modernbert: rope list": ("modernbert", keys(rope_parameters=[1]), "rope_parameters: wants "),
    "modernbert: rope entries": (
        "modernbert", keys(rope_parameters={"full_attention": 5}), "rope_parameters.full_attention: wants",
    ),
    "modernbert: rope of one kind for all": (
        "modernbert", keys(rope_parameters={"rope_theta": 5e3}), "rope_parameters.rope_theta: is not supported, only",
    ),
    "modernbert: rope with a factor": (
        "modernbert", keys(rope_parameters={"full_attention": {"factor": 2.0}}), "full_attention.factor: is not supp",
    ),
    "modernbert: every 0": (
        "modernbert", keys(layer_types=None, global_attn_every_n_layers=0), "global_attn_every_n_layers: wants",
    ),
    "t5: heads 0": ("t5", keys(num_heads=0), "num_heads: wants "),
    "t5: feed-forward list": ("t5", keys(feed_forward_proj=["relu"]), "feed_forward_proj: ['relu'] is not supported"),
    "t5: no tensors": ("t5", tensors(lambda known: {"a": np.zeros(1, np.float32)}), "weights"),
    "albert: groups 0": ("albert", keys(num_hidden_groups=0), "num_hidden_groups: wants "),
    "albert: inner 0": ("albert", keys(inner_group_num=0), "inner_group_num: wants "),
    "xlnet: heads 0": ("xlnet", keys(n_head=0), "n_head: wants "),
    "xlnet: clamp_len text": ("xlnet", keys(clamp_len="x"), "clamp_len: wants a whole number, got 'x'"),
    "xlnet: mem_len list": ("xlnet", keys(mem_len=[1]), "mem_len: wants a whole number, got [1]"),
    "xlnet: reuse_len NaN": ("xlnet", keys(reuse_len=float("nan")), "reuse_len: wants a whole number, got nan"),
    "opt: projection map": ("opt", keys(word_embed_proj_dim={}), "word_embed_proj_dim: wants a whole number, got {}"),
    "bart: tied encoder": ("bart", keys(tie_encoder_decoder=True), "tie_encoder_decoder: true is not supported"),
    "gpt2: heads 0": ("gpt2", keys(n_head=0), "n_head: wants "),
    "bart: heads 0": ("bart", keys(encoder_attention_heads=0), "encoder_attention_heads: wants "),
    "opt: heads 0": ("opt", keys(num_attention_heads=0), "num_attention_heads: wants "),
    "distilbert: heads 0": ("distilbert", keys(n_heads=0), "n_heads: wants "),
    "electra: heads 0": ("electra", keys(num_attention_heads=0), "num_attention_heads: wants "),
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
        "bert", renamed("model.safetensors", "flax_model.msgpack"), "flax_model.msgpack: weights of Flax are not",
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
    of, change, words = REFUSED[name]
    code, said = attempt(change, of)
    assert code == 2, said
    assert words in said


def pooler_without_heads(known):
    """The layout of albert-base-v2: masked LM and pooler, no classifier of sentence pairs."""
    return {name: x for name, x in known.items() if not name.startswith(("cls.seq_", "sop_classifier"))}


def prefixed(wrapper):
    return tensors(lambda known: {wrapper + name: x for name, x in known.items()})


ACCEPTED = {
    "albert: a pooler without its head": ("albert", tensors(pooler_without_heads), ()),
    "bert: a pooler without its head": ("bert", tensors(pooler_without_heads), ()),
    "config: an unknown key": ("bert", keys(flavour="vanilla"), ("--ignore", "flavour")),
    "config: what tools note": (
        "bert", keys(_attn_implementation_autoset=True, unsloth_version="2026.4.5", unsloth_fixed=True,
                     _commit_hash="1f", _attn_implementation_internal="eager", xla_device=True,
                     **{"transformers.js_config": {"dtype": {"a": "fp16"}}}), (),
    ),
    "rope: llama3 for the model's positions": ("llama", keys(rope_parameters=LLAMA3), ()),
    "weights: of DataParallel": ("bert", prefixed("module."), ()),
    "weights: of torch.compile": ("bert", prefixed("_orig_mod."), ()),
    "weights: of both": ("bert", prefixed("_orig_mod.module."), ()),
    "weights: of FSDP": ("llama", prefixed("_fsdp_wrapped_module."), ()),
    "weights: of parts that are compiled": ("llama", tensors(lambda known: {
        name.replace("layers.0.", "layers.0._orig_mod."): x for name, x in known.items()}), ()),
    "config: an unknown nested key": ("bert", keys(flavour={"a": {"b": 1}}), ("--ignore", "flavour.a.b")),
    "config: the map of an unknown key": ("bert", keys(flavour={"a": {"b": 1, "c": 2}}), ("--ignore", "flavour")),
    "config: an unknown key with a dot": ("bert", keys(**{"a.b": 1}), ("--ignore", "a.b")),
    "config: null of an unknown key": ("bert", keys(flavour=None), ()),
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


# ---- adapters, llama2.c, other paths --------------------------------------------------------------------------------

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
    assert "google-bert/bert-base-uncased: no such directory; a model of the hub: hf download" in said


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
    assert code == 2 and len(said.splitlines()) == 1 and str(tmp_path / "run") in said, said
    assert not [*tmp_path.iterdir()]
