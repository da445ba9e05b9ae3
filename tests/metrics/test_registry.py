import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from jaxpt.errors import UserError
from jaxpt.metrics import METRICS, check_options, describe, resolve, score, settable

EXAMPLES = {  # right predictions
    "accuracy f1 macro_f1 micro_f1 weighted_f1 matthews balanced_accuracy average_precision cb multirc axg": [0, 1],
    "pearson spearman mse": [1.0, 2.0],
    "tag_accuracy span_f1": [["B-A", "O"], ["B-B"]],
    "record squad squad_v2 trivia_qa natural_questions web_questions exact_match bleu chrf ter rouge": [
        "a small cat sat", "two big dogs ran",
    ],
}  # fmt: skip


def test_the_names():
    assert set(METRICS) == {
        "accuracy", "f1", "macro_f1", "micro_f1", "weighted_f1", "matthews", "balanced_accuracy", "average_precision",
        "pearson", "spearman", "mse", "tag_accuracy", "span_f1", "cb", "multirc", "axg", "record", "squad", "squad_v2",
        "trivia_qa", "natural_questions", "web_questions", "exact_match", "bleu", "chrf", "ter", "rouge",
    }  # fmt: skip


@pytest.mark.parametrize("metric", METRICS)
def test_right_predictions_have_the_best_score_in_the_metrics_unit(metric):
    rows = next(rows for metrics, rows in EXAMPLES.items() if metric in metrics.split())
    options = {"groups": [0, 0] if metric == "multirc" else [0, 1]} if metric in ("multirc", "axg") else {}
    scores = score(metric, rows, rows, **options)
    known = METRICS[metric]
    best = 0.0 if known.lower_is_better else 100.0 if known.unit == "percent" else 1.0
    assert list(scores.values()) == pytest.approx([best] * len(scores))
    assert all(type(value) is float for value in scores.values())
    assert tuple(scores) == known.values[: len(scores)]  # of squad_v2 some want questions without an answer


def test_a_metric_that_only_a_task_knows_is_a_fraction_of_which_high_values_are_better():
    mine = describe("mine")
    assert (mine.values, mine.selection_value, mine.mode, mine.percent(0.5)) == (("mine",), "mine", "max", 50.0)


def test_the_value_that_chooses_the_best_checkpoint():
    chosen = {name: (METRICS[name].selection_value, METRICS[name].mode) for name in ("multirc", "ter", "bleu", "cb")}
    assert chosen == {
        "multirc": ("f1a", "max"),
        "ter": ("ter", "min"),
        "bleu": ("bleu", "max"),
        "cb": ("macro_f1", "max"),
    }


def test_a_wrong_name_is_answered_with_the_nearest():
    with pytest.raises(UserError, match=r"no metric 'mathews'; did you mean matthews\?"):
        score("mathews", [1], [1])
    with pytest.raises(UserError, match=r"no metric 'zzz'; one of: (\w+, )*accuracy, f1, "):
        score("zzz", [1], [1])


def test_options():
    with pytest.raises(UserError, match=r"f1: no option 'postive'; did you mean positive\?"):
        score("f1", [1], [1], postive=1)
    with pytest.raises(UserError, match="mse: no option 'labels'; it has none"):
        score("mse", [1], [1], labels=[1])
    with pytest.raises(UserError, match="multirc needs the option 'groups', one id for each example"):
        score("multirc", [1], [1])
    options = {"multirc": "groups", "axg": "groups", "record": "groups", "squad_v2": "no_answer"}
    for metric, name in options.items():
        with pytest.raises(UserError, match=f"{metric}: {name}: 1 values for 2 targets; there is one for each"):
            score(metric, ["a", "b"], ["a", "b"], **{name: [0]})


def test_options_of_a_recipe():
    assert list(settable("span_f1")) == ["strict"] and settable("f1") == settable("multirc") == {}
    options = (("bleu.tokenize", "zh"), ("bleu.smooth_value", 0.5), ("bleu.max_ngram_order", 2))
    check_options(options, ("bleu",), "task.metric_options")
    for name, value, words in [
        ("bleu.tokenise", "zh", r"key\.bleu: no option 'tokenise'; did you mean tokenize\?"),
        ("bleu.tokenize", "chinese", r"key\.bleu\.tokenize: input should be '13a', 'intl', .*got 'chinese'"),
        ("bleu", "zh", "key.bleu: wants a mapping of options; one of: tokenize, lowercase, "),
        ("rouge.stemmer", "no", "key.rouge.stemmer: input should be a valid boolean, got 'no'"),
        ("f1.positive", 1, "key.f1: no option 'positive'; it has none"),
        ("chrf.beta", 1, "key: chrf is no metric of this task; it has bleu, rouge, f1"),
    ]:
        with pytest.raises(UserError, match=words):
            check_options(((name, value),), ("bleu", "rouge", "f1"), "key")


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("bleu.max_ngram_order", 1),
        ("bleu.smooth_value", 0),
        ("chrf.char_order", 1),
        ("chrf.word_order", 0),
        ("chrf.beta", 0),
    ],
)
def test_an_option_without_a_meaning_is_refused(name, least):
    check_options(((name, least),), ("bleu", "chrf"), "key")
    wants = rf"key\.{name}: input should be greater than or equal to {least}, got {least - 1}"
    with pytest.raises(UserError, match=wants):
        check_options(((name, least - 1),), ("bleu", "chrf"), "key")


def test_options_by_language():
    zh, ja, de, ru = ["今天下雨了"], ["今日は雨です"], ["Es regnet."], ["Дождь."]
    assert [resolve("bleu", texts)["tokenize"] for texts in (zh, [ja], de, ru)] == ["zh", "ja-mecab", "13a", "13a"]
    assert resolve("bleu", de, language="zh-Hant") == {"tokenize": "zh"}
    assert resolve("bleu", zh, tokenize="13a") == {"tokenize": "13a"}
    assert resolve("ter", zh) == {"normalized": True, "asian_support": True}
    assert [resolve("rouge", texts)["tokenize"] for texts in (zh, de, ru)] == ["char", "ascii", "unicode"]
    assert resolve("rouge", de, language="de") == {"stemmer": False, "tokenize": "unicode"}
    assert [resolve("squad", zh, language=code)["normalization"] for code in (None, "de", "en", "fr")] == [
        "zh", "de", "squad", "squad",
    ]  # fmt: skip
    for options in ({}, {"case_sensitive": True}):
        with pytest.raises(UserError, match="ter: th has no spaces between words"):
            resolve("ter", de, language="th", **options)
    with pytest.raises(UserError, match="chrf: no option 'language'"):
        resolve("chrf", de, language="zh")


@pytest.mark.parametrize("metric", METRICS)
def test_unequal_numbers_and_no_examples(metric):
    with pytest.raises(UserError, match=f"{metric}: 1 predictions for 2 targets"):
        score(metric, ["x"], ["x", "y"])
    with pytest.raises(UserError, match=f"{metric}: there are no examples to score"):
        score(metric, [], [])


def test_importing_costs_nothing():
    code = "import sys, jaxpt.metrics, jaxpt.metrics.text_tasks; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"numpy", "scipy", "sklearn", "sacrebleu", "rouge_score", "nltk", "seqeval", "jax", "pydantic"}
    assert not heavy & set(done.stdout.split())


def test_the_table_of_the_page_is_that_of_the_code():
    """jaxpt/data/tasks/README.md: options, defaults, the value that chooses a checkpoint, its direction and scale."""
    page = (Path(__file__).parents[2] / "jaxpt/data/tasks/README.md").read_text("utf-8")
    rows = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("| `")]
    assert {row[0].strip(" `") for row in rows} == set(METRICS)
    for metric, value, options, better, scale in ([cell.strip(" `") for cell in row] for row in rows):
        known = METRICS[metric]
        assert (value, better) == (known.selection_value, known.mode)
        assert known.unit == {"0–1": "fraction", "−1–1": "fraction", "squared units": "number"}.get(scale, "percent")
        by_language = known.by_language or (lambda code: {})
        varies = {name for code in ("en", "zh", "de") for name in by_language(code)}
        named = dict(re.findall(r"`?(\w+): (\S+?)(?=`|$)", options))
        for name, default in settable(metric).items():
            assert yaml.safe_load(named[name]) == default
            assert (f"`{name}: {named[name]}`*" in f"`{options}`") == (name in varies)
