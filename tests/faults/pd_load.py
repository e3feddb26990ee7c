"""The load of the P/D fault suite: requests, their reference answers, and clients that compare.

A request is a chat completion that is asked for as a stream, over and over. Its answer is a pure
function of its body (law 3), so the reference is computed once, cold, by one process, and every
whole answer that comes later must equal it: text, finish reason, tokens with log probabilities,
and usage but for what was cached.
"""
import http.client
import json
import random
import socket
import threading
import time

WORDS = "amber birch copper delta ember flint grove harbor iris jade kelp lumen maple north".split()
TOKENS_A_WORD = 2.82
LATE = 30  # seconds that an answer may come after its deadline, on a busy machine


def text(rng, tokens):
    return " ".join(rng.choice(WORDS) for _ in range(max(1, int(tokens / TOKENS_A_WORD))))


def sampling(rng):
    """Fields of every kind, and the name of the kind."""
    kind = rng.choice(["greedy", "greedy", "sampled", "sampled", "logprobs", "choices", "stop",
                       "penalties", "bias"])
    seeded = {"temperature": rng.choice([0.7, 1.0, 1.3]), "top_p": rng.choice([0.8, 0.95, 1]),
              "seed": rng.randrange(1 << 31)}
    fields = {
        "greedy": {"temperature": 0},
        "sampled": seeded,
        "logprobs": {**rng.choice([{"temperature": 0}, seeded]), "logprobs": True,
                     "top_logprobs": rng.choice([0, 1, 3])},
        "choices": {**seeded, "n": 2},
        "stop": {**seeded, "stop": rng.sample(["a", "er", " is", "1", "the", "\n"], 3)},
        "penalties": {**seeded, "presence_penalty": 0.6, "frequency_penalty": 0.4},
        "bias": {**seeded, "logit_bias": {str(rng.randrange(20, 400)): rng.choice([-100, 2, 4])
                                          for _ in range(4)}},
    }[kind]
    return kind, fields


def make_requests(seed, count=60):
    rng = random.Random(seed)
    prefixes = [text(rng, tokens) for tokens in (300, 700, 1500, 2400)]
    requests = []
    for i in range(count):
        kind, fields = sampling(rng)
        shape = ("short", "short", "shared", "shared", "long", "whole")[i % 6]
        if shape == "short":
            content = text(rng, rng.randrange(5, 200))
        elif shape == "shared":
            content = rng.choice(prefixes) + f" {text(rng, rng.randrange(5, 300))}"
        else:
            content = text(rng, rng.randrange(2000, 3400) if shape == "long" else
                           rng.randrange(300, 1200))
        body = {"model": "nano", "stream": True, "stream_options": {"include_usage": True},
                "max_tokens": rng.choice([1, 16, 60, 200, 400]), "ignore_eos": rng.random() < 0.8,
                "messages": [{"role": "user", "content": f"{content} What is {i} + 25?"}], **fields}
        requests.append({"name": f"{i} ({shape}, {kind})", "body": json.dumps(body),
                         "choices": fields.get("n", 1)})
    return requests


class HonestError(Exception):
    """The service said that it could not: a status with an error, or an error in the stream."""


class Cut(Exception):
    """The connection ended without an answer."""


class Left(Exception):
    """The client went away by itself."""


def read_answer(events, leave_after=None):
    """What a stream says about its answer, however it was cut into events."""
    choices, usage, last, seen = {}, None, None, 0
    for line in events:
        if not line.startswith(b"data: "):
            continue
        if leave_after is not None and seen >= leave_after:
            raise Left()
        seen += 1
        data = line[6:].strip()
        if last == b"[DONE]":
            raise AssertionError(f"{data!r} comes after the end")
        last = data
        if data == b"[DONE]":
            continue
        chunk = json.loads(data)
        if "error" in chunk:
            raise HonestError(json.dumps(chunk["error"]))
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            at = choices.setdefault(choice["index"], {"text": "", "tokens": [], "finish": None})
            delta = choice["delta"]
            if at["finish"] is not None:
                raise AssertionError(f"{data!r} comes after the choice's finish")
            at["text"] += (delta.get("content") or "") + (delta.get("reasoning_content") or "")
            at["text"] += json.dumps(delta["tool_calls"]) if delta.get("tool_calls") else ""
            at["tokens"] += (choice.get("logprobs") or {}).get("content") or []
            at["finish"] = choice["finish_reason"]
    if last != b"[DONE]":
        raise Cut(f"the stream ended with {last!r}")
    if usage is None or any(c["finish"] is None for c in choices.values()):
        raise AssertionError(f"a whole stream without usage or finish: {choices} {usage}")
    return {"choices": choices,
            "usage": [usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]]}


def ask(port, body, timeout, leave_after=None, leave_at=None):
    """The answer; raises HonestError, Cut, Left, or AssertionError for what may never be."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("POST", "/v1/chat/completions", body,
                           {"content-type": "application/json"})
        if leave_at is not None:
            time.sleep(leave_at)
            raise Left()
        response = connection.getresponse()
        if response.status != 200:
            answer = response.read().decode()
            if response.status in (429, 503, 504) and "error" in json.loads(answer):
                raise HonestError(f"{response.status}: {answer}")
            raise AssertionError(f"status {response.status}: {answer}")
        return read_answer(response, leave_after)
    except TimeoutError:
        raise AssertionError(f"no byte for {timeout} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise Cut(repr(error)) from None
    finally:
        if leave_at is not None and connection.sock:
            # Some clients reset, some close.
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()


def reference(port, requests, check_twice=3):
    """The answers, cold; a few twice, so that what is no function of the body shows at once."""
    answers = [ask(port, request["body"], 60) for request in requests]
    for i in range(0, len(requests), max(1, len(requests) // check_twice)):
        assert ask(port, requests[i]["body"], 60) == answers[i], f"request {requests[i]['name']}"
    return answers


class Load:
    """Clients that ask and compare until stop()."""

    def __init__(self, port, requests, answers, seed, clients, request_timeout, leave=0.0,
                 tokens_max=1000, prompts=(0, 4096)):
        self.port, self.requests, self.answers = port, requests, answers
        # Those whose prompts have such lengths, and whose answers are this short.
        self.wanted = [i for i, a in enumerate(answers) if a["usage"][1] <= tokens_max and
                       prompts[0] <= a["usage"][0] <= prompts[1]]
        self.request_timeout, self.leave = request_timeout, leave
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        self.gateway_away = 0.0  # until when cut connections are excused
        self.whole = self.left = self.cut = 0
        self.slowest = 0.0
        self.honest = {}   # message -> count
        self.failures = []  # what may not be
        self.threads = [threading.Thread(target=self._client, args=(random.Random(f"{seed}/{i}"),),
                                         daemon=True) for i in range(clients)]
        for thread in self.threads:
            thread.start()

    def _client(self, rng):
        while not self.stopping.is_set() and not self.failures:
            i = rng.choice(self.wanted)
            leave_after = leave_at = None
            if rng.random() < self.leave:
                if rng.random() < 0.5:
                    leave_after = rng.randrange(0, 12)
                else:
                    leave_at = rng.random() ** 3 * 1.5
            self._ask(i, leave_after, leave_at)

    def _ask(self, i, leave_after, leave_at):
        name, began = self.requests[i]["name"], time.monotonic()
        try:
            got = ask(self.port, self.requests[i]["body"], self.request_timeout + LATE, leave_after,
                      leave_at)
        except Left:
            with self.lock:
                self.left += 1
            return
        except HonestError as error:
            with self.lock:
                self.honest[str(error)] = self.honest.get(str(error), 0) + 1
        except Cut as error:
            with self.lock:
                self.cut += 1
                excused = began <= self.gateway_away
            if not excused:
                self._fail(f"request {name} was cut off and no gateway had been killed: {error}")
            self.stopping.wait(0.1)
            return
        except Exception as error:  # a client's thread must not die unseen
            self._fail(f"request {name} after {time.monotonic() - began:.1f} s: {error!r}")
            return
        else:
            if got != self.answers[i]:
                self._fail(f"request {name}: not the reference.\n got {json.dumps(got)}\n not "
                           f"{json.dumps(self.answers[i])}\n body {self.requests[i]['body']}")
            with self.lock:
                self.whole += 1
        took = time.monotonic() - began
        with self.lock:
            self.slowest = max(self.slowest, took)
        if took > self.request_timeout + LATE:
            self._fail(f"request {name} took {took:.1f} s")

    def _fail(self, what):
        with self.lock:
            self.failures.append(what)

    def stop_after(self, seconds):
        self.stopping.wait(seconds)
        self.stop()

    def check(self):
        if self.failures:
            raise AssertionError("\n".join(self.failures[:3]))

    def stop(self):
        """Waits for the requests under way."""
        self.stopping.set()
        for thread in self.threads:
            thread.join(self.request_timeout + 2 * LATE)
            if thread.is_alive():
                self._fail("a request did not end with its deadline")
        self.check()

    @property
    def errors(self):
        return sum(self.honest.values())
