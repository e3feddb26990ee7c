"""The tool-calling skill: schemas, requests, calls and answers from tool results.

Two thirds of the tools are well-known ones with natural requests, the rest have made-up names and
parameters, so that names and arguments must be read from the schema and the request.
"""
import json

from . import skills, words


def schema(name, description, /, **parameters):
    return {"type": "function", "function": {
        "name": name, "description": description,
        "parameters": {"type": "object",
                       "properties": {k: {"type": t} for k, t in parameters.items()},
                       "required": list(parameters)}}}


def _weather(rng, level):
    city, degrees = rng.choice(words.CITIES), rng.randint(2, 39)
    text = rng.choice(["What is the weather in {c}?", "How warm is it in {c}?"]).format(c=city)
    return text, {"city": city}, rng.choice([
        f"{degrees} degrees", json.dumps({"city": city, "degrees": degrees})]), \
        f"It is {degrees} degrees in {city}."


def _time(rng, level):
    city, time = rng.choice(words.CITIES), f"{rng.randint(10, 23)}:{rng.randint(10, 59)}"
    return f"What time is it in {city}?", {"city": city}, rng.choice([
        time, json.dumps({"time": time})]), f"It is {time} in {city}."


def _timer(rng, level):
    minutes = rng.randint(2, 99)
    text = rng.choice(["Set a timer for {m} minutes.", "Wake me in {m} minutes."]).format(m=minutes)
    return text, {"minutes": minutes}, "ok", "Done."


def _message(rng, level):
    to, text = words.name(rng, level.made_up), rng.choice(
        ["hello", "see you", "come home", "good night", "call me", "I am late"])
    return f"Tell {to}: {text}", {"to": to, "text": text}, "ok", "Done."


def _multiply(rng, level):
    a, b = rng.randint(2, 99), rng.randint(2, 99)
    text = rng.choice(["Multiply {a} by {b}.", "What is {a} times {b}?"]).format(a=a, b=b)
    return text, {"a": a, "b": b}, str(a * b), f"The result is {a * b}."


def _price(rng, level):
    item, price = rng.choice(words.THINGS), rng.randint(2, 99)
    text = rng.choice(["What does the {i} cost?", "Find the price of the {i}."]).format(i=item)
    return text, {"item": item}, rng.choice([
        str(price), json.dumps({"item": item, "price": price})]), f"The {item} costs {price}."


def _light(rng, level):
    room, on = rng.choice(["kitchen", "bedroom", "office", "hall"]), rng.random() < 0.5
    return f"Turn the light in the {room} {'on' if on else 'off'}.", {"room": room, "on": on}, "ok", "Done."


def _phone(rng, level):
    name, number = words.name(rng, level.made_up), skills.digits(rng, 5)
    text = rng.choice(["Find the phone number of {n}.", "What is the phone number of {n}?"])
    return text.format(n=name), {"name": name}, rng.choice([
        number, json.dumps({"name": name, "phone": number})]), f"The phone number of {name} is {number}."


KNOWN = [
    (schema("get_weather", "Get the weather in a city", city="string"), _weather),
    (schema("get_time", "Get the time in a city", city="string"), _time),
    (schema("set_timer", "Set a timer", minutes="integer"), _timer),
    (schema("send_message", "Send a message", to="string", text="string"), _message),
    (schema("multiply", "Multiply two numbers", a="integer", b="integer"), _multiply),
    (schema("find_price", "Find the price of an item", item="string"), _price),
    (schema("set_light", "Turn a light on or off", room="string", on="boolean"), _light),
    (schema("find_phone", "Find a phone number", name="string"), _phone),
]
STRINGS = ["name", "item", "city", "text", "color", "place", "file", "user"]
NUMBERS = ["count", "size", "number", "limit", "age", "level"]


def made_up_tool(rng, level):
    noun = rng.choice(words.THINGS + words.ANIMALS)
    name = f"{rng.choice(['open', 'get', 'find', 'read', 'move', 'check'])}_{noun}"
    keys = rng.sample(STRINGS, rng.randint(0, 2))
    keys += rng.sample(NUMBERS, rng.randint(0 if keys else 1, 1))
    tool = schema(name, f"Use the {noun}", **{k: "string" if k in STRINGS else "integer" for k in keys})

    def request(rng, level):
        arguments = {}
        for key in keys:
            if key in NUMBERS:
                arguments[key] = rng.randint(1, 99)
            else:
                arguments[key] = rng.choice((words.name(rng, level.made_up), rng.choice(words.CITIES),
                                             rng.choice(words.THINGS), words.made_up(rng)))
        listed = " and ".join(f"{k} {v}" for k, v in arguments.items())
        word = words.made_up(rng)
        return f"Use {name} with {listed}.", arguments, rng.choice(["ok", word]), None
    return tool, request


def call(name, arguments, index):
    return {"id": f"call_{index}", "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}}


def reason(conversation, text):
    """With tools every answer of a thinking conversation keeps its reasoning."""
    if conversation["thinking"]:
        conversation["messages"][-1]["reasoning_content"] = text


def tool(rng, level, last=None):
    """Several calls; `last` is "call" or "result" to end on that kind of answer (held-out items)."""
    conversation = skills.talk("tool_result" if last == "result" else "tool", rng, 0.6)
    pool = rng.sample(KNOWN, rng.randint(1, 2))
    if rng.random() < 0.5:
        extra = made_up_tool(rng, level)
        if extra[0]["function"]["name"] not in [t["function"]["name"] for t, _ in pool]:
            pool.append(extra)
    rng.shuffle(pool)
    conversation["tools"] = [t for t, _ in pool]
    conversation["thinking"] = rng.random() < level.thinking
    turns = rng.randint(1, max(1, level.questions))
    for index in range(turns):
        final = index == turns - 1
        if rng.random() < 0.12 and not (final and last):
            skills.small_talk(conversation, rng, level)
            reason(conversation, "No tool is needed.")
            continue
        schema_, request = rng.choice(pool)
        name = schema_["function"]["name"]
        text, arguments, result, answer = request(rng, level)
        answer = answer or ("Done." if result == "ok" else f"The result is {result}.")
        conversation["messages"] += [
            {"role": "user", "content": text},
            {"role": "assistant", "content": "", "tool_calls": [call(name, arguments, index)]}]
        reason(conversation, f"I need the tool {name}.")
        if final and last == "call" or not last and final and rng.random() < 0.15:
            break
        conversation["messages"] += [
            {"role": "tool", "tool_call_id": f"call_{index}", "content": result},
            {"role": "assistant", "content": answer}]
        reason(conversation, "The tool has answered.")
    return conversation
