// Nodes: a table of all members, racks as a picture, and a page for each node.

import { html, useEffect, useRef } from "./vendor/htm-preact.js";
import { get, visible } from "./api.js";
import { ask } from "./ask.js";
import { Chart } from "./chart.js";
import { readable } from "./operation_timeline.js";
import { go, shownEpoch, state } from "./store.js";
import { Badge, Card, Empty, EpochItem, Loading, Panel, useAnswer, useStore } from "./ui.js";
import { asCounted, counted, duration, size } from "./words.js";

/** What can be done with a node: the operation, its word, and the field that names the node. */
const DEEDS = [
  ["decommission", "decommission", "node"],
  ["replace", "replace", "dead"],
  ["remove", "remove", "node"],
  ["rebuild", "rebuild", "node"],
  ["move", "move", "node"],
  ["cleanup", "clean up", "node"],
  ["exclude", "exclude", "nodes"],
];
/** Operations that end a node's membership. */
const DESTRUCTIVE = ["decommission", "replace", "remove", "exclude"];
/** Between two reads of what nodes report; milliseconds. */
const REPORTS_MS = 5000;
/** Span of the charts of what nodes report; milliseconds. */
const OWN_SPAN_MS = 600_000;

/** One number of each read of the services, so that reports are read again every few seconds. */
const beat = () => Math.floor((state.looked?.at_ms ?? 0) / REPORTS_MS);

/**
 * @typedef {object} Row
 * @property {any} node
 * @property {any} heard by the session guard; undefined: nothing
 * @property {any} report of the node itself; undefined: none
 * @property {number | null} rate
 * @property {number | null} latency
 * @property {any} balanced as the balancer knows it; undefined: not at all
 */

/** @typedef {[string, string, (row: Row) => any, (row: Row) => any, string]} Heading key, title, value to sort by, cell, class */

/** @type {Heading[]} */
const HEADINGS = [
  ["node", "node", (r) => r.node.node_id, (r) => html`<button class="link" onClick=${() => go({ node: r.node.node_id })}>${r.node.node_id}</button>`, ""],
  ["state", "state", (r) => r.node.state, (r) => html`<${Badge} state=${r.node.excluded ? "excluded" : r.node.state} />`, ""],
  ["liveness", "liveness", (r) => r.heard?.liveness ?? "", (r) => (r.heard ? html`<${Badge} state=${r.heard.liveness} />` : ""), ""],
  ["rack", "rack", (r) => `${r.node.dc} ${r.node.rack}`, (r) => `${r.node.dc} ${r.node.rack}`, ""],
  ["load", "requests/s", (r) => r.rate ?? -1, (r) => (r.rate === null ? "" : r.rate.toFixed(1)), "number"],
  ["latency", "latency", (r) => r.latency ?? -1, (r) => (r.latency === null ? "" : `${r.latency.toFixed(1)} ms`), "number"],
  ["bytes", "stored", (r) => r.report?.bytes ?? -1, (r) => (r.report?.bytes === undefined || r.report.bytes === null ? "" : size(r.report.bytes)), "number"],
  ["tablets", "tablets", (r) => r.balanced?.tablets ?? -1, (r) => r.balanced?.tablets ?? "", "number"],
  ["tokens", "tokens", (r) => r.node.tokens, (r) => r.node.tokens, "number"],
  ["epoch", "lag", (r) => r.heard?.lag ?? -1, (r) => r.heard?.lag ?? "", "number"],
  ["version", "version", (r) => r.heard?.version ?? -1, (r) => r.heard?.version || "", "number"],
  ["release", "release", (r) => r.node.release_version, (r) => r.node.release_version, ""],
];
/** Columns of the present alone. */
const OF_NOW = ["liveness", "load", "latency", "bytes", "tablets", "epoch", "version"];

/** What the balancer reports by node; none while it is away. */
function useBalance() {
  return useAnswer((signal) => get("/api/balance", {}, signal), "balance", beat()).answer?.nodes ?? {};
}

export function NodesView() {
  useStore();
  const left = useRef("");
  const chosen = state.place.node ?? "";
  useEffect(() => {
    // Back to the node that was shown. It is drawn again, so the focus is not kept by itself.
    const before = chosen || !left.current ? null : document.querySelector(`[data-node="${CSS.escape(left.current)}"]`);
    if (before instanceof HTMLElement) before.focus();
    left.current = chosen;
  }, [chosen]);
  const heard = new Map((shownEpoch() ? [] : state.looked?.liveness ?? []).map((/** @type {any} */ row) => [row.node_id, row]));
  return html`<section class="nodesview" aria-label="Nodes">
    ${chosen ? html`<${NodePage} key=${chosen} node=${chosen} heard=${heard.get(chosen)} />` : html`<${All} heard=${heard} />`}
  </section>`;
}

/** @param {{heard: Map<string, any>}} props */
function All({ heard }) {
  const nodes = state.overview?.nodes ?? [];
  const here = nodes.filter((/** @type {any} */ n) => n.state !== "left");
  const gone = nodes.filter((/** @type {any} */ n) => n.state === "left");
  const reports = useAnswer((signal) => get("/api/nodes", {}, signal), "nodes", beat()).answer?.samples.at(-1);
  const balanced = useBalance();
  const past = shownEpoch() > 0;
  /** @type {Row[]} */
  const rows = here.map((/** @type {any} */ node) => ({
    node,
    heard: heard.get(node.node_id),
    report: reports?.nodes[node.node_id],
    rate: reports?.rates[node.node_id] ?? null,
    latency: reports?.latencies[node.node_id] ?? null,
    balanced: balanced[node.node_id],
  }));
  if (!state.overview) return html`<${Loading} what="the nodes" />`;
  if (!here.length) return html`<${Empty}>There is no node at this epoch.<//>`;
  return html`<div class="nodes-layout">
      <${Card} title=${counted(here.length, "node", "nodes")}><${Table} rows=${rows} past=${past} /><//>
      <${Racks} rows=${rows} />
    </div>
    ${gone.length > 0 && html`<${Card} title="Former nodes"><ul class="chips">${gone.sort((/** @type {any} */ a, /** @type {any} */ b) => asCounted(a.node_id, b.node_id)).map((/** @type {any} */ n) => html`<li><button class="link" onClick=${() => go({ node: n.node_id })}>${n.node_id}</button> ${n.departure}</li>`)}</ul><//>`}`;
}

/** @param {{rows: Row[], past: boolean}} props */
function Table({ rows, past }) {
  const [key, back] = (state.place.sort ?? "node").split("-");
  const headings = HEADINGS.filter(([name]) => !past || !OF_NOW.includes(name));
  const value = (headings.find(([name]) => name === key) ?? headings[0])[2];
  const compare = (/** @type {Row} */ a, /** @type {Row} */ b) => {
    const [x, y] = [value(a), value(b)];
    return (typeof x === "number" ? x - y : asCounted(x, y)) || asCounted(a.node.node_id, b.node.node_id);
  };
  const sorted = [...rows].sort((a, b) => (back ? compare(b, a) : compare(a, b)));
  const sort = (/** @type {string} */ name) => go({ sort: name === key && !back ? `${name}-back` : name }, true);
  return html`<div class="scroll"><table class="sortable" data-list="nodes"><thead><tr>${headings.map(([name, title, , , kind]) => html`<th class=${kind} aria-sort=${name === key ? (back ? "descending" : "ascending") : "none"}><button onClick=${() => sort(name)}>${title}</button></th>`)}</tr></thead>
    <tbody>${sorted.map((row) => html`<tr key=${row.node.node_id} data-node-row=${row.node.node_id}>${headings.map(([, , , cell, kind]) => html`<td class=${kind}>${cell(row)}</td>`)}</tr>`)}</tbody></table></div>
    ${!past && html`<p class="note">requests/s and latency: data requests that a node coordinated within the last seconds, of all keyspaces. lag: epochs that it has not applied yet. stored: keys and values, with tombstones and with data that cleanup has yet to delete.</p>`}`;
}

/** Datacentres and racks with their nodes; the bar of a node is its share of the largest. @param {{rows: Row[]}} props */
function Racks({ rows }) {
  /** @type {Map<string, Map<string, Row[]>>} */
  const places = new Map();
  for (const row of rows) {
    const racks = places.get(row.node.dc) ?? new Map();
    places.set(row.node.dc, racks);
    racks.set(row.node.rack, [...(racks.get(row.node.rack) ?? []), row]);
  }
  const most = Math.max(1, ...rows.map((row) => row.report?.bytes ?? 0));
  return html`<${Card} title="Racks" span="racks-card">
    ${[...places].sort(([a], [b]) => asCounted(a, b)).map(([dc, racks]) => html`<section class="dc" aria-label=${`Datacentre ${dc}`}>
      <h3>${dc}</h3>
      <div class="racks">${[...racks].sort(([a], [b]) => asCounted(a, b)).map(([rack, inside]) => html`<div class="rack">
        <h4>${rack}</h4>
        <ul>${inside.sort((a, b) => asCounted(a.node.node_id, b.node.node_id)).map((row) => html`<li><${Tile} row=${row} most=${most} /></li>`)}</ul>
      </div>`)}</div>
    </section>`)}<//>`;
}

/** @param {{row: Row, most: number}} props */
function Tile({ row: { node, heard, report }, most }) {
  const bytes = report?.bytes;
  const shown = node.excluded ? "excluded" : heard?.liveness === "down" ? "down" : node.state;
  return html`<button class=${`node ${node.state} ${heard?.liveness ?? ""}`} data-node=${node.node_id} onClick=${() => go({ node: node.node_id })}>
    <span>${node.node_id} <small>${shown}</small></span>
    ${bytes !== undefined && bytes !== null && html`<svg class="fill" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true"><rect class="track" width="100" height="4" /><rect width=${(100 * bytes) / most} height="4" /></svg><small>${size(bytes)}</small>`}
  </button>`;
}

/** @param {{node: string, heard: any}} props */
function NodePage({ node: id, heard }) {
  const epoch = shownEpoch();
  const { answer, problem } = useAnswer((signal) => get("/api/node", { node: id, epoch: epoch || undefined }, signal), `${id} ${epoch}`, state.overview?.epoch);
  const name = visible(id);
  return html`<${Panel} what=${id} label=${`Node ${name}`} kind="page" ready=${answer !== null || problem !== ""} close=${() => go({ node: "" })}>
    ${problem || !answer ? html`<h2>Node ${name}</h2>${problem ? html`<p class="bad">${problem}</p>` : html`<${Loading} what="the node" />`}` : html`<${NodeFacts} id=${id} answer=${answer} heard=${heard} epoch=${epoch} />`}
  <//>`;
}

/** @param {{id: string, answer: any, heard: any, epoch: number}} props */
function NodeFacts({ id, answer, heard, epoch }) {
  const node = answer.node;
  const isMember = node.state !== "left";
  const ofNode = (state.overview?.requests ?? []).filter((/** @type {any} */ r) => r.node_id === id);
  const release = state.overview?.nodes.find((/** @type {any} */ n) => n.node_id === id)?.departure;
  return html`
    <p><button class="link" onClick=${() => go({ node: "" })}>All nodes</button></p>
    <h2>Node ${id} <${Badge} state=${node.state} />${heard?.liveness === "down" && html` <${Badge} state="down" />`} ${release && html`<small>${release}</small>`}</h2>
    <div class="grid">
      <${Card} title="Facts" span="half"><dl>
        <dt>place</dt><dd>${node.dc}, ${node.rack}</dd>
        <dt>address</dt><dd>${node.address || "unknown"}</dd>
        <dt>tokens</dt><dd>${node.tokens.length}</dd>
        <dt>shards</dt><dd>${node.shards}</dd>
        <dt>release</dt><dd>${node.release_version || "unknown"}</dd>
        ${heard && html`<dt>liveness</dt><dd><${Badge} state=${heard.liveness} /> ${heard.silent_for_s === null ? "never heard" : `heard ${duration(heard.silent_for_s)} ago`}</dd>
          <dt>epoch</dt><dd>${heard.epoch}${heard.lag ? `, ${counted(heard.lag, "epoch", "epochs")} behind` : ""}</dd><dt>topology version</dt><dd>${heard.version}</dd>`}
        ${node.excluded_since > 0 && html`<dt>excluded</dt><dd>since epoch ${node.excluded_since}</dd>`}
      </dl><//>
      <${Card} title="Data" span="half"><table><thead><tr><th>placement</th><th class="number">holds</th><th>of</th></tr></thead><tbody>${Object.entries(answer.maps).map(([placement, held]) => html`<tr><td><button class="link" onClick=${() => go({ view: "map", map: placement, row: held.places[0] })}>${held.name}</button></td>
          <td class="number">${held.rows}</td><td>${counted(held.of, held.tablets ? "tablet" : "range", held.tablets ? "tablets" : "ranges")}</td></tr>`)}</tbody></table>
        ${!Object.keys(answer.maps).length && html`<${Empty}>It holds no range and no tablet.<//>`}<//>
    </div>
    ${!epoch && isMember && html`<${Charts} id=${id} />`}
    ${!epoch && isMember && html`<div class="deeds" role="group" aria-label="Operations on this node">
      ${DEEDS.map(([name, word, field]) => html`<button class=${DESTRUCTIVE.includes(name) ? "danger" : ""} onClick=${() => ask(name, { [field]: id })}>${word}…</button>`)}
    </div>`}
    ${ofNode.length > 0 && html`<h3>Operations</h3><ul class="plain">${ofNode.map((/** @type {any} */ r) => html`<li><button class="link" onClick=${() => go({ view: "operations", request: r.request_id })}>${readable(r.what)}</button> <${Badge} state=${r.status} />${!epoch && r.can_cancel ? html` <button data-deed="cancel" onClick=${() => ask("cancel", { request: r.request_id }, `Cancel: ${r.what}`)}>cancel…</button>` : ""}</li>`)}</ul>`}
    <h3>History</h3>
    ${answer.away && html`<p class="bad">${answer.away}</p>`}
    <ol class="epochs">${answer.history.epochs.map((/** @type {any} */ told) => html`<${EpochItem} key=${told.epoch} told=${told} />`)}</ol>`;
}

const SOON = "The line begins with the second value. Samples are taken every 5 s while a page shows nodes.";
/** Without a value for so many steps, a line has a gap. */
const GAP_STEPS = 4;

/**
 * A chart of one value of each sample.
 * @param {{title: string, samples: any[], of: (sample: any) => number | null | undefined, text: (value: number) => string, everyMs: number, none: string}} props
 */
function Figure({ title, samples, of, text, everyMs, none }) {
  /** @type {number[]} */
  const times = [];
  /** @type {(number | null)[]} */
  const values = [];
  for (const sample of samples) {
    const last = times.at(-1);
    if (last !== undefined && sample.at_ms - 1000 * last > GAP_STEPS * everyMs) {
      times.push(last + everyMs / 1000);
      values.push(null);
    }
    times.push(sample.at_ms / 1000);
    values.push(of(sample) ?? null);
  }
  const known = /** @type {number[]} */ (values.filter((value) => value !== null));
  const now = known.length ? text(known[known.length - 1]) : "";
  return html`<${Card} title=${title} span="third" more=${html`<strong>${now}</strong>`}>
    ${known.length > 1 ? html`<${Chart} label=${`${title}: now ${now}`} times=${times} series=${[{ label: title.toLowerCase(), values }]} format=${text} height=${150} filled />` : html`<${Empty}>${known.length ? SOON : none}<//>`}<//>`;
}

/** @param {{id: string}} props */
function Charts({ id }) {
  const span = state.place.span === "day" ? "day" : "hour";
  const reports = useAnswer((signal) => get("/api/nodes", { node: id }, signal), id, beat()).answer;
  const load = useAnswer((signal) => get("/api/balance/history", { span }, signal), span, beat()).answer;
  const now = reports?.samples.at(-1)?.at_ms ?? 0;
  const own = { samples: (reports?.samples ?? []).filter((/** @type {any} */ s) => s.at_ms > now - OWN_SPAN_MS), everyMs: reports?.every_ms ?? REPORTS_MS };
  const long = { samples: load?.samples ?? [], everyMs: load?.every_ms ?? REPORTS_MS };
  const perSecond = (/** @type {number} */ n) => `${n < 10 ? n.toFixed(1) : Math.round(n)}/s`;
  const reported = "The node has reported no load of tablets yet. Nodes report every minute.";
  return html`<section aria-label="Charts"><div class="bar"><h2>Load</h2>
      <label>tablets over the last <select name="span" value=${span} onChange=${(/** @type {any} */ e) => go({ span: e.target.value === "day" ? "day" : "" }, true)}><option value="hour">hour</option><option value="day">day</option></select></label></div>
    <div class="grid">
      <${Figure} title="Requests coordinated" ...${own} of=${(/** @type {any} */ s) => s.rates[id]} text=${perSecond} none=${SOON} />
      <${Figure} title="Mean latency" ...${own} of=${(/** @type {any} */ s) => s.latencies[id]} text=${(/** @type {number} */ n) => `${n.toFixed(1)} ms`} none="The node has coordinated no request since the page was opened." />
      <${Figure} title="Stored" ...${own} of=${(/** @type {any} */ s) => s.nodes[id]?.bytes} text=${size} none=${SOON} />
      <${Figure} title="Tablet operations" ...${long} of=${(/** @type {any} */ s) => s.rates[id]} text=${perSecond} none=${reported} />
      <${Figure} title="Bytes in tablets" ...${long} of=${(/** @type {any} */ s) => s.sizes[id]} text=${size} none=${reported} />
      <${Figure} title="Tablets read from it" ...${long} of=${(/** @type {any} */ s) => s.tablets[id]} text=${(/** @type {number} */ n) => String(Math.round(n))} none=${reported} />
    </div></section>`;
}
