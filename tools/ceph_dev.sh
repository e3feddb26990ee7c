#!/usr/bin/env bash
# A real Ceph cluster on one machine, for trying and testing the cluster tier: 1 mon, 1 mgr, 12 OSDs
# (2 GiB sparse files), an erasure coded pool 10+2 and a replicated one. Not for data you need.
#
#   tools/ceph_dev.sh up [--osds N] [--address A] [--port P] [--auth]   about a minute, 2.3 GB of memory
#   tools/ceph_dev.sh status                           daemons and the cluster's health
#   tools/ceph_dev.sh kill|stop|cont|start WHO...      SIGKILL, SIGSTOP, SIGCONT; start again what was
#                                                      killed. WHO: an OSD's number, mon or mgr
#   tools/ceph_dev.sh ceph ARGUMENT...                 the ceph command on this cluster
#   tools/ceph_dev.sh down                             ends the daemons, removes the folder
#
# --dir FOLDER (any command): where everything lives, pids included; default build/ceph-dev.
# Only processes whose command line names the folder's ceph.conf are ever signalled.
# --auth: cephx is on (FOLDER/keyring is the administrator's); by default the cluster trusts all.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=build/ceph-dev osds=12 address=127.0.0.1 port='' auth=none
command='' arguments=()
fail() { echo "ceph_dev: $1" >&2; exit "${2:-1}"; }
usage() { sed -n '2,14p' "$0" | cut -c3- >&2; exit 64; }

while [ $# -gt 0 ]; do
  case "$1" in
    --dir | --osds | --address | --port)
      [ $# -ge 2 ] || fail "$1 needs a value" 64
      case "$1" in
        --dir) folder=$2 ;; --osds) osds=$2 ;; --address) address=$2 ;; --port) port=$2 ;;
      esac
      shift 2 ;;
    --auth) auth=cephx; shift ;;
    -h | --help) usage ;;
    *)
      if [ -z "$command" ]; then command=$1; else arguments+=("$1"); fi
      shift
      if [ "$command" = ceph ]; then arguments+=("$@"); break; fi ;;
  esac
done
[ -n "$command" ] || usage
folder=$(realpath -m "$folder")
conf=$folder/ceph.conf
marker=$folder/.penstock-ceph-dev

# --- daemons by name: osd.N, mon.a, mgr.x ---

daemon_of() {
  case "$1" in
    mon) echo mon.a ;;
    mgr) echo mgr.x ;;
    *) [[ "$1" =~ ^[0-9]+$ ]] && [ -d "$folder/osd$1" ] ||
         fail "no daemon '$1' here: give an OSD's number (folders $folder/osdN), mon or mgr" 64
       echo "osd.$1" ;;
  esac
}

# Prints the process id of a running daemon of this folder; fails when there is none.
pid_of() {
  local pid
  pid=$(cat "$folder/$1.pid" 2>/dev/null) || return 1
  tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -qF -- "-c $conf " || return 1
  echo "$pid"
}

state_of() {
  local pid
  pid=$(pid_of "$1") || { echo down; return; }
  case "$(awk '/^State:/{print $2}' "/proc/$pid/status" 2>/dev/null)" in
    T) echo "stopped (pid $pid)" ;;
    Z | '') echo down ;;
    *) echo "up (pid $pid)" ;;
  esac
}

start_daemon() {
  local kind=${1%%.*} id=${1##*.}
  pid_of "$1" >/dev/null && return
  "ceph-$kind" -c "$conf" -i "$id" >>"$folder/start.log" 2>&1 ||
    fail "$1 did not start; see $folder/$1.log and $folder/start.log"
}

wait_gone() {  # PID SECONDS
  local tenths
  for ((tenths = 0; tenths < $2 * 10; tenths++)); do
    [ -e "/proc/$1" ] && [ "$(awk '/^State:/{print $2}' "/proc/$1/status" 2>/dev/null)" != Z ] || return 0
    sleep 0.1
  done
  return 1
}

all_daemons() {
  local path
  for path in "$folder"/osd[0-9]*; do [ -d "$path" ] && echo "osd.${path##*/osd}"; done
  echo mgr.x
  echo mon.a
}

ceph_command() { timeout 60 ceph -c "$conf" --connect-timeout 10 "$@"; }

need_cluster() { [ -e "$marker" ] || fail "no cluster in $folder: start one with 'tools/ceph_dev.sh up --dir $folder'" 66; }

# --- up ---

check_packages() {
  local missing=() pair
  for pair in ceph-mon:ceph-mon ceph-mgr:ceph-mgr ceph-osd:ceph-osd ceph:ceph-common monmaptool:ceph-common; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
  done
  [ ${#missing[@]} -eq 0 ] ||
    fail "Ceph is not installed (missing: ${missing[*]}): run tools/install_packages.sh ceph" 69
  local free_kb
  free_kb=$(awk '/^MemAvailable:/{print $2}' /proc/meminfo)
  [ "$free_kb" -ge 3000000 ] || echo "ceph_dev: only $((free_kb / 1024)) MiB of memory are free; 12 OSDs take about 2300" >&2
}

free_port() {
  local try
  for try in $(seq 36789 36888); do
    (exec 3<>"/dev/tcp/$address/$try") 2>/dev/null || { echo "$try"; return; }
  done
  fail "no free port on $address between 36789 and 36888: give one with --port"
}

write_conf() {
  cat >"$conf" <<END
[global]
fsid = $1
mon host = v1:$address:$port
auth cluster required = $auth
auth service required = $auth
auth client required = $auth
keyring = $folder/keyring
auth allow insecure global id reclaim = false
run dir = $folder/run
log file = $folder/\$name.log
pid file = $folder/\$name.pid
crash dir = $folder/crash
ms bind msgr2 = false
osd pool default size = 3
osd pool default min size = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon max pg per osd = 1000
mon data avail warn = 5
mon data avail crit = 1
# A hung OSD is noticed after 6 s, whatever its history.
osd heartbeat grace = 6
osd heartbeat interval = 2
# The reading lease of a placement group: 2 s of the grace's 6. Reads pause when a member's lease is
# over, and after it is marked down until the old one is.
osd pool default read lease ratio = 0.34
mon osd adjust heartbeat grace = false
mon osd adjust down out interval = false
mon osd down out interval = 3600
# Not for clients, several of which have one name.
[mon]
admin socket = $folder/run/\$name.asok
mon data = $folder/mon
[mgr]
admin socket = $folder/run/\$name.asok
mgr data = $folder/mgr
public addr = $address
[osd]
admin socket = $folder/run/\$name.asok
public addr = $address
cluster addr = $address
osd objectstore = bluestore
osd data = $folder/osd\$id
bluestore block size = 2147483648
bluestore block create = true
bluestore fsck quick fix on mount = false
osd memory target = 300000000
osd memory base = 150000000
osd memory cache min = 50000000
osd class update on start = false
osd crush update on start = false
osd op num shards = 1
osd op num threads per shard = 1
ms async op threads = 1
END
}

# All daemons' keys, made before the monitor so that its first store knows them.
make_keys() {
  local keyring=$folder/keyring id
  : >"$keyring"; chmod 600 "$keyring"
  [ "$auth" = cephx ] || return 0
  key() { ceph-authtool "$keyring" --gen-key -n "$@" >/dev/null; }
  key mon. --cap mon 'allow *'
  key client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
  key mgr.x --cap mon 'allow profile mgr' --cap osd 'allow *'
  for ((id = 0; id < osds; id++)); do
    key "osd.$id" --cap mon 'allow profile osd' --cap mgr 'allow profile osd' --cap osd 'allow *'
  done
}

progress() { echo "ceph_dev: $1 ($((SECONDS))s)" >&2; }

make_osds() {
  local id uuids=() pids=()
  for ((id = 0; id < osds; id++)); do uuids+=("$(cat /proc/sys/kernel/random/uuid)"); done
  # One session of the ceph command for all: each start of it costs a second.
  for ((id = 0; id < osds; id++)); do
    echo "osd new ${uuids[id]} $id"
    echo "osd crush add osd.$id 1.0 root=default"
  done | ceph_command >>"$folder/start.log" 2>&1 || fail "registering the OSDs failed; see $folder/start.log"
  for ((id = 0; id < osds; id++)); do
    mkdir -p "$folder/osd$id"
    ceph-osd -c "$conf" -i "$id" --mkfs --osd-uuid "${uuids[id]}" >>"$folder/start.log" 2>&1 &
    pids+=($!)
    if [ $((id % 2)) -eq 1 ] || [ $((id + 1)) -eq "$osds" ]; then
      wait "${pids[@]}" || fail "formatting an OSD failed; see $folder/start.log"
      pids=()
    fi
  done
  progress "OSDs are formatted"
  for ((id = 0; id < osds; id++)); do start_daemon "osd.$id"; done
}

make_pools() {
  local k=10 m=2
  if [ "$osds" -lt 12 ]; then
    m=1 k=$((osds - 1))
    echo "ceph_dev: with $osds OSDs the pool is $k+$m, not 10+2" >&2
  fi
  { echo "osd erasure-code-profile set penstock k=$k m=$m plugin=isa crush-failure-domain=osd"
    echo "osd pool create penstock-extents 16 16 erasure penstock"
    echo "osd pool set penstock-extents min_size $k"
    echo "osd pool set penstock-extents fast_read true"
    echo "osd pool create penstock-small 16 16 replicated"
    echo "osd pool application enable penstock-extents penstock"
    echo "osd pool application enable penstock-small penstock"
  } | ceph_command >>"$folder/start.log" 2>&1 || fail "making the pools failed; see $folder/start.log"
}

# All placement groups active: the pools can be used.
wait_active() {
  local tries states
  for ((tries = 0; tries < 60; tries++)); do
    states=$(ceph_command pg stat 2>/dev/null || true)
    [[ "$states" =~ ^[0-9]+\ pgs:\ ([^\;]+)\; ]] && ! tr ',' '\n' <<<"${BASH_REMATCH[1]}" | grep -qv active && return 0
    sleep 1
  done
  fail "the pools are not ready after 60 s: $states"
}

up() {
  [[ "$osds" =~ ^[0-9]+$ ]] && [ "$osds" -ge 3 ] && [ "$osds" -le 48 ] || fail "--osds wants a number from 3 to 48, not '$osds'" 64
  check_packages
  SECONDS=0
  if [ -e "$marker" ]; then
    progress "there is a cluster in $folder: starting what is down"
    start_daemon mon.a; start_daemon mgr.x
    local name
    for name in $(all_daemons); do start_daemon "$name"; done
    wait_active
    progress "up: $conf"
    return
  fi
  [ ! -e "$folder" ] || [ -z "$(ls -A "$folder")" ] || fail "$folder is there and not mine: give an empty or new folder with --dir" 73
  mkdir -p "$folder"/{mon,mgr,run,crash}
  touch "$marker"
  [ -n "$port" ] || port=$(free_port)
  local fsid
  fsid=$(cat /proc/sys/kernel/random/uuid)
  write_conf "$fsid"
  make_keys
  # A failed start leaves nothing behind but the logs.
  trap 'status=$?; [ $status -eq 0 ] || { end_daemons; rm -f "$marker"; echo "ceph_dev: not started; logs are in $folder" >&2; }' EXIT
  monmaptool --create --fsid "$fsid" --addv a "[v1:$address:$port]" "$folder/monmap" >>"$folder/start.log"
  ceph-mon -c "$conf" -i a --mkfs --monmap "$folder/monmap" --keyring "$folder/keyring" >>"$folder/start.log" 2>&1 ||
    fail "ceph-mon --mkfs failed; see $folder/start.log"
  start_daemon mon.a
  if [ "$auth" = cephx ]; then ceph_command auth import -i "$folder/keyring" >>"$folder/start.log" 2>&1; fi
  start_daemon mgr.x
  progress "mon and mgr are up"
  make_osds
  progress "OSDs are started"
  make_pools
  wait_active
  progress "up; pools penstock-extents ($(ceph_command osd pool get penstock-extents erasure_code_profile | cut -d' ' -f2)) and penstock-small"
  echo "$conf"
}

# --- the other commands ---

end_daemons() {
  local name pid
  for name in $(all_daemons); do
    pid=$(pid_of "$name") || continue
    kill -KILL "$pid" 2>/dev/null || true  # its data goes as well: no need to be gentle
    wait_gone "$pid" 10 || echo "ceph_dev: $name (pid $pid) does not end" >&2
  done
}

down() {
  [ -e "$folder" ] || { echo "ceph_dev: nothing to do, no $folder" >&2; return; }
  [ -e "$marker" ] || fail "$folder is not a cluster of mine: not touched" 73
  end_daemons
  rm -rf "$folder"
}

signal() {  # SIGNAL WHO...
  local who name pid
  [ $# -ge 2 ] || fail "who? give OSD numbers, mon or mgr" 64
  for who in "${@:2}"; do name=$(daemon_of "$who"); done  # all names are good before the first signal
  for who in "${@:2}"; do
    name=$(daemon_of "$who")
    pid=$(pid_of "$name") || fail "$name is not running"
    kill "-$1" "$pid"
    [ "$1" != KILL ] || wait_gone "$pid" 10 || fail "$name (pid $pid) does not end"
  done
}

status() {
  local name
  for name in $(all_daemons); do printf '%-7s %s\n' "$name" "$(state_of "$name")"; done
  if [[ "$(state_of mon.a)" == up* ]]; then ceph_command -s; else echo "the mon is not up: no cluster status"; fi
}

case "$command" in
  up) up ;;
  down) down ;;
  kill) need_cluster; signal KILL "${arguments[@]}" ;;
  stop) need_cluster; signal STOP "${arguments[@]}" ;;
  cont) need_cluster; signal CONT "${arguments[@]}" ;;
  start)
    need_cluster
    [ ${#arguments[@]} -gt 0 ] || fail "who? give OSD numbers, mon or mgr" 64
    for who in "${arguments[@]}"; do start_daemon "$(daemon_of "$who")"; done ;;
  status) need_cluster; status ;;
  ceph) need_cluster; exec ceph -c "$conf" --connect-timeout 10 "${arguments[@]}" ;;
  *) fail "no command '$command'; see tools/ceph_dev.sh --help" 64 ;;
esac
