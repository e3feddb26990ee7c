// The AI SDK with its three providers against a running Penstock: node ai_sdk.mjs http://127.0.0.1:8080
import assert from "node:assert/strict";
import { APICallError, Output, generateText, stepCountIs, streamText, tool } from "ai";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { z } from "zod";

const base = process.argv[2] ?? "http://127.0.0.1:8080";
const at = {
  baseURL: `${base}/v1`, apiKey: process.env.PENSTOCK_KEY ?? "none",
  // The providers let no temperature through beside thinking, but what is checked here must not be left to chance.
  fetch: (url, init) => fetch(url, { ...init, body: JSON.stringify({ temperature: 0, ...JSON.parse(init.body) }) }) };
const compatible = createOpenAICompatible({ ...at, name: "penstock", includeUsage: true, supportsStructuredOutputs: true });
const openai = createOpenAI(at);
const thinks = { reasoningEffort: "high", forceReasoning: true };
// Anthropic's default way to structured output is a forced tool call, which is refused so far.
const format = { structuredOutputMode: "outputFormat" };
// `thinking` asks for thoughts in the provider's way; `shows` says that it hands on those which come.
const providers = [
  { name: "openai-compatible", model: compatible, thinking: { penstock: { reasoningEffort: "high" } }, shows: true },
  { name: "openai chat", model: openai.chat, thinking: { openai: thinks } },
  { name: "openai responses", model: openai.responses, thinking: { openai: thinks } },
  { name: "openai responses, not stored", model: openai.responses, options: { openai: { store: false } },
    thinking: { openai: { ...thinks, store: false } } },
  { name: "anthropic", model: createAnthropic(at), options: { anthropic: format },
    thinking: { anthropic: { ...format, thinking: { type: "enabled", budgetTokens: 1024 } } }, shows: true },
];
const find_price = tool({ description: "Find the price of an item", inputSchema: z.object({ item: z.string() }),
                          execute: ({ item }) => `The ${item} costs 12 dollars` });
let passed = 0;

for (const { name, model, options, thinking, shows } of providers) {
  const test = async (what, run) => { await run(); ++passed; console.log(`ok ${name}: ${what}`); };
  const ask = { model: model("nano"), maxRetries: 0, temperature: 0, maxOutputTokens: 64, prompt: "What is 17 + 25?",
                providerOptions: options };
  const loop = { ...ask, prompt: "What does the lantern cost?", tools: { find_price }, stopWhen: stepCountIs(3) };
  // Both ways through a loop: the model asks for the tool, the tool runs, the model answers.
  const both_ways = async (asked) => {
    const stream = streamText(asked);
    await stream.consumeStream();
    const ways = [(await generateText(asked)).steps, await stream.steps];
    for (const steps of ways) {
      assert.deepEqual(steps.map((step) => step.finishReason), ["tool-calls", "stop"]);
      assert.deepEqual(steps[0].toolCalls.map((call) => [call.toolName, call.input]), [["find_price", { item: "lantern" }]]);
      assert.match(steps[1].text, /12/);
      assert.deepEqual(steps.flatMap((step) => step.warnings), []);
    }
    return ways;
  };

  let whole;
  await test("whole answer, its usage and why it ended", async () => {
    whole = await generateText(ask);
    assert.match(whole.text, /42/);
    assert.equal(whole.finishReason, "stop");
    assert(whole.usage.inputTokens > 0 && whole.usage.outputTokens > 0);
    assert.equal(whole.usage.totalTokens, whole.usage.inputTokens + whole.usage.outputTokens);
    const cut = await generateText({ ...ask, maxOutputTokens: 16, prompt: "Count from 1 to 20." });
    assert.deepEqual([cut.finishReason, cut.usage.outputTokens], ["length", 16]);
  });

  await test("the stream folds to the whole answer", async () => {
    const stream = streamText(ask);
    let text = "";
    for await (const piece of stream.textStream) text += piece;
    assert.equal(text, whole.text);
    assert.equal(await stream.finishReason, whole.finishReason);
    const usage = await stream.usage;
    for (const kind of ["inputTokens", "outputTokens", "totalTokens"]) assert.equal(usage[kind], whole.usage[kind]);
  });

  await test("a tool loop, whole and streamed", () => both_ways(loop));

  await test("a tool loop with thoughts, which are counted, and shown where the provider can", async () => {
    const asked = { ...loop, temperature: undefined, maxOutputTokens: 1000, providerOptions: thinking };
    for (const [call] of await both_ways(asked)) {
      assert(call.usage.outputTokenDetails.reasoningTokens > 0);
      if (shows) assert(call.reasoningText.length > 0);
    }
  });

  await test("structured output validates, whole and streamed", async () => {
    const schema = z.object({ colour: z.enum(["red", "green"]),
                              parts: z.object({ lit: z.boolean(), of: z.literal("brass").nullable() }) });
    const shaped = { ...ask, maxOutputTokens: 200, prompt: "Describe a lantern.", output: Output.object({ schema }) };
    const { output } = await generateText(shaped);
    schema.parse(output);
    const stream = streamText(shaped);
    await stream.consumeStream();
    assert.deepEqual(await stream.output, output);
  });

  await test("errors are API errors with their status, streamed too", async () => {
    const long = "lantern ".repeat(6000);
    for (const [change, status, what] of [[{ model: model("none") }, 404, /none/], [{ prompt: long }, 400, /context|too long/]]) {
      const fits = (e) => APICallError.isInstance(e) && e.statusCode === status && !e.isRetryable && what.test(e.message);
      await assert.rejects(generateText({ ...ask, ...change }), fits);
      const seen = [];
      await streamText({ ...ask, ...change, onError: ({ error }) => seen.push(error) }).consumeStream();
      assert(seen.length === 1 && fits(seen[0]));
    }
  });

  await test("leaving a stream early leaves the server well", async () => {
    const leave = new AbortController();
    const stream = streamText({ ...ask, temperature: 1, maxOutputTokens: 2000, abortSignal: leave.signal });
    for await (const _ of stream.textStream) leave.abort();
    assert.equal((await fetch(`${base}/healthz`)).status, 200);
  });
}

console.log(`${passed} passed, 0 failed`);
