"""Tasks as evaluators of a run: what `jaxpt eval --tasks` says of its last checkpoint."""

import json

import pytest

from jaxpt import config as configs
from jaxpt.errors import UserError
from jaxpt.evals import harness
from jaxpt.evals.few_shot import baselines, measures
from jaxpt.evals.few_shot.examples import Example
from jaxpt.evals.few_shot.task import HarnessTask
from jaxpt.inference.evaluate import evaluate
from jaxpt.train.loop import train
from tests import families, grids

TEXT = ["the cat sat on the mat and saw a dog", "a dog ran after the cat on the mat", "no one saw the dog run"] * 40


def test_a_line_has_the_baseline_of_a_metric_that_is_several_values():
    squad = HarnessTask(name="qa", form="generate_until", metrics=("squad",))
    outcomes = [{"id": 0, "gold": ["cat"], "group": None, "text": "a dog", "answer": "a dog"}] * 2
    trivial = baselines.baselines(squad, [Example(0, ("",), (" cat",), gold=["cat"])] * 2)
    line = harness.line_of(squad, measures.measure(squad, outcomes), trivial)
    assert line == "qa: exact_match 0.0 ± 0.0  f1 0.0 ± 0.0 (majority 100.0 ± 0.0)"


def test_a_directory_that_is_not_there_is_refused_with_the_recipe(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"q": "the cat"}\n')
    task = {"form": "loglikelihood_rolling", "data": {"path": "rows.jsonl"}, "text": "{{ q }}"}
    (tmp_path / "bits.yaml").write_text(json.dumps(task))
    tasks = (str(tmp_path / "bits.yaml"),)
    harness.Harness(tasks=tasks).check(families.config("gpt2"))
    with pytest.raises(UserError, match=r"^data: no/such: no such directory$"):
        harness.Harness(tasks=tasks, data="no/such").check(families.config("gpt2"))


@pytest.mark.slow
@pytest.mark.parametrize("family", grids.cases(families.FAMILIES, "gpt2"))
def test_training_and_command_say_the_same(tmp_path, family):
    for name in ("text.jsonl", "held_out.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXT))
    rows = [{"a": f"the cat sat on the {b}", "b": f"the mat {b} a no", "g": b} for b in ("mat", "dog", "cat")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {"form": "pair", "data": {"path": "rows.jsonl"}, "choices": ["{{ a }}", "{{ b }}"], "group": "{{ g }}"}
    (tmp_path / "mine.yaml").write_text(json.dumps(task))
    name = str(tmp_path / "mine.yaml")
    tokenizer = {"kind": families.TOKENIZERS[family], **({"extra_ids": 10} if family == "t5" else {})}
    config = configs.build(families.tree(
        family,
        model={"vocab_size": 300 if family == "gpt2" else 60, "layers": 1},
        data={"path": str(tmp_path / "text.jsonl"), "validation_path": str(tmp_path / "held_out.jsonl"),
              "tokenizer": tokenizer},
        train={"steps": 4, "eval_every": 2, "log_every": 2},
        evals=[{"kind": "harness", "tasks": [name], "limit": 2}],
        run_dir=str(tmp_path / "run"),
    ))  # fmt: skip
    assert train(config) == 0
    logged = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    found = {one["step"]: one for one in logged if "harness/mine/acc" in one}
    assert sorted(found) == [2, 4]
    (said,) = evaluate(str(tmp_path / "run"), [name], limit=2)
    for metric in ("acc", "acc_strict", "acc_groups"):
        assert found[4][f"harness/mine/{metric}"] == pytest.approx(said.metrics[metric].value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "settings", "words"),
    [
        ("bert", {"tasks": ["write.yaml"]}, r"^evals\.harness: .*write.yaml: bert writes no answers"),
        (
            "t5", {"tasks": ["last.yaml"], "form": "span", "name": "spans"},
            r"^evals\.spans: form: span needs an objective that fills spans; objective\.kind: mass does not$",
        ),
    ],
)  # fmt: skip
def test_what_a_model_cannot_answer_is_refused_before_the_first_step(tmp_path, family, settings, words):
    for name in ("text.jsonl", "held_out.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXT))
    (tmp_path / "rows.jsonl").write_text('{"q": "the cat", "a": "a dog"}\n')
    task = {"data": {"path": "rows.jsonl"}, "context": "{{ q }}"}
    for name, more in {
        "write": {"form": "generate_until", "answers": "a"},
        "last": {"form": "loglikelihood", "continuation": " {{ a }}"},
    }.items():
        (tmp_path / f"{name}.yaml").write_text(json.dumps(task | more))
    settings = settings | {"tasks": [str(tmp_path / name) for name in settings["tasks"]]}
    tokenizer = {"kind": families.TOKENIZERS[family], **({"extra_ids": 10} if family == "t5" else {})}
    config = configs.build(families.tree(
        family,
        **({"objective": {"kind": "mass"}} if family == "t5" else {}),
        model={"vocab_size": 60, "layers": 1},
        data={"path": str(tmp_path / "text.jsonl"), "validation_path": str(tmp_path / "held_out.jsonl"),
              "cache_dir": str(tmp_path / "cache"), "tokenizer": tokenizer},
        evals=[{"kind": "harness", **settings}],
        run_dir=str(tmp_path / "run"),
    ))  # fmt: skip
    with pytest.raises(UserError, match=words):
        train(config)
    assert not [*(tmp_path / "run/checkpoints").glob("*")]
