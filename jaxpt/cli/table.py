"""The commands of `jaxpt`: for each its function, its line of help, its arguments, examples, and what it writes.

A new command is one function and one entry. An argument has the name of the function's parameter (`dest`); one that is
not on the command line is left to the parameter's default. A recipe named `config` is loaded before the call.
"""

from __future__ import annotations

from jaxpt.cli import inference
from jaxpt.cli.parsing import (
    PATH,
    RECIPE,
    Command,
    arg,
    count,
    flag,
    index,
    nonnegative,
    output,
    overrides,
    positive,
    share,
)  # fmt: skip

_JSON = flag("--json", "print JSON", dest="as_json")
_OBJECT = flag("--json", "print one JSON object", dest="as_json")
_VERIFY = flag("--verify", "compare the outputs with transformers", dest="check")

# fmt: off
COMMANDS: dict[str, Command] = {
    "train": Command("jaxpt.cli.commands:train", "pretrain or fine-tune a model; resumes an interrupted run", (
        *PATH, flag("--timings", "say where the time went up to the first step"),
    ), (
        "configs/smoke/bert_tiny.yaml",
        "configs/smoke/gpt2_tiny.yaml train.steps=200 optimizer.learning_rate=0.01 run_dir=try",
        "try train.steps=400                     # a run directory is a recipe too",
        "configs/smoke/bert_tiny.yaml 'train.phases=[]' data.length=48 data.batch_size=8",
    ), "RUN_DIR (runs/NAME OF THE RECIPE): config.yaml, checkpoints/, tokenizer/, metrics.jsonl,\n"
       "tensorboard/, evaluations/, run.json; and prepared text into ~/.cache/jaxpt (data.cache_dir)", "path"),
    "eval": Command("jaxpt.cli.evaluate:run", "run the evaluators of a recipe, or tasks, on a trained model", (
        arg("path", "CONFIG|RUN_DIR|HF_DIR", "a recipe, or a run; with --tasks any model"),
        *inference.TASK_OPTIONS,
        overrides(),
    ), (
        "runs/bert_tiny",
        "configs/smoke/bert_tiny.yaml train.eval_examples=1000",
        "runs/gpt2 --tasks lambada,piqa --shots 0,5 --limit 500 --data sets",
        "hf/bert-base-uncased --tasks blimp --unit word --data sets --corpus text.jsonl.gz",
        "runs/gpt2 --tasks my_task.yaml my_task.data.path=rows.jsonl",
    ), "nothing; with --tasks RUN_DIR/harness, of a checkpoint RUN_DIR/harness/STEP (--out)", "tasks"),
    "inspect": Command("jaxpt.report.inspect:inspect", "show training examples: tokens, masks, spans, padding", (
        *RECIPE,
        arg("-n", "N", "number of examples (8)", type=count, dest="count"),
        arg("--at", "INDEX", "index of the first example (0)", type=index),
        arg("--split", None, "split (train)", choices=("train", "validation")),
        arg("--phase", "N", "phase of the recipe, from 1 (1)", type=count),
        arg("--html", "FILE", "write an HTML page instead of printing", type=output),
    ), (
        "configs/smoke/bert_tiny.yaml",
        "configs/smoke/t5_tiny.yaml -n 3 --at 1000 --html batches.html",
        "configs/smoke/gpt2_tiny.yaml --split validation data.length=64",
    ), "prepared text into ~/.cache/jaxpt (data.cache_dir); with --html a page"),
    "data": Command("jaxpt.report.data:data", "show what a recipe's data is: lengths, languages, duplicates, labels", (
        *PATH,
        arg("-n", "N", "read only the first N documents or rows of each split", type=count, dest="limit"),
        _OBJECT,
    ), (
        "configs/smoke/bert_tiny.yaml",
        "configs/pretrain/gpt2_124m.yaml data.path=mytexts data.documents=file -n 10000",
        "configs/finetune/roberta/sst2.yaml data.path=sst2/train.tsv --json",
    )),
    "baseline": Command("jaxpt.report.simple_models:baseline", "train simple models of a task (TF-IDF, …) in seconds", (
        *PATH,
        arg("--models", "A,B", "only these (all): words_svm, both_logistic, affixes_logistic, …"),
        arg("--out", "F.json", "write the scores as JSON", type=output),
        flag("--save", "write run.json and the predictions of the best model into run_dir, as a fine-tuning does"),
    ), (
        "configs/finetune/bert/cola.yaml data.path=train.tsv data.validation_path=dev.tsv",
        "configs/finetune/tagging/ewt.yaml data.path=train.conllu data.validation_path=dev.conllu --out scores.json",
        "runs/bert_sst2 --models words_svm,both_svm     # on the rows of a run",
    ), "nothing; with --out a JSON file, with --save RUN_DIR: config.yaml, run.json, evaluations/"),
    **inference.COMMANDS,
    "plan": Command("jaxpt.cli.commands:plan", "estimate memory, step time, bottlenecks and cost, without running", (
        *PATH,
        arg("--topology", "DEVICES", "v5e:16x16, v5p-128, h200:2x8, a3-highgpu-8g, … (plan.topology)"),
        arg("--slices", "N", "number of slices (plan.slices; with --topology 1)", type=count),
        _OBJECT,
        arg("--decode", "BATCHxLENGTH", "plan decoding; encoder-decoders: BATCHxENCODER/DECODER, as 32x512/128"),
        arg("--save", "DIR", "save the compiled steps for train.compiled=DIR"),
        flag("--shardings", "show the sharding of each parameter"),
        arg("--search", "N", "search mesh, microbatch size, remat for the last phase, in at most N compilations (12)",
            type=count, nargs="?", const=12, dest="searching"),
        arg("--price", "DOLLARS", "price per chip-hour (on-demand list price)", type=nonnegative),
        arg("--watts", "W", "power of a chip, including its share of the host", type=nonnegative),
        arg("--carbon", "KG", "CO₂ per kilowatt-hour", type=nonnegative),
    ), (
        "configs/smoke/bert_tiny.yaml                     # for this machine's devices",
        "configs/pretrain/bert_base.yaml             # for the recipe's TPU slice, without a TPU",
        "configs/pretrain/bert_base.yaml plan.topology=null    # for this machine's devices",
        "configs/pretrain/t5_1_1_base.yaml --topology v5p:4x4x4 --slices 2 mesh.fsdp=64",
        "configs/pretrain/bert_base.yaml --topology h100:8        # or h100:2x8: two machines",
        "configs/pretrain/bert_base.yaml --topology v5p-128       # a cloud's name: v5p:4x4x4",
        "configs/pretrain/gpt2_124m.yaml --topology v6e:4x4 --search 12",
        "configs/pretrain/gpt2_124m.yaml --topology v6e:4x4 --save DIR  # train.compiled=DIR",
        "configs/pretrain/llama3_8b.yaml --topology v5e:2x4 --decode 32x4096",
    )),
    "cache": Command("jaxpt.report.caches:cache", "prepare a recipe's records in parallel before training", (
        *RECIPE,
        arg("--batches", "STEPS",
            "write the batches of so many steps, to train from them where TensorFlow is not installed", type=count),
        arg("--out", "DIR", "where the batches go: a new directory", type=output),
        arg("--workers", "N", "number of processes (one per core)", type=count),
        arg("--beam", "OPTIONS", "prepare them with Apache Beam: '--runner=DataflowRunner …'"),
        flag("--verify", "compare the checksums of all files, however large"),
    ), (
        "configs/smoke/bert_tiny.yaml --workers 8",
        "configs/smoke/bert_tiny.yaml --verify     # read every file; rewrite damaged ones",
        "configs/smoke/bert_tiny.yaml --beam='--runner=FlinkRunner' data.cache_dir=/mnt/shared",
        "configs/smoke/bert_tiny.yaml --batches 200 --out DIR   # for data.source=batches",
    ), "prepared text into ~/.cache/jaxpt (data.cache_dir); with --batches the directory --out", "config"),
    "verify": Command("jaxpt.report.verify:verify", "compare all files of a run with their checksums", (
        arg("path", "RUN_DIR", "a run, or a directory of prepared batches"),
        flag("--repair", "fetch damaged checkpoints from the run's second place (checkpoint.copy_to)"),
    ), ("runs/bert_tiny", "runs/bert_tiny --repair")),
    "replay": Command("jaxpt.report.replay:replay", "run a step of a run again: norms of layers, text of rows", (
        arg("path", "RUN_DIR", "the run"),
        arg("--step", "N", "the step, from 1", type=count, required=True, dest="at"),
        arg("--batch", "B", "take batch B of the phase's stream, from 0 (the step's own)", type=index,
            dest="batch_number"),
        arg("-n", "N", "how many rows to show (4)", type=count, dest="count"),
    ), ("runs/bert_tiny --step 120", "runs/bert_tiny --step 120 --batch 119 -n 16")),
    "probe": Command("jaxpt.cli.commands:probe", "train a linear classifier of texts or words on a frozen model", (
        arg("path", "RUN_DIR", "a run, or RUN_DIR/checkpoints/STEP"),
        overrides("path, test_path, unit, text and label (fields), layer, l2", "+"),
    ), (
        "runs/bert_tiny path=train.csv.gz test_path=test.csv.gz text=text label=category",
        "runs/bert_tiny path=train.conllu test_path=test.conllu unit=word label=upos layer=all",
    ), "RUN_DIR/evaluations/probe.json"),
    "study": Command(
        "jaxpt.study.pretrainings:study", "train several recipes on the same amount of text and compare them", (
        arg("path", "STUDY", "a study file (YAML): rows, shared settings, tokens per row"),
        flag("--table", "only write table and picture, from the run directories"),
        flag("--stop", "stop after the first row that fails"),
        arg("--parallel", "N", "how many rows are trained at once (1)", type=count, default=1),
        arg("--devices", "0,1,…", "a row is trained on each of these devices at once"),
        overrides(
            "overrides a key in the recipes of all rows; tokens, minutes, run_dir, grid, seeds and evaluate.… are "
            "the study's"
        ),
    ), (
        "configs/studies/architecture_objective.yaml",
        "configs/studies/bart_noise.yaml data.path=a.jsonl.gz data.validation_path=b.jsonl.gz",
        "configs/studies/bart_noise.yaml tokens=200000 run_dir=runs/studies/short",
        "configs/studies/bart_noise.yaml evaluate.probe='{path: a.csv, test_path: b.csv}'",
        "configs/studies/bart_noise.yaml --table     # only write the table of existing runs",
    ), "STUDY (runs/studies/NAME OF THE FILE): a run of each row, table.md, picture.png", "path"),
    "runs": Command("jaxpt.report.runs:print_runs", "list runs with step, loss, best metric and age", (
        arg("directory", "DIR", "where they are (runs)", nargs="?"), _JSON,
    ), ("", "runs/studies")),
    "compare": Command("jaxpt.report.runs:print_comparison", "print how configurations and results of runs differ", (
        arg("paths", "RUN_DIR", "two runs or more", nargs="+"), _JSON,
    ), ("runs/bert_tiny runs/mine",)),
    "report": Command("jaxpt.report.page.command:report", "write an HTML page about runs and studies", (
        arg("paths", "RUN_DIR|STUDY", "runs; studies' directories or files", nargs="+"),
        arg("--out", "FILE", "the page (report.html in the first study, else run)", type=output),
        arg("--picture", "FILE", "also draw the curves into this .png or .svg", type=output),
        arg("--watts", "W", "power of a chip, or of a machine with CPUs alone", type=nonnegative),
        arg("--price", "DOLLARS", "price of an hour of the same", type=nonnegative),
        arg("--carbon", "KG", "CO₂ per kilowatt-hour (0.4)", type=nonnegative),
        arg("--load", "SHARE", "share of the power that is drawn (1)", type=share),
    ), (
        "runs/bert_tiny                                  # runs/bert_tiny/report.html",
        "runs/bert_tiny runs/mine --out both.html --picture both.png",
        "runs/studies/smoke --watts 120 --price 0.40     # of this machine, dollars an hour",
        "configs/studies/bert_ablation.yaml --out page.html",
    ), "a page (--out), and with --picture a picture"),
    "recipes": Command("jaxpt.report.recipes:print_recipes", "list the files of configs with a line each", (
        arg("word", "WORD", "only those that have this word", nargs="?"),
    ), ("", "squad")),
    "import": Command("jaxpt.cli.commands:import_model", "convert a Hugging Face directory to a run directory", (
        arg("source", "HF_DIR", "config.json with weights; OWNER/NAME on the hub; T5X; a llama2.c .bin; word vectors"),
        arg("out", "OUT", "the run directory to create", type=output),
        flag("--partial", "load matching tensors, initialise missing ones and list them"),
        arg("--ignore", "KEY", "ignore an unknown key of config.json", action="append"),
        arg("--tokenizer", "PATH", "the vocabulary, if it is not in HF_DIR"),
        arg("--base", "DIR", "base model of a peft adapter (what its adapter_config.json names)"),
        overrides(), _VERIFY,
    ), (
        "downloads/bert-base-uncased runs/bert_base",
        "downloads/gpt2 runs/gpt2 --verify",
        "google-t5/t5-small@df1b051 runs/t5_small            # downloaded from the hub",
        "downloads/finbert runs/finbert task.text=sentence",
        "stories260K.bin runs/stories260K --tokenizer tok512.model",
        "downloads/t5x/checkpoint_1000000 runs/t5 --tokenizer spiece.model",
        "downloads/adapter runs/adapted --base downloads/gpt2",
        "glove.6B.100d.txt runs/glove_100d       # also word2vec's .bin and fastText's .vec",
    ), "OUT: config.yaml, checkpoints/0, tokenizer/"),
    "export": Command("jaxpt.cli.commands:export", "convert a run to a Hugging Face directory", (
        arg("run", "RUN_DIR", "a run, or RUN_DIR/checkpoints/STEP"),
        arg("out", "OUT", "the directory to create; of word vectors a file .txt, .vec, .glove or .bin, also .gz",
            type=output),
        arg("--dtype", None, "dtype of the tensors (checkpoint's)", choices=("float32", "bfloat16", "float16")),
        flag("--adapter", "only the low-rank adapter, in peft's layout"),
        flag("--every", "each checkpoint, with the facts of its training state, as OUT/stepN"),
        arg("--task", "NAME", "of a run with several tasks, the one whose head is converted"),
        arg("--shard-gb", "GB", "maximum size of a file (5)", type=positive),
        _VERIFY,
    ), (
        "runs/bert_tiny out/bert_tiny",
        "runs/bert_tiny/checkpoints/500 out/bert_tiny_500 --dtype bfloat16 --verify",
        "runs/bert_tiny out/bert_tiny_steps --every",
        "runs/skip_gram_tiny out/vectors.bin                # word2vec's binary form",
    ), "OUT: config.json, model.safetensors, and the tokenizer's files"),
    "tokenizer train": Command("jaxpt.report.tokenizers:train", "train a vocabulary on a recipe's training split", (
        *RECIPE, arg("--out", "DIR", "directory to write the vocabulary to", required=True, type=output),
    ), (
        "configs/smoke/bert_tiny.yaml --out vocabularies/tiny",
        "configs/smoke/bert_tiny.yaml data.tokenizer.vocab_size=8000 --out words/8k",
    ), "DIR: the vocabulary's files, for data.tokenizer.path"),
    "tokenizer extend": Command("jaxpt.report.tokenizers:extend", "extend a byte-level BPE by pieces of other text", (
        *RECIPE, arg("--out", "DIR", "directory to write the vocabulary to", required=True, type=output),
        arg("--tokens", "N", "how many pieces are added", type=count, required=True),
    ), (
        "configs/pretrain/continue_olmo2_1b.yaml --tokens 2000 --out words/law data.path=law.jsonl data.mixture=[]",
    ), "DIR: the vocabulary's files, for data.tokenizer.path with init_from.vocabulary: mean"),
    "tokenizer inspect": Command("jaxpt.report.tokenizers:inspect", "show a vocabulary, and the tokens of a text", (
        arg("path", "PATH", "vocabulary file or directory"),
        arg("text", "TEXT", "text to tokenize", nargs="?"),
    ), ("runs/bert_tiny/tokenizer", "runs/bert_tiny/tokenizer 'The cat sat on the mat.'")),
    "doctor": Command("jaxpt.cli.doctor:doctor", "check versions, devices and memory, and list what is missing"),
    "completion": Command("jaxpt.cli.commands:completion", "print a script that completes commands in a shell", (
        arg("shell", None, "the shell", choices=("bash", "zsh")),
    ), (
        "bash > ~/.local/share/bash-completion/completions/jaxpt",
        "zsh > ~/.zfunc/_jaxpt                  # with ~/.zfunc in fpath",
    )),
    "schema": Command("jaxpt.cli.commands:schema", "print or write the JSON Schemas of YAML files, for editors", (
        arg("kind", None, "kind of file (recipe)", nargs="?", choices=("recipe", "study", "model"), default=None),
        arg("--write", "DIR", "write the schemas of all kinds into a directory"),
    ), (
        "> schema.json                 # of recipes",
        "study > study.schema.json",
        "--write configs               # of recipes, studies and models",
    )),
}
# fmt: on
