// Requests: what each waits for, who holds it up, how far its streams are, and what can be done.

import { html, useState } from "./vendor/htm-preact.js";
import { get, visible } from "./api.js";
import { ask, operations } from "./ask.js";
import { go, shownEpoch, state } from "./store.js";
import { Badge, EpochItem, EpochLink, NodeLink, Panel, Sentence, Time, useAnswer, useStore } from "./ui.js";
import { duration, size } from "./words.js";

export function RequestsView() {
  useStore();
  const requests = state.overview?.requests ?? [];
  const open = requests.filter((/** @type {any} */ r) => r.status === "pending" || r.status === "running");
  const over = requests.filter((/** @type {any} */ r) => !open.includes(r));
  return html`<section class="requestsview" aria-label="Requests">
    ${!shownEpoch() && html`<${Menu} />`}
    <h2>Under way</h2>
    ${open.length ? open.map((/** @type {any} */ r) => html`<${Open} key=${r.request_id} request=${r} />`) : html`<p>${state.overview ? "Nothing to do: no request is pending or running." : "Not known yet."}</p>`}
    <h2>Over</h2>
    <table>
      <thead><tr><th>what</th><th>status</th><th>asked</th><th>took</th><th>by</th><th>why</th></tr></thead>
      <tbody>${over.map((/** @type {any} */ r) => html`<tr key=${r.request_id}>
        <td><button class="link" onClick=${() => go({ request: r.request_id })}>${r.what}</button></td>
        <td><${Badge} state=${r.status} /></td>
        <td><${EpochLink} epoch=${r.submitted_epoch} /> <${Time} ms=${r.submitted_at_ms} /></td>
        <td>${r.finished_at_ms ? duration((r.finished_at_ms - r.submitted_at_ms) / 1000) : ""}</td>
        <td>${r.actor}</td><td>${r.reason}${r.error ? `; ${r.error}` : ""}</td></tr>`)}</tbody>
    </table>
    ${state.place.request && html`<${Story} id=${state.place.request} />`}
  </section>`;
}

/** All that can be asked for. */
function Menu() {
  const [name, setName] = useState("");
  const begin = (/** @type {Event} */ e) => {
    e.preventDefault();
    if (name) ask(name);
  };
  return html`<form class="bar" onSubmit=${begin}><label>ask for <select name="operation" value=${name} onChange=${(/** @type {any} */ e) => setName(e.target.value)}>
    <option value="">…</option>${operations().map((each) => html`<option value=${each.name}>${each.title}</option>`)}</select></label>
    <button disabled=${!name}>go on…</button></form>`;
}

/** @param {string} node */
const isDown = (node) => (state.looked?.liveness ?? []).some((/** @type {any} */ row) => row.node_id === node && row.liveness === "down");

/** @param {{request: any}} props */
function Open({ request }) {
  // a look from before it came to this state says what was waited for then
  const isOfNow = !shownEpoch() && (state.looked?.epoch ?? 0) >= Math.max(request.submitted_epoch, request.entered_epoch);
  const looked = isOfNow ? state.looked : null;
  const why = looked?.why.by_request[request.request_id] ?? [];
  const work = looked?.progress?.transitions.find((/** @type {any} */ t) => t.request_ids.includes(request.request_id));
  const wait = looked?.progress?.waits.find((/** @type {any} */ w) => w.request_ids.includes(request.request_id));
  return html`<article class="request" data-request=${request.request_id}>
    <h3><button class="link" onClick=${() => go({ request: request.request_id })}>${request.what}</button> <${Badge} state=${request.status} />
      ${request.state && html` <span>in <strong>${request.state}</strong> since epoch <${EpochLink} epoch=${request.entered_epoch} /></span>`}</h3>
    <p class="by">asked at epoch <${EpochLink} epoch=${request.submitted_epoch} /> by ${request.actor || "nobody"}${request.reason ? `: ${request.reason}` : ""}</p>
    ${request.mark && html`<p class="warn">It goes back: ${request.mark}</p>`}
    <ul class="why">${why.map((/** @type {string} */ text) => html`<li><${Sentence} text=${text} /></li>`)}</ul>
    ${wait && wait.blockers.length > 0 && html`<p>waits for ${wait.blockers.map((/** @type {any} */ b) => html`<${NodeLink} node=${b.node_id} /> ${isDown(b.node_id) && html`<button onClick=${() => ask("exclude", { nodes: b.node_id })}>${b.node_id} is dead for good…</button> `}`)}</p>`}
    ${work && work.bytes_total > 0 && html`<div class="streams">
      <label>streams <progress max=${work.bytes_total} value=${work.bytes_done}></progress></label>
      ${looked.why.streamed[request.request_id] ?? ""}
      <ul class="plain">${Object.entries(work.nodes).map(([node, n]) => html`<li>${node}: ${n.kind} ${n.status}, ${size(n.bytes_done)} of ${size(n.bytes_total)}</li>`)}</ul></div>`}
    ${!shownEpoch() && request.can_cancel && html`<button data-deed="cancel" onClick=${() => ask("cancel", { request: request.request_id }, `Cancel: ${request.what}`)}>cancel…</button>`}
  </article>`;
}

/** One request from its asking to its end. @param {{id: string}} props */
function Story({ id }) {
  const { answer, problem } = useAnswer((signal) => get("/api/request", { id, epoch: shownEpoch() || undefined }, signal), `${id} ${shownEpoch()}`, state.overview?.epoch);
  return html`<${Panel} what=${id} label="Request" kind="wide" ready=${answer !== null || problem !== ""} close=${() => go({ request: "" })}>
    ${problem || !answer ? html`<h2>Request</h2>${problem && html`<p class="bad">${problem}</p>`}` : html`<${Steps} id=${id} answer=${answer} />`}
  <//>`;
}

/** @param {{id: string, answer: any}} props */
function Steps({ id, answer }) {
  const epochs = [...answer.epochs.epochs].reverse();
  const begin = epochs[0]?.at_ms ?? 0;
  const own = epochs.find((/** @type {any} */ each) => each.request_id === id);
  const span = Math.max(1, (epochs.at(-1)?.at_ms ?? begin) - begin);
  return html`
    <h2>${answer.shown?.what ?? own?.command ?? "Request"} ${answer.shown && html`<${Badge} state=${answer.shown.status} />`}</h2>
    <p><code>${visible(id)}</code>${!answer.shown && own ? html` asked at epoch <${EpochLink} epoch=${own.epoch} /> by ${own.actor || "nobody"}${own.reason ? `: ${own.reason}` : ""}` : ""}</p>
    ${answer.away && html`<p class="bad">${answer.away}</p>`}
    ${answer.request?.error && html`<p class="warn">${answer.request.error}</p>`}
    <svg class="line" viewBox="0 0 1000 24" preserveAspectRatio="none" role="img" aria-label=${`Time line of ${epochs.length} epochs over ${duration(span / 1000)}`}>
      <line x1="0" x2="1000" y1="12" y2="12" />
      ${epochs.map((/** @type {any} */ e) => html`<circle cx=${8 + (984 * (e.at_ms - begin)) / span} cy="12" r="6"><title>${`epoch ${e.epoch}: ${e.lines.join("; ")}`}</title></circle>`)}
    </svg>
    <ol class="epochs">${epochs.map((/** @type {any} */ told) => html`<${EpochItem} key=${told.epoch} told=${told} />`)}</ol>
    ${answer.epochs.next_before > 0 && html`<p class="note">Older epochs were not looked through.</p>`}`;
}
