// Health: alerts, every process, the tables that Spark writes, the log, and releases.

import { html } from "./vendor/htm-preact.js";
import { AlertList } from "./overview_view.js";
import { shownEpoch, state } from "./store.js";
import { Badge, Card, Empty, Loading, useStore } from "./ui.js";
import { counted } from "./words.js";

/** What the processes report about a dependency. @param {any} looked @param {RegExp} name */
function reports(looked, name) {
  const found = (looked?.processes ?? []).filter((/** @type {any} */ p) => name.test(p.reason));
  if (found.length) return html`<span class="bad">${found.map((/** @type {any} */ p) => `${p.service}: ${p.reason}`).join("; ")}</span>`;
  return (looked?.processes ?? []).some((/** @type {any} */ p) => p.up) ? "no process reports a problem" : "unknown";
}

export function HealthView() {
  useStore();
  const looked = state.looked;
  return html`<section class="healthview overview" aria-label="Health">
    ${shownEpoch() > 0 && html`<p class="note" data-note="now">Alerts, processes and Spark's tables are of now. Versions, features and releases are of epoch ${shownEpoch()}.</p>`}
    <${Card} title="Alerts" kind=${looked?.alerts.length ? (looked.alerts[0].level === "bad" ? "bad" : "warn") : ""}>
      ${!looked ? html`<${Loading} what="alerts" />` : looked.alerts.length ? html`<${AlertList} alerts=${looked.alerts} />` : html`<${Empty}>None. Problems of nodes, services and operations appear here, with advice.<//>`}<//>
    <${Processes} looked=${looked} />
    <${Clusters} clusters=${(looked?.processes ?? []).flatMap((/** @type {any} */ p) => p.clusters)} />
    <div class="pair"><${Log} looked=${looked} /><${Releases} /></div>
  </section>`;
}

/** @param {{looked: any}} props */
function Processes({ looked }) {
  return html`<${Card} title="Processes">${!looked ? html`<${Loading} what="the processes" />` : html`<div class="scroll"><table>
    <thead><tr><th>Process</th><th>Address</th><th>Status</th><th class="number">Epoch</th><th class="number">Epochs behind</th><th class="number">Response time</th><th>Message</th></tr></thead>
    <tbody>${looked.processes.map((/** @type {any} */ p) => html`<tr key=${p.url} data-process=${p.service}><td class="fixed">${p.service}</td><td class="fixed">${p.url}</td><td class="fixed"><${Badge} state=${p.up ? (p.ok ? "up" : "failed") : "down"} /></td>
      <td class="number">${p.epoch || ""}</td><td class="number">${p.lag ?? ""}</td><td class="number fixed">${p.answered_ms === null ? "" : `${p.answered_ms.toFixed(1)} ms`}</td><td>${p.reason}</td></tr>`)}</tbody></table></div>`}<//>`;
}

/** @param {{clusters: any[]}} props */
function Clusters({ clusters }) {
  if (!clusters.length) return null;
  return html`<${Card} title="Tables of Spark"><div class="scroll"><table>
    <thead><tr><th>Cluster</th><th>Status</th><th class="number">Epoch</th><th class="number">Behind</th><th class="number">Read, not yet in the tables</th><th class="number">Not yet read</th><th class="number">Foreign records skipped</th></tr></thead>
    <tbody>${clusters.map((c) => html`<tr key=${c.cluster} data-cluster=${c.cluster}><td>${c.cluster}</td><td class="fixed"><${Badge} state=${c.quarantine ? "quarantined" : "running"} /></td><td class="number">${c.epoch}</td>
      <td class="number">${c.cluster === state.overview?.cluster ? counted(Math.max(0, state.newest - c.epoch), "epoch", "epochs") : ""}</td><td class="number">${counted(c.waiting, "epoch", "epochs")}</td><td class="number">${counted(c.not_judged, "record", "records")}</td><td class="number">${c.strays}</td></tr>
      ${c.quarantine && html`<tr><td></td><td colspan="6" class="bad">${c.quarantine}</td></tr>`}`)}</tbody></table></div><//>`;
}

/** @param {{looked: any}} props */
function Log({ looked }) {
  const known = state.overview;
  return html`<${Card} title="Log and dependencies"><dl>
    <dt>Newest epoch</dt><dd>${state.newest || "loading"}</dd>
    <dt>Delay to this page</dt><dd>${state.delayMs < 0 ? "no epoch since the page was opened" : `${state.delayMs} ms after the commit, by both clocks`}</dd>
    <dt>Kafka</dt><dd data-of="broker">${reports(looked, /broker|kafka|not certain that the log/i)}</dd>
    <dt>Redis</dt><dd data-of="redis">${reports(looked, /redis/i)}</dd>
    ${known && html`<dt>Version</dt><dd>${known.topology.version}, fence ${known.topology.fence_version}</dd>
      <dt>Coordinator</dt><dd>${known.coordinator.term ? `${known.coordinator.holder}, term ${known.coordinator.term}` : "none yet"}</dd>
      <dt>Features</dt><dd>${known.features.join(", ") || "none enabled"}</dd>`}</dl><//>`;
}

function Releases() {
  const services = state.overview?.services ?? [];
  const nodes = (state.overview?.nodes ?? []).filter((/** @type {any} */ n) => n.state !== "left");
  return html`<${Card} title="Releases"><div class="scroll"><table><thead><tr><th>Process</th><th>Release</th><th>Supported features</th></tr></thead>
    <tbody>${services.map((/** @type {any} */ s) => html`<tr><td>${s.service_id}</td><td class="fixed">${s.release_version}</td><td>${s.supported_features.join(", ")}</td></tr>`)}
      ${nodes.map((/** @type {any} */ n) => html`<tr><td>node ${n.node_id}</td><td class="fixed">${n.release_version}</td><td></td></tr>`)}</tbody></table></div><//>`;
}
