"""Answers by counts of words: where they stand, and which sentence and span they are."""

import random

from jaxpt.data.tasks.question_answering import QuestionAnsweringTask
from jaxpt.evals.simple_models import questions
from tests.evals.simple_models.helpers import candidates, splits_of

CONTEXT = "Ada Lovelace wrote notes in 1843. The engine of Babbage was never built. Paris lies on the Seine."
ROWS = [
    {"context": CONTEXT, "question": "Who wrote notes?", "answers": [{"text": "Ada Lovelace", "answer_start": 0}]},
    {"context": CONTEXT, "question": "On which river lies Paris?", "answers": [{"text": "Seine", "answer_start": 91}]},
]


def predicted(name, rows=ROWS):
    splits = splits_of(QuestionAnsweringTask(), train=ROWS, validation=rows)
    (candidate,) = candidates(questions.MODELS, name, splits).values()
    return candidate.predictions["validation"]


def test_the_sentence_with_the_questions_words():
    sentences = [found.text for found in predicted("sentence")]
    assert sentences == ["Ada Lovelace wrote notes in 1843.", "Paris lies on the Seine."]


def test_the_span_beside_the_questions_words_has_none_of_them():
    first, second = predicted("window")
    assert first.text == "Ada Lovelace" and second.text == "the Seine"


def test_answers_stand_where_they_say_whatever_the_text():
    draw = random.Random(0)
    pieces = ["Ada", "met", "3.5", "…", "\n", "!", "notes", " ", "engine.", "Why", "?", "ß", "。"]
    contexts = ["".join(draw.choices(pieces, k=40)) + "x" for _ in range(60)]
    rows = [{"context": text, "question": draw.choice(("", "engine notes", "?!")), "answers": []} for text in contexts]
    task = QuestionAnsweringTask(metrics=("squad_v2",))
    splits = splits_of(task, train=[*ROWS, *rows], validation=rows)
    for name in ("sentence", "window"):
        (candidate,) = candidates(questions.MODELS, name, splits).values()
        for text, found in zip(contexts, candidate.predictions["validation"], strict=True):
            assert found.text and text[found.start :].startswith(found.text)
