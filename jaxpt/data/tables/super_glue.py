"""SuperGLUE's nested JSON lines (MultiRC, ReCoRD, WSC) as the flat rows that TFDS has of them."""

from __future__ import annotations

from typing import Any

_NO_SPAN = ("Kamenev and Zinoviev", "Kamenev, Zinoviev, and Stalin")
"""Spans of WSC with other words between theirs: they stand nowhere in the text."""


def flat(record: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The rows of a line.

    Args:
      record: the object of a line.

    Returns:
      A row for each answer of MultiRC, each query of ReCoRD, or one of WSC, with TFDS's columns; labels are as the file
      has them. None for any other object.

    Raises:
      KeyError, TypeError: it begins as one of them, and a part is missing.

    Example:
      >>> passage = {"text": "Ann met Bob.", "entities": [{"start": 8, "end": 10}, {"start": 0, "end": 2}]}
      >>> qas = [{"query": "@placeholder smiled.", "idx": 4, "answers": [{"text": "Bob", "start": 8, "end": 10}]}]
      >>> flat({"passage": passage, "qas": qas, "idx": 2})[0]["entities"]
      ['Ann', 'Bob']
    """
    passage, target = record.get("passage"), record.get("target")
    if isinstance(passage, dict) and "questions" in passage:
        return _multirc(record)
    if isinstance(passage, dict) and "qas" in record:
        return _record(record)
    if isinstance(target, dict) and "span1_text" in target:
        return [_wsc(record)]
    return None


def is_nested(values: dict[str, Any]) -> bool:
    """True for a row that shares its line with others."""
    return isinstance(values.get("idx"), dict)


def _multirc(record: dict[str, Any]) -> list[dict[str, Any]]:
    passage = record["passage"]
    return [
        {
            "paragraph": passage["text"], "question": question["question"], "answer": answer["text"],
            "label": answer.get("label"),
            "idx": {"paragraph": record["idx"], "question": question["idx"], "answer": answer["idx"]},
        }
        for question in passage["questions"] for answer in question["answers"]
    ]  # fmt: skip


def _record(record: dict[str, Any]) -> list[dict[str, Any]]:
    text = record["passage"]["text"]
    # The last character of an entity is its own.
    entities = sorted({text[entity["start"] : entity["end"] + 1] for entity in record["passage"]["entities"]})
    return [
        {
            "passage": text, "query": query["query"], "entities": entities,
            "answers": sorted({answer["text"] for answer in query.get("answers", ())}),
            "idx": {"passage": record["idx"], "query": query["idx"]},
        }
        for query in record["qas"]
    ]  # fmt: skip


def _wsc(record: dict[str, Any]) -> dict[str, Any]:
    """A row whose spans stand in its text (TFDS's wsc.fixed): case, a final period and line breaks are the text's."""
    row = {key: value for key, value in record.items() if key != "target"} | record["target"]
    for span in ("span1", "span2"):
        name, words = row[f"{span}_text"], row["text"].split()
        if name in row["text"] or name in _NO_SPAN:
            continue
        if "theyscold" in name:
            row["span2_index"] = 10
        first = name[0].lower() if words[row[f"{span}_index"]][0].islower() else name[0].upper()
        row[f"{span}_text"] = (first + name[1:]).rstrip(".").replace("\n", " ")
    return row
