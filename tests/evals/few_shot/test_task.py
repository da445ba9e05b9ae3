"""Tasks as files: every shipped one is read, and a mistake is one line."""

from pathlib import Path

import pytest

from jaxpt.errors import UserError
from jaxpt.evals.few_shot import examples, task

SHIPPED = sorted(Path("configs/tasks").glob("*.yaml"))


def write(folder, text, name="mine.yaml"):
    path = folder / name
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_task_is_read_and_says_where_its_data_is(path):
    found = task.load(path.stem)
    assert found.name == path.stem and found.description
    assert found.data.path or found.data.tfds
    head = path.read_text().splitlines()
    assert head[0].startswith("# ") and any(line.startswith("# Data:") for line in head)


def test_settings_are_overridden():
    found = task.load("lambada", ["data.path=my.jsonl", "shots=3"])
    assert (found.data.path, found.shots) == ("my.jsonl", 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("form: multiple_choice\nchoices: '[a]'\n", "key answer is missing; a task of form multiple_choice needs it"),
        ("form: chioce\n", "form"),
        ("form: pair\nchoices: [a, b]\nmetrics: [acc_norm]\n", "metrics: acc_norm: a task of form pair has no such"),
        (
            "form: multiple_choice\nchoices: c\nanswer: '0'\nmetrics: [acc_mutual_info]\n",
            "acc_mutual_info needs unconditional",
        ),
        ("form: choice\nchoices: c\nanswer: '0'\n", "form: choice is now called multiple_choice"),
        ("form: pair\nchoices: [a, b]\nwhere: 'true'\n", "where is now called filter"),
        ("form: multiple_choice\nchoices: c\nanswer: '0'\nmetrics: [acc, groups]\n", "groups is now called acc_all"),
        ("form: loglikelihood_rolling\ntext: a\ntemplate: b\n", "template"),
        (
            "form: generate_until\nanswers: a\nmetrics: [exact_match, squad]\n",
            "mine.yaml: metrics: exact_match and squad both give exact_match; leave one out",
        ),
        ("form: generate_until\nanswers: a\nstop: ['.', '']\n", "mine.yaml: stop: has an empty text"),
        ("name: ../mine\nform: pair\nchoices: [a, b]\n", "mine.yaml: name: '../mine': .*; leave out /"),
        (
            "form: pair\nchoices: [a, b]\nanswer: '1'\n",
            "mine.yaml: key answer: has no effect in form pair; leave it out",
        ),
        ("form: pair\nchoices: [a, b]\ncontext: '{{ q }}'\n", "key context: has no effect in form pair"),
        ("form: pair\nchoices: [a, b]\nextract: a\n", "key extract: has no effect in form pair"),
        (
            "form: loglikelihood_rolling\ntext: a\ninstruction: b\n",
            "key instruction: has no effect in form loglikelihood_rolling; leave it out",
        ),
        ("form: similarity\nchoices: '[a, b]'\nanswer: c\nshots: 2\n", "key shots: has no effect in form similarity"),
        ("form: loglikelihood\nchoices: a\n", "key choices: has no effect in form loglikelihood"),
        ("form: multiple_choice\nchoices: c\nanswer: '0'\nstop: [a]\n", "key stop: has no effect in form multiple_ch"),
        ("form: generate_until\nanswers: a\nextract: '('\n", r"extract: '\(': .*; wants a regular expression"),
    ],
)
def test_a_mistake_names_file_and_key(tmp_path, text, message):
    with pytest.raises(UserError, match=message) as error:
        task.load(write(tmp_path, text))
    assert "mine.yaml" in str(error.value) and "\n" not in str(error.value)


def test_an_unknown_task_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="lambda: no such task; did you mean lambada"):
        task.load("lambda")
    with pytest.raises(UserError, match=r"no/such.yaml: no such file"):
        task.load("no/such.yaml")


def test_an_override_names_its_task():
    with pytest.raises(UserError, match=r"shots=3: wants TASK.key=value; TASK is one of lambada, piqa"):
        task.overrides_of(["piqa", "lambada"], ["shots=3"])
    with pytest.raises(UserError, match=r"^--tasks: lambda: no such task; did you mean lambada"):
        task.load_all(["lambda"], ["lambda.shots=3"])


def test_a_task_whose_file_has_a_dot_is_overridden(tmp_path):
    names = [write(tmp_path, "form: pair\nchoices: [a, b]\n", name) for name in ("my.v2.yaml", "my.yaml")]
    found = task.load_all(names, ["my.v2.data.path=a.jsonl", "my.data.path=b.jsonl"])
    assert [one.data.path for one in found] == ["a.jsonl", "b.jsonl"]


def test_an_override_goes_by_the_tasks_name_before_that_of_its_file(tmp_path):
    text = "form: pair\nchoices: [a, b]\n"
    names = [write(tmp_path, f"name: {name}\n{text}", f"{stem}.yaml") for name, stem in (("b", "a"), ("c", "b"))]
    found = task.load_all(names, ["b.shots=1", "a.instruction=x", "c.shots=2"])
    assert [(one.shots, one.instruction) for one in found] == [(1, "x"), (2, "")]
    with pytest.raises(UserError, match=r"a.yaml: no data.path, and no data.tfds; give --data DIR or b.data.path=FILE"):
        examples.rows_of(found[0], None)
    assert task.load_all(names, ["b.data.path=FILE"])[0].data.path == "FILE"
    with pytest.raises(UserError, match=r"d.shots=3: wants TASK.key=value; TASK is one of b, c"):
        task.load_all(names, ["d.shots=3"])


def test_two_tasks_of_one_name_are_refused(tmp_path):
    for folder in ("en", "de"):
        (tmp_path / folder).mkdir()
    text = "form: pair\nchoices: [a, b]\n"
    names = [write(tmp_path / folder, text, "pairs.yaml") for folder in ("en", "de")]
    with pytest.raises(UserError, match=r"de/pairs.yaml: is named pairs, as .*en/pairs.yaml is; give it another name"):
        task.load_all(names)
    write(tmp_path / "de", f"name: pairs_de\n{text}", "pairs.yaml")
    assert [one.name for one in task.load_all(names)] == ["pairs", "pairs_de"]
