"""`jaxpt plan`: does a recipe fit, what does its step take, what is slow, what does it cost, with no device at hand."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.errors import UserError
from jaxpt.parallel.chips import CARBON, PUE
from jaxpt.plan import decode, program, roofline, search, show, topologies
from jaxpt.plan.decode import DecodeResult, Shape
from jaxpt.plan.program import PlanResult, Target
from jaxpt.plan.topologies import Topology
from jaxpt.runtime.progress import display, track
from jaxpt.train import preflight


def plan(
    config: Config,
    topology: str | None = None,
    slices: int | None = None,
    *,
    as_json: bool = False,
    shardings: bool = False,
    searching: int = 0,
    save: str | None = None,
    **assumptions: float,
) -> None:
    """Compiles every phase's step and prints what it takes.

    Args:
      config: the run's configuration.
      topology: kind and shape of a slice, such as v5e:16x16, or of machines with GPUs, such as h100:2x8; by default
        that of the recipe, or this machine's devices.
      slices: number of such slices, 1 or the recipe's by default.
      as_json: print one JSON object instead of tables.
      shardings: print where each parameter lies as well.
      searching: try so many other settings on the last phase and rank them; 0 for none.
      save: directory to write the compiled steps to, for `train.compiled`.
      **assumptions: as `report`.

    Raises:
      UserError: for what is wrong with the recipe, or if it does not fit: by how much, which buffer is the largest, and
        the nearest settings that fit. Of a search: nothing fits, or the best settings do not fit all phases.
    """
    where, chips = _where(config, topology, slices, searching > 0)
    if save is not None and chips is not None and chips.machine is not None:
        raise UserError("--save: kernels for GPUs are tuned on one; save the step there, with plan.topology=null")
    for phase_config in configs.phase_configs(config):
        preflight.check_tables(phase_config)
    if searching:
        _search(config, where, chips, searching, as_json)
        return
    phases = []
    for phase in range(len(configs.phase_starts(config))):
        with track(f"compiling the step of phase {phase + 1} for {where}"):
            phases.append(program.measure(config, where, phase))
    figures = report(config, where, phases, **assumptions)
    largest = max(phases, key=lambda measured: measured.total - measured.limit)
    advice = None if largest.fits else _advice(config, where, largest)
    if as_json:
        print(json.dumps({**figures, "fits": largest.fits, "advice": advice}, indent=2))
    else:
        show.plan(figures, shardings)
    if advice is not None:
        raise UserError(advice)
    for measured in phases if save is not None else ():
        with track(f"compiling the step of phase {measured.phase + 1} to its end"):
            line = program.save(config, where, measured.phase, save)
        _note(line)


def plan_decode(
    config: Config,
    text: str,
    topology: str | None = None,
    slices: int | None = None,
    overrides: Sequence[str] = (),
    *,
    as_json: bool = False,
) -> None:
    """Compiles the loop that decodes a batch and prints what a token step takes.

    Args:
      config: the run's configuration.
      text: BATCHxLENGTH; of an encoder-decoder BATCHxENCODER/DECODER.
      topology: as `plan`.
      slices: as `plan`.
      overrides: command-line arguments; a size of a mesh axis among them replaces the mesh that is chosen for decoding.
      as_json: print one JSON object instead of a table.

    Raises:
      UserError: for what is wrong with model, batch, mesh or topology, or if it does not fit.
    """
    shape = Shape.parse(text, config)
    where, _ = _where(config, topology, slices)
    axes = decode.axes_of(config, overrides)

    def compile_(rows: int) -> DecodeResult:
        new = dataclasses.replace(shape, rows=rows)
        _note(f"compiling the decoding of {new} for {where} …")
        return decode.measure(config, where, new, axes)

    first = compile_(shape.rows)
    largest, tried = decode.largest(first, compile_) if first.platform != "cpu" else (None, 1)
    figures = {"model": config.model.kind, "where": str(where), **_decoding(first, where), "fits": first.fits}
    figures |= {"largest": None if largest is None else _decoding(largest, where), "compiled": tried}
    if as_json:
        print(json.dumps(figures, indent=2))
    else:
        show.decode(figures)
    if not first.fits:
        fitting = "no batch that was tried does" if largest is None else f"{largest.rows} rows do"
        raise UserError(
            f"--decode {shape} does not fit: {(first.total - first.limit) / 2**30:.2f} GiB too much; {fitting}"
        )


def _decoding(measured: DecodeResult, where: Target) -> dict[str, Any]:
    """The figures of one program, with its bound where the chips are known."""
    figures = {**dataclasses.asdict(measured), "ratio": measured.ratio, "token_bytes": measured.token_bytes}
    chips = _chips(measured, where)
    if chips is not None:
        bound = roofline.bound(dataclasses.replace(measured, traffic=measured.traffic_padded), chips)
        figures["bound"] = {"seconds": bound.seconds, "by": bound.by, "times": bound.times}
        figures["tokens_per_second"] = measured.rows / bound.seconds
    return figures


def _chips(measured: PlanResult | DecodeResult, where: Target) -> Topology | None:
    if where.topology is not None:
        return topologies.parse(where.topology, where.slices)
    return topologies.local(measured.device_kind, measured.devices)


def _where(
    config: Config, topology: str | None, slices: int | None, searching: bool = False
) -> tuple[Target, Topology | None]:
    where = Target.of(config, topology, slices)
    chips = None if where.topology is None else topologies.parse(where.topology, where.slices)
    if chips is None and (where.slices > 1 or searching):
        raise UserError("--slices and --search want a --topology, or plan.topology in the recipe")
    if chips is not None:
        chips.check_compiler()  # before a line says that something is compiled
    return where, chips


def _note(text: str) -> None:
    if not display.quiet:
        display.print(text)


def report(
    config: Config, where: Target, phases: list[PlanResult], price: float | None = None, watts: float | None = None,
    carbon: float = CARBON,
) -> dict[str, Any]:  # fmt: skip
    """All figures as plain values: what `--json` prints, and what the tables show.

    Args:
      config: the run's configuration.
      where: the devices that its steps were compiled for.
      phases: the program of each phase.
      price: US dollars for a chip-hour; by default the chip's own.
      watts: of a chip with its share of the host; likewise.
      carbon: kilograms of CO₂ for a kilowatt-hour.

    Returns:
      Nested mappings, ready for JSON; with bounds and costs where the devices' chips are known.
    """
    figures: dict[str, Any] = {"model": config.model.kind, "objective": config.objective.kind, "where": str(where)}
    figures |= {"remat": config.model.remat, "grad_accum_steps": config.train.grad_accum_steps}
    figures["phases"] = [_plain(measured) for measured in phases]
    chips = _chips(phases[0], where)
    if chips is None:
        return figures
    bounds = [roofline.bound(measured, chips) for measured in phases]
    for phase, bound in zip(figures["phases"], bounds):
        phase["bound"] = {"seconds": bound.seconds, "by": bound.by, "mfu": bound.mfu, "times": bound.times}
        phase["bound"] |= {"shares": bound.shares, "estimate": bound.estimate}
    times = [(bound.seconds, measured.steps) for bound, measured in zip(bounds, phases)]
    price = chips.chip.price if price is None else price
    watts = chips.chip.watts if watts is None else watts
    cost = roofline.cost(times, chips, price, watts, carbon)
    figures["chips"] = chips.chips
    figures["tokens"] = sum(measured.tokens * measured.steps for measured in phases)
    # A program that does not fit never runs: its days and dollars would be figures of nothing.
    figures["cost"] = dataclasses.asdict(cost) if all(measured.fits for measured in phases) else None
    figures["assumptions"] = {
        "dollars_per_chip_hour": price, "watts_per_chip": watts, "pue": PUE,
        "kg_co2_per_kwh": carbon, "chip": {**dataclasses.asdict(chips.chip), "dcn": chips.dcn},
    }  # fmt: skip
    return figures


def _plain(measured: PlanResult) -> dict[str, Any]:
    """All but what only the roofline reads."""
    return {name: value for name, value in dataclasses.asdict(measured).items() if name != "regions"}


def _advice(config: Config, where: Target, measured: PlanResult) -> str:
    """Says in one line by how much it does not fit, which buffer is the largest, and what fits."""
    _note("it does not fit; looking for the nearest settings that do …")
    gib = 2**30
    largest = measured.buffers[0]
    of_phase = f"phase {measured.phase + 1} " if len(configs.phase_starts(config)) > 1 else ""
    text = (
        f"{of_phase}does not fit: {measured.total / gib:.2f} GiB a device, {measured.limit / gib:.2f} GiB there are, "
        f"{(measured.total - measured.limit) / gib:.2f} GiB too much; the largest buffer is {largest['name']} "
        f"{largest['shape']} of {largest['bytes'] / gib:.2f} GiB"
    )
    nearest, tried = search.nearest(config, where, measured)
    if nearest is None:
        return f"{text}; {search.more_devices(tried)}"
    return f"{text}; {search.words(nearest.settings)} fits, with {nearest.reason}"


def _search(config: Config, where: Target, chips: Topology, limit: int, as_json: bool) -> None:
    phases = len(configs.phase_starts(config))
    of_phase = f" of phase {phases}" if phases > 1 else ""
    with track(f"compiling at most {limit} programs{of_phase} for {where}", limit, "programs") as work:

        def tell(trial: search.Trial) -> None:
            work.add()
            _note(f"{search.words(trial.settings)}: {trial.reason}")

        trials = search.search(config, where, chips, limit, tell)
    if as_json:
        rows = [{"settings": t.settings, "reason": t.reason, "seconds": t.seconds} for t in trials]
        print(
            json.dumps([{**row, "seconds": row["seconds"] if row["seconds"] < 1e9 else None} for row in rows], indent=2)
        )
    else:
        show.ranked(config, trials)
    if not any(t.fits for t in trials):
        raise UserError(f"nothing fits {where}: {search.more_devices(trials)}")
    if phases > 1:
        with track(f"compiling the steps of other phases for {where}"):
            found = search.in_other_phases(config, where, trials[0], phases - 1)
        if not found.fits:
            raise UserError(
                f"{search.words(trials[0].settings)} fits phase {phases}, but not {found.reason}; "
                "plan them without --search for the nearest settings that fit"
            )
