// The official OpenAI client against a running Penstock: node openai_sdk.mjs http://127.0.0.1:8080
import assert from "node:assert/strict";
import OpenAI from "openai";

const base = process.argv[2] ?? "http://127.0.0.1:8080";
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: process.env.PENSTOCK_KEY ?? "none", maxRetries: 0 });
const question = [{ role: "user", content: "What is 17 + 25?" }];
let passed = 0;
const test = async (name, run) => { await run(); ++passed; console.log(`ok ${name}`); };

await test("models", async () => {
  const models = [];
  for await (const model of client.models.list()) models.push(model.id);
  assert(models.includes("nano"));
  assert.equal((await client.models.retrieve("nano")).object, "model");
});

let whole;
await test("whole answer", async () => {
  whole = await client.chat.completions.create({ model: "nano", messages: question, temperature: 0 });
  assert.equal(whole.choices[0].message.role, "assistant");
  assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);
});

await test("stream folds to the whole answer", async () => {
  const stream = client.chat.completions.stream({
    model: "nano", messages: question, temperature: 0, stream_options: { include_usage: true } });
  const folded = await stream.finalChatCompletion();
  assert.equal(folded.choices[0].message.content, whole.choices[0].message.content);
  assert.equal(folded.choices[0].finish_reason, whole.choices[0].finish_reason);
  assert.deepEqual(folded.usage, whole.usage);
});

await test("seeded sampling repeats, n choices differ in index only by seed and choice", async () => {
  const ask = () => client.chat.completions.create({ model: "nano", messages: question, temperature: 1.2, seed: 5, n: 3,
                                                     max_tokens: 20 });
  const [a, b] = [await ask(), await ask()];
  assert.deepEqual(a.choices, b.choices);
  assert.deepEqual(a.choices.map((c) => c.index), [0, 1, 2]);
});

await test("logprobs", async () => {
  const answer = await client.chat.completions.create({ model: "nano", messages: question, temperature: 0, max_tokens: 4,
                                                        logprobs: true, top_logprobs: 3 });
  const entries = answer.choices[0].logprobs.content;
  assert(entries.length > 0);
  for (const entry of entries) {
    assert.equal(entry.top_logprobs.length, 3);
    assert(entry.logprob <= 0 && entry.logprob === entry.top_logprobs[0].logprob);
  }
});

await test("errors are the client's own classes", async () => {
  await assert.rejects(client.chat.completions.create({ model: "none", messages: question }),
                       (e) => e instanceof OpenAI.NotFoundError && e.code === "model_not_found");
  await assert.rejects(client.chat.completions.create({ model: "nano", messages: [] }),
                       (e) => e instanceof OpenAI.BadRequestError && e.param === "messages");
  await assert.rejects(client.chat.completions.create({ model: "nano", messages: question, max_tokens: 100000 }),
                       (e) => e instanceof OpenAI.BadRequestError && e.code === "context_length_exceeded");
});

await test("leaving a stream early leaves the server well", async () => {
  const stream = await client.chat.completions.create({ model: "nano", messages: question, stream: true, temperature: 1,
                                                        max_tokens: 2000, logit_bias: {} });
  for await (const _ of stream) break;
  assert.equal((await fetch(`${base}/healthz`)).status, 200);
});

console.log(`${passed} passed, 0 failed`);
