"""Byte-level BPE: a small trainer and an encoder for the Hugging Face `tokenizer.json` it writes.

Pre-tokenization is Sequence[Split digits, Split words, ByteLevel]; a merge never crosses a piece.
Invariants: all 256 byte symbols are ids 0..255 in byte order of the symbol alphabet; merges follow in
rank order; added tokens come last. Encoding is by spans: a text never yields an added token, only
`Tokenizer.special` does. Ids equal those of the `tokenizers` library on texts without added tokens.
"""
import json
import re
import sys
import unicodedata
from collections import Counter, defaultdict

DIGIT_PATTERN = r"\p{N}"
WORD_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+")

# (text, is `special`). Tags which a parser has to see in decoded text are not special.
ADDED = [
    ("<｜begin▁of▁sentence｜>", True),
    ("<｜end▁of▁sentence｜>", True),
    ("<｜▁pad▁｜>", True),
    ("<｜User｜>", True),
    ("<｜Assistant｜>", True),
    ("<｜System｜>", True),
    ("<think>", False),
    ("</think>", False),
    ("｜DSML｜", False),
    ("<｜latest_reminder｜>", True),
]


def _class_of(prefix):
    """Ranges of the code points whose general category starts with `prefix`, as a regex class body."""
    ranges, start = [], None
    for point in range(sys.maxunicode + 2):
        inside = point <= sys.maxunicode and unicodedata.category(chr(point)).startswith(prefix)
        if inside and start is None:
            start = point
        elif not inside and start is not None:
            ranges.append((start, point - 1))
            start = None
    return "".join(f"\\U{a:08x}-\\U{b:08x}" for a, b in ranges)


def _compile(pattern):
    """Translates \\p{L}, \\p{N} and Unicode \\s for Python's `re`, which lacks them."""
    letter, number = _class_of("L"), _class_of("N")
    space = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
    out = pattern.replace(r"[^\s\p{L}\p{N}]", f"[^{space}{letter}{number}]")
    out = out.replace(r"\S", f"[^{space}]").replace(r"\s", f"[{space}]")
    return re.compile(out.replace(r"\p{L}", f"[{letter}]").replace(r"\p{N}", f"[{number}]"))


def byte_symbols():
    """The GPT-2 alphabet: a printable character for each byte value."""
    printable = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, extra = {}, 0
    for byte in range(256):
        if byte in printable:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(256 + extra)
            extra += 1
    return table


SYMBOL = byte_symbols()


class PreTokenizer:
    def __init__(self):
        self._digit = _compile(DIGIT_PATTERN)
        self._word = _compile(WORD_PATTERN)

    def pieces(self, text):
        end = 0
        for match in self._digit.finditer(text):
            if match.start() > end:
                yield from self._word.findall(text[end:match.start()])
            yield match.group()
            end = match.end()
        if end < len(text):
            yield from self._word.findall(text[end:])


def train(counts, size):
    """Learns merges until the vocabulary holds `size` symbols.

    counts: {piece: weight}. Ties are broken by the pair itself, so the result is a function of counts.
    """
    words = [([SYMBOL[b] for b in piece.encode()], weight) for piece, weight in sorted(counts.items())]
    pair_weight, where = Counter(), defaultdict(set)
    for index, (symbols, weight) in enumerate(words):
        for pair in zip(symbols, symbols[1:]):
            pair_weight[pair] += weight
            where[pair].add(index)
    vocab, merges = sorted(SYMBOL.values()), []
    seen = set(vocab)
    while len(vocab) < size and pair_weight:
        pair = max(pair_weight, key=lambda p: (pair_weight[p], p))
        if pair_weight[pair] <= 0:
            break
        merges.append(pair)
        joined = pair[0] + pair[1]
        if joined not in seen:
            seen.add(joined)
            vocab.append(joined)
        for index in list(where[pair]):
            symbols, weight = words[index]
            for old in zip(symbols, symbols[1:]):
                pair_weight[old] -= weight
                where[old].discard(index)
            merged, i = [], 0
            while i < len(symbols):
                if i + 1 < len(symbols) and (symbols[i], symbols[i + 1]) == pair:
                    merged.append(joined)
                    i += 2
                else:
                    merged.append(symbols[i])
                    i += 1
            words[index] = (merged, weight)
            for new in zip(merged, merged[1:]):
                pair_weight[new] += weight
                where[new].add(index)
        pair_weight.pop(pair, None)
        where.pop(pair, None)
    return vocab, merges


def tokenizer_json(vocab, merges):
    """The document in the form that the `tokenizers` library reads."""
    ids = {token: i for i, token in enumerate(vocab)}
    added = [{"id": len(ids) + i, "content": text, "single_word": False, "lstrip": False,
              "rstrip": False, "normalized": False, "special": special}
             for i, (text, special) in enumerate(ADDED)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": False}
    split = lambda pattern: {"type": "Split", "pattern": {"Regex": pattern},
                             "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            split(DIGIT_PATTERN), split(WORD_PATTERN), byte_level]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                    "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": ids,
                  "merges": [f"{a} {b}" for a, b in merges]},
    }


class Tokenizer:
    """Encodes spans and decodes ids of a tokenizer.json written by `tokenizer_json`."""

    def __init__(self, document):
        model = document["model"]
        self.vocab = model["vocab"]
        self.rank = {tuple(m.split(" ")): i for i, m in enumerate(model["merges"])}
        self.special = {t["content"]: t["id"] for t in document["added_tokens"]}
        self.size = len(self.vocab) + len(self.special)
        self._pre = PreTokenizer()
        self._cache = {}
        self._back = {symbol: byte for byte, symbol in SYMBOL.items()}
        self._token = {i: t for t, i in self.vocab.items()}
        self._added = {i: t for t, i in self.special.items()}

    @classmethod
    def load(cls, path):
        with open(path, encoding="utf-8") as file:
            return cls(json.load(file))

    def encode(self, text):
        out = []
        for piece in self._pre.pieces(text):
            ids = self._cache.get(piece)
            if ids is None:
                ids = self._merge(piece)
                if len(self._cache) < 200_000:
                    self._cache[piece] = ids
            out.extend(ids)
        return out

    def _merge(self, piece):
        symbols = [SYMBOL[b] for b in piece.encode()]
        while len(symbols) > 1:
            best = min(zip(symbols, symbols[1:]), key=lambda p: self.rank.get(p, 1 << 30))
            if best not in self.rank:
                break
            merged, i = [], 0
            while i < len(symbols):
                if i + 1 < len(symbols) and (symbols[i], symbols[i + 1]) == best:
                    merged.append(best[0] + best[1])
                    i += 2
                else:
                    merged.append(symbols[i])
                    i += 1
            symbols = merged
        return [self.vocab[s] for s in symbols]

    def decode(self, ids):
        out = bytearray()
        for token in ids:
            if token in self._added:
                out += self._added[token].encode()
            elif token in self._token:
                out += bytes(self._back[c] for c in self._token[token])
        return out.decode("utf-8", "replace")
