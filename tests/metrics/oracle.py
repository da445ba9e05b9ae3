"""What the official scorers make of random answers and labels: `tests/metrics/golden.json`.

    git clone https://github.com/huggingface/evaluate                                    # at a7dd338
    git clone https://github.com/google-research/text-to-text-transfer-transformer t5   # at e081111
    python -m tests.metrics.oracle evaluate t5 > tests/metrics/golden.json

metrics/squad, squad_v2 and super_glue of `evaluate` hold the official scripts of SQuAD 1.1, SQuAD 2.0 and ReCoRD, and
MultiRC's metrics; t5/evaluation has T5's metrics. Only the functions are taken, without what their files import.
"""

import ast
import collections
import json
import random
import re
import string
import sys
import types
from pathlib import Path

import numpy as np
import sacrebleu
import sklearn.metrics
from rouge_score import rouge_scorer

WORDS = "the a an cat Cat dog dogs. U.S. team's (old) New-York 1994 ‘x’ y_z , ! red".split()  # noqa: SIM905


def rows():
    """Predictions, and targets with none to three answers; probabilities of no answer with ties; labels with −1."""
    draw = random.Random(0)

    def text():
        return " ".join(draw.choice(WORDS) for _ in range(draw.choice((0, 1, 1, 2, 3))))

    answers = [[text() for _ in range(draw.choice((1, 1, 2, 3)))] for _ in range(80)]
    predictions = [draw.choice((text(), draw.choice(golds), "", text())) for golds in answers]
    labels = [draw.choice((0, 1)) for _ in answers]
    return {
        "predictions": predictions,
        "answers": answers,
        "or_none": [golds if draw.random() < 0.6 else [] for golds in answers],
        "no_answer": [round(draw.random(), 1) for _ in answers],
        "labels": labels,
        "predicted": [draw.choice((label, label, label, label, 0, 1, -1)) for label in labels],
        "groups": [i // 3 for i in range(len(answers))],
    }


def functions(path, *more):
    """The functions of a file, defined without its imports, classes and decorators."""
    tree = ast.parse(Path(path).read_text("utf-8"))
    kept = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.Assign)]
    for node in kept:
        node.decorator_list = [] if isinstance(node, ast.FunctionDef) else None
    kept = [node for node in kept if isinstance(node, ast.FunctionDef) or "REGEX" in ast.unparse(node)]
    header = ast.parse("from __future__ import annotations").body
    scope = {"re": re, "string": string, "collections": collections, "Counter": collections.Counter, "np": np,
             "sys": sys, "sklearn": sklearn, "f1_score": sklearn.metrics.f1_score, "logging": types.SimpleNamespace(
                 info=lambda *_: None)} | dict(more)  # fmt: skip
    exec(compile(ast.Module(header + kept, []), str(path), "exec"), scope)
    return types.SimpleNamespace(**scope)


def official(evaluate, t5):
    """All values, by the name of the test."""
    r = rows()
    n = range(len(r["predictions"]))
    metrics = Path(evaluate) / "metrics"
    by_id = {str(i): r["predictions"][i] for i in n}

    def dataset(answers, form):
        return [{"paragraphs": [{"qas": [{"id": str(i), "answers": form(answers[i])} for i in n]}]}]

    one = functions(metrics / "squad/compute_score.py")
    two = functions(metrics / "squad_v2/compute_score.py")
    record = functions(metrics / "super_glue/record_evaluation.py")
    glue = functions(metrics / "super_glue/super_glue.py")
    qa = functions(Path(t5) / "t5/evaluation/qa_utils.py")
    invalid = functions(
        Path(t5) / "t5/evaluation/metrics.py",
        ("qa_utils", qa),
        ("sacrebleu", sacrebleu),
        ("rouge_scorer", rouge_scorer),
    )
    listed = dataset(r["answers"], lambda golds: [{"text": gold} for gold in golds])
    values = {"squad": one.compute_score(listed, by_id), "record": record.evaluate(listed[0]["paragraphs"], by_id)[0]}

    none = dataset(r["or_none"], lambda golds: {"text": golds})
    has = two.make_qid_to_has_ans(none)
    probabilities = {str(i): r["no_answer"][i] for i in n}
    raw = two.get_raw_scores(none, by_id)
    for name, threshold in (("squad_v2", 1.0), ("squad_v2_half", 0.5)):
        kept = [two.apply_no_ans_threshold(x, probabilities, has, threshold) for x in raw]
        made = two.make_eval_dict(*kept)
        for prefix, wanted in (("HasAns", True), ("NoAns", False)):
            two.merge_eval(made, two.make_eval_dict(*kept, qid_list=[k for k in has if has[k] == wanted]), prefix)
        two.find_all_best_thresh(made, by_id, *raw, probabilities, has)
        values[name] = {key: value for key, value in made.items() if not key.endswith("total")}

    long = [" . ".join(texts) for texts in r["answers"]]  # several sentences
    said = [" . ".join(reversed(texts)) for texts in r["answers"][1:] + r["answers"][:1]]
    values["bleu"] = invalid.bleu(long, said)
    values["rouge"] = invalid.rouge_mean(long, said)
    values["trivia_qa"] = invalid.trivia_qa(r["answers"], r["predictions"])
    values["f1_invalid"] = invalid.f1_score_with_invalid(r["labels"], r["predicted"])
    targets = [{"value": t, "group": g} for t, g in zip(r["labels"], r["groups"])]
    predicted = [{"value": p} for p in r["predicted"]]
    values["multirc_t5"] = {
        **invalid.multirc_f1_over_all_answers(targets, predicted),
        **invalid.mean_group_metric(invalid.all_match)(targets, predicted),
    }
    plain = [max(p, 0) for p in r["predicted"]]
    ids = [{"idx": {"paragraph": 0, "question": g}, "prediction": p} for g, p in zip(r["groups"], plain)]
    values["multirc"] = glue.evaluate_multirc(ids, r["labels"])
    return {"rows": r, "values": values}


if __name__ == "__main__":
    print(json.dumps(official(*sys.argv[1:]), ensure_ascii=False, indent=1, default=float))
