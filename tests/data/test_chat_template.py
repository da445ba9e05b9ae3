"""Chat templates: where they are found, what they render, and that import and export keep them."""

import datetime
import doctest
import json
from types import MappingProxyType

import pytest

from jaxpt.cli import main
from jaxpt.config import TokenizerConfig
from jaxpt.data import chat_template, tokenizers
from jaxpt.data.chat_template import ChatTemplate, check, load
from jaxpt.errors import UserError
from jaxpt.hf import convert
from tests.data.tokenizers.test_tokenizers import by_spm, topics
from tests.hf.test_convert import made, texts  # noqa: F401 (a fixture)

TEMPLATES = {
    "chatml": """\
{%- if messages[0].role != 'system' -%}
    {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' -}}
{%- endif -%}
{% for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>' + '\\n' -}}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' -}}
{% endif %}
""",
    "llama3": """\
{% set ns = namespace(system='', seen=0) %}
{% for message in messages %}
  {% if message['role'] == 'system' and loop.index0 == 0 %}
    {% set ns.system = message['content'] | trim %}
    {% continue %}
  {% endif %}
  {% set content = message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' %}
  {% set content = '<|start_header_id|>' + content %}
  {% if ns.seen == 0 %}
    {% set content = bos_token + (ns.system and '<<' + ns.system + '>>') + content %}
  {% endif %}
  {% set ns.seen = ns.seen + 1 %}
{{ content }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}""",
    "mistral": """\
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('After the optional system message, conversation roles must alternate user/assistant') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.last and system_message is defined %}
            {{- '[INST] ' + system_message + '\\n\\n' + message['content'] + '[/INST]' }}
        {%- else %}
            {{- '[INST] ' + message['content'] + '[/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {%- generation %}{{- ' ' + message['content'] + eos_token }}{%- endgeneration %}
    {%- endif %}
{%- endfor %}
""",
    "macros": """\
{%- macro turn(role, content) -%}
<{{ role }} {{ {'text': content, 'n': content | length} | tojson }}>
{%- endmacro -%}
{{ strftime_now('%Y') }}{% if tools is not none %}tools{% endif %}{{ pad_token }}{{ documents }}
{% for message in messages if message.content %}
{{ turn(message.role, message.content) }}{% if not loop.last %}, {% endif %}
{% if loop.index0 > 3 %}{% break %}{% endif %}
{% endfor %}
    {# a comment #}
  {{ messages | map(attribute='role') | join(',') }}
{{ dict(a=1) | tojson(indent=2) }}
""",
}
DIALOGUES = [
    [{"role": "user", "content": "Hi <b>&\n there "}],
    [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "größer 中 😀?"}],
    [
        {"role": "system", "content": "s"}, {"role": "user", "content": "1"}, {"role": "assistant", "content": "2 "},
        {"role": "user", "content": ""}, {"role": "assistant", "content": "4"}, {"role": "user", "content": "'5\""},
    ],
]  # fmt: skip
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


def test_examples_in_docstrings():
    assert doctest.testmod(chat_template).failed == 0


def test_what_is_rendered():
    system, dialogue = DIALOGUES[1], DIALOGUES[2]
    assert ChatTemplate(TEMPLATES["chatml"]).render(DIALOGUES[0]) == (
        "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nHi <b>&\n there<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert ChatTemplate(TEMPLATES["llama3"], tokens=TOKENS).render(system, False) == (
        "<s><<Be brief.>><|start_header_id|>user<|end_header_id|>\n\ngrößer 中 😀?<|eot_id|>\n"
    )
    assert ChatTemplate(TEMPLATES["mistral"], tokens=TOKENS).render(dialogue) == (
        "<s>[INST] 1[/INST] 2 </s>[INST] [/INST] 4</s>[INST] s\n\n'5\"[/INST]"
    )
    year = datetime.datetime.now().year
    assert ChatTemplate(TEMPLATES["macros"], tokens=TOKENS).render(DIALOGUES[0], pad_token="P") == (
        f'{year}PNone\n<user {{"text": "Hi <b>&\\n there ", "n": 15}}>  user\n{{\n  "a": 1\n}}'
    )


@pytest.mark.parity
@pytest.mark.parametrize("name", TEMPLATES)
def test_transformers_renders_the_same(name):
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models

    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **TOKENS)
    template = ChatTemplate(TEMPLATES[name], tokens=TOKENS)
    for dialogue in DIALOGUES:
        for add in (False, True):
            options = {"chat_template": TEMPLATES[name], "tokenize": False, "add_generation_prompt": add}
            want = theirs.apply_chat_template(dialogue, **options)
            assert template.render(dialogue, add) == want and want


@pytest.fixture
def gpt2(texts, tmp_path):  # noqa: F811
    """A byte-level vocabulary with the special tokens of ChatML."""
    from tokenizers import Tokenizer

    folder = tmp_path / "gpt2"
    file = folder / "tokenizer.json"
    tokenizers.train(texts, TokenizerConfig(kind="bpe"), 270).save(folder)
    library = Tokenizer.from_file(str(file))
    library.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    library.save(str(file))
    tokenizers.rust_tokenizers.read(file).save(folder)
    (folder / "checksums.json").unlink()
    return folder


def test_special_tokens_of_a_dialogue_are_read(gpt2):
    ours = tokenizers.load(gpt2)
    text = ChatTemplate(TEMPLATES["chatml"]).render(DIALOGUES[2])
    ids = ours.encode(text, special=True)
    start, end = (ours.encode(token, special=True)[0] for token in ("<|im_start|>", "<|im_end|>"))
    assert ours.tokens([start, end]) == ["<|im_start|>", "<|im_end|>"]
    assert (ids.count(start), ids.count(end)) == (7, 6) and ours.decode(ids) == text
    assert start not in ours.encode(text)


def test_control_symbols_of_a_sentencepiece_model_are_read(tmp_path):
    symbols = ["[INST]", "[/INST]"]
    (tmp_path / "tokenizer.model").write_bytes(by_spm(list(topics.values()), control_symbols=symbols))
    ours = tokenizers.load(tmp_path, extra_ids=0)
    ids = ours.encode("<s>[INST] the class[/INST] a value</s>", special=True)
    assert ids == [1, 3, *ours.encode("the class"), 4, *ours.encode("a value"), 2]
    assert not {1, 2, 3, 4} & set(ours.encode("<s>[INST]"))


@pytest.mark.parity
@pytest.mark.parametrize("name", ["chatml", "macros"])
def test_transformers_has_the_same_ids(name, gpt2):
    transformers = pytest.importorskip("transformers")
    (gpt2 / "chat_template.jinja").write_text(TEMPLATES[name])
    theirs, ours = transformers.AutoTokenizer.from_pretrained(gpt2), tokenizers.load(gpt2)
    template = load(ours)
    for dialogue in DIALOGUES:
        want = theirs.apply_chat_template(dialogue, add_generation_prompt=True, return_dict=False)
        assert ours.encode(template.render(dialogue), special=True) == want


def settings(folder, **values):
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def rendered(folder, **options):
    return load(tokenizers.load(folder), **options).render(DIALOGUES[0])


def test_where_a_template_is_found(gpt2, tmp_path):
    with pytest.raises(UserError, match=r"gpt2: has no chat template .*; give one with --template FILE") as error:
        rendered(gpt2)
    assert "\n" not in str(error.value)
    (tmp_path / "own.jinja").write_text("own {{ bos_token }}")
    assert rendered(gpt2, file=tmp_path / "own.jinja") == "own <|endoftext|>"
    settings(gpt2, chat_template="config {{ bos_token }}", bos_token={"content": "<b>"}, eos_token=None)
    assert rendered(gpt2) == "config <b>"
    named = [{"name": "default", "template": "first"}, {"name": "tool_use", "template": "second {{ eos_token }}"}]
    settings(gpt2, chat_template=named)
    assert (rendered(gpt2), rendered(gpt2, name="tool_use")) == ("first", "second ")
    settings(gpt2, chat_template=named[1:])
    with pytest.raises(UserError, match="has no chat template 'default', only 'tool_use'; give one with --template"):
        rendered(gpt2)
    (gpt2 / "chat_template.jinja").write_text("file {{ '中' }}", encoding="utf-8")
    (gpt2 / "chat_templates").mkdir()
    (gpt2 / "chat_templates" / "rag.jinja").write_text("third")
    assert (rendered(gpt2), rendered(gpt2, name="rag")) == ("file 中", "third")
    gpt2.rename(tmp_path / "tokenizer")
    assert rendered(tmp_path / "tokenizer") == "file 中"  # a run's


def test_templates_that_are_none(gpt2, tmp_path):
    for wrong in (3, {"a": "b"}, ["x"], [{"name": "default"}], [{"name": "default", "template": 1}]):
        settings(gpt2, chat_template=wrong)
        with pytest.raises(UserError, match=r"tokenizer_config\.json: chat_template is (int|dict|list); wants a templ"):
            tokenizers.load(gpt2)
    with pytest.raises(UserError, match=r"--template: .*gone\.jinja: cannot be read"):
        load(Special(), file=tmp_path / "gone.jinja")
    (tmp_path / "bad.jinja").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"--template: .*bad\.jinja: not UTF-8"):
        load(Special(), file=tmp_path / "bad.jinja")


class Special:
    """A tokenizer without special tokens."""

    folder, chat_templates, specials = None, MappingProxyType({}), MappingProxyType({})
    vocabulary = tokenizers.planned(TokenizerConfig(kind="bpe"), 300)
    special_tokens = tokenizers.Tokenizer.special_tokens

    def tokens(self, ids):
        return [f"t{i}" for i in ids]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("a\n{% if %}", r"chat template: line 2: .*; wants a Jinja template"),
        ("{{ raise_exception('no\n\nsystem role') }}", "chat template: does not take this dialogue: no system role"),
        ("{{ messages[0].content + 1 }}", "does not take this dialogue: can only concatenate"),
        ("{{ messages.append(1) }}", "does not take this dialogue: .*unsafe"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "does not take this dialogue"),
        ("{{ messages[5].content }}", "does not take this dialogue"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "does not take this dialogue: Range too big"),
    ],
)
def test_templates_that_fail_are_named_in_one_line(source, words):
    with pytest.raises(UserError, match=words) as error:
        ChatTemplate(source).render(DIALOGUES[0])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "messages: wants a list with one or more"),
        ("Hi", "messages: wants a list"),
        (["Hi"], "message 1: wants an object with role and content, got str"),
        ([*DIALOGUES[0], {"content": "x"}], "message 2: role is missing; wants one of system, developer"),
        ([{"role": "bot", "content": "x"}], "message 1: role is 'bot'; wants one of system"),
        ([{"role": "user"}], "message 1: content is missing; wants a string"),
        ([{"role": "user", "content": None}], "message 1: content is NoneType; wants a string"),
        ([{"role": "user", "content": [{"type": "text"}]}], "message 1: content is list; wants a string"),
        ([{"role": "assistant", "tool_calls": []}], "message 1: content is missing; wants a string, or tool_calls"),
        ([{"role": "assistant", "content": 4, "tool_calls": [{}]}], "message 1: content is int; wants a string"),
    ],
)  # fmt: skip
def test_messages_are_checked(messages, words):
    with pytest.raises(UserError, match=words):
        check(messages)


def test_a_tokenizer_without_a_template_and_without_files():
    with pytest.raises(UserError, match="the tokenizer: has no chat template"):
        load(Special())


# ---- kept -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sentencepiece", "wordpiece", "bpe"])
def test_a_saved_tokenizer_keeps_its_templates(kind, texts, tmp_path):  # noqa: F811
    """As a run does that takes a vocabulary from data.tokenizer.path."""
    tokenizers.train(texts * 3, TokenizerConfig(kind=kind, extra_ids=5), 290 if kind == "bpe" else 60, tmp_path / "a")
    (tmp_path / "a" / "chat_template.jinja").write_text(TEMPLATES["chatml"])
    tokenizers.load(tmp_path / "a").save(tmp_path / "b")
    assert tokenizers.load(tmp_path / "b").chat_templates == {"default": TEMPLATES["chatml"]}
    (tmp_path / "b" / "chat_templates").mkdir()
    (tmp_path / "b" / "chat_templates" / "rag.jinja").write_text("second")
    tokenizers.load(tmp_path / "b").save(tmp_path / "c")
    assert tokenizers.load(tmp_path / "c").chat_templates == {"rag": "second"}
    assert tokenizers.load(tmp_path / "a").digest() == tokenizers.load(tmp_path / "c").digest()


@pytest.mark.parametrize("where", ["config", "named", "file", "files"])
def test_import_and_export_keep_templates(where, texts, tmp_path, capsys):  # noqa: F811
    source = tmp_path / "hf"
    made(source, "gpt2", texts)
    (source / "checksums.json").unlink()
    if where == "config":
        settings(source, chat_template=TEMPLATES["chatml"])
    elif where == "named":
        named = [{"name": name, "template": TEMPLATES[name]} for name in ("chatml", "mistral")]
        settings(source, chat_template=[*named, {"name": "default", "template": TEMPLATES["llama3"]}])
    else:
        (source / "chat_template.jinja").write_text(TEMPLATES["chatml"])
    if where == "files":
        for folder, template in (("chat_templates", "older"), ("additional_chat_templates", TEMPLATES["mistral"])):
            (source / folder).mkdir()
            (source / folder / "rag.jinja").write_text(template)
    want = tokenizers.load(source).chat_templates
    assert want and "older" not in want.values()
    assert main(["import", str(source), str(tmp_path / "run")]) == 0
    assert tokenizers.load(tmp_path / "run" / "tokenizer").chat_templates == want  # its checksums, too
    convert.export(tmp_path / "run", tmp_path / "out", report=lambda line: None)
    assert tokenizers.load(tmp_path / "out").chat_templates == want
    shown = [rendered(folder) for folder in (source, tmp_path / "run" / "tokenizer", tmp_path / "out")]
    assert len(set(shown)) == 1


def test_options_count_in_both_templates():
    """That of dialogues with tools may be another one; what the dialogue itself says is no option."""
    template = ChatTemplate("{{ mode }}{{ documents }}", tool_use="{{ mode }} with {{ tools | length }} on {{ date }}")
    template.set_options({"mode": "short", "date": "May", "documents": []})
    user = [{"role": "user", "content": "Hi"}]
    assert template.render(user) == "short[]"
    assert template.select(user, [{}]).render(user, tools=[{}]) == "short with 1 on May"
    for name, words in (("tools", "is said by the dialogue"), ("moed", "is not read by chat template; leave it out")):
        with pytest.raises(UserError, match=f"^template_options: {name}: {words}"):
            template.set_options({name: 1})
