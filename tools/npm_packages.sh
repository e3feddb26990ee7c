# need_npm NAME FOLDER PACKAGE: makes sure that FOLDER's npm packages are there (PACKAGE is one of them).
# To be sourced. Where there is no npm or no registry it ends the script with a message: as a skip, but
# as a failure in CI, where a comparison that can't run must show.
need_npm() {
  local why=
  if ! command -v npm >/dev/null; then
    why="there is no npm here (Debian packages: nodejs npm)"
  elif [ ! -d "$2/node_modules/$3" ] &&
       ! (cd "$2" && npm ci --ignore-scripts --no-audit --no-fund --silent); then
    why="npm ci failed in $2"
  fi
  [ -z "$why" ] && return
  echo "$1: skipped, $why" >&2
  [ -z "${CI:-}" ] && exit 0
  echo "$1: in CI this must run" >&2
  exit 69
}
