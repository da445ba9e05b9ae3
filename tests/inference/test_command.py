"""`jaxpt generate` as it is run: on the screen, from stdin, into files that a kill interrupts; and mistakes."""

import io
import json
import random
import shlex
import signal
import sys
import time
import types

import pytest
import yaml

from jaxpt import errors
from jaxpt.cli import main
from jaxpt.inference import command
from jaxpt.inference.answers import Texts
from jaxpt.inference.text import Completion
from jaxpt.train.ending import example_prompt
from tests import families, grids
from tests.inference.helpers import TEXTS, directory, loaded
from tests.processes import forked

WORDS = " ".join(TEXTS[:3]).split()
SAMPLING = ["--temperature", "1", "--top-p", "0.9", "--seed", "3", "--max-new-tokens", "6"]


@pytest.fixture(scope="module")
def directories():
    return {name: str(directory(name)) for name in families.FAMILIES}


@pytest.fixture
def run(capsys):
    """Runs a command; gives (exit code, stdout, stderr)."""

    def answer(*argv):
        try:
            code = main([str(word) for word in argv])
        except SystemExit as stop:
            code = stop.code
        return (code, *capsys.readouterr())

    return answer


def completions(family, texts, **keys):
    return [[one.text for one in samples] for samples in loaded(family).generate(texts, **keys)]


# ---- the screen -----------------------------------------------------------------------------------------------------


def test_one_prompt_gives_its_text_alone(run, directories):
    ((text,),) = completions("gpt2", ["the cat"], max_new_tokens=4)
    assert run("generate", directories["gpt2"], "--prompt", "the cat", "--max-new-tokens", 4) == (0, f"{text}\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("family", grids.cases(["gpt2", "t5"], "gpt2"))
def test_several_prompts_and_samples(run, directories, family):
    prompts = ["the cat sat", "a"]
    keys = {"temperature": 1.0, "top_p": 0.9, "seed": 3, "max_new_tokens": 6, "samples": 2}
    found = completions(family, prompts, **keys)
    assert family == "t5" or found[0][0] != found[0][1]
    wanted = "".join(f"> {prompt}\n1: {one}\n2: {two}\n" for prompt, (one, two) in zip(prompts, found))
    argv = ["generate", directories[family], "--prompt", prompts[0], "--prompt", prompts[1], *SAMPLING, "--samples", 2]
    has_empty = any(text == "" for samples in found for text in samples)
    for options in ([], ["--stream"], ["--batch-size", 1]):
        code, out, error = run(*argv, *options)
        assert (code, out, "jaxpt: note: a continuation is empty" in error) == (0, wanted, has_empty)


def test_positions_that_end_a_text_are_said(run, directories):
    model = loaded("gpt2")
    limit, length = model.network.config.position_limit, len(model.prompt_ids("the cat").tokens)
    argv = ["generate", directories["gpt2"], "--prompt", "the cat", "--max-new-tokens"]
    code, _, error = run(*argv, 500)
    note = f"the model has {limit} positions: a text ends after at most {limit + 1 - length} new tokens"
    assert (code, error) == (0, f"jaxpt: note: {note}\n")


def test_beams(run, directories):
    keys = {"beams": 3, "samples": 2, "length_penalty": 0.5, "no_repeat_ngram": 2, "max_new_tokens": 6}
    ((one, two),) = completions("t5", ["the cat"], **keys)
    options = [word for name, value in keys.items() for word in (f"--{name.replace('_', '-')}", value)]
    assert run("generate", directories["t5"], "--prompt", "the cat", *options) == (0, f"1: {one}\n2: {two}\n", "")


def test_stop_strings(run, directories):
    ((text,),) = completions("gpt2", ["the cat"], max_new_tokens=12, eos=())
    stop = text[3:5]
    code, out, _ = run("generate", directories["gpt2"], "--prompt", "the cat", "--stop", stop, "--stream")
    assert (code, out) == (0, f"{text[: text.find(stop)]}\n")


def test_the_lines_of_stdin_are_prompts(run, directories, monkeypatch):
    texts = ["the cat", "a dog"]
    found = completions("gpt2", texts, max_new_tokens=4)
    monkeypatch.setattr(sys, "stdin", io.StringIO("the cat\n\na dog"))
    wanted = "".join(f"> {text}\n{answer}\n" for text, (answer,) in zip(texts, found))
    assert run("generate", directories["gpt2"], "--max-new-tokens", 4) == (0, wanted, "")


def test_the_end_of_a_line_is_no_part_of_a_prompt(monkeypatch):
    for lines in (b"the cat\r\n\r\n a dog ", b"the cat\n\n a dog \n"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines), "utf-8", newline="\n"))
        assert command._lines_of_stdin() == ["the cat", " a dog "]


def test_a_line_of_stdin_in_another_encoding_is_refused(run, directories, monkeypatch):
    for errors_of in ("strict", "surrogateescape"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), "utf-8", errors_of))
        code, out, error = run("generate", directories["gpt2"])
        assert (code, out) == (2, "") and error.startswith("jaxpt: stdin: not UTF-8") and error.count("\n") == 1


def test_a_text_that_cannot_be_seen_is_described(monkeypatch):
    notes = []
    monkeypatch.setattr(errors, "note", notes.append)
    found = [Completion("\n \n", [9, 9], "length"), Completion("", [2], "eos"), Completion("", [7], "stop")]
    found += [Completion("", [600, 601], "length")]  # ids of the table's padding
    found += [Completion("the cat", [5, 6], "banned"), Completion("the cat", [5], "length")]
    command.note_blank(Texts(found))
    command.note_blank(Texts([]))
    blank, ended, stopped, padding, banned, none = notes
    assert banned == "a continuation ends after 2 tokens: these options ban every token that could follow"
    assert none == "beam search found no continuation within these options"
    assert blank.endswith(r"white space alone: '\n \n'")
    assert ended.endswith("the end token came first") and stopped.endswith("a stop string came first")
    assert padding.endswith("its 2 tokens have no text")


def test_an_encoder_gives_candidates_with_probabilities(run, directories):
    (found,) = loaded("bert").fill(["the [MASK] sat on [MASK]"], k=3)
    assert len(found) == 2
    wanted = "".join(f"{n}: {', '.join(f'{text!r} {p:.3f}' for text, p in one)}\n" for n, one in enumerate(found, 1))
    argv = ["generate", directories["bert"], "--prompt", "the [MASK] sat on [MASK]"]
    assert run(*argv, "--top-k", 3) == (0, wanted, "")
    assert run(*argv, "--stream")[1].count("'") == 2 * 2 * 5


@pytest.mark.slow
def test_sentinels_are_filled_beside_prompts_that_are_continued(run, directories):
    model = loaded("t5")
    ((span,),) = model.fill(["the <extra_id_0> sat"], max_new_tokens=6)
    ((one,),) = completions("t5", ["the cat"], max_new_tokens=6)
    wanted = f"> the cat\n{one}\n> the <extra_id_0> sat\n1: {span[0][0]!r} {span[0][1]:.3f}\n"
    argv = ["--prompt", "the cat", "--prompt", "the <extra_id_0> sat", "--max-new-tokens", 6]
    for stream in ([], ["--stream"]):
        assert run("generate", directories["t5"], *argv, *stream) == (0, wanted, "")


def test_two_models_side_by_side(run, directories):
    argv = ["--compare", directories["t5"], "--prompt", "the cat", "--prompt", "a [dog]", "--max-new-tokens", 4]
    code, out, _ = run("generate", directories["gpt2"], *argv)
    assert code == 0 and "the cat" in out and "a [dog]" in out
    (head,) = (line for line in out.splitlines() if "prompt" in line)
    assert head.count("┃") == 4  # three columns


# ---- files ----------------------------------------------------------------------------------------------------------


def written(path, count=12):
    """A file with prompts of different lengths."""
    draw = random.Random(0)
    rows = [{"id": i, "text": " ".join(draw.choices(WORDS, k=draw.randint(1, 3)))} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


@pytest.mark.slow
def test_a_file_of_prompts(run, directories, tmp_path):
    rows = written(tmp_path / "f.jsonl")
    argv = ["generate", directories["gpt2"], "--file", tmp_path / "f.jsonl", "--field", "text", *SAMPLING]
    code, out, error = run(*argv, "--out", tmp_path / "g.jsonl", "--samples", 2, "--batch-size", 4)
    assert (code, out) == (0, f"{tmp_path / 'g.jsonl'}: 12 rows\n"), error
    found = [json.loads(line) for line in (tmp_path / "g.jsonl").read_text().splitlines()]
    keys = {"temperature": 1.0, "top_p": 0.9, "seed": 3, "max_new_tokens": 6, "samples": 2}
    wanted = completions("gpt2", [row["text"] for row in rows], **keys)
    assert [row["completions"] for row in found] == wanted
    assert [{name: row[name] for name in ("id", "text")} for row in found] == rows
    assert {finish for row in found for finish in row["finish"]} <= {"eos", "length"}
    assert run(*argv, "--out", tmp_path / "g.jsonl")[0] == 2  # it is there
    assert [json.loads(line) for line in (tmp_path / "g.jsonl").read_text().splitlines()] == found


@pytest.mark.slow
def test_files_with_masks_and_of_two_models(run, directories, tmp_path):
    (tmp_path / "f.txt").write_text("the <extra_id_0> sat\nthe cat\na dog\n")
    argv = ["--file", tmp_path / "f.txt", "--out", tmp_path / "g.jsonl", "--max-new-tokens", 4]
    assert run("generate", directories["t5"], *argv, "--compare", directories["gpt2"])[0] == 0
    first, second, _ = (json.loads(line) for line in (tmp_path / "g.jsonl").read_text().splitlines())
    assert list(first) == ["prompt", "completions", "finish", "fills", "other_completions", "other_finish"]
    assert first["completions"] is None and [set(one) for one in first["fills"][0]] == [{"text", "probability"}]
    assert second["fills"] is None and len(second["completions"]) == len(second["other_completions"]) == 1


@pytest.mark.slow
def test_a_killed_command_is_resumed_to_the_same_bytes(directories, tmp_path):
    written(tmp_path / "f.jsonl", 40)

    def argv(out):
        words = [directories["gpt2"], "--file", tmp_path / "f.jsonl", "--field", "text", "--out", out, *SAMPLING]
        return ["generate", *map(str, words), "--batch-size", "4"]

    whole, out = tmp_path / "whole.jsonl", tmp_path / "g.jsonl"
    assert main(argv(whole)) == 0
    killed = 0
    for wanted in (5, 15, 40):
        process = forked().Process(target=main, args=(argv(out),))
        process.start()
        while process.is_alive() and (not out.exists() or out.read_bytes().count(b"\n") < wanted):
            time.sleep(0.002)
        if wanted < 40:
            process.kill()
        process.join()
        killed += process.exitcode == -signal.SIGKILL
        assert whole.read_bytes().startswith(out.read_bytes()[: out.read_bytes().rfind(b"\n") + 1])
    assert killed == 2 and process.exitcode == 0
    assert out.read_bytes() == whole.read_bytes() and not (tmp_path / "g.jsonl.state").exists()


# ---- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "argv", "words"),
    [
        ("gpt2", ["--prompt", "cat " * 40], "prompt 1: it has 4"),
        ("gpt2", ["--prompt", "a", "--prompt", "the cat " * 40], "prompt 2: it has "),
        ("gpt2", ["--prompt", "a", "--beams", "0"], "beams is 0: must be an integer from 1 on"),
        ("gpt2", ["--prompt", "a", "--temperature", "-1"], "temperature is -1.0: must be 0 or a number from"),
        ("gpt2", ["--prompt", "a", "--top-k", "3"], "top_k is 3: must be None at temperature 0"),
        ("gpt2", ["--prompt", "a", "--samples", "x"], "argument --samples: invalid int value: 'x'"),
        ("gpt2", ["--prompt", "a", "--stop", ""], "stop"),
        ("gpt2", ["--prompt", "a", "--batch-size", "0"], "expected a positive integer"),
        ("gpt2", ["--prompt", "\udc80"], "--prompt: not UTF-8"),
        ("gpt2", ["--prompt", "a", "--out", "g.jsonl"], "--out is for the results of --file: give that too"),
        ("gpt2", ["--file", "f.jsonl"], "--file needs --out G.jsonl, for the results"),
        ("gpt2", ["--file", "f.jsonl", "--out", "g.jsonl", "--prompt", "a"], "--file and --prompt: give one of them"),
        ("gpt2", ["--file", "f.jsonl", "--out", "g.jsonl", "--stream"], "--stream shows text on the screen"),
        ("gpt2", ["--prompt", "a", "--stream", "--beams", "2"], "leave out --beams"),
        ("gpt2", ["--prompt", "a", "--stream", "--compare", "."], "leave out --compare"),
        ("gpt2", ["--prompt", "a", "--field", "text"], "--field is for --file"),
        ("gpt2", ["--file", "empty.jsonl", "--out", "g.jsonl"], "empty.jsonl: is empty"),
        ("gpt2", ["--file", "f.jsonl", "--out", "g.jsonl", "--field", "x"], "f.jsonl: line 1: no column 'x'"),
        ("gpt2", ["--file", "f.jsonl", "--out", "g.csv"], "--out: g.csv: unknown suffix '.csv'; expected .jsonl"),
        ("gpt2", ["--file", "f.jsonl", "--out", "empty.jsonl.gz"], "unknown suffix '.gz'; expected .jsonl"),
        ("gpt2", ["--file", "f.jsonl", "--out", "f.jsonl"], "f.jsonl: already exists"),
        ("gpt2", ["--file", "long.txt", "--out", "g.jsonl"], "long.txt: row 2: it has "),
        ("gpt2", [], "stdin: is empty"),
        ("bert", ["--prompt", "the cat"], "has no mask, and "),
        ("bert", ["--prompt", "[MASK] " * 60], "prompt 1: it has 62 tokens, but the model has 32 positions"),
        ("bert", ["--prompt", "[MASK]", "--temperature", "1"], "--temperature: has no effect"),
        ("bert", ["--prompt", "[MASK]", "--top-k", "0"], "top_k is 0: must be from 1 to 60"),
        (".", ["--prompt", "a"], "is no model"),
        ("gpt2", ["--prompt", "a", "--compare", "gone"], "gone: is no model"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_nothing_is_written(run, directories, tmp_path, monkeypatch, family, argv, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    (tmp_path / "f.jsonl").write_text('{"prompt": "a"}\n')
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "long.txt").write_text("a\n" + "the cat " * 40)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    code, out, error = run("generate", directories.get(family, family), *argv)
    assert (code, out) == (2, "") and words in error
    assert error.startswith("jaxpt") and error.count("\n") == 1 and error.endswith("\n")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_terminal_without_a_prompt(run, directories, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", terminal)
    code, _, error = run("generate", directories["gpt2"])
    assert code == 2 and error == (
        "jaxpt: no prompt: give --prompt TEXT, --file F.jsonl --out G.jsonl, or lines on stdin\n"
    )


# ---- after training -------------------------------------------------------------------------------------------------


PROMPTS = {"bert": "The [MASK] sat on the mat.", "t5": "The <extra_id_0> sat on the mat.", "gpt2": "The cat sat on"}


@pytest.mark.parametrize("family", PROMPTS)
def test_the_prompt_of_an_example_has_what_the_model_fills(family):
    tokenizer = loaded(family).tokenizer
    data = types.SimpleNamespace(tokenizer=tokenizer, vocabulary=tokenizer.vocabulary)
    assert example_prompt(families.config(family), data) == PROMPTS[family]


@pytest.mark.slow
@pytest.mark.parametrize("family, prompt", grids.cases(PROMPTS.items(), ("gpt2", PROMPTS["gpt2"])))
def test_training_ends_by_naming_this_command(run, tmp_path, family, prompt):
    (tmp_path / "text.txt").write_text("\n".join(f"{n} {text}" for n, text in enumerate(TEXTS * 6)))
    tree = families.tree(
        family,
        model={"vocab_size": 300 if family == "gpt2" else 90},
        data={"path": str(tmp_path / "text.txt"), "cache_dir": str(tmp_path / "cache"), "validation_fraction": 0.2,
              "length": 16},
        train={"steps": 2, "eval_every": 2},
    )  # fmt: skip
    if family == "t5":
        tree["data"]["tokenizer"]["extra_ids"] = 10
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    run_dir = tmp_path / "a run's"
    code, out, error = run("train", tmp_path / "recipe.yaml", f"run_dir={run_dir}")
    assert code == 0, error
    line = out.splitlines()[-1]
    words = shlex.split(line.partition("to try it: ")[2])
    assert words == ["jaxpt", "generate", str(run_dir), "--prompt", prompt]
    code, out, error = run(*words[1:], *([] if family == "bert" else ["--max-new-tokens", 4]))
    assert (code, error) == (0, "") and out.strip()
