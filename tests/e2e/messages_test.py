#!/usr/bin/env python3
"""Anthropic's Messages API end to end, as e2e_test.py does it for Chat Completions.

usage: messages_test.py --binary build/release/penstock [-k PATTERN]
"""
import json
import os
import signal
import unittest

import e2e_test as e2e

TOOLS = [{"name": "find_price", "description": "Find the price of an item",
          "input_schema": {"type": "object", "properties": {"item": {"type": "string"}},
                           "required": ["item"]}}]
HEADERS = {"content-type": "application/json", "anthropic-version": "2023-06-01"}


def body(content, **fields):
    return {"model": "nano", "max_tokens": 64, "temperature": 0,
            "messages": [{"role": "user", "content": content}], **fields}


def message(server, content, path="/v1/messages", **fields):
    """(headers, the whole message) of a request that must succeed."""
    status, headers, text = server.request("POST", path, body(content, **fields), HEADERS)
    assert status == 200, text
    return headers, json.loads(text)


def input_tokens(usage):
    return (usage["input_tokens"] + usage["cache_read_input_tokens"] +
            usage["cache_creation_input_tokens"])


class Stream:
    """A streamed message: the request is sent when it is made, the events are read on demand."""

    def __init__(self, server, content, **fields):
        self.connection = server.connect()
        self.connection.request("POST", "/v1/messages?beta=true",
                                json.dumps(body(content, stream=True, **fields)),
                                {**HEADERS, "anthropic-beta": "one-beta,another-2025-01-01"})
        self.response = self.connection.getresponse()
        assert self.response.status == 200, self.response.read()
        self.events = self.read()

    def read(self):
        """Each event's data; its name is its type."""
        name = None
        for line in self.response:
            line = line.decode().rstrip("\n")
            if line.startswith("event: "):
                name = line[len("event: "):]
            elif line.startswith("data: "):
                event = e2e.schemas.strict_json(line[len("data: "):])
                e2e.schemas.check("messages.json#events", event)
                assert event["type"] == name, (name, event)
                yield event

    def close(self):
        self.response.close()
        self.connection.close()


def fold(events):
    """The message that the events give; asserts that they are in order and complete."""
    folded, open_block, arguments, ended = None, False, "", False
    for event in events:
        assert not ended, f"{event} comes after the end"
        kind = event["type"]
        if kind == "ping":
            continue
        if kind == "message_start":
            assert folded is None
            folded = event["message"]
        elif kind == "content_block_start":
            assert not open_block and event["index"] == len(folded["content"])
            folded["content"].append(event["content_block"])
            open_block, arguments = True, ""
        elif kind == "content_block_delta":
            assert open_block and event["index"] == len(folded["content"]) - 1
            block, delta = folded["content"][-1], event["delta"]
            if delta["type"] == "input_json_delta":
                arguments += delta["partial_json"]
            else:
                field = delta["type"].removesuffix("_delta")
                block[field] = block[field] + delta[field]
        elif kind == "content_block_stop":
            assert open_block
            open_block = False
            if folded["content"][-1]["type"] == "tool_use":
                folded["content"][-1]["input"] = json.loads(arguments)
        elif kind == "message_delta":
            assert not open_block
            folded.update(event["delta"])
            folded["usage"] = event["usage"]
        else:
            assert kind == "message_stop", event
            ended = True
    assert ended, "the stream ended before message_stop"
    return folded


def streamed(server, content, **fields):
    stream = Stream(server, content, **fields)
    try:
        return fold(stream.events)
    finally:
        stream.close()


def essence(message_):
    """What does not change from one answer to the next."""
    blocks = [{k: v for k, v in block.items() if k not in ("id", "signature")}
              for block in message_["content"]]
    return (blocks, message_["stop_reason"], message_["stop_sequence"],
            message_["usage"]["output_tokens"], input_tokens(message_["usage"]))


class Messages(unittest.TestCase):
    def test_whole_streamed_and_counted_agree(self):
        with e2e.Server() as server:
            self.assertEqual(server.request("HEAD", "/")[0], 200)
            for content, fields in [
                    ("What is 17 + 25?", {}),
                    ("What is 17 + 25?", {"stop_sequences": ["2"]}),
                    ("What is 17 + 25?", {"max_tokens": 1}),
                    ("What does the lantern cost?", {"tools": TOOLS}),
                    ([{"type": "text", "text": "What is 30 + 24?", "cache_control": {"type": "ephemeral"}}],
                     {"max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 1024},
                      "system": [{"type": "text", "text": "You are Nano."}]})]:
                with self.subTest(fields=fields):
                    headers, whole = message(server, content, **fields)
                    self.assertEqual(headers["request-id"], headers["x-request-id"])
                    self.assertEqual(essence(streamed(server, content, **fields)), essence(whole))
                    counted = body(content, **fields)
                    del counted["max_tokens"]
                    got = server.request("POST", "/v1/messages/count_tokens", counted, HEADERS)
                    self.assertEqual(json.loads(got[2]), {"input_tokens": input_tokens(whole["usage"])})
            # The same question through the two APIs is the same prompt and the same answer.
            chat = json.loads(server.chat("What is 17 + 25?", max_tokens=64)[2])
            _, whole = message(server, "What is 17 + 25?", "/anthropic/v1/messages")
            self.assertEqual(whole["content"][0]["text"], chat["choices"][0]["message"]["content"])
            self.assertEqual(input_tokens(whole["usage"]), chat["usage"]["prompt_tokens"])
            self.assertGreater(whole["usage"]["cache_read_input_tokens"] + whole["usage"]["input_tokens"], 0)
            models = json.loads(server.request("GET", "/v1/models", None, HEADERS)[2])
            self.assertEqual((models["first_id"], models["has_more"]), ("nano", False))

    def test_a_tool_loop(self):
        with e2e.Server() as server:
            question = {"role": "user", "content": "What does the lantern cost?"}
            _, call = message(server, question["content"], tools=TOOLS)
            self.assertEqual(call["stop_reason"], "tool_use")
            use = call["content"][-1]
            self.assertEqual((use["name"], use["input"]), ("find_price", {"item": "lantern"}))
            result = {"type": "tool_result", "tool_use_id": use["id"],
                      "content": [{"type": "text", "text": "12 dollars"}]}
            _, answer = message(server, "", tools=TOOLS, messages=[
                question, {"role": "assistant", "content": call["content"]},
                {"role": "user", "content": [result]}])
            self.assertEqual(answer["stop_reason"], "end_turn")
            self.assertIn("12", answer["content"][0]["text"])

    def test_refusals_have_the_shape_of_the_api(self):
        with e2e.Server() as server:
            for sent, status, kind, part in [
                    ("{", 400, "invalid_request_error", "byte 1"),
                    (body("x", model="no"), 404, "not_found_error", "nano"),
                    (body([{"type": "image", "source": {}}]), 400, "invalid_request_error",
                     "messages[0].content[0].source.type: is required"),
                    (body("x", temperature=1.5), 400, "invalid_request_error", "temperature"),
                    (body("word " * 6000), 400, "invalid_request_error", "shorten the messages")]:
                with self.subTest(kind=kind, part=part):
                    got = server.request("POST", "/v1/messages", sent, HEADERS)
                    error = json.loads(got[2])
                    self.assertEqual((got[0], error["type"], error["error"]["type"]), (status, "error", kind))
                    self.assertIn(part, error["error"]["message"])
                    self.assertEqual(error["request_id"], got[1]["request-id"])

    def test_a_client_that_leaves_stops_its_generation(self):
        with e2e.Server() as server:
            def leave():
                # An answer may end before its client is gone: then another one is left.
                stream = Stream(server, "Count from 1 to 500.", temperature=1, max_tokens=3000)
                next(event for event in stream.events if event["type"] == "content_block_delta")
                stream.close()
                e2e.wait_for(lambda: server.running() == 0, "the engine to be idle")
                return '"status":499' in e2e.read(server.access_log)

            e2e.wait_for(leave, "a line about a client that left")

    def test_a_killed_worker_does_not_show(self):
        with e2e.Server() as server:
            question = "Count from 1 to 40."
            expected = essence(streamed(server, question, max_tokens=200))
            stream = Stream(server, question, max_tokens=200)
            events = [next(stream.events) for _ in range(3)]
            os.kill(server.children("worker")[0], signal.SIGKILL)
            events += stream.events
            stream.close()
            self.assertEqual(essence(fold(events)), expected)


if __name__ == "__main__":
    e2e.main()
