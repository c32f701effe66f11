"use strict";
// The actor tree once a second, for as long as the page is visible.
const $ = (id) => document.getElementById(id);

async function refresh() {
  const key = $("key").value;
  try {
    const response = await fetch("debug/tree", key ? { headers: { authorization: `Bearer ${key}` } } : {});
    const tree = await response.json();
    $("state").textContent = response.ok ? `health: ${tree.health}` : tree.error.message;
    $("tree").textContent = response.ok ? JSON.stringify(tree, null, 2) : "";
  } catch (error) {
    $("state").textContent = `no answer: ${error.message}`;
  }
}
setInterval(() => { if (!document.hidden) refresh(); }, 1000);
refresh();
