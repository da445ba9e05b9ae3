import itertools
import types

import numpy as np
import pytest

from jaxpt.evals import baseline
from jaxpt.objectives.base import Baseline, batch_feature


def test_unigram_of_a_uniform_choice_is_log_of_their_number():
    targets = np.arange(16).repeat(3)
    assert baseline.unigram(16, [targets], targets[:5]) == pytest.approx(np.log(16))


def test_unigram_is_of_the_training_targets_frequencies_however_few_are_held_out():
    """The entropy of 1,000 held-out targets is at most ln 1,000, below that of the words that they are drawn from."""
    p = 1 / np.arange(1, 5001)
    p /= p.sum()
    rng = np.random.default_rng(0)
    train, held_out = (rng.choice(5000, count, p=p) for count in (400_000, 1_000))
    entropy = -(p * np.log(p)).sum()
    assert baseline.unigram(5000, np.split(train, 8), held_out) == pytest.approx(entropy, abs=0.2)
    _, counts = np.unique(held_out, return_counts=True)
    assert np.log(len(held_out)) - (counts * np.log(counts)).sum() / len(held_out) < entropy - 0.5


def test_a_verdict_has_the_unit_of_the_losses():
    squares = Baseline("constant", "pairs of words", None, lambda batches: 0.2, unit="weighted squared error")
    line = "model 0.100 weighted squared error, constant baseline 0.200: 0.100 weighted squared error below it"
    assert baseline.verdict(squares, 0.1, 0.2) == f"validation, pairs of words: {line}"


def test_unigram_reads_no_more_than_it_counts():
    def pieces():
        yield np.zeros(baseline.COUNTED, int)
        raise AssertionError("read on")

    assert baseline.unigram(2, pieces(), np.array([0])) == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize(
    ("family", "feature"), [("encoder", None), ("decoder", None), ("decoder", "forward_target_tokens")]
)
def test_unigram_leaves_out_positions_without_weight(family, feature):
    name = feature or ("masked_targets" if family == "encoder" else "decoder_target_tokens")
    trivial = Baseline("unigram", "targets", eval_mask=lambda batch, vocabulary: batch["w"], feature=feature)
    train = ({name: np.array([[1, 2, 3]]), "w": np.array([[1, 1, 0]])} for _ in itertools.count())
    held_out = [{name: np.array([[2, 0]]), "w": np.array([[1.0, 0.0]])}]
    config = types.SimpleNamespace(
        objective=types.SimpleNamespace(baseline=trivial, family=family), data=types.SimpleNamespace(batch_size=1),
        train=types.SimpleNamespace(eval_examples=None),
    )  # fmt: skip
    stream = types.SimpleNamespace(epoch=lambda *args, **kwargs: iter(held_out))
    data = types.SimpleNamespace(
        validation=types.SimpleNamespace(each=lambda: {"one": stream}), vocabulary=types.SimpleNamespace(size=4),
        train=types.SimpleNamespace(batches=lambda: train), baseline_loss=None,
    )  # fmt: skip
    n = baseline.COUNTED_BATCHES
    assert baseline.baseline(config, data) == pytest.approx(-np.log((n + 1) / (2 * n + 4)))


def batch(tokens):
    tokens = np.asarray(tokens)[None]
    return {
        "decoder_input_tokens": tokens[:, :-1],
        "decoder_target_tokens": tokens[:, 1:],
        "decoder_loss_weights": np.ones((1, tokens.shape[1] - 1)),
    }


@pytest.mark.parametrize("left", [0, 1, 4])
def test_bigram_is_a_distribution_for_seen_and_unseen_words(left):
    model = baseline.Bigram(5, [(np.array([0, 1, 0, 2]), np.array([1, 0, 2, 0]))])
    assert np.exp(-model.loss(np.full(5, left), np.arange(5))).sum() == pytest.approx(1)


def test_bigram_counts_add_up_over_pieces():
    left, right = np.random.default_rng(0).integers(0, 9, (2, 500))
    whole = baseline.Bigram(9, [(left, right)])
    pieces = baseline.Bigram(9, [(left[:123], right[:123]), (left[123:], right[123:])])
    np.testing.assert_array_equal(whole.loss(left, right), pieces.loss(left, right))


def test_an_objective_may_have_a_baseline_of_its_own():
    """It is given the validation batches of all tasks, with the rows that count."""

    def epoch(size, limit, rows):
        assert (size, limit, rows) == (2, 5, None)
        return iter([{"w": np.array([1.0, 2.0])}, {"w": np.array([4.0, 9.0])}])

    trivial = Baseline(
        "mean weight",
        "weights",
        eval_mask=lambda batch, vocabulary: batch["w"] < vocabulary,
        loss=lambda found: np.mean([(batch["w"] * batch["eval_mask"]).sum() for batch in found]),
    )
    config = types.SimpleNamespace(
        objective=types.SimpleNamespace(baseline=trivial, family="encoder"), data=types.SimpleNamespace(batch_size=2),
        train=types.SimpleNamespace(eval_examples=5),
    )  # fmt: skip
    stream = types.SimpleNamespace(epoch=epoch)
    validation = types.SimpleNamespace(each=lambda: {"one": stream, "two": stream})
    data = types.SimpleNamespace(validation=validation, vocabulary=5)
    assert baseline.baseline(config, data) == (3 + 4) / 2


def test_bigram_learns_an_order_that_unigrams_cannot():
    cycle = np.tile([1, 2, 3, 4], 200)
    loss = baseline.bigram(5, [batch(cycle)], [batch(cycle[:101])])
    assert loss < 0.05 < baseline.unigram(5, [cycle], cycle)


def test_without_held_out_targets_nothing_is_compared(monkeypatch):
    """A loss of 0 would be below any baseline."""
    monkeypatch.setattr(baseline, "batches", lambda config, data: iter([{"eval_mask": np.zeros((2, 3))}]))
    trivial = Baseline("unigram", "target tokens", None)
    setup = types.SimpleNamespace(config=types.SimpleNamespace(objective=types.SimpleNamespace(baseline=trivial)))
    evaluate = baseline.Baseline(kind="baseline").prepare(setup, None)
    result = evaluate(None, {"validation/target_loss": 0.0}, lambda: False)
    assert result.metrics == {} and result.lines == ("unigram baseline: the validation split has no target tokens",)


class Train:
    """Three rows of four tokens; batches of one row without end."""

    def __init__(self):
        self.all = [batch(np.arange(n, n + 5) % 7) for n in range(3)]

    def __len__(self):
        return len(self.all)

    def epoch(self, size):
        yield from self.all

    def batches(self):
        yield from itertools.cycle(self.all)


def bigram_run():
    """(setup, data) of a decoder whose baseline is a bigram."""
    trivial = Baseline("bigram", "all target tokens", batch_feature("decoder_loss_weights"))
    config = types.SimpleNamespace(
        objective=types.SimpleNamespace(baseline=trivial, carries=False),
        data=types.SimpleNamespace(batch_size=1),
        train=types.SimpleNamespace(eval_examples=None),
    )
    held_out = types.SimpleNamespace(epoch=lambda *args, **kwargs: iter([batch([1, 2, 3, 4, 5])]))
    data = types.SimpleNamespace(
        train=Train(), validation=types.SimpleNamespace(each=lambda: {"one": held_out}), baseline_loss=None,
        vocabulary=types.SimpleNamespace(size=7), text_per_row=4.0,
    )  # fmt: skip
    return types.SimpleNamespace(config=config), data


@pytest.mark.parametrize(("most", "rows"), [(5, 2), (8, 2), (12, 3)])
def test_a_bigram_is_counted_in_the_first_batches_of_a_large_split(monkeypatch, most, rows):
    """In a smaller one each row is counted once."""
    monkeypatch.setattr(baseline, "COUNTED_TEXT", most)
    setup, data = bigram_run()
    result = baseline.Baseline(kind="baseline").prepare(setup, data)(None, {"validation/target_loss": 0}, lambda: False)
    assert result.metrics == baseline.bigram(7, data.train.all[:rows], [batch([1, 2, 3, 4, 5])])
    note = f"; counted in {rows} training batches, about {most} tokens of text"
    assert (note in result.lines[0]) == (rows < 3) and "counted" not in result.lines[0].replace(note, "")


def test_counting_of_a_bigram_can_be_stopped():
    setup, data = bigram_run()
    answers = iter([False, True])
    evaluate = baseline.Baseline(kind="baseline").prepare(setup, data)
    assert evaluate(None, {"validation/target_loss": 0.0}, lambda: next(answers)) is None
