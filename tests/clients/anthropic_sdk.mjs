// The official Anthropic client against a running Penstock: node anthropic_sdk.mjs http://127.0.0.1:8080
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const base = process.argv[2] ?? "http://127.0.0.1:8080";
const client = new Anthropic({ baseURL: base, apiKey: process.env.PENSTOCK_KEY ?? "none", maxRetries: 0 });
const question = [{ role: "user", content: "What is 17 + 25?" }];
const ask = { model: "nano", max_tokens: 64, temperature: 0, messages: question };
const tools = [{ name: "find_price", description: "Find the price of an item",
                 input_schema: { type: "object", properties: { item: { type: "string" } }, required: ["item"] } }];
const textOf = (message) => message.content.filter((b) => b.type === "text").map((b) => b.text).join("");
const inputOf = ({ usage }) => usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens;
let passed = 0;
const test = async (name, run) => { await run(); ++passed; console.log(`ok ${name}`); };

await test("models", async () => {
  const models = [];
  for await (const model of client.models.list()) models.push(model);
  assert(models.some((m) => m.id === "nano" && m.type === "model" && !Number.isNaN(Date.parse(m.created_at))));
  assert.equal((await client.models.retrieve("nano")).display_name, "nano");
});

let whole;
await test("whole message", async () => {
  const { data, request_id } = await client.messages.create(ask).withResponse();
  whole = data;
  assert.equal(whole.role, "assistant");
  assert.equal(whole.stop_reason, "end_turn");
  assert.match(textOf(whole), /42/);
  assert.match(request_id, /^req-/);
});

await test("the stream helper folds to the whole message", async () => {
  const stream = client.messages.stream(ask);
  let text = "";
  stream.on("text", (piece) => { text += piece; });
  const folded = await stream.finalMessage();
  assert.equal(text, textOf(whole));
  assert.deepEqual(folded.content, whole.content);
  assert.equal(folded.stop_reason, whole.stop_reason);
  assert.equal(folded.usage.output_tokens, whole.usage.output_tokens);
  assert.equal(inputOf(folded), inputOf(whole));
});

await test("count_tokens is exactly what usage says", async () => {
  for (const body of [{ model: "nano", messages: question },
                      { model: "nano", messages: question, tools, system: [{ type: "text", text: "Be brief." }] }]) {
    const { input_tokens } = await client.messages.countTokens(body);
    assert.equal(input_tokens, inputOf(await client.messages.create({ ...body, max_tokens: 1 })));
  }
});

await test("a tool loop: call, result, answer; streamed too", async () => {
  const start = [{ role: "user", content: "What does the lantern cost?" }];
  const call = await client.messages.create({ ...ask, messages: start, tools });
  assert.equal(call.stop_reason, "tool_use");
  const use = call.content.at(-1);
  assert.equal(use.name, "find_price");
  assert.deepEqual(use.input, { item: "lantern" });
  const streamed = await client.messages.stream({ ...ask, messages: start, tools }).finalMessage();
  assert.equal(streamed.stop_reason, "tool_use");
  assert.deepEqual(streamed.content.at(-1).input, use.input);
  const answer = await client.messages.create({
    ...ask, tools,
    messages: [...start, { role: "assistant", content: call.content },
               { role: "user", content: [{ type: "tool_result", tool_use_id: use.id, content: "12 dollars",
                                           cache_control: { type: "ephemeral" } }] }] });
  assert.equal(answer.stop_reason, "end_turn");
  assert.match(textOf(answer), /12/);
});

await test("thinking comes in a block of its own, signed, and may be sent back", async () => {
  const asked = { ...ask, max_tokens: 2000, thinking: { type: "enabled", budget_tokens: 1024 } };
  const message = await client.messages.stream(asked).finalMessage();
  assert.equal(message.content[0].type, "thinking");
  assert(message.content[0].thinking.length > 0 && message.content[0].signature.length > 0);
  assert.equal(message.content.at(-1).type, "text");
  assert(message.usage.output_tokens_details.thinking_tokens > 0);
  const next = await client.messages.create({
    ...asked, messages: [...question, { role: "assistant", content: message.content },
                         { role: "user", content: "What is 1 + 2?" }] });
  assert.equal(next.role, "assistant");
});

await test("stop sequences, and an answer that is begun", async () => {
  const stopped = await client.messages.create({ ...ask, stop_sequences: ["2"] });
  assert.deepEqual([stopped.stop_reason, stopped.stop_sequence], ["stop_sequence", "2"]);
  assert.equal(textOf(stopped), textOf(whole).split("2")[0]);
  const begun = await client.messages.create({ ...ask, messages: [...question, { role: "assistant", content: "4" }] });
  assert.equal(begun.role, "assistant");
  const cut = await client.messages.create({ ...ask, max_tokens: 1 });
  assert.equal(cut.stop_reason, "max_tokens");
});

await test("the beta client: ?beta=true and beta headers", async () => {
  const message = await client.beta.messages.create({ ...ask, betas: ["context-management-2025-06-27", "no-such-beta"],
                                                      context_management: { edits: [] } });
  assert.equal(textOf(message), textOf(whole));
});

await test("errors are the client's own classes", async () => {
  const fails = (change, kind, what) => assert.rejects(
    client.messages.create({ ...ask, ...change }),
    (e) => e instanceof kind && e.type === what && e.requestID.startsWith("req-"));
  await fails({ model: "none" }, Anthropic.NotFoundError, "not_found_error");
  await fails({ messages: [] }, Anthropic.BadRequestError, "invalid_request_error");
  await fails({ messages: [{ role: "user", content: [{ type: "image", source: { type: "url", url: "https://a.b/c.png" } }] }] },
              Anthropic.BadRequestError, "invalid_request_error");
  await fails({ temperature: 2 }, Anthropic.BadRequestError, "invalid_request_error");
});

await test("leaving a stream early leaves the server well", async () => {
  const stream = client.messages.stream({ ...ask, temperature: 1, max_tokens: 2000 });
  for await (const _ of stream) break;
  assert.equal((await fetch(`${base}/healthz`)).status, 200);
});

console.log(`${passed} passed, 0 failed`);
