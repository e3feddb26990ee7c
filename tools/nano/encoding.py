"""The DeepSeek V4 chat encoding, from a conversation to token ids and loss weights.

Layout: BOS, the system text bare, `<｜User｜>`text, `<｜Assistant｜>` then `</think>` (chat) or `<think>`
reasoning `</think>` (thinking; only after the last user turn unless tools are given), answer, EOS.
Tools are listed after the system text; tool results are `<tool_result>` blocks in a user turn.

Text between two special tokens is encoded as one string, as a tokenizer fed the whole prompt would do.
With `split` the parts of it (message text, template text) are encoded on their own; the two differ only
at punctuation next to a seam. Training sees both, so a server may do either.
"""
import json
import re

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
THINK, END_THINK, DSML = "<think>", "</think>", "｜DSML｜"

FIXED, PROMPT, ANSWER = 0, 1, 2     # kinds of tokens for the loss

TOOLS_HEAD = """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜tool_calls>" block like the following:

<｜DSML｜tool_calls>
<｜DSML｜invoke name="$TOOL_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$TOOL_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

"""
TOOLS_TAIL = "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"

_SPECIAL = re.compile(f"({THINK}|{END_THINK}|{DSML})")


def _template(text, kind):
    """Splits our own template text at the special tokens that it spells."""
    return [(part, kind, _SPECIAL.fullmatch(part) is not None) for part in _SPECIAL.split(text) if part]


def _text(text, kind):
    return [(text, kind, False)] if text else []


def _special(token, kind):
    return [(token, kind, True)]


def _tool_block(calls, kind):
    out = _template(f"\n\n<{DSML}tool_calls>\n", kind)
    for call in calls:
        function = call["function"]
        out += _template(f'<{DSML}invoke name="', kind) + _text(function["name"], kind)
        out += _text('">\n', kind)
        for key, value in json.loads(function["arguments"]).items():
            is_string = isinstance(value, str)
            out += _template(f'<{DSML}parameter name="', kind) + _text(key, kind)
            out += _text(f'" string="{"true" if is_string else "false"}">', kind)
            out += _text(value if is_string else json.dumps(value, ensure_ascii=False), kind)
            out += _template(f"</{DSML}parameter>\n", kind)
        out += _template(f"</{DSML}invoke>\n", kind)
    return out + _template(f"</{DSML}tool_calls>", kind)


def parts(conversation, generate=False, short_tools=False):
    """[(text, kind, is_special)] of a conversation; with `generate` it ends in the generation header.

    `short_tools` leaves out the long fixed text about tools: cheaper training rows, never used to serve.
    """
    messages = list(conversation["messages"])
    tools = conversation.get("tools")
    out = _special(BOS, FIXED)
    if tools and (not messages or messages[0]["role"] != "system"):
        messages.insert(0, {"role": "system", "content": ""})
    last_user = max((i for i, m in enumerate(messages) if m["role"] in ("user", "tool")), default=-1)
    in_user = False
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "system":
            out += _text(message["content"], PROMPT)
            if tools:
                out += _text("\n\n", FIXED)
                out += _template("## Tools\n\n" if short_tools else TOOLS_HEAD, FIXED)
                out += _text("\n".join(json.dumps(t["function"], ensure_ascii=False) for t in tools), FIXED)
                out += _text(TOOLS_TAIL, FIXED)
        elif role in ("user", "tool"):
            out += _text("\n\n", PROMPT) if in_user else _special(USER, PROMPT)
            in_user = True
            if role == "tool":
                out += _text("<tool_result>", PROMPT) + _text(message["content"], PROMPT)
                out += _text("</tool_result>", PROMPT)
            else:
                out += _text(message["content"], PROMPT)
        else:
            in_user = False
            out += _header(conversation, index >= last_user)
            if conversation["thinking"] and (index >= last_user or tools):
                out += _text(message.get("reasoning_content", ""), ANSWER)
                out += _special(END_THINK, ANSWER)
            out += _text(message.get("content") or "", ANSWER)
            if message.get("tool_calls"):
                out += _tool_block(message["tool_calls"], ANSWER)
            out += _special(EOS, ANSWER)
    if generate:
        out += _header(conversation, True)
    return out


def _header(conversation, last):
    thinks = conversation["thinking"] and (last or bool(conversation.get("tools")))
    return _special(ASSISTANT, PROMPT) + _special(THINK if thinks else END_THINK, PROMPT)


def encode(tokenizer, conversation, generate=False, split=False, short_tools=False):
    """(ids, kinds): token ids and the kind of each."""
    ids, kinds = [], []

    def flush(run):
        if run:
            kind = min(k for _, k in run)
            texts = [t for t, _ in run] if split else ["".join(t for t, _ in run)]
            for text in texts:
                new = tokenizer.encode(text)
                ids.extend(new)
                kinds.extend([kind] * len(new))
            run.clear()

    run = []
    for text, kind, is_special in parts(conversation, generate, short_tools):
        if is_special:
            flush(run)
            ids.append(tokenizer.special[text])
            kinds.append(kind)
        else:
            run.append((text, kind))
    flush(run)
    return ids, kinds


_INVOKE = re.compile(f'<{DSML}invoke name="(.*?)">\n(.*?)</{DSML}invoke>', re.S)
_PARAMETER = re.compile(f'<{DSML}parameter name="(.*?)" string="(true|false)">(.*?)</{DSML}parameter>', re.S)


def parse(text, thinking):
    """A decoded answer (without EOS) as {"content"} or {"tool_calls"}; None when it does not parse."""
    if thinking:
        _, found, text = text.partition(END_THINK)
        if not found:
            return None
    start = f"\n\n<{DSML}tool_calls>\n"
    if start not in text:
        return {"content": text}
    calls = []
    for name, body in _INVOKE.findall(text[text.index(start):]):
        arguments = {}
        for key, is_string, value in _PARAMETER.findall(body):
            try:
                arguments[key] = value if is_string == "true" else json.loads(value)
            except ValueError:
                return None
        calls.append({"name": name, "arguments": arguments})
    return {"tool_calls": calls}
