// Overview: the health of the cluster with its reason, what runs now, and what has changed.

import { html, useEffect } from "./vendor/htm-preact.js";
import { get } from "./api.js";
import { Chart } from "./chart.js";
import { isOpen, OperationBar } from "./operations_view.js";
import { go, readEpochs, shownEpoch, state } from "./store.js";
import { Badge, Card, Empty, EpochLink, kindOf, Loading, ProgressBar, Sentence, Tile, Time, useAnswer, useStore } from "./ui.js";
import { asCounted, counted, firstLine, size } from "./words.js";

const CHANGES = 10;
/** Epochs that are read at most to find that many changes. */
const MOST_READ = 600;
/** Nodes of the balance card, and rows of the card about lag. */
const LISTED = 12;
/** Between two readings of throughput and balance; milliseconds. */
const EVERY_MS = 5000;
const BALANCER = "tablet-balancer";
/** The actor of all steps of operations. */
const COORDINATOR = "coordinator";

export function OverviewView() {
  useStore();
  const turn = Math.floor((state.looked?.at_ms ?? 0) / EVERY_MS);
  const throughput = useAnswer((signal) => get("/api/throughput", {}, signal), "", turn);
  const balance = useAnswer((signal) => get("/api/balance", {}, signal), "", turn);
  if (!state.overview) return html`<section aria-label="Overview"><${Loading} what="the state of the cluster" /></section>`;
  const samples = throughput.answer?.samples ?? null;
  return html`<section class="overview" aria-label="Overview">
    ${shownEpoch() > 0 && html`<p class="note" data-note="now">Nodes, operations and changes are of epoch ${shownEpoch()}. Health, throughput, lag and balance are of now.</p>`}
    <${HealthLine} />
    <${Figures} samples=${samples} balance=${balance.answer} />
    <div class="grid">
      <div class="two-thirds">
        <${Running} />
        <${Throughput} samples=${samples} problem=${throughput.problem} />
        <${Changes} />
      </div>
      <div class="third">
        <${Alerts} />
        <${NodesByRack} />
        <${Lag} />
        <${Balance} answer=${balance.answer} problem=${balance.problem} />
      </div>
    </div>
  </section>`;
}

/** @returns {Map<string, any>} the liveness of each node, by its name */
function liveness() {
  return new Map((state.looked?.liveness ?? []).map((/** @type {any} */ row) => [row.node_id, row]));
}

const members = () => state.overview.nodes.filter((/** @type {any} */ n) => n.state !== "left");

/** The state of a node in one word: its liveness where that is bad, else its state. @param {any} node @param {Map<string, any>} live */
function nodeState(node, live) {
  const found = live.get(node.node_id)?.liveness;
  if (node.excluded) return "excluded";
  if (!shownEpoch() && found === "down") return "down";
  return node.state === "none" ? "not joined" : node.state;
}

function HealthLine() {
  const looked = state.looked;
  if (!looked) return html`<${Card} title="Health" name="health"><${Loading} what="the health of the services" /><//>`;
  const { alerts, ranges } = looked;
  const level = !alerts.length ? "healthy" : alerts[0].level === "bad" ? "critical" : "degraded";
  const up = looked.liveness.filter((/** @type {any} */ row) => row.liveness === "up").length;
  const rest = alerts.length > 1 ? ` And ${counted(alerts.length - 1, "more alert", "more alerts")}.` : "";
  const all = ranges.total ? `${counted(ranges.total, "range has", "ranges and tablets have")} all replicas live` : "there is no range yet";
  const reason = alerts.length ? `${alerts[0].text}${rest}` : `${up} of ${counted(looked.liveness.length, "node", "nodes")} up, ${all}, no alerts.`;
  return html`<p class=${`card healthline ${kindOf(level)}`} role="status" data-health=${level}><${Badge} state=${level} /> <${Sentence} text=${reason} /></p>`;
}

/** @param {{samples: any[] | null, balance: any}} props */
function Figures({ samples, balance }) {
  const live = liveness();
  const nodes = members();
  const down = nodes.filter((/** @type {any} */ n) => nodeState(n, live) === "down").length;
  const racks = new Set(nodes.map((/** @type {any} */ n) => `${n.dc}/${n.rack}`)).size;
  const dcs = new Set(nodes.map((/** @type {any} */ n) => n.dc)).size;
  const open = state.overview.requests.filter(isOpen);
  const pending = open.filter((/** @type {any} */ r) => r.status === "pending").length;
  const newest = samples?.at(-1);
  const p99 = samples?.findLast((/** @type {any} */ s) => s.p99_ms !== null);
  const ranges = state.looked?.ranges;
  const slowest = readers()[0];
  return html`<div class="tiles">
    <${Tile} label="Nodes up" name="nodes" figure=${state.looked ? `${nodes.length - down} / ${nodes.length}` : "…"} kind=${down ? "bad" : ""} detail=${`${counted(racks, "rack", "racks")}, ${counted(dcs, "datacentre", "datacentres")}`} />
    <${Tile} label="Ranges and tablets" name="ranges" figure=${ranges ? ranges.total.toLocaleString("en") : "…"} kind=${ranges?.unavailable ? "bad" : ranges?.under_replicated ? "warn" : ""}
      detail=${!ranges ? "" : ranges.under_replicated ? `${ranges.under_replicated} under-replicated, ${ranges.unavailable} unavailable` : "all replicas live"} />
    <${Tile} label="Operations" name="operations" figure=${open.length - pending} detail=${`running, ${pending || "none"} pending`} />
    <${Tile} label="Commits/s" name="commits" figure=${newest?.commits_per_s === undefined || newest.commits_per_s === null ? "…" : newest.commits_per_s.toFixed(1)} detail=${`newest epoch ${state.newest.toLocaleString("en")}`} />
    <${Tile} label="Latency, p99" name="latency" figure=${p99 ? ms(p99.p99_ms) : samples ? "none" : "…"} detail=${p99 ? `p50 ${ms(p99.p50_ms)}` : "no command in the last half hour"} />
    <${Tile} label="Largest lag" name="lag" figure=${slowest ? counted(slowest.lag, "epoch", "epochs") : "…"} kind=${slowest?.lag > 100 ? "warn" : ""} detail=${!slowest ? "" : slowest.lag ? slowest.name : "all readers are current"} />
    <${Tile} label="Balance" name="balance" figure=${balance ? String(balance.state).replaceAll("_", " ") : "…"} kind=${balance?.state === "stalled" ? "warn" : ""} detail=${balance ? shareText(balance) : ""} />
  </div>`;
}

/** @param {number} value */
const ms = (value) => (value >= 1000 ? `${(value / 1000).toFixed(1)} s` : `${value.toFixed(value < 10 ? 1 : 0)} ms`);

/** @param {any} balance */
function shareText(balance) {
  const shares = Object.values(balance.nodes).flatMap((/** @type {any} */ n) => (n.of_share === null ? [] : [n.of_share]));
  if (!shares.length) return `by ${balance.balanced_by}`;
  const [least, most] = [Math.min(...shares), Math.max(...shares)].map((each) => Math.round(100 * each));
  return least === most ? `each node holds ${most} % of its share` : `nodes hold ${least} to ${most} % of their share`;
}

function Running() {
  const open = state.overview.requests.filter(isOpen);
  const more = html`<button class="link" onClick=${() => go({ view: "operations" })}>All operations</button>`;
  return html`<${Card} title="Running operations" name="running" more=${more}>
    ${open.length ? open.slice(0, LISTED).map((/** @type {any} */ r) => html`<${OperationBar} key=${r.request_id} request=${r} />`)
      : html`<${Empty}>No operation is running or pending. Joins, moves and schema changes appear here with their progress.<//>`}
    ${open.length > LISTED && html`<p class="note">and ${open.length - LISTED} more</p>`}<//>`;
}

/** @param {{samples: any[] | null, problem: string}} props */
function Throughput({ samples, problem }) {
  const times = (samples ?? []).map((s) => s.at_ms / 1000);
  const of = (/** @type {string} */ name) => (samples ?? []).map((s) => s[name]);
  const body = (/** @type {any} */ chart) => {
    if (problem && !samples) return html`<p class="bad">${problem}</p>`;
    if (!samples) return html`<${Loading} what="the last half hour" />`;
    return samples.length > 1 ? chart : html`<${Empty}>The chart begins with the second sample. The console takes one every five seconds.<//>`;
  };
  return html`<div class="pair">
    <${Card} title="Commits per second" name="commits-chart">${body(html`<${Chart} label="Commits per second in the last half hour" times=${times} filled=${true}
      series=${[{ label: "commits/s", values: of("commits_per_s") }]} format=${(/** @type {number} */ v) => v.toFixed(v < 10 ? 1 : 0)} />`)}<//>
    <${Card} title="Commit latency" name="latency-chart">${body(html`<${Chart} label="Commit latency in the last half hour" times=${times}
      series=${[{ label: "p50", values: of("p50_ms") }, { label: "p99", values: of("p99_ms"), dash: [6, 3] }]} format=${ms} />`)}<//>
  </div>`;
}

/** Lines about refused steps of the coordinator. */
const REFUSED_STEP = /^[a-z_]+ by coordinator /;
const PENDING = /^request [0-9a-f-]{36} is pending: /;

/** @param {any} told @returns {boolean} whether somebody requested this epoch: it is no step of a service, and no barrier */
function isChange(told) {
  if (told.command === "noop") return told.refused && !told.lines.every((/** @type {string} */ line) => REFUSED_STEP.test(line));
  return told.actor !== COORDINATOR && !told.command.startsWith("announce_");
}

/** Changes, the newest first. Those of the balancer that follow each other are one. @param {any[]} epochs @returns {{newest: any, count: number}[]} */
function grouped(epochs) {
  const found = /** @type {{newest: any, count: number}[]} */ ([]);
  for (const each of epochs) {
    const last = found.at(-1);
    if (last?.newest.actor === BALANCER && each.actor === BALANCER) last.count += 1;
    else if (found.length === CHANGES) break;
    else found.push({ newest: each, count: 1 });
  }
  return found;
}

function Changes() {
  const shown = shownEpoch() || Infinity;
  const found = grouped(state.epochs.filter((each) => each.epoch <= shown && isChange(each)));
  const mayRead = found.length < CHANGES && state.nextBefore > 0 && state.epochs.length < MOST_READ;
  useEffect(() => {
    if (mayRead) readEpochs(state.nextBefore);
  }, [mayRead, state.nextBefore]);
  const more = html`<button class="link" onClick=${() => go({ view: "history" })}>History</button>`;
  return html`<${Card} title="Last changes" name="changes" more=${more}>
    ${found.length ? html`<div class="scroll"><table><thead><tr><th>Time</th><th>Change</th><th>By</th><th>Reason</th><th class="number">Epoch</th></tr></thead>
      <tbody>${found.map(({ newest: each, count }) => html`<tr key=${each.epoch} data-epoch=${each.epoch}><td><${Time} ms=${each.at_ms} /></td><td><${Change} told=${each} count=${count} /></td>
        <td class="actor">${each.actor}</td><td>${count > 1 ? "" : each.reason}</td><td class="number"><${EpochLink} epoch=${each.epoch} /></td></tr>`)}</tbody></table></div>`
      : mayRead || !state.newest ? html`<${Loading} what="the last changes" />` : html`<${Empty}>Nobody has changed anything yet. Changes of the schema, of nodes and of settings appear here.<//>`}<//>`;
}

/** @param {{told: any, count: number}} props */
function Change({ told, count }) {
  const request = told.refused ? null : state.overview.requests.find((/** @type {any} */ r) => r.request_id === told.request_id);
  const more = count > 1 ? html` <small>and ${counted(count - 1, "earlier change", "earlier changes")}</small>` : "";
  if (!request) return html`${(firstLine(told) || told.command).replace(PENDING, "")} ${told.refused && html`<${Badge} state="refused" />`}${more}`;
  return html`<button class="link" onClick=${() => go({ view: "operations", request: request.request_id })}>${request.what}</button> <${Badge} state=${request.status} />${more}`;
}

function Alerts() {
  const alerts = state.looked?.alerts;
  if (!alerts) return html`<${Card} title="Alerts" name="alerts"><${Loading} what="alerts" /><//>`;
  return html`<${Card} title="Alerts" name="alerts" kind=${alerts.length ? (alerts[0].level === "bad" ? "bad" : "warn") : ""}>
    ${alerts.length ? html`<${AlertList} alerts=${alerts} />` : html`<${Empty}>None. Problems of nodes, services and operations appear here, with advice.<//>`}<//>`;
}

/** @param {{alerts: any[]}} props */
export function AlertList({ alerts }) {
  return html`<ul class="alerts">${alerts.map((/** @type {any} */ a) => html`<li>
    <${Badge} state=${a.level === "bad" ? "critical" : "warning"} /> <${Sentence} text=${a.text} />
    <div class="advice"><${Sentence} text=${a.do} />${Object.keys(a.place).length > 0 && html` <button class="link" onClick=${() => go({ node: "", request: "", ...a.place })}>Show</button>`}</div></li>`)}</ul>`;
}

function NodesByRack() {
  const live = liveness();
  /** @type {Map<string, any[]>} */
  const places = new Map();
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const node of members()) {
    const place = `${node.dc}, ${node.rack}`;
    places.set(place, [...(places.get(place) ?? []), node]);
    const found = nodeState(node, live);
    counts.set(found, (counts.get(found) ?? 0) + 1);
  }
  const more = html`<button class="link" onClick=${() => go({ view: "nodes" })}>All nodes</button>`;
  return html`<${Card} title="Nodes by rack" name="racks" more=${more}>
    ${places.size ? html`<p class="states">${[...counts].map(([name, count]) => html`<span class=${`badge ${kindOf(name) || (name === "excluded" ? "bad" : "warn")}`}>${count} ${name}</span> `)}</p>
      <dl class="rows">${[...places].sort(([a], [b]) => asCounted(a, b)).map(([place, nodes]) => html`<dt>${place}</dt><dd class="squares">${nodes.sort((a, b) => asCounted(a.node_id, b.node_id)).map((node) => html`<button
        class=${`square ${kindOf(nodeState(node, live)) || "warn"}`} title=${`${node.node_id}: ${nodeState(node, live)}`} aria-label=${`${node.node_id}: ${nodeState(node, live)}`} onClick=${() => go({ view: "nodes", node: node.node_id })}>${node.node_id}</button>`)}</dd>`)}</dl>`
      : html`<${Empty}>No node has joined yet. Nodes appear here by datacentre and rack.<//>`}<//>`;
}

/** Readers of the log and how far each is behind, the slowest first. @returns {{name: string, lag: number, more: string}[]} */
function readers() {
  const found = [];
  for (const process of state.looked?.processes ?? []) {
    if (process.lag !== null) found.push({ name: process.service, lag: process.lag, more: "" });
    for (const each of process.clusters) {
      if (each.cluster !== state.overview?.cluster) continue;
      const unread = each.not_judged ? `, ${counted(each.not_judged, "record", "records")} not read yet` : "";
      found.push({ name: "Spark tables", lag: Math.max(0, state.newest - each.epoch), more: unread });
    }
  }
  return found.sort((a, b) => b.lag - a.lag || asCounted(a.name, b.name));
}

function Lag() {
  const found = readers();
  const late = found.filter((each) => each.lag > 0 || each.name === "Spark tables");
  return html`<${Card} title="Lag of readers" name="lag-card">
    ${!state.looked ? html`<${Loading} what="the epochs of all readers" />` : html`<p class="note">${counted(found.length - found.filter((each) => each.lag > 0).length, "reader is", "readers are")} at the newest epoch${late.length ? "" : ", none is behind"}.</p>
      <dl class="rows">${late.slice(0, LISTED).map((each) => html`<dt>${each.name}</dt><dd>${each.lag ? `${counted(each.lag, "epoch", "epochs")} behind` : "current"}${each.more}</dd>`)}</dl>`}<//>`;
}

/** @param {{answer: any, problem: string}} props */
function Balance({ answer, problem }) {
  const nodes = Object.entries(answer?.nodes ?? {}).sort(([a], [b]) => asCounted(a, b));
  const most = Math.max(1, ...nodes.map(([, n]) => n.tablets));
  const more = html`<button class="link" onClick=${() => go({ view: "balance" })}>Balance</button>`;
  return html`<${Card} title="Tablets by node" name="balance-card" more=${more}>
    ${problem && !answer && html`<p class="bad">${problem}</p>`}
    ${!answer && !problem && html`<${Loading} what="the balance" />`}
    ${answer && !nodes.some(([, n]) => n.tablets) && html`<${Empty}>No table has tablets. Replicas by node appear here once one has.<//>`}
    ${nodes.some(([, n]) => n.tablets) && nodes.slice(0, LISTED).map(([name, n]) => html`<${ProgressBar} key=${name} label=${name} done=${n.tablets} total=${most}
      figures=${[counted(n.tablets, "tablet", "tablets"), n.size_bytes === null ? "" : size(n.size_bytes)].filter(Boolean).join(", ")} />`)}
    ${nodes.length > LISTED && html`<p class="note">and ${counted(nodes.length - LISTED, "more node", "more nodes")}</p>`}
    ${answer?.planned.length > 0 && html`<p class="note">${counted(answer.planned.length, "move", "moves")} planned.</p>`}<//>`;
}
