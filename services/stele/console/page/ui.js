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

/** The status of something, as a word with a shape. @param {{state: string}} props */
export function Badge({ state: text }) {
  return html`<span class=${`badge ${kindOf(text)}`}>${text}</span>`;
}

/** @type {Record<string, string>} */
const KIND = {
  normal: "good", done: "good", up: "good", healthy: "good", live: "good", enabled: "good", running: "busy", bootstrapping: "busy",
  decommissioning: "busy", moving: "busy", rebuilding: "busy", replacing: "busy", removing: "busy", pending: "warn", none: "warn",
  unknown: "warn", cancelled: "warn", degraded: "warn", warning: "warn", unsafe: "warn", failed: "bad", critical: "bad", stopped: "bad",
  quarantined: "bad", down: "bad", refused: "bad",
};

/** The kind of a status: good, busy, warn, bad, or empty for one that needs no attention. @param {string} text */
export function kindOf(text) {
  return Object.hasOwn(KIND, text) ? KIND[text] : "";
}

/**
 * A block of a page with a heading. `kind` is good, busy, warn or bad and colours its edge.
 * @param {{title: string, kind?: string, more?: any, span?: string, name?: string, children?: any}} props `more` is placed beside the heading; `span` is its width in a grid
 */
export function Card({ title, kind = "", more, span = "", name, children }) {
  return html`<section class=${`card ${kind} ${span}`} aria-label=${title} data-card=${name}>
    <header><h2>${title}</h2>${more}</header>${children}</section>`;
}

/** One figure of the cluster. @param {{label: string, figure: any, detail?: any, kind?: string, name?: string}} props */
export function Tile({ label, figure, detail = "", kind = "", name }) {
  return html`<div class=${`tile ${kind}`} data-tile=${name}><p class="label">${label}</p><p class="figure">${figure}</p><p class="detail">${detail}</p></div>`;
}

/**
 * A progress bar with its figures.
 * @param {{label: any, done: number, total: number, figures?: any, kind?: string}} props with `total` 0 the bar is empty: the size is not known
 */
export function ProgressBar({ label, done, total, figures = "", kind = "" }) {
  const percent = total > 0 ? Math.min(100, (100 * done) / total) : 0;
  return html`<div class=${`progress ${kind}`}><span>${label}</span><span class="figures">${figures}</span>
    <div class="track" role="progressbar" aria-valuemin="0" aria-valuemax="100" aria-valuenow=${total > 0 ? Math.round(percent) : undefined} aria-label=${typeof label === "string" ? label : "progress"}><i style=${{ width: `${percent}%` }}></i></div></div>`;
}

/**
 * The states of an operation in their order.
 * @param {{steps: string[], at: number, failed?: boolean}} props `at` is the state that it is in; those before it are done
 */
export function Stepper({ steps, at, failed = false }) {
  const kind = (/** @type {number} */ n) => (n < at ? "done" : n > at ? "" : failed ? "failed" : "now");
  return html`<ol class="stepper">${steps.map((name, n) => html`<li class=${kind(n)} aria-current=${n === at ? "step" : undefined}>${name}</li>`)}</ol>`;
}

/** What is not there yet, and what will be. @param {{children?: any}} props */
export function Empty({ children }) {
  return html`<p class="empty">${children}</p>`;
}

/** @param {{what: string}} props what appears here once it is read */
export function Loading({ what }) {
  return html`<p class="loading" role="status">Loading ${what}…</p>`;
}

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

/** A line of an epoch. Ids of requests and transitions are links with the names in `subjects`. @param {{text: string, subjects?: Record<string, string>}} props */
function Line({ text, subjects = {} }) {
  return html`<li>${text.split(ID).map((part, at) => (at % 2 ? html`<button class="link" title=${part} onClick=${() => go({ view: "operations", request: part })}>${subjects[part] ?? `${part.slice(0, 8)}…`}</button>` : part))}</li>`;
}

/** One epoch of a list. @param {{told: any, open?: boolean}} props */
export function EpochItem({ told }) {
  const shown = shownEpoch();
  return html`<li class=${told.refused ? "epoch refused" : "epoch"} aria-current=${shown === told.epoch ? "true" : undefined} data-epoch=${told.epoch}>
    <div class="head">
      <${EpochLink} epoch=${told.epoch} /> <${Time} ms=${told.at_ms} />
      <strong>${told.command}</strong> ${told.refused && html`<${Badge} state="refused" />`}
      <span class="by">${told.actor || (told.refused ? "" : "a service")}${told.reason ? `: ${told.reason}` : ""}</span>
      <button class="link quiet" onClick=${() => go({ view: "history", from: told.epoch - 1, to: told.epoch })}>Changes</button>
    </div>
    <ul class="facts">${told.lines.length ? told.lines.map((/** @type {string} */ line) => html`<${Line} text=${line} subjects=${told.subjects} />`) : html`<li>no change: a barrier</li>`}
      ${told.more > 0 && html`<li>and ${told.more} more</li>`}</ul>
  </li>`;
}
