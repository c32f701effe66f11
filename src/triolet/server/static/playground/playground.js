"use strict";
// Chat over the server's own API. The stop button closes the connection: the server ends the
// request at that moment, which the timeline makes visible.

const $ = (id) => document.getElementById(id);
const messages = [];
let controller = null;

function headers() {
  const out = { "content-type": "application/json" };
  if ($("key").value) out.authorization = `Bearer ${$("key").value}`;
  return out;
}

function turn(role, text) {
  const element = document.createElement("div");
  element.className = `turn ${role}`;
  element.textContent = text;
  $("chat").append(element);
  element.scrollIntoView({ block: "end" });
  return element;
}

class Timeline {
  constructor() {
    this.started = performance.now();
    this.last = this.started;
    this.count = 0;
    this.first = null;
    $("timeline").replaceChildren();
  }
  mark(text) {
    const now = performance.now();
    const gap = now - this.last;
    const bar = document.createElement("i");
    if (this.first === null) { this.first = gap; bar.className = "first"; }
    bar.style.height = `${Math.min(100, Math.log2(1 + gap) * 8)}%`;
    bar.title = `${JSON.stringify(text)} after ${gap.toFixed(1)} ms`;
    $("timeline").append(bar);
    this.last = now;
    this.count += 1;
    this.show();
  }
  show(usage) {
    const seconds = (this.last - this.started) / 1000;
    const tokens = usage ? usage.completion_tokens : this.count;
    const rate = seconds > 0 ? (tokens / seconds).toFixed(1) : "0";
    const first = this.first === null ? "-" : this.first.toFixed(0);
    $("summary").textContent =
      `first token after ${first} ms, ${tokens} ${usage ? "tokens" : "deltas"}, ${rate}/s`;
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer += value;
    let end;
    while ((end = buffer.indexOf("\n\n")) >= 0) {
      const event = buffer.slice(0, end);
      buffer = buffer.slice(end + 2);
      if (event.startsWith("data: ")) yield event.slice(6);
    }
  }
}

async function complain(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `HTTP ${response.status}`;
  }
}

async function ask() {
  const timeline = new Timeline();
  const answer = turn("assistant", "");
  const request = {
    model: $("model").value || undefined,
    messages,
    stream: true,
    stream_options: { include_usage: true },
    temperature: Number($("temperature").value),
    max_tokens: Number($("max_tokens").value),
  };
  if ($("seed").value) request.seed = Number($("seed").value);
  controller = new AbortController();
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST", headers: headers(), body: JSON.stringify(request), signal: controller.signal,
    });
    if (!response.ok) throw new Error(await complain(response));
    for await (const data of events(response.body)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.usage) timeline.show(chunk.usage);
      const text = chunk.choices[0]?.delta.content;
      if (!text) continue;
      timeline.mark(text);
      answer.textContent += text;
    }
  } catch (error) {
    if (error.name === "AbortError") answer.textContent += " [stopped]";
    else turn("error", error.message);
  }
  controller = null;
  messages.push({ role: "assistant", content: answer.textContent });
}

function busy(is) {
  $("send").disabled = is;
  $("stop").disabled = !is;
}

$("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = $("prompt").value.trim();
  if (!text || controller) return;
  $("prompt").value = "";
  messages.push({ role: "user", content: text });
  turn("user", text);
  busy(true);
  await ask();
  busy(false);
});
$("stop").addEventListener("click", () => controller?.abort());
$("clear").addEventListener("click", () => { messages.length = 0; $("chat").replaceChildren(); });
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); $("form").requestSubmit(); }
});

async function listModels() {
  const response = await fetch("v1/models", { headers: headers() });
  if (!response.ok) return;
  const names = (await response.json()).data.map((model) => new Option(model.id, model.id));
  $("model").replaceChildren(...names);
}
$("key").addEventListener("change", listModels);
listModels();
