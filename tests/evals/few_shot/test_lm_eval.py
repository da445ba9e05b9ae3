"""lm-eval's model `jaxpt`, and per-example agreement with lm-eval's own tasks on transformers."""

import ast
import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import jaxpt
from jaxpt.errors import UserError
from jaxpt.evals.few_shot import examples, task
from tests import families
from tests.inference.helpers import made

ROOT = Path(__file__).parents[3]
TEXTS = ["the cat sat on the mat", "a dog ran after the cat", "no one saw the dog"]


def test_one_file_alone_needs_lm_eval():
    named = set()
    for file in (ROOT / "jaxpt").rglob("*.py"):
        for node in ast.walk(ast.parse(text)) if "lm_eval" in (text := file.read_text("utf-8")) else ():
            targets = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            targets += [one.name for one in node.names] if isinstance(node, ast.Import) else []
            named |= {file.relative_to(ROOT).as_posix() for one in targets if one.split(".")[0] == "lm_eval"}
    assert named == {"jaxpt/inference/lm_eval.py"}


def test_without_lm_eval_there_is_one_line(tmp_path):
    (tmp_path / "lm_eval.py").write_text("raise ModuleNotFoundError('none', name='lm_eval')")
    found = subprocess.run(
        [sys.executable, "-m", "jaxpt.inference.lm_eval", "--tasks", "piqa"], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
    )  # fmt: skip
    assert found.returncode == 2
    assert found.stderr == "jaxpt: the Python package 'lm_eval' is not installed; pip install lm_eval\n"


def test_a_file_of_as_many_rows_as_shots_is_enough(tmp_path):
    row = {"q": "who?", "right": "no one"}
    for name in ("rows.jsonl", "shots.jsonl"):
        (tmp_path / name).write_text(json.dumps(row) + "\n")
    (tmp_path / "t.yaml").write_text(json.dumps({
        "data": {"path": "rows.jsonl", "shots_path": "shots.jsonl"}, "form": "loglikelihood", "context": "{{ q }}",
        "continuation": " {{ right }}",
    }))  # fmt: skip
    (one,) = examples.examples(task.load(str(tmp_path / "t.yaml")), shots=1)
    assert one.contexts == ("who? no one\n\nwho?",)


def test_white_space_before_a_continuation_belongs_to_it(tmp_path):
    reader = jaxpt.load(made(tmp_path / "gpt2", "gpt2")).reader
    assert reader.pair("the cat ", "sat") == reader.pair("the cat", " sat")
    assert reader.tokenizer.decode(reader.pair("the cat ", "sat")[1]) == " sat"


CHAT = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{{ m.role }} {{ m.content | trim }}\n{% endfor %}{% if add_generation_prompt %}assistant {% endif %}"
)


@pytest.fixture
def module(monkeypatch):
    """The adapter's module beside a stand-in for lm_eval, as far as it needs that without a task."""

    class LM:
        def __init__(self):
            self.cache_hook = types.SimpleNamespace(add_partial=lambda *_: None)

    def parse(text):
        return dict(pair.split("=") for pair in text.split(","))

    members = {
        "lm_eval": {"utils": types.SimpleNamespace(simple_parse_args_string=parse)}, "lm_eval.api": {},
        "lm_eval.__main__": {"cli_evaluate": lambda: None}, "lm_eval.api.instance": {"Instance": None},
        "lm_eval.api.model": {"LM": LM}, "lm_eval.api.registry": {"register_model": lambda name: lambda model: model},
    }  # fmt: skip
    for name, of_module in members.items():
        stand_in = types.ModuleType(name)
        vars(stand_in).update(of_module)
        monkeypatch.setitem(sys.modules, name, stand_in)
    spec = importlib.util.find_spec("jaxpt.inference.lm_eval")
    found = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, found)
    spec.loader.exec_module(found)
    return found


@pytest.fixture
def model(module, tmp_path, monkeypatch):
    """A decoder that the adapter loads, with a chat template; `rows` are those that it was loaded with."""
    found = jaxpt.load(made(tmp_path / "gpt2", "gpt2", max_positions=128))
    found.tokenizer.chat_templates, found.rows = {"default": CHAT}, []
    load = lambda path, batch_size, dtype: found.rows.append(batch_size) or found  # noqa: E731
    monkeypatch.setattr(module.loaded, "load", load)
    return found


def test_arguments_of_the_model_count_before_lm_evals_options(module, model):
    options = {"batch_size": "4", "max_batch_size": None, "device": "cuda:0"}
    module.JaxptLM.create_from_arg_string("path=RUN,batch_size=8", options)
    module.JaxptLM.create_from_arg_obj({"path": "RUN", "trust_remote_code": True}, options)
    module.JaxptLM.create_from_arg_obj({"path": "RUN"}, options | {"batch_size": None})
    assert model.rows == [8, 4, 32]
    with pytest.raises(UserError, match="--model_args: path is missing; wants path=RUN_DIR"):
        module.JaxptLM.create_from_arg_string("batch_size=8", options)


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ("--tasks piqa", "--batch_size 32 --tasks piqa"),
        ("run --tasks piqa -b 4", "--batch_size 32 --tasks piqa -b 4"),  # the last one counts
        ("--config mine.yaml", "--config mine.yaml"),
    ],
)
def test_the_command_has_defaults_of_its_own(module, monkeypatch, given, added):
    monkeypatch.setattr(sys, "argv", ["lm_eval", *given.split()])
    assert module.main() == 0 and sys.argv == ["lm_eval", *f"run --model jaxpt {added}".split()]


def test_a_dialogue_is_rendered_by_the_tokenizers_template(module, model, monkeypatch):
    adapter, bos = module.JaxptLM("RUN"), model.vocabulary.bos
    adapter._asks._reader = reader = dataclasses.replace(model.reader, bos=bos)
    messages = [{"role": "user", "content": "the cat"}]
    text = adapter.apply_chat_template(messages)
    assert text == f"{model.tokenizer.tokens([bos])[0]}user the cat\nassistant "
    (prompt,) = adapter._asks.prompts([text], 4)
    for ids in (prompt.tokens, reader.pair(text, "sat")[0]):
        assert ids[0] == bos and bos not in ids[1:]
    begun = [*messages, {"role": "assistant", "content": "It is"}]
    assert adapter.apply_chat_template(begun, add_generation_prompt=False) == f"{text}It is"
    with pytest.warns(UserWarning, match="the chat template takes no system message, which is left out"):
        assert adapter.apply_chat_template([{"role": "system", "content": "the"}, *messages]) == text
    with pytest.raises(UserError, match="message 1: role is 'me'"):
        adapter.apply_chat_template([{"role": "me", "content": "the"}])
    asked = []
    monkeypatch.setattr(model, "generate_iter", lambda prompts, options: asked.append(options) or iter(()))
    request = types.SimpleNamespace(args=(text, {"until": ["Q:"], "max_gen_toks": 4}))
    assert adapter.generate_until([request]) == [""]
    assert asked[0].stop == ("Q:", "\nuser"), "an answer ends where the template says, too"


def test_a_template_that_is_not_there_is_one_line(module, model):
    adapter = module.JaxptLM("RUN")
    assert adapter.chat_template(False) is None and adapter.chat_template(True) == CHAT
    with pytest.raises(
        UserError, match=r"^--apply_chat_template: .*gpt2: no template 'rag', the tokenizer has default$"
    ):
        adapter.chat_template("rag")
    model.tokenizer.chat_templates = {}
    with pytest.raises(UserError, match="no template 'default', the tokenizer has none"):
        module.JaxptLM("RUN").apply_chat_template([{"role": "user", "content": "the cat"}])


def requests(kind, arguments):
    from lm_eval.api.instance import Instance

    return [Instance(request_type=kind, doc={}, arguments=one, idx=0) for one in arguments]


@pytest.mark.slow
@pytest.mark.parametrize("family", families.FAMILIES)
def test_the_adapter_says_what_jaxpt_says(tmp_path, family):
    pytest.importorskip("lm_eval")
    from jaxpt.inference.lm_eval import JaxptLM

    path = str(made(tmp_path / family, family))
    adapter, model = JaxptLM(path), jaxpt.load(path)
    pairs = [(text[:7], text[7:]) for text in TEXTS]
    found = adapter.loglikelihood(requests("loglikelihood", pairs))
    wanted = model.loglikelihood(*zip(*pairs))
    np.testing.assert_allclose([one for one, _ in found], [one.total for one in wanted], rtol=1e-5)
    assert [greedy for _, greedy in found] == [one.is_greedy for one in wanted]
    assert all(one < 0 for one in adapter.loglikelihood_rolling(requests("loglikelihood_rolling", zip(TEXTS))))
    asked = requests("generate_until", [(text, {"until": ["\n"], "max_gen_toks": 6}) for text in TEXTS])
    if family == "bert":
        with pytest.raises(UserError, match="is an encoder"):
            adapter.generate_until(asked)
    else:
        texts = [samples[0].text for samples in model.generate(TEXTS, max_new_tokens=6, stop=("\n",))]
        assert adapter.generate_until(asked) == texts
    with pytest.raises(UserError, match="foo: wants until"):
        adapter.generate_until(requests("generate_until", [("a", {"foo": 1})]))
    with pytest.raises(UserError, match="pth: wants path"):
        JaxptLM(path, pth="x")
    assert JaxptLM(path, form="plain" if family == "t5" else None, unit="word" if family == "bert" else None)
    for setting, value, of in (("form", "plain", "t5"), ("unit", "piece", "bert")):
        if family != of:
            with pytest.raises(UserError, match=f"--model_args: {setting}: is for encoder"):
                JaxptLM(path, **{setting: value})


ROWS = {
    "lambada_openai": [{"context": text, "continuation": word} for text in TEXTS for word in ("cat", "dog")],
    "arc_easy": [{"query": f"Question: {text}?", "choices": TEXTS, "gold": 1} for text in TEXTS],
    "piqa": [{"query": f"Question: {text}\n", "choices": TEXTS[:2], "gold": 0} for text in TEXTS],
    "hellaswag_val": [
        {"ind": i, "activity_label": "Cat", "ctx_a": text, "ctx_b": "a dog", "endings": [*TEXTS, " [title] [x]sat"],
         "label": i} for i, text in enumerate(TEXTS)
    ],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("family", ["gpt2", "llama", "t5"])
@pytest.mark.parametrize("shots", [0, 1])
def test_each_example_agrees_with_lm_eval(tmp_path, family, shots, monkeypatch):
    for name in ("lm_eval", "torch", "transformers"):
        pytest.importorskip(name)
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from tools import compare_lm_eval as tool

    for name, rows in ROWS.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = str(made(tmp_path / family, family, **({} if family == "t5" else {"max_positions": 128})))
    model = tool.opened(path, tmp_path / "hf")
    for name in ("lambada", "arc_easy", "piqa", "hellaswag"):
        given = (name, str(tmp_path), 6, shots, tmp_path / f"{name}.shown.jsonl")
        of_them = tool.theirs(model, *given, tmp_path)
        of_us = tool.ours(path, family == "t5", *given, tmp_path / "ours")
        for one in tool.agreement(name, of_us, of_them):
            assert one.agreeing == one.compared and one.compared + one.left_out == len(of_us)
            if not (shots and name == "lambada"):  # lm-eval has two spaces in its shots
                assert one.texts == len(of_us)
                # The random T5's logits are large, a sum has hundreds of nats: float32 rounds it at 1e-5 of that.
                assert one.largest < 1e-4 * max(10, max(np.abs(asked.log_probs).max() for asked in of_us))
