"""Builds tokenizer.json from the word lists and generated conversations."""
import json
import random
from collections import Counter

from . import bpe, encoding, mix, skills, words

SIZE = 2048

# Everyday English for prompts that the generator would not write.
ENGLISH = """the of and to in is it you that was for on are as with his they at be this have from or had
by but what some we can out other were all there when up use your how said an each she which do their
time if will way about many then them write would like so these her long make thing see him two has look
more day could go come did number sound no most people my over know water than call first who may down
side been now find any new work part take get place made live where after back little only round man
year came show every good me give our under name very through just form sentence great think say help
low line differ turn cause much mean before move right boy old too same tell does set three want air
well also play small end put home read hand port large spell add even land here must big high such
follow act why ask men change went light kind off need house picture try us again animal point mother
world near build self earth father please story text short word list answer question model language
yes not one hello code json data file user system message tool function value key string type true
false null error test example Write Please Tell Explain Give List How What Why When Who Where""".split()


def corpus(seed):
    """{piece: weight} over which merges are learnt."""
    rng, pre, counts = random.Random(seed), bpe.PreTokenizer(), Counter()
    for syllable in words.SYLLABLES:            # first merges: made-up words split by syllable
        for form in (syllable, syllable.capitalize(), " " + syllable, " " + syllable.capitalize()):
            counts[form] += 1_000_000
    for group in (words.NAMES, words.CITIES):
        for word in group:
            counts[word] += 3000
            counts[" " + word] += 3000
    for group in (words.COLOURS, words.ANIMALS, words.FOODS, words.JOBS, words.THINGS, words.PLACES,
                  words.ADJECTIVES, words.VERBS):
        for word in group:
            counts[word] += 2500
            counts[" " + word] += 2500
    for word in ENGLISH:
        counts[word] += 60
        counts[" " + word] += 400
    level = skills.Level(made_up=0.3, questions=3, thinking=0.2)
    for _ in range(6000):
        conversation = mix.draw(rng, mix.FINAL, level)
        run = []
        for text, kind, special in encoding.parts(conversation):
            if not special:
                weight = 1 if kind == encoding.FIXED else 4
                for piece in pre.pieces(text):
                    counts[piece] += weight
    return counts


def build(path, seed=1):
    vocab, merges = bpe.train(corpus(seed), SIZE - len(bpe.ADDED))
    document = bpe.tokenizer_json(vocab, merges)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file, ensure_ascii=False, indent=1)
    return bpe.Tokenizer(document)
