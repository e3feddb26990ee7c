# start_server BINARY FOLDER ARGUMENTS...: starts `penstock serve` on a free port, with its data in
# FOLDER, until the script ends; sets `url`. To be sourced.
start_server() {
  local binary=$1 folder=$2
  shift 2
  "$binary" serve --port 0 --json --data-dir "$folder/data" "$@" >"$folder/ready" 2>"$folder/log" &
  server=$!
  trap 'kill "$server" 2>/dev/null || true; wait "$server" || true; rm -rf "'"$folder"'"' EXIT
  for _ in $(seq 300); do
    [ -s "$folder/ready" ] && break
    kill -0 "$server" 2>/dev/null || { cat "$folder/log" >&2; exit 1; }
    sleep 0.1
  done
  url=$(node -e 'console.log(JSON.parse(require("fs").readFileSync(process.argv[1], "utf8").split("\n")[0]).url)' "$folder/ready")
}
# start_recorder PROGRAM LEAST: puts recorder.py before the server; sets `url` to its. stop_recorder fails if an answer
# fits no schema, or if there were fewer than LEAST.
start_recorder() {
  exec {recorded}< <(exec python3 "$1" "$url" "$2")
  recorder=$!
  read -r url <&"$recorded"
}
stop_recorder() {
  kill "$recorder"
  wait "$recorder"
}
