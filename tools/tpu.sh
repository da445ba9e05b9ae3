#!/usr/bin/env bash
# jaxpt on a Cloud TPU: one VM, all the hosts of a pod slice, or several slices.
#
#   tools/tpu.sh COMMAND [options] [-- jaxpt train CONFIG KEY=VALUE …]
#
#   create    ask for the TPU
#   setup     wait until it is there, bring the commit to all its workers and install it there; names the files that are
#             not committed, which stay behind
#   run       start what stands after -- on all workers; it outlives the connection; refused while a run goes on
#   follow    show the first worker's log, until Ctrl-C
#   status    the state of the TPU, and of the run on each worker: running, lost, none, or its exit code
#   stop      end the run as Ctrl-C does: it saves; re-run the same command to resume
#   resume    go on after a preemption: create what is gone, setup, run
#   babysit   resume, and again after every preemption and every failure that a new try may mend (jaxpt --help lists the
#             exit codes), until the run ends by itself; exits with its code
#   delete    give the TPU back; asks first, unless --yes
#
# Options; a variable gives the default, JAXPT_TPU_NAME that of --name:
#   --name NAME        of the TPU
#   --zone ZONE        where it is; --project PROJECT, else gcloud's own
#   --type TYPE        v5litepod-16, v5p-32, v6e-64, …
#   --version IMAGE    the VMs' runtime image; by default the one for the type
#   --spot             cheaper, and taken away at any time; --reserved, of a reservation; --network NETWORK
#   --queued           ask by a queued resource: it waits for capacity, without it create fails when there is none
#   --slices N         that many slices of the type, as one queued resource
#   --bucket BUCKET    mount it at /mnt/jaxpt of every worker, or
#   --nfs HOST:/SHARE  mount this there
#   --commit COMMIT    what setup brings, HEAD by default
#   --every SECONDS    between two looks at the TPU, 30 by default
#   --dry-run          print the commands instead, as they would run; resume and babysit as after a preemption
#
# All workers need the same run_dir and the same data, and a preempted TPU's own disks are gone: with --bucket or --nfs,
# run_dir=/mnt/jaxpt/… is shared and lasts. So is then the cache of prepared data and compiled programs,
# /mnt/jaxpt/cache (XDG_CACHE_HOME): the first host prepares the data, once, the others wait for it; without a mount each
# host prepares them by itself, again after each preemption. How long it takes the run says; `jaxpt cache RECIPE
# data.cache_dir=…` does it before, on any machine with more cores. A bucket has to have a hierarchical namespace,
# without which a directory is not renamed at once: gcloud storage buckets create gs://BUCKET
# --uniform-bucket-level-access --enable-hierarchical-namespace. How the processes find each other, the TPU tells them.

set -euo pipefail

main() {
  defaults
  parse "$@"
  check
  exec 3>&1 # where --dry-run prints, also from within $(…)
  case $verb in
    create) create ;;
    setup) setup ;;
    run) run ;;
    follow) follow ;;
    status) status ;;
    stop) stop ;;
    resume) resume ;;
    babysit) babysit </dev/null ;; # in the background, too
    delete) delete ;;
  esac
}

# ---- what was asked for ---------------------------------------------------------------------------------------------

defaults() {
  name=${JAXPT_TPU_NAME-} zone=${JAXPT_TPU_ZONE-} project=${JAXPT_TPU_PROJECT-} type=${JAXPT_TPU_TYPE-}
  version=${JAXPT_TPU_VERSION-} network=${JAXPT_TPU_NETWORK-} slices=${JAXPT_TPU_SLICES-1}
  spot=${JAXPT_TPU_SPOT-} reserved=${JAXPT_TPU_RESERVED-} queued=${JAXPT_TPU_QUEUED-}
  bucket=${JAXPT_TPU_BUCKET-} nfs=${JAXPT_TPU_NFS-} commit=${JAXPT_TPU_COMMIT-HEAD} every=${JAXPT_TPU_EVERY-30}
  verb='' yes='' dry_run='' command='' words=()
  # What --dry-run takes for gcloud's answers.
  tpu_would=READY run_would=none
}

parse() {
  while (($#)); do
    case $1 in
      -h | --help) sed -n '2,/^$/s/^# \{0,1\}//p' "$0" && exit ;;
      --spot | --reserved | --queued | --yes | --dry-run) assign "$1" yes ;;
      --name | --zone | --project | --type | --version | --network | --slices | --bucket | --nfs | --commit | --every)
        (($# > 1)) || mistake "$1 wants a value"
        assign "$1" "$2" && shift
        ;;
      --?*=*) set -- '' "${1%%=*}" "${1#*=}" "${@:2}" ;;
      --) words=("${@:2}") command=$(quoted "${@:2}") && return ;;
      -*) mistake "no option $1; see --help" ;;
      *)
        [[ -z $verb ]] || mistake "$1: the command to run stands after --"
        verb=$1
        ;;
    esac
    shift
  done
}

assign() {
  local variable=${1#--}
  printf -v "${variable//-/_}" %s "$2"
}

check() {
  local wanted=(name zone) missing='' variable
  case $verb in
    create | resume | babysit) wanted+=(type) ;;
    setup | run | follow | status | stop | delete) ;;
    '') mistake "no command; see --help" ;;
    *) mistake "no command $verb: create, setup, run, follow, status, stop, resume, babysit or delete" ;;
  esac
  for variable in "${wanted[@]}"; do
    [[ -n ${!variable} ]] || missing+=" --$variable"
  done
  [[ -z $missing ]] || mistake "$verb wants$missing"
  case ${wanted[*]} in *type) check_type ;; esac
  case $verb in run | resume | babysit) [[ -n $command ]] || mistake "$verb wants -- and the command to run" ;; esac
  [[ $slices =~ ^[1-9][0-9]*$ ]] || mistake "--slices: $slices is no number of slices"
  [[ $every =~ ^[0-9]+$ ]] || mistake "--every: $every is no number of seconds"
  [[ -z $bucket || -z $nfs ]] || mistake "--bucket and --nfs: one of them"
  bucket=${bucket#gs://}
  kind=tpu-vm place=("--zone=$zone")
  ((slices == 1)) && [[ -z $queued ]] || kind="queued-resources"
  [[ -z $project ]] || place+=("--project=$project")
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
}

# The number in a type, by the rules of jaxpt/plan/vendor_names.py.
check_type() {
  local size=${type##*-} sizes=''
  case $type in
    v5litepod-* | v6e-*) [[ $size =~ ^(1|4|8|16|32|64|128|256)$ ]] || sizes='1, 4, 8, 16, 32, 64, 128 or 256 chips' ;;
    v4-* | v5p-*)
      [[ $size =~ ^(8|16|32|64)$ ]] || { [[ $size =~ ^[1-9][0-9]*$ ]] && ((size % 128 == 0)); } ||
        sizes='8, 16, 32, 64 cores or a multiple of 128'
      ;;
  esac
  [[ -z $sizes ]] || mistake "--type: $type: slices of ${type%-*} have $sizes"
}

image() {
  case $type in
    v2-* | v3-* | v4-*) echo tpu-ubuntu2204-base ;;
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v6e-*) echo v2-alpha-tpuv6e ;;
    *) mistake "--type: no runtime image is known for $type; give --version" ;;
  esac
}

# ---- saying and doing -----------------------------------------------------------------------------------------------

say() {
  echo "tools/tpu.sh: $*" >&2
}

fail() {
  say "$@"
  exit 1
}

mistake() {
  say "$@"
  exit 2
}

# Its arguments as words of a shell: read again, they are the same.
quoted() {
  local word tick="'" words=()
  for word; do
    [[ $word =~ ^[A-Za-z0-9_@%+=:,./-]+$ ]] || word="'${word//$tick/$tick\\$tick$tick}'"
    words+=("$word")
  done
  echo "${words[*]-}"
}

# Runs a command, or prints it.
act() {
  if [[ -n $dry_run ]]; then quoted "$@" >&3; else "$@"; fi
}

# Runs a shell command on workers: `all` of them, or 0, the first.
at_worker() {
  local which=("--worker=$1")
  [[ $kind == tpu-vm ]] || which=("--node=$1" "${which[@]}")
  act gcloud compute tpus "$kind" ssh "$name" "${place[@]}" "${which[@]}" "--command=$2"
}

# ---- what is there --------------------------------------------------------------------------------------------------

# gcloud's word for the state of the TPU; GONE where there is none of the name.
tpu_state() {
  local state=state said
  [[ $kind == tpu-vm ]] || state=state.state
  said=$(act gcloud compute tpus "$kind" list "${place[@]}" "--format=value(name.basename(),$state)") || return
  [[ -z $dry_run ]] || said="$name $tpu_would"
  awk -v name="$name" '$1 == name { state = $2 } END { print state ? state : "GONE" }' <<<"$said"
}

# Waits until the TPU is READY, or is lost, and says which.
settled() {
  local state last=''
  while state=$(tpu_state); do
    case $state in
      READY | ACTIVE) echo READY && return ;;
      GONE | PREEMPTED | TERMINATED | STOPPED | SUSPENDED | FAILED) echo "$state" && return ;;
    esac
    [[ $state == "$last" ]] || say "$name is $state"
    last=$state
    sleep "$every"
  done
  return 1
}

# A line for each worker, its name and what became of the run there.
run_states() {
  at_worker all '! test -e jaxpt/tools/tpu_worker.sh || bash jaxpt/tools/tpu_worker.sh state'
}

# What became of the run as a whole. A worker that was not told to stop may say 143 where others say 130 (Ctrl-C).
run_state() {
  local said
  said=$(run_states) || return
  [[ -z $dry_run ]] || said="worker: $run_would"
  awk '$1 ~ /:$/ && NF == 2 { seen[$2]; if ($2 + 0 > worst) worst = $2 + 0 }
    END {
      count = split("running 130 lost 143", first)
      for (i = 1; i <= count; i++) if (first[i] in seen) { print first[i]; exit }
      print worst ? worst : ("0" in seen && !("none" in seen)) ? 0 : "none"
    }' <<<"$said"
}

refuse_running() {
  local state
  state=$(run_state) || return
  [[ $state != running ]] || fail "$name: a run goes on there; stop ends it"
}

# ---- commands -------------------------------------------------------------------------------------------------------

create() {
  local image=$version options=()
  [[ -n $image ]] || image=$(image) || exit
  if [[ $kind == tpu-vm ]]; then
    options=("--version=$image")
  else
    options=("--runtime-version=$image")
    if ((slices == 1)); then
      options+=("--node-id=$name")
    else
      options+=("--node-count=$slices" "--node-prefix=$name")
    fi
  fi
  [[ -z $spot ]] || options+=(--spot)
  [[ -z $reserved ]] || options+=(--reserved)
  [[ -z $network ]] || options+=("--network=$network")
  act gcloud compute tpus "$kind" create "$name" "${place[@]}" "--accelerator-type=$type" "${options[@]}" || return
  tpu_would=READY
}

# Names what differs from the commit; babysit does so once.
say_left_behind() {
  local files count shown=12
  [[ $commit == HEAD ]] || return 0
  files=$(git -c core.quotePath=false status --porcelain --untracked-files=all | cut -c4-)
  [[ -n $files ]] || return 0
  count=$(wc -l <<<"$files")
  say "not committed, stays here: $(head -n "$shown" <<<"$files" | paste -sd, | sed 's/,/, /g')\
$( ((count <= shown)) || echo " and $((count - shown)) more")"
}

# Names the files that the command takes from here and that are not in the commit: its relative paths.
say_local_files() {
  local word value
  for word in "${words[@]}"; do
    value=${word#*=}
    if [[ $word == *=?* && $value != /* ]] && compgen -G "$value" >/dev/null &&
      ! git cat-file -e "$commit:$value" 2>/dev/null; then
      say "$word: is here, not in the commit; the workers want a path of theirs, such as /mnt/jaxpt/$value"
    fi
  done
}

# `git archive` brings the commit as it is; a repository on the workers would want a key of theirs.
setup() {
  local state which=(--worker=all) mount='' archive=dist/jaxpt.tar.gz
  [[ $kind == tpu-vm ]] || which=(--node=all "${which[@]}")
  [[ -z $bucket ]] || mount=" $(quoted bucket "$bucket")"
  [[ -z $nfs ]] || mount=" $(quoted nfs "$nfs")"
  state=$(settled) || return
  [[ $state == READY ]] || fail "$name is $state; create makes it, resume makes it again"
  refuse_running || return
  say_left_behind
  act mkdir -p dist &&
    act git archive --format=tar.gz "--output=$archive" "$commit" &&
    act gcloud compute tpus "$kind" scp "$archive" "$name:" "${place[@]}" "${which[@]}" &&
    at_worker all "mkdir -p jaxpt && rm -rf jaxpt/jaxpt jaxpt/configs && tar -xzf jaxpt.tar.gz -C jaxpt &&\
 bash jaxpt/tools/tpu_worker.sh setup$mount"
}

run() {
  refuse_running || return
  say_local_files
  [[ -n $bucket$nfs ]] || say "no --bucket or --nfs: each host prepares the data by itself, again after a preemption"
  at_worker all "bash jaxpt/tools/tpu_worker.sh start $command" || return
  run_would=0
}

follow() {
  at_worker 0 'tail -n 100 -F jaxpt-run/log'
}

status() {
  local state
  state=$(tpu_state) || return
  [[ -n $dry_run ]] || echo "$name: $state"
  case $state in READY | ACTIVE) run_states ;; esac
}

stop() {
  at_worker all 'bash jaxpt/tools/tpu_worker.sh stop'
}

delete() {
  local answer='' options=(--quiet)
  if [[ -z $yes && -z $dry_run ]]; then
    read -r -p "Delete $name in $zone, and all that is on its disks? [y/N] " answer || true
    [[ $answer == [yY]* ]] || fail "$name is left as it is"
  fi
  [[ $kind == tpu-vm ]] || options+=(--force) # with its nodes
  act gcloud compute tpus "$kind" delete "$name" "${place[@]}" "${options[@]}"
}

# Makes the TPU again where it was lost, and starts the run.
renew() {
  case $1 in
    READY) ;;
    GONE) create ;;
    STOPPED) fail "$name is STOPPED, which no preemption does; start or delete it" ;;
    *) yes=yes delete && create ;;
  esac && setup && run
}

resume() {
  local state
  [[ -z $dry_run ]] || tpu_would=PREEMPTED
  state=$(settled) || return
  if [[ $state == READY && $(run_state) == running ]]; then
    say "$name: the run goes on there, nothing to resume"
  else
    renew "$state"
  fi
}

# True unless the last five runs were over within ten minutes each: then another try mends nothing.
worth_a_try() {
  if ((SECONDS - begun < 600)); then quick=$((quick + 1)); else quick=1; fi
  begun=$SECONDS
  ((quick <= 5))
}

# A TPU that is being preempted may still answer, with a failed run: one counts when the TPU is there a look later.
babysit() {
  local tpu run failure='' begun=$SECONDS quick=0
  say_left_behind
  commit=$(git rev-parse "$commit") # what is committed meanwhile stays out
  resume || return                  # a mistake shows here; later ones may pass
  while act sleep "$every"; do
    run=''
    if ! tpu=$(settled) || { [[ $tpu == READY ]] && ! run=$(run_state); }; then
      say "$name does not answer, looking again"
      continue
    fi
    case $tpu:$run in
      READY:running) failure='' ;;
      READY:0) say "the run is finished" && return ;;
      READY:130) say "the run was stopped" && return 130 ;;
      READY:none | READY:lost | READY:143 | [!R]*)
        say "$name: ${run:-$tpu}, going on"
        (renew "$tpu") || say "not yet, trying again"
        ;;
      *)
        [[ $run == "$failure" ]] || { failure=$run && continue; }
        # 75: a process was lost, late or stuck; above 128: it was killed, or aborted. All else wants a person.
        if [[ $run == 75 || $run == 1[3-9][0-9] ]] && worth_a_try; then
          say "the run failed with exit code $run, going on" && failure=''
          (renew "$tpu") || say "not yet, trying again"
        else
          say "the run failed with exit code $run" && return "$run"
        fi
        ;;
    esac
  done
}

main "$@"
exit
