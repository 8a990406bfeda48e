// Balance: how evenly tablets are placed, what moves next and why, the load over time, and past decisions.

import { html } from "./vendor/htm-preact.js";
import { get } from "./api.js";
import { ask } from "./ask.js";
import { HeatMap, MEASURES } from "./heat_map.js";
import { MovesGraph } from "./moves_graph.js";
import { readable } from "./operation_timeline.js";
import { go, shownEpoch, showTablet, state } from "./store.js";
import { Badge, Card, Empty, EpochLink, Loading, NodeLink, Sentence, Time, useAnswer, useStore } from "./ui.js";
import { asCounted, counted, duration, size } from "./words.js";

const ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const MOST_TABLES = 100;
const HISTORY_MS = 5000;

export function BalanceView() {
  useStore();
  const beat = Math.floor((state.looked?.at_ms ?? 0) / HISTORY_MS);
  const { answer, problem } = useAnswer((signal) => get("/api/balance", {}, signal), "", `${state.newest} ${beat}`);
  const past = useAnswer((signal) => get("/api/decisions", { limit: 50 }, signal), "", state.newest);
  return html`<section class="balanceview" aria-label="Balance">
    ${shownEpoch() > 0 && html`<p class="note" data-note="now">Balance is shown for the present only, not for epoch ${shownEpoch()}.</p>`}
    ${problem && html`<p class="bad">${problem}</p>`}
    ${!answer && !problem && html`<${Loading} what="the state of the balancer" />`}
    ${answer && html`<${Now} answer=${answer} />`}
    <${Load} beat=${beat} />
    <${Card} title="Decisions">
      <div class="scroll"><table><thead><tr><th>epoch</th><th>time</th><th>decision</th><th>by</th><th>reason</th><th>outcome</th><th class="number">took</th></tr></thead>
      <tbody>${(past.answer?.decisions ?? []).map((/** @type {any} */ d) => html`<tr><td><${EpochLink} epoch=${d.epoch} /></td><td><${Time} ms=${d.at_ms} /></td><td>${d.what}</td><td>${d.by}</td><td>${d.reason}</td><td><${Badge} state=${d.outcome} /> ${d.detail}</td><td class="number">${d.took_s === null ? "" : duration(d.took_s)}</td></tr>`)}</tbody></table></div>
      ${past.answer && !past.answer.decisions.length && html`<${Empty}>No move, split, merge or repair of a tablet in the newest epochs.<//>`}<//>
  </section>`;
}

/** @type {Record<string, string>} */
const STATES = { no_tablets: "No table has tablets", balanced: "Tablets are balanced", balancing: "Tablets are being balanced", stalled: "Balancing is stalled", waiting: "Balancing waits for nodes", off: "Balancing is off" };
/** @type {Record<string, string>} */
const STATE_KINDS = { balanced: "good", no_tablets: "good", balancing: "busy", stalled: "bad", waiting: "warn", off: "warn" };

/** @param {{answer: any}} props */
function Now({ answer }) {
  const nodes = /** @type {[string, any][]} */ (Object.entries(answer.nodes).sort(([a], [b]) => asCounted(a, b)));
  const deeds = html`<button onClick=${() => ask("balance-off")}>pause balancing…</button>${answer.off.length > 0 && html`<button onClick=${() => ask("balance-on", { name: answer.off[0].name })}>resume balancing…</button>`}`;
  return html`<${Card} title=${STATES[answer.state] ?? answer.state} kind=${STATE_KINDS[answer.state] ?? ""} more=${deeds}>
      <p>Balanced by ${answer.balanced_by}: <${Sentence} text=${answer.why} /></p>
      ${answer.off.length > 0 && html`<p class="warn">Switched off for ${answer.off.map((/** @type {any} */ o) => o.name || "the cluster").join(", ")}. <code>stele balance on</code> switches it on.</p>`}
      ${answer.restricted && html`<p class="warn">${answer.restricted}</p>`}
      ${[["Down", answer.down], ["Avoided after failed moves", answer.avoided], ["Disk full", answer.full]].map(([what, names]) => names.length > 0 && html`<p class="warn">${what}: ${names.join(", ")}</p>`)}
    <//>
    <div class="balance-layout">
      <${Card} title="Nodes"><${Bars} nodes=${nodes} /><//>
      <${Card} title="Moves"><${Moves} answer=${answer} /><//>
    </div>
    ${answer.tables?.length > 0 && html`<${Card} title="Tables"><details open=${answer.tables.length < 9}><summary>${counted(answer.tables.length, "table", "tables")}, the most uneven first</summary>
      <table><thead><tr><th>table</th><th class="number">fewest replicas on a node</th><th class="number">most</th></tr></thead>
        <tbody>${[...answer.tables].sort((a, b) => b.most - b.fewest - (a.most - a.fewest)).slice(0, MOST_TABLES).map((/** @type {any} */ t) => html`<tr data-table=${t.table}><td><button class="link" onClick=${() => showTablet(t.table, 0)}>${t.table}</button></td><td class="number">${t.fewest}</td><td class="number">${t.most}</td></tr>`)}</tbody></table></details><//>`}`;
}

/** A bar for each value of a node; the mark on the share is where an even node would be. @param {{nodes: [string, any][]}} props */
function Bars({ nodes }) {
  if (!nodes.length) return html`<${Empty}>No node takes part. Nodes with tokens appear here with their tablets.<//>`;
  const most = (/** @type {(n: any) => number | null} */ of) => Math.max(1e-9, ...nodes.map(([, n]) => of(n) ?? 0));
  const tops = { tablets: most((n) => n.tablets), bytes: most((n) => n.size_bytes), rate: most((n) => n.rate), share: Math.max(1.2, most((n) => n.of_share)) };
  return html`<table class="node-bars"><thead><tr><th>node</th><th>tablets</th><th>bytes</th><th>operations/s</th><th title="1.00: exactly its share by the measure in use">load / share</th><th class="number">reported</th></tr></thead>
    <tbody>${nodes.map(([name, n]) => html`<tr data-node-balance=${name}><td><${NodeLink} node=${name} /></td>
      <td><${Bar} part=${n.tablets / tops.tablets} text=${String(n.tablets)} /></td>
      <td>${n.size_bytes === null ? "unknown" : html`<${Bar} part=${n.size_bytes / tops.bytes} text=${size(n.size_bytes)} title=${n.capacity_bytes ? `of ${size(n.capacity_bytes)}` : ""} />`}</td>
      <td>${n.rate === null ? "unknown" : html`<${Bar} part=${n.rate / tops.rate} text=${n.rate.toFixed(1)} />`}</td>
      <td>${n.of_share === null ? "takes no part" : html`<${Bar} part=${n.of_share / tops.share} text=${n.of_share.toFixed(2)} mark=${1 / tops.share} />`}</td>
      <td class="number">${n.report_age_s === null ? "never" : `${duration(n.report_age_s)} ago`}</td></tr>`)}</tbody></table>`;
}

/** @param {{part: number, text: string, mark?: number, title?: string}} props */
function Bar({ part, text, mark = 0, title = "" }) {
  return html`<span class="bar-cell" title=${title}><svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true"><rect class="track" width="100" height="10" /><rect class="value" width=${100 * Math.max(0, Math.min(1, part))} height="10" />
    ${mark > 0 && html`<rect class="even" x=${100 * mark - 0.6} width="1.2" height="10" />`}</svg><span>${text}</span></span>`;
}

/** @param {{answer: any}} props */
function Moves({ answer }) {
  const requests = new Map((state.overview?.requests ?? []).map((/** @type {any} */ r) => [r.request_id, r]));
  const running = [...answer.under_way, ...answer.resizing, ...answer.recounting, ...answer.repairing].map((/** @type {string} */ each) => requests.get(each) ?? { request_id: each, what: each })
    .filter((r) => !ID.test(r.what)); // the state with that request is still being read
  const moves = [
    ...running.filter((r) => r.from_node || r.to_node).map((r) => ({ from: r.from_node, to: r.to_node, text: readable(r.what).replace(/^move (.*) tablet (\d+),.*$/, "$1 $2"), running: true })),
    ...answer.planned.map((/** @type {any} */ m) => ({ from: m.from_node, to: m.to_node, text: `${m.table} ${m.tablet}`, running: false })),
  ];
  return html`${moves.length > 0 && html`<${MovesGraph} moves=${moves} />`}
    <ul class="plain">
      ${running.map((r) => html`<li><${Badge} state="running" /> ${requests.has(r.request_id) ? html`<button class="link" onClick=${() => go({ view: "operations", request: r.request_id })}>${readable(r.what)}</button>${r.reason ? `: ${r.reason}` : ""}` : r.what}</li>`)}
      ${answer.planned.map((/** @type {any} */ m) => html`<li><${Badge} state="planned" /> <button class="link" onClick=${() => showTablet(m.table, m.tablet)}>tablet ${m.tablet} of ${m.table}</button>: ${m.from_node || "new replica"} to ${m.to_node || "deleted"} (${m.kind}): <${Sentence} text=${m.why} /></li>`)}
      ${Object.entries(answer.stuck).map(([what, why]) => html`<li class="warn">${requests.has(what) ? readable(requests.get(what).what) : what}: <${Sentence} text=${String(why)} /></li>`)}
    </ul>
    ${!moves.length && !running.length && html`<${Empty}>No move is planned or running. When nodes become uneven, the planned moves appear here, from node to node.<//>`}`;
}

/** @param {{beat: number}} props */
function Load({ beat }) {
  const span = state.place.span === "day" ? "day" : "hour";
  const { answer, problem } = useAnswer((signal) => get("/api/balance/history", { span }, signal), span, beat);
  const measure = Object.hasOwn(MEASURES, state.place.measure ?? "") ? state.place.measure : "operations";
  const controls = html`<label>measure <select name="measure" value=${measure} onChange=${(/** @type {any} */ e) => go({ measure: e.target.value }, true)}>${Object.entries(MEASURES).map(([name, { title }]) => html`<option value=${name}>${title}</option>`)}</select></label>
      <label>last <select name="span" value=${span} onChange=${(/** @type {any} */ e) => go({ span: e.target.value === "day" ? "day" : "" }, true)}><option value="hour">hour</option><option value="day">day</option></select></label>`;
  return html`<${Card} title="Load over time" more=${controls}>
    ${problem && html`<p class="bad">${problem}</p>`}
    ${answer && html`<${HeatMap} samples=${answer.samples} measure=${MEASURES[measure]} />`}
    <p class="note">Load of tablets, as replicas serve it. Requests to keyspaces on the ring do not count here; <button class="link" onClick=${() => go({ view: "nodes" })}>Nodes</button> has the requests of all keyspaces.</p><//>`;
}
