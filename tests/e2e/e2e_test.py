#!/usr/bin/env python3
"""End-to-end tests: the real binary, real processes, real sockets, Python's standard library only.

usage: e2e_test.py --binary build/release/penstock [-k PATTERN]

Every test starts its own server on port 0 with its own data folder, waits on conditions (never on
time alone) and stops it with SIGTERM, which must end with exit code 0.
"""
import argparse
import concurrent.futures
import http.client
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BINARY = None
DEADLINE = 60  # seconds that any single wait may take


def wait_for(condition, what):
    """Polls until condition() is true; returns its value."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {DEADLINE} s in vain for {what}")


def read(path):
    with open(path) as file:
        return file.read()


class Server:
    """`penstock serve --port 0` in a folder of its own."""

    def __init__(self, *flags):
        self.folder = tempfile.mkdtemp(prefix="penstock-e2e-")
        self.access_log = os.path.join(self.folder, "access.log")
        self.stderr = open(os.path.join(self.folder, "stderr"), "w+")
        self.process = subprocess.Popen(
            [BINARY, "serve", "--port", "0", "--json", "--data-dir", os.path.join(self.folder, "d"),
             "--access-log", self.access_log, "--kv-memory", "256MiB", *flags],
            stdout=subprocess.PIPE, stderr=self.stderr, stdin=subprocess.DEVNULL, text=True, cwd=ROOT)
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise AssertionError("serve ended early: " + self.log())
        self.ready = json.loads(line)
        self.port = self.ready["port"]
        self.tls = self.ready["url"].startswith("https")

    def log(self):
        return read(self.stderr.name)

    def connect(self, timeout=DEADLINE):
        if not self.tls:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=context)

    def request(self, method, path, body=None, headers=None):
        """(status, headers, body text)"""
        connection = self.connect()
        try:
            data = json.dumps(body) if isinstance(body, (dict, list)) else body
            connection.request(method, path, data, {"content-type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read().decode()
        finally:
            connection.close()

    def chat(self, content, headers=None, **fields):
        body = {"model": "nano", "temperature": 0, "max_tokens": 32,
                "messages": [{"role": "user", "content": content}], **fields}
        return self.request("POST", "/v1/chat/completions", body, headers)

    def children(self, role):
        """Process ids of our children with that role."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
                with open(f"/proc/{pid}/stat") as file:
                    parent = int(file.read().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            if parent == self.process.pid and role.encode() in words[1:2]:
                found.append(int(pid))
        return found

    def running(self):
        """Sequences that the worker computes now."""
        metrics = self.request("GET", "/metrics")[2]
        return int(re.search(r"penstock_worker_requests_running\{[^}]*\} (\d+)", metrics).group(1))

    def is_ready(self):
        try:
            return self.request("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def stop(self):
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(DEADLINE)
        self.process.stdout.close()
        self.stderr.close()
        return code

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        code = self.stop()
        log = self.log()
        shutil.rmtree(self.folder, ignore_errors=True)
        if kind is not None:
            sys.stderr.write(log[-4000:])
        elif code != 0:
            raise AssertionError(f"serve ended with {code}: {log}")


def events(response):
    """The data of each server-sent event, as it comes."""
    for line in response:
        line = line.decode().rstrip("\r\n")
        if line.startswith("data: "):
            yield line[len("data: "):]


def stream(server, content, **fields):
    """(text, finish reason) of a streamed answer; asserts that the stream is whole."""
    connection = server.connect()
    body = {"model": "nano", "temperature": 0, "max_tokens": 32, "stream": True,
            "messages": [{"role": "user", "content": content}], **fields}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    text, finish, last = "", None, None
    for data in events(response):
        last = data
        if data == "[DONE]":
            continue
        for choice in json.loads(data)["choices"]:
            text += choice["delta"].get("content") or ""
            finish = choice["finish_reason"] or finish
    connection.close()
    assert last == "[DONE]", f"the stream ended with {last!r}"
    return text, finish


def run(*arguments, stdin=None, env=None):
    """(exit code, stdout, stderr) of a command that ends by itself."""
    done = subprocess.run([BINARY, *arguments], input=stdin, capture_output=True, text=True,
                          timeout=DEADLINE * 4, cwd=ROOT, env={**os.environ, **(env or {})})
    return done.returncode, done.stdout, done.stderr


def make_certificate(folder):
    cert, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj",
                    "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                    "-keyout", key, "-out", cert], check=True, capture_output=True)
    os.chmod(key, 0o600)
    return cert, key


class Serving(unittest.TestCase):
    def test_whole_and_streamed_answers_agree(self):
        with Server() as server:
            status, headers, body = server.chat("What is 17 + 25?")
            self.assertEqual(status, 200, body)
            answer = json.loads(body)
            usage = answer["usage"]
            self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])
            text, finish = stream(server, "What is 17 + 25?")
            self.assertEqual(text, answer["choices"][0]["message"]["content"] or "")
            self.assertEqual(finish, answer["choices"][0]["finish_reason"])
            self.assertEqual(server.request("GET", "/healthz")[0], 200)
            models = json.loads(server.request("GET", "/v1/models")[2])
            self.assertEqual([m["id"] for m in models["data"]], ["nano"])
            metrics = server.request("GET", "/metrics")[2]
            self.assertIn('penstock_gateway_requests_total{route="/v1/chat/completions",status="200"} 2',
                          metrics)
            self.assertTrue(wait_for(lambda: read(server.access_log).count("/v1/chat/completions") == 2,
                                     "two lines in the access log"))
            line = [json.loads(l) for l in read(server.access_log).splitlines() if "/v1/chat" in l][0]
            self.assertEqual(line["completion_tokens"], usage["completion_tokens"])
            self.assertNotIn("17 + 25", read(server.access_log))

    def test_bad_requests_get_clear_errors(self):
        with Server() as server:
            for body, status, code in [
                    ("{\"model\": ", 400, None), ("[]", 400, None),
                    ({"model": "nano", "messages": []}, 400, None),
                    ({"model": "gpt-9", "messages": [{"role": "user", "content": "hi"}]}, 404,
                     "model_not_found"),
                    ('{"model":"nano","messages":[{"role":"user","content":"hi"}],"temperature":1e999}', 400, None),
                    ({"model": "nano", "messages": [{"role": "user", "content": "hi"}], "n": 10**9}, 400, None),
                    ({"model": "nano", "messages": [{"role": "user", "content": "word " * 6000}]}, 400,
                     "context_length_exceeded"),
                    ("[" * 1000 + "]" * 1000, 400, None)]:
                got, _, text = server.request("POST", "/v1/chat/completions", body)
                self.assertEqual(got, status, text)
                error = json.loads(text)["error"]
                self.assertTrue(error["message"])
                if code:
                    self.assertEqual(error["code"], code)
            self.assertEqual(server.request("GET", "/nope")[0], 404)
            self.assertEqual(server.request("DELETE", "/v1/models")[0], 405)
            self.assertEqual(server.chat("still there?")[0], 200)

    def test_64_streams_equal_each_alone(self):
        questions = [f"What is {11 + i} + {97 - i}?" if i % 2 else f"Sort these numbers: {i}, {90 - i}, {40 + i}"
                     for i in range(64)]
        with Server("--max-batch-tokens", "64") as server:
            alone = [stream(server, q) for q in questions]
            with concurrent.futures.ThreadPoolExecutor(64) as pool:
                together = list(pool.map(lambda q: stream(server, q), questions))
            self.assertEqual(together, alone)

    def test_aliases_and_several_models(self):
        nano = os.path.join(ROOT, "models", "nano")
        with Server("--model", f"a={nano}", "--model", f"b={nano}", "--alias", "gpt-4o-mini=b") as server:
            names = [m["id"] for m in json.loads(server.request("GET", "/v1/models")[2])["data"]]
            self.assertLessEqual({"a", "b"}, set(names))
            answers = {json.loads(server.chat("Count to 5.", model=m)[2])["choices"][0]["message"]["content"]
                       for m in ("a", "b", "gpt-4o-mini")}
            self.assertEqual(len(answers), 1)

    def test_a_client_that_leaves_stops_its_generation(self):
        with Server() as server:
            connection = server.connect()
            body = {"model": "nano", "temperature": 0, "max_tokens": 3500, "stream": True, "ignore_eos": True,
                    "messages": [{"role": "user", "content": "Count to 9."}]}
            connection.request("POST", "/v1/chat/completions", json.dumps(body))
            response = connection.getresponse()
            next(events(response))
            response.close()
            connection.close()
            wait_for(lambda: server.running() == 0, "the worker to stop")
            lines = wait_for(lambda: [json.loads(l) for l in read(server.access_log).splitlines() if "/v1/chat" in l],
                             "the access log")
            self.assertEqual(lines[0]["status"], 499)
            self.assertLess(lines[0]["completion_tokens"], 3500)


class Stopping(unittest.TestCase):
    def test_sigterm_lets_running_requests_finish(self):
        with Server() as server:
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                running = [pool.submit(stream, server, "Count to 9.", max_tokens=2000, ignore_eos=True)
                           for _ in range(4)]
                wait_for(lambda: server.running() == 4, "four running requests")
                server.process.send_signal(signal.SIGTERM)
                for each in running:
                    self.assertEqual(each.result(DEADLINE)[1], "length")
            self.assertEqual(server.process.wait(DEADLINE), 0)

    def test_children_die_with_the_supervisor(self):
        server = Server()
        children = server.children("worker") + server.children("gateway")
        self.assertEqual(len(children), 2)
        server.process.kill()
        server.process.wait()
        wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") and
                                 read(f"/proc/{pid}/stat").rsplit(")", 1)[1].split()[0] != "Z"
                                 for pid in children), "the children's death")
        server.process.stdout.close()
        server.stderr.close()
        shutil.rmtree(server.folder, ignore_errors=True)

    def test_a_killed_worker_is_a_clean_error_and_then_back(self):
        with Server() as server:
            before = stream(server, "What is 17 + 25?")
            gateway = server.children("gateway")
            connection = server.connect()
            body = {"model": "nano", "temperature": 0, "max_tokens": 3500, "stream": True, "ignore_eos": True,
                    "messages": [{"role": "user", "content": "Count to 9."}]}
            connection.request("POST", "/v1/chat/completions", json.dumps(body))
            response = connection.getresponse()
            self.assertEqual(response.status, 200)
            reader = events(response)
            next(reader)
            worker = server.children("worker")
            os.kill(worker[0], signal.SIGKILL)
            try:
                rest = list(reader)
            except (http.client.HTTPException, OSError):
                rest = []  # the gateway cut the stream: an error too, not a whole answer
            connection.close()
            # Either the stream says that it broke, or it went on elsewhere and ended as it should.
            broke = not rest or rest[-1] != "[DONE]" or any('"error"' in r for r in rest)
            finished = rest and rest[-1] == "[DONE]" and any('"finish_reason":"length"' in r for r in rest)
            self.assertTrue(broke or finished, rest[-3:])
            wait_for(lambda: server.children("worker") not in ([], worker) and server.is_ready(),
                     "the service to come back")
            self.assertEqual(stream(server, "What is 17 + 25?"), before)
            self.assertEqual(server.children("gateway"), gateway, "the gateway must survive: " + server.log())

    def test_a_killed_gateway_comes_back_on_its_port(self):
        with Server() as server:
            gateway = server.children("gateway")
            os.kill(gateway[0], signal.SIGKILL)
            wait_for(lambda: server.children("gateway") not in ([], gateway) and server.is_ready(),
                     "the gateway to come back")
            self.assertEqual(server.chat("hi")[0], 200)


class Security(unittest.TestCase):
    KEY = "sk-e2e-0123456789abcdef"

    def test_keys_and_tls(self):
        with tempfile.TemporaryDirectory() as folder:
            cert, key = make_certificate(folder)
            keys = os.path.join(folder, "keys")
            with open(keys, "w") as file:
                file.write(f"# e2e\nci {self.KEY}\n")
            os.chmod(keys, 0o600)
            with Server("--api-key-file", keys, "--tls-cert", cert, "--tls-key", key) as server:
                self.assertTrue(server.tls)
                for headers in ({}, {"authorization": "Bearer wrong-key-0123456789"},
                                {"authorization": "Basic " + self.KEY}):
                    status, _, body = server.chat("hi", headers)
                    self.assertEqual(status, 401, body)
                    self.assertEqual(json.loads(body)["error"]["code"], "invalid_api_key")
                    self.assertNotIn(self.KEY, body)
                status, _, body = server.chat("hi", {"authorization": "Bearer " + self.KEY})
                self.assertEqual(status, 200, body)
                wait_for(lambda: '"key":"ci"' in read(server.access_log), "the key's name in the log")
                self.assertNotIn(self.KEY, read(server.access_log) + server.log())
                code, out, err = run("chat", "--url", server.ready["url"], "--ca-file", cert, "hi",
                                     env={"PENSTOCK_API_KEY": self.KEY}, stdin="")
                self.assertEqual(code, 0, err)
                code, _, err = run("chat", "--url", server.ready["url"], "--ca-file", cert, "hi", stdin="",
                                   env={"PENSTOCK_API_KEY": ""})
                self.assertEqual(code, 77, err)

    def test_no_keys_no_network(self):
        code, _, err = run("serve", "--host", "0.0.0.0")
        self.assertEqual(code, 77)
        self.assertIn("--api-key-file", err)


class CommandLine(unittest.TestCase):
    def test_mistakes_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            config = os.path.join(folder, "p.yaml")
            with open(config, "w") as file:
                file.write("listen:\n  prot: 1\n")
            keys = os.path.join(folder, "keys")
            with open(keys, "w") as file:
                file.write(f"ci {Security.KEY}\n")
            os.chmod(keys, 0o644)
            data = ["--data-dir", os.path.join(folder, "d"), "--port", "0"]
            for arguments, code, message in [
                    (["serve", "--config", config], 64, f"{config}:2: listen.prot: unknown key; did you mean"),
                    (["serve", "--prot", "1"], 64, "did you mean --port?"),
                    (["srve"], 64, "did you mean serve?"),
                    (["serve", *data, "--model", f"x={folder}"], 66, "not a checkpoint folder"),
                    (["serve", *data, "--api-key-file", keys], 77, f"chmod 600 {keys}"),
                    (["serve", *data, "--engine", "vllm=http://x"], 64, "embedded"),
                    (["chat", "--url", "http://127.0.0.1:1", "hi"], 69, "penstock serve"),
                    (["bench", "nope"], 66, "no bench"),
                    (["config", "explain", "listen.prot"], 66, "did you mean listen.port?")]:
                got, out, err = run(*arguments, stdin="")
                self.assertEqual(got, code, err)
                self.assertIn(message, err)
                self.assertEqual(out, "")

    def test_a_broken_checkpoint_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "m")
            shutil.copytree(os.path.join(ROOT, "models", "nano"), model)
            weights = os.path.join(model, "model.safetensors")
            os.truncate(weights, os.path.getsize(weights) // 2)
            code, out, err = run("serve", "--port", "0", "--data-dir", os.path.join(folder, "d"), "--model",
                                 f"m={model}")
            self.assertNotEqual(code, 0)
            self.assertIn("model.safetensors", err)
            self.assertEqual(out, "")

    def test_one_service_a_data_folder_and_a_port(self):
        with Server() as server:
            code, _, err = run("serve", "--port", "0", "--data-dir", server.ready["data_dir"])
            self.assertEqual(code, 73)
            self.assertIn("another penstock serve uses the data folder", err)
            with tempfile.TemporaryDirectory() as folder:
                code, _, err = run("serve", "--port", str(server.port), "--data-dir", folder)
            self.assertEqual(code, 73)
            self.assertIn(f"port {server.port} on 127.0.0.1 is in use", err)

    def test_doctor(self):
        with tempfile.TemporaryDirectory() as folder:
            code, out, _ = run("doctor", "--json", "--port", "0", "--data-dir", folder, "--kv-memory", "64MiB")
            report = json.loads(out)
            self.assertEqual(code, 0, out)
            self.assertTrue(report["ok"])
            self.assertIn("model nano", [c["name"] for c in report["checks"]])
            code, out, _ = run("doctor", "--json", "--port", "0", "--data-dir", folder, "--model", f"x={folder}")
            self.assertEqual(code, 1)
            self.assertEqual([c["name"] for c in json.loads(out)["checks"] if c["level"] == "fail"],
                             ["model x"])

    def test_chat(self):
        with Server() as server:
            url = server.ready["url"]
            expected = json.loads(server.chat("What is 17 + 25?")[2])["choices"][0]["message"]["content"]
            code, out, err = run("chat", "--url", url, "--temperature", "0", "--max-tokens", "32",
                                 "What is", "17 + 25?", stdin="")
            self.assertEqual((code, out.rstrip("\n")), (0, expected.rstrip("\n")), err)
            code, out, err = run("chat", "--url", url, "--temperature", "0", "--max-tokens", "32",
                                 "--verbose", stdin="What is 17 + 25?\n")
            self.assertEqual((code, out.rstrip("\n")), (0, expected.rstrip("\n")), err)
            self.assertIn("tokens/s", err)

    def test_eval_serves_by_itself(self):
        code, out, err = run("eval", "--suite", "skills", "--items", "2", "--json", "--kv-memory", "64MiB",
                             "--max-tokens", "16")
        self.assertEqual(code, 0, err)
        report = json.loads(out)
        self.assertEqual(report["total"]["errors"], 0)
        self.assertEqual(report["total"]["items"], 2 * len(report["skills"]))

    def test_config_show_is_a_config_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "shown.yaml")
            code, shown, _ = run("config", "show", "--port", "9999")
            self.assertEqual(code, 0)
            with open(path, "w") as file:
                file.write(shown)
            code, again, err = run("config", "show", "--config", path)
            self.assertEqual((code, again), (0, shown), err)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    known, rest = parser.parse_known_args()
    BINARY = os.path.abspath(known.binary)
    if not os.path.exists(os.path.join(ROOT, "models", "nano", "model.safetensors")):
        print("skipped: models/nano is not there")
        sys.exit(0)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
