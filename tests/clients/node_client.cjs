// Run by test_node.py: what openai-node makes of our answers, as one JSON line.
const { OpenAI } = require("openai");
const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "hi" }];
const schema = {
  type: "object", properties: { team: { enum: ["red", "blue"] } },
  required: ["team"], additionalProperties: false,
};

async function main() {
  const seen = {};
  const plain = await client.chat.completions.create({ model, messages, max_tokens: 8 });
  seen.content = plain.choices[0].message.content;
  seen.requestId = plain._request_id;

  seen.streamed = "";
  const stream = await client.chat.completions.create({
    model, messages, max_tokens: 8, stream: true, stream_options: { include_usage: true },
  });
  for await (const chunk of stream) {
    seen.streamed += chunk.choices[0]?.delta?.content ?? "";
    seen.usage = chunk.usage ?? seen.usage;
  }

  const typed = await client.chat.completions.create({
    model, messages,
    response_format: { type: "json_schema", json_schema: { name: "x", schema, strict: true } },
  });
  seen.team = JSON.parse(typed.choices[0].message.content).team;

  const runner = client.chat.completions.stream({
    model, messages, tool_choice: { type: "function", function: { name: "pick" } },
    tools: [{ type: "function", function: { name: "pick", parameters: schema } }],
  });
  const called = (await runner.finalChatCompletion()).choices[0].message.tool_calls[0];
  seen.called = [called.function.name, JSON.parse(called.function.arguments).team];

  const response = await client.responses.create({ model, input: "hi", max_output_tokens: 8 });
  seen.output = response.output_text;
  seen.models = (await client.models.list()).data.map(card => card.id);

  try {
    await client.chat.completions.create({ model, messages, temperature: 3 });
  } catch (error) {
    seen.error = [error.status, error.code, error.param, error.message];
  }
  console.log(JSON.stringify(seen));
}
main().catch(error => { console.error(error); process.exit(1); });
