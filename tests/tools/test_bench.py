"""The benchmark of a training step: the batch that both sides get, equal losses of tiny models, and what goes wrong."""

import gzip
import json
import runpy
import subprocess
import sys
from typing import ClassVar

import numpy as np
import pytest

from tests import grids
from tests.config.helpers import ROOT

SIZES = {
    "bert": "layers: 1, embed_dim: 16, heads: 2, mlp_dim: 32",
    "gpt2": "layers: 1, embed_dim: 16, heads: 2, mlp_dim: 32, max_positions: 32",
    "t5": "layers: 1, embed_dim: 16, heads: 2, head_dim: 8, mlp_dim: 32",
}
OBJECTIVES = {"bert": "masked_lm", "gpt2": "causal_lm", "t5": "span_corruption"}


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools/bench"))
    return runpy.run_path(str(ROOT / "tools/bench/__main__.py"))


def tiny(tmp_path, kind, vocab_size=128):
    (tmp_path / "tiny.yaml").write_text(f"model: {{kind: {kind}, vocab_size: {vocab_size}, {SIZES[kind]}}}\n")
    return str(tmp_path / "tiny")


def test_both_sides_get_the_same_batch(bench, monkeypatch):
    import cases

    class Shape:
        def __init__(self, shape):
            self.shape, self.dtype = shape, np.dtype(np.int32)

    names = ("encoder_input_tokens", "encoder_positions", "masked_positions", "masked_targets", "masked_weights")
    batch = cases.random_batch({name: Shape((3, 4 if "masked" in name else 16)) for name in names}, 50)
    theirs = cases.of_transformers(batch)
    assert (theirs["labels"] != -100).sum() == 12
    for row in range(3):
        assert list(theirs["labels"][row, batch["masked_positions"][row]]) == list(batch["masked_targets"][row])
    names = ("decoder_input_tokens", "decoder_target_tokens", "decoder_positions", "decoder_loss_weights")
    batch = cases.random_batch({name: Shape((3, 16)) for name in names}, 50)
    assert (batch["decoder_target_tokens"][:, :-1] == batch["decoder_input_tokens"][:, 1:]).all()
    assert batch["decoder_loss_weights"].sum() == 3 * 15
    for case in bench["CASES"].values():
        assert (cases.CONFIGS / f"{case.model}.yaml").exists()


@pytest.mark.parity
@pytest.mark.parametrize("kind", grids.cases(SIZES, "bert"))
def test_tiny_models_have_equal_first_losses(bench, kind, tmp_path):
    import compare
    import show

    case = bench["Case"](tiny(tmp_path, kind), OBJECTIVES[kind], 3, 32)  # rows that no 8 devices could share
    sides = compare.sides_of(case, compiles=False, plain_malloc=False)
    found = compare.measured("tiny", case, sides, "float32", rounds=1, steps=1)
    losses = [one["first_loss"] for one in found["sides"].values()]
    assert losses == pytest.approx([losses[0]] * (3 if kind == "bert" else 2), rel=1e-5)
    assert found["interleaved"] and not any(one["mfu"] for one in found["sides"].values())
    lines = show.table(found)
    assert "tokens/s" in lines and ("logits of all positions" in lines) == (kind == "bert")
    show.picture([found, {"case": "odd", "error": "x"}], tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes()[:4] == b"\x89PNG"


def test_torch_keeps_freed_memory_as_jaxpt_does(bench):
    import compare
    from cases import CASES

    of_bert = compare.sides_of(CASES["bert_base_16x128"], compiles=True, plain_malloc=False)
    of_gpt = compare.sides_of(CASES["gpt2_124m_4x256"], compiles=True, plain_malloc=True)
    assert list(of_bert) == list(compare.SIDES) and list(of_gpt) == ["jaxpt", "torch", "torch.compile"]
    assert not any("plain-malloc" in words for words in of_bert.values())
    assert ["plain-malloc" in words for words in of_gpt.values()] == [False, True, True]
    # and jax is not there for that
    code = "import sys; from jaxpt.runtime import process; print(process.keep_freed_memory(), 'jax' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.split()[1] == "False"


@pytest.mark.parametrize("option", ["--rounds", "--steps", "--layers"])
@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_counts_are_whole_numbers(bench, option, value, capsys):
    with pytest.raises(SystemExit) as stopped:
        bench["main"]([f"{option}={value}"])
    assert stopped.value.code == 2
    assert f"argument {option}: expected a positive integer, got '{value}'" in capsys.readouterr().err


def test_the_largest_batch_wants_a_gpu(bench, capsys):
    with pytest.raises(SystemExit) as stopped:
        bench["main"](["--largest"])
    assert stopped.value.code == 2
    assert "--largest wants a GPU, this is a cpu" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error, is_full",
    [
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", True),
        ("JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.", True),
        ("AcceleratorError: CUDA error: out of memory", True),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("OutOfResources: out of resource: shared memory, Required: 300000", False),
        ("ValueError: no such option", False),
        ("the process ended with code 1", False),
    ],
)
def test_which_errors_say_that_memory_is_full(bench, error, is_full):
    import worker

    assert worker.is_out_of_memory(error) == is_full


class Stub:
    """In the place of a worker: `most[program]` rows fit, alone; `together` processes at once."""

    most: ClassVar[dict] = {}
    together, running, failing, failing_at = 9, 0, None, "prepare"
    now, slow = 0.0, None
    """Seconds on the clock; each step takes one, and what the slow program does before them 50."""

    def __init__(self, *program, **environment):
        self.program, self.writes = " ".join(program), bool(environment)
        Stub.running += not self.writes

    def ask(self, do, seconds=None, **asked):
        import worker

        Stub.now += asked.get("steps", 0) + 50 * (do in ("prepare", "write") and self.program == Stub.slow)
        if seconds is not None and do == "prepare" and self.program == Stub.slow:
            raise worker.TooLate(f"not ready after {seconds:.0f} s")

        if do == "write":
            assert self.program == "ours.py"
        if do == Stub.failing_at and self.program == Stub.failing:
            raise worker.Failed("ValueError: broken")
        if do == "prepare" and (asked["case"].rows > Stub.most[self.program] or Stub.running > Stub.together):
            raise worker.OutOfMemory("RESOURCE_EXHAUSTED: …")
        common = {"loss": 1.0, "platform": "gpu", "compile_seconds": 0.0, "keeps_freed_memory": False, "version": "1"}
        flops = {"flops": 100, "flops_all_logits": 122, "peak_flops": 1e4, "parameters": 1, "tokens": 1, "device": "X"}
        return {**common, **flops, "seconds": [0.5] * asked.get("steps", 0), "peak_bytes": 1}

    def stop(self):
        Stub.running -= not self.writes

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


@pytest.fixture
def stubs(bench, monkeypatch):
    import compare

    monkeypatch.setattr(compare, "Worker", Stub)
    monkeypatch.setattr(Stub, "most", dict.fromkeys((" ".join(words) for words in compare.SIDES.values()), 99))
    monkeypatch.setattr(Stub, "running", 0)
    monkeypatch.setattr(Stub, "now", 0.0)
    monkeypatch.setattr(compare, "clock", lambda: Stub.now)
    return compare


def test_sides_are_chosen_by_name(bench, stubs, capsys):
    case = bench["CASES"]["bert_base_16x128"]
    named = bench["_parser"]().parse_args(["--sides", "torch.compile,torch-masked"]).sides
    assert list(stubs.sides_of(case, False, False, named)) == ["jaxpt", f"torch, {stubs.MASKED}", "torch.compile"]
    causal = bench["CASES"]["gpt2_124m"]  # has no masked positions
    assert list(stubs.sides_of(causal, True, False, named)) == ["jaxpt", "torch.compile"]
    for arguments, message in (
        (["--sides=jaxpt,flax"], "no side 'flax'; there are jaxpt, torch, torch-masked, torch.compile, torch.comp"),
        (["--budget=soon"], "--budget: expected a number above 0, got 'soon'"),
        (["--budget=-1"], "--budget: expected a number above 0, got '-1'"),
        (["--budget=9", "--packing=x.txt"], "neither --sides nor --budget"),
        (["no_case"], "no case 'no_case'; there are bert_base_16x128"),
    ):
        with pytest.raises(SystemExit) as stopped:
            bench["main"](arguments)
        told = capsys.readouterr().err
        assert stopped.value.code == 2 and message in told and told.count("\n") == 1


@pytest.mark.parametrize("when", ["prepare", "steps"])
def test_a_side_that_fails_is_recorded_and_the_others_are_measured(bench, stubs, when, monkeypatch, tmp_path):
    import show

    monkeypatch.setattr(Stub, "failing", "theirs.py compile")
    monkeypatch.setattr(Stub, "failing_at", when)
    a = bench["_parser"]().parse_args(["--compile", "--gpu", "--rounds=2"])
    (found,) = bench["run"]({"b": bench["CASES"]["bert_large_128"]}, bench["_compared"](a), tmp_path / "b")
    assert found["errors"] == {"torch.compile": "ValueError: broken"}
    assert list(found["sides"]) == [side for side in stubs.SIDES if side != "torch.compile"]
    assert {one["rounds_run"] for one in found["sides"].values()} == {2} and found["interleaved"]
    assert "torch.compile " in show.table(found) and "ValueError: broken" in show.table(found)
    assert json.loads((tmp_path / "b.json").read_text()) == [found]


def test_without_jaxpt_there_are_no_weights_but_its_steps_may_fail(bench, stubs, monkeypatch):
    import show

    case = bench["CASES"]["gpt2_124m"]
    sides = stubs.sides_of(case, False, False)
    monkeypatch.setattr(Stub, "failing", "ours.py")
    with pytest.raises(RuntimeError, match="broken"):
        stubs.measured("g", case, sides, "bfloat16", 2, 1)
    monkeypatch.setattr(Stub, "failing_at", "steps")
    found = stubs.measured("g", case, sides, "bfloat16", 2, 1)
    assert list(found["sides"]) == ["torch"] and found["sides"]["torch"]["ratio"] is None
    assert "jaxpt " in show.table(found)


def test_a_budget_ends_the_rounds(bench, stubs, monkeypatch):
    """Rounds of 2 × 3 s: the first warms up, and two more begin within 17 s."""
    import show

    case = bench["CASES"]["gpt2_124m"]
    sides = stubs.sides_of(case, False, False)
    found = stubs.measured("g", case, sides, "bfloat16", 9, 3, budget=17)
    assert {one["rounds_run"] for one in found["sides"].values()} == {2} and not found["errors"]
    assert (found["rounds"], found["budget"]) == (9, 17) and "2 of 9 rounds" in show.table(found)
    found = stubs.measured("g", case, sides, "bfloat16", 9, 3, budget=0.1)
    assert {one["rounds_run"] for one in found["sides"].values()} == {1}
    found = stubs.measured("g", case, sides, "bfloat16", 2, 3)
    assert {one["rounds_run"] for one in found["sides"].values()} == {2} and "rounds" not in show.table(found)


def test_a_side_that_is_not_ready_within_the_budget_is_left_out(bench, stubs, monkeypatch):
    case = bench["CASES"]["gpt2_124m"]
    sides = stubs.sides_of(case, True, False)
    monkeypatch.setattr(Stub, "slow", "theirs.py")
    found = stubs.measured("g", case, sides, "bfloat16", 9, 1, budget=30)
    assert found["errors"] == {"torch": "not ready after 30 s"}
    assert {side: one["rounds_run"] for side, one in found["sides"].items()} == {"jaxpt": 1, "torch.compile": 1}
    monkeypatch.setattr(Stub, "slow", "ours.py")  # is prepared and measured in any case
    found = stubs.measured("g", case, sides, "bfloat16", 9, 1, budget=30)
    line = "not prepared: the budget of 30 s was used up before"
    assert found["errors"] == dict.fromkeys(("torch", "torch.compile"), line)
    assert found["sides"]["jaxpt"]["rounds_run"] == 1


def test_sides_one_after_the_other_share_the_budget(bench, stubs, monkeypatch):
    case = bench["CASES"]["gpt2_124m"]
    monkeypatch.setattr(Stub, "together", 1)
    found = stubs.measured("g", case, stubs.sides_of(case, False, False), "bfloat16", 99, 1, budget=20)
    assert not found["interleaved"]
    assert [one["rounds_run"] for one in found["sides"].values()] == [9, 9]


def test_cases_for_a_gpu_are_run_where_there_is_one(bench, stubs, monkeypatch):
    ran = []
    monkeypatch.setitem(bench["main"].__globals__, "run", lambda cases, measure, out: ran.append(list(cases)) or [])
    for platform, cases in (("gpu", "GPU"), ("cpu", "CPU")):
        monkeypatch.setattr(stubs, "platform", lambda platform=platform: platform)
        assert bench["main"]([]) == 0 and ran.pop() == list(bench[cases])
    monkeypatch.setattr(stubs, "platform", None)
    assert bench["main"](["--gpu"]) == 0 and ran.pop() == list(bench["GPU"])
    assert bench["main"](["gpt2_124m", "--dtype=float32"]) == 0 and ran.pop() == ["gpt2_124m"]


def test_a_worker_is_not_waited_for_longer_than_is_left(bench, monkeypatch, tmp_path):
    import worker

    (tmp_path / "silent.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(worker, "__file__", str(tmp_path / "worker.py"))
    with worker.Worker("silent.py") as silent, pytest.raises(worker.TooLate, match="not ready after 0 s"):
        silent.ask("platform", 0.05)


def test_each_side_has_its_own_largest_batch(bench, stubs, monkeypatch):
    case = bench["CASES"]["bert_base_128"]
    monkeypatch.setattr(Stub, "most", {"ours.py": 10, "theirs.py": 70})
    assert stubs.largest("jaxpt", ["ours.py"], case, "bfloat16") == 8
    assert stubs.largest("torch", ["theirs.py"], case, "bfloat16") == 64
    monkeypatch.setattr(Stub, "failing", "theirs.py")
    with pytest.raises(RuntimeError, match="broken"):
        stubs.largest("torch", ["theirs.py"], case, "bfloat16")


def test_times_are_kept_where_the_largest_batch_is_not_found(bench, stubs, monkeypatch):
    import show

    def largest(side, *_):
        import worker

        if side == "torch":
            raise worker.Failed("ValueError: broken")
        return 64

    monkeypatch.setattr(stubs, "largest", largest)
    arguments = bench["_parser"]().parse_args(["--largest", "--gpu", "--rounds=1"])
    found = bench["_compared"](arguments)("gpt2_124m", bench["CASES"]["gpt2_124m"])
    assert found["sides"]["jaxpt"]["largest_rows"] == 64 and found["sides"]["torch"]["median"] == 0.5
    assert "64 rows at most" in show.table(found) and "not found: ValueError: broken" in show.table(found)


def test_sides_that_do_not_fit_together_run_one_after_the_other(bench, stubs, monkeypatch):
    import show

    case = bench["CASES"]["bert_large_128"]
    sides = stubs.sides_of(case, compiles=True, plain_malloc=False)
    monkeypatch.setattr(Stub, "together", 1)
    found = stubs.measured("b", case, sides, "bfloat16", rounds=2, steps=3)
    assert not found["interleaved"] and "not interleaved" in show.table(found)
    assert {len(one["seconds"]) for one in found["sides"].values()} == {6}
    assert {one["mfu"] for one in found["sides"].values()} == {100 / 0.5 / 1e4}
    assert "MFU = FLOPs / seconds / bf16 peak" in show.table(found) and ", X, one side after" in show.table(found)
    assert show.table(found).count("(computes the logits of all positions, 22% more FLOPs)") == 2
    monkeypatch.setattr(Stub, "together", 9)
    found = stubs.measured("b", case, sides, "float32", rounds=1, steps=1)
    assert found["interleaved"] and found["sides"]["torch"]["mfu"] is None  # the peak is bfloat16's


def test_a_case_that_fails_loses_no_other(bench, tmp_path, capsys):
    def measure(name, case):
        if name == "b":
            raise RuntimeError("RESOURCE_EXHAUSTED: …")
        written = json.loads((tmp_path / "x.json").read_text()) if name == "c" else []
        return {"case": name, "error": f"seen {len(written)}"}

    found = bench["run"](dict.fromkeys("abc"), measure, tmp_path / "x")
    assert found[1] == {"case": "b", "error": "RuntimeError: RESOURCE_EXHAUSTED: …"}
    assert found[2]["error"] == "seen 2"
    assert json.loads((tmp_path / "x.json").read_text()) == found
    assert "b: RuntimeError" in capsys.readouterr().out


def sentences(tmp_path, lengths, suffix=".txt.gz"):
    """(a file of sentences of so many tokens, [CLS] and [SEP] counted; a vocabulary)"""
    words = [chr(97 + number) for number in range(20)]
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    lines = [" ".join(words[(i + j) % 20] for j in range(length - 2)) for i, length in enumerate(lengths)]
    if "conllu" in suffix:
        lines = [f"# sent_id = {i}\n# text = {line}\n1\ta\ta\tX\n" for i, line in enumerate(lines)]
    path = tmp_path / f"sentences{suffix}"
    with gzip.open(path, "wt") as file:
        file.write("\n\n".join(lines) + "\n")
    return path, [tmp_path / "vocab.txt"]


def kept(batches):
    """What the rows hold, sentence by sentence, and what is to be predicted."""
    found = []
    for batch in batches:
        at = np.where(batch["masked_weights"] > 0, batch["masked_positions"], -1)
        for row, ids in enumerate(batch["encoder_segment_ids"]):
            for segment in range(1, ids.max() + 1):
                place = np.flatnonzero(ids == segment)
                masked = np.isin(at[row], place)
                found.append(
                    (
                        batch["encoder_input_tokens"][row, place].tolist(),
                        batch["encoder_positions"][row, place].tolist(),
                        (at[row, masked] - place[0]).tolist(),
                        batch["masked_targets"][row, masked].tolist(),
                    )
                )
    return sorted(found)


def test_packed_and_padded_rows_have_the_same_sentences(bench, tmp_path):
    import packing

    lengths = [5, 9, 14, 20, 6, 11, 30, 8, 17, 25]
    path, vocab = sentences(tmp_path, lengths, ".conllu.gz")
    lines = packing.read(path)
    assert [len(line.split()) + 2 for line in lines] == lengths
    assert lines == packing.read(sentences(tmp_path, lengths)[0])
    case = bench["Case"](tiny(tmp_path, "bert", 25), "masked_lm", 2, 32)
    _, ways, number = packing.prepared(case, path, "float32", 9, vocab)
    sides = {way: kept(batches) for way, batches in ways.items()}
    assert sides["packed"] == sides["padded"] == sides["padded to the longest"]
    assert len(sides["packed"]) == number >= 8
    assert len(ways["packed"]) < len(ways["padded"]) == len(ways["padded to the longest"]) == -(-number // 2)
    tokens = {way: packing.real_tokens(batches) for way, batches in ways.items()}
    assert set(tokens.values()) == {sum(len(text) for text, *_ in sides["packed"])}
    for padded, shorter in zip(ways["padded"], ways["padded to the longest"]):
        longest = (padded["encoder_segment_ids"] > 0).sum(-1).max()
        assert shorter["encoder_input_tokens"].shape == (len(padded["masked_weights"]), -(-longest // 8) * 8)


def test_padded_rows_of_both_sides_are_cut(bench):
    import packing

    encoder, decoder = np.zeros((2, 32), int), np.zeros((2, 9), int)
    encoder[0, :10], encoder[1, :17], decoder[:, :9] = 1, 1, 1
    names = {"encoder_segment_ids": encoder, "decoder_segment_ids": decoder, "decoder_loss_weights": decoder * 1.0}
    found = packing.cut(names)
    assert {name: x.shape for name, x in found.items()} == {
        "encoder_segment_ids": (2, 24), "decoder_segment_ids": (2, 9), "decoder_loss_weights": (2, 9),
    }  # fmt: skip
    assert packing.real_tokens([found]) == 27 + 18 and packing.places([found]) == 48 + 18


@pytest.mark.slow
def test_packing_is_measured(bench, tmp_path, capsys, monkeypatch):
    """Eight sentences of 12 tokens: two fit into a row of 32, one into a row of 16."""
    import cases

    path, vocab = sentences(tmp_path, [12] * 8)
    monkeypatch.setitem(cases.CASES, "tiny", bench["Case"](tiny(tmp_path, "bert", 25), "masked_lm", 2, 32))
    options = ["--packing", str(path), "--vocab", str(vocab[0]), "--rounds", "2", "--steps", "2"]
    assert bench["main"](["tiny", *options, "--out", str(tmp_path / "bench")]) == 0
    (found,) = json.loads((tmp_path / "bench.json").read_text())
    assert found["tokens"] == 96 and found["sentences"] == 8
    assert {way: (one["steps"], one["padding"], one["shapes"]) for way, one in found["ways"].items()} == {
        "packed": (2, 1 - 96 / 128, "32"), "padded": (4, 1 - 96 / 256, "32"),
        "padded to the longest": (4, 1 - 96 / 128, "16"),
    }  # fmt: skip
    for way in ("padded", "padded to the longest"):
        seconds = [found["ways"][one]["seconds"] for one in (way, "packed")]
        assert found["ratios"][way]["rounds"] == pytest.approx(np.divide(*seconds))
    assert "packed is" in capsys.readouterr().out
    assert (tmp_path / "bench.png").exists()


def test_packing_is_for_models_with_an_encoder(bench, tmp_path, capsys):
    with pytest.raises(SystemExit):
        bench["main"](["gpt2_124m_4x256", "--packing", str(tmp_path)])
    assert "for encoders and encoder-decoders" in capsys.readouterr().err
