// Every epoch with who, why and what; refusals too; searches, and what differs between two epochs.

import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { get } from "./api.js";
import { fail, go, readEpochs, state } from "./store.js";
import { EpochItem, useAnswer, useStore } from "./ui.js";
import { counted } from "./words.js";

const FILTERS = ["text", "actor", "about", "command"];
/** @type {Record<string, string>} */
const EXAMPLES = { text: "any words", actor: "who asked", about: "a node, keyspace or table", command: "such as drop_keyspace" };

export function HistoryView() {
  useStore();
  const asked = FILTERS.some((name) => state.place[name]) || state.place.refused === "true";
  return html`<section class="historyview" aria-label="History">
    <${Filters} />
    ${state.place.from && state.place.to && html`<${Difference} from=${Number(state.place.from)} to=${Number(state.place.to)} />`}
    ${asked ? html`<${Found} />` : html`<${Newest} />`}
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
  return html`<form class="bar" onSubmit=${submit}>
    ${FILTERS.map((name) => html`<label>${name} <input name=${name} placeholder=${EXAMPLES[name]} value=${texts[name] ?? ""} onInput=${(/** @type {any} */ e) => setTexts({ ...texts, [name]: e.target.value })} /></label>`)}
    <label><input type="checkbox" name="refused" checked=${texts.refused === "true"} onChange=${(/** @type {any} */ e) => setTexts({ ...texts, refused: e.target.checked ? "true" : "" })} /> refused only</label>
    <button>search</button>
    <button type="button" onClick=${() => go({ text: "", actor: "", about: "", command: "", refused: "" })}>all</button>
  </form>`;
}

function Newest() {
  useEffect(() => {
    if (!state.epochs.length) readEpochs();
  }, []);
  return html`<h2>Epochs</h2>
    <ol class="epochs" data-list="epochs">${state.epochs.map((told) => html`<${EpochItem} key=${told.epoch} told=${told} />`)}</ol>
    ${state.nextBefore > 0 && html`<button onClick=${() => readEpochs(state.nextBefore)}>older ones</button>`}`;
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
  return html`<h2>Found</h2>
    <p role="status">${found.busy ? "searching…" : `${counted(found.epochs.length, "epoch", "epochs")} of ${found.lookedAt} that were looked at`}</p>
    <ol class="epochs" data-list="found">${found.epochs.map((told) => html`<${EpochItem} key=${told.epoch} told=${told} />`)}</ol>
    ${found.next > 0 && html`<button onClick=${() => more(found.next)} disabled=${found.busy}>look further back</button>`}`;
}

/** @param {{from: number, to: number}} props */
function Difference({ from, to }) {
  const { answer, problem } = useAnswer((signal) => get("/api/diff", { from, to }, signal), `${from} ${to}`);
  return html`<section class="panel flat" aria-label="Difference">
    <h2>From epoch ${from} to epoch ${to}
      <button class="link" onClick=${() => go({ view: "map", epoch: to >= state.newest ? 0 : to, against: from })}>on the map</button>
      <button class="close" onClick=${() => go({ from: "", to: "" })} aria-label="close">×</button></h2>
    ${problem && html`<p class="bad">${problem}</p>`}
    ${answer && html`<ul class="diff" tabindex="0" aria-label="What differs">${answer.lines.map((/** @type {[string, string]} */ [sign, text]) => html`<li class=${{ "+": "plus", "-": "minus", "~": "tilde" }[sign]}><b>${sign}</b> ${text}</li>`)}
      ${!answer.lines.length && html`<li>Nothing differs.</li>`}${answer.more > 0 && html`<li>and ${answer.more} more</li>`}</ul>`}
  </section>`;
}
