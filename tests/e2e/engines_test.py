"""Engines of others, end to end: `penstock serve` before `penstock emulate`.

    python3 tests/e2e/engines_test.py --binary build/release/penstock
"""
import argparse
import concurrent.futures
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time

BINARY = None


class Process:
    def __init__(self, *arguments):
        self.child = subprocess.Popen([BINARY, *arguments], stdout=subprocess.PIPE, text=True)
        line = self.child.stdout.readline()
        assert line, f"{arguments} did not start"
        self.line = line
        self.port = int(json.loads(line)["port"] if line.startswith("{")
                        else line.strip().rsplit(":", 1)[1])

    def stop(self, how=signal.SIGTERM):
        if self.child.poll() is None:
            self.child.send_signal(how)
        self.child.wait(timeout=30)


def emulate(dialect, *settings, port=0):
    return Process("emulate", dialect, "--port", str(port), "token-ms=1", "first-token-ms=1", *settings)


def serve(folder, *engines, extra=()):
    flags = [part for engine in engines for part in ("--engine", engine)]
    return Process("serve", "--port", "0", "--json", "--data-dir", folder, *flags, *extra)


@contextlib.contextmanager
def emulating(*arguments):
    engine = emulate(*arguments)
    try:
        yield engine
    finally:
        engine.stop()


def ask(port, method, path, body=None, headers=None, timeout=30):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    text = body if isinstance(body, str) else json.dumps(body) if body is not None else None
    connection.request(method, path, text, {"content-type": "application/json", **(headers or {})})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def wait_ready(port):
    for _ in range(300):
        if ask(port, "GET", "/readyz")[0] == 200:
            return
        time.sleep(0.05)
    raise AssertionError("the gateway does not become ready")


def wait_running(engine_port, count, within=5):
    until = time.monotonic() + within
    while True:
        stats = json.loads(ask(engine_port, "GET", "/emulate/stats")[1])
        if stats["running"] == count:
            return
        assert time.monotonic() < until, stats
        time.sleep(0.02)


def chat(word, **more):
    return {"model": "emulated", "messages": [{"role": "user", "content": word}], **more}


def words(stream):
    out = ""
    for event in stream.split("\n\n"):
        if event.startswith("data: {"):
            for choice in json.loads(event[6:]).get("choices", []):
                out += choice["delta"].get("content") or ""
    return out


def unnamed(answer):
    """Without the ids, which no engine gives twice."""
    return answer[0], re.sub(r"(?<=[-_])[0-9a-f]{16}|\"created_at\":[0-9]+", "", answer[1])


def test_every_dialect(folder):
    for dialect in ("vllm", "sglang", "llamacpp"):
        engine = emulate(dialect, "key=worker-key")
        key_file = os.path.join(folder, "engine.key")
        with open(key_file, "w", opener=lambda p, f: os.open(p, f, 0o600)) as file:
            file.write("worker-key\n")
        gateway = serve(os.path.join(folder, dialect),
                        f"{dialect}=http://127.0.0.1:{engine.port},key-file={key_file}",
                        extra=("--alias", "mine=emulated"))
        try:
            wait_ready(gateway.port)
            models = json.loads(ask(gateway.port, "GET", "/v1/models")[1])["data"]
            assert [m["id"] for m in models] == ["emulated", "mine"], models
            direct = ask(engine.port, "POST", "/v1/chat/completions", chat("hi"),
                         {"authorization": "Bearer worker-key"})
            through = ask(gateway.port, "POST", "/v1/chat/completions", chat("hi"),
                          {"authorization": "Bearer client-key"})
            assert unnamed(direct) == unnamed(through), (direct, through)
            status, stream = ask(gateway.port, "POST", "/v1/chat/completions",
                                 chat("hi", stream=True, model="mine"))
            assert status == 200 and stream.endswith("data: [DONE]\n\n"), stream
            assert "usage" not in stream, stream
            assert words(stream) == json.loads(direct[1])["choices"][0]["message"]["content"]
            for path, body in (("/v1/completions", {"prompt": "x"}), ("/v1/responses", {"input": "x"}),
                               ("/v1/messages", {"messages": [1], "max_tokens": 4}),
                               ("/tokenize", {"prompt": "x"}), ("/v1/embeddings", {"input": "x"}),
                               ("/inference/v1/generate", {"token_ids": [1, 2, 3]})):
                if path.startswith("/inference") and dialect != "vllm":
                    continue
                body["model"] = "emulated"
                assert unnamed(ask(gateway.port, "POST", path, body)) == unnamed(
                    ask(engine.port, "POST", path, body, {"authorization": "Bearer worker-key"})), path
            assert ask(gateway.port, "POST", "/v1/chat/completions", chat("x", model="no"))[0] == 404
        finally:
            gateway.stop()
            engine.stop()


def test_refusals(folder):
    for words, reason in ((["vllm=http://127.0.0.1:9,key-file=/no/key"], "/no/key"),
                          (["vllm=http://127.0.0.1:9,role=prefill"], "no decode engine"),
                          (["vlm=http://127.0.0.1:9"], "did you mean"),
                          (["vllm=http://127.0.0.1:9", "embedded"], "together")):
        flags = [part for word in words for part in ("--engine", word)]
        done = subprocess.run([BINARY, "serve", "--port", "0", "--data-dir", folder, *flags],
                              capture_output=True, text=True, timeout=30)
        assert done.returncode != 0 and reason in done.stderr, (words, done)
    engine = emulate("vllm")
    gateway = serve(folder, f"vllm=http://127.0.0.1:{engine.port}")
    try:
        wait_ready(gateway.port)
        status, why = ask(gateway.port, "GET", "/v1/responses", headers={
            "upgrade": "websocket", "connection": "Upgrade", "sec-websocket-version": "13",
            "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA=="})
        assert status >= 400 and "no WebSocket" in why, (status, why)
        for field in ("kv_transfer_params", "bootstrap_room"):
            status, why = ask(gateway.port, "POST", "/v1/chat/completions", chat("x", **{field: 1}))
            assert status == 400 and field in why, (status, why)
    finally:
        gateway.stop()
        engine.stop()


def test_client_goes_away(folder):
    engine = emulate("vllm", "token-ms=300", "tokens=100")
    gateway = serve(folder, f"vllm=http://127.0.0.1:{engine.port}")
    try:
        wait_ready(gateway.port)
        for stream in (True, False):
            connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)
            connection.request("POST", "/v1/chat/completions", json.dumps(chat("x", stream=stream)),
                               {"content-type": "application/json"})
            wait_running(engine.port, 1)
            connection.close()
            wait_running(engine.port, 0)  # far from the end of its 30 seconds
    finally:
        gateway.stop()
        engine.stop()


def test_churn(folder):
    """One of two engines dies and comes back, over and over, at load: nothing hangs, no wrong text."""
    steady = emulate("vllm", "token-ms=4")
    other = emulate("vllm", "token-ms=4")
    other_port = other.port
    gateway = serve(os.path.join(folder, "churn"), f"vllm=http://127.0.0.1:{steady.port}",
                    f"vllm=http://127.0.0.1:{other_port}")
    try:
        wait_ready(gateway.port)
        expected = {}
        for i in range(8):
            body = ask(steady.port, "POST", "/v1/chat/completions", chat(str(i)))[1]
            expected[i] = json.loads(body)["choices"][0]["message"]["content"]
        # A greedy stream that is cut goes on from the other engine, and the client sees nothing of it.
        ask(other_port, "POST", "/emulate/faults", {"cut_after": 900})
        for i in range(200):
            status, stream = ask(gateway.port, "POST", "/v1/chat/completions",
                                 chat(str(i), stream=True, temperature=0))
            assert status == 200 and stream.endswith("data: [DONE]\n\n"), (status, stream)
            direct = ask(steady.port, "POST", "/v1/chat/completions", chat(str(i)))[1]
            assert words(stream) == json.loads(direct)["choices"][0]["message"]["content"], stream
            if json.loads(ask(other_port, "GET", "/emulate/stats")[1])["requests"] > 2:
                break
        else:
            raise AssertionError("no stream was cut")
        ask(other_port, "POST", "/emulate/faults", {})
        until = time.monotonic() + 5

        def client(number):
            whole = broken = 0
            while time.monotonic() < until:
                i = (number + whole) % 8
                greedy = {"temperature": 0} if number % 2 else {}
                status, stream = ask(gateway.port, "POST", "/v1/chat/completions",
                                     chat(str(i), stream=True, **greedy))
                if status == 200 and stream.endswith("data: [DONE]\n\n"):
                    assert words(stream) == expected[i], (words(stream), expected[i])
                    whole += 1
                else:
                    # Refused whole, or ended by one error event after a beginning of the text.
                    assert '{"error":' in stream, (status, stream)
                    if status == 200:
                        assert expected[i].startswith(words(stream[:stream.rindex("data: ")]))
                    broken += 1
            return whole, broken

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            clients = [pool.submit(client, n) for n in range(8)]
            while time.monotonic() < until - 1:
                time.sleep(0.5)
                other.stop(signal.SIGKILL)
                time.sleep(0.2)
                other = emulate("vllm", "token-ms=4", port=other_port)
            results = [c.result(timeout=60) for c in clients]
        assert sum(r[0] for r in results) > 20, results
        for port in (steady.port, other.port):
            wait_running(port, 0)
    finally:
        gateway.stop()
        steady.stop()
        other.stop()


def test_conversations(folder):
    """Turns of a conversation go where its beginning is cached; explain and metrics tell."""
    engines = [emulate("sglang", "ranks=2"), emulate("vllm"), emulate("llamacpp")]
    gateway = serve(os.path.join(folder, "talk"), *(
        f"{kind}=http://127.0.0.1:{engine.port}"
        for kind, engine in zip(("sglang", "vllm", "llamacpp"), engines)),
        extra=("--access-log", os.path.join(folder, "access.log")))
    try:
        wait_ready(gateway.port)
        time.sleep(1.2)  # every engine has told its ranks
        talks = [[] for _ in range(16)]
        cached = [0] * len(talks)
        for turn in range(4):
            for number, messages in enumerate(talks):
                messages.append({"role": "user", "content": f"{number} {turn} " + "words " * 300})
                status, text = ask(gateway.port, "POST", "/v1/chat/completions",
                                   {"model": "emulated", "messages": messages})
                assert status == 200, text
                answer = json.loads(text)
                messages.append(answer["choices"][0]["message"])
                usage = answer["usage"]
                # All that was there a turn ago, but for a block or two at its end.
                assert turn == 0 or \
                    usage["prompt_tokens_details"]["cached_tokens"] > cached[number] - 64, usage
                cached[number] = usage["prompt_tokens"]
        metrics = ask(gateway.port, "GET", "/metrics")[1]
        lines = [line for line in metrics.splitlines()
                 if line.startswith("penstock_engine_hit_trust_ratio")]
        assert lines and all(float(line.split()[-1]) > 0.9 for line in lines), lines
        with open(os.path.join(folder, "access.log")) as log:
            entry = [e for e in map(json.loads, log) if "chat" in e["route"]][-1]
        done = subprocess.run([BINARY, "explain", entry["request_id"], "--data-dir",
                               os.path.join(folder, "talk"), "--json"],
                              capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done
        leg = json.loads(done.stdout)["placements"][0]["prefill"]
        assert len(leg["best"]) == 4 and leg["chosen"] == leg["best"][0]["rank"], leg
        # Operators see the engines, drain them, and have SGLang record its experts' loads.
        with open(os.path.join(folder, "talk", "run", "gateway.json")) as file:
            operator = {"authorization": f"Bearer {json.load(file)['token']}"}
        assert ask(gateway.port, "GET", "/admin/engines")[0] == 401
        seen = json.loads(ask(gateway.port, "GET", "/admin/engines", headers=operator)[1])["engines"]
        assert [(e["name"], e["healthy"], e["draining"]) for e in seen] == \
            [("sglang-0", True, False), ("vllm-1", True, False), ("llamacpp-2", True, False)], seen

        def operate(what):
            status, text = ask(gateway.port, "POST", f"/admin/engines/{what}", headers=operator)
            return status, text

        assert operate("sglang-0/drain")[0] == 200 and operate("llamacpp-2/drain")[0] == 200
        before = [json.loads(ask(e.port, "GET", "/emulate/stats")[1])["requests"] for e in engines]
        for number in range(12):
            assert ask(gateway.port, "POST", "/v1/chat/completions", chat(f"drained {number}"))[0] == 200
        after = [json.loads(ask(e.port, "GET", "/emulate/stats")[1])["requests"] for e in engines]
        assert after == [before[0], before[1] + 12, before[2]], (before, after)
        assert operate("sglang-0/experts/dump")[0] >= 400  # nothing was started
        for verb in ("start", "stop"):
            assert operate(f"sglang-0/experts/{verb}")[0] == 200, verb
        assert operate("vllm-1/experts/start")[0] == 400 and operate("none/drain")[0] == 404
    finally:
        gateway.stop()
        for engine in engines:
            engine.stop()


def test_events(folder):
    """Prompts go where engines say that they are, in either encoding; losses and restarts are noticed."""
    for kind in ("vllm", "sglang"):
        events_of(kind, os.path.join(folder, kind))


def events_of(kind, folder):
    def start(port=0, endpoints=None, **more):
        at = endpoints or {"events": ["tcp://127.0.0.1:*"], "replay": ["tcp://127.0.0.1:*"]}
        engine = emulate(kind, f"kv-events={at['events'][0]}", f"kv-replay={at['replay'][0]}",
                         *(f"{k.replace('_', '-')}={v}" for k, v in more.items()), port=port)
        engine.kv = json.loads(ask(engine.port, "GET", "/emulate/stats")[1])["kv_endpoints"]
        return engine

    engines = [start(), start(**{"old_forms" if kind == "vllm" else "old_events": 1})]
    gateway = serve(folder, *(
        f"{kind}=http://127.0.0.1:{e.port},kv-events={e.kv['events'][0]},kv-replay={e.kv['replay'][0]}"
        for e in engines))

    def body(word):
        return {"model": "emulated", "messages": [{"role": "user", "content": f"{word} " * 400}]}

    def cached(port, word):
        status, text = ask(port, "POST", "/v1/chat/completions", body(word))
        assert status == 200, text
        return json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"]

    def wait_metric(name, count):
        until = time.monotonic() + 20
        while True:
            lines = [line for line in ask(gateway.port, "GET", "/metrics")[1].splitlines()
                     if line.startswith(name)]
            if lines and float(lines[0].split()[-1]) >= count:
                return
            assert time.monotonic() < until, (lines, count)
            time.sleep(0.1)

    def wait_blocks(count):
        wait_metric('penstock_engine_index_blocks{from="events"}', count)

    try:
        wait_ready(gateway.port)
        # Sent past the gateway, so that only events can tell.
        words_of = ("river", "turbine", "penstock", "governor", "spillway", "tailrace")
        blocks = 0
        for i, word in enumerate(words_of):
            assert cached(engines[i % 2].port, word) == 0
            blocks += len(json.dumps(body(word)["messages"])) // 64
        wait_blocks(blocks)
        for word in words_of:
            assert cached(gateway.port, word) > 400, word
        # Events that get lost are asked for with the next one.
        ask(engines[1].port, "POST", "/emulate/faults", {"lose_events": True})
        cached(engines[1].port, "lost-in-the-net")
        ask(engines[1].port, "POST", "/emulate/faults", {})
        cached(engines[1].port, "after-it")
        blocks += sum(len(json.dumps(body(w)["messages"])) // 64 for w in ("lost-in-the-net", "after-it"))
        wait_blocks(blocks)
        assert cached(gateway.port, "lost-in-the-net") > 400
        # One that is killed and comes back holds nothing, and the gateway knows.
        engines[0].stop(signal.SIGKILL)
        engines[0] = start(port=engines[0].port, endpoints=engines[0].kv)
        cached(engines[0].port, "risen")
        wait_metric(f'penstock_engine_kv_event_purges{{engine="{kind}-0"', 1)
        until = time.monotonic() + 10  # until a probe has found it again
        while cached(gateway.port, "risen") == 0:
            assert time.monotonic() < until
        assert cached(gateway.port, "turbine") > 400
    finally:
        gateway.stop()
        for engine in engines:
            engine.stop()


def test_rooms(folder):
    """SGLang's legs: a room of its own for each, and the room names the prefill's rank."""
    prefill = emulate("sglang", "mode=prefill", "ranks=4")
    decode = emulate("sglang", "mode=decode")
    gateway = serve(os.path.join(folder, "rooms"),
                    f"sglang=http://127.0.0.1:{prefill.port},role=prefill,bootstrap-port={prefill.port}",
                    f"sglang=http://127.0.0.1:{decode.port},role=decode")
    try:
        wait_ready(gateway.port)
        bodies = [chat(f"talk {i} " * 40, stream=bool(i % 2)) for i in range(40)]
        expected = {}
        with emulating("sglang") as plain:
            for i, body in enumerate(bodies):
                expected[i] = ask(plain.port, "POST", "/v1/chat/completions",
                                  {**body, "stream": False})[1]
        def send(i):
            status, text = ask(gateway.port, "POST", "/v1/chat/completions", bodies[i])
            assert status == 200, text
            said = words(text) if i % 2 else json.loads(text)["choices"][0]["message"]["content"]
            assert said == json.loads(expected[i])["choices"][0]["message"]["content"], (i, said)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(send, range(len(bodies))))
        # A prefill that fails ends the decode at once, and the client hears of it.
        ask(prefill.port, "POST", "/emulate/faults", {"status": 500})
        began = time.monotonic()
        status, text = ask(gateway.port, "POST", "/v1/chat/completions", chat("x"))
        assert status >= 500 and time.monotonic() - began < 5, (status, text)
        for engine in (prefill, decode):
            wait_running(engine.port, 0)
    finally:
        gateway.stop()
        prefill.stop()
        decode.stop()


def test_media(folder):
    """Media are encoded by encode servers, and one of them may die."""
    encoders = [emulate("vllm", "mode=encode") for _ in range(2)]
    answers = emulate("vllm", "mode=language")
    gateway = serve(os.path.join(folder, "media"), f"vllm=http://127.0.0.1:{answers.port}", *(
        f"vllm=http://127.0.0.1:{e.port},role=encode" for e in encoders))

    def body(number):
        return {"model": "emulated", "messages": [{"role": "user", "content": [
            {"type": "text", "text": "what is it?"},
            *({"type": "image_url", "image_url": {"url": f"data:{number}-{i}"}} for i in range(3))]}]}

    try:
        wait_ready(gateway.port)
        assert ask(answers.port, "POST", "/v1/chat/completions", body(0))[0] == 400  # it can't alone
        with emulating("vllm") as plain:
            for number in range(6):
                if number == 3:
                    encoders[0].stop(signal.SIGKILL)
                status, text = ask(gateway.port, "POST", "/v1/chat/completions", body(number))
                assert status == 200, text
                assert json.loads(text)["choices"][0]["message"] == json.loads(ask(
                    plain.port, "POST", "/v1/chat/completions", body(number))[1])["choices"][0]["message"]
        assert json.loads(ask(encoders[1].port, "GET", "/emulate/stats")[1])["requests"] >= 9
        wait_running(encoders[1].port, 0)
    finally:
        gateway.stop()
        answers.stop()
        for engine in encoders:
            engine.stop()


def test_every_fault(folder):
    """Each fault switch, before and between legs: no wrong text, nothing left running or held."""
    faults = ({"status": 400}, {"status": 429}, {"status": 500}, {"status": 503}, {"delay_ms": 300},
              {"cut_after": 0}, {"cut_after": 200}, {"cut_after": 900}, {"status": 500, "every": 2})
    legs = ("prefill", "decode")
    for kind, roles, how in (("vllm", ("", ""), ""), ("sglang", ("", ""), ""), ("llamacpp", ("", ""), ""),
                             ("vllm", legs, "nixl"), ("vllm", legs, "mooncake"), ("sglang", legs, "")):
        settings = [[f"mode={role}"] if role and kind == "sglang" else [f"connector={how}"] if how else []
                    for role in roles]
        engines = [emulate(kind, "lease-ms=1500", "peer-wait-ms=1500", *more) for more in settings]
        words_of = {}
        with emulating(kind) as plain:
            for i in range(4):
                text = ask(plain.port, "POST", "/v1/chat/completions", chat(str(i)))[1]
                words_of[i] = json.loads(text)["choices"][0]["message"]["content"]
        gateway = serve(os.path.join(folder, kind + roles[0] + how), *(
            f"{kind}=http://127.0.0.1:{e.port}" + (f",role={role},bootstrap-port={e.port}" if role else "") +
            (f",connector={how}" if how else "") for e, role in zip(engines, roles)))

        def send(number):
            i, stream = number % 4, number % 8 < 4
            status, text = ask(gateway.port, "POST", "/v1/chat/completions", chat(str(i), stream=stream))
            if status != 200:
                assert '"error"' in text, text
            elif not stream:
                assert json.loads(text)["choices"][0]["message"]["content"] == words_of[i], text
            elif text.endswith("data: [DONE]\n\n"):
                assert words(text) == words_of[i], text
            else:
                assert '{"error":' in text and words_of[i].startswith(words(text[:text.rindex("data: ")])), text
            return status
        try:
            wait_ready(gateway.port)
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                for fault in faults:
                    for engine in engines:
                        ask(engine.port, "POST", "/emulate/faults", fault)
                        list(pool.map(send, range(8)))
                        ask(engine.port, "POST", "/emulate/faults", "{}")
            for attempt in range(200):  # breakers close again, and all is as before
                if send(attempt) == 200:
                    break
                time.sleep(0.05)
            else:
                raise AssertionError(f"{kind}: the engines are not used any more")
            until = time.monotonic() + 10
            for engine in engines:
                wait_running(engine.port, 0)
                while json.loads(ask(engine.port, "GET", "/emulate/stats")[1])["held"]:
                    assert time.monotonic() < until, "blocks are held beyond their lease"
                    time.sleep(0.05)
        finally:
            gateway.stop()
            for engine in engines:
                engine.stop()


def test_engines_come_and_go(folder):
    """A line of the engines' file comes or goes every second at load: none hangs, none fails."""
    engines = [emulate("vllm", "token-ms=4") for _ in range(4)]
    file = os.path.join(folder, "engines")

    def write(count):
        with open(file + ".new", "w") as out:
            out.write("# which are there now\n")
            out.writelines(f"vllm=http://127.0.0.1:{e.port}\n" for e in engines[:count])
        os.rename(file + ".new", file)

    write(1)
    gateway = serve(os.path.join(folder, "fleet"), f"file={file}")
    try:
        wait_ready(gateway.port)
        expected = {i: json.loads(ask(engines[0].port, "POST", "/v1/chat/completions",
                                      chat(str(i)))[1])["choices"][0]["message"]["content"]
                    for i in range(8)}
        until = time.monotonic() + 7

        def client(number):
            done = 0
            while time.monotonic() < until:
                i = (number + done) % 8
                status, stream = ask(gateway.port, "POST", "/v1/chat/completions",
                                     chat(str(i), stream=True))
                assert status == 200 and stream.endswith("data: [DONE]\n\n"), stream
                assert words(stream) == expected[i], (words(stream), expected[i])
                done += 1
            return done

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            clients = [pool.submit(client, n) for n in range(8)]
            for step in (4, 2, 3, 1, 4, 2):
                write(step)
                time.sleep(1)
            assert sum(c.result(timeout=60) for c in clients) > 20
        served = [json.loads(ask(e.port, "GET", "/emulate/stats")[1])["requests"] for e in engines]
        assert all(served), served
        # A mistake changes nothing.
        with open(file, "w") as out:
            out.write("vlm=http://x\n")
        time.sleep(1.2)
        assert ask(gateway.port, "POST", "/v1/chat/completions", chat("x"))[0] == 200
        for engine in engines:
            wait_running(engine.port, 0)
    finally:
        gateway.stop()
        for engine in engines:
            engine.stop()


def test_llama_server(folder):
    """A real llama-server, where PENSTOCK_LLAMA_SERVER says where it is and PENSTOCK_LLAMA_MODEL its model."""
    program, model = (os.environ.get(name) for name in ("PENSTOCK_LLAMA_SERVER", "PENSTOCK_LLAMA_MODEL"))
    if not program or not model:
        print("skipped: set PENSTOCK_LLAMA_SERVER to llama-server and PENSTOCK_LLAMA_MODEL to a GGUF file")
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with open(os.path.join(folder, "llama.log"), "w") as log:
        server = subprocess.Popen([program, "-m", model, "--host", "127.0.0.1", "--port", str(port),
                                   "--slots", "--metrics", "-c", "2048"], stdout=log, stderr=log)
    gateway = None
    try:
        gateway = serve(os.path.join(folder, "llama"), f"llamacpp=http://127.0.0.1:{port}")
        until = time.monotonic() + 120  # until the model is loaded
        while ask(gateway.port, "GET", "/readyz")[0] != 200:
            assert server.poll() is None and time.monotonic() < until, "llama-server does not start"
            time.sleep(0.2)
        name = json.loads(ask(gateway.port, "GET", "/v1/models")[1])["data"][0]["id"]
        body = {"model": name, "temperature": 0, "max_tokens": 16,
                "messages": [{"role": "user", "content": "Count: one, two, three, " * 20}]}

        def text(answer):
            return json.loads(answer)["choices"][0]["message"]["content"]

        direct = ask(port, "POST", "/v1/chat/completions", body, timeout=120)[1]
        through = ask(gateway.port, "POST", "/v1/chat/completions", body, timeout=120)[1]
        assert text(direct) == text(through), (direct, through)
        assert json.loads(through)["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, through
        status, stream = ask(gateway.port, "POST", "/v1/chat/completions", {**body, "stream": True}, timeout=120)
        assert status == 200 and stream.endswith("data: [DONE]\n\n") and words(stream) == text(direct), stream
    finally:
        if gateway:
            gateway.stop()
        server.terminate()
        server.wait(timeout=30)


def test_faults(folder):
    engine = emulate("vllm")
    gateway = serve(os.path.join(folder, "faults"), f"vllm=http://127.0.0.1:{engine.port}")
    try:
        wait_ready(gateway.port)
        whole = ask(gateway.port, "POST", "/v1/chat/completions", chat("x", stream=True))[1]
        for cut in range(0, len(whole), 97):
            ask(engine.port, "POST", "/emulate/faults", {"cut_after": cut})
            status, stream = ask(gateway.port, "POST", "/v1/chat/completions", chat("x", stream=True))
            assert (status == 200) == ("chunk" in stream), (cut, status, stream)
            assert "[DONE]" not in stream and '{"error":' in stream, (cut, stream)
            ask(engine.port, "POST", "/emulate/faults", "{}")
            for _ in range(100):  # a breaker that opened closes again
                if ask(gateway.port, "POST", "/v1/chat/completions", chat("x"))[0] == 200:
                    break
                time.sleep(0.05)
    finally:
        gateway.stop()
        engine.stop()


def main():
    global BINARY
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    BINARY = os.path.abspath(parser.parse_args().binary)
    for test in (test_every_dialect, test_refusals, test_faults, test_conversations, test_events, test_rooms, test_media,
                 test_every_fault, test_engines_come_and_go,
                 test_client_goes_away, test_churn, test_llama_server):
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            test(folder)
            print(f"ok {test.__name__} ({time.monotonic() - began:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
