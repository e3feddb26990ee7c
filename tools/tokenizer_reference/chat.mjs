// Writes what the models' own chat templates make of the prompt cases, for run_parity.sh.
//
//   node chat.mjs OUT NAME VOCABULARY   OUT/NAME.prompts.json: [{"input", "text"}...] of the cases in
//                                       tests/cases/prompt/NAME_prompts.txt that the template takes
//
// Run in the repository's root. An answer to be continued and a bad request are not the template's business; they are left out.
import { readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Template } from '@huggingface/jinja';
import { vocabularyFile } from './corpus.mjs';

const folder = dirname(fileURLToPath(import.meta.url));
const [out, name, vocabulary] = process.argv.slice(2);
const configFile = join(dirname(vocabularyFile(folder, vocabulary)), 'tokenizer_config.json');
const config = JSON.parse(readFileSync(configFile, 'utf8'));
const template = new Template(config.chat_template);

const cases = readFileSync(join('tests/cases/prompt', `${name}_prompts.txt`), 'utf8');
const prompts = [];
for (const block of cases.split('\n====\n')) {
  const lines = block.split('\n').filter((line) => line !== '' && !line.startsWith('#'));
  const [input, ...expected] = lines;
  const request = JSON.parse(input);
  if (request.continue || /^(invalid_argument|unsupported)/.test(expected[1] ?? '')) continue;
  const text = template.render({
    messages: request.messages,
    tools: request.tools ?? null,
    add_generation_prompt: true,
    bos_token: config.bos_token?.content ?? config.bos_token,
    ...(request.thinking === undefined ? {} : { enable_thinking: request.thinking }),
  });
  prompts.push({ input, text });
}
writeFileSync(join(out, `${name}.prompts.json`), JSON.stringify(prompts));
console.log(`${prompts.length} prompts of ${name} rendered by the template of ${vocabulary}`);
