"""Dialogues as records: which tokens are answers, against transformers; what is trimmed, left out and refused."""

import doctest
import functools
import json
import tempfile

import numpy as np
import pytest
import tokenizers as tokenizers_library

from jaxpt.config import DataConfig, TokenizerConfig
from jaxpt.data import chat_template, tokenizers
from jaxpt.data.chat_template import BUILT_IN, ChatTemplate
from jaxpt.data.labelled import dialogue
from jaxpt.data.labelled.dialogue import DialogueEncoder, encoded
from jaxpt.data.sources.base import Piece
from jaxpt.data.sources.rows import Rows
from jaxpt.data.tables import Row
from jaxpt.data.tasks.base import LocatedRow
from jaxpt.data.tasks.dialogue import DialogueTask
from jaxpt.errors import UserError
from tests.data.test_chat_template import TEMPLATES

LONG = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "größer 中 😀"},
    {"role": "user", "content": "And then?"}, {"role": "assistant", "content": "it is the end"},
    {"role": "user", "content": "Thanks"},
]  # fmt: skip
SHORT = [{"role": "user", "content": "one two"}, {"role": "assistant", "content": "three"}]
UNMARKED = BUILT_IN["chatml"].replace("{%- generation %}", "").replace("{% endgeneration %}", "")


@pytest.fixture(scope="module")
def tokenizer():
    texts = ["the user and the assistant say what it is, one two three, and then the end. " * 8] * 4
    return tokenizers.train(texts, TokenizerConfig(kind="bpe"), 300)


@functools.cache
def library(tokenizer):
    """Hugging Face's, of the file that ours writes: ids with all special tokens are read by it."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder)
        return tokenizers_library.Tokenizer.from_file(f"{folder}/tokenizer.json")


def text_of(tokenizer, ids):
    return library(tokenizer).decode(ids, skip_special_tokens=False)


def with_template(tokenizer, template):
    tokenizer.chat_templates = {"default": template}
    return tokenizer


def said(tokenizer, messages, template):
    """The text of the tokens of answers."""
    ids, answers = encoded(
        messages, chat_template.of_tokenizer(with_template(tokenizer, template)), tokenizer, "line 1"
    )
    return text_of(tokenizer, [i for i, one in zip(ids, answers) if one])


def test_examples_in_docstrings():
    assert doctest.testmod(dialogue).failed == 0


def test_answers_are_what_the_template_marks(tokenizer):
    assert said(tokenizer, LONG, BUILT_IN["chatml"]) == "größer 中 😀<|im_end|>it is the end<|im_end|>"
    assert said(tokenizer, LONG, BUILT_IN["plain"]) == " größer 中 😀<|endoftext|> it is the end<|endoftext|>"
    assert said(tokenizer, SHORT, BUILT_IN["plain"]) == " three<|endoftext|>"


def test_answers_without_marks_are_what_they_add(tokenizer):
    """White space after the token that ends an answer is no part of it."""
    assert "generation %}" not in UNMARKED
    assert said(tokenizer, LONG, UNMARKED) == "größer 中 😀<|im_end|>it is the end<|im_end|>"
    lines = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}"
    template = lines + "{% if add_generation_prompt %}assistant:{% endif %}"
    assert said(tokenizer, LONG, template) == " größer 中 😀\n\n it is the end\n\n"


def test_an_empty_answer_is_what_ends_it(tokenizer):
    messages = [LONG[1], {"role": "assistant", "content": ""}, *SHORT]
    for template in (BUILT_IN["chatml"], UNMARKED):
        assert said(tokenizer, messages, template) == "<|im_end|>three<|im_end|>"
    lines = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}"
    template = lines + "{% if add_generation_prompt %}assistant:{% endif %}"
    assert said(tokenizer, messages, template) == " \n\n three\n\n"


def test_a_template_without_a_token_that_ends_answers_is_said(tokenizer):
    prompt = "{% if add_generation_prompt %}assistant:{% endif %}"
    for content, count in (
        ("{{ m.content }}\n\n", 1), ("{{ m.content }}{{ eos_token }}\n", 0),
        ("{% generation %}{{ m.content }}{% endgeneration %}{{ eos_token }}", 1),
    ):  # fmt: skip
        template = "{% for m in messages %}{{ m.role }}:" + content + "{% endfor %}" + prompt
        lines = list(chat_template.report_lines(with_template(tokenizer, template)))
        assert len(lines) == count and all("no token ends an answer" in line for line in lines)
    assert not any([*chat_template.report_lines(with_template(tokenizer, text))] for text in BUILT_IN.values())


def test_a_template_that_changes_earlier_messages_is_refused(tokenizer):
    with pytest.raises(UserError, match="line 1: chat template: renders the messages before answer 3 differently"):
        said(tokenizer, LONG, "{{ messages | length }}" + UNMARKED)
    with pytest.raises(UserError, match="message 1 is the assistant's: a template without a generation block"):
        said(tokenizer, SHORT[1:], UNMARKED)
    assert said(tokenizer, SHORT[1:], BUILT_IN["plain"]) == " three<|endoftext|>"
    with pytest.raises(UserError, match="line 1: chat template: does not take this dialogue: no system"):
        said(tokenizer, LONG, "{{ raise_exception('no system') }}")
    with pytest.raises(UserError, match="renders no token of the assistant's answers"):
        said(tokenizer, LONG, "x{% if false %}{% generation %}{% endgeneration %}{% endif %}")


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "sentencepiece"])
def test_offsets(kind):
    texts = ["the user says what it is and the end größer. " * 20] * 4
    found = tokenizers.train(texts, TokenizerConfig(kind=kind, extra_ids=3), 300 if kind == "bpe" else 60)
    named = found.tokens([i for i in (found.vocabulary.eos, found.vocabulary.sep) if i is not None])[0]
    text = f"the user größer{named} what  it is"
    ids, spans = found.encode_rendered(text)
    assert ids == found.encode(text, special=True)
    assert text[slice(*spans[ids.index(found.encode(named, special=True)[-1])])] == named
    covered = np.zeros(len(text), bool)
    for start, end in spans:
        covered[start:end] = True
    assert all(covered[i] for i, letter in enumerate(text) if not letter.isspace())
    at = text.index("what")
    first = next(i for i, (start, end) in enumerate(spans) if end > at)
    assert found.decode(ids[first:]).strip().replace("  ", " ") == "what it is"


@pytest.mark.parity
@pytest.mark.parametrize("name", ["chatml", "plain", "mistral"])
def test_transformers_marks_the_same_tokens(name, tokenizer, tmp_path):
    transformers = pytest.importorskip("transformers")
    template = BUILT_IN.get(name) or TEMPLATES[name]
    with_template(tokenizer, template).save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for messages in (LONG[1:], SHORT, [*LONG[1:], *SHORT[1:]]):
        want = theirs.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True, add_generation_prompt=False
        )
        ids, answers = encoded(messages, chat_template.of_tokenizer(tokenizer), tokenizer, "line 1")
        assert ids == want["input_ids"] and answers == list(want["assistant_masks"])
        assert 0 < sum(answers) < len(answers)


TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": [1]}}}
CALLING = [
    {"role": "user", "content": "one two"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "three", "name": "add"},
    {"role": "assistant", "content": "the end", "reasoning": "it is three"},
]
READING = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.reasoning_content %}{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or () %}{{ call.function | tojson }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_tools_and_reasoning_reach_the_template(tokenizer):
    """A call without content is an answer, up to the token that ends it."""
    encoder = DialogueEncoder(DialogueTask(), 1000)
    row = LocatedRow(Row(1, {"messages": CALLING, "tools": TOOLS}), "line 1", (0, 1))
    (record,) = encoder([row], with_template(tokenizer, READING), True, True)
    text = text_of(tokenizer, record["tokens"])
    assert text.startswith('[{"type": "function"') and "<|im_start|>tool\nthree<|im_end|>" in text
    answers = text_of(tokenizer, record["tokens"][record["answers"] > 0])
    assert answers == (
        '{"name": "add", "arguments": {"a": 2, "b": [1]}}<|im_end|><think>it is three</think>the end<|im_end|>'
    )


def test_null_fields_that_arrow_gives_to_calls_are_left_out(tokenizer, tmp_path):
    """All structs of a column have the same fields; runs of before keep their records, and JSONL has the nulls that it
    says."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    calls = [CALL["function"] | {"arguments": arguments} for arguments in ({"a": 2, "c": {"d": 1}}, {"b": None})]
    rows = [{"messages": [*SHORT[:1], {"role": "assistant", "tool_calls": [{"function": call}]}]} for call in calls]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def answers(name, **keys):
        data = DataConfig(path=str(tmp_path / name), validation_path=str(tmp_path / name), tokenizer={"kind": "bpe"})
        records = DialogueEncoder(DialogueTask(), 1000)(
            Rows(data, DialogueTask(), **keys).rows("train", [Piece(0)]), with_template(tokenizer, READING), True, True
        )
        texts = [text_of(tokenizer, record["tokens"][record["answers"] > 0]) for record in records]
        return [json.loads(text.removesuffix("<|im_end|>"))["arguments"] for text in texts]

    assert answers("a.parquet") == [{"a": 2, "c": {"d": 1}}, {}]
    assert answers("a.parquet", null_fields=True) == [{"a": 2, "b": None, "c": {"d": 1}}, dict.fromkeys("abc")]
    assert answers("a.jsonl") == [{"a": 2, "c": {"d": 1}}, {"b": None}]


def test_a_template_for_tools_renders_dialogues_with_tools(tokenizer):
    """As in transformers: the one that is called tool_use."""
    tokenizer.chat_templates = {"default": BUILT_IN["chatml"], "tool_use": READING}
    template = chat_template.of_tokenizer(tokenizer)
    assert encoded(SHORT, template, tokenizer, "line 1") == encoded(
        SHORT, chat_template.of_tokenizer(with_template(tokenizer, BUILT_IN["chatml"])), tokenizer, "line 1"
    )
    ids, answers = encoded(CALLING, template, tokenizer, "line 1", TOOLS)
    assert text_of(tokenizer, ids).startswith('[{"type": "function"') and any(answers)


@pytest.mark.parametrize(("messages", "tools", "key"), [
    (CALLING[:2], None, "tool_calls"), (SHORT, TOOLS, "tools"), (SHORT[:1] + CALLING[3:], None, "reasoning_content"),
])  # fmt: skip
def test_what_a_template_does_not_read_is_refused(messages, tools, key, tokenizer):
    template = chat_template.of_tokenizer(with_template(tokenizer, BUILT_IN["chatml"]))
    with pytest.raises(UserError, match=f"line 1: chat template: does not read {key}, which the dialogue has; remove"):
        encoded(messages, template, tokenizer, "line 1", tools)


@pytest.mark.parity
def test_transformers_renders_the_same_tools_and_reasoning(tokenizer, tmp_path):
    transformers = pytest.importorskip("transformers")
    with_template(tokenizer, READING).save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for name in chat_template.REASONING:
        messages = [*CALLING[:3], {"role": "assistant", "content": "the end", name: "it is three"}]
        want = theirs.apply_chat_template(messages, tools=TOOLS, tokenize=False)
        assert ChatTemplate(READING).answers(messages, tools=TOOLS)[0] == want


@pytest.mark.parity
def test_transformers_renders_the_same_of_a_call_without_content(tokenizer, tmp_path):
    """In training and for an answer, whether the content is null or missing: the template finds no content."""
    transformers = pytest.importorskip("transformers")
    source = READING.replace("{{ m.content }}", "{{ m.content if m.content is defined else 'no content' }}")
    with_template(tokenizer, source).save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    call = {"role": "assistant", "tool_calls": [CALL]}
    for first in (call, call | {"content": None}, call | {"content": ""}):
        messages = [CALLING[0], first, *CALLING[2:]]
        want = theirs.apply_chat_template(messages, tools=TOOLS, tokenize=False)
        assert ("no content" in want) == (first.get("content") is None)
        row = Row(1, {"messages": messages, "tools": TOOLS})
        trained = DialogueTask().dialogue(row, "line 1")
        for read in (messages, trained):
            assert ChatTemplate(source).render(read, False, tools=TOOLS) == want


# ---- records --------------------------------------------------------------------------------------------------------


def records(tokenizer, given, length, **keys):
    encoder = DialogueEncoder(DialogueTask(), length, **keys)
    places = [LocatedRow(Row(n, {"messages": m}), f"line {n}", (0, n)) for n, m in enumerate(given)]
    found = list(encoder(places, with_template(tokenizer, BUILT_IN["plain"]), True, True))
    for record in found:
        for name, like in encoder.like().items():
            assert record[name].dtype == like.dtype and (like.shape == (0,) or record[name].shape == like.shape)
    return found


def test_the_oldest_turns_go_first_and_the_system_message_stays(tokenizer):
    (whole,) = records(tokenizer, [LONG], 1000)
    size = len(whole["tokens"])
    assert not whole["truncated"] and whole["answers"].shape == (size,)
    (kept,) = records(tokenizer, [LONG], size - 1)
    assert text_of(tokenizer, kept["tokens"].tolist()) == (
        "System: Be brief.\nUser: And then?\nAssistant: it is the end<|endoftext|>User: Thanks\n"
    )
    assert kept["truncated"] == 1 and kept["answers"].any()


def test_a_last_turn_that_is_too_long_loses_its_end(tokenizer):
    (whole,) = records(tokenizer, [SHORT], 1000)
    size = len(whole["tokens"])
    for trim in ("oldest_turns", "end"):
        (cut,) = records(tokenizer, [SHORT], size - 1, trim=trim)
        assert cut["tokens"].tolist() == whole["tokens"][:-1].tolist() and cut["truncated"] == 1
        (gone,) = records(tokenizer, [SHORT], 4, trim=trim)
        assert not len(gone["tokens"]) and gone["truncated"] == 1


def test_a_user_message_at_the_end_is_no_dialogue(tokenizer):
    """Where it alone would be left, the dialogue is too long."""
    messages = [SHORT[0] | {"content": "one two " * 40}, SHORT[1], SHORT[0]]
    first, second = records(tokenizer, [messages, SHORT], 60)
    assert not len(first["tokens"]) and first["truncated"] == 1 and len(second["tokens"])


def test_long_dialogues_may_be_left_out_or_refused(tokenizer):
    first, second = records(tokenizer, [LONG, SHORT], 40, trim="drop")
    assert not len(first["tokens"]) and first["truncated"] == 1 and len(second["tokens"])
    with pytest.raises(
        UserError, match=r"line 0: \d+ tokens, data.length leaves room for 40; raise data.length, or set"
    ):
        records(tokenizer, [LONG], 40, trim="error")


def test_dialogues_without_an_answer(tokenizer):
    with pytest.raises(UserError, match=r"line 0: no message of the assistant; set objective\.without_answer"):
        records(tokenizer, [SHORT[:1]], 100)
    first, second = records(tokenizer, [SHORT[:1], SHORT], 100, without_answer="skip")
    assert not len(first["tokens"]) and not first["truncated"] and len(second["tokens"])


def test_a_tokenizer_without_a_template(tokenizer):
    tokenizer.chat_templates = {}
    with pytest.raises(
        UserError, match=r"objective\.template: the tokenizer has no chat template; give a file, or chatml"
    ):
        chat_template.of_tokenizer(tokenizer)


def test_records_have_one_date_and_chats_have_todays(tokenizer):
    with_template(tokenizer, "{{ strftime_now('%d %b %Y') }}" + BUILT_IN["plain"])
    assert chat_template.of_tokenizer(tokenizer).answers(SHORT)[0].startswith("26 Jul 2024")
    assert not chat_template.load(tokenizer).render(SHORT).startswith("26 Jul 2024")


def test_templates_by_name_and_file(tmp_path):
    (tmp_path / "own.jinja").write_text("x")
    assert (
        chat_template.source("plain") == BUILT_IN["plain"] and chat_template.source(str(tmp_path / "own.jinja")) == "x"
    )
    with pytest.raises(UserError, match=r"objective\.template: chatmal: cannot be read"):
        chat_template.source("chatmal")


def test_built_in_templates_open_with_bos_where_there_is_one():
    for name, text in BUILT_IN.items():
        for tokens, opening in (
            ({"bos_token": "<s>", "eos_token": "</s>"}, "<s>"),
            ({"bos_token": "</s>", "eos_token": "</s>"}, ""),
            ({}, ""),
        ):
            shown = ChatTemplate(text, tokens=tokens).render(SHORT[:1])
            assert shown.startswith(opening + {"chatml": "<|im_start|>user\n", "plain": "User: one two\n"}[name])
