#!/usr/bin/env bash
# What tools/tpu.sh does on each worker of a TPU. Everything is below the home directory:
#
#   jaxpt/        the commit, which setup unpacked; commands run in it
#   jaxpt-venv/   Python and the packages
#   jaxpt-run/    of the newest run: log, exit (its code), pid, and a lock that it holds
#
#   tpu_worker.sh setup [bucket BUCKET | nfs HOST:/SHARE]
#   tpu_worker.sh start COMMAND … | state | stop

set -euo pipefail

tree=$HOME/jaxpt venv=$HOME/jaxpt-venv runs=$HOME/jaxpt-run shared=/mnt/jaxpt

# uv brings its own Python, as that of the images is too old: the one the tests run with. The packages are those of the
# commit's day, which its files bear, so that a run that is resumed weeks later has the same.
setup() {
  local day
  export PATH=$HOME/.local/bin:$PATH
  command -v uv >/dev/null || curl -LsSf https://astral.sh/uv/install.sh | sh
  uv venv --quiet --allow-existing --python 3.11 "$venv"
  cd "$tree"
  day=$(date -u -r pyproject.toml +%FT%TZ)
  VIRTUAL_ENV=$venv uv pip install --quiet --exclude-newer "$day" -e '.[tpu]'
  case ${1-} in
    bucket) mount_bucket "$2" ;;
    nfs) mount_nfs "$2" ;;
  esac
  echo "$HOSTNAME: ready"
}

# Nothing about the files is remembered: what one worker writes, the others see at once. Their contents are kept on the
# worker's disk while they stay the same: records are read at random.
mount_bucket() {
  mountpoint -q "$shared" && return
  command -v gcsfuse >/dev/null || install_gcsfuse
  sudo mkdir -p "$shared"
  sudo chown "$(id -u):$(id -g)" "$shared"
  gcsfuse --implicit-dirs --metadata-cache-ttl-secs=0 --metadata-cache-negative-ttl-secs=0 \
    --cache-dir="$HOME/jaxpt-files" --file-cache-max-size-mb=40000 --file-cache-cache-file-for-range-read "$1" "$shared"
}

mount_nfs() {
  mountpoint -q "$shared" && return
  install_package nfs-common
  sudo mkdir -p "$shared"
  sudo mount -t nfs -o rw,hard "$1" "$shared"
}

install_gcsfuse() {
  local site=https://packages.cloud.google.com/apt key=/usr/share/keyrings/cloud.google.asc
  curl -LsSf "$site/doc/apt-key.gpg" | sudo tee "$key" >/dev/null
  echo "deb [signed-by=$key] $site gcsfuse-$(lsb_release -cs) main" |
    sudo tee /etc/apt/sources.list.d/gcsfuse.list >/dev/null
  install_package gcsfuse
}

# A new VM updates itself and holds apt's lock meanwhile.
install_package() {
  sudo apt-get -o DPkg::Lock::Timeout=600 -qq update
  sudo apt-get -o DPkg::Lock::Timeout=600 -qq install -y "$1"
}

running() {
  [[ -e $runs/lock ]] && ! flock -n "$runs/lock" true
}

start() {
  mkdir -p "$runs"
  ! running || { echo "$HOSTNAME: a run goes on here" >&2 && return 1; }
  rm -f "$runs/pid" "$runs/exit"
  # A shell in the background would ignore INT, and its children too.
  PATH=$venv/bin:$PATH setsid nohup env --default-signal=INT "$BASH" "$0" hold "$@" >>"$runs/log" 2>&1 </dev/null &
  for _ in {1..100}; do
    [[ ! -s $runs/pid ]] || { echo "$HOSTNAME: started" && return; }
    sleep 0.05
  done
  echo "$HOSTNAME: did not start; see jaxpt-run/log" >&2
  return 1
}

# The run itself, below this shell. The kernel lets go of the lock however it ends: no remains look like a run.
hold() {
  local code=0
  cd "$tree"
  exec 9>"$runs/lock"
  flock -w 2 9
  # Before the command starts: it would not hear of them.
  trap 'echo 143 >"$runs/exit" && exit' TERM
  trap 'echo 130 >"$runs/exit" && exit' INT
  echo $$ >"$runs/pid"
  ! mountpoint -q "$shared" || export XDG_CACHE_HOME=${XDG_CACHE_HOME-$shared/cache}
  trap : TERM INT # which a shutdown and `stop` send to all: stay, to write the code
  "$@" || code=$?
  echo "$code" >"$runs/exit"
}

# running, the exit code, lost (ended without one: the machine did), or none.
state() {
  local told=lost
  if running; then
    told=running
  elif [[ -s $runs/exit ]]; then
    told=$(<"$runs/exit")
  elif [[ ! -e $runs/lock ]]; then
    told=none
  fi
  echo "$HOSTNAME: $told"
}

stop() {
  running || { echo "$HOSTNAME: no run goes on here" && return; }
  kill -INT -- "-$(<"$runs/pid")" # all processes of it, as Ctrl-C does
  echo "$HOSTNAME: told to stop"
}

case ${1-} in
  setup | start | hold | state | stop) "$@" ;;
  *) sed -n '2,/^$/s/^# \{0,1\}//p' "$0" ;;
esac
