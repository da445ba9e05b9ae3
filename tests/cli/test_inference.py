"""Settings of search and sampling on the command line."""

import dataclasses
import shlex

import pytest

from jaxpt import cli
from jaxpt.decode.options import ANSWER_TOKENS, Options

OF_THE_MODEL = {"first_sentinel", "scores"}
"""What no flag sets: an id that the model's vocabulary has, and an output."""
WORDS = """
  --max-new-tokens 9 --min-new-tokens 1 --min-length 2 --temperature 0.7 --top-k 5 --top-p 0.9 --min-p 0.1
  --typical-p 0.8 --repetition-penalty 1.2 --presence-penalty -0.5 --frequency-penalty 0.5 --no-repeat-ngram 3
  --bad-words '5;7,8' --forced-first 3 --forced-last 2,4 --suppress 6 --suppress-first 9,10 --eos 2,7 --beams 1
  --length-penalty 1 --early-stopping false --samples 2 --seed 4 --stop x --stop y
"""


def flags():
    arguments = vars(cli.parser().parse(["generate", "run", *shlex.split(WORDS)]))
    return {name: value for name, value in arguments.items() if name in {f.name for f in dataclasses.fields(Options)}}


def test_each_setting_has_a_flag_that_the_options_take():
    given = flags()
    assert given.keys() == {field.name for field in dataclasses.fields(Options)} - OF_THE_MODEL
    options = Options(**given)
    assert (options.bad_words, options.forced_last, options.suppress_first) == (((5,), (7, 8)), (2, 4), (9, 10))
    assert (options.eos, options.stop, options.early_stopping, options.typical_p) == ((2, 7), ("x", "y"), False, 0.8)
    text = cli.parser().parse(["generate", "run"])
    assert not vars(text).keys() & given.keys(), "what is not given is the options' default"


@pytest.mark.parametrize(("command", "default"), [("generate", Options().max_new_tokens), ("chat", ANSWER_TOKENS)])
def test_help_has_the_defaults_of_the_command(command, default, capsys):
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert f"--max-new-tokens N tokens at most, as far as the model's positions go ({default})" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--early-stopping", "maybe"), "argument --early-stopping: expected true, false or never, got 'maybe'"),
        (("--bad-words", "5;x"), "argument --bad-words: expected ids such as 2,7, got 'x'"),
        (("--forced-first", "x"), "argument --forced-first: invalid int value: 'x'"),
    ],
)
def test_what_is_no_setting_is_refused(words, said, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["generate", "run", *words])
    assert ended.value.code == 2 and said in capsys.readouterr().err
