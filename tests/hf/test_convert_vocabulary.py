"""What `jaxpt import` and `jaxpt export` make of a vocabulary that is damaged, too large, or says too little."""

import json
import shutil

import pytest

from jaxpt import config as configs
from jaxpt import hf
from jaxpt.cli import main
from jaxpt.data import tokenizers
from jaxpt.data.chat_template import BUILT_IN
from jaxpt.hf import convert, origin
from jaxpt.inference import opening
from tests.data.tokenizers.test_tokenizers import roberta
from tests.hf.test_convert import source, texts  # noqa: F401 (fixtures)
from tests.hf.test_directory import fresh
from tests.hf.test_peft import made
from tests.models.helpers import EVERY

SPECIAL = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"


@pytest.fixture
def bert(source, tmp_path):  # noqa: F811
    """A BERT of 60 ids in Hugging Face's form, without a vocabulary."""
    vocabulary = shutil.ignore_patterns("checksums.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt")
    return shutil.copytree(source("bert")[0], tmp_path / "hf", ignore=vocabulary)


def test_a_vocabulary_that_does_not_say_its_case(bert, tmp_path, capsys):
    (bert / "vocab.txt").write_text(SPECIAL + "the\ncat\n")
    assert main(["import", str(bert), str(tmp_path / "run")]) == 0
    assert f"vocabulary: {bert / 'vocab.txt'}: no tokenizer_config.json says do_lower_case; assumed that it folds" in (
        capsys.readouterr().out
    )
    assert configs.load(tmp_path / "run").data.tokenizer.lowercase
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    exported = tokenizers.load(tmp_path / "out")  # which says it
    assert exported.lowercase and exported.assumed is None and exported.encode("THE cat") == [5, 6]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("vocab.txt", SPECIAL + "".join(f"w{i}\n" for i in range(60)), "65 token ids, but model.vocab_size is 60"),
        ("spiece.model", "", "spiece.model: is empty; wants a sentencepiece file"),
        ("vocab.txt", "", "vocab.txt: is empty; wants a wordpiece file"),
    ],
)
def test_a_vocabulary_that_is_too_large_or_empty(bert, tmp_path, capsys, name, content, words):
    (bert / name).write_text(content)
    assert main(["import", str(bert), str(tmp_path / "run")]) == 0
    assert f"vocabulary: copied, but not usable for training in jaxpt: {bert}" in (out := capsys.readouterr().out)
    assert words in out
    if content:
        assert main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 2
        assert words in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_damaged_vocabulary_is_not_exported(bert, tmp_path, capsys):
    (bert / "vocab.txt").write_text(SPECIAL + "the\ncat\n")
    assert main(["import", str(bert), str(tmp_path / "run")]) == 0
    damaged = tmp_path / "run" / "tokenizer" / "vocab.txt"
    damaged.write_text(SPECIAL + "the\nbat\n")
    capsys.readouterr()
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith(f"jaxpt: {damaged}: is altered")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "run"]
    assert main(["tokenizer", "inspect", str(damaged.parent)]) == 2


def test_what_stands_beside_a_vocabulary_is_carried(bert, tmp_path, capsys):
    """Added tokens, special tokens and options: of the run, and of the export, which has the files as they were."""
    files = {
        "vocab.txt": SPECIAL + "schon\nschön\na\n",
        "tokenizer_config.json": '{"do_lower_case": true, "strip_accents": false}',
        "added_tokens.json": '{"<ent>": 8}',
        "special_tokens_map.json": '{"sep_token": "[SEP]", "mask_token": null}',
    }
    for name, content in files.items():
        (bert / name).write_text(content, "utf-8")
    assert main(["import", str(bert), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    for folder in (bert, tmp_path / "run" / "tokenizer", tmp_path / "out"):
        ours = tokenizers.load(folder)
        assert ours.encode("Schön <ent> a") == [6, 8, 7] and ours.vocabulary.mask is None, folder
    for name in ("vocab.txt", "added_tokens.json", "special_tokens_map.json"):
        assert (tmp_path / "out" / name).read_text("utf-8") == files[name]
    (bert / "added_tokens.json").write_text('{"<ent>": 20}')
    assert main(["import", str(bert), str(tmp_path / "other")]) == 0
    words = "copied, but not usable for training in jaxpt: "
    assert f"{words}{bert}: the added token '<ent>' has id 20 in its file" in capsys.readouterr().out


def test_an_adapter_brings_its_vocabulary_and_chat_template(tmp_path, capsys):
    """What the base's config.json says of it counts; without a vocabulary beside it, it is the base's."""
    made("bert", tmp_path)
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    for folder, words in ((base, "the\ncat\n"), (adapter, "a\ndog\n")):
        (folder / "vocab.txt").write_text(SPECIAL + words)
    model = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(model | {"eos_token_id": 3}))
    assert main(["import", str(adapter), str(tmp_path / "of_base")]) == 0
    assert f"vocabulary: that of the adapter's base, in {base}\n" in capsys.readouterr().out
    (adapter / "tokenizer_config.json").write_text('{"do_lower_case": true, "sep_token": "[SEP]"}')
    (adapter / "chat_template.jinja").write_text("{{ messages }}")
    assert main(["import", str(adapter), str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert f"vocabulary: the adapter's, in {adapter}; that of its base: --tokenizer {base}\n" in out
    assert main(["import", str(adapter), str(tmp_path / "named"), "--tokenizer", str(base)]) == 0
    runs = {name: tokenizers.load(tmp_path / name / "tokenizer") for name in ("of_base", "run", "named")}
    assert {name: tokenizer.tokens([5, 6]) for name, tokenizer in runs.items()} == {
        "of_base": ["the", "cat"], "run": ["a", "dog"], "named": ["the", "cat"],
    }  # fmt: skip
    assert runs["run"].chat_templates == {"default": "{{ messages }}"} and not runs["named"].chat_templates
    assert runs["run"].vocabulary.eos == runs["run"].token_id("[SEP]") == 3


def test_a_directory_of_others_names_no_code_to_run(bert, tmp_path, capsys, monkeypatch):
    (tmp_path / "lab_of_others").mkdir()
    (tmp_path / "lab_of_others" / "__init__.py").write_text("raise SystemExit('was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    (bert / "vocab.txt").write_text(SPECIAL + "the\ncat\n")
    (bert / "tokenizer_config.json").write_text(json.dumps({"kind": "lab_of_others.words"}))
    assert main(["import", str(bert), str(tmp_path / "run")]) == 0
    words = f"{bert}: tokenizer_config.json names the kind lab_of_others.words, a module; its code runs where a recipe"
    assert words in capsys.readouterr().out
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    assert main(["generate", str(bert), "--prompt", "the [MASK]"]) == 2
    assert words in capsys.readouterr().err


STARTS = {
    "t5": ("span_corruption", {"decoder_start": 0}),
    "t5, mass": ("mass", {"decoder_start": 1}),
    "t5, pad 1": ("seq2seq", {"decoder_start": 1}),
    "bart": ("bart", {"decoder_start": 2, "forced_bos": 0, "forced_eos": 2}),
    "bart, seq2seq": ("seq2seq", {"decoder_start": 1, "forced_eos": 2}),
}
"""{case: (objective, ids that its export has)}; of RoBERTa's vocabulary <s> is 0, <pad> 1 and </s> 2."""


@pytest.mark.parametrize("case", STARTS)
def test_an_exported_decoder_starts_as_in_training(case, source, texts, tmp_path):  # noqa: F811
    """As the objective began, not as models of its family do."""
    kind, ids = STARTS[case]
    directory = tmp_path / "hf"
    if case in ("t5", "t5, mass"):
        shutil.copytree(source("t5")[0], directory)
    else:
        hf.save(directory, *fresh(EVERY[case.partition(",")[0]](vocab_size=310)))
        roberta(directory, texts)
    convert.import_weights(directory, tmp_path / "run", overrides=[f"objective.kind={kind}"], report=lambda line: None)
    shutil.rmtree(tmp_path / "run" / origin.FOLDER)  # as if it had been trained here from the first step on
    convert.export(tmp_path / "run", tmp_path / "out", report=lambda line: None)
    keys = json.loads((tmp_path / "out" / "config.json").read_text())
    names = ("decoder_start", "forced_bos", "forced_eos")
    assert {name: i for name in names if (i := keys.get(f"{name}_token_id")) is not None} == ids


def test_what_ends_an_answer_ends_the_texts_of_an_export(source, tmp_path):  # noqa: F811
    """Of a run on dialogues: `transformers` generates up to it, as `jaxpt generate` does."""
    directory = shutil.copytree(source("gpt2")[0], tmp_path / "hf", ignore=shutil.ignore_patterns("checksums.json"))
    tokenizer = tokenizers.add(tokenizers.load(directory), ["<|im_start|>", "<|im_end|>"])
    tokenizer.chat_templates = {"default": BUILT_IN["chatml"]}
    tokenizer.save(directory)
    eos, end = tokenizer.vocabulary.eos, tokenizer.token_id("<|im_end|>")
    run, dialogue = tmp_path / "run", ["task.kind=dialogue", "objective.kind=dialogue"]
    convert.import_weights(directory, run, overrides=dialogue, report=lambda line: None)
    written = []
    for name, keys in (("without", {}), ("with", {"eos_token_id": 7, "num_beams": 2})):
        if keys:
            (run / origin.FOLDER / origin.GENERATION).write_text(json.dumps(keys))
        convert.export(run, tmp_path / name, report=lambda line: None)
        written.append(origin.read(tmp_path / name, origin.GENERATION))
        assert list(opening.open_model(run).eos) == written[-1]["eos_token_id"]
    assert written[0]["eos_token_id"] == [eos, end] and written[1] == {"eos_token_id": [7, end], "num_beams": 2}


def test_a_model_of_a_run_says_how_long_its_texts_are(bert, tmp_path):
    """Transformers' pipelines cut texts to `model_max_length`; beyond the positions a model of theirs fails."""
    (bert / "vocab.txt").write_text(SPECIAL + "the\ncat\n")
    assert main(["import", str(bert), str(tmp_path / "run")]) == 0
    exports = {}
    for name in ("imported", "trained"):
        assert main(["export", str(tmp_path / "run"), str(tmp_path / name)]) == 0
        exports[name] = json.loads((tmp_path / name / "tokenizer_config.json").read_text())
        shutil.rmtree(tmp_path / "run" / origin.FOLDER, ignore_errors=True)  # a run that was trained has none
    limit = configs.load(tmp_path / "run").model.position_limit
    assert exports["trained"] == {"model_max_length": limit} | exports["imported"]
    assert "model_max_length" not in exports["imported"]
