// The demo's page: asks for the state, draws it, and plays scenarios. Text goes in as text only.
"use strict";

const token = document.querySelector('meta[name="demo-token"]').content;
const QUICK_MS = 200;
const USUAL_MS = 700;
const KINDS = {
  "ran": "good", "replayed": "calm", "in flight": "wait", "running": "wait", "mismatch": "odd",
  "declined": "bad", "failed": "bad", "refused": "bad", "answer lost": "bad", "gave up": "bad",
  "killed": "bad",
};
const TOTALS = [
  ["Requests", (s) => Object.values(s.counts).reduce((a, b) => a + b, 0)],
  ["Ran", (s) => s.counts["ran"] || 0],
  ["Replayed", (s) => s.counts["replayed"] || 0],
  ["Told to wait (409)", (s) => s.counts["in flight"] || 0],
  ["Key reused (422)", (s) => s.counts["mismatch"] || 0],
  ["Provider asked", (s) => s.provider.asked],
  ["Provider acted", (s) => s.provider.acted],
];

let version = "";
let isPlaying = false;
let timer = 0;
const known = new Map();  // which rows each table shows, to tell the fresh ones

const at = (id) => document.getElementById(id);

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const badge = (word) => make("span", { className: `badge ${KINDS[word] || ""}`, textContent: word });
const money = (cents) => (cents / 100).toFixed(2);
const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });
const times = (n) => (n === 1 ? "once" : n === 2 ? "twice" : `${n} times`);

// --- drawing ---------------------------------------------------------------------------------

function draw(state) {
  isPlaying = Boolean(state.player.playing);
  at("store").textContent = state.store;
  at("doing").textContent = doing(state);
  drawTotals(state);
  drawScenarios(state);
  fill("requests", state.requests, requestRow, 5, "Nothing yet. Press a button above.");
  fill("provider", state.provider.acts, providerRow, 4, "No card was charged yet.");
  fill("ledger", state.ledger, ledgerRow, 4, "Nothing yet.");
  at("play-all").disabled = isPlaying;
}

function doing(state) {
  const { playing, doing } = state.player;
  if (!playing) return "";
  const title = state.scenarios.find((one) => one.name === playing).title;
  return doing ? `${title}: ${doing}` : title;
}

function drawTotals(state) {
  const boxes = TOTALS.map(([name, count]) =>
    make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: count(state) })));
  at("totals").replaceChildren(...boxes);
}

function drawScenarios(state) {
  const list = at("scenarios");
  if (!list.children.length) list.append(...state.scenarios.map(card));
  const results = new Map(state.player.results.map((one) => [one.name, one]));
  for (const item of list.children) {
    const name = item.dataset.name;
    const playing = state.player.playing === name;
    item.classList.toggle("playing", playing);
    const button = item.querySelector("button");
    button.disabled = isPlaying;
    button.textContent = playing ? "Playing…" : results.has(name) ? "Again" : "Play";
    // Drawn anew only when it changed, so that nobody loses a selection.
    const shown = JSON.stringify(results.get(name) || null);
    if (item.dataset.shown !== shown) {
      item.dataset.shown = shown;
      item.querySelector(".result").replaceChildren(...result(results.get(name)));
    }
  }
}

function card({ name, title, story }) {
  const button = make("button", { type: "button", textContent: "Play", onclick: () => play(name) });
  button.setAttribute("aria-label", `Play: ${title}`);
  const item = make("li", { className: "card" },
    make("div", { className: "top" }, make("h3", { textContent: title }), button),
    make("p", { className: "story", textContent: story }),
    make("div", { className: "result" }));
  item.dataset.name = name;
  return item;
}

function result(scene) {
  if (!scene) return [];
  const answers = scene.answers.map((one) =>
    make("li", {}, make("span", { textContent: one.who }), badge(one.got),
      make("span", { className: "detail", textContent: one.detail })));
  const { acted, asked } = scene.counted;
  const more = asked === acted ? "" : `, asked ${times(asked)}`;
  const verdict = scene.ok
    ? [make("p", { className: "verdict", textContent: `✓ Provider acted ${times(acted)}${more}` })]
    : scene.faults.map((fault) =>
      make("p", { className: "verdict broken", textContent: `✗ ${fault}` }));
  const list = answers.length ? [make("ul", { className: "answers" }, ...answers)] : [];
  return [...list, ...verdict];
}

function fill(id, rows, draw, columns, empty) {
  const body = at(id);
  if (!rows.length) {
    const cell = make("td", { className: "empty", colSpan: columns, textContent: empty });
    body.replaceChildren(make("tr", {}, cell));
    return;
  }
  const before = known.get(id) || new Set();
  const name = (row) => `${row.server || ""} ${row.number || row.id}`;
  body.replaceChildren(...rows.map((row) => {
    const line = draw(row);
    line.classList.toggle("fresh", !before.has(name(row)));
    return line;
  }));
  known.set(id, new Set(rows.map(name)));
}

const cell = (text, className = "") => make("td", { textContent: text, className });

function requestRow(one) {
  const status = one.status ? `${one.status} ` : "";
  const who = one.who === "Scenarios" ? "" : ` ${one.who}`;
  const where = one.server === "main" ? "" : ` on ${one.server}`;
  const path = one.path.replace(/ch_[0-9a-f]{16}/, "…");
  const answer = make("td", {}, make("span", { className: "mono", textContent: status }), badge(one.got));
  return make("tr", {}, cell(clock(one.at), "dim"),
    make("td", {}, make("span", { className: "mono", textContent: `${one.method} ${path}` }),
      make("span", { className: "dim", textContent: `${who}${where}` })),
    cell(one.key, "mono"), answer, cell(one.got === "running" ? "" : one.ms, "number dim"));
}

function providerRow(one) {
  const order = cell(one.order, "mono");
  if (one.declined) order.append(" ", badge("declined"));
  return make("tr", {}, cell(one.id, "mono"), order,
    cell(money(one.kind === "refund" ? -one.cents : one.cents), "number"),
    cell(`${one.asked}×`, "number"));
}

function ledgerRow(one) {
  return make("tr", {}, cell(one.payment, "mono"), cell(one.order, "mono"),
    cell(money(one.cents), "number"), cell(one.kind, "dim"));
}

// --- talking ---------------------------------------------------------------------------------

async function look() {
  clearTimeout(timer);
  try {
    const answer = await fetch(`/demo/state?seen=${encodeURIComponent(version)}`);
    if (answer.status === 200) {
      const state = await answer.json();
      version = state.version;
      draw(state);
    }
    at("offline").hidden = true;
  } catch {
    at("offline").hidden = false;
    version = "";
  }
  if (!document.hidden) timer = setTimeout(look, isPlaying ? QUICK_MS : USUAL_MS);
}

async function play(name) {
  isPlaying = true;
  for (const button of document.querySelectorAll("button")) button.disabled = true;
  try {
    await fetch(`/demo/scenario_runner/${name}`, { method: "POST", headers: { "X-Demo-Token": token } });
  } catch {
    at("offline").hidden = false;
  }
  version = "";
  look();
}

at("play-all").onclick = () => play("all");
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
look();
