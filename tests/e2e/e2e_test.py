#!/usr/bin/env python3
"""End-to-end tests: the real binary, real processes, real sockets; Python's standard library and jsonschema only.

usage: e2e_test.py --binary build/release/penstock [-k PATTERN]

Every test starts its own server on port 0 with its own data folder, waits on conditions (never on
time alone) and stops it with SIGTERM, which must end with exit code 0.
"""
import argparse
import collections
import concurrent.futures
import http.client
import http.server
import json
import os
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "schemas"))
import schemas  # noqa: E402: all that is read here is as docs/protocol/schemas says
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

    prefix = []  # of the command

    def __init__(self, *flags):
        self.folder = tempfile.mkdtemp(prefix="penstock-e2e-")
        self.access_log = os.path.join(self.folder, "access.log")
        self.stderr = open(os.path.join(self.folder, "stderr"), "w+")
        self.process = subprocess.Popen(
            [*self.prefix, BINARY, "serve", "--port", "0", "--json", "--data-dir", os.path.join(self.folder, "d"),
             "--access-log", self.access_log, "--kv-memory", "256MiB",
             *([] if "--kv-host-memory" in flags else ["--kv-host-memory", "64MiB"]), *flags],
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
            text = response.read().decode()
            schemas.check_answer(path, response.status, response.getheader("content-type", ""), text, headers)
            return response.status, dict(response.getheaders()), text
        finally:
            connection.close()

    def chat(self, content, headers=None, **fields):
        body = {"model": "nano", "temperature": 0, "max_tokens": 32,
                "messages": [{"role": "user", "content": content}], **fields}
        return self.request("POST", "/v1/chat/completions", body, headers)

    def children(self, role, name=""):
        """Process ids of our children with that role, and with an argument that starts so."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
                with open(f"/proc/{pid}/stat") as file:
                    parent = int(file.read().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            if (parent == self.process.pid and role.encode() in words[1:2] and
                    any(word.startswith(name.encode()) for word in words[2:])):
                found.append(int(pid))
        return found

    def metric(self, name):
        """The sum of a metric over its labels."""
        metrics = self.request("GET", "/metrics")[2]
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", metrics, re.M))

    def access_lines(self, count):
        """The access log's lines about chats, once there are `count`; else an empty list."""
        lines = [json.loads(line) for line in read(self.access_log).splitlines() if "/v1/chat" in line]
        return lines if len(lines) >= count else []

    def running(self):
        """Sequences that the workers compute now."""
        return int(self.metric("penstock_worker_requests_running"))

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
            sys.stderr.write(log[-16000:])
        elif code != 0:
            raise AssertionError(f"serve ended with {code}: {log}")


def events(response):
    """The data of each server-sent event, as it comes."""
    for line in response:
        line = line.decode().rstrip("\r\n")
        if line.startswith("data: "):
            data = line[len("data: "):]
            if data != "[DONE]":
                schemas.check_chat_event(schemas.strict_json(data))
            yield data


class Stream:
    """One streamed answer: the request is sent when it is made, the events are read on demand."""

    def __init__(self, server, content, **fields):
        self.connection = server.connect()
        body = {"model": "nano", "temperature": 0, "max_tokens": 32, "stream": True,
                "stream_options": {"include_usage": True},
                "messages": [{"role": "user", "content": content}], **fields}
        self.connection.request("POST", "/v1/chat/completions", json.dumps(body),
                                {"content-type": "application/json"})
        self.response = self.connection.getresponse()
        assert self.response.status == 200, self.response.read()
        self.events = events(self.response)

    def close(self):
        self.response.close()
        self.connection.close()


# All that a stream says about its answer, however it was cut into events. Two answers that are
# equal have the same text and, where they were asked for, the same tokens and log probabilities.
Answer = collections.namedtuple("Answer", "text reasoning calls tokens finish usage")


def whole(datas):
    """The answer that these events give; asserts that the stream is whole: one finish, then the end."""
    text, reasoning, calls, tokens, finishes, usage, last = "", "", "", [], [], None, None
    for data in datas:
        assert last != "[DONE]", f"{data!r} comes after the end"
        last = data
        if data == "[DONE]":
            continue
        chunk = json.loads(data)
        assert "error" not in chunk, data
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            delta = choice["delta"]
            text += delta.get("content") or ""
            reasoning += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls") or []:
                function = call.get("function", {})
                calls += (function.get("name") or "") + (function.get("arguments") or "")
            tokens += (choice.get("logprobs") or {}).get("content") or []
            if choice["finish_reason"]:
                finishes.append(choice["finish_reason"])
    assert last == "[DONE]", f"the stream ended with {last!r}"
    assert len(finishes) == 1, f"the choice finished {len(finishes)} times: {finishes}"
    return Answer(text, reasoning, calls, tokens, finishes[0], usage)


def answer(server, content, **fields):
    stream_ = Stream(server, content, **fields)
    try:
        return whole(stream_.events)
    finally:
        stream_.close()


def stream(server, content, **fields):
    """(text, finish reason) of a streamed answer; asserts that the stream is whole."""
    got = answer(server, content, **fields)
    return got.text, got.finish


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

    def refused(self, got, status, code, param, message):
        """Asserts that the answer is an error in OpenAI's form that says what and where."""
        self.assertEqual(got[0], status, got[2])
        error = json.loads(got[2])["error"]
        self.assertEqual((error["code"], error["param"]), (code, param), error)
        self.assertIn(message, error["message"])
        self.assertEqual(error["type"], "invalid_request_error")

    def test_bad_requests_get_clear_errors(self):
        hi = [{"role": "user", "content": "hi"}]
        start = '{"model":"nano","messages":[{"role":"user","content":"'
        with Server() as server:
            for body, status, code, param, message in [
                    # Not JSON, or not the JSON that there should be: the byte where it breaks.
                    ('{"model": ', 400, "invalid_json", None, "at byte 10:"),
                    ("", 400, "invalid_json", None, "at byte 0"),
                    ("[]", 400, "invalid_type", None, "must be an object"),
                    ("[" * 1000 + "]" * 1000, 400, "invalid_json", "[0]" * 128, "at byte 128:"),
                    (start + "cut", 400, "invalid_json", None, f"at byte {len(start) + 3}:"),
                    (start + 'hi"}],"model":"nano"}', 400, "duplicate_key", "model",
                     f"at byte {len(start) + 6}:"),
                    (start + 'hi"}],"temperature":1e999}', 400, "invalid_value", "temperature",
                     f"at byte {len(start) + 20}:"),
                    # What no Unicode text can hold.
                    (start.encode() + b'\xff"}]}', 400, "invalid_json", None, f"at byte {len(start)}"),
                    (start + '\\ud83d"}]}', 400, "invalid_json", "messages[0].content",
                     f"at byte {len(start)}: a lone surrogate"),
                    (start + 'x\\ude00"}]}', 400, "invalid_json", "messages[0].content",
                     f"at byte {len(start) + 1}: a lone surrogate"),
                    (start + '\\ud83d\\ud83d"}]}', 400, "invalid_json", "messages[0].content",
                     f"at byte {len(start)}: a lone surrogate"),
                    # Fields.
                    ({"messages": hi}, 400, "missing_required_parameter", "model", "is required"),
                    ({"model": "nano"}, 400, "missing_required_parameter", "messages", "is required"),
                    ({"model": "nano", "messages": []}, 400, "invalid_value", "messages", "at least one"),
                    ({"model": "gpt-9", "messages": hi}, 404, "model_not_found", "model", "gpt-9"),
                    ({"model": "nano", "messages": [{"role": "wizard", "content": "hi"}]}, 400,
                     "invalid_value", "messages[0].role", "wizard"),
                    ({"model": "nano", "messages": hi, "n": 10**9}, 400, "invalid_value", "n", "1000000000"),
                    ({"model": "nano", "messages": hi, "temperature": 3}, 400, "invalid_value",
                     "temperature", "at most 2"),
                    ({"model": "nano", "messages": hi, "max_tokens": 100000}, 400,
                     "context_length_exceeded", "max_tokens", "context of 4096"),
                    ({"model": "nano", "messages": [{"role": "user", "content": "word " * 6000}]}, 400,
                     "context_length_exceeded", "messages", "shorten the messages")]:
                with self.subTest(body=str(body)[:80]):
                    self.refused(server.request("POST", "/v1/chat/completions", body), status, code, param,
                                 message)
            self.assertEqual(server.request("GET", "/nope")[0], 404)
            self.assertEqual(server.request("DELETE", "/v1/models")[0], 405)
            self.assertEqual(server.chat("still there?")[0], 200)

    def test_too_much_is_refused_before_it_is_read(self):
        limit = 32 << 20
        with Server() as server:
            # No byte of these bodies is sent: the length alone is enough.
            for length in (limit + 1, 10**12, 10**30):
                with self.subTest(length=length):
                    got = server.request("POST", "/v1/chat/completions", None, {"content-length": str(length)})
                    self.refused(got, 413, "request_too_large", None, "larger than")
                    self.assertEqual(got[1]["connection"], "close")
            for headers in ({f"x-{i}": "a" for i in range(200)},
                            {f"x-{i}": "a" * 10000 for i in range(8)},
                            {"x-long": "a" * 60000, "authorization": "Bearer " + "b" * 60000}):
                with self.subTest(headers=len(headers)):
                    got = server.request("POST", "/v1/chat/completions", "{}", headers)
                    self.refused(got, 431, "headers_too_large", None, " than ")
                    self.assertEqual(got[1]["connection"], "close")
            # In the shape of the API that was asked for.
            for status, headers in ((413, {"content-length": str(limit + 1)}),
                                    (431, {"x-long": "a" * 60000, "authorization": "Bearer " + "b" * 60000})):
                got = server.request("POST", "/v1/messages?beta=true", None if status == 413 else "{}", headers)
                self.assertEqual((got[0], json.loads(got[2])["type"]), (status, "error"), got)
                self.assertTrue(got[1]["request-id"].startswith("req-"), got)
            # Refused or not, a request leaves a line and counts.
            metrics = server.request("GET", "/metrics")[2]
            for line in ('requests_total{route="unparsed",status="413"} 4',
                         'requests_total{route="unparsed",status="431"} 4',
                         'limit_rejections_total{rule="limits.request_body"} 4',
                         'limit_rejections_total{rule="limits.request_headers"} 4'):
                self.assertIn("penstock_gateway_" + line + "\n", metrics)
            wait_for(lambda: read(server.access_log).count('"route":"unparsed"') == 8, "the access log")
            self.assertEqual(server.chat("still there?")[0], 200)

    def test_64_streams_equal_each_alone(self):
        # Prompts and answers that cross several 64-token blocks of the KV cache; every other one is
        # sampled, and half of each kind also gives the log probabilities, which must be equal as well.
        def ask(server, i):
            content = f"Sort these {i}: " + " ".join(f"item {(i + 37 * k) % 100}" for k in range(30 + 3 * (i % 32)))
            fields = {"temperature": 1, "seed": 1000 + i, "top_p": 1 - 0.01 * (i % 3)} if i % 2 else {}
            if i % 4 >= 2:
                fields.update(logprobs=True, top_logprobs=2)
            return answer(server, content, max_tokens=120, ignore_eos=True, **fields)

        with Server("--max-batch-tokens", "64") as server:
            alone = [ask(server, i) for i in range(64)]
            for i, each in enumerate(alone):
                self.assertEqual((each.finish, each.usage["completion_tokens"]), ("length", 120))
                self.assertTrue(100 <= each.usage["prompt_tokens"] <= 600, each.usage)
                self.assertEqual(len(each.tokens), 120 if i % 4 >= 2 else 0)
            steps = server.metric("penstock_worker_steps")
            with concurrent.futures.ThreadPoolExecutor(64) as pool:
                together = list(pool.map(lambda i: ask(server, i), range(64)))
            # Counted and not looked at while it runs: this process is busy with reading the streams.
            shared = server.metric("penstock_worker_steps") - steps
            self.assertLess(shared, 64 * 119, "the requests never ran at the same time")
            for i, each in enumerate(together):
                with self.subTest(request=i):
                    # How much of a prompt was cached may differ; what comes of it may not.
                    self.assertEqual(each._replace(usage=None), alone[i]._replace(usage=None))

    def test_an_event_is_one_write_that_waits_for_nothing(self):
        """Without TCP_NODELAY an event waits for the last one's acknowledgement, which comes 40 ms late."""
        with Server() as server:
            connection = server.connect()
            count, late, streams = 0, 0, 20
            for i in range(streams):
                body = {"model": "nano", "stream": True, "max_tokens": 32, "temperature": 0,
                        "messages": [{"role": "user", "content": f"Count to {i}."}]}
                times = [time.monotonic()]
                connection.request("POST", "/v1/chat/completions", json.dumps(body),
                                   {"content-type": "application/json"})
                for line in connection.getresponse():  # looked at no longer than it takes
                    if line.startswith(b"data: "):
                        times.append(time.monotonic())
                count += len(times) - 1
                late += any(0.036 < after - before < 0.046 for before, after in zip(times, times[1:3]))
            self.assertLess(late, streams / 2, "first events come as late as acknowledgements")
            # struct tcp_info of linux/tcp.h, tcpi_data_segs_in
            info = connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160)
            segments = struct.unpack_from("I", info, 152)[0]
            connection.close()
            self.assertGreater(count, 4 * streams)
            # The last two events and the end may share a write; a retransmission may come twice.
            self.assertGreater(segments, count - 3 * streams, "events wait for each other")
            self.assertLess(segments, count + streams, "an event takes several writes")

    def test_aliases_and_several_models(self):
        nano = os.path.join(ROOT, "models", "nano")
        with Server("--model", f"a={nano}", "--model", f"b={nano}", "--alias", "gpt-4o-mini=b") as server:
            names = [m["id"] for m in json.loads(server.request("GET", "/v1/models")[2])["data"]]
            self.assertLessEqual({"a", "b"}, set(names))
            answers = {json.loads(server.chat("Count to 5.", model=m)[2])["choices"][0]["message"]["content"]
                       for m in ("a", "b", "gpt-4o-mini")}
            self.assertEqual(len(answers), 1)

    def test_a_client_that_leaves_stops_its_generation(self):
        asked = 3500
        with Server() as server:
            leaving = [Stream(server, f"Count to {i}.", max_tokens=asked, ignore_eos=True) for i in range(3)]
            for each in leaving:
                next(each.events)
            for each in leaving:
                each.close()
            wait_for(lambda: server.running() == 0, "the worker to stop")
            lines = wait_for(lambda: server.access_lines(len(leaving)), "the access log")
            for line in lines:
                self.assertEqual(line["status"], 499)
                # The worker ends within a step of the cancel (io/control counts that); here the way
                # from a closed socket to it takes some steps more, but nothing like the whole answer.
                self.assertLess(line["completion_tokens"], asked // 5)
            self.assertEqual(server.running(), 0)


class Stopping(unittest.TestCase):
    def test_sigterm_lets_running_requests_finish(self):
        with Server() as server:
            running = [Stream(server, f"Count to {i}.", max_tokens=2000, ignore_eos=True) for i in range(4)]
            for each in running:  # all have begun; what isn't read holds none of them back
                next(each.events)
            server.process.send_signal(signal.SIGTERM)
            for each in running:
                self.assertEqual(whole(each.events).finish, "length")
            self.assertEqual(server.process.wait(DEADLINE), 0)

    def test_a_worker_ends_with_code_0(self):
        """By itself: serve would kill one that hangs. Several times, for its last threads end in any order."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "s")
            for _ in range(8):
                worker = subprocess.Popen(
                    [BINARY, "worker", "--role", "decode", "--kv-cache", "off", "--data-dir", folder,
                     "--worker-socket", path, "--transport", f"shm:{path}.kv", "--kv-memory", "16MiB"],
                    stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, cwd=ROOT)
                for line in worker.stderr:
                    if "serving engines" in line:
                        break
                worker.send_signal(signal.SIGTERM)
                try:
                    self.assertEqual(worker.wait(DEADLINE), 0)
                finally:
                    worker.kill()
                    worker.communicate()

    def test_children_die_with_the_supervisor(self):
        server = Server()
        children = server.children("worker") + server.children("gateway")
        self.assertEqual(len(children), 3)  # two workers
        server.process.kill()
        server.process.wait()
        wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") and
                                 read(f"/proc/{pid}/stat").rsplit(")", 1)[1].split()[0] != "Z"
                                 for pid in children), "the children's death")
        server.process.stdout.close()
        server.stderr.close()
        shutil.rmtree(server.folder, ignore_errors=True)

    def test_a_killed_worker_does_not_show_in_a_stream(self):
        # Greedy, and sampled with a seed and log probabilities: the stream goes on where it was.
        for fields in ({}, {"temperature": 1, "seed": 7, "logprobs": True, "top_logprobs": 2}):
            with self.subTest(fields=fields), Server() as server:
                asked = {"max_tokens": 3500, "ignore_eos": True, **fields}
                undisturbed = answer(server, "Count to 9.", **asked)
                self.assertEqual(undisturbed.finish, "length")
                gateway, worker = server.children("gateway"), server.children("worker", "decode")
                disturbed = Stream(server, "Count to 9.", **asked)
                begun = [next(disturbed.events) for _ in range(20)]
                os.kill(worker[0], signal.SIGKILL)
                got = whole(begun + list(disturbed.events))
                disturbed.close()
                self.assertEqual(got._replace(usage=None), undisturbed._replace(usage=None))
                self.assertEqual(got.usage["completion_tokens"], undisturbed.usage["completion_tokens"])
                # It did move, so the kill met a running generation.
                line = wait_for(lambda: server.access_lines(2), "the access log")[1]
                self.assertEqual((line["status"], line["outcome"]), (200, "length"))
                self.assertGreaterEqual(line["moves"], 1)
                wait_for(lambda: server.children("worker", "decode") not in ([], worker) and server.is_ready(),
                         "the service to come back")
                self.assertEqual(answer(server, "Count to 9.", **asked)._replace(usage=None),
                                 undisturbed._replace(usage=None))
                self.assertEqual(server.children("gateway"), gateway,
                                 "the gateway must survive: " + server.log())

    def long_prompt(self, seed):
        words = ("river", "stone", "tower", "garden", "letter", "window", "bridge", "copper")
        text = " ".join(words[(seed * 7 + i * i) % 8] for i in range(700))
        return f"{text} The code of Mina is {4000 + seed}. What is the code of Mina?"

    def kv(self, server, *words):
        """Standard output of `penstock kv` on the server's daemon."""
        done = subprocess.run([BINARY, "kv", *words, "--data-dir", os.path.join(server.folder, "d")],
                              capture_output=True, text=True, timeout=DEADLINE, cwd=ROOT)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def asked(self, server, content, **fields):
        """(text, prompt tokens, cached tokens, request id)"""
        status, headers, body = server.chat(content, logprobs=True, **fields)
        self.assertEqual(status, 200, body)
        body = json.loads(body)
        usage = body["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        self.assertEqual(usage["prompt_cache_hit_tokens"], cached)
        self.assertEqual(usage["prompt_cache_miss_tokens"], usage["prompt_tokens"] - cached)
        ids = {k.lower(): v for k, v in headers.items()}
        return body["choices"][0], usage["prompt_tokens"], cached, ids["x-request-id"]

    def test_a_prompt_that_was_seen_is_not_computed_again(self):
        with Server("--kv-host-memory", "64MiB") as server:
            cold = self.asked(server, self.long_prompt(1))
            self.assertEqual(cold[2], 0)
            whole_blocks = (cold[1] - 1) // 64 * 64
            # The offer to the cache is on its way when the answer ends.
            wait_for(lambda: self.asked(server, self.long_prompt(1))[2] == whole_blocks, "a hit")
            warm = self.asked(server, self.long_prompt(1))
            self.assertEqual(warm[:2], cold[:2])

            # A killed daemon: requests go on, and find what is on disk when it is back.
            self.kv(server, "flush")
            others = server.children("gateway"), server.children("worker")
            killed = server.children("kvd")
            os.kill(killed[0], signal.SIGKILL)
            self.assertEqual(self.asked(server, self.long_prompt(4))[2], 0)
            wait_for(lambda: server.children("kvd") not in ([], killed), "the daemon to come back")
            wait_for(lambda: self.asked(server, self.long_prompt(6))[2] > 0, "the worker to find it")
            self.assertEqual(self.asked(server, self.long_prompt(1))[:3], (*cold[:2], whole_blocks))
            self.assertEqual((server.children("gateway"), server.children("worker")), others)
            stat = json.loads(self.kv(server, "stat", "--json"))
            self.assertGreater(stat["acquires"]["hit_blocks_disk"], 0)

            # What people ask.
            hit = self.asked(server, self.long_prompt(1))
            self.assertIn("from memory", self.kv(server, "explain", hit[3]))
            new = self.asked(server, self.long_prompt(2))
            self.assertIn("nobody stored it", self.kv(server, "explain", new[3]))
            self.assertIn("local", self.kv(server, "stat"))
            self.assertIn("tenant:local", self.kv(server, "ls"))
            self.assertIn(" 0 bad", self.kv(server, "verify"))
            metrics = server.request("GET", "/metrics")[2]
            self.assertIn('penstock_kv_tier_blocks{tier="disk"}', metrics)
            line = server.access_lines(1)[-1]
            self.assertIn("expected_cached_tokens", line)

    def test_a_prompt_that_was_warmed_is_found_on_disk_after_a_crash(self):
        with Server("--kv-host-memory", "64MiB") as server:
            path = os.path.join(server.folder, "prompt.txt")
            with open(path, "w") as file:
                file.write(self.long_prompt(8))
            warm = ("warm", path, "--wait", "--json", "--url", f"http://127.0.0.1:{server.port}")
            said = json.loads(self.kv(server, *warm))
            whole_blocks = (said["prompt_tokens"] - 1) // 64 * 64
            self.assertEqual((said["cached_before"], said["cached_now"]), (0, whole_blocks))
            self.assertTrue(said["disk_written"])
            self.assertEqual(json.loads(self.kv(server, *warm))["cached_before"], whole_blocks)
            on_disk = json.loads(self.kv(server, "verify", "--tier", "disk", "--json"))
            self.assertEqual((on_disk["host_blocks"], on_disk["bad_blocks"]), (0, 0))
            self.assertGreaterEqual(on_disk["disk_blocks"], whole_blocks // 64)
            killed = server.children("kvd")
            os.kill(killed[0], signal.SIGKILL)
            wait_for(lambda: server.children("kvd") not in ([], killed), "the daemon to come back")
            wait_for(lambda: self.asked(server, self.long_prompt(8))[2] == whole_blocks, "a hit from disk")
            stat = json.loads(self.kv(server, "stat", "--json"))
            tenants = [row for row in stat["tenants"] if row["disk_blocks"] >= whole_blocks // 64]
            self.assertEqual(len(tenants), 1)
            self.assertGreater(tenants[0]["disk_bytes"], 0)
            # The gateway finds the new daemon in its own time.
            for name in ('penstock_kv_disk_class_bytes{class="chat"}',
                         'penstock_kv_tier_idle_seconds{of="median",tier="disk"}'):
                wait_for(lambda: name in server.request("GET", "/metrics")[2], name)

    def test_what_one_host_computed_another_loads(self):
        with tempfile.TemporaryDirectory() as folder:
            secret = os.path.join(folder, "kv.secret")
            with open(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                file.write("5a" * 32 + "\n")
            with socket.create_server(("127.0.0.1", 0)) as free:
                address = f"127.0.0.1:{free.getsockname()[1]}"
            # Loading is never too slow here: what is shown is that the bytes are the same.
            flags = ("--kv-secret-file", secret, "--kv-fetch-time", "10s")
            with Server(*flags, "--kv-listen", address) as first, \
                    Server(*flags, "--kv-peer", f"first={address}") as second:
                cold = self.asked(first, self.long_prompt(5))
                whole_blocks = (cold[1] - 1) // 64 * 64
                wait_for(lambda: self.asked(first, self.long_prompt(5))[2] == whole_blocks, "a hit")
                wait_for(lambda: json.loads(self.kv(second, "stat", "--json"))["peers"]["blocks"] >=
                         whole_blocks // 64, "the second to know what the first holds")
                hit = self.asked(second, self.long_prompt(5))
                self.assertEqual(hit[:3], (*cold[:2], whole_blocks))
                self.assertIn("from peer", self.kv(second, "explain", hit[3]))
                self.assertIn("other hosts", self.kv(second, "stat"))
                self.assertEqual(self.asked(second, self.long_prompt(5))[:3], hit[:3])  # from memory now

    def test_tenants_share_no_kv(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = os.path.join(folder, "keys")
            with open(keys, "w") as file:
                file.write("acme key-of-acme-0123456789\nglobex key-of-globex-0123456789\n")
            os.chmod(keys, 0o600)

            def ask(server, name):
                headers = {"authorization": f"Bearer key-of-{name}-0123456789"}
                status, _, body = server.chat(self.long_prompt(3), headers)
                self.assertEqual(status, 200, body)
                return json.loads(body)["usage"]["prompt_tokens_details"]["cached_tokens"]

            with Server("--api-key-file", keys) as server:
                self.assertEqual(ask(server, "acme"), 0)
                wait_for(lambda: ask(server, "acme") > 0, "a hit of its own")
                self.assertEqual(ask(server, "globex"), 0)
            with Server("--api-key-file", keys, "--kv-scope", "deployment") as server:
                self.assertEqual(ask(server, "acme"), 0)
                wait_for(lambda: ask(server, "globex") > 0, "a hit of another's")
            with Server("--kv-cache", "off") as server:
                for _ in range(2):
                    self.assertEqual(self.asked(server, self.long_prompt(3))[2], 0)

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
                # A wrong key costs no body: none of this one is sent.
                status, _, body = server.request("POST", "/v1/chat/completions", None,
                                                 {"content-length": "1000000"})
                self.assertEqual(status, 401, body)
                metrics = server.request("GET", "/metrics", None, {"authorization": "Bearer " + self.KEY})[2]
                self.assertIn('penstock_gateway_auth_failures_total{reason="missing"} 3\n', metrics)
                self.assertIn('penstock_gateway_auth_failures_total{reason="unknown"} 1\n', metrics)
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


class Experts(unittest.TestCase):
    PROMPTS = ["What is 17 + 25?", "Sort: 5 3 9 1", "hello", "What is 3 + 4?", "Sort: 8 2 7", "What is 90 - 7?"]

    def answers(self, server):
        out = []
        for prompt in self.PROMPTS:
            status, _, body = server.chat(prompt, max_tokens=48)
            self.assertEqual(status, 200, body)
            out.append(json.loads(body)["choices"][0]["message"]["content"])
        return out

    def experts(self, server, *words):
        return run("experts", *words, "--data-dir", os.path.join(server.folder, "d"))

    def show(self, server):
        code, out, err = self.experts(server, "show", "--json")
        self.assertEqual(code, 0, err)
        return json.loads(out)["ranks"]

    def test_answers_stay_the_same_while_experts_move(self):
        apart = ("--kv-cache", "off", "--local-prefill-time", "0")  # both workers compute
        with Server(*apart) as server:
            expected = self.answers(server)
            ranks = self.show(server)
            self.assertEqual([rank["worker"] for rank in ranks], ["prefill-0", "decode-0"])
            self.assertTrue(all(rank["map_version"] == 0 for rank in ranks))
            self.assertGreater(sum(ranks[1]["layers"][0]["picks"]), 0)
            wait_for(lambda: server.metric("penstock_worker_expert_picks") > 0, "a heartbeat")
        with Server(*apart, "--expert-plan-interval", "100ms", "--expert-ranks", "4",
                    "--expert-slots", "5") as server:
            self.assertEqual(self.answers(server), expected)
            # What came before the planner's first look teaches it nothing, so there must be more.
            wait_for(lambda: self.answers(server) == expected and
                     server.metric("penstock_worker_expert_map_version") >= 2, "a map on both workers")
            for _ in range(2):
                self.assertEqual(self.answers(server), expected)
            # They count from the last map on, which may have come after the last answer.
            ranks = wait_for(lambda: self.answers(server) == expected and
                             [rank for rank in self.show(server) if rank["map_version"] > 0 and
                              sum(rank["layers"][0]["rank_picks"]) > 0], "loads by expert rank")
            layer = ranks[0]["layers"][0]
            self.assertEqual(len(layer["rank_picks"]), 4)
            self.assertEqual(set(layer["slots"]), set(range(len(layer["picks"]))))
            # Pass by pass: the gateway's metric of late, and of each layer since the map came.
            wait_for(lambda: self.answers(server) == expected and
                     server.metric("penstock_worker_moe_lb") >= 1, "a window of passes")
            ranks = wait_for(lambda: self.answers(server) == expected and
                             [rank for rank in self.show(server) if rank["moe_lb"]], "passes under a map")
            for layer in ranks[0]["layers"]:
                self.assertLessEqual(1, layer["moe_lb"])
                self.assertLessEqual(layer["moe_lb"], 4)
            self.assertGreater(server.metric("penstock_expert_maps_pushed_total"), 1)
            self.assertNotIn("did not take", server.log())
            # A worker that was restarted is given the map again.
            os.kill(server.children("worker", "decode")[0], signal.SIGKILL)
            self.assertEqual(self.answers(server), expected)
            def again():
                code, out, _ = self.experts(server, "show", "--json")
                return code == 0 and all(rank["map_version"] > 0 for rank in json.loads(out)["ranks"])
            wait_for(again, "the map on the new worker")
            self.assertEqual(self.answers(server), expected)

    def test_record_and_plan(self):
        with Server("--pools", "mixed=1") as server:
            path = os.path.join(server.folder, "loads.jsonl")
            recording = subprocess.Popen(
                [BINARY, "experts", "record", "--seconds", "2", "--window", "250ms", "-o", path,
                 "--data-dir", os.path.join(server.folder, "d")], stderr=subprocess.PIPE, text=True)
            while recording.poll() is None:
                self.answers(server)
            self.assertEqual(recording.returncode, 0, recording.stderr.read())
            recording.stderr.close()
            lines = [json.loads(line) for line in read(path).splitlines()]
            self.assertEqual(lines[0]["schema"], "penstock-expert-loads/1")
            self.assertEqual(len(lines), 9)
            self.assertGreater(sum(sum(sum(line["picks"], [])) for line in lines[1:]), 0)
            maps = os.path.join(server.folder, "maps.json")
            code, out, err = run("experts", "plan", path, "--gpus", "4", "--slots", "5", "--json", "--out", maps)
            self.assertEqual(code, 0, err)
            worth = json.loads(out)["max_over_mean"]
            self.assertLessEqual(worth["floor"], worth["planned"] + 1e-9)
            self.assertEqual(json.loads(read(maps)), json.loads(out)["maps"])
            code, out, err = run("experts", "plan", path, "--gpus", "4", "--map-format", "sglang", "--out", maps)
            self.assertEqual(code, 0, err)
            self.assertIn("mean", out)
            self.assertEqual(len(json.loads(read(maps))["physical_to_logical_map"]),
                             lines[0]["first_layer"] + lines[0]["layers"])
            with open(path, "a") as file:
                file.write('{"window":9,"worker":"w","seconds":1,"picks":[[1]]}\n')
            code, out, err = run("experts", "plan", path)
            self.assertEqual(code, 64, err)
            self.assertIn(f"line 10: picks: {lines[0]['layers']} arrays are needed here", err)
            code, _, err = run("experts", "plan", path + "x")
            self.assertIn("loads.jsonlx", err)
            code, _, err = run("experts", "plam")
            self.assertIn("did you mean plan?", err)
        code, _, err = run("experts", "show", "--data-dir", os.path.join(server.folder, "none"))
        self.assertNotEqual(code, 0)
        self.assertIn("no service was started in", err)


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
            worker = ["--data-dir", folder, "--role", "prefill", "--kv-cache", "off", "--kv-memory", "16MiB"]
            for arguments, code, message in [
                    (["serve", "--config", config], 64, f"{config}:2: listen.prot: unknown key; did you mean"),
                    (["serve", "--prot", "1"], 64, "did you mean --port?"),
                    (["srve"], 64, "did you mean serve?"),
                    (["serve", *data, "--model", f"x={folder}"], 66, "not a checkpoint folder"),
                    (["serve", *data, "--api-key-file", keys], 77, f"chmod 600 {keys}"),
                    (["serve", *data, "--engine", "vlm=http://x"], 64, "embedded"),
                    (["serve", *data, "--engine", "vllm=ftp://x"], 64, "http://"),
                    (["worker", *worker, "--worker-socket", f"{folder}/s", "--transport", f"shm:{folder}/no/kv"],
                     74, f"{folder}/no/kv"),
                    (["worker", *worker, "--worker-socket", f"{folder}/no/s", "--transport", f"shm:{folder}/kv"],
                     74, f"{folder}/no/s"),
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

    def test_eval_asks_a_busy_server_again(self):
        asked = collections.Counter()

        class Busy(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b'{"object": "list", "data": [{"id": "nano"}]}')

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                asked[body] += 1
                status, answer = 200, {"choices": [{"message": {"role": "assistant", "content": "7"}}]}
                if asked[body] == 1:
                    status, answer = (503, 429)[len(asked) % 2], {"error": {"message": "busy"}}
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *_):
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            code, out, err = run("eval", "--url", f"http://127.0.0.1:{server.server_port}", "--ask-model", "nano",
                                 "--suite-dir", os.path.join(ROOT, "models/nano/heldout"), "--items", "1", "--json")
            server.shutdown()
        self.assertEqual(code, 0, err)
        self.assertEqual(json.loads(out)["total"]["errors"], 0)
        self.assertEqual(set(asked.values()), {2})

    def test_config_show_is_a_config_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "shown.yaml")
            code, shown, _ = run("config", "show", "--port", "9999")
            self.assertEqual(code, 0)
            with open(path, "w") as file:
                file.write(shown)
            code, again, err = run("config", "show", "--config", path)
            self.assertEqual((code, again), (0, shown), err)


def main():
    """Runs the tests of the module that was started."""
    global BINARY
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    known, rest = parser.parse_known_args()
    BINARY = os.path.abspath(known.binary)
    if not os.path.exists(os.path.join(ROOT, "models", "nano", "model.safetensors")):
        sys.exit("e2e: models/nano/model.safetensors is missing, though it is part of the repository")
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)


if __name__ == "__main__":
    main()
