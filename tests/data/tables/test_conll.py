import pytest

from jaxpt.data.tables import read
from jaxpt.errors import UserError

CONLLU = """\
# newdoc id = weblog-1
# sent_id = weblog-1-0001
# text = Don't go to # 9
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVBP\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
3\tgo\tgo\tVERB\tVB\tMood=Imp\t0\troot\t_\t_
3.1\tgo\tgo\tVERB\t_\t_\t_\t_\t_\t_

# sent_id = weblog-1-0002
1\t#\t#\tSYM\tNN\t_\t0\troot\t_\t_
2\tNew York\tNew York\tPROPN\tNNP\t_\t1\tdep\t_\t_
"""
CONLL = """\
-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

# NN B-NP O

-DOCSTART- -X- -X- O

Peter NNP B-NP B-PER
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_conllu(write):
    first, second = read(write(CONLLU, "en.conllu"))
    assert first.number == 1 and second.number == 10
    assert first.values["tokens"] == ["Do", "n't", "go"] and first.values["upos"] == ["AUX", "PART", "VERB"]
    assert first.values["feats"] == ["_", "_", "Mood=Imp"] and first.values["head"] == ["3", "3", "0"]
    assert first.values["newdoc"] and not second.values["newdoc"]
    assert first.values["text"] == "Don't go to # 9" and second.values["text"] is None
    assert second.values["sent_id"] == "weblog-1-0002" and second.values["tokens"] == ["#", "New York"]
    assert list(first.values) == [
        "id", "tokens", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc", "sent_id", "text", "newdoc",
    ]  # fmt: skip


def test_conll_2003(write):
    rows = list(read(write(CONLL, "eng.testa"), "conll"))
    assert [row.number for row in rows] == [3, 6, 10]
    assert rows[0].values == {
        "tokens": ["EU", "rejects"],
        "pos": ["NNP", "VBZ"],
        "chunk": ["B-NP", "B-VP"],
        "ner": ["B-ORG", "O"],
        "sent_id": None,
        "text": None,
        "newdoc": True,
    }
    assert rows[1].values["tokens"] == ["#"] and not rows[1].values["newdoc"]
    assert rows[2].values["ner"] == ["B-PER"] and rows[2].values["newdoc"]


def test_a_document_ends_its_last_sentence(write):
    rows = list(read(write("a O\n-DOCSTART- O\nb O\n", "a.conll")))
    assert [(row.number, row.values["tokens"], row.values["newdoc"]) for row in rows] == [
        (1, ["a"], False), (3, ["b"], True),
    ]  # fmt: skip


def test_two_columns_names_and_comments(write):
    path = write("# id 1 domain=en\nNew York\tB-LOC\n#nyc\tO\n", "wnut.iob")
    with pytest.raises(UserError, match=r"wnut\.iob: line 2: 2 columns, wants 4 \(tokens, pos, chunk, ner\)"):
        list(read(write("# id 1 domain=en\nYork B-LOC\n", "wnut.iob")))
    path = write("# id 1 domain=en\nNew York\tB-LOC\n#nyc\tO\n", "wnut.iob")
    row = next(read(path, comments=True))
    assert row.values["tokens"] == ["New York", "#nyc"] and row.values["tags"] == ["B-LOC", "O"]
    assert next(read(path, comments=True, header=("words", "entities"))).values["entities"] == ["B-LOC", "O"]


@pytest.mark.parametrize(
    "text, name, options, message",
    [
        ("", "a.conllu", {}, r"a\.conllu: is empty; wants a word a line"),
        ("1\ta\tb\n", "a.conllu", {}, r"a\.conllu: line 1: 3 columns, wants 10 \(CoNLL-U's\)"),
        (CONLLU.replace("\t_\t_\n\n", "\t_\n\n"), "a.conllu", {}, r"a\.conllu: line 8: 9 columns, wants 10 \(id, "),
        (CONLLU.replace("2\tn't", "x\tn't"), "a.conllu", {}, r"a\.conllu: line 6: .* number of a word, got 'x'"),
        ("# id 7\na O\n", "a.conll", {}, r"line 1: 3 columns; name them .* comments, set task\.comments"),
        ("a b c\n", "a.conll", {}, r"a\.conll: line 1: 3 columns; name them \(task\.header\)"),
        ("a O\nb\n", "a.conll", {}, r"a\.conll: line 2: 1 column, wants 2 \(tokens, tags\)"),
        ("a O\n", "a.conll", {"header": ("tokens",)}, r"a\.conll: line 1: 2 columns, wants 1 \(task\.header\): tokens"),
        (" O\nb O\n", "a.conll", {}, r"a\.conll: line 1: 1 column, wants 2 \(tokens, tags\), as line 2"),
        ("a O\n\n O\n", "a.conll", {}, r"a\.conll: line 3: begins with a space, where a word is wanted: ' O'"),
        ("a\nb O\nc O\n", "a.conll", {}, r"a\.conll: line 1: 1 column, wants 2 \(tokens, tags\), as line 2"),
        ("a O\nb O\nc O\rd O\r", "a.conll", {}, r"a\.conll: line 3: 3 columns, wants 2 .*, as line 1; a CR inside of"),
        ("a\tO\n\tO\n", "a.conll", {}, r"a\.conll: line 2: column 'tokens' is empty"),
        ("a\tO\nb\t\n", "a.conll", {}, r"a\.conll: line 2: column 'tags' is empty"),
        ("a O\n", "a.xyz", {}, r"a\.xyz: the suffix says nothing of the format; wants \.tsv, .*, or a format: tsv, "),
    ],
)
def test_bad_files(write, text, name, options, message):
    with pytest.raises(UserError, match=message) as error:
        list(read(write(text, name), **options))
    assert "\n" not in str(error.value)
