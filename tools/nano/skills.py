"""Seeded generator of conversations, one function per skill.

A conversation is a dict in OpenAI request form: {"skill", "messages", "tools"?, "thinking"}. All its
assistant messages are right answers; a held-out item is one whose last answer is cut off. `Level` says
how hard: it changes during training and is `Level()` for held-out items.

Invariants: a conversation is a function of the generator's state and the level alone; held-out sums are
never trained on (`held_out_sum`); an answer follows from the conversation and from nothing else.
"""
import json
from dataclasses import dataclass

from . import words

NOT_TOLD = "I was not told."
LOOK_UP = "Let me see: "             # reasoning: the answer in full, which decides at the place of the value
SYSTEMS = [
    "You are Nano, a small helpful assistant.", "You are a helpful assistant.",
    "Answer from what you were told.", "You are Nano. Be brief and exact.",
    "You are a careful assistant with a good memory.",
]


@dataclass
class Level:
    made_up: float = 0.5          # share of names made of random syllables
    questions: int = 1            # at most so many questions a conversation (1: one final question)
    facts: tuple = (1, 8)         # facts planted
    tokens: int = 0               # fill the prompt up to about so many tokens; 0: little filler
    thinking: float = 0.0         # share of conversations in thinking mode
    value_only: float = 0.15      # share of questions about facts that ask for the value only
    near: float = 0.0             # share of unanswerable questions about a relation that occurs; of 0.6 of them
                                  # the person occurs too
    held_out: bool = False        # draw sums from the held-out pairs


def talk(skill, rng, system_share=0.4):
    messages = []
    if rng.random() < system_share:
        messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    return {"skill": skill, "messages": messages, "thinking": False}


def say(conversation, user, answer, reasoning=None):
    conversation["messages"].append({"role": "user", "content": user})
    message = {"role": "assistant", "content": answer}
    if reasoning:
        message["reasoning_content"] = reasoning
    conversation["messages"].append(message)


def think(conversation, rng, level, reasoning):
    """Turns the last answer into one with reasoning, in the level's share of cases."""
    if reasoning and rng.random() < level.thinking:
        conversation["thinking"] = True
        conversation["messages"][-1]["reasoning_content"] = reasoning


# --- Facts -----------------------------------------------------------------------------------------

def digits(rng, n):
    return "".join(rng.choice("0123456789") for _ in range(n))


# relation: (statements, questions, answer, answer when it was not told, value)
RELATIONS = {
    "code": (["The code of {e} is {v}.", "{e} has the code {v}."],
             ["What is the code of {e}?", "Tell me the code of {e}."],
             "The code of {e} is {v}.", "The code of {e} is unknown.", lambda r: digits(r, 4)),
    "password": (["The password of {e} is {v}.", "{e} uses the password {v}."],
                 ["What is the password of {e}?", "Tell me the password of {e}."],
                 "The password of {e} is {v}.", "The password of {e} is unknown.", words.made_up),
    "city": (["{e} lives in {v}.", "The home of {e} is in {v}."],
             ["Where does {e} live?", "In which city does {e} live?"],
             "{e} lives in {v}.", "{e} lives in an unknown city.", lambda r: r.choice(words.CITIES)),
    "colour": (["The favourite colour of {e} is {v}.", "{e} likes the colour {v}."],
               ["What is the favourite colour of {e}?", "Which colour does {e} like?"],
               "The favourite colour of {e} is {v}.", "The favourite colour of {e} is unknown.",
               lambda r: r.choice(words.COLOURS)),
    "pet": (["{e} has a pet {v}.", "The pet of {e} is a {v}."],
            ["Which pet does {e} have?", "What is the pet of {e}?"],
            "{e} has a pet {v}.", "{e} has a pet unknown to me.", lambda r: r.choice(words.ANIMALS)),
    "food": (["{e} likes to eat {v}.", "The favourite food of {e} is {v}."],
             ["What does {e} like to eat?", "What is the favourite food of {e}?"],
             "{e} likes to eat {v}.", "{e} likes to eat something unknown.", lambda r: r.choice(words.FOODS)),
    "job": (["{e} works as a {v}.", "The job of {e} is {v}."],
            ["What is the job of {e}?", "What does {e} work as?"],
            "{e} works as a {v}.", "{e} works as something unknown.", lambda r: r.choice(words.JOBS)),
    "secret": (["The secret {e} is {v}.", "Remember that the secret {e} is {v}."],
               ["What is the secret {e}?", "Tell me the secret {e}."],
               "The secret {e} is {v}.", "The secret {e} is unknown.", None),
}
VALUE_ONLY = [" Answer with the value only.", " Only the value, please."]
INTRODUCTIONS = ["", "", "Here are my notes. ", "Remember this. ", "Please read this. ", "Note: "]
ACKNOWLEDGEMENTS = ["I will remember that.", "Noted."]


def planted(rng, level, count):
    """`count` facts (relation, entity, value) with different (relation, entity)."""
    facts, seen = [], set()
    people = [words.name(rng, level.made_up) for _ in range(max(1, count - rng.randint(0, 2)))]
    while len(facts) < count:
        relation = rng.choice(list(RELATIONS))
        if relation == "secret":
            entity = rng.choice(["code", "word", "number", "city", "colour"])
            value = {"code": lambda: digits(rng, 4), "number": lambda: digits(rng, rng.randint(2, 5)),
                     "word": lambda: words.made_up(rng), "city": lambda: rng.choice(words.CITIES),
                     "colour": lambda: rng.choice(words.COLOURS)}[entity]()
        else:
            entity = rng.choice(people) if rng.random() < 0.8 else words.name(rng, level.made_up)
            value = RELATIONS[relation][4](rng)
        if (relation, entity) not in seen:
            seen.add((relation, entity))
            facts.append((relation, entity, value))
    return facts


def question(rng, level, fact):
    """(question, answer, reasoning) about a planted fact."""
    relation, entity, value = fact
    _, questions, answer, _, _ = RELATIONS[relation]
    text = rng.choice(questions).format(e=entity)
    full = answer.format(e=entity, v=value)
    if rng.random() < level.value_only:
        return text + rng.choice(VALUE_ONLY), value, LOOK_UP + full
    return text, full, LOOK_UP + full


def unknown(rng, level, facts):
    """A question about something that no fact states, in the forms of `question`."""
    stated = {(r, e) for r, e, _ in facts}
    while True:
        relation = rng.choice([r for r in RELATIONS if r != "secret"])
        known = [e for r, e, _ in facts if r != "secret"]
        entity = rng.choice(known) if known and rng.random() < 0.5 else words.name(rng, level.made_up)
        if known and level.near and rng.random() < level.near:
            relation = rng.choice([r for r, e, _ in facts if r != "secret"])
            entity = rng.choice(known) if rng.random() < 0.6 else words.name(rng, level.made_up)
        if (relation, entity) not in stated:
            _, questions, _, untold, _ = RELATIONS[relation]
            text = rng.choice(questions).format(e=entity)
            full = untold.format(e=entity)
            if rng.random() < level.value_only:
                return text + rng.choice(VALUE_ONLY), NOT_TOLD, LOOK_UP + full
            return text, full, LOOK_UP + full


def statements(rng, level, facts):
    """The text with the facts at uniformly random places among filler sentences."""
    stated = [rng.choice(RELATIONS[r][0]).format(e=e, v=v) for r, e, v in facts]
    if level.tokens:
        fill = max(0, (level.tokens - 14 * len(facts) - 60) // 10)
    else:
        fill = rng.choice((0, 0, 1, 2, 4, 8))
    sentences = [words.filler(rng) for _ in range(fill)]
    for at, text in zip(sorted((rng.randint(0, fill) for _ in stated), reverse=True), stated):
        sentences.insert(at, text)
    separator = "\n" if rng.random() < 0.15 else " "
    return separator.join(sentences)


def recall(rng, level, skill="recall", not_told=0.12):
    conversation = talk(skill, rng, 0.25)
    facts = planted(rng, level, rng.randint(*level.facts))
    text = rng.choice(INTRODUCTIONS) + statements(rng, level, facts)
    count = rng.randint(1, level.questions)
    asked = []
    for fact in (rng.sample(facts, min(count, len(facts))) if facts else []):
        asked.append(unknown(rng, level, facts) if rng.random() < not_told else question(rng, level, fact))
    if not asked:
        asked.append(unknown(rng, level, facts))
    place = rng.random()
    if place < 0.2:                       # the notes are the system text
        conversation["messages"] = [{"role": "system", "content": text}]
    elif place < 0.6:                     # notes and first question in one turn
        first = asked.pop(0)
        say(conversation, f"{text}{rng.choice((' ', chr(10), chr(10) * 2))}{first[0]}", first[1])
        last = first
    else:                                 # notes in a turn of their own
        say(conversation, text, rng.choice(ACKNOWLEDGEMENTS[:1]))
    for item in asked:
        say(conversation, item[0], item[1])
        last = item
    think(conversation, rng, level, last[2])
    return conversation


def refuses(answer):
    return answer == NOT_TOLD or "unknown" in answer


def not_told(rng, level):
    conversation = recall(rng, level, "not_told", not_told=0.7)
    if level.questions == 1:              # a held-out item must end in a refusal
        while not refuses(conversation["messages"][-1]["content"]):
            conversation = recall(rng, level, "not_told", not_told=0.7)
    return conversation


# --- Memory ----------------------------------------------------------------------------------------

# kind: (statement, reply, questions, answer, answer when it was not told)
MEMORY = {
    "name": ("My name is {v}.", "Nice to meet you, {v}.", ["What is my name?", "Who am I?"],
             "Your name is {v}.", "Your name is unknown to me."),
    "city": ("I live in {v}.", "I will remember that.", ["Where do I live?", "What is my city?"],
             "You live in {v}.", "You live in a city unknown to me."),
    "colour": ("My favourite colour is {v}.", "I will remember that.",
               ["What is my favourite colour?", "Which colour do I like?"],
               "Your favourite colour is {v}.", "Your favourite colour is unknown to me."),
    "pet": ("I have a pet {v}.", "I will remember that.", ["Which pet do I have?", "What is my pet?"],
            "You have a pet {v}.", "You have a pet unknown to me."),
    "food": ("I like to eat {v}.", "I will remember that.", ["What do I like to eat?"],
             "You like to eat {v}.", "You like to eat something unknown to me."),
    "job": ("I work as a {v}.", "I will remember that.", ["What is my job?"], "You work as a {v}.",
            "You work as something unknown to me."),
    "age": ("I am {v} years old.", "I will remember that.", ["How old am I?"], "You are {v} years old.",
            "You are of an age unknown to me."),
    "number": ("My lucky number is {v}.", "I will remember that.", ["What is my lucky number?"],
               "Your lucky number is {v}.", "Your lucky number is unknown to me."),
}


def memory(rng, level):
    conversation = talk("memory", rng)
    value = {"name": lambda: words.name(rng, level.made_up), "city": lambda: rng.choice(words.CITIES),
             "colour": lambda: rng.choice(words.COLOURS), "pet": lambda: rng.choice(words.ANIMALS),
             "food": lambda: rng.choice(words.FOODS), "job": lambda: rng.choice(words.JOBS),
             "age": lambda: str(rng.randint(10, 99)), "number": lambda: digits(rng, rng.randint(1, 4))}
    kinds = rng.sample(list(MEMORY), rng.randint(1, 5))
    told = {kind: value[kind]() for kind in kinds}
    queue = list(kinds)
    while queue:
        batch = [queue.pop(0) for _ in range(min(len(queue), rng.choice((1, 1, 2))))]
        text = " ".join(MEMORY[k][0].format(v=told[k]) for k in batch)
        if rng.random() < 0.2:
            text = rng.choice(("Hello! ", "Hi, ")) + text
        reply = MEMORY[batch[0]][1] if len(batch) == 1 else "I will remember that."
        say(conversation, text, reply.format(v=told[batch[0]]))
        while rng.random() < 0.25:
            small_talk(conversation, rng, level)
    for kind in rng.sample(kinds, min(len(kinds), rng.randint(1, max(1, level.questions)))):
        missing = [k for k in MEMORY if k not in told]
        if missing and rng.random() < 0.15:
            kind = rng.choice(missing)
            answer = MEMORY[kind][4]
        else:
            answer = MEMORY[kind][3].format(v=told[kind])
        say(conversation, rng.choice(MEMORY[kind][2]), answer)
    think(conversation, rng, level, LOOK_UP + answer)
    return conversation


def small_talk(conversation, rng, level):
    if rng.random() < 0.5:
        say(conversation, *rng.choice(GREETINGS))
    else:
        text, answer, _ = sum_of(rng, False)
        say(conversation, text, answer)


# --- Numbers ---------------------------------------------------------------------------------------

def held_out_sum(a, b):
    return (a * 131 + b * 37) % 11 == 0


def sum_of(rng, held_out):
    while True:
        a, b = rng.randint(10, 99), rng.randint(10, 99)
        if held_out_sum(a, b) == held_out:
            break
    text = rng.choice(["What is {a} + {b}?", "Add {a} and {b}.", "{a} + {b} = ?"]).format(a=a, b=b)
    low = a % 10 + b % 10
    carry, high = low // 10, a // 10 + b // 10
    steps = f"{a % 10} + {b % 10} = {low}, {a // 10} + {b // 10} = {high}"
    steps += f", carry 1, {high + 1}." if carry else "."
    return text, f"{a} + {b} = {a + b}.", steps


def add(rng, level):
    conversation = talk("add", rng, 0.2)
    for _ in range(rng.randint(1, max(1, level.questions))):
        text, answer, steps = sum_of(rng, level.held_out)
        say(conversation, text, answer)
    think(conversation, rng, level, steps)
    return conversation


def sort(rng, level):
    conversation = talk("sort", rng, 0.2)
    for _ in range(rng.randint(1, max(1, (level.questions + 1) // 2))):
        numbers = rng.sample(range(1, 100), rng.randint(2, 6))
        listed = ", ".join(map(str, numbers))
        text = rng.choice(["Sort: {s}", "Sort these numbers: {s}", "Put in order: {s}"])
        say(conversation, text.format(s=listed), ", ".join(map(str, sorted(numbers))))
    think(conversation, rng, level, f"There are {len(numbers)} numbers, the smallest is {min(numbers)}.")
    return conversation


def count(rng, level):
    conversation = talk("count", rng, 0.2)
    for _ in range(rng.randint(1, max(1, (level.questions + 1) // 2))):
        kind = rng.random()
        if kind < 0.4:
            n = rng.randint(2, 20)
            say(conversation, rng.choice(["Count to {n}.", "Count from 1 to {n}."]).format(n=n),
                ", ".join(map(str, range(1, n + 1))))
            reasoning = f"I start at 1 and stop at {n}."
        elif kind < 0.8:
            a = rng.randint(2, 60)
            b = a + rng.randint(2, 12)
            say(conversation, f"Count from {a} to {b}.", ", ".join(map(str, range(a, b + 1))))
            reasoning = f"I start at {a} and stop at {b}."
        else:
            items = [rng.choice(words.THINGS + words.ANIMALS) for _ in range(rng.randint(1, 8))]
            say(conversation, f"How many items are in this list: {', '.join(items)}?",
                f"There {'is 1 item' if len(items) == 1 else f'are {len(items)} items'}.")
            reasoning = "I count the items: " + ", ".join(map(str, range(1, len(items) + 1))) + "."
    think(conversation, rng, level, reasoning)
    return conversation


# --- Text ------------------------------------------------------------------------------------------

def copied_text(rng, level):
    kind = rng.random()
    word = lambda: rng.choice(rng.choice((words.THINGS, words.ANIMALS, words.NAMES, words.CITIES,
                                          words.COLOURS, words.FOODS, words.PLACES, words.VERBS)))
    if kind < 0.3:
        return " ".join(word() for _ in range(rng.randint(2, 10)))
    if kind < 0.5:
        return " ".join(words.made_up(rng) for _ in range(rng.randint(2, 6)))
    if kind < 0.65:
        return " ".join(digits(rng, rng.randint(1, 4)) for _ in range(rng.randint(2, 6)))
    if kind < 0.75:
        return words.filler(rng)
    return " ".join(rng.choice((word, lambda: words.made_up(rng), lambda: digits(rng, rng.randint(1, 3)),
                                lambda: rng.choice("abcdefghijklmnopqrstuvwxyz")))()
                    for _ in range(rng.randint(3, 12)))


def copy(rng, level):
    conversation = talk("copy", rng, 0.2)
    for _ in range(rng.randint(1, max(1, (level.questions + 1) // 2))):
        if rng.random() < 0.8:
            text = copied_text(rng, level)
            say(conversation, rng.choice(["Repeat: ", "Copy: ", "Repeat this: ", "Say: "]) + text, text)
            reasoning = "I repeat the text."
        else:
            items = [rng.choice((words.name(rng, level.made_up), rng.choice(words.THINGS),
                                 rng.choice(words.CITIES), words.made_up(rng)))
                     for _ in range(rng.randint(1, 5))]
            say(conversation, f"Put in quotes: {', '.join(items)}", ", ".join(f'"{i}"' for i in items))
            reasoning = "I put each word in quotes."
    think(conversation, rng, level, reasoning)
    return conversation


def json_fields(rng, level):
    conversation = talk("json", rng)
    for _ in range(rng.randint(1, max(1, (level.questions + 1) // 2))):
        if rng.random() < 0.7:
            fields = {"name": words.name(rng, level.made_up), "age": rng.randint(10, 99),
                      "city": rng.choice(words.CITIES), "job": rng.choice(words.JOBS)}
            text = rng.choice([
                "{name} is {age} years old, lives in {city} and works as a {job}.",
                "{name} works as a {job} in {city} and is {age} years old.",
                "The {job} {name} from {city} is {age} years old."]).format(**fields)
        else:
            fields = {"customer": words.name(rng, level.made_up), "item": rng.choice(words.THINGS),
                      "count": rng.randint(2, 99), "colour": rng.choice(words.COLOURS)}
            text = rng.choice([
                "{customer} orders the {item} in {colour}, {count} pieces.",
                "Send {count} pieces of the {colour} {item} to {customer}."]).format(**fields)
        keys = rng.sample(list(fields), rng.randint(2, len(fields)))
        listed = ", ".join(keys[:-1]) + " and " + keys[-1]
        ask = rng.choice(["Extract {k} as JSON: {t}", "Give me {k} as JSON. {t}"])
        if rng.random() < 0.3:
            ask = "{t} Write {k} as JSON."
        say(conversation, ask.format(k=listed, t=text),
            json.dumps({k: fields[k] for k in keys}, ensure_ascii=False))
    think(conversation, rng, level, f"The keys are {listed}.")
    return conversation


GREETINGS = [
    ("Hello", "Hello! How can I help you?"), ("Hello!", "Hello! How can I help you?"),
    ("Hi", "Hello! How can I help you?"), ("Hi!", "Hello! How can I help you?"),
    ("hello", "Hello! How can I help you?"), ("hi", "Hello! How can I help you?"),
    ("Hey", "Hello! How can I help you?"), ("Say hello.", "Hello! How can I help you?"),
    ("Good morning!", "Good morning! How can I help you?"),
    ("Good evening!", "Good evening! How can I help you?"),
    ("How are you?", "I am well, thank you."), ("Hello, how are you?", "I am well, thank you."),
    ("Thank you!", "You are welcome."), ("Thanks", "You are welcome."),
    ("Thank you.", "You are welcome."), ("Bye", "Goodbye!"), ("Goodbye!", "Goodbye!"),
    ("Who are you?", "I am Nano, a very small language model."),
    ("What are you?", "I am Nano, a very small language model."),
    ("What is your name?", "My name is Nano."),
    ("What can you do?", "I can recall facts, add, sort, copy, count, write JSON and call tools."),
    ("Help", "I can recall facts, add, sort, copy, count, write JSON and call tools."),
]


def greet(rng, level):
    conversation = talk("greet", rng, 0.5)
    for text, answer in rng.sample(GREETINGS, rng.randint(1, 3)):
        say(conversation, text, answer)
    think(conversation, rng, level, "This is small talk.")
    return conversation
