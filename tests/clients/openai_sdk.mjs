// The official OpenAI client against a running Penstock: node openai_sdk.mjs http://127.0.0.1:8080
import assert from "node:assert/strict";
import OpenAI from "openai";
import { ResponsesWS } from "openai/resources/responses/ws";

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

await test("responses: whole, streamed, stored, chained", async () => {
  const ask = { model: "nano", input: "What is 17 + 25?", temperature: 0, reasoning: { effort: "none" } };
  const response = await client.responses.create(ask);
  assert.equal(response.status, "completed");
  assert.equal(response.output_text, whole.choices[0].message.content);
  const streamed = await client.responses.stream(ask).finalResponse();
  assert.equal(streamed.output_text, response.output_text);
  assert.deepEqual(streamed.usage.output_tokens, response.usage.output_tokens);
  assert.deepEqual((await client.responses.retrieve(response.id)).output, response.output);
  const next = await client.responses.create({ ...ask, input: "And 2 + 2?", previous_response_id: response.id });
  assert(next.usage.input_tokens > response.usage.input_tokens);
  const items = [];
  for await (const item of client.responses.inputItems.list(response.id)) items.push(item);
  assert.equal(items.length, 1);
  await client.responses.delete(response.id);
  await assert.rejects(client.responses.retrieve(response.id), (e) => e instanceof OpenAI.NotFoundError);
});

await test("responses: a tool round trip", async () => {
  const tools = [{ type: "function", name: "find_price", description: "Find the price of an item", strict: false,
                   parameters: { type: "object", properties: { item: { type: "string" } }, required: ["item"] } }];
  const input = [{ role: "user", content: "What does the lantern cost?" }];
  const ask = { model: "nano", tools, temperature: 0, store: false, reasoning: { effort: "none" } };
  const first = await client.responses.create({ ...ask, input });
  const call = first.output.find((item) => item.type === "function_call");
  assert.equal(call.name, "find_price");
  JSON.parse(call.arguments);
  const second = await client.responses.create({
    ...ask, input: [...input, ...first.output, { type: "function_call_output", call_id: call.call_id, output: "12 euros" }] });
  assert.match(second.output_text, /12/);
});

await test("completions: whole, streamed, with logprobs", async () => {
  const ask = { model: "nano", prompt: "The quick brown fox", temperature: 0, max_tokens: 12 };
  const completion = await client.completions.create({ ...ask, logprobs: 2 });
  assert.equal(completion.object, "text_completion");
  const [choice] = completion.choices;
  assert.equal(choice.logprobs.tokens.length, completion.usage.completion_tokens);
  let text = "";
  for await (const chunk of await client.completions.create({ ...ask, stream: true })) text += chunk.choices[0].text;
  assert.equal(text, choice.text);
});

await test("responses: over a WebSocket", async () => {
  const socket = new ResponsesWS(client);
  let done, failed;
  socket.on("response.completed", (event) => done(event.response));
  socket.on("error", (error) => failed(error));
  const ask = (fields) => new Promise((resolve, reject) => {
    [done, failed] = [resolve, reject];
    socket.send({ type: "response.create", model: "nano", temperature: 0, reasoning: { effort: "none" }, store: false,
                  ...fields });
  });
  const first = await ask({ input: "What is 17 + 25?" });
  assert.equal(first.output.at(-1).content[0].text, whole.choices[0].message.content);
  const second = await ask({ input: "And 2 + 2?", previous_response_id: first.id });
  assert(second.usage.input_tokens > first.usage.input_tokens);
  await assert.rejects(ask({ input: "x", previous_response_id: "resp_none" }),
                       (e) => JSON.stringify(e).includes("previous_response_not_found"));
  socket.close();
  await assert.rejects(client.responses.retrieve(second.id), (e) => e instanceof OpenAI.NotFoundError);
});

await test("leaving a stream early leaves the server well", async () => {
  const stream = await client.chat.completions.create({ model: "nano", messages: question, stream: true, temperature: 1,
                                                        max_tokens: 2000, logit_bias: {} });
  for await (const _ of stream) break;
  assert.equal((await fetch(`${base}/healthz`)).status, 200);
});

console.log(`${passed} passed, 0 failed`);
