"""What sections say of a run: where its time went, which labels it takes for which."""

import base64
import collections
import csv
import io
import re

import pytest

from jaxpt.report.page import costs, mistakes, trust
from jaxpt.report.page.costs import DEFAULTS
from jaxpt.report.page.run_charts import shown
from jaxpt.report.page.run_data import read
from jaxpt.report.page.sections import sections
from tests.report.page import canned


def test_where_the_time_went(tmp_path):
    """40 steps of two seconds, a quarter of them waiting; four validations of five; 130 seconds in all."""
    (one,) = read([canned.pretrained(tmp_path / "run")])
    wanted = {"training": 60, "waiting for data": 20, "evaluating, saving": 20, "starting, ending": 30}
    assert costs.time_of_parts(one) == pytest.approx(wanted)
    assert costs.time_bar(costs.time_of_parts(one)).count("<span") == 4


def test_a_pause_between_two_starts_is_not_counted(tmp_path):
    first = canned.lines(20)
    later = [{**line, "step": line["step"] + 20, "time": line["time"] + 1e6} for line in canned.lines(20)]
    (one,) = read([canned.write(tmp_path / "run", "bert", first + later)])
    assert sum(costs.time_of_parts(one).values()) == pytest.approx(2 * (20 * 2 + 2 * 5))
    assert one.text_tokens == 40 * 100


def test_confusions_count_every_prediction(tmp_path):
    (one,) = read([canned.tuned(tmp_path / "run")])
    rows = one.rows("predictions_test.jsonl")
    html = mistakes.confusion(rows, canned.LABELS)
    matrix = html.partition("</table>")[0]
    shown = [int(cell.rpartition(">")[2]) for cell in matrix.split("</td>")[:-1]]
    assert sum(shown) == len(rows) == 30 and "(none)" in html and "&lt;b&gt;odd" in html
    assert mistakes.confusion([{"target": 0.5, "prediction": 0.7}], canned.LABELS) == ""
    tags = [{"target": ["good", "bad"], "prediction": ["bad", "bad"]}]
    assert mistakes.confusion(tags, canned.LABELS).partition("</table>")[0].count("</td>") == 4, (
        "words are counted, labels of none left out"
    )


def test_labels_of_an_earlier_run_are_those_of_its_predictions(tmp_path):
    (one,) = read([canned.tuned(tmp_path / "run")])
    assert mistakes.label_counts(one)["train"] == {"good": 300, "bad": 100}
    (tmp_path / "run" / "evaluations" / "mistakes_test.jsonl").unlink()
    assert mistakes.label_counts(one) == {"test": dict.fromkeys(canned.LABELS, 10)}
    assert "row 29" not in mistakes.worst(one.rows("predictions_test.jsonl"), [])


def test_losses_of_several_parts(tmp_path):
    """A generator and a discriminator, each with its curve."""
    parts = {"validation/masked_lm": 1.0, "validation/replaced_token": 0.5}
    objective = {"kind": "replaced_token"}
    path = canned.write(tmp_path / "run", "bert", canned.lines(**parts), objective=objective,
                        model={"kind": "electra"})  # fmt: skip
    (one,) = read([path])
    html = dict(sections([one], DEFAULTS))["Curves"]
    assert len(one.loss_parts) == 2 and all(f">{shown(part)}<" in html for part in one.loss_parts)


def test_a_large_matrix_is_a_heat_map_with_all_labels_and_a_table_to_download():
    labels = [f"label_{n}" for n in range(77)]
    right = [{"target": label, "prediction": label} for label in labels]
    found = mistakes.confusion([*right, {"target": "label_3", "prediction": "label_7"}], labels)
    assert found.count("<rect") == 78 and "<title>label_3 → label_7: 1 (50.0%)</title>" in found
    assert "Largest confusions" in found and "Largest confusions" not in mistakes.confusion(right, labels)
    encoded = found.partition("data:text/csv;base64,")[2].partition('"')[0]
    head, *rows = csv.reader(io.StringIO(base64.b64decode(encoded).decode()))
    assert head == ["target", *labels] and len(rows) == 77
    assert rows[3][0] == "label_3" and rows[3][1 + 3] == rows[3][1 + 7] == "1" and sum(map(int, rows[3][1:])) == 2


def test_scores_of_each_label_are_those_of_scikit_learn():
    from sklearn.metrics import precision_recall_fscore_support

    targets, predictions = list("aaabbbbcc"), list("aabbbbacb")
    html = trust.scores(collections.Counter(zip(targets, predictions)), "abc")
    wanted = zip("abc", *precision_recall_fscore_support(targets, predictions, labels=list("abc")))
    rows = [re.findall(r">([^<>\n]+)<", row) for row in html.split("</tr>")[1:-1]]
    assert sorted(rows) == [[name, *(f"{x:.3f}" for x in (f1, p, r)), str(n)] for name, p, r, f1, n in wanted]


def test_accuracy_by_confidence():
    rows = [{"target": "a", "prediction": "ab"[n % 4 == 0], "probability": 0.95} for n in range(40)]
    html = trust.reliability(rows)
    assert "expected calibration error 0.200, of 40 rows" in html and "<svg" in html
    assert trust.reliability([{"target": "a", "prediction": "a"}]) == ""


def test_the_calibration_chart_has_its_diagonal_and_its_places():
    rows = [{"target": "a", "prediction": p, "probability": 0.8} for p in "aab"]
    html = trust.reliability([*rows, {"target": "a", "prediction": "a", "probability": 0.5}])
    left, bottom, right, top = map(float, re.search(r'faint" d="M(\S+) (\S+)L(\S+) (\S+)"', html).groups())
    assert left < right and bottom > top, "from the lower left to the upper right"
    ticks = re.findall(r'class="tick" [^>]*text-anchor="(\w+)">([\d.]+)<', html)
    assert [name for anchor, name in ticks if anchor == "middle"] == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    assert [name for anchor, name in ticks if anchor == "end"] == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    assert "accuracy: 0.66667 at 0.8<" in html and "accuracy: 1 at 0.5<" in html


CARD = {"devices": {"kind": "GeForce RTX 4090", "count": 1, "platform": "gpu"}}


def test_a_receipt_says_what_its_figures_rest_on():
    """A device that no table has, and a run without run.json, whose power or price is given."""
    given = costs.Assumptions(watts=400)
    card = costs.estimate({"environment": CARD, "wall_seconds": 3600}, [({}, 1, 1)], given)
    assert card.kwh == pytest.approx(0.4 * costs.chips.PUE)
    assert f"× {costs.chips.PUE:g} for the data centre" in costs.grounds([card], given)["kwh"]
    hour = [({"time": 0.0}, 0, 0), ({"time": 3600.0}, 1, 1)]
    unknown = costs.estimate({}, hour, given)
    assert unknown.kwh == pytest.approx(0.4)
    assert "nothing is said" not in costs.grounds([unknown], given)["kwh"]
    assert costs.estimate({}, hour, costs.Assumptions(price=2)).dollars == pytest.approx(2)


def test_texts_may_hold_every_end_of_line(tmp_path):
    run_dir = canned.tuned(tmp_path / "run")
    file = run_dir / "evaluations" / "predictions_test.jsonl"
    file.write_text('{"target": "a\u2028b", "prediction": "a\u0085b"}\n')
    (one,) = read([run_dir])
    assert one.rows(file.name) == [{"target": "a\u2028b", "prediction": "a\u0085b"}]
