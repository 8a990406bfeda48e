// Health: what to look at first, then every process, and what each supports.

import { html } from "./vendor/htm-preact.js";
import { shownEpoch, state } from "./store.js";
import { Badge, Sentence, useStore } from "./ui.js";
import { counted } from "./words.js";

/** What the processes say of somebody whom they need. @param {any} looked @param {RegExp} name */
function saidOf(looked, name) {
  const said = (looked?.processes ?? []).filter((/** @type {any} */ p) => name.test(p.reason));
  if (said.length) return html`<span class="bad">${said.map((/** @type {any} */ p) => `${p.service}: ${p.reason}`).join("; ")}</span>`;
  return (looked?.processes ?? []).some((/** @type {any} */ p) => p.up) ? "no process says that it cannot reach it" : "not known";
}

export function HealthView() {
  useStore();
  const looked = state.looked;
  const alerts = looked?.alerts ?? [];
  const clusters = (looked?.processes ?? []).flatMap((/** @type {any} */ p) => p.clusters);
  const services = state.overview?.services ?? [];
  return html`<section class="healthview" aria-label="Health">
    ${shownEpoch() > 0 && html`<p class="note" data-note="now">Alerts, processes and the pipeline are of now; versions, features and what runs are of epoch ${shownEpoch()}.</p>`}
    <h2>To look at</h2>
    ${alerts.length ? html`<ul class="alerts">${alerts.map((/** @type {any} */ a) => html`<li class=${a.level}><strong>${a.level}</strong> ${a.text} <em><${Sentence} text=${a.do} /></em></li>`)}</ul>` : html`<p>${looked ? "Nothing." : "No look yet."}</p>`}
    <h2>Processes</h2>
    <table><thead><tr><th>process</th><th>address</th><th>is</th><th>epoch</th><th>behind</th><th>answered in</th><th>says</th></tr></thead>
      <tbody>${(looked?.processes ?? []).map((/** @type {any} */ p) => html`<tr key=${p.url} data-process=${p.service}><td>${p.service}</td><td>${p.url}</td><td><${Badge} state=${p.up ? (p.ok ? "up" : "failed") : "down"} /></td>
        <td>${p.epoch || ""}</td><td>${p.lag ?? ""}</td><td>${p.answered_ms === null ? "" : `${p.answered_ms} ms`}</td><td>${p.reason}</td></tr>`)}</tbody></table>
    ${clusters.length > 0 && html`<h2>Tables of the pipeline</h2>
    <table><thead><tr><th>cluster</th><th>is</th><th>epoch</th><th>behind</th><th>read, not in the tables</th><th>not read yet</th><th>strays skipped</th></tr></thead>
      <tbody>${clusters.map((/** @type {any} */ c) => html`<tr key=${c.cluster} data-cluster=${c.cluster}><td>${c.cluster}</td><td><${Badge} state=${c.quarantine ? "quarantined" : "goes on"} /></td><td>${c.epoch}</td>
        <td>${c.cluster === state.overview?.cluster ? counted(Math.max(0, state.newest - c.epoch), "epoch", "epochs") : ""}</td><td>${counted(c.waiting, "epoch", "epochs")}</td><td>${counted(c.not_judged, "record", "records")}</td><td>${c.strays}</td></tr>
        ${c.quarantine && html`<tr><td></td><td colspan="6" class="bad">${c.quarantine}</td></tr>`}`)}</tbody></table>`}
    <h2>The log, and what it needs</h2>
    <dl class="flat"><dt>newest epoch</dt><dd>${state.newest}</dd>
      <dt>came to this page</dt><dd>${state.delayMs < 0 ? "none has come since the page was opened" : `${state.delayMs} ms after it was written, by the two clocks`}</dd>
      <dt>broker</dt><dd data-of="broker">${saidOf(looked, /broker|kafka|not certain that the log/i)}</dd>
      <dt>Redis</dt><dd data-of="redis">${saidOf(looked, /redis/i)}</dd>
      <dt>versions</dt><dd>version ${state.overview?.topology.version ?? ""}, fence ${state.overview?.topology.fence_version ?? ""}</dd>
      <dt>coordinator</dt><dd>${state.overview?.coordinator.holder ?? ""} in term ${state.overview?.coordinator.term ?? ""}</dd>
      <dt>features</dt><dd>${(state.overview?.features ?? []).join(", ") || "none"}</dd></dl>
    <h2>What runs</h2>
    <table><thead><tr><th>service</th><th>release</th><th>supports</th></tr></thead>
      <tbody>${services.map((/** @type {any} */ s) => html`<tr><td>${s.service_id}</td><td>${s.release_version}</td><td>${s.supported_features.join(", ")}</td></tr>`)}
        ${(state.overview?.nodes ?? []).filter((/** @type {any} */ n) => n.state !== "left").map((/** @type {any} */ n) => html`<tr><td>node ${n.node_id}</td><td>${n.release_version}</td><td></td></tr>`)}</tbody></table>
  </section>`;
}
