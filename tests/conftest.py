"""Shared by all tests: their devices and order, quick compilation, quiet TensorFlow, what they cost."""

import importlib.metadata
import json
import os
import re
import sys
import tempfile
import threading

import pytest

IS_DEVICE_RUN = os.environ.get("JAX_PLATFORMS", "cpu") != "cpu"
"""Whether tests run on an accelerator: JAX_PLATFORMS=cuda,cpu says so, or `-m gpu` where NVIDIA's driver is."""
HAS_NVIDIA = any(map(os.path.exists, ("/dev/nvidiactl", "/proc/driver/nvidia/version")))
if HAS_NVIDIA and "JAX_PLATFORMS" not in os.environ and re.search(r" -m[ =]?gpu\b", " ".join(sys.argv)):
    IS_DEVICE_RUN = True
    os.environ["JAX_PLATFORMS"] = "cuda,cpu"  # workers and other processes inherit it


os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test downloads; a name that looks like the hub's fails at once


def use_cpu():
    """Eight virtual devices and quick compilation, for this process and those that it starts."""
    # The time of these tests is that of compiling small programs: without optimizations it is a sixth (a step of a toy
    # GPT-2: 7.2 → 1.2 s). With XLA_FLAGS=--xla_force_host_platform_device_count=8 JAX_DISABLE_MOST_OPTIMIZATIONS=0 in
    # the environment programs are compiled as users' are.
    # Of what is left a third went into cutting each program into 32 parts.
    flags = ["--xla_force_host_platform_device_count=8", "--xla_cpu_parallel_codegen_split_count=1"]
    if importlib.metadata.version("jaxlib").startswith("0.10."):  # a later XLA ends the process at an unknown flag
        flags.append("--xla_cpu_use_fusion_emitters=false")
    os.environ.setdefault("XLA_FLAGS", " ".join(flags))
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # Threads of XLA's pools. A collective of a virtual device holds one until its peers come; with as many threads as
    # devices, those that wait in different collectives of one program can hold all of them, and none ever goes on.
    os.environ.setdefault("NPROC", "32")


def use_device():
    """The device as it is, which the workers share; products of float32 are not rounded to TF32 or bfloat16."""
    os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    # The fastest algorithm of each product is not looked for: compiling is most of what these tests do.
    os.environ.setdefault("XLA_FLAGS", "--xla_gpu_autotune_level=0")


use_device() if IS_DEVICE_RUN else use_cpu()
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# The runs that tests start as processes of their own share the cache through the environment.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.join(tempfile.gettempdir(), "jaxpt-test-cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

# The longest come first: what is left for the end are short files, and both workers end at about the same time.
LONGEST = (
    "test_page_commands.py", "train/test_elastic.py", "train/test_resume.py", "inference/test_predict_processes.py",
    "test_finetunings.py", "hf/test_parity.py", "train/test_trainable.py", "train/test_features.py",
    "inference/test_predict_texts.py", "tools/test_damage.py", "train/test_mixture.py", "extending/test_simcse.py",
    "train/test_teachers.py", "train/test_carry.py", "train/test_unfreezing.py", "train/test_lora.py",
    "train/test_step.py", "inference/test_command.py", "train/test_out_of_memory.py", "train/test_several_processes.py",
    "train/test_profile.py", "train/test_added_tokens.py", "models/test_base.py", "decode/test_likelihood.py",
    "decode/test_engine.py", "models/test_split.py", "decode/test_beam_parity.py", "hf/test_tasks_parity.py",
)  # fmt: skip


def is_for_gpu(config):
    return config.option.markexpr == "gpu"


def pytest_ignore_collect(collection_path, config):
    """`-m gpu` imports the files that have the marker alone: others may need TensorFlow, which may not be there."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    if is_for_gpu(config) and is_test and "mark.gpu" not in collection_path.read_text("utf-8"):
        return True
    return None


def pytest_make_parametrize_id(val, argname):
    """Bytes are named by their parameter: those of a compressed file hold the time, and each worker makes its own."""
    return argname if isinstance(val, bytes) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    if is_for_gpu(config):  # neither the many cases of grids nor what needs torch
        left_out = [item for item in items if any(item.get_closest_marker(name) for name in ("grid", "parity"))]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    if "PYTEST_XDIST_WORKER" not in os.environ:  # one process: as they were asked for
        return
    order = {f"tests/{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0], len(order)))


def pytest_collection_finish():
    from jaxpt.runtime import progress
    from tests import garbage  # noqa: F401

    # Tests count the lines of commands: on a loaded machine slow work would add some. `test_progress.py` has its own.
    progress.SECONDS = 3600.0
    record_cost("imports", "imports and collection", cpu_seconds())


MOST_MEMORY = 3 * 2**30
"""Bytes of a worker from which on what JAX compiled for earlier files is dropped: slow tests made 9 GB of it."""


if IS_DEVICE_RUN:

    @pytest.fixture(autouse=True, scope="session")
    def _device_is_there():
        import jax

        if jax.default_backend() == "cpu":  # JAX leaves out a platform whose plugin is not installed
            pytest.fail(f"JAX_PLATFORMS={os.environ['JAX_PLATFORMS']}, but JAX finds the CPU alone", pytrace=False)

    @pytest.fixture(autouse=True)
    def _tolerances_of_a_device(monkeypatch):
        from tests import tolerances

        tolerances.widen(monkeypatch)


LEFT_BEHIND = ("jaxpt-preparer", "jaxpt-compile", "jaxpt-store")
"""Threads that a test may leave: of a run that failed, whose program compiles, and of stores that no run had opened."""


@pytest.fixture(autouse=True)
def _nothing_of_earlier_tests():
    """Their threads have ended, which would print into this test; and what commands set for their process is undone."""
    from jaxpt.runtime import progress, signals

    for thread in threading.enumerate():
        if thread.name in LEFT_BEHIND:
            thread.join(60)
    path = [*sys.path]
    yield
    sys.path[:] = path  # commands append the current directory, whose modules would hide those of later tests
    progress.display.quiet = False  # of `--quiet`
    signals.clear_save_request()


@pytest.fixture(autouse=True, scope="module")
def _plugins_are_those_of_a_file():
    """Once anyone's module was imported, jaxpt takes every exception for one that the module has caused."""
    from jaxpt.runtime import plugins

    before = dict(plugins.imported)
    yield
    if plugins.imported != before:
        plugins.imported.clear()
        plugins.imported.update(before)
        if kinds := sys.modules.get("jaxpt.config.kinds"):
            kinds._imported.cache_clear()  # a kind that is named again is imported again


@pytest.fixture(autouse=True, scope="module")
def _programs_do_not_pile_up():
    yield
    if "jax" in sys.modules and sys.platform == "linux":
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
        if pages * os.sysconf("SC_PAGE_SIZE") > MOST_MEMORY:
            sys.modules["jax"].clear_caches()


# ---- what tests cost -------------------------------------------------------------------------------------------------

COSTS, PART = os.environ.get("JAXPT_TEST_COSTS"), os.environ.get("JAXPT_TEST_PART")
"""The file to which a line is appended for each test, and the part of the budget if its marker does not say it."""


def cpu_seconds():
    """Of this process and of the ones that it has started, forked ones' own children included."""
    seconds = sum(os.times()[:4])
    try:
        with open("/proc/thread-self/children") as file:
            children = file.read().split()
        for child in children:
            with open(f"/proc/{child}/stat") as file:
                seconds += sum(map(int, file.read().rpartition(")")[2].split()[11:15])) / os.sysconf("SC_CLK_TCK")
    except OSError:  # no Linux, or a child that has just ended
        pass
    return seconds


def record_cost(part, test, cpu):
    if COSTS:
        with open(COSTS, "a", encoding="utf-8") as file:
            file.write(json.dumps({"part": PART or part, "test": test, "cpu": round(cpu, 3)}) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    part = next((name for name in ("parity", "grid", "slow") if item.get_closest_marker(name)), "quick")
    before = cpu_seconds()
    try:
        return (yield)
    finally:
        record_cost(part, item.nodeid, cpu_seconds() - before)
