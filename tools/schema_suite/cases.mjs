// Prints the suite's cases as JSON: cases.mjs FOLDER. Instances are printed with their members in declared
// order, since that is the order our grammars take: names by where they stand in any `properties` of the
// schema, others behind them.
import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';

const folder = join(process.argv[2], 'node_modules', 'json-schema-test-suite', 'tests', 'draft4');
const files = ['', 'optional'].flatMap((sub) =>
  readdirSync(join(folder, sub))
    .filter((name) => name.endsWith('.json'))
    .map((name) => join(sub, name)));

function declared(schema, names) {
  if (schema === null || typeof schema !== 'object') return names;
  for (const name of Object.keys(schema.properties ?? {})) if (!names.includes(name)) names.push(name);
  for (const name of Array.isArray(schema.required) ? schema.required : [])
    if (!names.includes(name)) names.push(name);
  for (const part of Object.values(schema)) declared(part, names);
  return names;
}

function ordered(value, names) {
  if (Array.isArray(value)) return value.map((item) => ordered(item, names));
  if (value === null || typeof value !== 'object') return value;
  const place = (name) => (names.includes(name) ? names.indexOf(name) : names.length);
  return Object.fromEntries(
    Object.entries(value)
      .sort(([a], [b]) => place(a) - place(b))
      .map(([name, member]) => [name, ordered(member, names)]));
}

const cases = files.flatMap((file) =>
  JSON.parse(readFileSync(join(folder, file), 'utf8')).map(({ description, schema, tests }) => ({
    file,
    description,
    schema: JSON.stringify(schema),
    tests: tests.map(({ description: what, data, valid }) => ({
      what,
      text: JSON.stringify(ordered(data, declared(schema, []))),
      valid,
    })),
  })));
console.log(JSON.stringify(cases));
