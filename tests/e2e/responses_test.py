#!/usr/bin/env python3
"""The Responses API end to end, against the real `penstock serve`: responses_test.py --binary PENSTOCK

Streamed and whole answers, tools, what is stored and for whom, the background, restarts.
"""
import argparse
import base64
import contextlib
import itertools
import json
import os
import signal
import socket
import struct
import sys
import tempfile
import unittest

import e2e_test
from e2e_test import Server, read, schemas, wait_for

TOOLS = [{"type": "function", "name": "find_price", "description": "Find the price of an item",
          "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}},
         {"type": "web_search"}, {"type": "custom", "name": "apply_patch"}]
REQUIRED = """id object created_at completed_at status incomplete_details model previous_response_id
    instructions output error tools tool_choice truncation parallel_tool_calls text top_p presence_penalty
    frequency_penalty top_logprobs temperature reasoning usage max_output_tokens max_tool_calls store
    background service_tier metadata safety_identifier prompt_cache_key""".split()
LONG = "Tell me a long story. " * 20


def body_of(text, **fields):
    return {"model": "nano", "input": text, "temperature": 0, "max_output_tokens": 48,
            "reasoning": {"effort": "none"}, **fields}


def create(server, text, headers=None, status=200, **fields):
    got, _, body = server.request("POST", "/v1/responses", body_of(text, **fields), headers)
    assert got == status, (got, body)
    return json.loads(body)


def get(server, path, headers=None, status=200, method="GET"):
    got, _, body = server.request(method, "/v1/responses/" + path, None, headers)
    assert got == status, (got, body)
    return json.loads(body)


def text_of(response):
    return "".join(part["text"] for item in response["output"] if item["type"] == "message"
                   for part in item["content"])


def read_events(response):
    """The events of a stream, as objects; asserts names, numbers and the end."""
    assert response.status == 200, response.read()
    names, events = [], []
    done = False
    for line in response:
        line = line.decode().rstrip("\n")
        if line.startswith("event: "):
            names.append(line[len("event: "):])
        elif line == "data: [DONE]":
            done = True
        elif line.startswith("data: "):
            events.append(schemas.strict_json(line[len("data: "):]))
            schemas.check("responses.json#events", events[-1])
    assert done, "no [DONE]"
    assert names == [event["type"] for event in events]
    return events


def stream(server, method, path, body=None):
    connection = server.connect()
    try:
        connection.request(method, path, json.dumps(body) if body else None,
                           {"content-type": "application/json"})
        return read_events(connection.getresponse())
    finally:
        connection.close()


class Socket:
    """A WebSocket on /v1/responses, as far as a test needs one."""

    def __init__(self, server, path="/v1/responses"):
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=e2e_test.DEADLINE)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
                             "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                             f"Sec-WebSocket-Key: {key}\r\n\r\n").encode())
        self.file = self.socket.makefile("rb")
        assert self.file.readline().startswith(b"HTTP/1.1 101 ")
        while self.file.readline() != b"\r\n":
            pass

    def frame(self, opcode, data):
        mask = os.urandom(4)
        size = len(data)
        head = bytes([0x80 | opcode]) + (bytes([0x80 | size]) if size < 126 else struct.pack(">BH", 0xFE, size))
        self.socket.sendall(head + mask + bytes(b ^ mask[i & 3] for i, b in enumerate(data)))

    def receive(self):
        """(opcode, payload) of the next frame; nothing at the end."""
        head = self.file.read(2)
        if len(head) < 2:
            return None
        size = head[1]
        if size > 125:
            size = int.from_bytes(self.file.read(2 if size == 126 else 8), "big")
        return head[0] & 0x0F, self.file.read(size)

    def ask(self, text, **fields):
        self.frame(1, json.dumps({"type": "response.create", **body_of(text, **fields)}).encode())

    def answer(self):
        """The events up to the end of a response, or the error alone."""
        events = []
        while not events or events[-1]["type"] not in ("response.completed", "response.incomplete", "response.failed"):
            opcode, data = self.receive()
            assert opcode == 1, (opcode, data)
            events.append(schemas.strict_json(data.decode()))
            refused = "status" in events[-1]
            schemas.check("responses.json#" + ("socket_error" if refused else "events"), events[-1])
            if refused:
                break
        return events

    def close(self):
        self.file.close()
        self.socket.close()


class Responses(unittest.TestCase):
    def test_whole_streamed_and_chat_agree(self):
        with Server() as server:
            whole = create(server, "What is 17 + 25?")
            for key in REQUIRED:
                self.assertIn(key, whole)
            self.assertEqual((whole["object"], whole["status"]), ("response", "completed"))
            chat = json.loads(server.chat("What is 17 + 25?", max_tokens=48, reasoning_effort="none")[2])
            self.assertEqual(text_of(whole), chat["choices"][0]["message"]["content"])
            self.assertEqual(whole["usage"]["input_tokens"], chat["usage"]["prompt_tokens"])
            self.assertEqual(whole["usage"]["output_tokens"], chat["usage"]["completion_tokens"])
            events = stream(server, "POST", "/responses", body_of("What is 17 + 25?", stream=True))
            self.assertEqual([event["sequence_number"] for event in events], list(range(len(events))))
            self.assertEqual([events[0]["type"], events[1]["type"], events[-1]["type"]],
                             ["response.created", "response.in_progress", "response.completed"])
            deltas = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
            self.assertEqual(deltas, text_of(whole))
            self.assertEqual(text_of(events[-1]["response"]), text_of(whole))
            cut = create(server, LONG, max_output_tokens=16, temperature=1, seed=3,
                         reasoning={"effort": "high"})
            if cut["usage"]["output_tokens"] == 16:
                self.assertEqual(cut["status"], "incomplete")
                self.assertEqual(cut["incomplete_details"], {"reason": "max_output_tokens"})

    def test_a_tool_round_trip_without_a_store(self):
        with Server() as server:
            first = create(server, "What does the lantern cost?", tools=TOOLS, store=False)
            call = first["output"][-1]
            self.assertEqual((call["type"], call["name"]), ("function_call", "find_price"), first)
            self.assertEqual(json.loads(call["arguments"]), {"item": "lantern"})
            second = create(server, [{"role": "user", "content": "What does the lantern cost?"},
                                     *first["output"],
                                     {"type": "function_call_output", "call_id": call["call_id"],
                                      "output": "12 euros"}], tools=TOOLS, store=False)
            self.assertIn("12", text_of(second))
            get(server, second["id"], status=404)
            # Reasoning travels sealed, and counts the same when it comes back.
            sealed = create(server, "What is 2 + 2?", store=False, reasoning={"effort": "high"},
                            include=["reasoning.encrypted_content"], max_output_tokens=200)
            reasoning = [item for item in sealed["output"] if item["type"] == "reasoning"]
            self.assertTrue(reasoning, sealed)
            shown = reasoning[0]["content"][0]["text"]
            self.assertNotIn(shown, reasoning[0]["encrypted_content"])
            hidden = [{k: v for k, v in item.items() if item["type"] != "reasoning" or k != "content"}
                      for item in sealed["output"]]
            counts = []
            for items in (sealed["output"], hidden):
                got = server.request("POST", "/v1/responses/input_tokens",
                                     {"model": "nano", "input": items, "reasoning": {"effort": "high"}})
                self.assertEqual(got[0], 200, got[2])
                counts.append(json.loads(got[2])["input_tokens"])
            self.assertEqual(counts[0], counts[1])

    def test_chains_items_and_deletion(self):
        with Server() as server:
            first = create(server, "My name is Bo.", instructions="Be brief.")
            second = create(server, "What is 17 + 25?", previous_response_id=first["id"])
            self.assertEqual(second["previous_response_id"], first["id"])
            self.assertIsNone(second["instructions"])
            whole = create(server, [{"role": "user", "content": "My name is Bo."}, *first["output"],
                                    {"role": "user", "content": "What is 17 + 25?"}], store=False)
            self.assertEqual(whole["usage"]["input_tokens"], second["usage"]["input_tokens"])
            self.assertEqual(text_of(whole), text_of(second))
            counted = server.request("POST", "/v1/responses/input_tokens",
                                     body_of("What is 17 + 25?", previous_response_id=first["id"]))
            self.assertEqual(json.loads(counted[2]), {"object": "response.input_tokens",
                                                      "input_tokens": second["usage"]["input_tokens"]})
            self.assertEqual(get(server, second["id"]), second)
            items = get(server, second["id"] + "/input_items")
            self.assertEqual(items["data"][0]["content"],
                             [{"type": "input_text", "text": "What is 17 + 25?"}])
            three = create(server, [{"role": "user", "content": str(i)} for i in range(3)])
            page = get(server, three["id"] + "/input_items?limit=2&order=asc")
            self.assertEqual([page["data"][0]["content"][0]["text"], page["has_more"]], ["0", True])
            page = get(server, three["id"] + "/input_items?order=asc&after=" + page["last_id"])
            self.assertEqual([len(page["data"]), page["has_more"]], [1, False])
            # An item of a stored response by its id.
            referred = create(server, [{"role": "user", "content": "My name is Bo."},
                                       {"type": "item_reference", "id": first["output"][0]["id"]},
                                       {"role": "user", "content": "What is 17 + 25?"}])
            self.assertEqual(referred["usage"]["input_tokens"], second["usage"]["input_tokens"])
            self.assertEqual(get(server, first["id"], method="DELETE"),
                             {"id": first["id"], "object": "response", "deleted": True})
            get(server, first["id"], status=404)
            get(server, first["id"], status=404, method="DELETE")
            for previous in (first["id"], second["id"], "resp_zzz"):
                error = create(server, "x", status=400, previous_response_id=previous)["error"]
                self.assertEqual((error["code"], error["param"]),
                                 ("previous_response_not_found", "previous_response_id"))
            error = create(server, "x", status=404, model="none")["error"]
            self.assertEqual(error["code"], "model_not_found")

    def test_a_conversation_goes_on_from_its_compaction(self):
        with Server() as server:
            body = {"model": "nano", "input": [{"role": "user", "content": "What does the lantern cost?"},
                    {"type": "function_call", "call_id": "c", "name": "find_price", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "c", "output": "12 " * 50},
                    {"role": "assistant", "content": "It costs 12 euros."}]}
            status, _, text = server.request("POST", "/v1/responses/compact", body)
            self.assertEqual(status, 200, text)
            compacted = json.loads(text)
            self.assertEqual(compacted["object"], "response.compaction")
            self.assertGreater(compacted["usage"]["input_tokens"], 50)
            plain = create(server, [body["input"][0], body["input"][3], {"role": "user", "content": "Thanks."}])
            again = create(server, [*compacted["output"], {"role": "user", "content": "Thanks."}])
            self.assertEqual(again["usage"]["input_tokens"], plain["usage"]["input_tokens"])
            self.assertEqual(text_of(again), text_of(plain))
            status, _, text = server.request("POST", "/v1/responses/compact", {"input": "x"})
            self.assertEqual(status, 400, text)

    def test_a_socket_answers_like_a_stream_and_keeps_its_chain(self):
        with Server() as server:
            connection = Socket(server)
            connection.frame(9, b"there?")
            self.assertEqual(connection.receive(), (10, b"there?"))
            connection.ask("My name is Bo.", store=False)
            connection.ask("What is 17 + 25?")  # waits for its turn
            first, second = connection.answer(), connection.answer()
            self.assertEqual(text_of(second[-1]["response"]), text_of(create(server, "What is 17 + 25?")))
            streamed = stream(server, "POST", "/v1/responses", body_of("What is 17 + 25?", stream=True))
            kinds = [[kind for kind, _ in itertools.groupby(e["type"] for e in each)] for each in (second, streamed)]
            self.assertEqual(*kinds)
            self.assertEqual([e["sequence_number"] for e in second], list(range(len(second))))
            whole = create(server, [{"role": "user", "content": "My name is Bo."}, *first[-1]["response"]["output"],
                                    {"role": "user", "content": "What is 17 + 25?"}], store=False)
            connection.ask("My name is Bo.", store=False)
            unstored = connection.answer()[-1]["response"]["id"]
            connection.ask("What is 17 + 25?", store=False, previous_response_id=unstored)
            chained = connection.answer()[-1]["response"]
            self.assertEqual(text_of(chained), text_of(whole))
            self.assertEqual(chained["usage"]["input_tokens"], whole["usage"]["input_tokens"])
            connection.ask("x", previous_response_id="resp_zzz")
            self.assertEqual(connection.answer()[0]["error"]["code"], "previous_response_not_found")
            connection.frame(8, b"\x03\xe8")
            self.assertEqual(connection.receive(), (8, b"\x03\xe8"))
            self.assertIsNone(connection.receive())
            connection.close()
            connection = Socket(server, "/responses")
            connection.ask("x", previous_response_id=chained["id"])
            self.assertEqual(connection.answer()[0]["status"], 400)
            connection.frame(2, b"binary")
            self.assertEqual(connection.receive()[1][:2], b"\x03\xeb")
            connection.close()

    def test_each_key_has_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "keys")
            with open(path, "w") as file:
                file.write("one sk-one-0123456789abcdef\ntwo sk-two-0123456789abcdef\n")
            os.chmod(path, 0o600)
            with Server("--api-key-file", path) as server:
                one, two = ({"authorization": f"Bearer sk-{name}-0123456789abcdef"} for name in ("one", "two"))
                mine = create(server, "hi", one)
                item = {"type": "item_reference", "id": mine["output"][0]["id"]}
                self.assertEqual(get(server, mine["id"], one)["id"], mine["id"])
                get(server, mine["id"], two, status=404)
                get(server, mine["id"] + "/input_items", two, status=404)
                get(server, mine["id"] + "/cancel", two, status=404, method="POST")
                get(server, mine["id"], two, status=404, method="DELETE")
                create(server, "x", two, status=400, previous_response_id=mine["id"])
                create(server, [item], two, status=400)
                create(server, [item, {"role": "user", "content": "x"}], one)
                get(server, mine["id"], {}, status=401)


class Background(unittest.TestCase):
    @contextlib.contextmanager
    def long_answers(self):
        """A server whose answers take seconds."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "script.json")
            with open(path, "w") as file:
                json.dump({"replies": [{"when": LONG, "say": "and on " * 50_000}, {"say": "Yes."}]}, file)
            with Server("--engine", "scripted", "--script", path) as server:
                yield server

    def slow(self, **fields):
        return body_of(LONG, background=True, max_output_tokens=100_000, **fields)

    def begin(self, server, **fields):
        status, _, body = server.request("POST", "/v1/responses", self.slow(**fields))
        self.assertEqual(status, 200, body)
        return json.loads(body)

    def test_it_runs_without_its_client_and_its_stream_resumes(self):
        with Server() as server:
            queued = create(server, "What is 17 + 25?", background=True)
            self.assertEqual((queued["status"], queued["background"], queued["output"]),
                             ("queued", True, []))
            done = wait_for(lambda: next((r for r in [get(server, queued["id"])]
                                          if r["status"] == "completed"), None), "the response")
            direct = create(server, "What is 17 + 25?")
            self.assertEqual(text_of(done), text_of(direct))
            self.assertEqual(done["usage"]["output_tokens"], direct["usage"]["output_tokens"])
            path = f"/v1/responses/{queued['id']}?stream=true"
            events = stream(server, "GET", path)
            self.assertEqual([e["type"] for e in events[:3]],
                             ["response.created", "response.queued", "response.in_progress"])
            self.assertEqual([e["sequence_number"] for e in events], list(range(len(events))))
            self.assertEqual(events[-1]["response"], done)
            self.assertEqual(stream(server, "GET", path + "&starting_after=4"), events[5:])
            live = stream(server, "POST", "/v1/responses",
                          body_of("What is 17 + 25?", background=True, stream=True))
            # Texts of one moment are one event, so there may be more or fewer of them.
            kinds = [[kind for kind, _ in itertools.groupby(e["type"] for e in each)] for each in (live, events)]
            self.assertEqual(*kinds)
            error = get(server, direct["id"] + "?stream=true", status=400)["error"]
            self.assertEqual(error["param"], "stream")
            # One that can't be placed fails where it can be seen.
            large = create(server, "x", background=True, max_output_tokens=1_000_000)
            failed = wait_for(lambda: next((r for r in [get(server, large["id"])]
                                            if r["status"] == "failed"), None), "the failure")
            self.assertIn("context", failed["error"]["message"])
            create(server, "x", status=400, background=True, store=False)

    def test_cancel_stops_it(self):
        with self.long_answers() as server:
            running = self.begin(server)
            wait_for(lambda: get(server, running["id"])["status"] == "in_progress", "it to run")
            cancelled = get(server, running["id"] + "/cancel", method="POST")
            self.assertEqual(cancelled["status"], "cancelled")
            self.assertEqual(get(server, running["id"] + "/cancel", method="POST"), cancelled)
            wait_for(lambda: server.running() == 0, "the engine to stop")
            self.assertEqual(get(server, running["id"]), cancelled)
            events = stream(server, "GET", f"/v1/responses/{running['id']}?stream=true")
            self.assertEqual(events[-1]["type"], "response.cancelled")
            plain = create(server, "hi")
            get(server, plain["id"] + "/cancel", method="POST", status=400)

    def test_a_socket_that_goes_away_stops_its_response(self):
        with self.long_answers() as server:
            connection = Socket(server)
            connection.ask(LONG, max_output_tokens=100_000)
            while connection.receive()[1][:40] != b'{"type":"response.output_text.delta","se':
                pass
            connection.close()
            wait_for(lambda: server.running() == 0, "the engine to stop")

    def test_a_restart_keeps_what_was_stored_and_fails_what_ran(self):
        with self.long_answers() as server:
            kept = create(server, "My name is Bo.")
            connection = Socket(server)
            connection.ask("hi", previous_response_id=kept["id"])
            on_socket = connection.answer()[-1]["response"]
            running = self.begin(server)
            wait_for(lambda: get(server, running["id"])["status"] == "in_progress", "it to run")
            gateway = server.children("gateway")
            os.kill(gateway[0], signal.SIGKILL)
            wait_for(lambda: server.children("gateway") not in ([], gateway) and server.is_ready(),
                     "the gateway to come back")
            self.assertEqual(get(server, kept["id"]), kept)
            create(server, "hi", previous_response_id=kept["id"])
            self.assertIsNone(connection.receive())
            connection.close()
            connection = Socket(server)
            connection.ask("hi", previous_response_id=on_socket["id"])
            self.assertEqual(connection.answer()[-1]["type"], "response.completed")
            connection.close()
            failed = get(server, running["id"])
            self.assertEqual(failed["status"], "failed")
            self.assertIn("restarted", failed["error"]["message"])
            events = stream(server, "GET", f"/v1/responses/{running['id']}?stream=true")
            self.assertEqual([e["type"] for e in events[-2:]], ["error", "response.failed"])
            self.assertEqual([e["sequence_number"] for e in events], list(range(len(events))))
            self.assertIn("interrupted", read(server.stderr.name))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    known, rest = parser.parse_known_args()
    e2e_test.BINARY = os.path.abspath(known.binary)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
