"""Interrupts a small run again and again, at random moments of every stage, and looks at what comes of it.

    python tools/interrupt.py [--each 2] [--seed 0] [--signals SIGINT,SIGTERM,SIGUSR1,SIGHUP] [--stages imports,...]

One run is started, met by a random one of the signals, and resumed, `--each` times in every stage; stages before the
first step start without prepared data, records and compiled programs, half of the imports without byte code. It prints
for every signal the stage, the exit code, the seconds from the signal to the end of the process, and the step of the
newest checkpoint; then whether the last state is equal, bit for bit, to that of a run that was not interrupted.

| Signal | What is right |
|---|---|
| SIGINT, SIGTERM | the process ends with 128 + the signal's number |
| SIGUSR1, SIGHUP | it goes on; from its first step on it saves within 10 s; SIGTERM then ends it |
| SIGKILL | no process hears it: the code is the negative number |

None of the first four is sent before jaxpt has its handler.

Exits with 1 where a code, a save or a state is wrong, or no save that was asked for lies between the regular ones.
"""

import argparse
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import command_line
import forked
from forked import ROOT

STEPS, SWITCH = 120, 60
# A stage begins with the line that matches the first pattern, and ends with the one that matches the second.
STAGES = {
    "imports": (None, "^jaxpt train"),
    "vocabulary": ("^state .* a device", "preparing train"),
    "records": ("preparing train", "^data: "),
    "restore": ("^resuming", "parameters;"),
    "compile": ("^data: ", r"^step \d+/"),
    "steps": (r"^step \d+/", f"^step {SWITCH}/"),
    "evaluation": (r"^step \d+0/\d+  loss", "validation:"),
    "save": ("validation:", r"^step \d+/\d+  loss"),
    "phase change": (f"^step {SWITCH}/", f"^step {SWITCH + 1}/"),
    "end": (f"^step {STEPS}/.*validation:", None),
}
LAST = {"restore": STEPS, "steps": SWITCH - 10, "phase change": SWITCH, "end": STEPS}  # a run further on starts anew
SIGNALS = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP", "SIGKILL")
SAVES = (signal.SIGUSR1, signal.SIGHUP)
SAVE_SECONDS, REGULAR = 10, 10
BEFORE_STEPS = ("imports", "vocabulary", "records", "compile")


def command(folder, run_dir):
    phases = f"[{{steps: {SWITCH}, set: {{data.length: 16}}}}, {{set: {{data.length: 32}}}}]"
    return [
        sys.executable, "-m", "jaxpt", "train", str(ROOT / "configs/smoke/bert_tiny.yaml"), f"run_dir={run_dir}",
        f"data.path={folder}/corpus.txt", f"data.cache_dir={folder}/cache", "data.batch_size=16", "model.layers=1",
        f"train.phases={phases}", f"train.steps={STEPS}", "train.eval_every=20", "train.log_every=1",
        "train.eval_examples=2000", f"checkpoint.every={REGULAR}", "optimizer.schedule.warmup_steps=10",
    ]  # fmt: skip


def start(folder, run_dir, cold_imports=False):
    environment = os.environ | {
        "XDG_CACHE_HOME": f"{folder}/cache", "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT), "COLUMNS": "200",
    }  # fmt: skip
    if cold_imports:
        environment |= {"PYTHONPYCACHEPREFIX": tempfile.mkdtemp(dir=folder)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command(folder, run_dir), env=environment, cwd=folder, **pipes)


class Output(threading.Thread):
    """Reads what a process says; `times` has the moment of each line."""

    def __init__(self, started):
        super().__init__(daemon=True)
        self.stream, self.lines, self.times = started.stdout, [], []
        self.start()

    def run(self):
        for line in self.stream:
            self.times.append(time.monotonic())
            self.lines.append(line.rstrip())

    def find(self, pattern, after=0):
        """The index of the first line that matches, None where there is none."""
        lines = enumerate(list(self.lines))
        return next((i for i, line in lines if i >= after and re.search(pattern, line)), None)


def durations(output, begun, ended):
    """{stage: seconds} of an uninterrupted run."""
    found = {}
    for stage, (first, last) in STAGES.items():
        at = None if first is None else output.find(first)
        begin = begun if first is None else None if at is None else output.times[at]
        end = None if last is None else output.find(last, (-1 if at is None else at) + 1)
        if begin is not None:
            found[stage] = (ended if end is None else output.times[end]) - begin
    return found


def interrupt(folder, run_dir, stage, seconds, rng, numbers, saved):
    """Starts or resumes the run and sends a signal in a stage; steps whose save was asked for are added to `saved`.

    Returns:
      (signal, or None where the run ended before; exit code, None of a stuck run; seconds from the signal to the end;
      output; what was wrong with a save, "" if nothing was).
    """
    started = start(folder, run_dir, cold_imports=stage == "imports" and rng.random() < 0.5)
    output, pattern, end = Output(started), STAGES[stage][0], time.monotonic() + forked.DEADLINE
    while pattern is not None and output.find(pattern) is None and started.poll() is None:
        if time.monotonic() > end:
            return None, forked.ended(started, 0), 0.0, output, ""
        time.sleep(0.005)
    time.sleep(rng.random() * seconds)
    number = rng.choice(numbers)
    if started.poll() is not None:
        return None, started.returncode, 0.0, output, ""
    while number != signal.SIGKILL and started.poll() is None and not is_handled(started, number):
        if time.monotonic() > end:
            return None, forked.ended(started, 0), 0.0, output, ""
        time.sleep(0.001)  # jaxpt has not begun: the system would end it
    started.send_signal(number)
    wrong = no_save(started, output, run_dir, saved) if number in SAVES else ""
    sent = time.monotonic()
    if number in SAVES:
        started.terminate()
    code = forked.ended(started, 120)
    output.join(5)
    return number, code, time.monotonic() - sent, output, wrong


def no_save(started, output, run_dir, saved):
    """What was wrong after a request to save, "" if nothing was; the step that it saved is added to `saved`."""
    steps = [int(found[1]) for line in list(output.lines) if (found := re.match(r"step (\d+)/", line))]
    end = time.monotonic() + (SAVE_SECONDS if steps else 1)
    while time.monotonic() < end and started.poll() is None:
        if steps and standing(run_dir) >= steps[-1]:
            saved.append(standing(run_dir))
            return ""
        time.sleep(0.01)
    if started.poll() not in (None, 0):
        return f"it ended with {started.returncode}"
    return f"no save of step {steps[-1]} or later" if steps and standing(run_dir) < steps[-1] else ""


def is_handled(started, number):
    """Whether a process has jaxpt's handler of a signal: Python itself has one of SIGINT, and none of SIGTERM."""
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{started.pid}/status").read_text())[1]
    number = signal.SIGTERM if number == signal.SIGINT else number
    return bool(int(caught, 16) >> (number - 1) & 1)


def right_code(number, code):
    """Whether a process ended as it should after a signal, or without one."""
    if number is None:
        return code == 0
    if number in SAVES:  # its last step may have come before SIGTERM did
        return code in (0, 128 + signal.SIGTERM)
    return code == (-number if number == signal.SIGKILL else 128 + number)


def standing(run_dir):
    return forked.newest(run_dir) or 0


def prepare(folder, stage, times, rng, saved):
    """Makes the folder ready for a signal in a stage: without what the stage makes, and with a run that comes to it."""
    if stage in BEFORE_STEPS:
        shutil.rmtree(folder / "cache", ignore_errors=True)
    if stage in BEFORE_STEPS or standing(folder / "run") >= LAST.get(stage, STEPS - 40):
        shutil.rmtree(folder / "run", ignore_errors=True)
    if stage == "restore" and not standing(folder / "run"):  # there has to be something to restore
        interrupt(folder, folder / "run", "steps", times["steps"], rng, [signal.SIGTERM], saved)


def finish(folder):
    """Resumes the run to its end.

    Returns:
      (exit code; whether its last state is that of the whole run, "not compared" if it failed; its last lines).
    """
    last = start(folder, folder / "run")
    output = Output(last)
    code, equal = forked.ended(last), "not compared"
    if code == 0:
        equal = forked.digests(folder / "run", STEPS) == forked.digests(folder / "whole", STEPS)
    return code, equal, output.lines[-5:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=command_line.count, default=2, help="signals in each stage (2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--signals", type=command_line.names(SIGNALS), default=",".join(SIGNALS[:4]), help="A,B")
    parser.add_argument(
        "--stages", type=command_line.names(STAGES), default=",".join(STAGES), help="stages, with commas between"
    )
    arguments = parser.parse_args()
    numbers = [signal.Signals[name] for name in arguments.signals]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it, and theirs
    rng, wrong, waits, saved = random.Random(arguments.seed), [], [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        forked.write_corpus(folder, 400_000)
        begun = time.monotonic()
        whole = start(folder, folder / "whole")
        output = Output(whole)
        if forked.ended(whole) != 0:
            raise SystemExit("\n".join(output.lines))
        times = durations(output, begun, time.monotonic())
        print("uninterrupted, seconds of each stage:", {k: round(v, 2) for k, v in times.items()}, flush=True)
        for stage in [stage for stage in arguments.stages for _ in range(arguments.each)]:
            prepare(folder, stage, times, rng, saved)
            number, code, seconds, output, problem = interrupt(
                folder, folder / "run", stage, times.get(stage, 1.0), rng, numbers, saved
            )
            named = "ended before" if number is None else signal.Signals(number).name
            print(f"{stage:13} {named:12} exit {code!s:>4}  {seconds:6.2f} s  step {standing(folder / 'run'):4}  "
                  f"{output.lines[-1] if output.lines else ''}"[:170], flush=True)  # fmt: skip
            if number is None:  # what the whole run prepared is there now: the stage is shorter
                times[stage] = times.get(stage, 1.0) / 2
            else:
                waits.append(seconds)
            if problem or not right_code(number, code):
                wrong.append((stage, named, code, problem, output.lines[-5:]))
        code, equal, lines = finish(folder)
        if code != 0:
            wrong.append(("last", code, lines))
    if len(saved) > 3 and all(step % REGULAR == 0 for step in saved):
        wrong.append(("requests", f"all saves are regular ones: {saved}"))
    quick = sum(wait <= 2 for wait in waits)
    median, longest = statistics.median(waits or [0]), max(waits, default=0)
    print(f"{len(waits)} signals; reaction: median {median:.2f} s, longest {longest:.2f} s, "
          f"within 2 s {quick} of {len(waits)}; final state bit-equal: {equal}")  # fmt: skip
    for found in wrong:
        print("WRONG", *found)
    return 1 if wrong or not equal else 0


if __name__ == "__main__":
    sys.exit(main())
