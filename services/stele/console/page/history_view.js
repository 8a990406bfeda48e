// History: operations and changes over time, their epochs, searches, and what differs between two epochs.

import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { get } from "./api.js";
import { fail, go, readEpochs, state } from "./store.js";
import { isOpen, OperationTimeline, readable } from "./operation_timeline.js";
import { Badge, Card, Empty, EpochItem, EpochLink, Loading, Sentence, Time, useAnswer, useStore } from "./ui.js";
import { asCounted, counted, duration, firstLine } from "./words.js";

/** @typedef {import("./operation_timeline.js").Operation} Operation */

const FILTERS = ["text", "actor", "about", "command"];
/** @type {Record<string, string>} */
const EXAMPLES = { text: "any words", actor: "who requested it", about: "a node, keyspace or table", command: "such as drop_keyspace" };
/** Epochs of one page of the time line, and of the list of an operation. */
const PAGE = 300;
const MOST_EPOCHS = 500;

export function HistoryView() {
  useStore();
  const searched = FILTERS.some((name) => state.place[name]) || state.place.refused === "true";
  const raw = state.place.list === "epochs";
  return html`<section class="historyview" aria-label="History">
    <${Filters} />
    ${state.place.from && state.place.to && html`<${Difference} from=${Number(state.place.from)} to=${Number(state.place.to)} />`}
    ${searched ? html`<${Found} />` : html`
      <div class="tabs"><span class="segments" role="group" aria-label="List">
        <button aria-pressed=${!raw} onClick=${() => go({ list: "" })}>Operations</button>
        <button aria-pressed=${raw} onClick=${() => go({ list: "epochs" })}>All epochs</button></span>
        <${Compare} />
      </div>
      ${raw ? html`<${Newest} />` : html`<${Operations} />`}`}
  </section>`;
}

/** What is typed stays the user's own until it is searched for. */
function Filters() {
  const shown = Object.fromEntries([...FILTERS, "refused"].map((name) => [name, state.place[name] ?? ""]));
  const [texts, setTexts] = useState(shown);
  useEffect(() => setTexts(shown), [JSON.stringify(shown)]);
  const submit = (/** @type {any} */ e) => {
    e.preventDefault();
    go(texts);
  };
  return html`<form class="bar filters" onSubmit=${submit}>
    ${FILTERS.map((name) => html`<label>${name} <input name=${name} placeholder=${EXAMPLES[name]} value=${texts[name] ?? ""} onInput=${(/** @type {any} */ e) => setTexts({ ...texts, [name]: e.target.value })} /></label>`)}
    <label><input type="checkbox" name="refused" checked=${texts.refused === "true"} onChange=${(/** @type {any} */ e) => setTexts({ ...texts, refused: e.target.checked ? "true" : "" })} /> refused only</label>
    <button>search</button>
    <button type="button" onClick=${() => go({ text: "", actor: "", about: "", command: "", refused: "" })}>clear</button>
  </form>`;
}

/** Two epochs to compare. */
function Compare() {
  const [from, setFrom] = useState("");
  const compare = () => {
    if (/^[0-9]+$/.test(from)) go({ from, to: Number(state.place.epoch ?? 0) || state.newest });
  };
  return html`<span class="compare"><label>compare with epoch <input type="number" name="compare" min=${state.begins} max=${state.newest} value=${from} onInput=${(/** @type {any} */ e) => setFrom(e.target.value)} /></label>
    <button type="button" onClick=${compare} disabled=${!from}>compare</button></span>`;
}

/** Merge pages. The newest one wins, since an operation may have ended after an older page was read. @param {any[]} pages the newest first */
function merged(pages) {
  /** @type {Map<string, Operation>} */
  const operations = new Map();
  /** @type {Map<number, any>} */
  const changes = new Map();
  for (const page of pages) {
    for (const each of page.operations) {
      const known = operations.get(each.request_id);
      operations.set(each.request_id, known ? { ...known, epochs: [...new Set([...each.epochs, ...known.epochs])].sort((a, b) => a - b) } : each);
    }
    for (const each of page.changes) changes.set(each.epoch, each);
  }
  return { operations: [...operations.values()], changes: [...changes.values()] };
}

function Operations() {
  const { answer, problem } = useAnswer((signal) => get("/api/timeline", { limit: PAGE }, signal), "timeline", state.newest);
  const [older, setOlder] = useState(/** @type {any[]} */ ([]));
  const [busy, setBusy] = useState(false);
  const [byEpoch, setByEpoch] = useState(false);
  if (!answer) return problem ? html`<p class="bad">${problem}</p>` : html`<${Loading} what="the newest operations" />`;
  const pages = [answer, ...older];
  const { operations, changes } = merged(pages);
  const last = pages.at(-1);
  const more = async () => {
    setBusy(true);
    try {
      const page = await get("/api/timeline", { limit: PAGE, before: last.next_before });
      setOlder((/** @type {any[]} */ old) => [...old, page]);
    } catch (error) {
      fail(error);
    }
    setBusy(false);
  };
  const open = operations.some(isOpen);
  const whole = { time: { from: last.first_ms, to: Math.max(last.first_ms + 1000, open ? Date.now() : answer.last_ms) }, epochs: { from: last.first, to: answer.last + 1 } };
  const entries = [
    ...operations.map((o) => ({ epoch: o.submitted_epoch, key: o.request_id, row: html`<${OperationRow} operation=${o} />` })),
    ...changes.map((c) => ({ epoch: c.epoch, key: String(c.epoch), row: html`<${ChangeRow} told=${c} />` })),
  ].sort((a, b) => b.epoch - a.epoch);
  const axis = html`<label>axis <select name="axis" value=${byEpoch ? "epochs" : "time"} onChange=${(/** @type {any} */ e) => setByEpoch(e.target.value === "epochs")}><option value="time">time</option><option value="epochs">epochs</option></select></label>`;
  const background = pages.reduce((sum, page) => sum + page.background, 0);
  return html`
    <${Card} title="Time line" more=${axis}>
      ${operations.length || changes.length ? html`<${OperationTimeline} operations=${operations} changes=${changes} whole=${whole} byEpoch=${byEpoch} chosen=${state.place.op ?? ""}
        choose=${(/** @type {string} */ id) => go({ op: state.place.op === id ? "" : id }, true)} chooseEpoch=${(/** @type {number} */ epoch) => go({ op: String(epoch) }, true)} />`
        : html`<${Empty}>No operation and no change yet. A join, a new keyspace or a move of a tablet appears here as a bar.<//>`}
    <//>
    <table class="grouped" data-list="operations"><thead><tr><th>started</th><th>operation or change</th><th>status</th><th class="number">took</th><th>requested by</th><th class="number">epochs</th></tr></thead>
      ${entries.map((each) => html`<tbody key=${each.key}>${each.row}</tbody>`)}</table>
    <p class="note">Epochs ${last.first} to ${answer.last}. ${counted(background, "other epoch", "other epochs")} in this span: fences and barriers of these operations, and work of the services.
      ${last.next_before > 0 && html` <button onClick=${more} disabled=${busy}>${busy ? "reading…" : "load older"}</button>`}</p>`;
}

/** @param {string} key */
const toggle = (key) => go({ op: state.place.op === key ? "" : key }, true);

/** A chosen row comes into sight. @param {boolean} open @returns {{current: any}} */
function useInSight(open) {
  const row = { current: /** @type {any} */ (null) };
  useEffect(() => {
    if (open) row.current?.scrollIntoView({ block: "nearest" });
  }, [open]);
  return row;
}

/** @param {{operation: Operation}} props */
function OperationRow({ operation: o }) {
  const open = state.place.op === o.request_id;
  const row = useInSight(open);
  return html`<tr ref=${row} class=${open ? "opened" : ""} data-operation-row=${o.request_id}>
      <td><${Time} ms=${o.submitted_at_ms} /></td>
      <td><button class="link what" aria-expanded=${open} onClick=${() => toggle(o.request_id)}>${readable(o.what)}</button>${o.reason && html`<div class="by">${o.reason}</div>`}</td>
      <td><${Badge} state=${o.status} /></td>
      <td class="number">${isOpen(o) ? "" : duration((o.finished_at_ms - o.submitted_at_ms) / 1000)}</td>
      <td>${o.actor || "unknown"}</td>
      <td class="number">${span(o.epochs)}</td></tr>
    ${open && html`<tr class="details"><td colspan="6"><${Details} operation=${o} /></td></tr>`}`;
}

/** @param {number[]} epochs in order */
const span = (epochs) => (epochs.length > 1 ? `${epochs[0]}–${epochs[epochs.length - 1]}` : String(epochs[0] ?? ""));

/** The states of an operation, and its epochs on request. @param {{operation: Operation}} props */
function Details({ operation: o }) {
  const [epochs, setEpochs] = useState(false);
  const last = o.epochs[o.epochs.length - 1];
  return html`${o.error && html`<p class=${o.status === "done" ? "note" : "warn"}>${o.error}</p>`}
    <table class="steps"><thead><tr><th>state</th><th>since epoch</th><th>at</th><th class="number">lasted</th></tr></thead>
      <tbody>${[...o.steps, ...(isOpen(o) ? [] : [{ state: o.status, epoch: o.finished_epoch, at_ms: o.finished_at_ms }])].map((step, n, all) => html`<tr>
        <td>${step.state.replaceAll("_", " ")}</td><td><${EpochLink} epoch=${step.epoch} /></td><td><${Time} ms=${step.at_ms} /></td>
        <td class="number">${all[n + 1] ? duration(Math.max(0, all[n + 1].at_ms - step.at_ms) / 1000) : ""}</td></tr>`)}</tbody></table>
    <div class="deeds">
      <button onClick=${() => go({ from: o.submitted_epoch - 1, to: last })}>Changes</button>
      <button onClick=${() => setEpochs(!epochs)} aria-expanded=${epochs}>${epochs ? "hide" : "show"} ${counted(o.epochs.length, "epoch", "epochs")}</button>
      <button class="link" onClick=${() => go({ view: "operations", request: o.request_id })}>request ${o.request_id}</button>
    </div>
    ${epochs && html`<${EpochsOf} operation=${o} />`}`;
}

/** @param {{operation: Operation}} props */
function EpochsOf({ operation: o }) {
  const [first, last] = [o.epochs[0], o.epochs[o.epochs.length - 1]];
  const { answer, problem } = useAnswer((signal) => get("/api/epochs", { before: last + 1, limit: Math.min(MOST_EPOCHS, last - first + 1) }, signal), `${first} ${last}`);
  if (!answer) return problem ? html`<p class="bad">${problem}</p>` : html`<${Loading} what="the epochs" />`;
  const own = new Set(o.epochs);
  const found = answer.epochs.filter((/** @type {any} */ told) => own.has(told.epoch));
  return html`<ol class="epochs" data-list="epochs-of-operation">${found.map((/** @type {any} */ told) => html`<${EpochItem} key=${told.epoch} told=${told} />`)}</ol>
    ${found.length < own.size && html`<p class="note">Only the newest ${MOST_EPOCHS} epochs of the span are listed. All epochs has the others.</p>`}`;
}

/** A change that is no operation. @param {{told: any}} props */
function ChangeRow({ told }) {
  const open = state.place.op === String(told.epoch);
  const row = useInSight(open);
  return html`<tr ref=${row} class=${open ? "opened" : ""} data-change-row=${told.epoch}>
      <td><${Time} ms=${told.at_ms} /></td>
      <td><button class="link what" aria-expanded=${open} onClick=${() => toggle(String(told.epoch))}>${told.refused ? firstLine(told) : `${readable(told.command)}: ${firstLine(told)}`}</button>
        ${told.reason && html`<div class="by">${told.reason}</div>`}</td>
      <td>${told.refused ? html`<${Badge} state="refused" />` : html`<${Badge} state="done" />`}</td>
      <td></td><td>${told.refused && told.command !== "noop" ? "" : told.actor || "unknown"}</td><td class="number">${told.epoch}</td></tr>
    ${open && html`<tr class="details"><td colspan="6"><ol class="epochs"><${EpochItem} told=${told} /></ol></td></tr>`}`;
}

function Newest() {
  useEffect(() => {
    if (!state.epochs.length) readEpochs();
  }, []);
  return html`<h2>Epochs</h2>
    <ol class="epochs" data-list="epochs">${state.epochs.map((told) => html`<${EpochItem} key=${told.epoch} told=${told} />`)}</ol>
    ${state.nextBefore > 0 && html`<button onClick=${() => readEpochs(state.nextBefore)}>load older</button>`}`;
}

function Found() {
  const asked = Object.fromEntries([...FILTERS, "refused"].map((name) => [name, state.place[name] ?? ""]));
  const key = JSON.stringify(asked);
  const [found, setFound] = useState({ key: "", epochs: /** @type {any[]} */ ([]), next: 0, lookedAt: 0, busy: true });
  const more = async (/** @type {number} */ before) => {
    setFound((/** @type {any} */ old) => ({ ...old, key, epochs: before ? old.epochs : [], busy: true }));
    try {
      const part = await get("/api/search", { ...asked, before: before || undefined, limit: 50 });
      setFound((/** @type {any} */ old) => ({ key, epochs: [...(before ? old.epochs : []), ...part.epochs], next: part.next_before, lookedAt: (before ? old.lookedAt : 0) + part.looked_at, busy: false }));
    } catch (error) {
      setFound((/** @type {any} */ old) => ({ ...old, busy: false }));
      fail(error);
    }
  };
  useEffect(() => {
    more(0);
  }, [key]);
  return html`<h2>Search results</h2>
    <p role="status">${found.busy ? "Searching…" : `${counted(found.epochs.length, "epoch", "epochs")} found in ${counted(found.lookedAt, "searched epoch", "searched epochs")}`}</p>
    <ol class="epochs" data-list="found">${found.epochs.map((told) => html`<${EpochItem} key=${told.epoch} told=${told} />`)}</ol>
    ${found.next > 0 && html`<button onClick=${() => more(found.next)} disabled=${found.busy}>search older epochs</button>`}`;
}

const SIGNS = /** @type {Record<string, string>} */ ({ "+": "plus", "-": "minus", "~": "tilde" });
const SIGN_WORDS = /** @type {Record<string, string>} */ ({ "+": "added", "-": "removed", "~": "changed" });

/** @param {{lines: [string, string][], label: string}} props */
function Lines({ lines, label }) {
  return html`<ul class="diff" tabindex="0" aria-label=${label}>${lines.map(([sign, text]) => html`<li class=${SIGNS[sign]}><b title=${SIGN_WORDS[sign]}>${sign}</b> ${text}</li>`)}</ul>`;
}

/** "tablet_resize t from 8 to 16: done" as on the time line. @param {string} text */
function ofOperation(text) {
  const [what, ...rest] = text.split(": ");
  return [readable(what), ...rest].join(": ");
}

/** @param {{from: number, to: number}} props */
function Difference({ from, to }) {
  const { answer, problem } = useAnswer((signal) => get("/api/diff", { from, to }, signal), `${from} ${to}`);
  const empty = answer && !answer.groups.length && !answer.maps.length;
  const epoch = to >= state.newest ? 0 : to;
  const more = html`<button class="link" onClick=${() => go({ view: "map", epoch, against: from })}>on the map</button>
      <button class="link" onClick=${() => go({ view: "schema", epoch, against: from })}>in the schema</button>
      <button onClick=${() => go({ from: "", to: "" })} aria-label="close">×</button>`;
  return html`<${Card} title=${`Epoch ${from} to epoch ${to}`} span="difference" more=${more}>
    ${problem && html`<p class="bad">${problem}</p>`}
    ${!answer && !problem && html`<${Loading} what="the difference of the two states" />`}
    ${empty && html`<p>Nothing differs.</p>`}
    ${answer && html`<div class="difference-groups">
      ${answer.groups.map((/** @type {any} */ g) => html`<section><h3>${g.title}</h3><${Lines} lines=${g.changes.map((/** @type {[string, string]} */ [sign, text]) => [sign, ofOperation(text)])} label=${g.title} />${g.more > 0 && html`<p class="note">and ${g.more} more</p>`}</section>`)}
      ${answer.maps.map((/** @type {any} */ m) => html`<${MapDifference} key=${m.placement} map=${m} />`)}</div>
      ${answer.lines.length > 0 && html`<details><summary>All ${answer.lines.length + answer.more} changed fields and ranges</summary><${Lines} lines=${answer.lines} label="All changes" />
        ${answer.more > 0 && html`<p class="note">The first ${answer.lines.length} are shown. <${Sentence} text=${`\`stele diff ${from} ${to}\` prints all.`} /></p>`}</details>`}`}
  <//>`;
}

/** What each node held of a placement before and after. @param {{map: any}} props */
function MapDifference({ map }) {
  const [one, more] = map.tablets ? ["tablet", "tablets"] : ["range", "ranges"];
  const most = Math.max(1, ...map.nodes.flatMap((/** @type {any} */ n) => [n.before, n.after]));
  const nodes = [...map.nodes].sort((a, b) => asCounted(a.node, b.node));
  return html`<section><h3>${map.name}</h3>
    <p>${counted(map.changed, one, more)} changed${map.rows_before === map.rows ? ` of ${map.rows}` : `; ${map.rows_before} before, ${map.rows} after`}.</p>
    <table class="shift"><thead><tr><th>node</th><th class="number">${more} before</th><th class="number">after</th><th><span class="unseen">change</span></th></tr></thead>
      <tbody>${nodes.map((n) => html`<tr><td>${n.node}</td><td class="number">${n.before}</td><td class="number">${n.after}</td>
        <td><span class="delta">${n.after === n.before ? "" : `${n.after > n.before ? "+" : "−"}${Math.abs(n.after - n.before)}`}</span>
          <svg class="delta-bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true"><rect class="old" x="0" y="0" width=${(100 * n.before) / most} height="4" /><rect class="new" x="0" y="5" width=${(100 * n.after) / most} height="4" /></svg></td></tr>`)}</tbody></table></section>`;
}
