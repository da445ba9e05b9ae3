"""The launch tools, with scripts in place of gcloud, git, srun and the other commands that they call."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jaxpt.errors import UserError
from jaxpt.plan import vendor_names
from tests import waiting

TOOLS = Path(__file__).parents[2] / "tools"
TPU = ["--name=pod", "--zone=here", "--type=v6e-64", "--every=0"]
TRAIN = ["--", "jaxpt", "train", "c.yaml", "data.path=a b/*.txt", "x='$HOME' & \\", "é\n;", ""]

FAKE = """#!/usr/bin/env bash
# Writes down how it was called, and answers with the next line of states or runs (with the last one ever after).
next() {
  local all rest
  all=$(<"$PLAY/$1")
  rest=${all#*$'\\n'}
  echo "${all%%$'\\n'*}"
  [[ $rest == "$all" ]] || echo "$rest" >"$PLAY/$1"
}
printf '%q ' "${0##*/}" "$@" >>"$PLAY/log"
echo >>"$PLAY/log"
case "${0##*/} $*" in
  "gcloud "*" list "*)
    state=$(next states)
    printf 'other\\tREADY\\n'
    [[ $state == GONE ]] || printf 'pod\\t%s\\n' "$state" ;;
  "gcloud "*" create "*) exit "$(next creates)" ;;
  "gcloud "*"worker.sh state") for answer in $(next runs); do echo "host: $answer"; done ;;
  "git rev-parse "*) echo 0123abc ;;
  "git cat-file -e HEAD:tracked"*) ;;
  "git cat-file "*) exit 1 ;;
  "git "*" status "*) printf "${CHANGED- M changed.py\\n}" ;;
  srun*) [[ -z ${SCANCEL-} ]] || kill -TERM $PPID; exit "$SRUN" ;;
  scontrol*) exit "${REQUEUE-0}" ;;
  mountpoint*) [[ -z ${SHUTDOWN-} ]] || kill -"$SHUTDOWN" $PPID; exit "${MOUNTED-1}" ;;
esac
"""


class Play:
    """A copy of the tools, and what the commands that they call answer."""

    def __init__(self, folder):
        self.folder = folder
        self.tools = folder / "tools"
        self.tools.mkdir()
        for script in TOOLS.glob("*.sh"):
            shutil.copy(script, self.tools)
        (folder / "bin").mkdir()
        for name in ("gcloud", "git", "srun", "scontrol", "uv", "sudo", "mountpoint", "gcsfuse"):
            (folder / "bin" / name).write_text(FAKE)
            (folder / "bin" / name).chmod(0o755)
        self.environment = {"PATH": f"{folder}/bin:{os.environ['PATH']}", "PLAY": str(folder), "HOME": str(folder)}

    def run(self, *command, states="READY", runs="none", creates="0", **variables):
        """The exit code, stdout, stderr, and the calls."""
        for name, answers in {"states": states, "runs": runs, "creates": creates, "log": ""}.items():
            (self.folder / name).write_text("".join(f"{a}\n" for a in answers.split(", ")) if answers else "")
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment | variables, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr, (self.folder / "log").read_text().splitlines()

    def tpu(self, *arguments, **answers):
        return self.run("bash", str(self.tools / "tpu.sh"), *arguments, **answers)


@pytest.fixture
def play(tmp_path):
    return Play(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "states", "runs"),
    [
        (["create", "--spot", "--reserved", "--network=n", "--project=p"], "READY", "none"),
        (["create", "--slices=2", "--queued"], "READY", "none"),
        (["setup", "--bucket=gs://b"], "READY", "none"),
        (["setup", "--slices=2", "--nfs=host:/a share"], "ACTIVE", "none"),
        (["run"], "READY", "none"),
        (["follow", "--queued"], "READY", "none"),
        (["status"], "READY", "none"),
        (["stop"], "READY", "running"),
        (["delete", "--queued", "--yes"], "READY", "none"),
        (["resume", "--queued"], "SUSPENDED, ACTIVE", "none"),
        (["babysit"], "PREEMPTED, READY", "none, none, 0"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_a_dry_run_prints_what_is_done(play, arguments, states, runs):
    """The printed commands, read by a shell, are those of the real run, argument by argument."""
    code, printed, _, calls = play.tpu(*arguments, "--dry-run", *TPU, *TRAIN)
    assert code == 0 and not [call for call in calls if not call.startswith("git ")]
    answers = {"states": states, "runs": runs}
    reads = ("git rev-parse", "git -c")  # of the checkout, and harmless
    _, _, _, again = play.run("bash", "-e", "-c", printed, **answers)
    code, _, _, really = play.tpu(*arguments, *TPU, *TRAIN, **answers)
    assert code == 0
    assert again == [call for call in really if not call.startswith(reads)] != []


@pytest.mark.parametrize("kind", ["v4", "v5p", "v5litepod", "v6e"])
def test_types_are_those_of_jaxpt_plan(play, kind):
    for size in (1, 2, 8, 63, 64, 192, 256, 384, 512, "08", "x"):
        code, out, error, _ = play.tpu("create", "--name=pod", "--zone=here", f"--type={kind}-{size}", "--dry-run")
        try:
            is_known = ":" in vendor_names.to_topology(f"{kind}-{size}") and size != "08"
        except UserError:
            is_known = False
        assert (code == 0) == is_known, (size, error)
        if not is_known:
            start = f"tools/tpu.sh: --type: {kind}-{size}: slices of {kind} have "
            assert (code, out) == (2, "") and error.startswith(start) and error.count("\n") == 1


def test_what_is_asked_of_gcloud(play):
    def calls(*arguments):
        return play.tpu(*arguments, *TPU, "--dry-run", "--", "jaxpt", "train")[1].splitlines()

    def last(*arguments):
        return calls(*arguments)[-1]

    tpus = "gcloud compute tpus"
    assert last("create") == (
        f"{tpus} tpu-vm create pod --zone=here --accelerator-type=v6e-64 --version=v2-alpha-tpuv6e"
    )
    assert last("create", "--spot", "--slices", "4", "--version=image") == (
        f"{tpus} queued-resources create pod --zone=here --accelerator-type=v6e-64 --runtime-version=image "
        "--node-count=4 --node-prefix=pod --spot"
    )
    assert " --node-id=pod " in last("create", "--queued", "--reserved")
    assert last("run") == (
        f"{tpus} tpu-vm ssh pod --zone=here --worker=all '--command=bash jaxpt/tools/tpu_worker.sh start jaxpt train'"
    )
    assert last("follow", "--slices=2", "--project=p") == (
        f"{tpus} queued-resources ssh pod --zone=here --project=p --node=0 --worker=0 "
        "'--command=tail -n 100 -F jaxpt-run/log'"
    )
    assert calls("setup", "--nfs=host:/share")[2:5:2] == [
        "mkdir -p dist",
        f"{tpus} tpu-vm scp dist/jaxpt.tar.gz pod: --zone=here --worker=all",
    ]
    assert last("setup", "--nfs=host:/share").endswith("bash jaxpt/tools/tpu_worker.sh setup nfs host:/share'")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no command; see --help"),
        (["launch"], "no command launch: create, setup,"),
        (["create", "--name=n"], "create wants --zone --type"),
        (["status"], "status wants --name --zone"),
        (["run", *TPU], "run wants -- and the command to run"),
        (["run", *TPU, "jaxpt"], "jaxpt: the command to run stands after --"),
        (["create", *TPU, "--type=v9-8"], "--type: no runtime image is known for v9-8; give --version"),
        (["create", *TPU, "--slices=two"], "--slices: two is no number of slices"),
        (["setup", *TPU, "--bucket=b", "--nfs=h:/s"], "--bucket and --nfs: one of them"),
        (["create", "--zones", "here"], "no option --zones; see --help"),
        (["create", "--zone"], "--zone wants a value"),
    ],
)
def test_mistakes_are_one_line(play, arguments, said):
    code, out, error, calls = play.tpu(*arguments)
    assert (code, out, error.count("\n"), calls) == (2, "", 1, [])
    assert error.startswith(f"tools/tpu.sh: {said}")


def test_variables_are_the_options_defaults(play):
    code, _, error, _ = play.tpu("create", JAXPT_TPU_NAME="n", JAXPT_TPU_ZONE="z")
    assert (code, error) == (2, "tools/tpu.sh: create wants --type\n")


def verbs(calls):
    """What was done to the TPU, in a word each; looks at its state left out."""
    found = re.findall(r" (create|delete|scp) |worker\.sh\\? (setup|start)", "\n".join(calls))
    return " ".join(a or b for a, b in found)


AGAIN = "scp setup start"


@pytest.mark.parametrize(
    ("states", "runs", "done"),
    [
        ("READY", "running running", ""),
        ("READY", "running 0", ""),
        ("READY", "143 143", AGAIN),
        ("READY", "lost", AGAIN),
        ("GONE, READY", "none", f"create {AGAIN}"),
        ("PREEMPTED, CREATING, READY", "none", f"delete create {AGAIN}"),
        ("SUSPENDING, SUSPENDED, READY", "none", f"delete create {AGAIN}"),
    ],
)
def test_resume(play, states, runs, done):
    code, _, _, calls = play.tpu("resume", *TPU, *TRAIN, states=states, runs=runs)
    assert (code, verbs(calls)) == (0, done)


def test_a_stopped_tpu_is_not_deleted(play):
    code, _, error, calls = play.tpu("resume", *TPU, *TRAIN, states="STOPPED")
    assert (code, verbs(calls)) == (1, "")
    assert error == "tools/tpu.sh: pod is STOPPED, which no preemption does; start or delete it\n"


def test_a_second_run_is_refused(play):
    for verb in ("run", "setup"):
        code, _, error, calls = play.tpu(verb, *TPU, *TRAIN, runs="running none")
        assert (code, verbs(calls)) == (1, "")
        assert error == "tools/tpu.sh: pod: a run goes on there; stop ends it\n"


@pytest.mark.parametrize(
    ("runs", "code", "done"),
    [
        ("running, running, 0 0", 0, ""),
        ("running, 143 143, none, none, running, 0 0", 0, AGAIN),
        ("running, lost 134, none, none, 0", 0, AGAIN),
        ("running, 143 130", 130, ""),
        ("running, 2 2, 2 2", 2, ""),
        ("running, 2, running, 0", 0, ""),
        ("running, 75 137, 75 137, none, none, running, 0 0", 0, AGAIN),  # one was killed: the others could not go on
        ("running, 74, 74", 74, ""),
        ("running, 65 65, 65 65", 65, ""),
        # A run that always ends at once for a reason that may pass is given up after five tries.
        (f"running{', 75, 75, none, none' * 5}, 75", 75, " ".join([AGAIN] * 5)),
    ],
)
def test_babysit_goes_on_until_the_run_ends_by_itself(play, runs, code, done):
    found, _, _, calls = play.tpu("babysit", *TPU, *TRAIN, runs=runs)
    assert (found, verbs(calls)) == (code, done)


def test_babysit_tries_again_where_there_is_no_capacity(play):
    states = "READY, READY, PREEMPTED, PREEMPTED, READY"
    code, _, error, calls = play.tpu(
        "babysit", *TPU, *TRAIN, states=states, runs="running, 137 0, none, none, 0", creates="1, 0"
    )
    assert (code, verbs(calls)) == (0, f"delete create delete create {AGAIN}")
    assert "not yet, trying again" in error
    code, _, _, calls = play.tpu("babysit", *TPU, *TRAIN, states="PREEMPTED", creates="1")
    assert (code, verbs(calls)) == (1, "delete create")  # at the start it ends: it may be a mistake


def test_files_that_stay_behind_are_named_once(play):
    def said(changed, *options, verb="setup"):
        given = {"runs": "none, none, none, running, 0", "CHANGED": changed}
        error = play.tpu(verb, *TPU, *options, *TRAIN, **given)[2].splitlines()
        return [line for line in error if "not committed" in line]

    begin = "tools/tpu.sh: not committed, stays here: "
    for verb in ("setup", "resume", "babysit"):
        two = said(r" M jaxpt/cli/commands.py\n?? data/my text.txt\n", verb=verb)
        assert two == [f"{begin}jaxpt/cli/commands.py, data/my text.txt"], verb
    names = [f"{n}.py" for n in range(14)]
    many = said("".join(rf"?? {name}\n" for name in names))
    assert many == [f"{begin}{', '.join(names[:12])} and 2 more"]
    assert said("") == []
    assert said(r"?? new.py\n", "--commit=0123abc") == []


def test_what_preparing_costs_without_a_mount_is_said(play):
    line = "tools/tpu.sh: no --bucket or --nfs: each host prepares the data by itself, again after a preemption\n"
    assert play.tpu("run", *TPU, *TRAIN)[2] == line
    assert play.tpu("run", *TPU, "--bucket=b", *TRAIN)[2] == ""


def test_files_of_the_command_that_workers_lack_are_named(play):
    for name in ("tracked.model", "own.model", "text_1.gz"):
        (play.folder / name).touch()
    paths = ["a=tracked.model", "b=own.model", "c=text_*.gz", "d=/own.model", "e=none.model", "f=", "own.model"]
    error = play.tpu("run", *TPU, "--bucket=b", "--", "jaxpt", "train", *paths)[2].splitlines()
    words = "is here, not in the commit; the workers want a path of theirs, such as /mnt/jaxpt/"
    assert error == [f"tools/tpu.sh: b=own.model: {words}own.model", f"tools/tpu.sh: c=text_*.gz: {words}text_*.gz"]


def test_delete_asks(play):
    code, _, error, calls = play.tpu("delete", *TPU)
    assert (code, calls) == (1, [])
    assert "pod is left as it is" in error


# ---- a worker -------------------------------------------------------------------------------------------------------


@pytest.fixture
def worker(play):
    (play.folder / "jaxpt").mkdir()
    play.environment["HOSTNAME"] = "host"
    return lambda *arguments: play.run("bash", str(play.tools / "tpu_worker.sh"), *arguments)[:3]


def until(worker, state):
    waiting.until(lambda: worker("state")[1] == f"host: {state}\n")


linux = pytest.mark.skipif(sys.platform != "linux" or not shutil.which("flock"), reason="workers are Linux")


@linux
def test_a_worker_is_set_up(play, worker):
    (play.folder / "jaxpt/pyproject.toml").touch()
    commit = 1767323045  # 2026-01-02, which `git archive` gives to all files
    os.utime(play.folder / "jaxpt/pyproject.toml", (commit, commit))
    code, _, _, calls = play.run("bash", str(play.tools / "tpu_worker.sh"), "setup", "bucket", "b")
    assert code == 0
    assert [call.split()[0] for call in calls] == ["uv", "uv", "mountpoint", "sudo", "sudo", "gcsfuse"]
    assert calls[1] == "uv pip install --quiet --exclude-newer 2026-01-02T03:04:05Z -e .\\[tpu\\] "
    assert calls[-1].endswith(" b /mnt/jaxpt ")


@linux
def test_a_worker_keeps_one_run_and_its_exit_code(play, worker):
    assert worker("state")[1] == "host: none\n"
    wait = "trap 'exit 130' INT; echo at work in $PWD; while :; do sleep 0.02; done"
    assert worker("start", "bash", "-c", wait)[:2] == (0, "host: started\n")
    assert worker("state")[1] == "host: running\n"
    assert worker("start", "true") == (1, "", "host: a run goes on here\n")
    waiting.until((play.folder / "jaxpt-run/log").read_text)  # the command's trap is set
    assert worker("stop")[1] == "host: told to stop\n"
    until(worker, 130)
    assert (play.folder / "jaxpt-run/log").read_text() == f"at work in {play.folder}/jaxpt\n"
    assert worker("start", "sleep", "60")[0] == 0
    os.killpg(int((play.folder / "jaxpt-run/pid").read_text()), signal.SIGTERM)  # as a shutdown does
    until(worker, 143)
    (play.folder / "jaxpt-run/exit").unlink()  # as where the machine went down
    assert worker("state")[1] == "host: lost\n"


@linux
@pytest.mark.parametrize("name, code", [("TERM", 143), ("INT", 130)])
def test_a_signal_before_the_command_has_started_ends_the_run(play, worker, name, code):
    command = ("bash", str(play.tools / "tpu_worker.sh"), "start", "touch", "started")
    assert play.run(*command, SHUTDOWN=name)[0] == 0
    until(worker, code)
    assert not (play.folder / "jaxpt/started").exists()


@linux
@pytest.mark.parametrize(
    ("variables", "cache"),
    [
        ({"MOUNTED": "0"}, "/mnt/jaxpt/cache"),
        ({"MOUNTED": "0", "XDG_CACHE_HOME": "/own"}, "/own"),
        ({"MOUNTED": "1"}, "none"),
    ],
)
def test_the_cache_is_on_what_all_workers_mount(play, worker, variables, cache):
    command = ("bash", str(play.tools / "tpu_worker.sh"), "start", "bash", "-c", 'printf %s "${XDG_CACHE_HOME-none}"')
    assert play.run(*command, **variables)[0] == 0
    until(worker, 0)
    assert (play.folder / "jaxpt-run/log").read_text() == cache


@linux
def test_arguments_reach_the_workers_unchanged(play, worker):
    """Through the launcher's quoting, ssh's shell and the worker's script."""
    printed = shlex.split(play.tpu("run", *TPU, "--dry-run", "--", "printf", "[%s]", *TRAIN)[1])
    remote = next(word for word in printed if ".sh start" in word).removeprefix("--command=")
    (play.folder / "jaxpt/tools").symlink_to(play.tools)
    play.run("sh", "-c", remote)
    until(worker, 0)
    assert (play.folder / "jaxpt-run/log").read_text() == "".join(f"[{word}]" for word in TRAIN)


# ---- Slurm ----------------------------------------------------------------------------------------------------------


def slurm(play, *arguments, **variables):
    return play.run("bash", str(play.tools / "slurm.sh"), *arguments, **variables)


def test_slurm_dry_run(play):
    code, printed, _, calls = slurm(play, "--dry-run", *TRAIN[1:])
    options = {line for line in printed.splitlines() if line.startswith("#SBATCH ")}
    assert (code, calls) == (0, [])
    assert {"#SBATCH --ntasks-per-node=1", "#SBATCH --signal=TERM@120", "#SBATCH --requeue"} <= options
    _, _, _, again = play.run("bash", "-c", printed.replace("JOB", "7"), SRUN="0")
    code, _, _, really = slurm(play, *TRAIN[1:], SRUN="0", SLURM_JOB_ID="7")
    assert (code, again) == (0, really)


@pytest.mark.parametrize(
    ("code", "cancelled", "restarts", "queued"),
    [
        (0, "", "0", False),
        (2, "", "0", False),
        (65, "", "0", False),
        (74, "", "0", False),
        (143, "yes", "0", False),
        (143, "", "9", True),
        (75, "", "0", True),
        (137, "", "4", True),
        (134, "", "5", False),
    ],
)
def test_slurm_queues_the_job_again_where_another_try_may_go_on(play, code, cancelled, restarts, queued):
    job = {"SRUN": str(code), "SCANCEL": cancelled, "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": restarts}
    for fails, told in (("0", "queued again"), ("1", "scontrol requeue 7 failed")):
        found, out, err, calls = slurm(play, "jaxpt", "train", **job, REQUEUE=fails)
        assert (found, calls[1:]) == (code, ["scontrol requeue 7 "] if queued else [])
        assert (told in out + err, "queued again" in out) == (queued, queued and fails == "0")


@pytest.mark.parametrize("arguments", [[], ["--dry-run"]])
def test_slurm_wants_a_command(play, arguments):
    """A job without one does not end as one that went well."""
    code, printed, error, calls = slurm(play, *arguments, SLURM_JOB_ID="7")
    assert (code, printed, error, calls) == (2, "", "tools/slurm.sh: no command; see --help\n", [])


def test_slurm_script_outside_of_slurm(play):
    code, _, error, calls = slurm(play, "jaxpt", "train", SLURM_JOB_ID="")
    assert (code, error, calls) == (2, "tools/slurm.sh: not in a job of Slurm; sbatch starts it\n", [])


# ---- all of them ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", sorted(TOOLS.glob("*.sh")), ids=lambda path: path.name)
def test_help_and_shellcheck(script):
    helped = subprocess.run(["bash", str(script), "--help"], capture_output=True, text=True)
    assert helped.returncode == 0 and f"{script.name} " in helped.stdout
    assert max(map(len, helped.stdout.splitlines())) <= 120 and "Sets srun" not in helped.stdout
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed (extra [test])")
    checked = subprocess.run([shellcheck, str(script)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
