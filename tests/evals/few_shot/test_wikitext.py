"""WikiText's text, against lm-eval's own function."""

import doctest
import json
import random
import re
from pathlib import Path

import pytest

from jaxpt.evals.few_shot import examples, scoring, task, templates
from jaxpt.evals.few_shot.scoring import LoglikelihoodResult

PAGE = (
    " = Robert <unk> = \n \n He ( born 1 @,@ 930 ) , the players ' own \" film @-@ maker \" : it 's 3 @.@ 5 ° C . \n"
    " = = Career = = \n \n = = = 2000 – 2005 = = = \n He ' ran ' [ sic ] ; why ? N { of } them ! \n"
)
CLEAN = (
    " = Robert <unk> =\n\nHe (born 1,930), the players'own \"film-maker\": it's 3.5°C.\n"
    "== Career ==\n\n=== 2000 – 2005 ===\nHe 'ran' [sic]; why? 1 {of} them!\n"
)


class Lengths:
    """A model of one nat a character."""

    def rolling(self, texts):
        return [LoglikelihoodResult(-float(len(text)), 1, False) for text in texts]


def test_the_clean_text_is_scored_and_the_published_one_counts(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": PAGE}) + "\n")
    one = task.load("wikitext", [f"data.path={tmp_path / 'rows.jsonl'}"])
    (found,) = scoring.score(one, Lengths(), examples.examples(one))
    assert templates.wikitext_detokenized(PAGE) == CLEAN and found["log_prob"] == -len(CLEAN)
    assert (found["words"], found["bytes"]) == (len(re.split(r"\s+", PAGE)), len(PAGE.encode()))


def test_pages_are_made_of_the_published_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("wiki.valid.raw").write_text(f" \n{PAGE} \n = Ann = \n \n She sat . \n", encoding="utf-8")
    readme = Path(task.__file__).with_name("README.md").read_text(encoding="utf-8")
    exec(re.search(r"```python\n(.*?)```", readme, re.DOTALL)[1], {})
    pages = [json.loads(line)["text"] for line in Path("wikitext2_valid.jsonl").read_text().splitlines()]
    assert pages == [f"{PAGE} ", " = Ann = \n \n She sat . \n"]


def test_examples_in_docstrings():
    failed, tried = doctest.testmod(templates)
    assert tried and not failed


@pytest.mark.parity
def test_the_text_is_that_of_lm_eval():
    pytest.importorskip("lm_eval")
    from lm_eval.tasks.wikitext.preprocess_wikitext import process_results, wikitext_detokenizer

    assert wikitext_detokenizer({"page": PAGE}) == templates.wikitext_detokenized(PAGE)
    assert process_results({"page": PAGE}, (0.0,))["word_perplexity"][1] == scoring.word_count(PAGE)
    parts = [*PAGE.split(" "), *"()[]{}\"'=.,:;!?°\n", "'s", "s", "@-@", "@,@", "@.@"]
    draw = random.Random(0)
    for _ in range(3000):
        page = " ".join(draw.choices(parts, k=40))
        assert wikitext_detokenizer({"page": page}) == templates.wikitext_detokenized(page)
