"""`jaxpt eval --tasks` on a model of each family: results, files, resumes."""

import json
import types

import numpy as np
import pytest

from jaxpt.cli import main
from jaxpt.errors import UserError
from jaxpt.evals.few_shot import measures
from jaxpt.evals.few_shot.task import HarnessTask
from jaxpt.inference import evaluate as command
from jaxpt.inference.answers import Answers
from jaxpt.inference.evaluate import evaluate
from tests import families
from tests.inference.helpers import directory, loaded
from tests.processes import run

ROWS = [
    {"q": f"the {a} sat on the {b}", "options": ["the mat", "a dog ran"], "right": i % 2, "text": f"no one saw the {a}"}
    for i, (a, b) in enumerate([("cat", "mat"), ("dog", "cat"), ("cat", "dog"), ("mat", "dog"), ("dog", "mat")])
]
TASKS = {
    "choose": {
        "form": "multiple_choice",
        "context": "{{ q }}:",
        "choices": "options",
        "answer": "right",
        "metrics": ["acc", "acc_norm"],
    },
    "pairs": {"form": "pair", "choices": ["{{ q }}", "{{ text }}"], "group": "{{ right }}"},
    "last": {
        "form": "loglikelihood",
        "context": "{{ q }}",
        "continuation": " {{ text }}",
        "metrics": ["acc", "perplexity"],
    },
    "bits": {"form": "loglikelihood_rolling", "text": "{{ text }} {{ q }} {{ text }}"},
    "near": {"form": "similarity", "choices": "[q, text]", "answer": "right"},
}
WRITE = {
    "form": "generate_until", "context": "{{ q }}", "answers": "options", "shots": 1, "max_new_tokens": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of each family, and tasks."""
    found = tmp_path_factory.mktemp("harness")
    for name in families.FAMILIES:
        (found / name).symlink_to(directory(name))
    (found / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (found / "corpus.txt").write_text("the cat sat on the mat\nno one saw the dog\n" * 20)
    for name, tree in {**TASKS, "write": WRITE}.items():
        (found / f"{name}.yaml").write_text(json.dumps({"data": {"path": "rows.jsonl"}, **tree}))
    return found


def names(folder, *tasks):
    return [str(folder / f"{name}.yaml") for name in tasks or TASKS]


def outcomes(path):
    return [json.loads(line)["outcome"] for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    "family", [pytest.param("t5", marks=pytest.mark.slow), "bert", pytest.param("gpt2", marks=pytest.mark.slow)]
)
def test_each_family_is_scored(folder, tmp_path, family, capsys):
    found = evaluate(str(folder / family), names(folder), out=str(tmp_path), corpus=str(folder / "corpus.txt"))
    assert [one.task.name for one in found] == list(TASKS)
    for one in found:
        assert all(np.isfinite([value.value, value.error]).all() for value in one.metrics.values())
    assert set(found[0].baselines) == {"majority", "shortest", "ngram"}
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["results"][0]["metrics"]["acc"]["value"] == found[0].metrics["acc"].value
    model = loaded(family)
    of_first = outcomes(tmp_path / "choose_0shot.jsonl")[0]
    scored = model.loglikelihood([f"{ROWS[0]['q']}:"] * 2, [" the mat", " a dog ran"])
    np.testing.assert_allclose(of_first["log_probs"], [one.total for one in scored], atol=1e-4)
    shown = capsys.readouterr().out
    assert {"bert": "pseudo-log-likelihood", "gpt2": "causal likelihood", "t5": "span"}[family] in shown


def test_a_killed_evaluation_goes_on_where_it_was(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "CHUNK", 2)
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    evaluate(str(folder / "gpt2"), names(folder, "choose"), out=str(whole))

    class Killed(Exception):
        pass

    write = command.files.ResumableJsonl.write

    def stopping(self, index, values):
        if stopping.count == 3:
            raise Killed
        stopping.count += 1
        write(self, index, values)

    stopping.count = 0
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(command.files.ResumableJsonl, "write", stopping)
        evaluate(str(folder / "gpt2"), names(folder, "choose"), out=str(torn))
    assert len((torn / "choose_0shot.jsonl").read_text().splitlines()) == 3
    evaluate(str(folder / "gpt2"), names(folder, "choose"), out=str(torn))
    assert (torn / "choose_0shot.jsonl").read_bytes() == (whole / "choose_0shot.jsonl").read_bytes()
    assert not (torn / "choose_0shot.jsonl.state").exists()


def test_tasks_that_were_complete_at_a_kill_are_not_scored_again(folder, tmp_path, monkeypatch):
    score, asked = command.scoring.score, []

    def scored(task, model, examples):
        asked.append(task.name)
        if asked == ["choose", "last"]:
            raise KeyboardInterrupt
        return score(task, model, examples)

    monkeypatch.setattr(command.scoring, "score", scored)
    with pytest.raises(KeyboardInterrupt):
        evaluate(str(folder / "gpt2"), names(folder, "choose", "last"), out=str(tmp_path))
    evaluate(str(folder / "gpt2"), names(folder, "choose", "last"), out=str(tmp_path))
    assert asked == ["choose", "last", "last"]
    assert not [*tmp_path.glob("*.state")]
    evaluate(str(folder / "gpt2"), names(folder, "choose"), out=str(tmp_path))
    assert asked[3:] == ["choose"], "a complete evaluation is made anew"


def test_an_evaluation_goes_on_with_the_checkpoint_that_it_began_with(folder, tmp_path, monkeypatch):
    """RUN_DIR is its newest checkpoint: training may save another one in between."""
    fixed = command.opening.resolve_checkpoint
    for step in (10, 20):
        monkeypatch.setattr(command.opening, "resolve_checkpoint", lambda path, step=step: (fixed(path)[0], step))
        with monkeypatch.context() as patch:
            if step == 10:
                patch.setattr(command, "write_text", lambda *_: 1 / 0)  # killed before all is done
                with pytest.raises(ZeroDivisionError):
                    evaluate(str(folder / "gpt2"), names(folder, "choose"), out=str(tmp_path))
                continue
            with pytest.raises(UserError, match=r"choose_0shot.jsonl: was begun with step 10, now it is 20"):
                evaluate(str(folder / "gpt2"), names(folder, "choose"), out=str(tmp_path))


def test_results_of_other_tasks_are_kept(folder, tmp_path):
    for name in ("choose", "last", "choose"):
        evaluate(str(folder / "gpt2"), names(folder, name), out=str(tmp_path))
    written = json.loads((tmp_path / "results.json").read_text())["results"]
    assert [(one["task"], one["run"]["dtype"]) for one in written] == [("last", "float32"), ("choose", "float32")]
    (tmp_path / "choose_0shot.jsonl").unlink()
    evaluate(str(folder / "gpt2"), names(folder, "pairs"), out=str(tmp_path))
    written = json.loads((tmp_path / "results.json").read_text())["results"]
    assert [one["task"] for one in written] == ["last", "pairs"]
    (tmp_path / "results.json").write_text("[")
    with pytest.raises(UserError, match=r"results.json: is damaged; delete it, or choose another --out"):
        evaluate(str(folder / "gpt2"), names(folder, "choose"), out=str(tmp_path))


def test_what_replaces_results_of_other_settings_is_said(folder, tmp_path, capsys):
    def said(**settings):
        evaluate(str(folder / "bert"), names(folder, "choose"), out=str(tmp_path), **settings)
        return " ".join(capsys.readouterr().out.split())  # a terminal wraps lines

    assert "other settings" not in said(limit=3) + said(limit=3)
    found = said(limit=2, unit="word", dtype="bfloat16", overrides=["choose.separator=' '"])
    first = 'choose_0shot.jsonl: replaces results of other settings: unit "piece", now "word"; '
    assert first + 'dtype "float32", now "bfloat16"; choose.separator null, now " "; examples 3, now 2' in found


def test_a_resume_in_another_dtype_is_refused(folder, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(command, "write_text", lambda *_: 1 / 0)
        evaluate(str(folder / "gpt2"), names(folder, "last"), out=str(tmp_path))
    with pytest.raises(UserError, match=r'last_0shot.jsonl: was begun with dtype "float32", now it is "bfloat16"'):
        evaluate(str(folder / "gpt2"), names(folder, "last"), out=str(tmp_path), dtype="bfloat16")


@pytest.mark.parametrize(
    ("task", "change", "words"),
    [
        (TASKS["choose"], {"right": 1}, r"line 1: was scored with gold 0, now it is 1; resume with the same"),
        (TASKS["pairs"], {"right": 1}, r'line 1: was scored with group "0", now it is "1"'),
        (
            {**TASKS["bits"], "text": "{{ text }}", "counted": "{{ q }}"}, {"q": "two words"},
            r"line 1: was scored with words 6, now it is 2",
        ),
        (
            {**TASKS["choose"], "context": "a", "unconditional": "{{ q }}", "metrics": ["acc_mutual_info"]},
            {"q": "two words"}, r"was begun with other prompts",
        ),
    ],
    ids=["gold", "group", "words", "unconditional"],
)  # fmt: skip
def test_a_resume_with_corrected_rows_is_refused(folder, tmp_path, monkeypatch, task, change, words):
    (tmp_path / "mine.yaml").write_text(json.dumps({"data": {"path": "rows.jsonl"}, **task}))

    def score(first):
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (first, ROWS[1])))
        evaluate(str(folder / "gpt2"), [str(tmp_path / "mine.yaml")], out=str(tmp_path / "out"))

    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(command, "write_text", lambda *_: 1 / 0)  # killed before all is done
        score(ROWS[0])
    with pytest.raises(UserError, match=words):
        score(ROWS[0] | change)


def test_results_of_a_checkpoint_are_beside_the_checkpoints(tmp_path):
    at = tmp_path / "checkpoints/20"
    at.mkdir(parents=True)
    assert command.results_folder(tmp_path, at, 20) == tmp_path / "harness"
    assert command.results_folder(at, at, 20) == tmp_path / "harness/20"
    assert command.results_folder(tmp_path / "hf", tmp_path / "hf", None) == tmp_path / "hf/harness"


def test_a_model_of_the_hub_stays_one(folder, tmp_path, monkeypatch):
    """Its name is no directory of results, from which it would no longer be read; a resume is of one revision."""
    pytest.importorskip("huggingface_hub")
    from tests.runtime import hub_server, test_hub

    with hub_server.serve({"lab/tiny": {"main": directory("gpt2")}}) as (url, requests):
        test_hub.use(monkeypatch, url, tmp_path / "cache")
        monkeypatch.chdir(tmp_path)
        with pytest.raises(UserError, match=r"^--out DIR is missing: lab/tiny is a model of the hub, which has no dir"):
            evaluate("lab/tiny", names(folder, "choose"))
        assert not requests and not (tmp_path / "lab").exists()
        for _ in range(2):
            evaluate("lab/tiny", names(folder, "choose"), out="results")
        (written,) = json.loads((tmp_path / "results/results.json").read_text())["results"]
        revision = hub_server.COMMITS["main"]
        assert written["run"]["model"].startswith(str(tmp_path / "cache")) and revision in written["run"]["model"]
        assert Answers("lab/tiny", {}, 1).identity == [written["run"]["model"], None]


def test_written_answers_are_kept_every_four_batches(folder, tmp_path, monkeypatch):
    score, sizes = command.scoring.score, []
    monkeypatch.setattr(command.scoring, "score", lambda *given: sizes.append(len(given[2])) or score(*given))
    evaluate(str(folder / "gpt2"), names(folder, "write", "choose"), out=str(tmp_path), batch_size=1)
    assert sizes == [4, 1, 5]


def test_a_text_may_hold_every_end_of_line(folder, tmp_path):
    texts = ["why\u2028not", "a\u2029b", "a\x85b", "a\rb"]
    (folder / "ends.jsonl").write_text("".join(json.dumps({"q": text, "text": "a"}) + "\n" for text in texts))
    (folder / "ends.yaml").write_text(json.dumps({**TASKS["last"], "data": {"path": "ends.jsonl"}}))
    (found,) = evaluate(str(folder / "gpt2"), names(folder, "ends"), out=str(tmp_path))
    assert found.examples == 4


def test_what_takes_no_shots_is_scored_once(folder, tmp_path):
    found = evaluate(str(folder / "gpt2"), names(folder, "last", "bits"), out=str(tmp_path), shots=[0, 1])
    assert [(one.task.name, one.shots) for one in found] == [("last", 0), ("last", 1), ("bits", 0)]


def test_a_task_that_the_model_cannot_answer_is_refused_before_others_are_scored(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(command.scoring, "score", lambda *_: 1 / 0)
    with pytest.raises(UserError, match=r"write.yaml: bert writes no answers"):
        evaluate(str(folder / "bert"), names(folder, "choose", "write"), out=str(tmp_path))


def test_a_text_that_is_too_long_is_refused_before_others_are_scored(folder, tmp_path, monkeypatch):
    rows = [ROWS[0], ROWS[1] | {"text": "a dog ran " * 30}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(command.scoring, "score", lambda *_: 1 / 0)
    words = r"pairs\.yaml: .*rows\.jsonl: line 2: choice 1: \d+ tokens are too many for the model's 32 positions"
    with pytest.raises(UserError, match=words):
        evaluate(str(folder / "gpt2"), names(folder, "choose", "pairs"), data=str(tmp_path), out=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_written_answer_is_scored(folder, tmp_path):
    (found,) = evaluate(str(folder / "gpt2"), names(folder, "write"), out=str(tmp_path), shots=[1], limit=3)
    assert found.examples == 3 and 0 <= found.metrics["exact_match"].value <= 1
    assert all("\n" not in one["answer"] for one in outcomes(tmp_path / "write_1shot.jsonl"))


def test_the_table_is_whole_where_the_output_is_a_file(capsys):
    names = [f"baseline_{n}_of_a_long_name" for n in range(4)]
    found = {"acc": measures.Value(0.5, 0.01)}
    pairs = HarnessTask(name="a_task_of_a_long_name[x]", form="pair", choices=("a", "b"))
    result = command.Result(pairs, 0, 5, found, dict.fromkeys(names, found), {})
    command._show(types.SimpleNamespace(report_lines=list), [result])
    shown = capsys.readouterr().out
    assert all(text in shown for text in (*names, pairs.name)) and shown.count("50.0 ± 1.0") == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bert", "--tasks", "write.yaml"], "write.yaml: bert writes no answers, which form generate_until wants"),
        (["gpt2", "--tasks", "lambdaa"], "--tasks: lambdaa: no such task; did you mean lambada"),
        (["gpt2", "--tasks", "choose.yaml", "shots=3"], "shots=3: wants TASK.key=value; TASK is one of choose"),
        (
            ["gpt2", "--tasks", "choose.yaml", "--shots", "5"],
            "5 shots, but there are 4 rows beside the one that is asked",
        ),
        (
            ["gpt2", "--tasks", "bits.yaml,near.yaml", "--shots", "0,5"],
            "--shots: has no effect on tasks of form loglikelihood_rolling and similarity; leave it out",
        ),
        (["gpt2", "--tasks", "choose.yaml", "--data", "no/such"], "--data: no/such: no such directory"),
        (["gpt2", "--limit", "5"], "--limit: is for --tasks: give both"),
        (
            ["gpt2", "--tasks", "last.yaml", "--form", "span"],
            "--form: is for encoder-decoders, and gpt2 is a decoder; leave it out",
        ),
        (["t5", "--tasks", "last.yaml", "--unit", "word"], "--unit: is for encoders, and t5 is an encoder-decoder;"),
    ],
)
def test_a_mistake_is_one_line(folder, tmp_path, capsys, words, message, monkeypatch):
    monkeypatch.chdir(folder)
    code = main(["eval", *words, *(["--out", str(tmp_path)] if "--tasks" in words else [])])
    said = capsys.readouterr().err
    assert code == 2 and message in said and "Traceback" not in said


def process(number, folder, out):
    """All tasks; that processes score other families alike is shown where they are scored."""
    evaluate(str(folder / "gpt2"), names(folder), out=str(out))


@pytest.mark.slow
def test_one_and_two_processes_write_the_same(folder, tmp_path):
    """On the same two devices; five rows, of one shard two, of the other three."""
    written = []
    for count in (1, 2):
        out = tmp_path / str(count)
        codes, logs = run(process, count, 2 // count, tmp_path / f"log_{count}", folder, out)
        assert codes == [0] * count, logs
        written.append({path.relative_to(out): path.read_bytes() for path in out.rglob("*.json*")})
    assert written[0].keys() == written[1].keys() and len(written[0]) == len(TASKS) + 1
    assert written[0] == written[1]
