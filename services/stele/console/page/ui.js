// Small parts that all views share.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { mayComeBack, pauseAfter } from "./api.js";
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

/** Between two questions to somebody who is away; milliseconds. */
const AWAY_MS = 3000;

/**
 * What a question is answered with. Asked again when `when` changes, one at a time, so that a cluster that never
 * rests does not keep it from its answer; another `what` is another question, and the last answer goes.
 * @param {(signal: AbortSignal) => Promise<any>} ask
 * @param {string} what
 * @param {string | number} [when]
 */
export function useAnswer(ask, what, when = "") {
  const [found, setFound] = useState({ answer: /** @type {any} */ (null), problem: "", what });
  const newest = useRef({ ask, when, again: () => {} });
  newest.current.ask = ask;
  newest.current.when = when;
  useEffect(() => {
    const cut = new AbortController();
    let busy = false;
    const again = async () => {
      if (busy) return;
      busy = true;
      for (let asked; asked !== newest.current.when && !cut.signal.aborted; ) {
        asked = newest.current.when;
        const begun = performance.now();
        let away = false;
        try {
          const answer = await newest.current.ask(cut.signal);
          away = Boolean(answer?.away);
          if (!cut.signal.aborted) setFound({ answer, problem: "", what });
        } catch (error) {
          away = mayComeBack(error);
          const problem = error instanceof Error ? error.message : String(error);
          if (!cut.signal.aborted) setFound((/** @type {any} */ old) => ({ answer: old.what === what ? old.answer : null, problem, what }));
        }
        if (away) asked = null;
        if (asked !== newest.current.when) await new Promise((done) => setTimeout(done, away ? AWAY_MS : pauseAfter(performance.now() - begun)));
      }
      busy = false;
    };
    newest.current.again = again;
    again();
    return () => cut.abort();
  }, [what]);
  useEffect(() => {
    newest.current.again();
  }, [when]);
  return found.what === what ? found : { answer: null, problem: "", what };
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

/**
 * What was chosen, in full. It comes into sight and is read on from there; Escape closes it, and leads back.
 * @param {{what: string, label: string, ready: boolean, close: () => void, kind?: string, children?: any}} props
 */
export function Panel({ what, label, ready, close, kind = "", children }) {
  const self = useRef(null);
  const opener = useRef(/** @type {any} */ (null));
  useEffect(() => {
    if (!self.current.contains(document.activeElement)) opener.current = document.activeElement;
    self.current.focus({ preventScroll: true });
  }, [what]);
  useEffect(() => self.current.scrollIntoView({ block: "start" }), [what, ready]);
  const end = () => {
    close();
    opener.current?.focus?.();
  };
  const onKey = (/** @type {KeyboardEvent} */ e) => {
    if (e.key !== "Escape") return;
    e.stopPropagation();
    end();
  };
  return html`<aside ref=${self} class=${`panel ${kind}`} aria-label=${label} tabindex="-1" onKeyDown=${onKey}>
    <button class="close" onClick=${end} aria-label="close">×</button>
    ${children}</aside>`;
}

/** @param {{state: string}} props */
export function Badge({ state: text }) {
  return html`<span class=${`badge ${Object.hasOwn(KIND, text) ? KIND[text] : ""}`}>${text}</span>`;
}

/** @type {Record<string, string>} */
const KIND = {
  normal: "good", done: "good", up: "good", running: "busy", bootstrapping: "busy", decommissioning: "busy",
  moving: "busy", rebuilding: "busy", replacing: "busy", removing: "busy", pending: "warn", none: "warn",
  unknown: "warn", cancelled: "warn", failed: "bad", quarantined: "bad", "goes on": "good", down: "bad", left: "dim", refused: "bad",
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

const ID = /([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/;

/** A line of an epoch, with links to the requests that it names. @param {{text: string}} props */
function Line({ text }) {
  return html`<li>${text.split(ID).map((part, at) => (at % 2 ? html`<button class="link" title="What became of it, and who asked for it" onClick=${() => go({ view: "requests", request: part })}>${part}</button>` : part))}</li>`;
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
    <ul class="facts">${told.lines.length ? told.lines.map((/** @type {string} */ line) => html`<${Line} text=${line} />`) : html`<li>nothing: a barrier</li>`}
      ${told.more > 0 && html`<li>and ${told.more} more</li>`}</ul>
  </li>`;
}
