"""The languages of mBART's models, with those of transformers as oracle."""

import json

import pytest
import tokenizers as rust

import jaxpt
from jaxpt.cli import main
from jaxpt.data import tokenizers
from jaxpt.errors import UserError
from jaxpt.hf.generation import Generation
from jaxpt.inference import languages
from jaxpt.objectives.formats import Languages
from tests.hf.parity import randomise
from tests.inference.helpers import directory

NAMES = ("de_DE", "en_XX", "ro_RO")
PIECES = ("<s>", "<pad>", "</s>", "<unk>", "▁", "▁the", "▁cat", *NAMES, "<mask>")
DE, EN, RO = map(PIECES.index, NAMES)


@pytest.fixture
def read(tmp_path):
    """Reads a vocabulary with three languages and these keys of tokenizer_config.json."""

    def make(around=None, **settings):
        tokenizer = rust.Tokenizer(rust.models.Unigram([(piece, -1.0) for piece in PIECES], unk_id=3))
        tokenizer.add_special_tokens([piece for piece in PIECES if not piece.startswith("▁")])
        if around is not None:
            special = [(name, PIECES.index(name)) for name in around.split() if name != "$A"]
            tokenizer.post_processor = rust.processors.TemplateProcessing(single=around, special_tokens=special)
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        return tokenizers.load(tmp_path)

    return make


CLASS, CLASS_50, ANY = ({"tokenizer_class": name} for name in ("MBartTokenizer", "MBart50TokenizerFast", "X"))


@pytest.mark.parametrize(
    ("around", "settings", "generation", "named", "wanted"),
    [
        (None, CLASS, Generation(decoder_start=RO), (None, None), Languages(EN, RO)),
        (None, CLASS | {"src_lang": "de_DE"}, Generation(decoder_start=RO), (None, None), Languages(DE, RO)),
        (None, CLASS | {"src_lang": ["de_DE"]}, Generation(decoder_start=RO), (None, None), Languages(EN, RO)),
        (None, CLASS, Generation(decoder_start=RO), ("ro_RO", "de_DE"), Languages(RO, DE)),
        (None, CLASS, Generation(), (None, None), None),
        (None, CLASS | {"tgt_lang": "de_DE"}, Generation(), (None, None), Languages(EN, DE)),
        (None, CLASS_50, Generation(decoder_start=2), (None, "ro_RO"), Languages(EN, RO, True)),
        (None, CLASS_50, Generation(options={"forced_first": EN}), ("ro_RO", None), Languages(RO, EN, True)),
        (None, ANY, Generation(decoder_start=RO), (None, None), Languages(RO, RO)),
        ("$A </s> de_DE", ANY, Generation(decoder_start=RO), (None, None), Languages(DE, RO)),
        ("de_DE $A </s>", ANY, Generation(), (None, "ro_RO"), Languages(DE, RO, True)),
    ],
)  # fmt: skip
def test_named_languages_count_before_those_of_files(around, settings, generation, named, wanted, read):
    assert languages.choose(read(around, **settings), generation, *named, denoises=False) == wanted


def test_a_run_reads_the_language_that_it_writes(read):
    """Its texts were noise on texts of that language, whatever the vocabulary's files say."""
    tokenizer = read("en_XX $A </s>", **CLASS_50)
    assert languages.choose(tokenizer, Generation(), None, "de_DE", denoises=True) == Languages(DE, DE)


def test_languages_that_are_not_there(read):
    with pytest.raises(UserError, match=r"^source_language: the vocabulary has no language 'ro'; .*ro_RO"):
        languages.choose(read(**CLASS), Generation(), "ro", None, denoises=False)
    with pytest.raises(UserError, match=r"^target_language: the vocabulary has no language \['ro_RO'\]"):
        languages.choose(read(**CLASS), Generation(), None, ["ro_RO"], denoises=False)
    with pytest.raises(UserError, match=r"^source_language, target_language: are for mBART; objective.kind: span_corr"):
        jaxpt.load(directory("t5"), target_language="de_DE")


SIZES = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 32, "vocab_size": 80,
}  # fmt: skip


@pytest.mark.parity
@pytest.mark.parametrize("name", ["MBartTokenizer", "MBart50Tokenizer"])
def test_transformers_reads_and_writes_the_same(name, tmp_path):
    """Both the encoder's input and what is generated, by the files' languages and by others."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    is_first = name == "MBart50Tokenizer"
    theirs = getattr(transformers, name)(src_lang="de_DE")
    start, german, romanian = theirs.convert_tokens_to_ids(["</s>", "de_DE", "ro_RO"])
    config = transformers.MBartConfig(**SIZES, scale_embedding=True)
    model = randomise(transformers.MBartForConditionalGeneration(config), 0)
    model.generation_config.decoder_start_token_id = start if is_first else romanian
    model.generation_config.forced_bos_token_id = romanian if is_first else None
    theirs.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for source, target, options in (
        (None, None, {}), ("ro_RO", "de_DE", {"forced_bos_token_id" if is_first else "decoder_start_token_id": german}),
    ):  # fmt: skip
        ours = jaxpt.load(tmp_path, source_language=source, target_language=target)
        theirs.src_lang = source or "de_DE"
        inputs = theirs(" the", return_tensors="pt")
        assert ours.prompt_ids(" the").encoder == inputs["input_ids"][0].tolist()
        with torch.no_grad():
            (wanted,) = model.generate(**inputs, max_new_tokens=6, num_beams=1, do_sample=False, **options).tolist()
        prompt = ours.prompt_ids(" the").tokens
        ((completion,),) = ours.generate([" the"], max_new_tokens=7 - len(prompt))
        assert [*prompt, *completion.tokens] == wanted


def test_the_commands_name_languages(capsys, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "a cat"}\n')
    task = {"form": "loglikelihood_rolling", "text": "{{ text }}", "data": {"path": "rows.jsonl"}}
    (tmp_path / "task.yaml").write_text(json.dumps(task))
    of_tasks = ["--tasks", str(tmp_path / "task.yaml"), "--out", str(tmp_path / "out")]
    for command, words in (("generate", ["--prompt", "a"]), ("eval", of_tasks)):
        assert main([command, str(directory("t5")), *words, "--source-language", "de_DE"]) == 2
        assert "source_language, target_language: are for mBART" in capsys.readouterr().err
    assert main(["eval", "run", "--source-language", "de_DE"]) == 2
    assert capsys.readouterr().err == "jaxpt: --source-language: is for --tasks: give both\n"
