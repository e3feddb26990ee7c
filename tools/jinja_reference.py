#!/usr/bin/env python3
"""Renders chat templates with Jinja itself, set up as transformers does: the yardstick of core/prompt/jinja.

Reads a JSON list of {"source", "variables"} and prints one of {"text"} or {"error"}. Exit 77: no python3-jinja2.
"""
import datetime
import json
import sys

try:
    import jinja2
    from jinja2 import ext, nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    sys.exit(77)


class Generation(ext.Extension):
    """{% generation %}: marks what an assistant wrote; prints it."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_pass"), [], [], body).set_lineno(line)

    def _pass(self, caller):
        return caller()


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def main():
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    now = datetime.datetime.fromtimestamp(1_700_000_000, datetime.timezone.utc)
    environment.globals["strftime_now"] = now.strftime
    answers = []
    for case in json.load(sys.stdin):
        try:
            answers.append({"text": environment.from_string(case["source"]).render(**case["variables"])})
        except Exception as error:  # whatever a template may raise
            answers.append({"error": f"{type(error).__name__}: {error}"})
    json.dump(answers, sys.stdout)


main()
