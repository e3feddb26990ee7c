"""Closed word lists and made-up words. Each list word is one token with and without a leading space."""

NAMES = """Ada Alma Amir Anna Ben Bruno Carla Chen Clara Dana David Dora Elena Emma Erik Eva Felix
Finn Frida Gina Greta Hana Hugo Ida Igor Ines Iris Ivan Jana Jonas Julia Kai Kira Klara Lars Lea Leo
Lena Lina Liam Lucia Luka Maja Marco Maria Mark Marta Maya Mia Mila Mina Nadia Nils Nina Noah Nora
Olga Oscar Otto Paul Petra Pia Rita Robin Rosa Ruth Sam Sara Selma Simon Sofia Sonja Sven Tara Theo
Tilda Tim Tom Uma Vera Viktor Wanda Yara Yusuf Zara Zoe Alice Bob""".split()

CITIES = """Oslo Paris Rome Berlin Madrid Vienna Prague Dublin Lisbon Athens Warsaw London Cairo
Tokyo Delhi Lima Quito Boston Denver Dallas Miami Geneva Zurich Milan Naples Turin Lyon Porto Ghent
Riga Vilnius Helsinki Bergen Malmo Kyoto Osaka Seoul Hanoi Accra Lagos Nairobi Havana""".split()

COLOURS = "red green blue yellow black white purple pink brown grey silver golden".split()

ANIMALS = """fox cat dog horse rabbit parrot turtle lizard hamster goat hen duck goose pony snake
frog bear wolf lion tiger mouse rat crow sheep""".split()

FOODS = """soup bread rice cheese pasta salad fish pizza cake beans corn curry honey toast lentils
cherries plums pears grapes nuts carrots melon tofu noodles""".split()

JOBS = """baker doctor teacher farmer pilot painter nurse lawyer driver singer gardener cook judge
sailor writer tailor plumber dancer waiter builder""".split()

THINGS = """lamp box key book chair table clock bag cup hat coat ring phone map pen knife bottle
basket mirror ladder hammer candle drum bell rope blanket brush plate spoon pillow ticket letter
camera radio lantern wallet towel bucket kettle shelf""".split()

PLACES = """river bridge garden market harbour station forest tower school library mill farm hill
lake church castle museum park street valley beach road field village island""".split()

ADJECTIVES = """old small quiet bright heavy narrow warm cold tall empty broken clean dusty gentle
large late modern plain rough simple soft steep strange wide""".split()

VERBS = """stands waits sleeps rests shines hides grows moves turns stops falls stays sits burns
works hangs floats rings""".split()

PREPOSITIONS = "near behind under above beside before".split()

OPENERS = ["In the morning", "At night", "Today", "Again", "In winter", "After lunch", "Sometimes",
           "Later", "On Monday", "For now"]

CONSONANTS = "bdfgklmnprstvz"
VOWELS = "aeiou"
SYLLABLES = [c + v for c in CONSONANTS for v in VOWELS]


def made_up(rng, low=2, high=3):
    """A word of random syllables, lower case."""
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(low, high)))


def name(rng, made_up_share):
    return made_up(rng).capitalize() if rng.random() < made_up_share else rng.choice(NAMES)


def filler(rng):
    """A sentence that states no fact of the kinds that are asked for."""
    thing = lambda: rng.choice(rng.choice((THINGS, PLACES, ANIMALS)))
    kind = rng.random()
    if kind < 0.6:
        text = f"the {rng.choice(ADJECTIVES)} {thing()} {rng.choice(VERBS)} " \
               f"{rng.choice(PREPOSITIONS)} the {thing()}."
    elif kind < 0.85:
        text = f"the {thing()} {rng.choice(VERBS)} and the {rng.choice(ADJECTIVES)} {thing()} " \
               f"{rng.choice(VERBS)}."
    else:
        text = f"a {rng.choice(COLOURS)} {thing()} {rng.choice(VERBS)} " \
               f"{rng.choice(PREPOSITIONS)} the {rng.choice(PLACES)} of {rng.choice(CITIES)}."
    if rng.random() < 0.25:
        return f"{rng.choice(OPENERS)}, {text}"
    return text[0].upper() + text[1:]
