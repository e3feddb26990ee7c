"""What we send against docs/protocol/schemas: the name of a route and an answer in, nothing or ValueError out.

As a program it checks the expected answers of the text cases: schemas.py [REPOSITORY]
"""
import functools
import json
import os
import re
import sys
import warnings

try:
    import jsonschema
except ImportError:
    sys.exit("the tests need Debian's python3-jsonschema (tools/install_packages.sh test), or PyPI's jsonschema")

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDER = os.path.join(ROOT, "docs", "protocol", "schemas")
# What a 200 is on each route, whole; and the events of a stream: one schema, or one per type.
ROUTES = [
    (r"(/v1|/beta)?/chat/completions", "chat.json#whole", "chat.json#chunk"),
    (r"(/v1|/beta)?/completions", "chat.json#completion", "chat.json#completion_chunk"),
    (r"(/anthropic)?/v1/messages", "messages.json#whole", "messages.json#events"),
    (r"(/anthropic)?/v1/messages/count_tokens", "messages.json#count_tokens", None),
    (r"(/v1)?/responses/input_tokens", "responses.json#input_tokens", None),
    (r"(/v1)?/responses/compact", "responses.json#compaction", None),
    (r"(/v1)?/responses/[^/]+/input_items", "responses.json#input_items", None),
    (r"(/v1)?/responses(/[^/]+(/cancel)?)?", "responses.json#response", "responses.json#events"),
    (r"/tokenize", "common.json#tokenize", None),
    (r"/detokenize", "common.json#detokenize", None),
    (r"(/v1|/beta|/anthropic/v1)?/models", "common.json#models", None),
    (r"(/v1|/beta|/anthropic/v1)?/models/.+", "common.json#model", None),
]


@functools.cache
def files():
    out = {}
    for name in sorted(os.listdir(FOLDER)):
        with open(os.path.join(FOLDER, name)) as file:
            out[name] = json.load(file)
        jsonschema.Draft202012Validator.check_schema(out[name])
    return out


@functools.cache
def validator(name, *path):
    """The validator of $defs/<path> in a file."""
    pointer = f"{name}#/$defs/" + "/".join(path)
    with warnings.catch_warnings():
        # Debian's version has no other way yet to refer from one file to another.
        warnings.simplefilter("ignore", DeprecationWarning)
        resolver = jsonschema.RefResolver("", {}, store=files())
    return jsonschema.Draft202012Validator({"$ref": pointer}, resolver=resolver)


def check(schema, value):
    """`schema` is FILE#DEFINITION; with events, the value's type chooses."""
    file, definition = schema.split("#")
    path = [definition]
    if definition == "events":
        if not isinstance(value, dict) or value.get("type") not in files()[file]["$defs"]["events"]:
            raise ValueError(f"{schema}: no event is called {value!r:.200}")
        path.append(value["type"])
    for error in validator(file, *path).iter_errors(value):
        deepest = jsonschema.exceptions.best_match([error])
        raise ValueError(f"{schema} at {deepest.json_path}: {deepest.message:.500}\nin {json.dumps(value):.2000}")


def strict_json(text):
    """JSON as the RFC has it, every key once."""
    def pairs(items):
        if len({key for key, _ in items}) != len(items):
            raise ValueError(f"a key stands twice in {text:.300}")
        return dict(items)

    def refuse(constant):
        raise ValueError(f"{constant} is no JSON: {text:.300}")
    return json.loads(text, object_pairs_hook=pairs, parse_constant=refuse)


def check_chat_event(value):
    """An event of a stream of either kind of completions."""
    schema = "common.json#error" if "error" in value else (
        "chat.json#completion_chunk" if value.get("object") == "text_completion" else "chat.json#chunk")
    check(schema, value)


def check_stream(events_schema, text, error_schema):
    """Server-sent events, which may have been cut anywhere but inside an event."""
    ended = False
    for block in text.split("\n\n"):
        name = None
        for line in block.split("\n"):
            if not line or line.startswith(":"):
                continue
            if ended:
                raise ValueError(f"{line:.200} behind [DONE]")
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field != "data":
                raise ValueError(f"a stream has no line {line:.200}")
            elif value == "[DONE]":
                ended = True
            else:
                event = strict_json(value)
                if name is not None and name != event.get("type"):
                    raise ValueError(f"the event {name} has the type {event.get('type')}")
                check(error_schema if name is None and "error" in event else events_schema, event)


def check_answer(path, status, content_type, text, headers=None):
    """An answer of the server to a request of `path` (with its query); headers are the request's."""
    path = path.partition("?")[0]
    anthropic = path.startswith("/anthropic/") or "/v1/messages" in path or (
        "/models" in path and any(name.lower() == "anthropic-version" for name in headers or {}))
    error = "messages.json#error" if anthropic else "common.json#error"
    if status == 101 or not text:
        return
    if status >= 400 and path not in ("/readyz",) and not path.startswith("/admin"):
        return check(error, strict_json(text))
    for pattern, whole, events in ROUTES:
        if not re.fullmatch(pattern, path):
            continue
        if content_type.startswith("text/event-stream"):
            return check_stream(events, text, error)
        value = strict_json(text)
        if "deleted" in value:
            whole = "responses.json#deleted"
        if anthropic and whole.startswith("common.json#model"):
            whole = whole.replace("#", "#anthropic_")
        return check(whole, value)


def case_outputs(path):
    """(line of the file, expected text) of each case."""
    with open(path) as file:
        text = file.read()
    at = 1
    for case in text.split("\n====\n"):
        yield at, case.partition("\n----\n")[2]
        at += case.count("\n") + 2


def check_cases(root):
    folder = os.path.join(root, "tests", "cases", "protocol")
    count = 0
    with open(os.path.join(folder, "responses_echo.txt")) as file:
        echo = strict_json("{" + file.read().split("\n----\n")[1].split("\n====")[0] + "}")
    formats = {"chat_response.txt": ("chat.json#whole", "chat.json#chunk", "common.json#error"),
               "messages_response.txt": ("messages.json#whole", "messages.json#events", "messages.json#error"),
               "responses_response.txt": ("responses.json#response", "responses.json#events", "common.json#error")}

    def complete(value):
        """A response of a case repeats hardly anything of a request."""
        if isinstance(value, dict) and "object" in value and value["object"] == "response":
            return {**echo, **value}
        return {k: complete(v) for k, v in value.items()} if isinstance(value, dict) else value

    for name, (whole, events, error) in formats.items():
        for at, text in case_outputs(os.path.join(folder, name)):
            for line in text.split("\n"):
                kind, _, value = line.partition(": ")
                if kind not in ("data", "whole") or not value.startswith("{"):
                    continue
                value = complete(strict_json(value))
                schema = whole if kind == "whole" else events
                if schema == "chat.json#chunk" and "error" in value:
                    schema = error
                try:
                    check(schema, value)
                except ValueError as problem:
                    raise ValueError(f"{name}, case at line {at}: {problem}") from None
                try:
                    check(schema, {**value, "unknown": 1})
                except ValueError:
                    count += 1
                    continue
                raise ValueError(f"{schema} lets an unknown field pass: {value}")
    response = {"id": "resp_1", "object": "response", "created_at": 7, "status": "in_progress", "completed_at": None,
                "error": None, "incomplete_details": None, "model": "m", "output": [], "usage": None}
    for at, text in case_outputs(os.path.join(folder, "responses_echo.txt")):
        if text.startswith('"'):
            check("responses.json#response", {**response, **strict_json("{" + text + "}")})
            count += 1
    return count


if __name__ == "__main__":
    checked = check_cases(sys.argv[1] if len(sys.argv) > 1 else ROOT)
    print(f"schemas: {checked} answers and events of the text cases are as their schemas say")
    if checked < 100:
        sys.exit("schemas: that is too few, are the cases read as they are written?")
