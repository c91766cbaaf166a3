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
// "Without" comes first everywhere, as in the headline.
const HANDLERS = [["naive", "Without oncekey"], ["guarded", "With oncekey"]];
// Every kind of answer the log can have, so that they add up; some are listed only if there were any.
const ANSWERS = [
  ["ran", "", true], ["replayed", "", true], ["in flight", "409, wait", true],
  ["mismatch", "422, key reused", true], ["declined", "402", true], ["failed", "5xx", true],
  ["killed", "with its process"], ["refused", "other 4xx"], ["read", "GET"], ["running", "now"],
];
const DONE = { charge: "charged", refund: "refunded", shipment: "shipped" };
const EFFECTS = [
  ["charged", (t) => t.charged], ["refunded", (t) => t.refunded], ["shipped", (t) => t.shipped],
  ["declined", (t) => t.declined],
  ["no effect: refused, or its key was known",
    (t) => t.asked - t.charged - t.refunded - t.shipped - t.declined],
];

let version = "";
let isPlaying = false;
let timer = 0;
let presses = 0;
const known = new Map();  // which rows each table shows, to tell the fresh ones

const at = (id) => document.getElementById(id);

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const badge = (word) => make("span", { className: `badge ${KINDS[word] || ""}`, textContent: word });
const money = (cents) => (cents / 100).toFixed(2);
const CLOCK = { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3 };
const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { ...CLOCK, hour12: false });
const times = (n) => (n === 1 ? "once" : n === 2 ? "twice" : `${n} times`);
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const upper = (text) => text[0].toUpperCase() + text.slice(1);

// --- drawing ---------------------------------------------------------------------------------

function draw(state) {
  isPlaying = Boolean(state.player.playing);
  at("store").textContent = state.store;
  at("doing").textContent = doing(state);
  drawHeadline(state.player.results);
  drawScenarios(state);
  const requests = drawTotals(state);
  fill("requests", state.requests, requestRow, 5, "Nothing yet. Press a button above.", requests);
  fill("provider", state.provider.orders, orderRow, 5, "No card was charged yet.", state.provider.count);
  fill("ledger", state.ledger, ledgerRow, 5, "Nothing yet.");
  at("play-all").disabled = isPlaying;
}

function doing(state) {
  const { playing, doing } = state.player;
  if (!playing) return "";
  const title = state.scenarios.find((one) => one.name === playing).title;
  return doing ? `${title}: ${doing}` : title;
}

function drawHeadline(results) {
  const of = ([handler]) => results.filter((one) => one.handler === handler);
  const doubled = (side, kind) => of(side).filter((one) => one.doubled && one.kind === kind).length;
  const [naive, guarded] = HANDLERS;
  const number = (side) => {
    const count = doubled(side, "charge");
    const tone = count ? "broken" : of(side).length ? "kept" : "";
    return make("b", { className: tone, textContent: of(side).length ? count : "–" });
  };
  // Drawn anew only when it changed, so that a screen reader says it once.
  const shown = JSON.stringify(results.map((one) => [one.name, one.handler, one.doubled]));
  if (at("score").dataset.shown === shown) return;
  at("score").dataset.shown = shown;
  at("score").replaceChildren(number(naive), " without oncekey ",
    make("span", { className: "dim", textContent: "/" }), " ", number(guarded), " with");
  at("played").textContent = results.length
    ? `Scenarios below in which a card was charged more than once, of ${of(naive).length} played ` +
      `without and ${of(guarded).length} with oncekey. Refunded twice: ` +
      `${doubled(naive, "refund")} / ${doubled(guarded, "refund")}. Shipped twice: ` +
      `${doubled(naive, "shipment")} / ${doubled(guarded, "shipment")}.`
    : "Press a button: the provider's own ledger decides.";
}

function drawTotals(state) {
  const api = HANDLERS.map(([handler]) => state.totals[handler]);
  const provider = HANDLERS.map(([handler]) => state.provider.totals[handler]);
  const counts = ANSWERS.map(([kind, , always]) => [kind, api.map((one) => one[kind] || 0), always]);
  const all = api.map((one) => sum(Object.values(one)));
  at("api-totals").replaceChildren(totalRow("requests", all, true),
    ...counts.map(([kind, numbers, always], i) => (always || sum(numbers) ?
      totalRow(badge(kind), numbers, false, ANSWERS[i][1]) : "")).filter(Boolean));
  at("provider-totals").replaceChildren(totalRow("requests", provider.map((one) => one.asked), true),
    ...EFFECTS.map(([name, count]) => totalRow(name, provider.map(count))));
  return sum(all);
}

function totalRow(name, numbers, isSum = false, note = "") {
  const head = make("th", { scope: "row" }, name, make("span", { className: "dim", textContent: ` ${note}` }));
  return make("tr", { className: isSum ? "sum" : "" }, head, ...numbers.map((n) => cell(n, "number")));
}

function drawScenarios(state) {
  const list = at("scenarios");
  if (!list.children.length) list.append(...state.scenarios.map(card));
  const results = new Map();
  for (const one of state.player.results) results.set(one.name, [...(results.get(one.name) || []), one]);
  for (const item of list.children) {
    const name = item.dataset.name;
    const playing = state.player.playing === name;
    item.classList.toggle("playing", playing);
    const button = item.querySelector("button");
    button.disabled = isPlaying;
    button.textContent = playing ? "Playing…" : results.has(name) ? "Again" : "Play";
    // Drawn anew only when it changed, so that nobody loses a selection.
    const shown = JSON.stringify(results.get(name) || []);
    if (item.dataset.shown !== shown) {
      item.dataset.shown = shown;
      item.querySelector(".sides").replaceChildren(...(results.get(name) || []).map(side));
    }
  }
}

function card({ name, title, story }) {
  const button = make("button", { type: "button", textContent: "Play", onclick: () => play(name) });
  button.setAttribute("aria-label", `Play: ${title}`);
  const item = make("li", { className: "card" },
    make("div", { className: "top" }, make("h3", { textContent: title }), button),
    make("p", { className: "story", textContent: story }),
    make("div", { className: "sides" }));
  item.dataset.name = name;
  return item;
}

function side(scene) {
  const answers = scene.answers.map((one) =>
    make("li", {}, make("span", { textContent: one.who }), badge(one.got),
      make("span", { className: "detail", textContent: one.detail })));
  const list = answers.length ? [make("ul", { className: "answers" }, ...answers)] : [];
  const reason = scene.reason ? [make("p", { className: "reason", textContent: scene.reason })] : [];
  return make("div", { className: `side ${scene.handler}` },
    make("h4", { textContent: HANDLERS.find(([handler]) => handler === scene.handler)[1] }),
    ...list, ...outcome(scene), ...reason);
}

function outcome(scene) {
  const { asked, acted, declined } = scene.counted;
  const more = asked === acted + declined && declined < 2 ? "" : `, asked ${times(asked)}`;
  const line = (good, text) =>
    make("p", { className: good ? "outcome" : "outcome broken", textContent: `${good ? "✓" : "✗"} ${text}` });
  // The naive handler promises nothing: only its effect counts.
  if (scene.handler === "guarded" && !scene.ok) return scene.faults.map((fault) => line(false, fault));
  if (!scene.answers.length) return scene.faults.map((fault) => line(false, fault));
  return [line(!scene.doubled, `${upper(scene.effect)}${more}`)];
}

// `count` is how many rows there are, where not all of them are shown.
function fill(id, rows, draw, columns, empty, count = rows.length) {
  const body = at(id);
  if (!rows.length) {
    const cell = make("td", { className: "empty", colSpan: columns, textContent: empty });
    body.replaceChildren(make("tr", {}, cell));
    return;
  }
  const before = known.get(id) || new Set();
  const name = (row) => `${row.server || row.handler} ${row.number || row.id || row.order + row.kind}`;
  body.replaceChildren(...rows.map((row) => {
    const line = draw(row);
    line.classList.toggle("fresh", !before.has(name(row)));
    return line;
  }));
  known.set(id, new Set(rows.map(name)));
  if (count > rows.length) {
    const text = `and ${count - rows.length} earlier, which are counted above`;
    body.append(make("tr", {}, make("td", { className: "empty", colSpan: columns, textContent: text })));
  }
}

const cell = (text, className = "") => make("td", { textContent: text, className });

function requestRow(one) {
  const status = one.status ? `${one.status} ` : "";
  const who = one.who === "Scenarios" ? "" : ` ${one.who}`;
  const where = one.server === "main" ? "" : ` on ${one.server}`;
  const path = one.path.replace(/ch_[0-9a-f]{16}/, "…");
  const answer = make("td", {}, make("span", { className: "mono", textContent: status }), badge(one.got));
  return make("tr", {}, cell(clock(one.at), "dim mono"), answer,
    cell(one.got === "running" ? "" : one.ms, "number dim"),
    make("td", {}, make("span", { className: "mono", textContent: `${one.method} ${path}` }),
      make("span", { className: "dim", textContent: `${who}${where}` })),
    cell(one.key, "mono"));
}

const handlerCell = (one) => cell(one.handler === "naive" ? "without" : "with", "dim");

function orderRow(one) {
  const done = DONE[one.kind];
  const effect = one.acted ? `${done} ${times(one.acted)}`
    : one.declined ? `declined ${times(one.declined)}` : "no effect";
  const tone = one.acted > 1 ? "bad" : one.acted ? "good" : "";
  return make("tr", {}, cell(one.order, "mono"),
    make("td", {}, make("span", { className: `badge ${tone}`, textContent: effect })),
    handlerCell(one), cell(`${one.asked}×`, "number"),
    cell(one.kind === "shipment" ? "" : money(one.kind === "refund" ? -one.cents : one.cents), "number"));
}

function ledgerRow(one) {
  return make("tr", {}, cell(one.order, "mono"), cell(one.kind, "dim"), handlerCell(one),
    cell(one.payment, "mono"), cell(money(one.cents), "number"));
}

// --- talking ---------------------------------------------------------------------------------

async function look() {
  clearTimeout(timer);
  const before = presses;
  try {
    const answer = await fetch(`/demo/state?seen=${encodeURIComponent(version)}`);
    if (answer.status === 200) {
      const state = await answer.json();
      if (before !== presses) return;  // a button was pressed meanwhile: the state is out of date
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
  presses += 1;
  clearTimeout(timer);
  for (const button of document.querySelectorAll("button")) button.disabled = true;
  try {
    const handler = document.querySelector('input[name="handler"]:checked').value;
    await fetch(`/demo/scenario_runner/${name}?handler=${handler}`, { method: "POST", headers: { "X-Demo-Token": token } });
  } catch {
    at("offline").hidden = false;
  }
  version = "";
  look();
}

at("play-all").onclick = () => play("all");
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
look();
