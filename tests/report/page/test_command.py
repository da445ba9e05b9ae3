"""`jaxpt report`: one file that loads nothing, with every text escaped and every run's figures."""

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from jaxpt import cli
from jaxpt.config.studies import load_study
from jaxpt.report.page import command, costs
from jaxpt.report.page import studies as page_studies
from jaxpt.report.page.sections import Group
from jaxpt.study import tables
from jaxpt.study.charts import Table
from tests.report.page import canned
from tests.study.test_tables import plan  # noqa: F401  (a fixture)

VOID = ("meta", "br", "wbr", "path", "circle")


class Page(HTMLParser):
    """What a browser would see."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.attributes, self.open, self.texts = set(), [], [], []
        self.feed(path.read_text(encoding="utf-8"))
        assert self.open == [], "tags that are not closed"

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self):
        return "".join(self.texts)


def make(tmp_path, *paths, words=()):
    assert cli.main(["report", *map(str, paths), "--out", str(tmp_path / "page.html"), *words]) == 0
    return Page(tmp_path / "page.html")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A pretraining run, one under way whose last line is cut, one without validation, and a fine-tuned one."""
    root = tmp_path_factory.mktemp("runs")
    canned.pretrained(root / "bert")
    going = canned.write(root / "going", "gpt2", canned.lines()[:5])
    with (going / "metrics.jsonl").open("a") as file:
        file.write('{"step": 30, "train/lo')
    trained = [line for line in canned.lines(loss=5.0) if "validation/loss" not in line]
    canned.write(root / "no_validation", "bert", trained, {"finished": False, "step": 40, "wall_seconds": 90.0})
    canned.tuned(root / "tuned")
    canned.write(root / "empty", "t5")
    canned.label_sets(root / "sets")
    return root


NAMES = ("bert", "going", "no_validation", "tuned", "empty")


@pytest.mark.parametrize("names", [*((name,) for name in NAMES), NAMES], ids=" ".join)
def test_a_page_loads_nothing_and_escapes_all(runs, tmp_path, names):
    page = make(tmp_path, *(runs / name for name in names))
    assert page.tags.isdisjoint({"script", "link", "img", "iframe", "object", "base", "b" * ("tuned" not in names)})
    assert all(not name.startswith("on") and name not in ("src", "srcset", "xlink:href") for name, _ in page.attributes)
    links = {value for name, value in page.attributes if name == "href"}
    targets = {value for value in links if not value.startswith("data:text/csv;base64,")}  # a matrix to download
    assert all(value.startswith("#") for value in targets) and len(links - targets) == ("tuned" in names)
    raw = (tmp_path / "page.html").read_text(encoding="utf-8")
    style = raw.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style and "@import" not in style and "\x1b" not in raw
    assert targets <= {f"#{value}" for name, value in page.attributes if name == "id"}
    assert not list(tmp_path.glob("*.tmp"))


def test_the_figures_of_all_runs_stand_in_the_page(runs, tmp_path):
    page = make(tmp_path, *(runs / name for name in ("bert", "going", "no_validation", "tuned")))
    for figure in ("4.4", "4.6667", "5.25", "12,345", "5.2", "5.3333", "0.7", "40.5", "0.4000", "+0.3000", "2m10s"):
        assert figure in page.texts or f" {figure}" in page.text, figure
    assert {"finished", "stopped"} <= set(page.texts) and "not finished" in page.text
    assert "1 lines of its metrics are damaged" in page.text
    assert 'alert("1")' in page.text and "<b>odd</b>" in page.text, "texts as they are"
    assert "row 29: <script>" in page.text, "the worst rows with their texts"
    headings = {"Runs", "What differs", "Curves", "Final figures", "Baselines", "Samples", "Confusion matrix", "Data"}
    headings |= {"Labels", "Worst examples", "Throughput and time", "Cost estimate", "Configuration"}
    assert headings <= set(page.texts)


def test_losses_have_their_unit(tmp_path):
    sections = {"objective": {"kind": "classification"}, "data": {"path": "x.tsv"}}
    regression = {"task": {"kind": "regression"}, "checkpoint": {"best_metric": "task/pearson"}}
    canned.write(tmp_path / "run", "bert", canned.lines(), {"baseline": 5.0}, **sections, **regression)
    page = make(tmp_path, tmp_path / "run")
    assert "loss at labels, squared error; constant baseline" in page.texts
    assert "loss, squared error" in page.text and "nats" not in page.text


def test_sections_without_content_are_left_out(runs, tmp_path):
    page = make(tmp_path, runs / "empty")
    assert {"Curves", "Samples", "Baselines", "Worst examples", "What differs"}.isdisjoint(page.texts)
    assert "Configuration" in page.texts


def test_rows_with_sets_of_labels_have_scores_of_each_label(runs, tmp_path):
    page = make(tmp_path, runs / "sets")
    assert "Confusion matrix" not in page.texts and "Scores of each label" in page.texts
    first = page.texts.index("calibration error")
    rows = [text for text in page.texts[first + 1 :] if text.strip()][:16]
    assert rows[:8] == ["good", "0.974", "1.000", "0.950", "20", "19", "0.375", "0.062"]
    assert rows[8:] == ["bad", "0.976", "0.952", "1.000", "20", "21", "0.438", "0.125"]
    assert "Rows with a label by its probability" in page.text and "80 probabilities of 2 labels" in page.text
    assert page.text.count("row 39: <script>") == 1 and page.text.count(": <script>") == 20, "the twenty worst"


def test_receipts_say_what_they_rest_on(runs, tmp_path):
    page = make(tmp_path, runs / "bert")
    hours = 130 / 3600 * 8
    kwh = hours * 1.275 * 1.1
    assert {f"{kwh:.3g}", f"{hours * 6:.3g}", f"{kwh * 0.4:.3g}"} <= set(page.texts)
    assert "1275 W for a chip with its share of the host" in page.text and "8 × NVIDIA H100" in page.text
    page = make(
        tmp_path, runs / "tuned", words=["--watts", "100", "--price", "0.5", "--carbon", "0.1", "--load", "0.5"]
    )
    kwh = 140 / 3600 * 0.1 * 0.5
    assert {f"{kwh:.3g}", f"{140 / 3600 * 0.5:.3g}", f"{kwh * 0.1:.3g}"} <= set(page.texts), "a machine, not 8 devices"
    assert "--watts 100 --price 0.5 --carbon 0.1 --load 0.5" in page.text, "the command makes the same page again"
    page = make(tmp_path, runs / "tuned")
    assert "65 W assumed for a machine with CPUs alone" in page.text and "not known" in page.texts
    page = make(tmp_path, runs / "going")
    assert page.texts.count("not known") >= 4, "without run.json the device is not known"


@pytest.mark.slow
def test_a_study_and_a_run(plan, runs, tmp_path):  # noqa: F811
    tables.write(plan)
    page = make(tmp_path, plan.run_dir, runs / "bert", words=["--picture", str(tmp_path / "page.png")])
    table = json.loads((Path(plan.run_dir) / "table.json").read_text())["tables"][0]
    cells = {cell for row in table["rows"] for cell in row if cell}
    assert cells <= set(page.texts) and "GLUE 79.6" in page.texts and "which is best?" in page.text
    assert {"Pretrained", "Curves", "Cost estimate", "4 pretrained"} <= set(page.texts)
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    drawn = tmp_path / "page.svg"
    make(tmp_path, tmp_path / "which.yaml", words=["--picture", str(drawn)])
    name = f"<!-- {Path(plan.run_dir).name}: ".encode()
    assert b"<svg" in drawn.read_bytes() and name not in drawn.read_bytes()
    make(tmp_path, tmp_path / "which.yaml", runs / "bert", words=["--picture", str(drawn)])
    assert name in drawn.read_bytes(), "beside others a study's charts say its name"


def test_a_heading_is_no_html():
    """Those of a study are the titles of its tables, whoever wrote them."""
    section = ('a"><script>alert(1)</script>', "content")
    page = command.html("title", [Group("study", "", [section])], "jaxpt report")
    assert "<script" not in page and 'href="#1-a-script-alert-1-script-"' in page


def test_the_seeds_of_a_score_stand_below_its_mean():
    assert page_studies.cell_of("71.3 ± 0.3 (71.4, 71.5; 3)") == "71.3 ± 0.3<br><small>(71.4, 71.5; 3)</small>"
    assert page_studies.cell_of("masked_lm (<a>)") == "masked_lm (&lt;a&gt;)"


def test_each_table_of_a_study_has_its_notes():
    titles = {"Cost and scores": "notes_summary", "Fine-tuned": "notes_finetuned", "Pretrained": "notes"}
    titles |= {"Differences": None, "Grid and seeds": "notes_sweep"}
    table = {note: f"- the {note}\n" for note in titles.values() if note} | {"budget": "", "question": "", "rows": []}
    table["tables"] = [Table(title, ("row",), (), (("a ± b",),)) for title in titles]
    study = page_studies.StudyData(Path("study"), table, [], [])
    for title, content in page_studies.group(study, costs.DEFAULTS).sections:
        below = content.partition('<ul class="notes">')[2]
        assert below == (f"<li>the {titles[title]}</li></ul>" if titles[title] else "")


def test_runs_that_left_the_table_of_a_study_are_no_fine_tunings(tmp_path):
    """As of other values of its grid: they were paid for, and stand apart."""
    row = canned.pretrained(tmp_path / "gpt2-learning_rate=0.1")
    for place in ("gpt2-learning_rate=0.2", "gpt2-learning_rate=0.3", "finetune/gpt2/sst2/as_it_is/seed_0"):
        canned.pretrained(tmp_path / place)
    table = {"question": "", "budget": "", "rows": [{"name": row.name}], "tables": []}
    (tmp_path / "table.json").write_text(json.dumps(table))
    html = page_studies._receipt(page_studies.read(tmp_path), costs.DEFAULTS)
    assert [name for name in ("1 pretrained", "1 fine-tuned", "2 no longer in the table") if name not in html] == []


def test_what_cannot_be_shown_is_refused_in_one_line(runs, tmp_path, capsys):
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "table.json").write_text('{"rows": []}')
    (tmp_path / "new.yaml").write_text(
        f"question: which?\nrun_dir: {tmp_path}/new\nrows: [{{name: a, recipe: a.yaml}}]"
    )
    assert load_study(tmp_path / "new.yaml")
    run, out = str(runs / "bert"), str(tmp_path / "page.html")
    (tmp_path / "folder.html").mkdir()
    for words, said in (
        ([str(tmp_path / "hf")], "Hugging Face's form"),
        ([str(tmp_path / "none")], "no such directory"),
        ([str(tmp_path)], "is no run (no config.yaml) and no study (no table.json)"),
        ([str(runs)], "is no run, but holds some"),
        ([str(tmp_path / "old")], "of an earlier version; jaxpt study FILE --table writes it anew"),
        ([str(tmp_path / "new.yaml")], "writes it"),
        ([run, "--out", str(tmp_path / "page.pdf")], "wants a name that ends in .html or .htm"),
        ([run, "--out", str(tmp_path / "no" / "page.html")], "is no directory"),
        ([run, "--out", str(tmp_path / "folder.html")], "folder.html: is a directory, expected a file"),
        ([run, "--out", out, "--picture", "page.jpg"], "wants a name that ends in .png or .svg"),
        ([str(runs / "empty"), "--out", out, "--picture", str(tmp_path / "a.png")], "nothing to draw"),
    ):
        assert cli.main(["report", *words]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1, error
    for words in (["--load", "2"], ["--watts", "-1"], ["--price", "much"]):
        with pytest.raises(SystemExit) as left:
            cli.main(["report", run, *words])
        assert left.value.code == 2
    assert not (tmp_path / "page.html").exists() and not list(tmp_path.glob("*.png"))


def test_the_page_is_in_the_run_by_default(tmp_path, capsys):
    run = canned.pretrained(tmp_path / "bert")
    assert cli.main(["report", str(run), str(run)]) == 0
    assert capsys.readouterr().out == f"wrote {run}/report.html\n"
    assert "Overview" in Page(run / "report.html").texts, "the same run twice is one run"


def test_help(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        cli.main(["report", "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert "examples:" in lines


@pytest.mark.slow
def test_what_is_slow_to_import_is_not_imported():
    code = "import sys, jaxpt.report.page.command; print(*{'tensorflow', 'seqio', 'matplotlib'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "\n"
