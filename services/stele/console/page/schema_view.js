// The schema at any epoch: keyspaces, tables with columns, types, and their differences; settings and features.

import { html, useState } from "./vendor/htm-preact.js";
import { get } from "./api.js";
import { go, shownEpoch, state } from "./store.js";
import { Badge, Card, Empty, EpochLink, Loading, NodeLink, Sentence, Time, useAnswer, useStore } from "./ui.js";
import { asCounted, counted, size } from "./words.js";

const CHANGED_BY = "Change keyspaces and tables here or with `stele schema apply`; change settings and features with `stele settings` and `stele features`.";

export function SchemaView() {
  useStore();
  const epoch = shownEpoch();
  const against = Number(state.place.against ?? 0);
  const { answer, problem } = useAnswer((signal) => get("/api/schema", { epoch: epoch || undefined }, signal), `${epoch}`, state.overview?.epoch);
  return html`<section class="schemaview" aria-label="Schema">
    ${problem && html`<p class="bad">${problem}</p>`}
    ${!answer && !problem && html`<${Loading} what="the schema" />`}
    ${answer && html`<${Versions} answer=${answer} />`}
    ${!epoch && html`<${Behind} nodes=${state.looked?.schema_behind ?? []} />`}
    ${answer && against > 0 && html`<${Difference} from=${against} to=${epoch || answer.epoch} />`}
    ${answer && html`<${Browser} answer=${answer} />`}
    ${answer && html`<${Rest} answer=${answer} />`}
  </section>`;
}

/** The version of the schema, and which epoch to compare with. @param {{answer: any}} props */
function Versions({ answer }) {
  const [text, setText] = useState("");
  const compare = (/** @type {Event} */ e) => {
    e.preventDefault();
    if (/^[0-9]+$/.test(text)) go({ against: text });
  };
  return html`<div class="bar"><p>Schema at epoch ${answer.epoch}${answer.version.epoch ? html`, last changed at epoch <${EpochLink} epoch=${answer.version.epoch} />` : ""}.</p>
    <form onSubmit=${compare}><label>compare with epoch <input type="number" name="against" min=${state.begins} max=${state.newest} value=${text} onInput=${(/** @type {any} */ e) => setText(e.target.value)} /></label> <button disabled=${!text}>compare</button></form></div>`;
}

/** The live members that have not applied the newest schema. @param {{nodes: string[]}} props */
function Behind({ nodes }) {
  if (!nodes.length) return null;
  return html`<p class="warn" data-notice="schema-behind">${counted(nodes.length, "live node has", "live nodes have")} not applied this schema: ${nodes.map((node, at) => html`${at ? ", " : ""}<${NodeLink} node=${node} />`)}.</p>`;
}

const SIGNS = /** @type {Record<string, [string, string]>} */ ({ "+": ["added", "plus"], "-": ["dropped", "minus"], "~": ["changed", "tilde"] });

/** @param {{from: number, to: number}} props */
function Difference({ from, to }) {
  const { answer, problem } = useAnswer((signal) => get("/api/schema/diff", { from, to }, signal), `${from} ${to}`);
  return html`<${Card} title=${`Epoch ${from} to epoch ${to}`} more=${html`<button onClick=${() => go({ against: "" })} aria-label="close">×</button>`}>
    ${problem && html`<p class="bad">${problem}</p>`}
    ${!answer && !problem && html`<${Loading} what="the difference of the two schemas" />`}
    ${answer && !answer.objects.length && html`<p>The schemas are equal.</p>`}
    ${answer && answer.objects.map((/** @type {any} */ o) => html`<section class="object-diff" data-object=${o.name}><h3>${o.name} <span class=${SIGNS[o.sign][1]}>${SIGNS[o.sign][0]}</span></h3>
      <pre class="cql">${o.lines.map((/** @type {[string, string]} */ [sign, line]) => html`<span class=${SIGNS[sign]?.[1] ?? ""}>${`${sign} ${line}\n`}</span>`)}</pre></section>`)}
  <//>`;
}

/** Keyspaces with their objects on the left, the chosen object on the right. @param {{answer: any}} props */
function Browser({ answer }) {
  /** @type {any[]} */
  const objects = [...answer.tables.map((/** @type {any} */ t) => ({ ...t, group: t.kind === "view" ? "views" : "tables" })), ...answer.objects.map((/** @type {any} */ o) => ({ ...o, group: `${o.kind}s` }))];
  const chosen = objects.find((o) => o.name === state.place.object) ?? null;
  const keyspace = answer.keyspaces.find((/** @type {any} */ k) => k.name === (state.place.object ?? "")) ?? null;
  if (!answer.keyspaces.length) return html`<${Empty}>There is no keyspace. A keyspace appears here with its tables, columns and types once it is created.<//>`;
  return html`<div class="schema-layout">
    <nav class="card tree" aria-label="Objects">${answer.keyspaces.map((/** @type {any} */ k) => html`<section key=${k.name}><h3><${Choose} name=${k.name} text=${k.name} /> <small>${k.replication}</small></h3>
      <ul>${objects.filter((o) => o.keyspace === k.name).sort((a, b) => a.group.localeCompare(b.group) || asCounted(a.name, b.name)).map((o) => html`<li key=${o.group + o.name}><${Choose} name=${o.name} text=${o.name.slice(k.name.length + 1)} /> <small>${o.kind === "opaque" ? "table without columns" : o.kind}</small></li>`)}
        ${!objects.some((o) => o.keyspace === k.name) && html`<li class="empty">no table</li>`}</ul></section>`)}</nav>
    <section class="card" aria-label="Object">${chosen?.columns ? html`<${Table} table=${chosen} cql=${answer.cql[chosen.name]} />`
      : chosen ? html`<h2>${chosen.name} <small>${chosen.kind}, version ${chosen.version}</small></h2><pre class="cql">${answer.cql[chosen.name]}</pre>`
        : keyspace ? html`<${Keyspace} keyspace=${keyspace} cql=${answer.cql[keyspace.name]} />`
          : html`<h2>Keyspaces</h2><${Keyspaces} answer=${answer} /><h2>Tables</h2><${Tables} answer=${answer} />`}</section>
  </div>`;
}

/** @param {{name: string, text: string}} props */
function Choose({ name, text }) {
  const chosen = state.place.object === name;
  return html`<button class="link" aria-pressed=${chosen} onClick=${() => go({ object: chosen ? "" : name }, true)}>${text}</button>`;
}

/** @param {{name: string}} props */
const HistoryOf = ({ name }) => html`<button class="link" onClick=${() => go({ view: "history", about: name, text: "", actor: "", command: "", refused: "", from: "", to: "" })}>history</button>`;

/** @param {{keyspace: any, cql: string}} props */
function Keyspace({ keyspace: k, cql }) {
  return html`<h2>${k.name} <small>keyspace</small> ${k.dropped && html`<${Badge} state="being dropped" />`}</h2>
    <dl><dt>replication</dt><dd>${k.replication}</dd><dt>data</dt><dd>${placed(k)}</dd><dt>tables</dt><dd>${k.tables}</dd><dt>balancing</dt><dd>${balancing(k.balancing)}</dd></dl>
    <pre class="cql">${cql}</pre><p><${HistoryOf} name=${k.name} /></p>`;
}

/** @param {any} k a keyspace */
const placed = (k) => (k.tablets ? `in tablets${k.initial_tablets ? `, ${k.initial_tablets} for a new table` : ""}` : "on the ring");

/** @param {any} t a table */
function tablets(t) {
  if (!t.tablets) return "on the ring of its keyspace";
  return html`<button class="link" onClick=${() => go({ view: "map", map: t.placement, row: "" })}>${counted(t.tablets, "tablet", "tablets")}</button>${t.colocated_with ? `, those of ${t.colocated_with}` : ""}`;
}

/** @param {any} t a table */
const options = (t) => Object.entries(t.options).map(([name, value]) => `${name} = ${value}`).join(", ");

/** @type {Record<string, string>} */
const KEYS = { partition_key: "partition key", clustering: "clustering key", static: "static", regular: "" };

/** @param {{table: any, cql: string}} props */
function Table({ table: t, cql }) {
  const parameters = Object.entries(t.parameters).map(([name, value]) => `${name} = ${value}`);
  return html`<h2>${t.name} <small>${t.kind === "opaque" ? "table without columns" : `${t.kind}, version ${t.version}`}</small> ${t.dropped && html`<${Badge} state="being dropped" />`}</h2>
    ${t.columns.length ? html`<table class="columns" data-list="columns"><thead><tr><th>column</th><th>type</th><th>key</th></tr></thead>
      <tbody>${t.columns.map((/** @type {any} */ c) => html`<tr key=${c.name} data-column=${c.name}><td>${c.name}</td><td><code>${c.type}</code></td><td>${KEYS[c.kind] ?? c.kind}${c.order === "desc" ? ", descending" : ""}</td></tr>`)}</tbody></table>`
      : html`<${Empty}>The table keeps values by key. <code>stele schema apply</code> creates tables with columns.<//>`}
    <dl><dt>data</dt><dd>${tablets(t)}</dd>
      ${t.indexes.length > 0 && html`<dt>indexes</dt><dd>${t.indexes.join(", ")}</dd>`}
      ${parameters.length > 0 && html`<dt>parameters</dt><dd>${parameters.join(", ")}</dd>`}
      ${options(t) && html`<dt>tablet options</dt><dd>${options(t)}</dd>`}
      ${t.dropped_columns.length > 0 && html`<dt>dropped columns</dt><dd>${t.dropped_columns.join("; ")}</dd>`}
      <dt>balancing</dt><dd>${balancing(t.balancing)}</dd></dl>
    ${t.columns.length > 0 && html`<details><summary>CQL</summary><pre class="cql">${cql}</pre></details>`}
    <p><${HistoryOf} name=${t.name} /></p>`;
}

/** @param {{answer: any}} props */
const Keyspaces = ({ answer }) => html`<${List} rows=${answer.keyspaces} none="There is no keyspace." heads=${["keyspace", "replication", "data", "tables", "balancing"]} cells=${(/** @type {any} */ k) => [
  html`<${Choose} name=${k.name} text=${k.name} /> ${k.dropped && html`<${Badge} state="being dropped" />`}`, k.replication, placed(k), k.tables, balancing(k.balancing)]} />`;

/** @param {{answer: any}} props */
const Tables = ({ answer }) => html`<${List} rows=${answer.tables} none="There is no table." heads=${["table", "columns", "data", "options", "balancing"]} cells=${(/** @type {any} */ t) => [
  html`<${Choose} name=${t.name} text=${t.name} /> ${t.dropped && html`<${Badge} state="being dropped" />`}`, t.columns.length || "none", tablets(t), options(t), balancing(t.balancing)]} />`;

/** @param {{answer: any}} props */
function Rest({ answer }) {
  return html`<${Card} title="Snapshots of tables">
    <${List} rows=${answer.snapshots} none="There is no snapshot of a table." heads=${["tag", "table", "of epoch", "taken", "expires", "holds"]} cells=${(/** @type {any} */ s) => [
      html`<button class="link" onClick=${() => go({ view: "operations", request: s.request_id })}>${s.name}</button>`, s.table, html`<${EpochLink} epoch=${s.epoch} />`, html`<${Time} ms=${s.taken_ms} />`,
      s.expires_ms ? html`<${Time} ms=${s.expires_ms} />` : "never", `${counted(s.rows, "row", "rows")} of all replicas, ${size(s.size_bytes)}, in ${counted(s.tablets, "tablet", "tablets")} on ${counted(s.nodes, "node", "nodes")}`]} />
    ${answer.restores.length > 0 && html`<h2>Running restores</h2>
    <${List} rows=${answer.restores} none="" heads=${["table", "from snapshot", "restored", ""]} cells=${(/** @type {any} */ r) => [
      html`<button class="link" onClick=${() => go({ view: "operations", request: r.request_id })}>${r.table}</button>`, r.snapshot, `${r.restored} of ${counted(r.tablets, "tablet", "tablets")}`,
      html`<progress max=${r.tablets} value=${r.restored} aria-label=${`restored of ${r.table}`}></progress>`]} />`}<//>
    <${Card} title="Settings">
    <${List} rows=${answer.settings} none="There is no setting." heads=${["setting", "value", "default", "meaning"]} cells=${(/** @type {any} */ s) => [
      s.name, s.value ? html`<strong>${s.value}</strong> ${s.unsafe && html`<${Badge} state="unsafe" />`}` : "", s.default, s.counts || "not known to this release"]} />
<//>
    <${Card} title="Features">
    <p>${answer.features.join(", ") || "None is enabled."}</p>
    <p class="note">Health lists the features that each process supports. <${Sentence} text=${CHANGED_BY} /></p><//>`;
}

/** @param {any} switched */
function balancing(switched) {
  if (!switched.off_since) return "on";
  return html`<span class="warn">off since epoch <${EpochLink} epoch=${switched.off_since} />${switched.until_ms ? html` until <${Time} ms=${switched.until_ms} />` : ""}</span>`;
}

/** @param {{rows: any[], none: string, heads: string[], cells: (row: any) => any[]}} props */
function List({ rows, none, heads, cells }) {
  if (!rows.length) return html`<${Empty}>${none}<//>`;
  return html`<table><thead><tr>${heads.map((each) => html`<th>${each || html`<span class="unseen">more</span>`}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.request_id ?? row.name} data-name=${row.name ?? row.table}>${cells(row).map((each) => html`<td>${each}</td>`)}</tr>`)}</tbody></table>`;
}
