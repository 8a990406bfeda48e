// Datacentres, racks and their nodes; and one node with all that is known of it.

import { html } from "./vendor/htm-preact.js";
import { get, visible } from "./api.js";
import { ask } from "./ask.js";
import { go, shownEpoch, state } from "./store.js";
import { Badge, EpochItem, Panel, useAnswer, useStore } from "./ui.js";
import { asCounted, counted, duration } from "./words.js";

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

export function NodesView() {
  useStore();
  const nodes = state.overview?.nodes ?? [];
  const gone = nodes.filter((/** @type {any} */ n) => n.state === "left");
  const here = nodes.filter((/** @type {any} */ n) => n.state !== "left");
  const heard = new Map((shownEpoch() ? [] : state.looked?.liveness ?? []).map((/** @type {any} */ row) => [row.node_id, row]));
  /** @type {Map<string, Map<string, any[]>>} */
  const places = new Map();
  for (const node of here) {
    const racks = places.get(node.dc) ?? new Map();
    places.set(node.dc, racks);
    racks.set(node.rack, [...(racks.get(node.rack) ?? []), node]);
  }
  return html`<section class="nodesview" aria-label="Nodes">
    ${[...places].sort(([a], [b]) => asCounted(a, b)).map(([dc, racks]) => html`<section class="dc" aria-label=${`Datacentre ${dc}`}>
      <h2>${dc} <small>${counted([...racks.values()].flat().length, "node", "nodes")}</small></h2>
      <div class="racks">${[...racks].sort(([a], [b]) => asCounted(a, b)).map(([rack, inside]) => html`<div class="rack">
        <h3>${rack}</h3>
        <ul>${inside.sort((a, b) => asCounted(a.node_id, b.node_id)).map((node) => html`<li>
          <button class=${`node ${node.state} ${heard.get(node.node_id)?.liveness ?? ""}`} aria-pressed=${state.place.node === node.node_id} data-node=${node.node_id}
            onClick=${() => go({ node: node.node_id })}>${node.node_id} <small>${node.excluded ? "excluded" : heard.get(node.node_id)?.liveness === "down" ? "down" : node.state}</small></button></li>`)}</ul>
      </div>`)}</div>
    </section>`)}
    ${!here.length && state.overview && html`<p class="empty">There is no node at this epoch.</p>`}
    ${gone.length > 0 && html`<p class="note">Left for good: ${gone.map((/** @type {any} */ n) => n.node_id).sort(asCounted).join(", ")}</p>`}
    ${state.place.node && html`<${NodePanel} node=${state.place.node} heard=${heard.get(state.place.node)} />`}
  </section>`;
}

/** @param {{node: string, heard: any}} props */
function NodePanel({ node: id, heard }) {
  const epoch = shownEpoch();
  const { answer, problem } = useAnswer((signal) => get("/api/node", { node: id, epoch: epoch || undefined }, signal), `${id} ${epoch}`, state.overview?.epoch);
  const name = visible(id);
  return html`<${Panel} what=${id} label=${`Node ${name}`} ready=${answer !== null || problem !== ""} close=${() => go({ node: "" })}>
    ${problem || !answer ? html`<h2>Node ${name}</h2>${problem && html`<p class="bad">${problem}</p>`}` : html`<${NodeFacts} id=${id} answer=${answer} heard=${heard} epoch=${epoch} />`}
  <//>`;
}

/** @param {{id: string, answer: any, heard: any, epoch: number}} props */
function NodeFacts({ id, answer, heard, epoch }) {
  const node = answer.node;
  const ofNode = (state.overview?.requests ?? []).filter((/** @type {any} */ r) => r.node_id === id);
  return html`
    <h2>Node ${id} <${Badge} state=${node.state} />${heard?.liveness === "down" && html` <${Badge} state="down" />`}</h2>
    <dl>
      <dt>place</dt><dd>${node.dc}, ${node.rack}</dd>
      <dt>address</dt><dd>${node.address}</dd>
      <dt>tokens</dt><dd>${node.tokens.length}</dd>
      <dt>shards</dt><dd>${node.shards}</dd>
      <dt>release</dt><dd>${node.release_version || "unknown"}</dd>
      ${heard && html`<dt>heard</dt><dd><${Badge} state=${heard.liveness} /> ${heard.silent_for_s === null ? "never" : `${duration(heard.silent_for_s)} ago`}, epoch ${heard.epoch}, version ${heard.version}</dd>`}
      ${node.excluded_since > 0 && html`<dt>excluded</dt><dd>since epoch ${node.excluded_since}</dd>`}
    </dl>
    <h3>Holds</h3>
    <ul class="plain">${Object.entries(answer.maps).map(([placement, held]) => html`<li>${held.rows} of ${counted(held.of, held.tablets ? "tablet" : "range", held.tablets ? "tablets" : "ranges")} of <button class="link" onClick=${() => go({ view: "map", map: placement, row: held.places[0] })}>${held.name}</button></li>`)}
      ${!Object.keys(answer.maps).length && html`<li>no range and no tablet</li>`}</ul>
    ${!epoch && html`<div class="deeds" role="group" aria-label="What can be done">
      ${DEEDS.map(([name, word, field]) => html`<button onClick=${() => ask(name, { [field]: id })}>${word}…</button>`)}
    </div>`}
    ${ofNode.length > 0 && html`<h3>Requests</h3><ul class="plain">${ofNode.map((/** @type {any} */ r) => html`<li><button class="link" onClick=${() => go({ view: "requests", request: r.request_id })}>${r.what}</button> <${Badge} state=${r.status} />${!epoch && r.can_cancel ? html` <button data-deed="cancel" onClick=${() => ask("cancel", { request: r.request_id }, `Cancel: ${r.what}`)}>cancel…</button>` : ""}</li>`)}</ul>`}
    <h3>History</h3>
    ${answer.away && html`<p class="bad">${answer.away}</p>`}
    <ol class="epochs">${answer.history.epochs.map((/** @type {any} */ told) => html`<${EpochItem} key=${told.epoch} told=${told} />`)}</ol>`;
}
