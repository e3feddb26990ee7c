"""Engines of others, end to end: `penstock serve` before `penstock emulate`.

    python3 tests/e2e/engines_test.py --binary build/release/penstock
"""
import argparse
import concurrent.futures
import http.client
import json
import os
import signal
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
            assert direct == through, (direct, through)
            status, stream = ask(gateway.port, "POST", "/v1/chat/completions",
                                 chat("hi", stream=True, model="mine"))
            assert status == 200 and stream.endswith("data: [DONE]\n\n"), stream
            assert "usage" not in stream, stream
            assert words(stream) == json.loads(direct[1])["choices"][0]["message"]["content"]
            for path, body in (("/v1/completions", {"prompt": "x"}), ("/v1/responses", {"input": "x"}),
                               ("/v1/messages", {"messages": [1], "max_tokens": 4}),
                               ("/tokenize", {"prompt": "x"})):
                body["model"] = "emulated"
                assert ask(gateway.port, "POST", path, body) == \
                    ask(engine.port, "POST", path, body, {"authorization": "Bearer worker-key"}), path
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
        until = time.monotonic() + 5

        def client(number):
            whole = broken = 0
            while time.monotonic() < until:
                i = (number + whole) % 8
                status, stream = ask(gateway.port, "POST", "/v1/chat/completions",
                                     chat(str(i), stream=True))
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
    for test in (test_every_dialect, test_refusals, test_faults,
                 test_client_goes_away, test_churn):
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            test(folder)
            print(f"ok {test.__name__} ({time.monotonic() - began:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
