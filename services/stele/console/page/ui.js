// Small parts that all views share.

import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { go, listen, shownEpoch, state } from "./store.js";
import { clock } from "./words.js";

/** Draw again whenever what is known changes. */
export function useStore() {
  const [, again] = useState(0);
  useEffect(() => {
    const off = listen(() => again((/** @type {number} */ n) => n + 1));
    return () => off();
  }, []);
  return state;
}

/**
 * What a question is answered with, asked again when `key` changes; the last answer stays meanwhile.
 * @param {(signal: AbortSignal) => Promise<any>} ask
 * @param {string} key
 */
export function useAnswer(ask, key) {
  const [found, setFound] = useState({ answer: /** @type {any} */ (null), problem: "", key: "" });
  useEffect(() => {
    const cut = new AbortController();
    ask(cut.signal).then(
      (answer) => setFound({ answer, problem: "", key }),
      (error) => {
        if (!cut.signal.aborted) setFound((/** @type {any} */ old) => ({ ...old, problem: String(error.message ?? error), key }));
      },
    );
    return () => cut.abort();
  }, [key]);
  return found;
}

/**
 * A field whose text is the user's own until it is done with, whatever comes in meanwhile.
 * @param {{value: string | number, done: (text: string) => void, [name: string]: any}} props
 */
export function Field({ value, done, ...rest }) {
  const [draft, setDraft] = useState(/** @type {string | null} */ (null));
  const finish = (/** @type {any} */ event) => {
    if (draft !== null) done(event.target.value);
    setDraft(null);
  };
  return html`<input ...${rest} value=${draft ?? value} onInput=${(/** @type {any} */ e) => setDraft(e.target.value)} onChange=${finish} onBlur=${() => setDraft(null)} />`;
}

/** @param {{state: string}} props */
export function Badge({ state: text }) {
  return html`<span class=${`badge ${KIND[text] ?? ""}`}>${text}</span>`;
}

/** @type {Record<string, string>} */
const KIND = {
  normal: "good", done: "good", up: "good", running: "busy", bootstrapping: "busy", decommissioning: "busy",
  moving: "busy", rebuilding: "busy", replacing: "busy", removing: "busy", pending: "warn", none: "warn",
  unknown: "warn", cancelled: "warn", failed: "bad", down: "bad", left: "dim", refused: "bad",
};

/** A link to an epoch. @param {{epoch: number}} props */
export function EpochLink({ epoch }) {
  if (!epoch) return html`<span>-</span>`;
  return html`<button class="link" onClick=${() => go({ epoch, view: "map" })} title="Show the cluster as it was at epoch ${epoch}">${epoch}</button>`;
}

/** @param {{node: string}} props */
export function NodeLink({ node }) {
  return html`<button class="link" onClick=${() => go({ view: "nodes", node })}>${node}</button>`;
}

/** @param {{ms: number}} props */
export function Time({ ms }) {
  return ms ? html`<time datetime=${new Date(ms).toISOString()}>${clock(ms)}</time>` : html`<span></span>`;
}

/** Sentences with commands between backquotes. @param {{text: string}} props */
export function Sentence({ text }) {
  return html`<span>${text.split("`").map((part, at) => (at % 2 ? html`<code>${part}</code>` : part))}</span>`;
}

/** One epoch of a list. @param {{told: any, open?: boolean}} props */
export function EpochItem({ told }) {
  const shown = shownEpoch();
  return html`<li class=${told.refused ? "epoch refused" : "epoch"} aria-current=${shown === told.epoch ? "true" : undefined} data-epoch=${told.epoch}>
    <div class="head">
      <${EpochLink} epoch=${told.epoch} /> <${Time} ms=${told.at_ms} />
      <strong>${told.command}</strong> ${told.refused && html`<${Badge} state="refused" />`}
      <span class="by">${told.actor || "nobody"}${told.reason ? `: ${told.reason}` : ""}</span>
      <button class="link quiet" onClick=${() => go({ view: "history", from: told.epoch - 1, to: told.epoch })}>what it changed</button>
    </div>
    <ul class="facts">${told.lines.length ? told.lines.map((/** @type {string} */ line) => html`<li>${line}</li>`) : html`<li>nothing: a barrier</li>`}
      ${told.more > 0 && html`<li>and ${told.more} more</li>`}</ul>
  </li>`;
}
