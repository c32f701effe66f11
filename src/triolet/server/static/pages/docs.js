"use strict";

// Renders openapi.json: one block per operation, one table per object. No library, no network.

const element = (tag, text, className) => {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
};

const nameOf = (reference) => reference.split("/").pop();

/** A schema in a few words; names of objects are collected in `seen`, to be shown as tables. */
function describe(schema, seen) {
  if (!schema) return "";
  if (schema.$ref) {
    seen.add(nameOf(schema.$ref));
    return nameOf(schema.$ref);
  }
  if (schema.anyOf) return schema.anyOf.map((branch) => describe(branch, seen)).join(" | ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return `[${describe(schema.items, seen) || "any"}]`;
  const bounds = [];
  for (const [key, sign] of [["minimum", "≥"], ["exclusiveMinimum", ">"], ["maximum", "≤"]]) {
    if (schema[key] !== undefined) bounds.push(`${sign} ${schema[key]}`);
  }
  return [schema.type || "any", ...bounds].join(" ");
}

function table(name, schema, seen) {
  const block = element("div");
  block.append(element("h4", name));
  if (schema.description) block.append(element("p", schema.description));
  const rows = element("table");
  const head = element("tr");
  for (const title of ["field", "type", "default"]) head.append(element("th", title));
  rows.append(head);
  for (const [field, value] of Object.entries(schema.properties || {})) {
    const row = element("tr");
    const required = (schema.required || []).includes(field);
    row.append(element("td", field, required ? "required" : ""));
    row.append(element("td", describe(value, seen)));
    row.append(element("td", value.default === undefined ? "" : JSON.stringify(value.default)));
    rows.append(row);
  }
  block.append(rows);
  return block;
}

/** Tables of a schema and of everything it refers to, each once. */
function tables(title, schema, schemas) {
  const block = element("div");
  const seen = new Set();
  const shown = new Set();
  const text = describe(schema, seen);
  if (!text) return block;
  block.append(element("h3", `${title}: ${text}`));
  for (const name of seen) {  // grows while it is walked
    if (shown.has(name) || !schemas[name]) continue;
    shown.add(name);
    block.append(table(name, schemas[name], seen));
  }
  return block;
}

function operation(path, method, described, schemas) {
  const block = element("details");
  const summary = element("summary");
  summary.append(element("span", method.toUpperCase(), "method"), element("code", path));
  summary.append(document.createTextNode(` ${described.summary}`));
  if (described.security && !described.security.length) {
    summary.append(document.createTextNode(" (no key needed)"));
  }
  block.append(summary);
  block.addEventListener("toggle", () => {
    if (block.childElementCount > 1) return;
    const body = described.requestBody?.content["application/json"].schema;
    if (body) block.append(tables("Request", body, schemas));
    const answers = described.responses["200"].content;
    for (const [type, content] of Object.entries(answers)) {
      const schema = content["x-event-schema"] || content.schema;
      block.append(tables(type === "text/event-stream" ? "Event of a stream" : "Answer", schema, schemas));
    }
  });
  return block;
}

async function main() {
  const target = document.getElementById("endpoints");
  try {
    const document_ = await (await fetch("openapi.json")).json();
    target.replaceChildren();
    for (const [path, methods] of Object.entries(document_.paths)) {
      for (const [method, described] of Object.entries(methods)) {
        target.append(operation(path, method, described, document_.components.schemas));
      }
    }
  } catch (error) {
    target.textContent = `openapi.json could not be read: ${error}`;
  }
}

main();
