"""A phase of a run, ready for its first step: its configuration, data, evaluators and compiled programs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.data import fingerprint, preparing, tokenizers
from jaxpt.data.base import Data
from jaxpt.data.checks import cache_root
from jaxpt.data.fingerprint import as_json, order_of
from jaxpt.parallel import processes
from jaxpt.runtime import plugins
from jaxpt.runtime.progress import track
from jaxpt.train import amounts, compiled, evaluation, foreign, programs, step, teachers
from jaxpt.train.checkpoint import is_primary
from jaxpt.train.display import duration, say, warn
from jaxpt.train.run_dir import check_fingerprint, edited_modules, has_checkpoint, moved, save_config
from jaxpt.train.state import Setup
from jaxpt.train.timings import Timings

UNSHARED_CACHE_WARNING_SECONDS = 60.0
"""If hosts that share no cache take longer to prepare their data, a line says so."""

_KEPT_TOKENIZER = (
    "that the run was trained with, which is kept in its directory: leave the path as it was, or choose another run_dir"
)


_BATCH_KEYS = frozenset(f"data.{name}" for name in (
    "length", "batch_size", "packing", "batch_examples", "mixture_temperature", "mixture_cap"
))  # fmt: skip
"""Settings that leave the source as it is."""


@dataclasses.dataclass
class Phase:
    """What the steps of one stage of a run work with."""

    index: int
    """Its number among `phase_starts`, from 0."""
    setup: Setup
    data: Data
    data_start: int
    """The step that saw the first batch of `data`."""
    evaluators: evaluation.Evaluators
    code: dict[str, str]
    """{module of one's own: digest of its source}, as it was imported."""
    programs: Callable[[], programs.Programs] | None
    """Waits for the programs, which another thread compiles; None for a run without steps left."""
    flops: float = 0.0
    """Floating-point operations of a step."""
    digest: str | None = None
    """Of the machine code of `train.compiled`."""
    _compiled: programs.Programs | None = None

    @property
    def config(self) -> Config:
        """The configuration in this phase."""
        return self.setup.config

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a batch."""
        return self.config.data.batch_size * step.tokens_per_example(self.setup, self.config.objective)

    @property
    def text_tokens_per_step(self) -> float:
        """Tokens of text that a step sees, whatever the objective makes of them."""
        return round(self.config.data.batch_size * self.data.text_per_row, 3)

    def has_data_of(self, meta: dict[str, Any]) -> bool:
        """Whether a checkpoint, beside which `meta` was saved, has the same data."""
        return not fingerprint.changes(meta["data"], as_json(self.data.fingerprint))

    def compile(self, phases: int, timings: Timings) -> programs.Programs:
        """The phase's programs, compiled before its first step; says what a step takes, once.

        Args:
          phases: how many the run has.
          timings: the clock of the process's start.
        """
        if self._compiled is not None:
            return self._compiled
        compiled_programs = self._compiled = self.programs()
        for line in compiled_programs.lines:
            say(f"phase {self.index + 1} of {phases}: {line}" if phases > 1 else line)
        timings.mark("waiting for the step's program")
        self.evaluators.compile()
        timings.mark("programs of the evaluators")
        self.flops, self.digest = compiled_programs.flops, compiled_programs.digest
        return compiled_programs


class Started(NamedTuple):
    """A phase whose programs another thread compiles."""

    index: int
    setup: Setup
    """In this phase."""
    programs: Callable[[], programs.Programs]
    """Waits for them."""


def start_programs(config: Config, setup: Setup, index: int) -> Started:
    """Starts to compile the programs of a phase: they need neither its data nor the state.

    Args:
      config, setup: of the whole run.
      index: number of the phase among `phase_starts`.
    """
    setup = setup.for_phase(configs.at_phase(config, index), index)
    return Started(index, setup, programs.start(setup, index))


def enter(
    config: Config,
    setup: Setup,
    index: int,
    previous: Phase | None,
    meta: dict[str, Any] | None,
    timings: Timings,
    trains: bool = True,
    started: Started | None = None,
    origin: dict[str, Any] | None = None,
) -> Phase:
    """Prepares a phase; its programs are compiled meanwhile, in another thread.

    Args:
      config, setup: of the whole run.
      index: number of the phase among `phase_starts`.
      previous: the phase before, whose data go on where both are stages of the same one.
      meta: what was saved beside the checkpoint that the run resumes from.
      timings: the clock of the process's start.
      trains: False if no steps are left.
      started: what was started before; if it is another phase's, this one is compiled from now on.
      origin: what was saved beside the checkpoint that the run branches from; the records keep the order of then.

    Raises:
      UserError: the data are not those of the checkpoint, or a later phase does not fit: before the first one starts.
    """
    stages = configs.train_stages(config)
    later = configs.phase_configs(config)[index:] or [configs.at_phase(config, index)]  # beyond a shortened run's end
    _check_steps(setup, later, index)
    if trains and (started is None or started.index != index):
        started = start_programs(config, setup, index)
    setup, built = (started.setup, started.programs) if trains else (setup.for_phase(later[0], index), None)
    expected = _expected(config, index, meta)
    if previous is not None and stages[previous.index].phase == stages[index].phase:
        data, evaluators = previous.data, previous.evaluators
    else:
        known = previous.data.fingerprint if previous is not None else (meta or origin or {}).get("data")
        data = _open_data(config, setup, index, expected, order_of(known), timings)
        evaluators = evaluation.Evaluators(setup.for_evaluation(), data)
    code = plugins.digests(configs.plugin_modules(setup.config)) | data.code
    if previous is None:  # a run under way goes on with the code that it began with
        plugins.check_unedited(code)
    edited = edited_modules(code, meta or {})
    teachers.check_vocabulary(setup, data.tokenizer)
    for later_config in later:
        later_config.objective.check(later_config.model, later_config.data.length, data.vocabulary)
    if expected is not None:
        current = expected.of(as_json(data.fingerprint))
        check_fingerprint(expected.fingerprint, current, str(Path(config.run_dir)), edited)
        if "data.tokenizer.path" in [key for key, _, _ in moved(config)]:
            tokenizers.check_same(setup.config, data.tokenizer, _KEPT_TOKENIZER)
    if edited:
        say(f"edited since the checkpoint: {edited}; the steps from here on use the code as it is now")
    if is_primary():
        _write_run_dir(config, setup, data)
    timings.mark("data")
    return Phase(index, setup, data, stages[index].phase_start, evaluators, code, built)


class _Expected(NamedTuple):
    """What a checkpoint says of the data that a run resumes with."""

    fingerprint: dict[str, Any]
    """Of the data, or the parts of it that are compared."""
    parts: tuple[str, ...] | None = None
    """Their names; None where all of it is compared."""

    def of(self, other: dict[str, Any]) -> dict[str, Any]:
        """The same parts of another fingerprint."""
        return other if self.parts is None else {part: other[part] for part in self.parts}


def _expected(config: Config, index: int, meta: dict[str, Any] | None) -> _Expected | None:
    """What the data of a stage are compared with; None without a checkpoint, or where the recipe has no such stage.

    Stages of one phase have the same data. At the first step of a phase the checkpoint is of the phase before: source
    and vocabulary are compared, each where the two phases have the same settings of it.
    """
    stages = configs.train_stages(config)
    if meta is None or meta["phase"] >= len(stages):
        return None
    if stages[meta["phase"]].phase == stages[index].phase:
        return _Expected(meta["data"])
    before, now = configs.at_phase(config, meta["phase"]), configs.at_phase(config, index)
    differences = (configs.differences(before, now, role) for role in ("identity", "content"))
    changed = {key for found in differences for key, _, _ in found} - _BATCH_KEYS
    of_tokenizer = {key for key in changed if key.startswith("data.tokenizer")}
    of_source = {key for key in changed - of_tokenizer if key.startswith(("data.", "task."))}
    parts = ("source",) * (not of_source) + ("tokenizer",) * (not of_source | of_tokenizer)
    return _Expected({part: meta["data"][part] for part in parts}, parts)


def _write_run_dir(config: Config, setup: Setup, data: Data) -> None:
    """Writes config.yaml, and of a new run what it takes over from other programs' files."""
    if not has_checkpoint(Path(config.run_dir)):
        if other := teachers.other_vocabulary(setup.config, data.tokenizer):
            warn(other)
        for reader in foreign.readers():
            reader.carry(setup.config, data.vocabulary)
    save_config(config)


def _is_beside(expected: _Expected | None) -> bool:
    """Whether records may be made beside the steps: processes that share a cache wait for them, and a checkpoint that
    knows the checksum of all records is compared with all records."""
    records = {} if expected is None else expected.fingerprint.get("records", {})
    return jax.process_count() == 1 and (not records or None in records.values())


def _check_steps(setup: Setup, configurations: list[Config], first: int) -> None:
    """Raises UserError if the step of a phase, from number `first` on, cannot be compiled or loaded."""
    for n, config in enumerate(configurations, first):
        step.check(config, setup)
        if config.train.compiled is not None:
            compiled.check(setup.for_phase(config, n), Path(config.train.compiled), n)


def _open_data(
    config: Config, setup: Setup, index: int, expected: _Expected | None, order: int, timings: Timings
) -> Data:
    """The data of a phase; `expected`: what they are compared with; `order`: the version that the run has."""
    with track("importing the data pipeline (TensorFlow, SeqIO)"):
        preparing.import_pipeline(setup.config)
    timings.mark("import of the data pipeline (TensorFlow, SeqIO)")

    def check_source(source: Any) -> None:
        if expected is not None and "source" in expected.fingerprint:  # before records are made of other files
            check_fingerprint({"source": expected.fingerprint["source"]}, {"source": as_json(source)}, config.run_dir)

    begun, root = time.perf_counter(), cache_root(setup.config)
    stages, point = configs.train_stages(config), f"data of phase {index + 1}"
    stage = stages[index]
    with processes.first_host_first(root, point, config.distributed.timeout, warn) as unshared:
        data = preparing.prepare(
            setup.config, stage.phase, check_source=check_source, order=order, beside=_is_beside(expected)
        )
    if unshared and (seconds := time.perf_counter() - begun) > UNSHARED_CACHE_WARNING_SECONDS:
        say(f"{len(unshared) + 1} hosts prepared the data, each for itself, in {duration(seconds)}: {root} is not "
            "shared; with data.cache_dir on a disk that all of them have it is done once")  # fmt: skip
    for store in data.stores.values():
        store.check_in_background(jax.process_index(), jax.process_count())
    next_phases = [other.start for other in stages if other.phase > stage.phase]
    steps = min([*next_phases, config.train.steps]) - stage.phase_start
    say(amounts.line(setup.config, data, steps))
    return data
