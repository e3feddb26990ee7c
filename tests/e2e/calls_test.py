#!/usr/bin/env python3
"""Tool calls by construction, end to end in the three APIs: calls_test.py --binary build/release/penstock

The questions want no tool, temperatures are high, and scripts say what they must not: calls are valid all the same.
"""
import contextlib
import json
import os
import signal
import tempfile
import unittest

import e2e_test as e2e
import messages_test as messages
import responses_test as responses

BOOK = {"type": "object", "properties": {"seats": {"type": "integer", "minimum": 1, "maximum": 99},
                                         "hall": {"type": "string", "enum": ["north", "south"]},
                                         "late": {"type": ["boolean", "null"]}},
        "required": ["seats", "hall"], "additionalProperties": False}
LIST = {"type": "object", "properties": {"marks": {"type": "array", "items": {"enum": ["a", "b"]},
                                                   "minItems": 250, "maxItems": 250}},
        "required": ["marks"], "additionalProperties": False}
SCHEMAS = {"book": BOOK, "ping": {"type": "object", "properties": {}, "additionalProperties": False}, "list": LIST}
UNDOABLE = {"type": "object", "properties": {"a": {"not": {}}}}
QUESTION = "What is 17 + 25?"


def chat_tool(name, **more):
    return {"type": "function", "function": {"name": name, "parameters": SCHEMAS[name], **more}}


def is_valid(name, arguments):
    if name == "ping":
        return arguments == {}
    if name == "list":
        return set(arguments) == {"marks"} and len(arguments["marks"]) == 250
    return (set(arguments) - {"late"} == {"seats", "hall"} and type(arguments["seats"]) is int and
            1 <= arguments["seats"] <= 99 and arguments["hall"] in ("north", "south") and
            arguments.get("late") in (None, True, False))


class Calls(unittest.TestCase):
    def chat(self, server, **fields):
        status, _, text = server.chat(QUESTION, max_tokens=400, **fields)
        self.assertEqual(status, 200, text)
        return json.loads(text)["choices"]

    def check(self, calls, names, most=99):
        """`calls` as (name, arguments)."""
        self.assertTrue(1 <= len(calls) <= most, calls)
        for name, arguments in calls:
            self.assertIn(name, names)
            self.assertTrue(is_valid(name, arguments), (name, arguments))

    @contextlib.contextmanager
    def scripted(self, say):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "script.json")
            with open(path, "w") as file:
                json.dump({"replies": [{"say": say}]}, file)
            with e2e.Server("--engine", "scripted", "--script", path) as server:
                yield server

    def test_what_is_forced_is_called(self):
        tools = [chat_tool("book"), chat_tool("ping")]
        only = {"type": "function", "function": {"name": "book"}}
        with e2e.Server() as server:
            for fields, names, most, finish in [
                    ({"tool_choice": "required"}, {"book", "ping"}, 99, "tool_calls"),
                    ({"tool_choice": "required", "parallel_tool_calls": False}, {"book", "ping"}, 1, "tool_calls"),
                    ({"tool_choice": only}, {"book"}, 1, "stop"),
                    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [only]}}},
                     {"book"}, 99, "tool_calls"),
                    ({"tool_choice": only, "thinking": {"type": "enabled"}}, {"book"}, 1, "stop")]:
                with self.subTest(fields=fields):
                    asked = {"tools": tools, "temperature": 1.5, "seed": 5, "n": 2, "logprobs": True, **fields}
                    if "thinking" in fields:  # its reasoning is free, so it had better be short
                        asked["temperature"] = 0
                    for choice in self.chat(server, **asked):
                        if "thinking" in fields and choice["finish_reason"] == "length":
                            continue
                        message = choice["message"]
                        self.assertEqual(choice["finish_reason"], finish)
                        self.assertFalse(message["content"])
                        self.check([(c["function"]["name"], json.loads(c["function"]["arguments"]))
                                    for c in message["tool_calls"]], names, most)
                    whole = self.chat(server, **{**asked, "n": 1})[0]
                    streamed = e2e.answer(server, QUESTION, **{**asked, "n": 1, "max_tokens": 400})
                    said = "".join(c["function"]["name"] + c["function"]["arguments"]
                                   for c in whole["message"].get("tool_calls") or [])
                    self.assertEqual((streamed.calls, streamed.finish, streamed.text or None),
                                     (said, whole["finish_reason"], whole["message"]["content"] or None))
                    self.assertEqual(streamed.tokens, whole["logprobs"]["content"])

    def test_responses(self):
        tools = [{"type": "function", "name": name, "parameters": SCHEMAS[name]} for name in ("book", "ping")]
        tools.append({"type": "web_search"})
        only = {"type": "function", "name": "book"}
        with e2e.Server() as server:
            for choice, names, most in [("required", {"book", "ping"}, 99), (only, {"book"}, 1),
                                        ({"type": "allowed_tools", "mode": "required", "tools": [only]}, {"book"}, 99)]:
                with self.subTest(choice=choice):
                    asked = {"tools": tools, "tool_choice": choice, "temperature": 1.5, "max_output_tokens": 400,
                             "parallel_tool_calls": most > 1}
                    events = responses.stream(server, "POST", "/v1/responses",
                                              responses.body_of(QUESTION, stream=True, **asked))
                    for answer in (responses.create(server, QUESTION, **asked), events[-1]["response"]):
                        self.assertEqual(answer["status"], "completed")
                        self.assertEqual({item["type"] for item in answer["output"]}, {"function_call"})
                        self.check([(i["name"], json.loads(i["arguments"])) for i in answer["output"]], names, most)

    def test_messages(self):
        tools = [{"name": name, "input_schema": SCHEMAS[name]} for name in ("book", "ping")]
        with e2e.Server() as server:
            for choice, names, most in [({"type": "any"}, {"book", "ping"}, 99),
                                        ({"type": "any", "disable_parallel_tool_use": True}, {"book", "ping"}, 1),
                                        ({"type": "tool", "name": "book"}, {"book"}, 1)]:
                with self.subTest(choice=choice):
                    asked = {"tools": tools, "tool_choice": choice, "temperature": 1, "max_tokens": 400}
                    for answer in (messages.message(server, QUESTION, **asked)[1],
                                   messages.streamed(server, QUESTION, **asked)):
                        self.assertEqual(answer["stop_reason"], "tool_use")
                        self.assertEqual({block["type"] for block in answer["content"]}, {"tool_use"})
                        self.check([(b["name"], b["input"]) for b in answer["content"]], names, most)

    def test_strict_arguments_hold_though_no_call_is_forced(self):
        call = ('Let me see.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="book">\n'
                '<｜DSML｜parameter name="seats" string="false">12</｜DSML｜parameter>\n'
                '<｜DSML｜parameter name="hall" string="true">{}</｜DSML｜parameter>\n'
                '</｜DSML｜invoke>\n</｜DSML｜tool_calls>')
        with self.scripted(call.format("garden")) as server:
            for strict in (False, True):
                # One call: off its script, the engine might go on to others without end.
                tools = [chat_tool("book", strict=strict)]
                for choice in self.chat(server, tools=tools, n=2, parallel_tool_calls=False):
                    self.assertEqual(choice["message"]["content"], "Let me see.")
                    [made] = [json.loads(c["function"]["arguments"]) for c in choice["message"]["tool_calls"]]
                    self.assertEqual(made["seats"], 12)
                    self.assertEqual(is_valid("book", made), strict, (made, choice["finish_reason"]))
        with self.scripted("It is 42.") as server:  # and no call need come
            [choice] = self.chat(server, tools=[chat_tool("book", strict=True)])
            self.assertEqual((choice["message"]["content"], choice["finish_reason"]), ("It is 42.", "stop"))
            [choice] = self.chat(server, tools=[chat_tool("book")], tool_choice="required")
            self.check([(c["function"]["name"], json.loads(c["function"]["arguments"]))
                        for c in choice["message"]["tool_calls"]], {"book"})

    def test_a_killed_worker_does_not_show_in_a_call(self):
        with e2e.Server() as server:
            asked = {"tools": [chat_tool("list", strict=True)], "tool_choice": "required", "parallel_tool_calls": False,
                     "temperature": 1, "seed": 11, "max_tokens": 3500}
            undisturbed = e2e.answer(server, QUESTION, **asked)
            self.assertEqual(undisturbed.finish, "tool_calls")
            self.assertTrue(is_valid("list", json.loads(undisturbed.calls.removeprefix("list"))))
            disturbed = e2e.Stream(server, QUESTION, **asked)
            begun = [next(disturbed.events) for _ in range(5)]
            os.kill(server.children("worker", "decode")[0], signal.SIGKILL)
            got = e2e.whole(begun + list(disturbed.events))
            disturbed.close()
            self.assertEqual(got._replace(usage=None), undisturbed._replace(usage=None))

    def test_a_schema_that_cannot_be_kept_is_refused_before_the_stream(self):
        bad = {"name": "f", "strict": True, "parameters": UNDOABLE}
        with e2e.Server() as server:
            for path, sent, field in [
                    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}],
                                              "tools": [chat_tool("ping"), {"type": "function", "function": bad}]},
                     "tools[1].function.parameters"),
                    ("/v1/responses", {"input": "x", "tools": [{"type": "function", **bad}]}, "tools[0].parameters"),
                    ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "x"}], "tools": [
                        {"name": "f", "strict": True, "input_schema": UNDOABLE}]}, "tools[0].input_schema")]:
                with self.subTest(path=path):
                    status, _, text = server.request("POST", path, {"model": "nano", "stream": True, **sent})
                    self.assertEqual(status, 400, text)
                    self.assertIn(field, text)
                    self.assertIn("\\\"not\\\"", text)
            # Nobody asked for that schema to be kept.
            [choice] = self.chat(server, tool_choice="required", temperature=1, tools=[
                {"type": "function", "function": {**bad, "strict": False}}])
            self.assertTrue(choice["message"]["tool_calls"])


if __name__ == "__main__":
    e2e.main()
