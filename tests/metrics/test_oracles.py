"""Every metric with options beside its library, on random cases: values, and sacrebleu's signatures."""

import collections
import itertools
import random
import re
import string
import sys
import unicodedata
import warnings

import numpy as np
import pytest
import sacrebleu
import sklearn.metrics
from rouge_score import rouge_scorer
from seqeval import metrics as seqeval
from seqeval import scheme as schemes

from jaxpt.metrics import find, reference_count, score
from tests.grids import seeds

WORDS = "the a an cat Cat cats dogs. U.S. running (old) New-York 1994 ‘x’ y_z , ! red 3.5".split()  # noqa: SIM905
OTHERS = ["北京", "下雨", "今天", "。", "für", "Größe", "дождь", "идёт", "в", "el", "la", "الكتاب", "của"]


def draws(seed):
    """10 cases in the suite (seed 0), 1,000 in the grid (seeds 1 to 20)."""
    return [random.Random(f"{seed} {case}") for case in range(50 if seed else 10)]


def text(draw, words=WORDS, longest=9):
    return " ".join(draw.choices(words, k=draw.randint(0, longest)))


def texts(draw, words):
    """Predictions near their references, of which each has one or two."""
    references = [[text(draw, words) for _ in range(draw.choice((1, 1, 2)))] for _ in range(draw.randint(1, 4))]
    predictions = []
    for row in references:
        kept = [word for word in row[0].split() if draw.random() < 0.8]
        predictions.append(" ".join(kept + text(draw, words, 3).split()))
    return predictions, references


def chosen(draw, **options):
    """Some of the options, each with one of its values."""
    return {name: draw.choice(values) for name, values in options.items() if draw.random() < 0.6}


YES_NO = (False, True)


def same(ours, theirs):
    assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)


def beside_sacrebleu(metric, scorer, draw, words, **options):
    predictions, references = texts(draw, words)
    library = scorer(**options)
    columns = [list(column) for column in itertools.zip_longest(*references)]
    given = {"tokenize": "13a", **options} if metric == "bleu" else options
    given = {"normalized": False, "asian_support": False, **options} if metric == "ter" else given
    same(score(metric, predictions, references, **given)[metric], library.corpus_score(predictions, columns).score)
    ours = find(metric).signature(reference_count(references), **given)
    assert re.sub(r"\|max_ngram_order:\d", "", ours) == str(library.get_signature())


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_bleu(seed):
    tokenizers = ("13a", "intl", "char", "zh", "none")
    for draw in draws(seed):
        options = chosen(
            draw, tokenize=tokenizers, lowercase=YES_NO, smooth_method=("exp", "floor", "add-k", "none"),
            smooth_value=(None, 0.3), max_ngram_order=(2, 3, 4, 5), effective_order=YES_NO,
        )  # fmt: skip
        beside_sacrebleu("bleu", sacrebleu.BLEU, draw, WORDS + OTHERS, **options)


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_chrf(seed):
    for draw in draws(seed):
        options = chosen(
            draw, word_order=(0, 1, 2), lowercase=YES_NO, char_order=(3, 6), beta=(1, 2, 3), whitespace=YES_NO,
            eps_smoothing=YES_NO,
        )  # fmt: skip
        beside_sacrebleu("chrf", sacrebleu.CHRF, draw, WORDS + OTHERS, **options)


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_ter(seed):
    for draw in draws(seed):
        options = chosen(draw, normalized=YES_NO, no_punct=YES_NO, asian_support=YES_NO, case_sensitive=YES_NO)
        beside_sacrebleu("ter", sacrebleu.TER, draw, WORDS + OTHERS, **options)


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_rouge(seed):
    """Where each letter outside of ASCII is replaced by one of its own in ASCII, all tokenizers agree."""
    scorers = {stem: rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"], stem) for stem in YES_NO}
    alphabet = str.maketrans("абвгдежз", "qwertyui")
    for draw in draws(seed):
        options = {"stemmer": False, "tokenize": "ascii", **chosen(draw, stemmer=YES_NO)}
        if in_cyrillic := draw.random() < 0.5:
            options |= {"stemmer": False, "tokenize": draw.choice(("unicode", "char"))}
        words = ["аб", "вгд", "еж", "з", "жзаб", "1994", "!"] if in_cyrillic else [*WORDS, "\n", "für"]
        predictions, references = texts(draw, words)
        theirs = collections.Counter()
        for prediction, row in zip(predictions, references):
            found = scorers[options["stemmer"]].score_multi(
                [one.translate(alphabet) for one in row], prediction.translate(alphabet)
            )
            theirs.update({name: 100 * one.fmeasure / len(predictions) for name, one in found.items()})
        same(score("rouge", predictions, references, sentences="lines", **options), dict(theirs))


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_span_f1(seed):
    """seqeval's strict mode, and its rules of conlleval; BILOU by those of IOBES, with the letters that it knows."""
    as_iobes = str.maketrans("LU", "ES")
    for draw in draws(seed):
        scheme = draw.choice(("IOB1", "IOB2", "IOE1", "IOE2", "IOBES", "BILOU"))
        tags = ["O", "O", *(f"{prefix}-{kind}" for prefix in scheme.rstrip("12") if prefix != "O" for kind in "XY")]
        gold = [draw.choices(tags, k=draw.randint(1, 9)) for _ in range(3)]
        found = [[tag if draw.random() < 0.7 else draw.choice(tags) for tag in row] for row in gold]
        ours = score("span_f1", found, gold, scheme=scheme, strict=(strict := draw.random() < 0.5))
        options = {"mode": "strict", "scheme": getattr(schemes, scheme)} if strict else {}
        if not strict:
            gold, found = ([[t[0].translate(as_iobes) + t[1:] for t in row] for row in of] for of in (gold, found))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = [
                function(gold, found, zero_division=0, **options)
                for function in (seqeval.precision_score, seqeval.recall_score, seqeval.f1_score)
            ]
        same(list(ours.values()), theirs)


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_f1_of_a_label_and_averages(seed):
    for draw in draws(seed):
        labels = ["neg", "neu", "pos", "off"][: draw.randint(2, 4)]
        gold, found = (draw.choices(labels[: draw.randint(1, 4)], k=draw.randint(1, 12)) for _ in range(2))
        gold, found = gold[: len(found)], found[: len(gold)]
        positive = draw.choice(labels)
        theirs = sklearn.metrics.f1_score(gold, found, labels=[positive], average="macro", zero_division=0)
        same(score("f1", found, gold, labels=labels, positive=positive)["f1"], theirs)
        for average in ("macro", "micro", "weighted"):
            given = chosen(draw, labels=(labels,))
            theirs = sklearn.metrics.f1_score(gold, found, average=average, zero_division=0, **given)
            same(score(f"{average}_f1", found, gold, **given)[f"{average}_f1"], theirs)
        given = {"labels": labels} if draw.random() < 0.5 else {}
        theirs = sklearn.metrics.f1_score(gold, found, average="macro", zero_division=0, **given)
        accuracy = sklearn.metrics.accuracy_score(gold, found)
        same(score("cb", found, gold, **given), {"accuracy": accuracy, "macro_f1": theirs})
        rows = np.array([[draw.random() < 0.5 for _ in range(3)] for _ in range(8)], int)
        for average in ("macro", "micro", "weighted"):
            theirs = sklearn.metrics.f1_score(rows[:4], rows[4:], average=average, zero_division=0)
            same(score(f"{average}_f1", rows[4:], rows[:4])[f"{average}_f1"], theirs)


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_exact_match(seed):
    """The rules of Hugging Face's exact_match, on arrays of texts as there."""
    for draw in draws(seed):
        gold = [text(draw, longest=2) for _ in range(6)]
        changes = (str.lower, str.strip, lambda one: f"{one}.", lambda one: one.replace("9", ""), str.upper)
        found = [draw.choice((str, *changes))(one) for one in gold]
        options = chosen(draw, ignore_case=YES_NO, ignore_punctuation=YES_NO, ignore_numbers=YES_NO)
        arrays = np.array(found), np.array(gold)
        if options.get("ignore_case"):
            arrays = [np.char.lower(one) for one in arrays]
        for key, characters in (("ignore_punctuation", string.punctuation), ("ignore_numbers", string.digits)):
            if options.get(key):
                arrays = [np.char.translate(one, str.maketrans("", "", characters)) for one in arrays]
        same(score("exact_match", found, gold, **options)["exact_match"], float(np.mean(arrays[0] == arrays[1])))


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_squad_by_the_rules_of_squad_and_mlqa(seed):
    """Written after the published rules, a step a line: lower case, punctuation, articles, words; best of the golds."""
    articles = {
        "squad": "a an the", "en": "a an the", "de": "ein eine einen einem eines einer der die das den dem des",
        "es": "un una unos unas el la los las", "vi": "của là cái chiếc những",
    }  # fmt: skip
    every_p = "".join(c for c in map(chr, range(sys.maxunicode)) if unicodedata.category(c)[0] == "P")

    def words(answer, rules):
        marks = string.punctuation if rules == "squad" else string.punctuation + every_p
        answer = "".join(c for c in answer.lower() if c not in marks)
        if rules == "ar":
            answer = answer.replace("ال", " ")
        if rules == "zh":
            answer = "".join(f" {c} " if "\u4e00" <= c <= "\u9fa5" else c for c in answer)
        for article in articles.get(rules, "").split():
            answer = re.sub(rf"\b{article}\b", " ", answer)
        return answer.split()

    for draw in draws(seed):
        vocabulary = [*WORDS, *OTHERS, "كتاب", "der", "die", "«", "los", "2008年"]
        vocabulary = draw.sample(vocabulary, 8)
        golds = [[text(draw, vocabulary, 4) for _ in range(draw.randint(1, 3))] for _ in range(5)]
        found = [draw.choice((draw.choice(row).upper(), text(draw, vocabulary, 4))) for row in golds]
        rules = draw.choice(("squad", "ar", "de", "en", "es", "hi", "vi", "zh"))
        exact, f1 = 0.0, 0.0
        for prediction, row in zip(found, golds):
            said, right = words(prediction, rules), [words(gold, rules) for gold in row]
            exact += any(said == gold for gold in right) / 5
            common = [sum((collections.Counter(said) & collections.Counter(gold)).values()) for gold in right]
            f1 += max(2 * n / (len(said) + len(gold)) if n else 0.0 for n, gold in zip(common, right)) / 5
        for metric in ("squad", "natural_questions", "web_questions"):
            same(score(metric, found, golds, normalization=rules), {"exact_match": 100 * exact, "f1": 100 * f1})
        ours = score("squad_v2", found, [[gold for gold in row if words(gold, rules)] or ["x"] for row in golds],
                     normalization=rules)  # fmt: skip
        if all(words(gold, rules) for row in golds for gold in row):
            same([ours["exact"], ours["f1"]], [100 * exact, 100 * f1])
