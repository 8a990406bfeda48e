// Operations: the state of each, its progress, what blocks it, what can be done; and the finished ones.

import { html, useState } from "./vendor/htm-preact.js";
import { get, visible } from "./api.js";
import { ask, OperationMenu } from "./ask.js";
import { go, shownEpoch, state } from "./store.js";
import { Badge, Card, Empty, EpochItem, EpochLink, Loading, NodeLink, Panel, ProgressBar, Sentence, Stepper, Time, useAnswer, useStore } from "./ui.js";
import { capital, duration, size } from "./words.js";

/** Finished operations that are listed at first, and with each press of the button. */
const LISTED = 50;
const STATUSES = ["done", "failed", "cancelled"];
/** How the lines of `stele why` about advice and about other blockers begin. */
const ADVICE = "do: ";
const BLOCKER = "held up by ";
/** Waits that hold up no operation. */
const ASIDE = ["cleanup", "archive"];

/** @param {any} request @returns {boolean} whether it is pending or running */
export function isOpen(request) {
  return request.status === "pending" || request.status === "running";
}

/** @param {string} name of a state, as the log has it */
const words = (name) => name.replaceAll("_", " ");

export function OperationsView() {
  useStore();
  const requests = state.overview?.requests ?? null;
  const open = (requests ?? []).filter(isOpen);
  return html`<section class="operationsview" aria-label="Operations">
    ${!shownEpoch() && html`<${OperationMenu} />`}
    <h2>Running and pending</h2>
    ${!requests ? html`<${Loading} what="operations" />`
      : open.length ? open.map((/** @type {any} */ r) => html`<${OperationCard} key=${r.request_id} request=${r} />`)
      : html`<${Empty}>No operation is running or pending. Each one appears here with its states, its progress and what it waits for.<//>`}
    ${requests && html`<${Finished} requests=${requests.filter((/** @type {any} */ r) => !isOpen(r))} />`}
    ${state.place.request && html`<${Story} id=${state.place.request} />`}
  </section>`;
}

/** The finished operations that match the filters in the address. @param {{requests: any[]}} props */
function Finished({ requests }) {
  const [most, setMost] = useState(LISTED);
  const { status = "", kind = "", contains = "" } = state.place;
  const kinds = [...new Set(requests.map((r) => r.kind))].sort();
  const wanted = contains.toLowerCase();
  const found = requests.filter((r) => (!status || r.status === status) && (!kind || r.kind === kind)
    && [r.what, r.actor, r.reason, r.error].some((each) => each.toLowerCase().includes(wanted)));
  return html`<${Card} title="Finished" name="finished" more=${html`<span class="note">${found.length} of ${requests.length}</span>`}>
    <div class="bar" role="search" aria-label="Filter finished operations">
      <span class="segments" role="group" aria-label="Status">${["", ...STATUSES].map((each) => html`<button aria-pressed=${status === each} data-status=${each || "all"} onClick=${() => go({ status: each }, true)}>${each || "all"}</button>`)}</span>
      <label>Kind <select name="kind" value=${kind} onChange=${(/** @type {any} */ e) => go({ kind: e.target.value }, true)}>
        <option value="">all</option>${kinds.map((each) => html`<option value=${each}>${words(each)}</option>`)}</select></label>
      <label>Contains <input name="contains" type="search" placeholder="name, actor or reason" value=${contains} onInput=${(/** @type {any} */ e) => go({ contains: e.target.value }, true)} /></label>
    </div>
    ${found.length ? html`<div class="scroll"><table class="finished">
      <thead><tr><th>Operation</th><th>Status</th><th>Requested</th><th class="number">Epoch</th><th class="number">Took</th><th>By</th><th>Reason</th></tr></thead>
      <tbody>${found.slice(0, most).map((r) => html`<tr key=${r.request_id}>
        <td><button class="link" onClick=${() => go({ request: r.request_id })}>${r.what}</button></td>
        <td class="fixed"><${Badge} state=${r.status} /></td>
        <td><${Time} ms=${r.submitted_at_ms} /></td>
        <td class="number"><${EpochLink} epoch=${r.submitted_epoch} /></td>
        <td class="number fixed">${r.finished_at_ms ? duration((r.finished_at_ms - r.submitted_at_ms) / 1000) : ""}</td>
        <td class="actor">${r.actor}</td><td>${r.reason}${r.error && html`<div class=${r.status === "done" ? "note" : "bad"}>${r.error}</div>`}</td></tr>`)}</tbody>
    </table></div>` : html`<${Empty}>${requests.length ? "No finished operation matches these filters." : "No operation has finished yet."}<//>`}
    ${found.length > most && html`<button onClick=${() => setMost(most + LISTED)}>Show more</button>`}<//>`;
}

/** The newest poll of the services, if it is not older than the present state of this request. @param {any} request */
function polled(request) {
  const isOfNow = !shownEpoch() && (state.looked?.epoch ?? 0) >= Math.max(request.submitted_epoch, request.entered_epoch);
  return isOfNow ? state.looked : null;
}

/** Its streams, as the coordinator counts them. @param {any} request */
const workOf = (request) => polled(request)?.progress?.transitions.find((/** @type {any} */ t) => t.request_ids.includes(request.request_id));

/** One line for the overview: name, progress, time left. @param {{request: any}} props */
export function OperationBar({ request }) {
  const work = workOf(request);
  const label = html`<button class="link" onClick=${() => go({ view: "operations", request: request.request_id })}>${request.what}</button> <${Badge} state=${request.status} />`;
  const isStreaming = work?.bytes_total > 0;
  const figures = isStreaming ? figuresOf(work) : request.state ? `${words(request.state)}, step ${request.step} of ${request.steps.length - 1}` : "waits to start";
  return html`<div data-running=${request.request_id}><${ProgressBar} label=${label} done=${isStreaming ? work.bytes_done : request.step} total=${isStreaming ? work.bytes_total : request.steps.length - 1}
    figures=${figures} kind=${request.mark ? "warn" : ""} /></div>`;
}

/** @param {any} work */
function figuresOf(work) {
  const left = work.eta_s === null || work.bytes_done >= work.bytes_total ? "" : `, ${work.eta_at_least ? "at least" : "about"} ${duration(work.eta_s)} left`;
  return `${size(work.bytes_done)} of ${size(work.bytes_total)}${left}`;
}

/** @param {{request: any}} props */
function Asked({ request }) {
  return html`<p class="by">Requested <${Time} ms=${request.submitted_at_ms} /> at epoch <${EpochLink} epoch=${request.submitted_epoch} /> by ${request.actor || "an unknown actor"}${request.reason ? `: ${request.reason}` : ""}</p>`;
}

/** @param {{request: any}} props */
function OperationCard({ request }) {
  const looked = polled(request);
  const sentences = looked?.why.by_request[request.request_id] ?? [];
  // Blockers have their own table.
  const waits = sentences.filter((/** @type {string} */ text) => !text.startsWith(ADVICE) && !text.startsWith(BLOCKER));
  const advice = sentences.find((/** @type {string} */ text) => text.startsWith(ADVICE));
  const work = workOf(request);
  const all = looked?.progress?.waits ?? [];
  const wait = all.find((/** @type {any} */ w) => w.request_ids.includes(request.request_id)) ?? all.find((/** @type {any} */ w) => !w.request_ids.length && !ASIDE.includes(w.kind));
  return html`<article class=${`card request ${request.mark ? "warn" : "busy"}`} data-request=${request.request_id}>
    <header><h2><button class="link" onClick=${() => go({ request: request.request_id })}>${request.what}</button> <${Badge} state=${request.status} /></h2>
      ${!shownEpoch() && request.can_cancel && html`<button class="danger" data-deed="cancel" onClick=${() => ask("cancel", { request: request.request_id }, `Cancel: ${request.what}`)}>Cancel…</button>`}</header>
    <${Asked} request=${request} />
    ${request.steps && html`<${Stepper} steps=${request.steps.map(words)} at=${request.step} failed=${Boolean(request.mark)} />`}
    ${request.mark && html`<p class="warn">It is being undone: ${request.mark}</p>`}
    ${work && work.bytes_total > 0 && html`<div class="streams"><${ProgressBar} label="Data streamed" done=${work.bytes_done} total=${work.bytes_total} figures=${looked.why.streamed[request.request_id] ?? figuresOf(work)} />
      ${Object.keys(work.nodes).length > 1 && html`<details><summary>By node</summary>${Object.entries(work.nodes).map(([node, n]) => html`<${ProgressBar} key=${node} label=${`${node}: ${n.kind} ${n.status}`} done=${n.bytes_done} total=${n.bytes_total} figures=${`${size(n.bytes_done)} of ${size(n.bytes_total)}`} />`)}</details>`}</div>`}
    ${waits.length > 0 && html`<ul class="why">${waits.map((/** @type {string} */ text) => html`<li><${Sentence} text=${capital(text)} /></li>`)}</ul>`}
    ${wait?.blockers.length > 0 && html`<${Blockers} wait=${wait} />`}
    ${advice && html`<p class="note"><strong>What to do:</strong> <${Sentence} text=${advice.slice(ADVICE.length)} /></p>`}
  </article>`;
}

/** Nodes that it waits for: the cause and those that are down one by one, the others by name. @param {{wait: any}} props */
function Blockers({ wait }) {
  const blockers = /** @type {any[]} */ (wait.blockers.filter((/** @type {any} */ b) => b.is_down || b.node_id === wait.cause));
  const others = wait.blockers.filter((/** @type {any} */ b) => !blockers.includes(b));
  const rest = others.length > 0 && html`<p class="note">${blockers.length ? "Also waits" : "Waits"} for ${others.map((/** @type {any} */ b) => html`<${NodeLink} node=${b.node_id} /> `)}</p>`;
  if (!blockers.length) return others.length > 1 ? rest : null; // its sentence names a single one
  const dead = new Set((state.looked?.liveness ?? []).filter((/** @type {any} */ row) => row.liveness === "down").map((/** @type {any} */ row) => row.node_id));
  return html`<div class="scroll"><table class="blockers"><thead><tr><th>Waits for</th><th>Status</th><th>Because it</th><th>Last heard</th><th><span class="unseen">Actions</span></th></tr></thead>
    <tbody>${blockers.map((b) => html`<tr key=${b.node_id}><td><${NodeLink} node=${b.node_id} /></td><td class="fixed"><${Badge} state=${dead.has(b.node_id) ? "down" : "up"} /></td><td>${b.why}</td>
      <td class="fixed">${b.silent_for_s === null ? "never" : `${duration(b.silent_for_s)} ago`}</td>
      <td>${!shownEpoch() && dead.has(b.node_id) && html`<button class="danger" onClick=${() => ask("exclude", { nodes: b.node_id })}>Exclude ${b.node_id}…</button>`}</td></tr>`)}</tbody></table></div>${rest}`;
}

/** One operation, epoch by epoch. @param {{id: string}} props */
function Story({ id }) {
  const { answer, problem } = useAnswer((signal) => get("/api/request", { id, epoch: shownEpoch() || undefined }, signal), `${id} ${shownEpoch()}`, state.overview?.epoch);
  return html`<${Panel} what=${id} label="Operation" kind="wide" ready=${answer !== null || problem !== ""} close=${() => go({ request: "" })}>
    ${problem || !answer ? html`<h2>Operation</h2>${problem ? html`<p class="bad">${problem}</p>` : html`<${Loading} what="its epochs" />`}` : html`<${Steps} id=${id} answer=${answer} />`}
  <//>`;
}

/** @param {{id: string, answer: any}} props */
function Steps({ id, answer }) {
  const epochs = [...answer.epochs.epochs].reverse();
  const begin = epochs[0]?.at_ms ?? 0;
  const own = epochs.find((/** @type {any} */ each) => each.request_id === id);
  const span = Math.max(1, (epochs.at(-1)?.at_ms ?? begin) - begin);
  const shown = answer.shown;
  return html`
    <h2>${shown?.what ?? own?.command ?? "Operation"} ${shown && html`<${Badge} state=${shown.status} />`}</h2>
    ${shown ? html`<${Asked} request=${shown} />` : own && html`<p class="by">Requested at epoch <${EpochLink} epoch=${own.epoch} /> by ${own.actor || "an unknown actor"}${own.reason ? `: ${own.reason}` : ""}</p>`}
    <p class="note">Request <code>${visible(id)}</code></p>
    ${answer.away && html`<p class="bad">${answer.away}</p>`}
    ${answer.request?.error && html`<p class=${answer.request.status === "done" ? "note" : "warn"}>${answer.request.error}</p>`}
    <svg class="line" viewBox="0 0 1000 24" preserveAspectRatio="none" role="img" aria-label=${`Time line of ${epochs.length} epochs over ${duration(span / 1000)}`}>
      <line x1="0" x2="1000" y1="12" y2="12" />
      ${epochs.map((/** @type {any} */ e) => html`<circle cx=${8 + (984 * (e.at_ms - begin)) / span} cy="12" r="6"><title>${`epoch ${e.epoch}: ${e.lines.join("; ")}`}</title></circle>`)}
    </svg>
    <ol class="epochs">${epochs.map((/** @type {any} */ told) => html`<${EpochItem} key=${told.epoch} told=${told} />`)}</ol>
    ${answer.epochs.next_before > 0 && html`<p class="note">Older epochs were not searched.</p>`}`;
}
