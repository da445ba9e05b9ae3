"""Rows of T5's tasks, and what the released code makes of them: `tests/metrics/text_golden.json`.

    git clone https://github.com/google-research/text-to-text-transfer-transformer t5   # at e081111
    pip install babel gin-config
    python -m tests.metrics.text_rows t5 > tests/metrics/text_golden.json

It runs the functions of t5/data/preprocessors.py, as t5/data/tasks.py calls them, on these rows; closed-book QA's
formats (t5_cbqa/preprocessors.py of google-research) are a prefix each, and stand in test_text_tasks.py.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import sys

PAIR = {"sentence1": "A man, (old) sleeps.", "sentence2": "The man's awake"}
PREMISE = {"premise": "It rained all day.", "hypothesis": 'It was wet; "very" wet'}
WSC = {
    "text": "Mark told Pete many lies about himself , which Pete included in his book . He should have "
    "been more careful .",
    "span1_text": "Mark", "span1_index": 0, "span2_text": "He", "span2_index": 15, "label": 1,
}  # fmt: skip
PEBBLE = {
    "text": "When they had eventually calmed down a bit , and had gotten home, Mr. Farley put the magic pebble in an "
    "iron safe . Some day they might want to use it , but really for now, what more could they wish for?",
    "span1_text": "the magic pebble", "span1_index": 16, "span2_text": "it", "span2_index": 27, "label": 1,
}  # fmt: skip
PONY = {
    "text": "The boy continued to whip the pony , and eventually the pony threw him over. John laughed out quite loud. "
    '"Good for him," he said. ',
    "span1_text": "the pony", "span1_index": 5, "span2_text": "him,\"", "span2_index": 21, "label": 0,
}  # fmt: skip
RECORD = {
    "passage": 'Brazil won.\n@highlight\nNeymar said "yes"\n@highlight\nthen left\n@highlight\nThe end',
    "query": "@placeholder scored", "entities": ["Brazil", "Neymar"], "answers": ["Neymar", "Neymar Jr"],
}  # fmt: skip
SQUAD = {
    "question": "Who won  (the U.S.'s) cup?", "context": "In 1994,\nBrazil (5-time champion) won\t\u201cit\u201d: $3.",
    "answers": {"text": ["Brazil", "Brazil (5-time champion)", "\"it\"."]},
}  # fmt: skip

ROWS: list[tuple[str, dict]] = [
    ("cola", {"sentence": "They  drank the pub dry.", "label": 1}),
    ("cola", {"sentence": "Hidden", "label": -1}),
    ("sst2", {"sentence": "a \u00fcber movie ", "label": 0}),
    *[("mrpc", PAIR | {"label": label}) for label in (0, 1)],
    *[("qqp", {"question2": "Why?", "question1": "Why not?", "label": label}) for label in (0, 1)],
    *[("stsb", PAIR | {"label": x}) for x in (0.0, 0.1, 0.5, 0.9, 1.7, 1.8, 2.5, 2.3, 3.3, 3.333, 3.5, 4.1, 4.9, 5.0)],
    *[("mnli", PREMISE | {"label": label}) for label in (0, 1, 2)],
    ("ax", PREMISE | {"label": -1}),
    *[("qnli", {"question": "When?", "sentence": "In May.", "label": label}) for label in (0, 1)],
    *[("rte", PAIR | {"label": label}) for label in (0, 1)],
    ("rte", PREMISE | {"label": 1}),
    *[("wnli", PAIR | {"label": label}) for label in (0, 1)],
    *[("boolq", {"question": "is it", "passage": "It is.", "label": label}) for label in (0, 1)],
    *[("cb", PREMISE | {"label": label}) for label in (0, 1, 2)],
    ("copa", {"premise": "It fell.", "choice1": "It broke.", "choice2": "It rose.", "question": "effect", "label": 1}),
    ("copa", {"premise": "It fell.", "choice1": "It broke.", "choice2": "It rose.", "question": "cause", "label": 0}),
    ("multirc", {"paragraph": "<b>Sent 1: </b>He ran.<br><b>Sent 2: </b>Far.", "question": "Who?", "answer": "He",
                 "label": 1}),
    ("record", RECORD),
    ("record", RECORD | {"answers": []}),
    ("wic", {"word": "bed", "sentence1": "He lay in bed .", "sentence2": "A bed of roses .", "label": 0}),
    ("wsc", {"text": "This is a test sentence .", "span1_text": "test", "span1_index": 3, "span2_text": "This",
             "span2_index": 0, "label": 0}),
    ("wsc", WSC),
    ("wsc", WSC | {"span1_index": 1, "label": 0}),  # "Mark" is not there
    *[("wsc_simple", row) for row in (WSC, PEBBLE, PONY)],
    *[("wnli_simple", {"sentence1": first, "sentence2": second, "label": 1}) for first, second in (
        ("The fish ate the worm. It was tasty.", "The worm was tasty."),
        ("The fish ate the worm. It was hungry.", "The fish was hungry."),
        ("Lily spoke to Donna, breaking her silence.", "Lily spoke to Donna, breaking Donna's silence."),
        ("Jane gave Joan candy because she was hungry.", "Jane was hungry."),
        ("I poured water from the bottle into the cup until it was full.", "The cup was full."),
        ("Steve follows Fred's example in everything. He influences him hugely.", "Steve influences him hugely."),
        ("The man couldn't lift his son because he was so heavy.", "The son was so heavy."),
    )],
    ("dpr", {"sentence": "Bob asked Tom if he, being he, can lend.", "pronoun": "he", "candidates": ["Bob", "Tom"],
             "label": 1}),
    ("axb", PAIR | {"label": 1}),
    ("axg", PREMISE | {"label": 0}),
    ("squad", SQUAD),
    ("squad_context_free", SQUAD),
    ("cnn_dailymail", {"article": "Long story .  End .", "highlights": "Story .\nEnd ."}),
    ("translate_en_de", {"en": "That is good.", "de": "Das ist gut."}),
    ("translate_ro_en", {"en": "Yes", "ro": "Da"}),
]  # fmt: skip


def made_by_t5(folder: str, task: str, row: dict) -> tuple[str, list[str]]:
    """(inputs, all targets) of a row, by the functions of the released code."""
    import seqio
    import tensorflow as tf
    from tensorflow_datasets.text import glue, super_glue

    t5 = _module(folder)
    builders = {
        b.name: b for b in (*super_glue.SuperGlue.builder_configs.values(), *glue.Glue.builder_configs.values())
    }
    features = {"multirc": ("question", "answer", "paragraph"), "wic": ("sentence1", "sentence2", "word")}
    names = {"ax": "mnli", "axb": "rte", "axg": "rte"}
    special = {
        "stsb": t5.stsb, "wsc": t5.wsc, "wsc_simple": t5.wsc_simple, "wnli_simple": t5.wnli_simple, "squad": t5.squad,
        "dpr": t5.definite_pronoun_resolution_simple, "record": t5.record,
        "squad_context_free": functools.partial(t5.squad, include_context=False),
        "cnn_dailymail": functools.partial(t5.summarize, article_key="article", summary_key="highlights"),
    }  # fmt: skip
    idx = {"multirc": {"paragraph": 0, "question": 0, "answer": 0}, "record": {"passage": 0, "query": 0}}
    row = row | {"idx": idx.get(task, 0), "id": "0"} if task != "cnn_dailymail" else row
    if task in special:
        make = special[task]
    elif task.startswith("translate"):
        _, source, target = task.split("_")
        make = functools.partial(t5.translate, source_language=source, target_language=target)
    else:
        make = functools.partial(
            t5.glue, benchmark_name=names.get(task, task), label_names=builders[task].label_classes,
            feature_names=features.get(task),
        )  # fmt: skip
        row.pop("id", None)
        if task == "axb":
            row = {"premise": row["sentence1"], "hypothesis": row["sentence2"], "label": row["label"], "idx": 0}
    if task == "record" and not row["answers"]:
        row["answers"] = tf.constant([], tf.string)
    with seqio.map_seed_manager(0):
        made = list(make(tf.data.Dataset.from_tensors(row)).as_numpy_iterator())
    return made[0]["inputs"].decode(), [one["targets"].decode() for one in made]


@functools.cache
def _module(folder: str):
    spec = importlib.util.spec_from_file_location("t5_preprocessors", f"{folder}/t5/data/preprocessors.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    lines = [json.dumps([task, *made_by_t5(sys.argv[1], task, row)], ensure_ascii=False) for task, row in ROWS]
    print("[\n" + ",\n".join(lines) + "\n]")
