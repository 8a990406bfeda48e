// What is agreed upon: keyspaces, tables and their options, snapshots of tables, settings and features.

import { html } from "./vendor/htm-preact.js";
import { get } from "./api.js";
import { go, shownEpoch, state } from "./store.js";
import { Badge, EpochLink, Sentence, Time, useAnswer, useStore } from "./ui.js";
import { counted, size } from "./words.js";

const CHANGED_BY = "Keyspaces and tables are changed on Requests too, all else by `stele table`, `stele settings` and `stele features`.";

export function SchemaView() {
  useStore();
  const epoch = shownEpoch();
  const { answer, problem } = useAnswer((signal) => get("/api/schema", { epoch: epoch || undefined }, signal), `${epoch}`, state.overview?.epoch);
  return html`<section class="schemaview" aria-label="Schema">
    ${problem && html`<p class="bad">${problem}</p>`}
    ${answer && html`<${Shown} answer=${answer} />`}
  </section>`;
}

/** @param {{answer: any}} props */
function Shown({ answer }) {
  return html`<h2>Keyspaces</h2>
    <${List} rows=${answer.keyspaces} none="There is no keyspace." heads=${["keyspace", "replication", "data", "tables", "balancing"]} cells=${(/** @type {any} */ k) => [
      html`${k.name} ${k.dropped && html`<${Badge} state="being dropped" />`}`, k.replication,
      k.tablets ? `in tablets${k.initial_tablets ? `, ${k.initial_tablets} of a new table` : ""}` : "on the ring", k.tables, balancing(k.balancing)]} />
    <h2>Tables</h2>
    <${List} rows=${answer.tables} none="There is no table." heads=${["table", "tablets", "options", "balancing", ""]} cells=${(/** @type {any} */ t) => [
      html`${t.name} ${t.dropped && html`<${Badge} state="being dropped" />`}`,
      t.tablets ? html`<button class="link" onClick=${() => go({ view: "map", map: t.placement, row: "" })}>${counted(t.tablets, "tablet", "tablets")}</button>${t.colocated_with ? `, those of ${t.colocated_with}` : ""}` : "on the ring of its keyspace",
      Object.entries(t.options).map(([name, value]) => `${name} = ${value}`).join(", ") || "none set",
      balancing(t.balancing),
      html`<button class="link" onClick=${() => go({ view: "history", about: t.name, text: "", actor: "", command: "", refused: "", from: "", to: "" })}>history</button>`]} />
    <h2>Snapshots of tables</h2>
    <${List} rows=${answer.snapshots} none="There is no snapshot of a table." heads=${["tag", "table", "of epoch", "taken", "expires", "holds"]} cells=${(/** @type {any} */ s) => [
      html`<button class="link" onClick=${() => go({ view: "requests", request: s.request_id })}>${s.name}</button>`, s.table, html`<${EpochLink} epoch=${s.epoch} />`, html`<${Time} ms=${s.taken_ms} />`,
      s.expires_ms ? html`<${Time} ms=${s.expires_ms} />` : "never", `${counted(s.rows, "row", "rows")} of all replicas, ${size(s.size_bytes)}, in ${counted(s.tablets, "tablet", "tablets")} on ${counted(s.nodes, "node", "nodes")}`]} />
    ${answer.restores.length > 0 && html`<h2>Restores under way</h2>
    <${List} rows=${answer.restores} none="" heads=${["table", "from snapshot", "restored", ""]} cells=${(/** @type {any} */ r) => [
      html`<button class="link" onClick=${() => go({ view: "requests", request: r.request_id })}>${r.table}</button>`, r.snapshot, `${r.restored} of ${counted(r.tablets, "tablet", "tablets")}`,
      html`<progress max=${r.tablets} value=${r.restored} aria-label=${`restored of ${r.table}`}></progress>`]} />`}
    <h2>Settings</h2>
    <${List} rows=${answer.settings} none="There is no setting." heads=${["setting", "value", "default", "what it is"]} cells=${(/** @type {any} */ s) => [
      s.name, s.value ? html`<strong>${s.value}</strong> ${s.unsafe && html`<${Badge} state="unsafe" />`}` : "", s.default, s.counts || "nothing that this build knows"]} />
    <h2>Features</h2>
    <p>${answer.features.join(", ") || "None is enabled."}</p>
    <p class="note">Which process supports which is on Health. <${Sentence} text=${CHANGED_BY} /></p>`;
}

/** @param {any} switched */
function balancing(switched) {
  if (!switched.off_since) return "on";
  return html`<span class="warn">off since epoch <${EpochLink} epoch=${switched.off_since} />${switched.until_ms ? html` until <${Time} ms=${switched.until_ms} />` : ""}</span>`;
}

/** @param {{rows: any[], none: string, heads: string[], cells: (row: any) => any[]}} props */
function List({ rows, none, heads, cells }) {
  if (!rows.length) return html`<p>${none}</p>`;
  return html`<table><thead><tr>${heads.map((each) => html`<th>${each || html`<span class="unseen">more</span>`}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.request_id ?? row.name} data-name=${row.name ?? row.table}>${cells(row).map((each) => html`<td>${each}</td>`)}</tr>`)}</tbody></table>`;
}
