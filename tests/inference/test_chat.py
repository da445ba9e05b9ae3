"""`jaxpt chat` as it is run: what the model is given, where answers end, what is forgotten."""

import io
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

import jaxpt
from jaxpt import errors
from jaxpt.cli import main
from jaxpt.data import chat_template, tokenizers
from jaxpt.data.chat_template import ChatTemplate
from jaxpt.data.labelled.dialogue import encoded
from jaxpt.decode.options import ANSWER_TOKENS
from jaxpt.errors import UserError
from jaxpt.inference import dialogue
from jaxpt.inference.chat import Chat
from tests.data.labelled.test_dialogue import CALL, CALLING, READING, TOOLS
from tests.inference.helpers import made, run_of
from tests.waiting import LIMIT

ROOT = Path(__file__).parents[2]
PLAIN = (
    "{% for m in messages %}{{ {'system': '', 'user': 'you ', 'assistant': 'me '}[m.role] }}{{ m.content }}"
    "{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}me {% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A decoder with a chat template beside its tokenizer."""
    path = made(tmp_path_factory.mktemp("chat") / "model", "gpt2")
    (path / "chat_template.jinja").write_text(PLAIN)
    return path


@pytest.fixture(scope="module")
def model(folder):
    return jaxpt.load(folder, batch_size=1)


@pytest.fixture
def talk(capsys, monkeypatch):
    """Runs `jaxpt chat` with lines on stdin; gives (exit code, stdout, stderr)."""

    def answer(lines, *argv):
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        code = main(["chat", *map(str, argv)])
        return (code, *capsys.readouterr())

    return answer


@pytest.mark.slow
def test_the_history_is_part_of_the_prompt(talk, tmp_path):
    """What is said is what the model generates for the template's text of all that was said before."""
    folder = made(tmp_path / "long", "gpt2", max_positions=256)
    (folder / "chat_template.jinja").write_text(PLAIN)
    model = jaxpt.load(folder)
    keys = {"max_new_tokens": 5, "stop": ("\nyou",)}
    messages, wanted = [{"role": "system", "content": "the"}], []
    for text in ("a", "dog"):
        messages.append({"role": "user", "content": text})
        ((one,),) = model.generate([ChatTemplate(PLAIN).render(messages)], **keys)
        messages.append({"role": "assistant", "content": one.text})
        wanted.append(one.text)
    argv = [folder, "--system", "the", "--max-new-tokens", 5]
    assert talk("a\n\ndog\n", *argv) == (0, "".join(f"{text}\n" for text in wanted), "")
    assert talk("a\n/exit\ndog\n", *argv) == (0, f"{wanted[0]}\n", "")
    assert talk("", *argv) == (0, "", "")


def test_an_answer_in_python_is_that_of_the_command(model, folder, talk):
    answer = model.chat([{"role": "user", "content": "a"}], max_new_tokens=5)
    assert talk("a\n", folder, "--max-new-tokens", 5) == (0, f"{answer}\n", "")
    with pytest.raises(UserError, match="temprature: is no option of generation"):
        model.chat([{"role": "user", "content": "a"}], temprature=1)


def test_settings_are_compared_with_the_defaults_of_a_dialogue(talk, folder):
    assert talk("", folder, "--min-new-tokens", ANSWER_TOKENS) == (0, "", "")
    code, _, error = talk("", folder, "--min-new-tokens", ANSWER_TOKENS + 1)
    assert code == 2 and f"at most max_new_tokens, {ANSWER_TOKENS}" in error


def prompted(model, monkeypatch, *messages, **keys):
    """The prompt of an answer in Python, as text."""
    prompts, generate = [], model.generate_iter
    monkeypatch.setattr(model, "generate_iter", lambda new, options: prompts.extend(new) or generate(new, options))
    model.chat(messages, max_new_tokens=1, **keys)
    return model.tokenizer.decode(prompts[0].tokens)


def test_tools_and_their_calls_reach_the_template_of_an_answer(tmp_path, monkeypatch):
    """Messages that a run learns from are messages that it answers: a call has no content."""
    model = jaxpt.load(made(tmp_path / "long", "gpt2", max_positions=512))
    model.tokenizer.chat_templates = {"default": PLAIN, "tool_use": READING}
    call = {"role": "assistant", "tool_calls": [CALL]}
    for dialogue_call in (call, call | {"content": None}):
        messages = [CALLING[0], dialogue_call, CALLING[2]]
        for tools in (TOOLS, tuple(TOOLS), json.dumps(TOOLS)):
            wanted = ChatTemplate(READING).render(messages, tools=TOOLS)
            assert prompted(model, monkeypatch, *messages, tools=tools) == wanted
    plain = [CALLING[0]]
    assert prompted(model, monkeypatch, *plain, tools=[]) == ChatTemplate(PLAIN).render(plain)
    with pytest.raises(UserError, match="does not read tool_calls, which the dialogue has; remove tool_calls, or"):
        model.chat(messages)
    for wrong in ([print], {"type": "function"}, 3):
        with pytest.raises(UserError, match=r"^tools wants a list of JSON schemas, got "):
            model.chat(plain, tools=wrong)


def test_tools_of_the_command(talk, folder, tmp_path):
    (tmp_path / "t.jinja").write_text(READING + "{{ tools | length }}")
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    (tmp_path / "bad.json").write_text('{"type": "function"}')
    argv = [folder, "--max-new-tokens", 2, "--tools"]
    assert talk("", *argv, tmp_path / "tools.json", "--template", tmp_path / "t.jinja") == (0, "", "")
    for file, words in (
        ("tools.json", "does not read tools, which the dialogue has"), ("gone.json", "gone.json: No such file"),
        ("bad.json", "bad.json wants a list of JSON schemas, got {'type'"),
    ):  # fmt: skip
        code, out, error = talk("a\n", *argv, tmp_path / file)
        assert (code, out) == (2, "") and words in error and error.count("\n") == 1


THINKING = "{% if enable_thinking is defined and not enable_thinking %}the {% endif %}" + PLAIN


def test_options_of_the_template_reach_it(model, talk, folder, tmp_path, monkeypatch):
    (tmp_path / "t.jinja").write_text(THINKING)
    user, keys = {"role": "user", "content": "a"}, {"template": tmp_path / "t.jinja"}
    for options, start in (({}, ""), ({"enable_thinking": True}, ""), ({"enable_thinking": False}, "the ")):
        assert prompted(model, monkeypatch, user, template_options=options, **keys) == f"{start}you a\nme "
    argv = [folder, "--max-new-tokens", 4, "--template", tmp_path / "t.jinja"]
    answer = model.chat([user], max_new_tokens=4, template_options={"enable_thinking": False}, **keys)
    assert talk("a\n", *argv, "--template-option", "enable_thinking=false") == (0, f"{answer}\n", "")
    for option, words in (
        ("enable_thinkin=false", "template_options: enable_thinkin: is not read by "),
        ("messages=[]", "template_options: messages: is said by the dialogue"),
        ("enable_thinking", "--template-option: 'enable_thinking': wants key=value"),
    ):
        code, out, error = talk("a\n", *argv, "--template-option", option)
        assert (code, out) == (2, "") and words in error and error.count("\n") == 1


def test_the_tokenizer_that_is_used_gives_template_and_special_tokens(folder, tmp_path, monkeypatch):
    """By its directory, or as it was read from there; without either the one beside the model counts."""
    other = made(tmp_path / "other", "gpt2")
    (other / "checksums.json").unlink()
    settings = json.loads((other / "tokenizer_config.json").read_text())
    settings |= {"chat_template": "other {{ unk_token }}{{ messages[0].content }}", "unk_token": "!"}
    (other / "tokenizer_config.json").write_text(json.dumps(settings))
    message = {"role": "user", "content": "a"}
    for tokenizer in (other, tokenizers.load(other)):
        assert prompted(jaxpt.load(folder, tokenizer=tokenizer), monkeypatch, message) == "other !a"
    assert prompted(jaxpt.load(other, tokenizer=folder), monkeypatch, message) == "you a\nme "


@pytest.mark.slow
def test_a_run_answers_with_the_system_message_that_it_learned_with(talk, tmp_path, monkeypatch):
    run_of(
        tmp_path / "run", {"kind": "gpt2", "max_positions": 64}, "bpe", "dialogue",
        task={"kind": "dialogue", "system": "be brief"},
    )  # fmt: skip
    model = jaxpt.load(tmp_path / "run")
    (tmp_path / "t.jinja").write_text(PLAIN)
    user, keys = {"role": "user", "content": "a"}, {"template": tmp_path / "t.jinja"}
    assert prompted(model, monkeypatch, user, **keys) == "be brief\nyou a\nme "
    assert prompted(model, monkeypatch, {"role": "system", "content": "no"}, user, **keys) == "no\nyou a\nme "
    argv = [tmp_path / "run", "--template", tmp_path / "t.jinja", "--max-new-tokens", 4]
    assert talk("a\n", *argv) == talk("a\n", *argv, "--system", "be brief")


@pytest.mark.parametrize("template", [PLAIN, "{{ bos_token }}" + PLAIN])
def test_a_prompt_has_bos_where_the_template_writes_it_as_in_training(template, tmp_path):
    """The tokenizer puts BOS before every text, as Llama's does; the template alone counts."""
    transformers = pytest.importorskip("transformers")
    path = made(tmp_path / "model", "gpt2")
    (path / "checksums.json").unlink()
    tree = json.loads((path / "tokenizer.json").read_text())
    bos = tree["added_tokens"][0]
    tree["post_processor"] = {
        "type": "TemplateProcessing", "pair": [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"],
        "single": [{"SpecialToken": {"id": "BOS", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"BOS": {"id": "BOS", "ids": [bos["id"]], "tokens": [bos["content"]]}},
    }  # fmt: skip
    (path / "tokenizer.json").write_text(json.dumps(tree))
    (path / "chat_template.jinja").write_text(template)
    theirs = transformers.AutoTokenizer.from_pretrained(path)
    messages = [{"role": "user", "content": "the dog"}]
    wanted = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    model = jaxpt.load(path)
    prompt = dialogue.prompt(model, dialogue.template_of(model), messages)
    assert list(prompt.tokens) == wanted and (prompt.tokens[0] == bos["id"]) == (template != PLAIN)
    answered = [*messages, {"role": "assistant", "content": "ran"}]
    trained, _ = encoded(answered, dialogue.template_of(model), model.tokenizer, "row 1")
    assert list(trained[: len(wanted) - 1]) == wanted[:-1]  # the last space goes to the answer


def test_sampled_answers_differ_from_turn_to_turn_and_not_from_run_to_run(model):
    def said(seed):
        session = Chat(model, ChatTemplate("x"), {"max_new_tokens": 6, "temperature": 1.0, "seed": seed}, None)
        return [session.answer("a") for _ in range(3)]

    assert len(set(said(0))) > 1 and said(0) == said(0) != said(1)


def test_the_oldest_turns_are_forgotten_and_the_system_message_is_not(model, capsys):
    session = Chat(model, chat_template.load(model.tokenizer), {"max_new_tokens": 4}, "the")
    forgotten = 0
    for n in range(8):
        session.answer(f"a dog {n}")
        assert session.messages[0] == {"role": "system", "content": "the"}
        assert session.messages[-2] == {"role": "user", "content": f"a dog {n}"}
        assert [m["role"] for m in session.messages[1:]] == ["user", "assistant"] * ((len(session.messages) - 1) // 2)
        forgotten += "forgotten: the model has 32 positions" in capsys.readouterr().err
    assert forgotten >= 2 and len(session.messages) < 10
    before = list(session.messages)
    with pytest.raises(UserError, match=r"the message needs .* tokens, but the model has 32 positions; shorten it"):
        session.answer("the cat " * 30)
    assert session.messages == before


def test_a_message_that_is_too_long_does_not_end_the_dialogue(talk, folder, model):
    code, out, error = talk("the cat " * 30 + "\na\n", folder, "--max-new-tokens", 4)
    assert code == 0 and error.startswith("jaxpt: the message needs ") and error.count("\n") == 1
    alone = Chat(model, chat_template.load(model.tokenizer), {"max_new_tokens": 4}, None)
    assert out == f"{alone.answer('a')}\n"


@pytest.mark.parametrize(
    ("template", "ids", "stop"),
    [
        ("{% for m in messages %}{{ m.content }}{{ eos_token }}\n{% endfor %}", True, ()),
        ("{% for m in messages %}[{{ m.role }}] {{ m.content }}\n\n{% endfor %}", False, ("\n\n[user]",)),
        ("{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}<|end|>\n{% endfor %}", False, ("<|end|>",)),
        ("{% for m in messages %}{{ m.content }}\n{% endfor %}", False, ()),
        ("{{ raise_exception('no') }}", False, ()),
    ],
)
def test_where_an_answer_ends(model, template, ids, stop):
    tokens = {"eos_token": model.tokenizer.tokens([model.vocabulary.eos])[0]}
    eos = (model.vocabulary.eos,) if ids else ()
    ends = chat_template.end_of_answer(model.tokenizer, ChatTemplate(template, tokens=tokens))
    assert ends == (eos, stop)


def test_an_end_that_only_the_template_names_is_said(model):
    i = model.vocabulary.eos
    token = model.tokenizer.tokens([i])[0]
    source = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    template = ChatTemplate(source, tokens={"eos_token": token})
    notes = []
    with errors.noting(notes.append):
        Chat(model, template, {}, None)
        assert not notes
        Chat(model, template, {"eos": (5,)}, None)
    assert notes == [f"an answer ends with {token} (id {i}) of the chat template, too"]


def test_settings_of_search_that_are_not_applied_are_said(talk, folder, tmp_path):
    path = Path(shutil.copytree(folder, tmp_path / "hf"))
    (path / "generation_config.json").write_text('{"num_beams": 4, "length_penalty": 2.0}')
    note = f"jaxpt: note: {path}: its settings of search are not applied: num_beams: 4, length_penalty: 2.0\n"
    assert talk("", path) == (0, "", note)


@pytest.mark.slow
def test_a_template_of_a_file_and_a_checkpoint(talk, folder, tmp_path, capsys):
    shutil.copytree(folder, tmp_path / "hf")
    assert main(["import", str(tmp_path / "hf"), str(tmp_path / "run")]) == 0
    capsys.readouterr()
    (tmp_path / "t.jinja").write_text("x")
    wanted = talk("a\n", folder, "--max-new-tokens", 4)[1]
    for path in (tmp_path / "run", tmp_path / "run/checkpoints/0"):
        assert talk("a\n", path, "--max-new-tokens", 4)[:2] == (0, wanted)
    other = jaxpt.load(folder).generate(["x"], max_new_tokens=4)[0][0].text
    assert talk("a\n", folder, "--max-new-tokens", 4, "--template", tmp_path / "t.jinja")[:2] == (0, f"{other}\n")


def test_mistakes(talk, folder, tmp_path):
    bert, bare = made(tmp_path / "bert", "bert"), made(tmp_path / "bare", "gpt2")
    for argv, words in (
        ([bert], "is an encoder, which does not generate; wants a dialogue model"),
        ([bare], "has no chat template"),
        ([folder, "--template", tmp_path / "gone"], "--template: "),
        ([folder, "--temperature", -1], "temperature is -1.0"),
        ([tmp_path], "is no model"),
    ):
        code, out, error = talk("a\n", *argv)
        assert (code, out) == (2, "") and words in error and error.count("\n") == 1


@pytest.mark.slow
def test_a_signal_leaves_the_terminal_as_it_was(folder):
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    line = [sys.executable, "-m", "jaxpt", "chat", str(folder), "--max-new-tokens", "3"]
    process = subprocess.Popen(line, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs)
    try:
        shown = b""
        while b"> " not in shown:
            shown += os.read(ours, 1000)
        os.write(ours, b"a\n")
        while shown.count(b"> ") < 2:
            shown += os.read(ours, 1000)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 130
        assert termios.tcgetattr(theirs) == before
    finally:
        process.kill()
        os.close(ours)
        os.close(theirs)


@pytest.mark.slow
def test_encoder_decoders_answer(talk, tmp_path):
    path = made(tmp_path / "t5", "t5")
    (tmp_path / "t.jinja").write_text(PLAIN)
    argv = [path, "--template", tmp_path / "t.jinja", "--max-new-tokens", 4]
    code, out, error = talk("a\nthe cat\n", *argv)
    assert (code, error, out.count("\n")) == (0, "", 2)


def test_texts_in_another_encoding_are_refused(folder, talk):
    for lines, argv, where in (("caf\udce9\n", (), "stdin"), ("a\n", ("--system", "\udcff"), "--system")):
        code, out, error = talk(lines, folder, *argv)
        assert (code, out) == (2, "") and error == f"jaxpt: {where}: not UTF-8; wants text in UTF-8\n"
