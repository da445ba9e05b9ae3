"""Settings of objectives that cannot be right are refused with the reason, before a text is read."""

from pathlib import Path

import pytest

from jaxpt import cli
from jaxpt.config import ObjectiveConfig, build
from jaxpt.config.kinds import resolve
from jaxpt.data import checks, datasets
from jaxpt.data.tokenizers import planned
from jaxpt.errors import UserError
from jaxpt.objectives.unilm import KINDS as KINDS_OF_MASKS
from tests import families, fine_tuning

RECIPE = str(Path(__file__).parents[2] / "configs" / "smoke" / "t5_tiny.yaml")
XLNET = {"kind": "xlnet", "vocab_size": 200, "layers": 1, "embed_dim": 32, "heads": 4, "mlp_dim": 64}
# Family at toy size, what its model needs besides, keys without which the objective is refused.
KINDS = {
    "masked_lm": ("bert", {}, {}),
    "span_boundary": ("bert", {}, {}),
    "replaced_token": ("bert", {"kind": "electra"}, {"generator": {"layers": 1}}),
    "unilm": ("bert", {"token_types": 6}, {}),
    "translation_lm": ("bert", {}, {}),
    "distillation": ("bert", {}, {"teacher": "runs/teacher"}),
    "permutation_lm": ("bert", {}, {"memory": False}),
    "causal_lm": ("gpt2", {}, {}),
    "prefix_lm": ("gpt2", {}, {}),
    "fill_in_the_middle": ("gpt2", {}, {}),
    **{kind: ("t5", {}, {}) for kind in ("span_corruption", "denoising", "bart", "mbart", "mass", "ul2",
                                         "salient_spans", "seq2seq")},
}  # fmt: skip
NUMBERS = {
    ("masked_lm", "span_boundary", "replaced_token", "unilm", "translation_lm"): {
        "mask_rate": (0.0, 1.0, -1.0), "mask_probability": (-1.0, 1.1), "random_probability": (-1.0, 1.1),
        "max_predictions": (0, -1, 31), "span_end": (0.0, 1.0), "max_words": (0,), "dupe_factor": (0,),
        "short_probability": (-0.1, 1.1),
    },
    ("masked_lm", "span_boundary", "replaced_token", "unilm", "translation_lm", "distillation"): {
        "frequency_exponent": (-2.1, 2.1),
    },
    ("unilm",): {"bidirectional": (-1.0,), "left_to_right": (-1.0,), "run_probability": (-1.0, 1.1)},
    ("span_boundary",): {"max_span": (0,), "position_dim": (0, -1)},
    ("replaced_token",): {"discriminator_weight": (0.0, -1.0)},
    ("distillation",): {"temperature": (0.0, -1.0), "kl_weight": (-1.0,), "cosine_weight": (-1.0,)},
    ("permutation_lm",): {
        "num_predict": (0, 30), "max_ngram": (0,), "context": (0,), "reuse_length": (0, 28, 32),
        "permutation_size": (0, 17),
    },
    ("fill_in_the_middle",): {"rate": (-1.0, 1.1), "spm_rate": (-1.0, 1.1)},
    ("span_corruption",): {"density": (0.0, 1.0, -1.0), "mean_span": (0.0, 0.5, -1.0)},
    ("denoising",): {
        "density": (0.0, 1.0, -1.0), "random_probability": (-1.0, 1.1), "reserved_ids": (-1,), "targets_length": (0, 3),
    },
    ("bart", "mbart"): {
        "mask_rate": (1.0, -1.0), "poisson_lambda": (0.0, 33.0), "permute_sentences": (-1.0, 1.1),
        "insert_rate": (1.0, -1.0), "rotate": (-1.0, 1.1), "random_probability": (-1.0, 1.1),
    },
    ("mass",): {
        "share": (0.0, 1.1, -1.0), "start_probability": (-1.0, 1.1), "mask_probability": (-1.0, 1.1),
    },
    ("salient_spans",): {"targets_length": (0, 1)},
    ("seq2seq",): {"targets_length": (0, -1), "label_smoothing": (-0.1, 1.0)},
}  # fmt: skip
NAN = float("nan")
TOGETHER = [  # settings that do not go together, and what is said
    ("masked_lm", {"mask_probability": 0.6, "random_probability": 0.6}, "is more than 1"),
    ("masked_lm", {"mask_probability": 0.0, "random_probability": 0.0}, "the inputs would contain every target"),
    ("masked_lm", {"sentence_order": True}, "set objective.next_sentence=false"),
    ("replaced_token", {"next_sentence": True}, "objective.next_sentence: wants one of False, got true"),
    ("replaced_token", {"sentence_order": True}, "objective.sentence_order: wants one of False, got true"),
    ("mass", {"mask_probability": 0.6, "random_probability": 0.6}, "is more than 1"),
    ("mass", {"start_probability": 0.6, "end_probability": 0.6}, "is more than 1"),
    ("mass", {"mask_probability": 0.0, "random_probability": 0.0}, "the encoder would see the targets"),
    ("unilm", dict.fromkeys(KINDS_OF_MASKS, 0.0) | {"next_sentence": False}, "all four rates are 0"),
    ("bart", {"permute_sentences": 0.0, "mask_rate": 0.0}, "has no noise"),
    ("causal_lm", {"reset_at_documents": True, "separator": False}, "set objective.separator=true"),
    ("ul2", {"denoisers": []}, "denoisers"),
    *(("ul2", {"denoisers": [{"mode": "NLU", "density": density, "mean_span": span}]}, f"denoisers.0.{key}: wants a")
      for key, density, span in (("density", 0.0, 3.0), ("density", 1.0, 3.0), ("density", -1.0, 3.0),
                                 ("density", NAN, 3.0), ("mean_span", 0.15, 0.0), ("mean_span", 0.15, NAN))),
]  # fmt: skip
TOY = {"vocab_size": 200, "layers": 1, "embed_dim": 32}
UNFIT = [  # models of the right family that lack what an objective asks of them, and what is said
    ("prefix_lm", TOY | {"kind": "awd_lstm"}, "awd_lstm does not support objective.kind: prefix_lm: its decode has no"),
    ("masked_lm", TOY | {"kind": "elmo", "cells": 16}, "model.kind: elmo has no masked-LM head, which objective.kind"),
    ("masked_lm", {"kind": "word_vectors", "vocab_size": 200, "embed_dim": 32}, "word_vectors has no masked-LM head"),
]
SENTINELS = {  # with so few of them
    "span_corruption": 1, "denoising": 9, "ul2": 4, "fill_in_the_middle": 2, "bart": 0, "mbart": 0, "mass": 0,
}  # fmt: skip


def config(kind, length=32, model=None, tokenizer=None, **settings):
    family, of_model, needed = KINDS[kind]
    own = {"kind": "sentencepiece" if kind == "fill_in_the_middle" else families.TOKENIZERS[family]}
    tree = families.tree(
        family,
        model=of_model,
        objective={"kind": kind, **needed, **settings},
        data={"length": length, "path": "nowhere.txt", "tokenizer": tokenizer or own,
              **({"language": "de_DE"} if kind == "mbart" else {}),
              **({"path": "nowhere.jsonl", "fields": ["en", "de"]} if kind == "translation_lm" else {})},
    )  # fmt: skip
    return build(tree | {"model": model or (XLNET if kind == "permutation_lm" else tree["model"])})


def refused(kind, **settings):
    """What is said, in one line, of settings that are refused: when the recipe is read, or by the check before data."""
    with pytest.raises(UserError) as caught:
        made = config(kind, **settings)
        made.objective.check(made.model, made.data.length, planned(made.data.tokenizer, made.model.vocab_size))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_out_of_range(kind):
    made = config(kind)
    made.objective.check(made.model, 32, planned(made.data.tokenizer, 200))
    for names, settings in NUMBERS.items():
        for name, values in settings.items() if kind in names else ():
            for value in (*values, float("nan"), float("inf")):
                assert name in refused(kind, **{name: value}), (name, value)
    for value in (-1.0, float("nan"), float("inf")):
        assert "objective.z_loss: wants a" in refused(kind, z_loss=value)
    for length in (0, -1):
        assert "data.length: wants a number above 0" in refused(kind, length=length)
    if kind != "causal_lm":
        assert "data.length: 1 is too short" in refused(kind, length=1)


def test_every_number_is_tried():
    """A new hyperparameter of an objective comes into the table above, with values that it refuses."""
    known = {(kind, name) for kinds, settings in NUMBERS.items() for kind in kinds for name in settings}
    for kind in KINDS:
        own = resolve(kind, "jaxpt.objectives", ObjectiveConfig).model_fields
        for name, field in own.items():
            if "float" in str(field.annotation) and name != "z_loss":
                free = {"unilm": ("sequence_to_sequence", "right_to_left"), "mass": ("end_probability",
                        "random_probability"), "distillation": ("task_weight",)}.get(kind, ())  # fmt: skip
                assert (kind, name) in known or name in free, (kind, name)


def test_settings_that_do_not_go_together():
    for kind, settings, said in TOGETHER:
        assert said in refused(kind, **settings), (kind, settings)


def test_models_that_lack_what_an_objective_needs():
    for kind, model, said in UNFIT:
        assert said in refused(kind, model=model), kind


@pytest.mark.parametrize("kind", SENTINELS)
def test_more_sentinels_than_the_vocabulary_has(kind):
    said = refused(kind, tokenizer={"kind": "sentencepiece", "extra_ids": SENTINELS[kind]})
    assert "sentinels" in said and "data.tokenizer" in said


@pytest.mark.parametrize("kind", ["masked_lm", "unilm", "translation_lm", "permutation_lm", "span_corruption", "bart"])
def test_vocabularies_without_the_tokens_that_it_needs(kind):
    wrong = "bpe" if KINDS[kind][0] == "bert" else "wordpiece"
    assert "needs a vocabulary with" in refused(kind, tokenizer={"kind": wrong})


@pytest.mark.parametrize("kind", KINDS)
def test_models_of_another_family(kind):
    """Before a file is opened: the path does not exist."""
    for other in {"bert", "gpt2", "t5"} - {KINDS[kind][0]}:
        model = families.MODELS[other]
        with pytest.raises(UserError, match=rf"{kind} requires a model of family \w+, but model.kind: {other} is of"):
            datasets.prepare(config(kind, model=model), save=False)


def test_a_command_ends_with_one_line_and_makes_nothing(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("A text. Another one.\n" * 50, "utf-8")
    settings = [f"data.path={text}", f"data.cache_dir={tmp_path}/cache", f"run_dir={tmp_path}/run"]
    for command, bad, said in (
        ("train", "objective.density=1", "objective.density: wants a number below 1"),
        ("train", "data.tokenizer.extra_ids=2", "raise objective.mean_span or data.tokenizer.extra_ids"),
        ("inspect", "data.length=3", "data.length: 3 is too short"),
    ):
        code = cli.main([command, RECIPE, *settings, bad])
        captured = capsys.readouterr()
        assert code == 2 and said in captured.err and captured.err.count("\n") == 1, captured
        assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ({"class_weights": [1, 2, 3]}, r"objective\.class_weights: wants one for each of 2 labels, got 3"),
        ({"stride": 4}, r"objective\.stride: is of the windows of long texts; set task\.windows to mean or max"),
        ({"lm_loss": 0.5}, r"objective\.lm_loss: is for decoders; model\.kind: bert is of family encoder"),
    ],
)
def test_settings_of_heads_are_looked_at_before_a_vocabulary_is_read(objective, words, tmp_path, monkeypatch):
    config = fine_tuning.recipe(tmp_path, objective=objective)
    monkeypatch.setattr(checks.vocabulary_files, "find", lambda *_: pytest.fail("a vocabulary was looked for"))
    with pytest.raises(UserError, match=words):
        checks.check(config)
