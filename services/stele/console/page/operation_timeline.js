// Operations as bars over time or over epochs, one bar each; single changes as marks above them.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { clock, duration } from "./words.js";

/** @typedef {{state: string, epoch: number, at_ms: number}} Step */
/**
 * @typedef {object} Operation
 * @property {string} request_id
 * @property {string} what
 * @property {string} kind
 * @property {string} status
 * @property {string} actor
 * @property {string} reason
 * @property {string} error
 * @property {number} submitted_epoch
 * @property {number} finished_epoch
 * @property {number} submitted_at_ms
 * @property {number} finished_at_ms
 * @property {Step[]} steps
 * @property {number[]} epochs
 */
/** @typedef {{from: number, to: number}} Span */

const LANE = 24;
const BAR = 16;
const TOP = 44;
const LEAST_WIDTH = 5;
/** Width of a letter of a label, by which bars are kept apart; pixels. */
const LETTER = 6.6;
const ZOOM = 1.6;
const GROUPS = /** @type {Record<string, string>} */ ({ tablet: "tablets", intranode: "tablets", table: "tablets", join: "nodes", leave: "nodes", remove: "nodes", replace: "nodes", move: "nodes", rebuild: "nodes", exclude: "nodes", cleanup: "nodes", keyspace: "schema", drop: "schema", truncate: "schema" });
export const GROUP_NAMES = /** @type {Record<string, string>} */ ({ nodes: "nodes", tablets: "tablets", schema: "keyspaces", other: "other" });

/** The colour group of a kind of operation. @param {string} kind */
export function groupOf(kind) {
  return GROUPS[kind.split("_")[0]] ?? "other";
}

/** Words for the subject of an operation: pattern of the log's words, and what is shown. @type {[RegExp, string][]} */
const PHRASES = [
  [/^(?:tablet|intranode)_migration of (\S+) tablet (\d+) from (\S+) to (.+)$/, "move $1 tablet $2, $3 → $4"],
  [/^tablet_migration of (\S+) tablet (\d+) to (.+)$/, "add replica of $1 tablet $2 on $3"],
  [/^tablet_resize (\S+) from (\d+) to (\d+)$/, "resize $1, $2 → $3 tablets"],
  [/^(?:keyspace|tablet)_rf_change /, "change replication of "],
  [/^leave /, "decommission "],
];

/** The subject of an operation for people: "move music.songs tablet 4, n2 → n6". @param {string} what as the log has it */
export function readable(what) {
  for (const [pattern, words] of PHRASES) if (pattern.test(what)) return what.replace(pattern, words);
  const [kind, ...rest] = what.split(" ");
  return [kind.replaceAll("_", " "), ...rest].join(" ");
}

/** @param {Operation} operation */
export const isOpen = (operation) => operation.status === "pending" || operation.status === "running";

/** Times of writers' clocks may run back a little: an operation ends no earlier than it begins. @param {Operation} o @param {boolean} byEpoch @param {Span} whole @returns {Span} */
function extent(o, byEpoch, whole) {
  const from = byEpoch ? o.submitted_epoch : o.submitted_at_ms;
  const end = byEpoch ? o.finished_epoch : o.finished_at_ms;
  return { from, to: Math.max(from, isOpen(o) ? whole.to : end) };
}

/** Round steps of the axis: 1, 2 or 5 times a power of ten for epochs; seconds, minutes, hours for times. */
const TIME_STEPS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400, 604800].map((s) => 1000 * s);

/** @param {Span} view @param {number} most @param {boolean} byEpoch */
function ticks(view, most, byEpoch) {
  const least = (view.to - view.from) / most;
  let step = TIME_STEPS.find((each) => each >= least) ?? TIME_STEPS[TIME_STEPS.length - 1] * Math.ceil(least / TIME_STEPS[TIME_STEPS.length - 1]);
  if (byEpoch) {
    const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
    step = [1, 2, 5, 10].map((n) => n * power).find((each) => each >= least) ?? power;
  }
  const offset = byEpoch ? 0 : new Date(view.from).getTimezoneOffset() * 60_000;
  const found = [];
  for (let at = Math.ceil((view.from - offset) / step) * step + offset; at <= view.to; at += step) found.push(at);
  return { found, step };
}

/** @param {number} at @param {number} step */
function tickText(at, step) {
  const text = clock(at);
  if (step >= 86_400_000) return text.slice(5, 10);
  return step >= 60_000 ? text.slice(11, 16) : text.slice(11, 19);
}

/**
 * Put each bar with its label into the first lane with room. The oldest bars come first.
 * @param {{from: number, to: number}[]} bars pixels
 */
export function lanes(bars) {
  /** @type {number[]} */
  const ends = [];
  return bars.map(({ from, to }) => {
    const free = ends.findIndex((end) => end <= from);
    const lane = free < 0 ? ends.length : free;
    ends[lane] = to;
    return lane;
  });
}

/**
 * @param {{operations: Operation[], changes: any[], whole: {time: Span, epochs: Span}, byEpoch: boolean, chosen: string, choose: (id: string) => void, chooseEpoch: (epoch: number) => void}} props
 */
export function OperationTimeline({ operations, changes, whole, byEpoch, chosen, choose, chooseEpoch }) {
  const box = useRef(null);
  const [width, setWidth] = useState(900);
  const [zoomed, setZoomed] = useState(/** @type {Span | null} */ (null));
  const full = byEpoch ? whole.epochs : whole.time;
  const view = zoomed ?? full;
  const live = useRef({ view, full, width });
  live.current = { view, full, width };
  useEffect(() => setZoomed(null), [byEpoch]);
  useEffect(() => {
    const watcher = new ResizeObserver(() => setWidth(Math.max(300, Math.floor(box.current.clientWidth))));
    watcher.observe(box.current);
    return () => watcher.disconnect();
  }, []);
  const scale = width / Math.max(1, view.to - view.from);
  const x = (/** @type {number} */ value) => (value - view.from) * scale;
  const zoom = (/** @type {number} */ factor, part = 0.5) => {
    const now = live.current;
    const span = (now.view.to - now.view.from) / factor;
    const middle = now.view.from + (now.view.to - now.view.from) * part;
    setZoomed(fitted({ from: middle - span * part, to: middle + span * (1 - part) }, now.full, byEpoch ? 3 : 1000));
  };
  const shift = (/** @type {number} */ part) => {
    const now = live.current;
    const by = (now.view.to - now.view.from) * part;
    setZoomed(fitted({ from: now.view.from + by, to: now.view.to + by }, now.full, byEpoch ? 3 : 1000));
  };
  useEffect(() => listenTo(box.current, zoom, shift), [byEpoch]);

  const shown = operations
    .map((operation) => ({ operation, at: extent(operation, byEpoch, full) }))
    .filter(({ at }) => at.to >= view.from && at.from <= view.to)
    .sort((a, b) => a.at.from - b.at.from || a.operation.request_id.localeCompare(b.operation.request_id))
    .map((each) => {
      const left = x(each.at.from);
      const long = Math.max(LEAST_WIDTH, x(each.at.to) - left);
      const text = readable(each.operation.what);
      const next = each.operation.steps[1];
      const pending = Math.min(long, Math.max(0, x(next ? (byEpoch ? next.epoch : next.at_ms) : each.at.to) - left));
      const inside = text.length * LETTER + 8 < long - pending;
      const before = !inside && left + long + text.length * LETTER + 14 > width && left > text.length * LETTER + 14;
      return { ...each, left, long, pending, text, inside, before };
    });
  const placed = lanes(shown.map((s) => {
    const label = s.inside ? 0 : s.text.length * LETTER + 14;
    return { from: s.before ? s.left - label : s.left, to: s.left + s.long + (s.before ? 4 : label + 4) };
  }));
  const height = TOP + LANE * Math.max(1, ...placed.map((lane) => lane + 1));
  const axis = ticks(view, width / 110, byEpoch);
  const marks = changes.filter((change) => {
    const at = byEpoch ? change.epoch : change.at_ms;
    return at >= view.from && at <= view.to;
  });
  const onKey = (/** @type {KeyboardEvent} */ e) => {
    const deeds = /** @type {Record<string, () => void>} */ ({ "+": () => zoom(ZOOM), "-": () => zoom(1 / ZOOM), 0: () => setZoomed(null), ArrowLeft: () => shift(-0.2), ArrowRight: () => shift(0.2) });
    const deed = deeds[e.key];
    if (!deed || e.ctrlKey || e.metaKey || e.altKey) return;
    e.preventDefault();
    deed();
  };
  return html`<div class="optimeline">
    <div class="optimeline-bar" role="group" aria-label="Zoom">
      <button onClick=${() => zoom(ZOOM)} aria-label="zoom in">+</button>
      <button onClick=${() => zoom(1 / ZOOM)} aria-label="zoom out" disabled=${!zoomed}>−</button>
      <button onClick=${() => setZoomed(null)} disabled=${!zoomed}>all</button>
      <span class="note">${byEpoch ? `epochs ${Math.ceil(view.from)} to ${Math.floor(view.to)}` : `${clock(view.from)} to ${clock(view.to)}`}</span>
      <ul class="keys">${Object.entries(GROUP_NAMES).map(([group, name]) => html`<li><i class=${`key ${group}`}></i>${name}</li>`)}
        <li><i class="key failed"></i>failed or cancelled</li><li><i class="mark"></i>single change</li><li><i class="mark refused"></i>refused</li></ul>
    </div>
    <div class="optimeline-field" ref=${box} tabindex="0" role="group" aria-label="Time line of operations. Arrow keys move, + and - zoom, 0 shows all." onKeyDown=${onKey}>
      <svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`}>
        ${axis.found.map((at) => html`<g class="tick" key=${at}><line x1=${x(at)} x2=${x(at)} y1="18" y2=${height} /><text x=${x(at) + 3} y="12">${byEpoch ? at : tickText(at, axis.step)}</text></g>`)}
        ${marks.map((change) => html`<g class=${`mark ${change.refused ? "refused" : ""}`} key=${`m${change.epoch}`} data-change=${change.epoch} onClick=${() => chooseEpoch(change.epoch)}>
          <title>${`epoch ${change.epoch}, ${clock(change.at_ms)}: ${change.command} by ${change.actor || "unknown"}`}</title>
          <path transform=${`translate(${x(byEpoch ? change.epoch : change.at_ms)} 29)`} d=${change.refused ? "M-4 -4 L4 4 M4 -4 L-4 4" : "M0 -5 L5 0 L0 5 L-5 0 Z"} /></g>`)}
        ${shown.map((s, at) => html`<${Bar} key=${s.operation.request_id} shown=${s} y=${TOP + LANE * placed[at]} x=${x} byEpoch=${byEpoch} chosen=${chosen === s.operation.request_id} choose=${choose} />`)}
      </svg>
    </div>
  </div>`;
}

/** Keep a view inside all that there is. @param {Span} view @param {Span} full @param {number} least @returns {Span | null} */
function fitted(view, full, least) {
  const span = Math.max(least, view.to - view.from);
  if (span >= full.to - full.from) return null;
  const from = Math.max(full.from, Math.min(full.to - span, view.from));
  return { from, to: from + span };
}

/** Wheel zooms with the control key, as in maps that scroll with their page; a drag moves. @param {HTMLElement} element @param {(factor: number, part: number) => void} zoom @param {(part: number) => void} shift */
function listenTo(element, zoom, shift) {
  let held = 0;
  let dragging = false;
  const wheel = (/** @type {WheelEvent} */ e) => {
    if (!e.ctrlKey && !e.shiftKey) return;
    e.preventDefault();
    const part = (e.clientX - element.getBoundingClientRect().left) / element.clientWidth;
    zoom((e.deltaY || e.deltaX) < 0 ? ZOOM : 1 / ZOOM, part);
  };
  const down = (/** @type {PointerEvent} */ e) => {
    held = e.clientX;
    dragging = true;
  };
  const move = (/** @type {PointerEvent} */ e) => {
    if (!dragging || Math.abs(e.clientX - held) < 3) return;
    shift((held - e.clientX) / element.clientWidth);
    held = e.clientX;
  };
  const up = () => {
    dragging = false;
  };
  element.addEventListener("wheel", wheel, { passive: false });
  element.addEventListener("pointerdown", down);
  window.addEventListener("pointermove", move);
  window.addEventListener("pointerup", up);
  return () => {
    element.removeEventListener("wheel", wheel);
    element.removeEventListener("pointerdown", down);
    window.removeEventListener("pointermove", move);
    window.removeEventListener("pointerup", up);
  };
}

/** @param {{shown: any, y: number, x: (value: number) => number, byEpoch: boolean, chosen: boolean, choose: (id: string) => void}} props */
function Bar({ shown: { operation: o, at, left, long, pending, text, inside, before }, y, x, byEpoch, chosen, choose }) {
  const bad = o.status === "failed" || o.status === "cancelled";
  const took = isOpen(o) ? "" : `, ${duration((o.finished_at_ms - o.submitted_at_ms) / 1000)}`;
  const label = `${text}: ${o.status}${took}, by ${o.actor || "unknown"}${o.reason ? `: ${o.reason}` : ""}`;
  const steps = o.steps.map((/** @type {Step} */ step, /** @type {number} */ n) => {
    const next = o.steps[n + 1];
    const from = x(byEpoch ? step.epoch : step.at_ms);
    const to = next ? x(byEpoch ? next.epoch : next.at_ms) : x(at.to);
    return { state: step.state, from: Math.max(left, from), long: Math.max(0, Math.min(to, left + long) - Math.max(left, from)) };
  });
  const onKey = (/** @type {KeyboardEvent} */ e) => {
    if (e.key === "Enter") choose(o.request_id);
  };
  return html`<g class=${`bar-of ${groupOf(o.kind)} ${bad ? "failed" : ""} ${isOpen(o) ? "open" : ""} ${chosen ? "chosen" : ""}`} role="button" tabindex="0" aria-label=${label} aria-pressed=${chosen} data-operation=${o.request_id}
    onClick=${() => choose(o.request_id)} onKeyDown=${onKey}>
    <title>${label}</title>
    <rect class="whole" x=${left} y=${y} width=${long} height=${BAR} rx="3" />
    ${long > LEAST_WIDTH && steps.map((/** @type {any} */ s, /** @type {number} */ n) => s.long > 0.5 && html`<rect class=${`step ${s.state === "pending" ? "pending" : n % 2 ? "odd" : "even"}`} x=${s.from} y=${y} width=${s.long} height=${BAR}><title>${`${s.state.replaceAll("_", " ")} — ${label}`}</title></rect>`)}
    <rect class="edge" x=${left} y=${y} width=${long} height=${BAR} rx="3" />
    <text class=${inside ? "inside" : ""} x=${inside ? left + pending + 5 : before ? left - 5 : left + long + 5} y=${y + BAR - 4} text-anchor=${before ? "end" : "start"}>${text}</text>
  </g>`;
}
