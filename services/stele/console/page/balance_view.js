// Balance: how evenly tablets lie, what moves next and why, what was moved, and the load over time.

import { html, useEffect, useRef } from "./vendor/htm-preact.js";
import { get } from "./api.js";
import { ask } from "./ask.js";
import { css, heat } from "./colours.js";
import { go, shownEpoch, showTablet, state } from "./store.js";
import { isDark } from "./theme.js";
import { EpochLink, NodeLink, Sentence, Time, useAnswer, useStore } from "./ui.js";
import { asCounted, clock, counted, duration, size } from "./words.js";

const CELL = 14;
const MOST_TABLES = 100;

export function BalanceView() {
  useStore();
  const key = `${state.newest} ${Math.floor((state.looked?.at_ms ?? 0) / 5000)}`;
  const { answer, problem } = useAnswer((signal) => get("/api/balance", {}, signal), "", key);
  const span = state.place.span === "day" ? "day" : "hour";
  const past = useAnswer((signal) => get("/api/decisions", { limit: 50 }, signal), "", state.newest);
  const warm = useAnswer((signal) => get("/api/balance/history", { span }, signal), span, Math.floor((state.looked?.at_ms ?? 0) / 5000));
  return html`<section class="balanceview" aria-label="Balance">
    ${shownEpoch() > 0 && html`<p class="note" data-note="now">All of this is of now, not of epoch ${shownEpoch()}.</p>`}
    ${problem && html`<p class="bad">${problem}</p>`}
    ${answer && html`<${Now} answer=${answer} />`}
    <h2>Load over time</h2>
    <div class="bar"><label>of the last <select name="span" value=${span} onChange=${(/** @type {any} */ e) => go({ span: e.target.value === "day" ? "day" : "" })}><option value="hour">hour</option><option value="day">day</option></select></label></div>
    ${warm.problem && html`<p class="bad">${warm.problem}</p>`}
    ${warm.answer && html`<${Heat} samples=${warm.answer.samples} />`}
    <h2>What was decided</h2>
    <table><thead><tr><th>epoch</th><th>at</th><th>what</th><th>by</th><th>because</th><th>outcome</th><th>took</th></tr></thead>
      <tbody>${(past.answer?.decisions ?? []).map((/** @type {any} */ d) => html`<tr><td><${EpochLink} epoch=${d.epoch} /></td><td><${Time} ms=${d.at_ms} /></td><td>${d.what}</td><td>${d.by}</td><td>${d.reason}</td><td>${d.outcome}${d.detail ? `: ${d.detail}` : ""}</td><td>${d.took_s === null ? "" : duration(d.took_s)}</td></tr>`)}</tbody></table>
    ${past.answer && !past.answer.decisions.length && html`<p>Nothing was asked of tablets in the epochs that were looked through.</p>`}
  </section>`;
}

/** @param {{answer: any}} props */
function Now({ answer }) {
  const nodes = Object.entries(answer.nodes).sort(([a], [b]) => asCounted(a, b));
  const most = Math.max(1, ...nodes.map(([, n]) => n.tablets));
  return html`<h2>Tablets are ${String(answer.state).replaceAll("_", " ")}</h2>
    <p>Balanced by ${answer.balanced_by}: <${Sentence} text=${answer.why} /></p>
    ${answer.off.length > 0 && html`<p class="warn">Switched off for ${answer.off.map((/** @type {any} */ o) => o.name || "the cluster").join(", ")}. <code>stele balance on</code> switches it on.</p>`}
    <div class="deeds"><button onClick=${() => ask("balance-off")}>pause balancing…</button>${answer.off.length > 0 && html`<button onClick=${() => ask("balance-on", { name: answer.off[0].name })}>resume balancing…</button>`}</div>
    ${answer.restricted && html`<p class="warn">${answer.restricted}</p>`}
    <table><thead><tr><th>node</th><th>tablets</th><th></th><th>bytes</th><th>of its share</th><th>operations/s</th><th>reported</th></tr></thead>
      <tbody>${nodes.map(([name, n]) => html`<tr><td><${NodeLink} node=${name} /></td><td>${n.tablets}</td><td><meter min="0" max=${most} value=${n.tablets} aria-label=${`tablets of ${name}`}></meter></td>
        <td>${n.size_bytes === null ? "" : size(n.size_bytes)}${n.capacity_bytes ? ` of ${size(n.capacity_bytes)}` : ""}</td><td>${n.of_share === null ? "" : n.of_share.toFixed(2)}</td><td>${n.rate === null ? "" : n.rate.toFixed(1)}</td><td>${n.report_age_s === null ? "never" : `${duration(n.report_age_s)} ago`}</td></tr>`)}</tbody></table>
    ${answer.tables?.length > 0 && html`<details open=${answer.tables.length < 9}><summary>${counted(answer.tables.length, "table", "tables")}, the most uneven first</summary>
      <table><thead><tr><th>table</th><th>fewest replicas on a node</th><th>most</th></tr></thead>
        <tbody>${[...answer.tables].sort((a, b) => b.most - b.fewest - (a.most - a.fewest)).slice(0, MOST_TABLES).map((/** @type {any} */ t) => html`<tr data-table=${t.table}><td><button class="link" onClick=${() => showTablet(t.table, 0)}>${t.table}</button></td><td>${t.fewest}</td><td>${t.most}</td></tr>`)}</tbody></table></details>`}
    <h2>Next</h2>
    <ul class="plain">${[...answer.under_way, ...answer.resizing, ...answer.recounting, ...answer.repairing].map((text) => html`<li>under way: ${text}</li>`)}
      ${answer.planned.map((/** @type {any} */ m) => html`<li><button class="link" onClick=${() => showTablet(m.table, m.tablet)}>tablet ${m.tablet} of ${m.table}</button>: ${m.from_node} to ${m.to_node || "nobody"} (${m.kind}): <${Sentence} text=${m.why} /></li>`)}
      ${Object.entries(answer.stuck).map(([what, why]) => html`<li class="warn">${what}: <${Sentence} text=${String(why)} /></li>`)}
      ${!answer.planned.length && html`<li>No move is planned.</li>`}</ul>
    ${[["down", answer.down], ["avoided after failures", answer.avoided], ["full", answer.full]].map(([what, names]) => names.length > 0 && html`<p class="warn">${what}: ${names.join(", ")}</p>`)}`;
}

/** A line for each node, a column for each sample. @param {{samples: any[]}} props */
function Heat({ samples }) {
  const canvas = useRef(null);
  const nodes = [...new Set(samples.flatMap((s) => Object.keys(s.tablets)))].sort(asCounted);
  const rates = samples.some((s) => Object.values(s.rates).some((v) => Number(v) > 0));
  const of = (/** @type {any} */ s, /** @type {string} */ node) => Number(Object.getOwnPropertyDescriptor(rates ? s.rates : s.sizes, node)?.value ?? 0);
  let most = 0;
  for (const s of samples) for (const node of nodes) most = Math.max(most, of(s, node));
  useEffect(() => {
    const element = canvas.current;
    const context = element?.getContext("2d");
    if (!context || !samples.length) return;
    element.width = Math.max(samples.length, 2);
    element.height = Math.max(1, nodes.length) * CELL;
    element.style.height = `${element.height}px`;
    samples.forEach((s, x) => nodes.forEach((node, y) => {
      context.fillStyle = css(heat(most ? of(s, node) / most : 0, isDark()));
      context.fillRect(x, y * CELL, 1, CELL - 1);
    }));
  });
  if (!samples.length) return html`<p>Nodes have reported no load in this time, as far as the balancer knows: it keeps a day of it, and when it is started anew what was reported within the last hour.</p>`;
  const what = rates ? "operations a second" : "bytes";
  return html`<div class="heat"><ul>${nodes.map((node) => html`<li>${node}</li>`)}</ul>
    <canvas ref=${canvas} role="img" aria-label=${`${what} of ${nodes.length} nodes from ${clock(samples[0].at_ms)} to ${clock(samples.at(-1).at_ms)}; at most ${Math.round(most)}`}></canvas></div>
    <p class="note">${what}, ${clock(samples[0].at_ms)} to ${clock(samples.at(-1).at_ms)}; the brightest is ${rates ? most.toFixed(1) : size(most)}</p>`;
}
