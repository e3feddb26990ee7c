// LangChain's OpenAI client against a running Penstock, in both of its ways: node langchain.mjs http://127.0.0.1:8080
import assert from "node:assert/strict";
import { ToolMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { z } from "zod";

const base = process.argv[2] ?? "http://127.0.0.1:8080";
const question = "What is 17 + 25?";
let passed = 0;

for (const useResponsesApi of [false, true]) {
  const name = useResponsesApi ? "responses" : "chat";
  const test = async (what, run) => { await run(); ++passed; console.log(`ok ${name}: ${what}`); };
  const make = (change) => new ChatOpenAI({
    model: "nano", temperature: 0, maxTokens: 64, maxRetries: 0, apiKey: process.env.PENSTOCK_KEY ?? "none", useResponsesApi,
    configuration: { baseURL: `${base}/v1` }, ...change });
  const model = make({});
  const folded = async (runnable, input) => {
    let sum;
    for await (const piece of await runnable.stream(input)) sum = sum ? sum.concat(piece) : piece;
    return sum;
  };

  const why = ({ response_metadata: { finish_reason, incomplete_details, status } }) =>
    finish_reason ?? incomplete_details?.reason ?? status;

  let whole;
  await test("whole answer, its usage and why it ended", async () => {
    whole = await model.invoke(question);
    assert.match(whole.text, /42/);
    assert.equal(why(whole), useResponsesApi ? "completed" : "stop");
    const { input_tokens, output_tokens, total_tokens } = whole.usage_metadata;
    assert(input_tokens > 0 && output_tokens > 0);
    assert.equal(total_tokens, input_tokens + output_tokens);
    const cut = await make({ maxTokens: 16 }).invoke("Count from 1 to 20.");
    assert.equal(cut.usage_metadata.output_tokens, 16);
    assert.equal(why(cut), useResponsesApi ? "max_output_tokens" : "length");
  });

  await test("the stream folds to the whole answer", async () => {
    const sum = await folded(model, question);
    assert.equal(sum.text, whole.text);
    for (const kind of ["input_tokens", "output_tokens", "total_tokens"]) {
      assert.equal(sum.usage_metadata[kind], whole.usage_metadata[kind]);
    }
    assert.equal(why(sum), why(whole));
  });

  await test("a tool loop, whole and streamed", async () => {
    const find_price = tool(({ item }) => `The ${item} costs 12 dollars`, {
      name: "find_price", description: "Find the price of an item", schema: z.object({ item: z.string() }) });
    const armed = model.bindTools([find_price]);
    const start = [{ role: "user", content: "What does the lantern cost?" }];
    for (const call of [await armed.invoke(start), await folded(armed, start)]) {
      assert.deepEqual(call.tool_calls.map(({ name, args }) => [name, args]), [["find_price", { item: "lantern" }]]);
      const result = await find_price.invoke(call.tool_calls[0]);
      assert(ToolMessage.isInstance(result));
      const answer = await armed.invoke([...start, call, result]);
      assert.deepEqual(answer.tool_calls, []);
      assert.match(answer.text, /12/);
    }
  });

  await test("structured output validates", async () => {
    const schema = z.object({ colour: z.enum(["red", "green"]), sizes: z.array(z.number().int()).max(2) });
    const shaped = make({ maxTokens: 200 }).withStructuredOutput(schema);
    schema.parse(await shaped.invoke("Describe a lantern."));
  });

  await test("errors keep their status and code", async () => {
    for (const asked of [(m) => m.invoke(question), (m) => folded(m, question)]) {
      await assert.rejects(asked(make({ model: "none" })), (e) => e.status === 404 && e.code === "model_not_found");
      await assert.rejects(asked(make({ maxTokens: 100000 })), (e) => e.status === 400 && e.code === "context_length_exceeded");
    }
  });

  await test("leaving a stream early leaves the server well", async () => {
    for await (const _ of await make({ temperature: 1, maxTokens: 2000 }).stream(question)) break;
    assert.equal((await fetch(`${base}/healthz`)).status, 200);
  });
}

console.log(`${passed} passed, 0 failed`);
