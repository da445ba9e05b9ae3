#!/usr/bin/env bash
#SBATCH --job-name=jaxpt
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --output=jaxpt-%j.log
#SBATCH --open-mode=append

# jaxpt on GPUs of several nodes, under Slurm: one task a node, which has all its GPUs.
#
#   sbatch [options] tools/slurm.sh jaxpt train CONFIG KEY=VALUE …
#   bash tools/slurm.sh --dry-run jaxpt train CONFIG …       prints this script's options and the srun line
#
# sbatch's options take the place of the script's: sbatch --nodes=4 --partition=… --account=… tools/slurm.sh …; with
# --ntasks-per-node=8 there is a task for each of 8 GPUs. Where jaxpt is installed in a virtual environment, activate it
# before: the job inherits it. The run_dir has to be on a file system that all nodes share. jaxpt learns from srun where
# its processes are. Each task has a log, jaxpt-JOB/TASK.log; the first one's says how the run goes. NCCL is left to its
# own choices; export NCCL_SOCKET_IFNAME or NCCL_IB_HCA before sbatch where it chooses wrong.
#
# Two minutes before the time limit, and on a preemption, the tasks get SIGTERM: jaxpt saves and exits with 143, and the
# job is queued again, with the same command. So it is after a failure that a new try may mend: 75 (a process was lost,
# late or stuck), 134, 137 and 139 (it was aborted or killed), unless the job was queued again five times before and
# ended within ten minutes. With sbatch --nodes=2-4 the job goes on with fewer nodes where one is lost for good, and
# grows back when it is queued again (mesh.data=-1, of which batches have to be a multiple). After any other exit code,
# or scancel, it isn't. With checkpoint.grace_seconds=120 a save that takes longer than Slurm waits ends in a line.

set -euo pipefail

main() {
  local code=0 told='' dry_run=''
  case ${1-} in
    -h | --help) sed -n '/^# /,/^$/{/^$/q;s/^# \{0,1\}//p;}' "$0" && return ;;
    --dry-run) dry_run=yes && shift ;;
  esac
  (($#)) || { echo "tools/slurm.sh: no command; see --help" >&2 && return 2; }
  [[ -z $dry_run ]] || { dry_run "$@" && return; }
  [[ -n ${SLURM_JOB_ID-} ]] || { echo "tools/slurm.sh: not in a job of Slurm; sbatch starts it" >&2 && return 2; }
  mkdir -p "jaxpt-$SLURM_JOB_ID"
  trap 'told=yes' TERM # scancel tells this script too, and a preemption, after which Slurm itself queues the job
  step "$SLURM_JOB_ID" "$@"
  "${srun[@]}" || code=$?
  if [[ -z $told ]] && again "$code"; then
    if scontrol requeue "$SLURM_JOB_ID"; then
      echo "tools/slurm.sh: exit code $code, queued again"
    else
      echo "tools/slurm.sh: exit code $code, but scontrol requeue $SLURM_JOB_ID failed: sbatch starts it again" >&2
    fi
  fi
  return "$code"
}

# True for exit codes after which the same command may go on.
again() {
  case $1 in
    143) ;;
    75 | 134 | 137 | 139) ((SECONDS >= 600 || ${SLURM_RESTART_COUNT:-0} < 5)) ;;
    *) return 1 ;;
  esac
}

# Sets srun to its command line. Every task sees all GPUs of its node and takes its own by its number there; it has all
# cores, which --exclusive gave to the job. jaxpt ends the others when one fails, in order; --wait is for when it can't.
step() {
  local job=$1
  shift
  srun=(srun --gpu-bind=none --cpu-bind=none --kill-on-bad-exit=0 --wait=300
    "--output=jaxpt-$job/%t.log" --open-mode=append "$@")
}

dry_run() {
  grep '^#SBATCH' "$0"
  step JOB "$@"
  printf '%q ' "${srun[@]}" | sed 's/ $/\n/'
}

main "$@"
