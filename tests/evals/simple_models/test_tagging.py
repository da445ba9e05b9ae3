"""Taggers by counts: most frequent tags, and logistic regression on features of words."""

import doctest
import random

import numpy as np
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import SGDClassifier

from jaxpt import metrics
from jaxpt.data.tasks.tagging import TaggingTask
from jaxpt.evals.simple_models import tagging
from tests.evals.simple_models.helpers import candidates, splits_of

LEXICON = {"the": "O", "Ada": "B-PER", "Lovelace": "I-PER", "Paris": "B-LOC", "saw": "O", "re-read": "O", "1843": "O"}
TASK = TaggingTask(labels=("O", "B-PER", "I-PER", "B-LOC"), scheme="none")


def rows(count, seed):
    draw = random.Random(seed)
    sentences = [draw.choices(list(LEXICON), k=draw.randint(1, 9)) for _ in range(count)]
    return [{"tokens": words, "tags": [LEXICON[word] for word in words]} for words in sentences]


def splits(seed=0):
    return splits_of(TASK, seed, train=rows(80, 0), validation=rows(20, 1))


def test_examples_in_docstrings():
    assert doctest.testmod(tagging).failed == 0


def test_each_words_most_frequent_tag_scores_as_the_baseline_of_the_metrics():
    found = splits()
    (candidate,) = candidates(tagging.MODELS, "most_frequent_tag", found).values()
    words = tagging.words_of(found)
    known = {"train_words": words["train"], "words": words["validation"]}
    expected = metrics.majority("tag_accuracy", found.targets["train"], found.targets["validation"], **known)
    predicted = candidate.predictions["validation"]
    assert metrics.score("tag_accuracy", predicted, found.targets["validation"]) == expected


def test_logistic_regression_is_that_of_a_pipeline():
    """The features are written out again, in another form: a dictionary for each word."""
    found = splits(seed=3)
    words = tagging.words_of(found)

    def features(sentence):
        edged = ["<", "<", *(word.lower() for word in sentence), ">", ">"]
        for n, plain in enumerate(sentence, 2):
            low = edged[n]
            of_word = {f"word={low}", f"-2={edged[n - 2]}", f"-1={edged[n - 1]}", f"+1={edged[n + 1]}"}
            of_word |= {f"+2={edged[n + 2]}", f"-1ends={edged[n - 1][-3:]}", f"+1ends={edged[n + 1][-3:]}"}
            of_word |= {f"begins={low[:k]}" for k in (1, 2, 3) if len(low) >= k}
            of_word |= {f"ends={low[-k:]}" for k in (1, 2, 3, 4) if len(low) >= k}
            signs = [n == 2, plain[0].isupper(), plain.isupper(), any(c.isdigit() for c in plain), "-" in plain]
            names = ("is_first", "is_capital", "is_upper", "has_digit", "has_hyphen")
            yield dict.fromkeys([*of_word, *(name for name, has in zip(names, signs) if has)], 1)

    vectors = DictVectorizer()
    x = vectors.fit_transform([f for sentence in words["train"] for f in features(sentence)])
    x.indices, x.indptr = x.indices.astype(np.int32), x.indptr.astype(np.int32)
    tags = [tag for sentence in found.targets["train"] for tag in sentence]
    by_setting = candidates(tagging.MODELS, "affixes_logistic", found)
    assert list(by_setting) == ["α=1e-06", "α=1e-05"]
    for alpha, candidate in zip((1e-6, 1e-5), by_setting.values()):
        options = {"learning_rate": "constant", "eta0": 0.5, "average": True, "max_iter": 5, "tol": None}
        model = SGDClassifier(loss="log_loss", alpha=alpha, random_state=3, **options).fit(x, tags)
        for sentence, predicted in zip(words["validation"], candidate.predictions["validation"], strict=True):
            assert predicted == model.predict(vectors.transform(list(features(sentence)))).tolist()
        assert candidate.features == x.shape[1]
