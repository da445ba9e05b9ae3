"""Per-example agreement with EleutherAI's lm-eval: its own task classes and its HFLM on the exported model.

    python tools/compare_lm_eval.py RUN_DIR|HF_DIR... --data DIR [--tasks lambada,piqa] [--limit 200] [--texts]

DIR has the files of configs/tasks: lambada_openai.jsonl, arc_easy.jsonl, piqa.jsonl, hellaswag_val*.jsonl (also .gz).
Each run is exported and scored by lm-eval with transformers on torch; `jaxpt eval` scores the run itself, an
encoder-decoder in `--form plain`, since lm-eval knows no spans. lm-eval's YAML files are included as they are; only
where their rows come from is changed. An example counts where lm-eval's two best scores differ by more than 1e-4; of
LAMBADA all do. With `--shots N` all of them are the file's last row, since the two draw by other rules. `--texts`
compares long texts and greedy answers, by the adapter `jaxpt.inference.lm_eval`. lm-eval computes in float32: of a run
that computes in bfloat16 compare the directory that `jaxpt export` writes. Needs lm_eval, torch and transformers;
downloads nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

import command_line
import numpy as np
import yaml

from jaxpt.evals.few_shot import examples, task
from jaxpt.hf.convert import export
from jaxpt.inference import evaluate

if TYPE_CHECKING:  # --help needs neither
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

GAP = 1e-4
"""Scores that differ by less decide nothing."""


def _arc(row: Mapping[str, Any]) -> dict[str, Any]:
    labels = "ABCDE"[: len(row["choices"])]
    return {
        "question": row["query"].removeprefix("Question: "), "choices": {"text": row["choices"], "label": list(labels)},
        "answerKey": labels[row["gold"]],
    }  # fmt: skip


def _piqa(row: Mapping[str, Any]) -> dict[str, Any]:
    first, second = row["choices"]
    return {
        "goal": row["query"].removeprefix("Question: ").strip(), "sol1": first, "sol2": second, "label": row["gold"]
    }  # fmt: skip


TASKS: dict[str, tuple[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "lambada": ("lambada_openai", lambda row: {"text": f"{row['context']} {row['continuation']}"}),
    "arc_easy": ("arc_easy", _arc),
    "arc_challenge": ("arc_challenge", _arc),
    "piqa": ("piqa", _piqa),
    "hellaswag": ("hellaswag", lambda row: {**row, "label": str(row["label"])}),
}
"""Our task → lm-eval's, and our row as its columns."""


@dataclasses.dataclass(frozen=True)
class Asked:
    """An example as one of the two scored it."""

    pairs: list[tuple[str, str]]
    """(context, continuation) of each choice."""
    log_probs: np.ndarray
    """[choices]"""
    is_greedy: bool
    chars: np.ndarray
    """[choices], what acc_norm divides by."""


@dataclasses.dataclass
class Agreement:
    """What became of the examples of a task."""

    metric: str
    texts: int
    """Examples whose contexts and continuations are the same strings."""
    compared: int
    agreeing: int
    left_out: int
    largest: float
    """|Δ log p| of a continuation."""

    def row(self) -> list[str]:
        """Cells of the table."""
        total = self.compared + self.left_out
        return [
            self.metric, f"{self.texts}/{total}", str(self.compared), str(self.agreeing), str(self.left_out),
            f"{self.largest:.1e}",
        ]  # fmt: skip


def opened(run: str, out: Path) -> HFLM:
    """lm-eval's HFLM of a run, which is exported to `out`, or of a Hugging Face directory."""
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoConfig

    if not (Path(run) / "config.json").exists():
        export(run, out, report=lambda line: None)
        run = str(out)
    backend = "seq2seq" if AutoConfig.from_pretrained(run).is_encoder_decoder else "causal"
    found = HFLM(run, backend=backend, device="cpu", dtype="float32", batch_size=16)
    # HFLM ties the embeddings of any T5, also where the file has an output projection of its own (T5 1.1).
    found._model = type(found.model).from_pretrained(run, dtype="float32").eval()
    return found


def ours(run: str, is_plain: bool, name: str, data: str, limit: int, shots: int, shown: Path, out: Path) -> list[Asked]:
    """`jaxpt eval` on a run."""
    overrides = [f"{name}.data.shots_path={shown}"] if shots else []
    evaluate.evaluate(
        run, [name], shots=[shots], limit=limit, data=data, out=str(out), overrides=overrides,
        form="plain" if is_plain else None,
    )  # fmt: skip
    (of_task,) = task.load_all([name], overrides)
    asked = examples.examples(of_task, shots, limit, data)
    outcomes = [json.loads(line)["outcome"] for line in (out / f"{name}_{shots}shot.jsonl").read_text().splitlines()]
    return [
        Asked(
            list(zip(one.contexts, one.continuations)), np.array(of.get("log_probs") or [of["log_prob"]]),
            of.get("is_greedy", False), np.array(of.get("chars", [1]), np.float64),
        )
        for one, of in zip(asked, outcomes, strict=True)
    ]  # fmt: skip


def theirs(model: HFLM, name: str, data: str, limit: int, shots: int, shown: Path, folder: Path) -> list[Asked]:
    """lm-eval's own task on its HFLM."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    called, convert = TASKS[name]
    rows = [one.row.values for one in examples.rows_of(task.load(name), data)]
    files = {"rows": folder / f"{name}.rows.jsonl", "shots": folder / f"{name}.shots.jsonl"}
    _write(files["rows"], [convert(row) for row in rows[:limit]])
    _write(files["shots"], [convert(row) for row in [rows[-1]] * (shots + 1)])
    _write(shown, [rows[-1]] * (shots + 1))
    manager = TaskManager()
    spec = folder / f"{name}.yaml"
    sources = {split: str(files["rows"]) for split in ("test", "validation")}
    spec.write_text(yaml.safe_dump({
        "include": str(manager.task_index[called].yaml_path), "dataset_path": "json", "dataset_name": None,
        "fewshot_split": "shots",
        "dataset_kwargs": {
            "data_files": {**sources, "train": str(files["shots"]), "shots": str(files["shots"])},
            "cache_dir": str(folder / "cache"),
        },
    }))  # fmt: skip
    found = lm_eval.simple_evaluate(
        model, tasks=[str(spec)], num_fewshot=shots, limit=limit, log_samples=True, task_manager=manager,
        bootstrap_iters=0,
    )  # fmt: skip
    samples = sorted(found["samples"][called], key=lambda one: one["doc_id"])
    return [_asked(one) for one in samples]


def _asked(sample: Mapping[str, Any]) -> Asked:
    arguments = sample["arguments"]
    if isinstance(arguments, dict):  # {"gen_args_0": {"arg_0": context, "arg_1": continuation}}
        arguments = [tuple(one.values()) for one in arguments.values()]
    pairs = [(str(context), str(continuation)) for context, continuation in arguments]
    answers = sample["filtered_resps"]
    return Asked(
        pairs, np.array([float(log_prob) for log_prob, _ in answers]), str(answers[0][1]) == "True",
        np.array([float(len(continuation) - 1) for _, continuation in pairs]),  # without the delimiter
    )  # fmt: skip


def agreement(name: str, of_us: Sequence[Asked], of_them: Sequence[Asked]) -> list[Agreement]:
    """Compares all examples of a task, by each of its metrics.

    Args:
      name: of the task.
      of_us: as `jaxpt eval` scored them.
      of_them: as lm-eval did, in the same order.

    Returns:
      A line for each metric.
    """
    pairs = list(zip(of_us, of_them, strict=True))
    texts = sum(a.pairs == b.pairs for a, b in pairs)
    largest = max(float(np.abs(a.log_probs - b.log_probs).max()) for a, b in pairs)
    if name == "lambada":
        same = [a.is_greedy == b.is_greedy for a, b in pairs]
        return [Agreement("is_greedy", texts, len(same), sum(same), 0, largest)]
    found = []
    for metric in ("acc", "acc_norm"):
        same = []
        for a, b in pairs:
            ours_of, theirs_of = (x.log_probs / (x.chars if metric == "acc_norm" else 1.0) for x in (a, b))
            best = np.sort(theirs_of)[::-1]
            if best[0] - best[1] > GAP:
                same.append(int(np.argmax(ours_of)) == int(np.argmax(theirs_of)))
        found.append(Agreement(metric, texts, len(same), sum(same), len(pairs) - len(same), largest))
    return found


def compared_texts(run: str, model: HFLM, data: str) -> list[str]:
    """Lines that compare long texts and greedy answers, by the adapter."""
    from jaxpt.inference.lm_eval import JaxptLM

    if model.backend != "causal":  # of long texts its encoder gets nothing but EOS; prompts get no span to fill
        return ["long texts and answers: lm-eval asks an encoder-decoder otherwise"]
    rows = [one.row.values["context"] for one in examples.rows_of(task.load("lambada"), data)]
    adapter = JaxptLM(run)
    lines = []
    asked = _requests("loglikelihood_rolling", [("\n\n".join(rows[i : i + 16]),) for i in (0, 16)])
    model.add_bos_token = False  # else the BOS that the tokenizer puts is scored after another one
    for ours_of, theirs_of in zip(adapter.loglikelihood_rolling(asked), model.loglikelihood_rolling(asked)):
        lines.append(f"rolling: {ours_of:.4f} {theirs_of:.4f}, relative {abs(ours_of / theirs_of - 1):.1e}")
    model.add_bos_token = None
    options = {"until": ["\n\n"], "max_gen_toks": 24, "do_sample": False}
    asked = _requests("generate_until", [(" ".join(text.split()[:20]), dict(options)) for text in rows[:10]])
    answers = list(zip(adapter.generate_until(asked), model.generate_until(asked)))
    # SentencePiece's decoder drops the space before an answer; `jaxpt` keeps it.
    same = sum(a.strip() == b.strip() for a, b in answers)
    lines.append(f"greedy answers: {same} of {len(answers)} are equal")
    lines += [f"  {a!r}\n  {b!r}" for a, b in answers if a.strip() != b.strip()]
    return lines


def _requests(kind: str, arguments: Sequence[tuple[Any, ...]]) -> list[Instance]:
    from lm_eval.api.instance import Instance

    return [Instance(request_type=kind, doc={}, arguments=one, idx=0) for one in arguments]


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@command_line.one_line()
def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--data", required=True)
    parser.add_argument("--tasks", default="lambada,arc_easy,piqa,hellaswag", type=command_line.names(TASKS))
    parser.add_argument("--limit", type=command_line.count, default=200)
    parser.add_argument("--shots", type=int, default=0)
    parser.add_argument("--texts", action="store_true")
    arguments = parser.parse_args()
    print("| model | task | metric | same texts | compared | agreeing | left out | largest difference of log p |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for run in arguments.runs:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            model = opened(run, folder / "hf")
            for name in arguments.tasks:
                given = (name, arguments.data, arguments.limit, arguments.shots, folder / f"{name}.shown.jsonl")
                of_them = theirs(model, *given, folder)
                for one in agreement(name, ours(run, model.backend == "seq2seq", *given, folder / "ours"), of_them):
                    print("|", " | ".join([Path(run).name, name, *one.row()]), "|", flush=True)
            for line in compared_texts(run, model, arguments.data) if arguments.texts else []:
                print(line, flush=True)


if __name__ == "__main__":
    main()
