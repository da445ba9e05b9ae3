"""The commands that use a trained model: text, labels, dialogue and vectors; part of `jaxpt.cli.table`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxpt.cli.parsing import Argument, Command, arg, count, flag, index, numbers, output, overrides, words
from jaxpt.decode.options import ANSWER_TOKENS, Options

_MODEL = arg("path", "RUN_DIR|HF_DIR", "a run, RUN_DIR/checkpoints/STEP, a model, or OWNER/NAME[@REVISION] on the hub")
_MODEL_OR_VECTORS = arg(
    "path", "RUN_DIR|HF_DIR|VECTORS", "a run, a model, or a file of word vectors (.txt, .vec, .glove, .bin)"
)


def _options(without: Sequence[str] = (), **defaults: Any) -> list[Argument]:
    """A flag for each field of `Options` that has one; `defaults` are those of the command, where it has others."""
    arguments = []
    for field in dataclasses.fields(Options):
        known = field.metadata
        if known["help"] and field.name not in without:
            how = {"type": known["rule"].parse} if hasattr(known["rule"], "parse") else {"action": "append"}
            text = known["help"].replace(f"({field.default})", f"({defaults.get(field.name, field.default)})")
            arguments.append(arg(f"--{field.name.replace('_', '-')}", known["placeholder"], text, **how))
    return arguments


# fmt: off
_LANGUAGES = (
    arg("--source-language", "CODE", "mBART: the language of the prompts, as en_XX (that of its tokenizer)"),
    arg("--target-language", "CODE", "mBART: the language to write, as de_DE (that of the model's files)"),
)
_TASKS = (
    arg("--tasks", "A,B", "names of tasks (configs/tasks), or their files", type=words),
    arg("--shots", "0,5", "numbers of examples shown before each (each task's own)", type=numbers),
    arg("--seed", "N", "of the examples that are shown (0)", type=index),
    arg("--limit", "N", "the first N examples of each task; of pairs, of each group", type=count),
    arg("--data", "DIR",
        "where a task's file is looked for first, then beside its YAML, then in the current directory; else the task's "
        "TFDS set is downloaded"),
    arg("--out", "DIR",
        "where results go (PATH/harness; of RUN_DIR/checkpoints/STEP RUN_DIR/harness/STEP); re-run to resume",
        type=output),
    arg("--corpus", "FILE", "text of the n-gram baseline: .txt, or .jsonl with a field text"),
    arg("--form", None, "encoder-decoders: the target, or a missing span (as pretrained)", choices=("plain", "span")),
    arg("--unit", None, "encoders: mask one token, or the later ones of its word too (piece)",
        choices=("piece", "word")),
    arg("--dtype", None, "compute dtype (the model's)", choices=("auto", "float32", "bfloat16")),
    *_LANGUAGES,
)
TASK_OPTIONS = tuple(argument._replace(group="tasks") for argument in _TASKS)
"""Of `jaxpt eval --tasks`."""

COMMANDS: dict[str, Command] = {
    "generate": Command("jaxpt.inference.command:generate", "generate text; fill masks and spans", (
        _MODEL,
        arg("--prompt", "TEXT", "a prompt; without one, the lines of stdin", action="append", dest="prompts"),
        arg("--file", "F", "prompts: .jsonl, .tsv, …, or .txt with a prompt a line; also .gz; needs --out"),
        arg("--out", "G", "the .jsonl with the rows of F and what was generated", type=output),
        arg("--field", "NAME", "field of F with the prompt (prompt)"),
        *_LANGUAGES,
        *_options(),
        flag("--stream", "show text while it is generated"),
        arg("--batch-size", "N", "rows generated at a time (32)", type=count),
        arg("--compare", "OTHER", "a second model, side by side"),
    ), (
        "runs/gpt2_tiny --prompt 'Once upon a time' --stream",
        "runs/gpt2_tiny --prompt 'The cat' --temperature 0.8 --top-p 0.95 --samples 3",
        "runs/bert_tiny --prompt 'The [MASK] sat on the mat.'",
        "runs/t5_tiny --prompt 'The <extra_id_0> sat on the <extra_id_1>.'",
        "runs/t5_tiny --file prompts.jsonl --out answers.jsonl --beams 4  # re-run to resume",
        "runs/gpt2_tiny --prompt 'The cat' --eos 0,198       # ends with any of these ids",
        "runs/gpt2_tiny --compare runs/other --prompt 'The cat'",
    ), resumes="out"),
    "predict": Command("jaxpt.inference.predict:predict", "label texts or the rows of a file with a fine-tuned model", (
        arg("path", "RUN_DIR", "a fine-tuned run, or RUN_DIR/checkpoints/STEP"),
        arg("file", "FILE",
            "rows as in training; with labels, a classifier's metrics too; - or none: a text a line on stdin",
            nargs="?"),
        arg("--text", "TEXT", "a text instead of FILE; several: --text A --text B", action="append", dest="texts"),
        arg("--out", "P.csv",
            "the file to write: .csv, .tsv, .parquet or .jsonl, the columns of FILE first (JSON lines on stdout)",
            type=output),
        arg("--top-k", "K", "the likeliest labels to write with their probabilities (3)", type=count),
        flag("--glue", "write GLUE's submission: --out DIR, or FILE.tsv"),
        arg("--average", "RUN_DIR", "another run of the task: the mean of both's probabilities; several: again",
            action="append", dest="average"),
        overrides("overrides a key of the run's recipe"),
    ), (
        "runs/sst2 test.tsv --out predictions.csv",
        "runs/sst2/checkpoints/500 reviews.csv --out predictions.parquet task.text=review",
        "runs/sst2 --text 'A gem of a film.' --top-k 1",
        "runs/mnli test_mismatched.tsv --glue --out submission    # MNLI-mm.tsv",
        "runs/ulmfit_sst2 dev.tsv --average runs/ulmfit_sst2_backward --out predictions.csv",
        "runs/squad questions.json --out predictions.jsonl task.nbest=5",
    )),
    "chat": Command("jaxpt.inference.chat:chat", "talk with a dialogue model, by its chat template", (
        _MODEL,
        arg("--system", "TEXT", "the system message (that of the run's task)"),
        arg("--template", "FILE", "a chat template (Jinja) instead of the tokenizer's"),
        arg("--template-option", "NAME=VALUE", "a variable of the template (YAML value); several: again",
            action="append", dest="template_options"),
        arg("--tools", "FILE", "a JSON list of the schemas of tools, for the template"),
        *_options(("beams", "length_penalty", "early_stopping", "samples"), max_new_tokens=ANSWER_TOKENS),
    ), (
        "runs/llama3_instruct",
        "runs/llama3_instruct --system 'Answer in one sentence.' --temperature 0.7",
        "runs/qwen3 --template-option enable_thinking=false",
        "runs/gpt2_tiny --template chat_template.jinja",
    )),
    "embed": Command(
        "jaxpt.inference.embed_file:embed_file", "write the vectors of texts, words or tokens as Parquet", (
        _MODEL,
        arg("file", "FILE", ".txt with a text a line, .jsonl, .tsv, .conllu, …; also .gz"),
        arg("--out", "F.parquet", "the file to write", required=True, type=output),
        arg("--field", "NAME", "column of FILE with the text, or a list of words (text)"),
        arg("--layer", "N",
            "0: embeddings, 1 … N: layers, -1: the last (-1); several: 0,6,12; all; mix: mean of all"),
        arg("--pool", None, "mean, cls, last: a vector for each text; word, token: one for each of these (mean)",
            choices=("mean", "cls", "last", "word", "token")),
        flag("--normalize", "divide each vector by its L2 norm"),
    ), (
        "runs/bert_tiny texts.txt --out vectors.parquet    # of each line: mean of its tokens",
        "runs/bert_tiny reviews.jsonl --field review --layer mix --out reviews.parquet",
        "runs/gpt2_tiny texts.txt.gz --pool last --normalize --out vectors.parquet",
        "runs/bert_tiny dev.conllu --pool word --layer 0,2 --out w.parquet  # layer_0, layer_2",
    )),
    "neighbours": Command("jaxpt.cli.commands:neighbours", "find the nearest uses of a word in context", (
        _MODEL_OR_VECTORS,
        arg("query", "TEXT", "a sentence with *asterisks* around the word", nargs="?"),
        arg("--word", None, "the word of the sentence, instead of asterisks"),
        arg("--corpus", "FILE", "texts with uses of the word; as FILE of jaxpt embed"),
        arg("--field", "NAME", "column of FILE with the text (text)"),
        arg("--label", "NAME", "column of FILE with a label of each text, such as a sense"),
        arg("--layer", "N", "0: embeddings, 1 … N: layers, -1: the last (-1); mix: mean of all; labels alone: all"),
        arg("-k", "K", "number of neighbours (10); labels alone: that vote (3)", type=count),
        arg("--limit", "N", "uses that are looked at (10,000)", type=count),
        arg("--html", "F.html", "write a page with a picture of the vectors and the uses", type=output),
        arg("--png", "F.png", "write the picture", type=output),
    ), (
        "runs/bert_tiny 'the *bank* of the river' --corpus texts.txt",
        "runs/bert_tiny 'we play here' --word play --corpus wiki.jsonl.gz --html play.html",
        "runs/bert_tiny --corpus senses.jsonl --label sense --layer all  # its accuracy",
        "glove.6B.100d.txt bank --png bank.png        # static vectors: the nearest words",
        "runs/skip_gram_tiny 'man : king :: woman : ?'  # an analogy",
    )),
    "vectors": Command("jaxpt.inference.vector_tests:vectors", "test static word vectors: similarity and analogies", (
        arg("path", "VECTORS", "a file of word vectors, or a run of skip_gram, cbow or glove"),
        arg("files", "FILE", "two words and a score a line (WordSim-353), or four words (analogies)", nargs="+"),
    ), (
        "runs/word2vec wordsim353.tsv simlex999.txt questions-words.txt",
        "glove.6B.100d.txt wordsim353.tsv",
    )),
    "sts": Command(
        "jaxpt.inference.vector_tests:sts", "correlate the cosine of sentence vectors with people's scores", (
        _MODEL_OR_VECTORS,
        arg("file", "FILE", "pairs of sentences with a score: .tsv, .csv, .jsonl, …; also .gz"),
        arg("--layer", "N", "as jaxpt embed (all; of AWD-LSTM -1)"),
        arg("--pool", "NAMES", "mean, cls or last, several with commas (mean)"),
        arg("--columns", "A,B,SCORE", "the columns of the sentences and the score (sentence1,sentence2,score)"),
    ), (
        "runs/bert_tiny STS-B/dev.tsv --pool mean,cls                   # each layer",
        "runs/gpt2_tiny sick.csv --columns sentence_A,sentence_B,score --layer -1 --pool last",
        "glove.6B.100d.txt STS-B/dev.tsv                # static vectors: the mean of the words",
    )),
}
# fmt: on
