"""A small labelled set and a recipe of fine-tuning at toy size."""

import json

import numpy as np

from jaxpt.study import recipes

WORDS = ("a", "the", "film", "is", "good", "fine", "great", "bad", "poor", "dull", "not", "very", "so", "plot", "and")
GOOD, BAD = ("good", "fine", "great"), ("bad", "poor", "dull")
MODELS = {
    "bert": {"kind": "bert", "layers": 2, "embed_dim": 32, "heads": 4, "mlp_dim": 64, "max_positions": 32},
    "gpt2": {"kind": "gpt2", "layers": 2, "embed_dim": 32, "heads": 4, "max_positions": 32},
    "t5": {"kind": "t5", "layers": 2, "embed_dim": 32, "heads": 4, "head_dim": 8, "mlp_dim": 64},
    "bart": {"kind": "bart", "layers": 2, "embed_dim": 32, "heads": 4, "mlp_dim": 64, "max_positions": 32},
    "awd_lstm": {"kind": "awd_lstm", "layers": 2, "embed_dim": 32, "hidden_dim": 32},
}  # fmt: skip


def rows(count, seed=0):
    """Texts with a good or a bad word, labelled so; a second text says the same or not."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        label = int(rng.integers(2))
        texts = []
        for of in (label, int(rng.integers(2))):
            words = list(rng.choice(WORDS[:4] + WORDS[10:], rng.integers(2, 8)))
            words.insert(int(rng.integers(len(words))), str(rng.choice((BAD, GOOD)[of])))
            texts.append(" ".join(words) + f" {number}")
        made.append({"id": f"r{number}", "text": texts[0], "other": texts[1], "label": ("bad", "good")[label],
                     "score": label + 0.25, "topics": ["film"] * label})  # fmt: skip
    return made


def write(path, made):
    """Rows as JSONL."""
    path.write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")
    return str(path)


TASKS = [
    {"kind": "classification", "name": "mood"},
    {"kind": "regression", "name": "grade", "label": "score", "pair": "other"},
    {"kind": "multi_label", "name": "about", "label": "topics", "labels": ["film"]},
]


def mixture(directory, *overrides, tasks=TASKS, counts=(48, 24, 16), of="bert", **sections):
    """A recipe of several tasks, each on rows of its own."""
    files = [
        {"name": task["name"], "path": write(directory / f"{task['name']}.jsonl", rows(count, seed))}
        for seed, (task, count) in enumerate(zip(tasks, counts))
    ]
    data = {"path": None, "mixture": files, **sections.pop("data", {})}
    fractions = [{"validation_fraction": 0.25, **one} for one in data["mixture"]]
    task = {"kind": "mixture", "tasks": tasks}
    return recipe(directory, *overrides, of=of, task=task, data={**data, "mixture": fractions}, **sections)


def vocabulary(directory):
    """A WordPiece vocabulary of these words."""
    digits = [str(n) for n in range(10)]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *digits, *(f"##{n}" for n in digits)]
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    return str(directory / "vocab.txt")


def recipe(directory, *overrides, of="bert", made=None, **sections):
    """A recipe on these rows, loaded; `made` are its rows; by default those of the file that is there."""
    path = directory / "train.jsonl"
    if made is not None or not path.exists():
        write(path, rows(64) if made is None else made)
    tree = {
        "run_dir": str(directory / "run"),
        "task": {"kind": "classification"},
        "model": {**MODELS[of], "vocab_size": 64, "dtype": "float32"},
        "data": {
            "path": str(path), "validation_fraction": 0.25, "length": 32, "batch_size": 8,
            "cache_dir": str(directory / "cache"),
            "tokenizer": {"kind": "wordpiece", "path": vocabulary(directory), "lowercase": True},
        },
        "optimizer": {"kind": "adamw", "learning_rate": 3e-3},
        "train": {"steps": 4, "log_every": 4},
        "log": {"tensorboard": False},
    }  # fmt: skip
    for name, section in sections.items():  # a section that is None is left out
        tree[name] = {**tree.get(name, {}), **section} if isinstance(section, dict) else section
    file = directory / "recipe.yaml"
    file.write_text(json.dumps({key: value for key, value in tree.items() if value is not None}), encoding="utf-8")
    return recipes.load(file, overrides)
