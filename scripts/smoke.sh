#!/bin/sh
# One short run of each command-line verb. Needs an environment with octavo installed; fetches smollm2 if it is not stored.
set -eu
say() { printf -- '--- %s\n' "$*"; }
ends_with() { # CODE COMMAND...: the command must fail, with this exit code and no traceback
  want=$1; shift
  if "$@" 2>"$log"; then code=0; else code=$?; fi
  cat "$log"
  test "$code" -eq "$want"
  if grep -q Traceback "$log"; then return 1; fi
}
log=$(mktemp)
server=
trap 'test -z "$server" || kill "$server" 2>/dev/null || true; rm -f "$log"' EXIT

say version;    octavo --version
say help;       octavo --help >/dev/null
say pull;       octavo pull smollm2
say doctor;     octavo doctor; octavo doctor --limits --json | grep -q int8_macs_per_s
say list;       octavo list; octavo list --json | grep -q '"name": "smollm2"'
say show;       octavo show smollm2; octavo show smollm2 --json | grep -q '"llama"'
say build;      octavo build smollm2; octavo build smollm2 --verify
                octavo run smollm2 "Hi" --max-tokens 1 --log-level INFO 2>&1 | grep -q "read from the build"
say tokenize;   test "$(octavo tokenize smollm2 'Hello world' --json)" = "[19556, 905]"
say run;        octavo run smollm2 "Hi" --max-tokens 4 --temperature 0 --stats
say stdin;      printf 'The capital of Norway is' | octavo run smollm2 --raw --max-tokens 4 --temperature 0
say perplexity; octavo perplexity smollm2 LICENSE --ctx 128 --max-windows 1 --json
say bench;      octavo bench engine smollm2 --prompt 16 --gen 4 --batch 1,2 --repeat 1 --json
say bench-ops;  octavo bench ops smollm2 --prompt 16 --context 8 --gen 2 --batch 1,2 --no-limits --json | grep -q "outside the model"
say claims;     octavo bench claims smollm2 --only batch,paged --gen 2 --repeat 1 --json | grep -q reserved_used
say cache;      kv=$(mktemp -d); octavo cache warm smollm2 LICENSE --kv-disk "$kv" --pin --ctx 8192; octavo cache ls --kv-disk "$kv"
                octavo cache rm --all --kv-disk "$kv"; rm -r "$kv"
say keys;       keys=$(mktemp -d); octavo keys add --file "$keys/keys.toml" --tenant smoke | grep -q '^octavo-'
                octavo keys ls --file "$keys/keys.toml" | grep -q smoke; octavo keys rm smoke --file "$keys/keys.toml"; rm -r "$keys"
say run-batch;  batch=$(mktemp -d)
                echo '{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":"Hi","max_tokens":2}}' >"$batch/in.jsonl"
                octavo run-batch "$batch/in.jsonl" smollm2 -o "$batch/out.jsonl"; grep -q '"status_code":200' "$batch/out.jsonl"
                octavo run-batch -i "$batch/in.jsonl" -o "$batch/out.jsonl" --model smollm2 2>&1 | grep -q '^0 answered'; rm -r "$batch"
say wrong-flag; ends_with 2 octavo run smollm2 Hi --no-such-flag
say wrong-verb; ends_with 2 octavo no-such-verb
say no-file;    ends_with 1 octavo show /nonexistent.gguf
say no-model;   ends_with 1 octavo rm no-such-model
say no-memory;  ends_with 4 octavo run smollm2 Hi --ctx 1000000000
say serve
octavo serve smollm2 --port 0 >"$log" 2>&1 &
server=$!
url=
for _ in $(seq 100); do
  url=$(grep -oE 'http://127.0.0.1:[0-9]+' "$log" | head -n 1 || true)
  if [ -n "$url" ] && python3 -c "import sys, urllib.request as u; u.urlopen(sys.argv[1] + '/ready', timeout=2)" "$url" 2>/dev/null; then break; fi
  sleep 0.2
done
say port-in-use; if octavo serve smollm2 --port "${url##*:}"; then exit 1; else test $? -eq 5; fi
python3 - "$url" <<'PY'
import json, sys, urllib.request
body = json.dumps({"model": "smollm2", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}).encode()
request = urllib.request.Request(sys.argv[1] + "/v1/chat/completions", body, {"Content-Type": "application/json"})
answer = json.load(urllib.request.urlopen(request, timeout=30))
assert answer["usage"]["prompt_tokens"] == 31, answer
print(answer["choices"][0]["message"])
PY
kill -TERM "$server"
wait "$server"
server=
say done
