#!/usr/bin/env bash
# Installs the Debian packages that Penstock needs, when some are missing: tools/install_packages.sh run|test|ceph
# `run` is what building and running needs; `test` adds what the tests and benches need; `ceph` what a
# build with the RADOS store and a Ceph cluster to test it on need (make test-ceph), half a gigabyte.
set -euo pipefail

run_packages=(
  clang-19 lld-19 libclang-rt-19-dev cmake ninja-build ccache pkg-config make git
  libboost1.81-dev libboost-json1.81-dev libboost-url1.81-dev libssl-dev
  libprotobuf-dev protobuf-compiler
  libfmt-dev libspdlog-dev libyaml-cpp-dev libcli11-dev libxxhash-dev libpcre2-dev
  libicu-dev prometheus-cpp-dev doctest-dev ca-certificates
  liburing-dev libsodium-dev libucx-dev libsqlite3-dev libcurl4-openssl-dev libzmq3-dev
)
test_packages=(
  clang-format-19 clang-tidy-19 llvm-19 libopenblas0-pthread python3 python3-jinja2 python3-jsonschema openssl curl
)
ceph_packages=(librados-dev librados2 ceph-mon ceph-mgr ceph-osd ceph-common iproute2)

# The reference tokenizers and the client tests run in Node; any installation of it will do.
command -v npm >/dev/null || test_packages+=(nodejs npm)

case "${1:-}" in
  run) wanted=("${run_packages[@]}") ;;
  test) wanted=("${run_packages[@]}" "${test_packages[@]}") ;;
  ceph) wanted=("${run_packages[@]}" "${test_packages[@]}" "${ceph_packages[@]}") ;;
  *) echo "usage: tools/install_packages.sh run|test|ceph" >&2; exit 64 ;;
esac

missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
  echo "penstock: missing packages and no apt-get here: ${missing[*]}" >&2
  echo "Install them with your package manager (the names are Debian 12's) and run make again." >&2
  exit 69
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || {
    echo "penstock: installing packages needs root or sudo. Run as root: apt-get install ${missing[*]}" >&2
    exit 77
  }
  as_root=(sudo)
fi
echo "Installing ${#missing[@]} Debian packages: ${missing[*]}" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${as_root[@]}" apt-get update -q && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
       apt-get install -y -q --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "penstock: apt-get failed (its last lines are above)" >&2
  exit 69
fi
