"""Text to text at toy size: a tokenizer whose tokens are words, and recipes for a model of each kind."""

from jaxpt import config as configs
from jaxpt.data.calls import Vocabulary
from jaxpt.data.tables import Row
from jaxpt.data.tasks.base import LocatedRow
from jaxpt.data.tokenizers.base import Tokenizer
from tests import families

WORDS = (
    "say", "it", "is", "the", "cat", "dog", "ran", "sat", "good", "bad", "very", "=>", "one", "two", "three", "four",
    "five", "six", "seven", "eight", "nine", "ten",
)  # fmt: skip
MODELS = {
    "t5": families.MODELS["t5"],
    "gpt2": families.MODELS["gpt2"],
    "bart": {
        "kind": "bart", "vocab_size": 200, "layers": 2, "embed_dim": 32, "heads": 4, "mlp_dim": 64, "max_positions": 32,
    },
}  # fmt: skip
LABELS = {"kind": "classification", "labels": ["0", "1", "2"], "names": ["bad", "good", "very good"]}
TEXTS = {"kind": "generation", "inputs": "say {mr}", "targets": "ref"}


class Words(Tokenizer):
    """A word is a token, 0 the padding, 1 EOS, 2 BOS, 3 whatever is unknown; a newline is none, as for many."""

    kind = "tests.text_pairs"

    def __init__(self, bos=2):
        self.vocabulary = Vocabulary(size=200, pad=0, eos=1, bos=bos, unk=3)

    def encode_batch(self, texts):
        return [[WORDS.index(word) + 4 if word in WORDS else 3 for word in text.split()] for text in texts]

    def tokens(self, ids):
        names = ["<pad>", "</s>", "<s>", "<unk>", *WORDS]
        return [names[i] if i < len(names) else f"w{i}" for i in ids]

    def decode(self, ids):
        return " ".join(self.tokens(i for i in ids if i > 2))

    def digest(self):
        return "words"

    def save(self, directory):
        raise NotImplementedError


def config(model, task=TEXTS, length=16, **objective):
    """The configuration of a recipe."""
    own = {"targets_length": 6, **({"separator": "=>"} if model == "gpt2" else {})}
    given = {**({} if "kind" in objective else {"kind": "text_to_text", **own}), **objective}
    return configs.build(
        {
            "model": {**MODELS[model], "dtype": "float32"},
            "task": task,
            "objective": given,
            "data": {"path": "rows.jsonl", "length": length, "batch_size": 8, "tokenizer": {"kind": "bpe"}},
            "optimizer": {"kind": "adamw", "learning_rate": 1e-3},
            "train": {"steps": 10},
        }
    )


def rows(*values):
    """Rows with their places."""
    return [LocatedRow(Row(number, one), f"rows:{number}", (0, number)) for number, one in enumerate(values, 1)]


def records(config, tokenizer, rows, has_targets=True):
    """What the objective makes of rows."""
    encoder = config.objective.encoder(config.data.length, tokenizer.vocabulary)
    return list(encoder(rows, tokenizer, has_targets, train=False))


def ids(tokenizer, text):
    """Ids of words; `</s>` and `<s>` are the special tokens."""
    special = {"<pad>": 0, "</s>": 1, "<s>": 2}
    return [special[word] if word in special else tokenizer.encode(word)[0] for word in text.split()]
