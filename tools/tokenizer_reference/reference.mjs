// Writes what the reference makes of a corpus, for run_parity.sh and the speed bench.
//
//   node reference.mjs corpus OUT SEED BYTES   OUT/corpus.bin: (length, bytes) for every chunk
//   node reference.mjs encode OUT VOCABULARY   OUT/VOCABULARY.ids: (count, ids) for every chunk
//   node reference.mjs decode OUT VOCABULARY   OUT/VOCABULARY.texts: (keep, count, ids, length, bytes)
//   node reference.mjs pipelines OUT           OUT/pipelines.bin: (file, count, (text, ids)...) for many
//                                              small tokenizer files: behaviours, flags, expressions
//   node reference.mjs scripts OUT BYTES       OUT/SCRIPT.txt for each of the eight scripts
//   node reference.mjs speed OUT VOCABULARY PASSES   prints "SCRIPT BYTES SECONDS TOKENS" for each
// All numbers are 32-bit little-endian words. Ill-formed UTF-8 becomes U+FFFD as the conversion from
// bytes to a JavaScript string does it.
import { readFileSync, writeFileSync, openSync, writeSync, closeSync, mkdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { createRequire } from 'node:module';
import { Corpus, Random, kScriptFiles, vocabularyFile } from './corpus.mjs';
import { smallFiles } from './small_files.mjs';

const folder = dirname(fileURLToPath(import.meta.url));
const [command, out, ...args] = process.argv.slice(2);
const word = (n) => { const b = Buffer.alloc(4); b.writeUInt32LE(n); return b; };
const words = (list) => Buffer.from(Uint32Array.from(list).buffer);

function load(name) {
  const { Tokenizer } = createRequire(import.meta.url)('@anush008/tokenizers');
  return Tokenizer.fromFile(vocabularyFile(folder, name));
}
const encode = async (tokenizer, text) =>
  (await tokenizer.encode(text, null, { addSpecialTokens: false })).getIds();

class Writer {
  constructor(path) { this.file = openSync(path, 'w'); this.parts = []; this.size = 0; }
  write(...buffers) {
    this.parts.push(...buffers);
    for (const buffer of buffers) this.size += buffer.length;
    if (this.size > 1 << 22) this.flush();
  }
  flush() { writeSync(this.file, Buffer.concat(this.parts)); this.parts = []; this.size = 0; }
  close() { this.flush(); closeSync(this.file); }
}

function* corpusChunks() {
  const bytes = readFileSync(join(out, 'corpus.bin'));
  for (let at = 0; at < bytes.length;) {
    const length = bytes.readUInt32LE(at);
    yield bytes.subarray(at + 4, at + 4 + length);
    at += 4 + length;
  }
}

const commands = {
  corpus(seed, size) {
    mkdirSync(out, { recursive: true });
    const writer = new Writer(join(out, 'corpus.bin'));
    for (const chunk of new Corpus(folder).chunks(Number(seed), Number(size))) {
      writer.write(word(chunk.length), chunk);
    }
    writer.close();
  },
  async encode(name) {
    const tokenizer = load(name);
    const writer = new Writer(join(out, `${name}.ids`));
    for (const chunk of corpusChunks()) {
      const ids = await encode(tokenizer, chunk.toString('utf8'));
      writer.write(word(ids.length), words(ids));
    }
    writer.close();
  },
  async decode(name) {
    const tokenizer = load(name);
    const size = tokenizer.getVocabSize(true);
    const random = new Random(7);
    const writer = new Writer(join(out, `${name}.texts`));
    for (let i = 0; i < 6000; ++i) {
      // Low ids hold the single bytes, so that cut characters are met often.
      const limit = random.pick([300, 3000, size]);
      const ids = Array.from({ length: 1 + random.below(40) },
        () => (random.chance(0.05) ? size - 1 - random.below(260) : random.below(limit)));
      const keep = random.below(2);
      const text = Buffer.from(await tokenizer.decode(ids, keep === 0));
      writer.write(word(keep), word(ids.length), words(ids), word(text.length), text);
    }
    writer.close();
  },
  async pipelines() {
    const { Tokenizer } = createRequire(import.meta.url)('@anush008/tokenizers');
    const corpus = new Corpus(folder);
    const random = new Random(99);
    const writer = new Writer(join(out, 'pipelines.bin'));
    for (const file of smallFiles(random)) {
      const text = Buffer.from(JSON.stringify(file));
      const tokenizer = Tokenizer.fromString(text.toString('utf8'));
      const spellings = file.added_tokens.map((token) => token.content);
      writer.write(word(text.length), text, word(24));
      for (let i = 0; i < 24; ++i) {
        let sample = corpus.nasty(random, 60);
        for (let k = random.below(4); k > 0; --k) {
          sample += (spellings.length ? random.pick(spellings) : '') + random.pick(['', ' ', '\n ', 'a', '.', 'é']);
          sample = random.pick(['', '  ', 'b']) + sample;
        }
        const bytes = Buffer.from(sample);
        const ids = await encode(tokenizer, bytes.toString('utf8'));
        writer.write(word(bytes.length), bytes, word(ids.length), words(ids));
      }
    }
    writer.close();
  },
  scripts(size) {
    mkdirSync(out, { recursive: true });
    const corpus = new Corpus(folder);
    for (const name of kScriptFiles) {
      writeFileSync(join(out, `${name}.txt`), corpus.scriptText(name, Number(size)));
    }
  },
  // In pieces of 16 KiB characters, about what a request carries. Processor time of the process, the
  // shortest of several passes over the file, as in bench/tokenizer_bench.cc.
  async speed(name, passes) {
    const tokenizer = load(name);
    for (const script of kScriptFiles) {
      const text = readFileSync(join(out, `${script}.txt`), 'utf8');
      const parts = [];
      for (let at = 0; at < text.length; at += 16384) {
        parts.push(Buffer.from(text.slice(at, at + 16384)).toString('utf8'));
      }
      let shortest = Infinity;
      let tokens = 0;
      for (let pass = 0; pass < Number(passes); ++pass) {
        tokens = 0;
        const begin = process.cpuUsage();
        for (const part of parts) {
          const encoding = await tokenizer.encode(part, null, { addSpecialTokens: false });
          tokens += encoding.getLength();
        }
        const used = process.cpuUsage(begin);
        shortest = Math.min(shortest, (used.user + used.system) / 1e6);
      }
      console.log(script, Buffer.byteLength(text), shortest, tokens);
    }
  },
};
if (!Object.hasOwn(commands, command ?? '')) {
  console.error('usage: node reference.mjs corpus|encode|decode|scripts|speed OUT ...');
  process.exit(64);
}
await commands[command](...args);
