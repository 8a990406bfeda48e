// The map: ring or tablets on a canvas, with the same in words for screen readers.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { get } from "./api.js";
import { ask } from "./ask.js";
import { colouring, colourOf, css, MODES, rowText } from "./colours.js";
import { RingDraw } from "./ring_draw.js";
import { choose, fail, go, shownEpoch, shownMap, state } from "./store.js";
import { TabletDraw } from "./tablet_draw.js";
import { isDark } from "./theme.js";
import { Badge, Empty, EpochItem, Field, Loading, NodeLink, Sentence, useAnswer, useStore } from "./ui.js";
import { clock, counted } from "./words.js";

const ZOOM = 1.25;
const MOST_LEGEND = 40;
/** The map of the tokens of all nodes, which no placement is. */
const TOKENS = "*tokens";
/** Decisions about a tablet in one answer. */
const LISTED = 20;

/** Durations of the newest frames in milliseconds, for measurements. @type {number[]} */
export const frames = [];
const FRAMES = 600;

class Sheet {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    /** @type {TabletDraw | RingDraw | null} */
    this.draw = null;
    /** @type {import("./tablet_draw.js").View | null} */
    this.view = null;
    this.key = "";
    this.painted = "";
    this.asked = 0;
    this.moved = false;
    /** @type {[string, string][]} */
    this.legend = [];
    this.look = { ink: "#000", paper: "#fff", node: (/** @type {number} */ _) => "#888", byNode: false };
    /** @type {((number: number) => string) | null} */
    this.ofNode = null;
  }

  /** Read the state; paint only the changes. */
  update() {
    const map = state.map;
    const head = shownMap();
    if (!map || !head) {
      this.clear();
      return;
    }
    const dark = isDark();
    const box = this.canvas.getBoundingClientRect();
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [Math.max(50, Math.round(box.width * ratio)), Math.max(50, Math.round(box.height * ratio))];
    const sized = this.canvas.width !== width || this.canvas.height !== height;
    if (sized) {
      this.canvas.width = width;
      this.canvas.height = height;
    }
    const kind = `${map.placement} ${map.rows}`;
    if (!this.draw || this.key !== kind) {
      this.draw = head.tablets ? new TabletDraw() : new RingDraw();
      this.key = kind;
      this.painted = "";
      this.moved = false;
    }
    const mode = MODES.includes(state.place.colour) ? state.place.colour : "node";
    const paint = `${state.mapNumber} ${mode} ${dark} ${state.overview?.topology.version}`;
    if (paint !== this.painted || sized) {
      this.painted = paint;
      const nodes = state.overview?.nodes ?? [];
      const { of, ofNode, legend } = colouring(map, mode, { nodes, load: state.load, dark, newestVersion: state.overview?.topology.version ?? 1 });
      this.legend = legend;
      this.ofNode = map.differs ? null : ofNode;
      this.draw.paint(map, of, width / height);
    }
    const names = [...map.nodes].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    const colours = new Map(names.map((name, at) => [name, css(colourOf(at, dark))]));
    this.look = {
      ink: dark ? "#fff" : "#111",
      paper: dark ? "#14171c" : "#fbfbfc",
      node: this.ofNode ?? ((/** @type {number} */ number) => colours.get(map.nodes[number]) ?? "#888"),
      byNode: this.ofNode !== null,
    };
    if (!this.view || !this.moved) this.view = this.draw.whole(width, height);
    this.ask();
  }

  /** Clear the canvas: its picture is of another epoch. */
  clear() {
    this.draw = null;
    this.key = "";
    this.legend = [];
    if (!this.context) return;
    this.context.fillStyle = isDark() ? "#14171c" : "#fbfbfc";
    this.context.fillRect(0, 0, this.canvas.width, this.canvas.height);
  }

  ask() {
    if (this.asked) return;
    this.asked = requestAnimationFrame(() => {
      this.asked = 0;
      this.frame();
    });
  }

  frame() {
    if (!this.context || !this.draw || !this.view) return;
    const began = performance.now();
    this.draw.draw(this.context, this.view, selectedPlace(), this.look);
    frames.push(performance.now() - began);
    if (frames.length > FRAMES) frames.shift();
  }

  /** @param {number} factor @param {number} x @param {number} y */
  zoom(factor, x, y) {
    if (!this.view || !this.draw) return;
    const scale = Math.max(0.05, Math.min(4000, this.view.scale * factor));
    const real = scale / this.view.scale;
    this.view = { x: x - (x - this.view.x) * real, y: y - (y - this.view.y) * real, scale };
    this.moved = true;
    this.ask();
  }

  /** @param {number} x @param {number} y */
  shift(x, y) {
    if (!this.view) return;
    this.view = { ...this.view, x: this.view.x + x, y: this.view.y + y };
    this.moved = true;
    this.ask();
  }

  whole() {
    this.moved = false;
    this.update();
  }

  /** @param {MouseEvent} event @returns {[number, number]} */
  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const ratio = this.canvas.width / box.width;
    return [(event.clientX - box.left) * ratio, (event.clientY - box.top) * ratio];
  }
}

/** @type {Sheet | null} */
let newestSheet = null;

/** The map that is on the page. */
export const sheetNow = () => newestSheet;

function selectedPlace() {
  return state.place.row === undefined ? -1 : Number(state.place.row);
}

/** @param {number} step */
function select(step) {
  const map = state.map;
  if (!map) return;
  const now = selectedPlace();
  const next = now < 0 ? 0 : now + step;
  if (next >= 0 && next < map.rows) choose(next);
}

/** @param {HTMLCanvasElement} canvas @param {Sheet} sheet */
function listenTo(canvas, sheet) {
  /** @type {[number, number] | null} */
  let held = null;
  let dragged = false;
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    sheet.zoom(event.deltaY < 0 ? ZOOM : 1 / ZOOM, ...sheet.point(event));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    held = sheet.point(event);
    dragged = false;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const now = sheet.point(event);
    if (held) {
      const [x, y] = [now[0] - held[0], now[1] - held[1]];
      if (dragged || Math.hypot(x, y) > 4) {
        dragged = true;
        sheet.shift(x, y);
        held = now;
      }
      return;
    }
    const place = sheet.draw && sheet.view ? sheet.draw.at(sheet.view, ...now) : -1;
    canvas.title = place >= 0 && state.map ? rowText(state.map, place) : "";
  });
  canvas.addEventListener("pointerup", (event) => {
    if (held && !dragged && sheet.draw && sheet.view) {
      const place = sheet.draw.at(sheet.view, ...sheet.point(event));
      choose(place < 0 ? "" : place);
    }
    held = null;
  });
  canvas.addEventListener("keydown", (event) => {
    const columns = sheet.draw instanceof TabletDraw ? sheet.draw.columns : 1;
    const middle = /** @type {[number, number]} */ ([canvas.width / 2, canvas.height / 2]);
    const deeds = /** @type {Record<string, () => void>} */ ({
      ArrowRight: () => select(1),
      ArrowLeft: () => select(-1),
      ArrowDown: () => select(columns),
      ArrowUp: () => select(-columns),
      "+": () => sheet.zoom(ZOOM, ...middle),
      "-": () => sheet.zoom(1 / ZOOM, ...middle),
      0: () => sheet.whole(),
      Escape: () => choose(""),
    });
    const deed = deeds[event.key];
    if (!deed || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    deed();
  });
}

export function MapView() {
  useStore();
  const canvas = useRef(null);
  const sheet = useRef(null);
  useEffect(() => {
    const own = new Sheet(canvas.current);
    sheet.current = own;
    newestSheet = own;
    listenTo(canvas.current, own);
    const watcher = new ResizeObserver(() => own.update());
    watcher.observe(canvas.current);
    own.update();
    return () => watcher.disconnect();
  }, []);
  useEffect(() => sheet.current?.update());
  const head = shownMap();
  const maps = state.overview?.maps ?? [];
  const map = state.map;
  const place = selectedPlace();
  return html`<section class="mapview" aria-label="Map">
    <div class="bar">
      <label>Map <select value=${head?.placement ?? ""} onChange=${(/** @type {any} */ e) => go({ map: e.target.value, row: "" })}>
        ${!head && html`<option value="">none</option>`}
        ${maps.map((/** @type {any} */ m) => html`<option value=${m.placement}>${m.name} (${counted(m.rows, m.tablets ? "tablet" : "range", m.tablets ? "tablets" : "ranges")})</option>`)}
      </select></label>
      <label>Colour by <select value=${MODES.includes(state.place.colour) ? state.place.colour : "node"} onChange=${(/** @type {any} */ e) => go({ colour: e.target.value }, true)}>
        ${MODES.map((mode) => html`<option value=${mode}>${mode}</option>`)}
      </select></label>
      <span class="zoom" role="group" aria-label="Zoom">
        <button onClick=${() => sheet.current.zoom(ZOOM, canvas.current.width / 2, canvas.current.height / 2)} aria-label="Zoom in">+</button>
        <button onClick=${() => sheet.current.zoom(1 / ZOOM, canvas.current.width / 2, canvas.current.height / 2)} aria-label="Zoom out">−</button>
        <button onClick=${() => sheet.current.whole()}>Whole</button>
      </span>
      ${state.place.against && html`<span class="note">Colours show only the differences from epoch ${state.place.against}.${" "}<button class="link" onClick=${() => go({ against: "" })}>Show all</button></span>`}
      ${head && html`<label class="goto">${head.tablets ? "Tablet" : "Range"}
        <${Field} type="number" min="0" max=${head.rows - 1} value=${place < 0 ? "" : place} done=${choose} /></label>`}
      ${state.place.colour === "load" && !state.load && state.loadProblem && html`<span class="note" data-note="load">${state.loadProblem}</span>`}
    </div>
    <div class="field">
      <canvas ref=${canvas} tabindex="0" role="img" aria-label=${mapText(map, head)}></canvas>
      ${!head && state.overview && html`<p class="empty">${state.place.map && maps.length
        ? html`This map is not there at epoch ${state.overview.epoch}. <button class="link" onClick=${() => go({ map: "", row: "" })}>Show another</button>`
        : "There is no map yet: no node has tokens, and no table has tablets."}</p>`}
    </div>
    <p class="unseen" role="status">${map && head && place >= 0 && place < map.rows ? rowText(map, place) : ""}</p>
    <ul class="legend" aria-label="Colours">${(sheet.current?.legend ?? []).slice(0, MOST_LEGEND).map((/** @type {[string, string]} */ [name, colour]) =>
      html`<li><i style=${{ background: colour }}></i>${name}</li>`)}</ul>
    ${place >= 0 && head && html`<${RowPanel} placement=${head.placement} place=${place} head=${head} />`}
  </section>`;
}

/** @param {any} map @param {any} head */
function mapText(map, head) {
  if (!map || !head) return "Loading the map.";
  let moving = 0;
  for (let at = 0; at < map.rows; at++) moving += map.state[at] === 1 ? 1 : 0;
  const what = head.tablets ? counted(map.rows, "tablet", "tablets") : counted(map.rows, "range", "ranges");
  return `Map of ${head.name}: ${what} on ${counted(map.nodes.length, "node", "nodes")}, ${moving} moving. Arrow keys select one, plus and minus zoom.`;
}

/** The name of the operation of a transition, whose id is that of its first request. @param {string} id */
const nameOf = (id) => state.overview?.requests.find((/** @type {any} */ r) => r.transition_id === id)?.what ?? id;

/** @param {{placement: string, place: number, head: any}} props */
function RowPanel({ placement, place, head }) {
  const epoch = shownEpoch();
  const { answer, problem } = useAnswer((signal) => get("/api/row", { placement, place, epoch: epoch || undefined }, signal), `${placement} ${place} ${epoch}`, state.overview?.epoch);
  const table = head.tablets ? head.keyspaces[0] : "";
  if (problem) return html`<aside class="panel"><p class="bad">${problem}</p></aside>`;
  if (!answer) return html`<aside class="panel"><${Loading} what="its replicas" /></aside>`;
  const going = answer.writes.filter((/** @type {string} */ n) => !answer.reads.includes(n));
  return html`<aside class="panel" aria-label="Selected row" data-row=${place}>
    <h2>${head.tablets ? "Tablet" : "Range"} ${place} of ${answer.name}
      <button class="close" onClick=${() => choose("")} aria-label="close">×</button></h2>
    <dl>
      <dt>Tokens</dt><dd>(${answer.start}, ${answer.end}]</dd>
      <dt>Reads</dt><dd>${answer.reads.map((/** @type {string} */ n, /** @type {number} */ at) => html`<${NodeLink} node=${n} />${answer.shards.length ? ` shard ${answer.shards[at]}` : ""} `)}</dd>
      ${going.length > 0 && html`<dt>Writes only</dt><dd>${going.map((/** @type {string} */ n) => html`<${NodeLink} node=${n} /> `)}</dd>`}
      <dt>Version</dt><dd>${answer.version}${answer.version_before ? `, previously ${answer.version_before}` : ""}</dd>
      ${answer.repaired_ms > 0 && html`<dt>Last repair</dt><dd>${clock(answer.repaired_ms)}</dd>`}
      ${answer.transitions.length > 0 && html`<dt>Operations</dt><dd>${answer.transitions.map((/** @type {string} */ t) => html`<button class="link" onClick=${() => go({ view: "operations", request: t })}>${nameOf(t)}</button> `)}</dd>`}
    </dl>
    ${table && !epoch && html`<div class="deeds">
      <button onClick=${() => ask("move-tablet", { table, tablet: String(place), from: answer.reads[0] ?? "" })}>Move…</button>
      <button onClick=${() => ask("repair-table", { name: table })}>Repair the table…</button></div>`}
    ${table && html`<h3>History</h3><${Past} table=${table} tablet=${place} epoch=${epoch} />
      ${!epoch && html`<${WhyNot} table=${table} tablet=${place} />`}`}
    ${!head.tablets && placement !== TOKENS && html`<h3>History</h3><${PastOfRange} placement=${placement} place=${place} epoch=${epoch} version=${answer.version} />`}
  </aside>`;
}

/**
 * Operations on a tablet up to the shown epoch; older ones are read on request.
 * @param {{table: string, tablet: number, epoch: number}} props
 */
function Past({ table, tablet, epoch }) {
  const key = `${table} ${tablet} ${epoch}`;
  const [older, setOlder] = useState({ key: "", found: /** @type {any[]} */ ([]), backTo: 0, busy: false });
  const { answer, problem } = useAnswer((signal) => get("/api/decisions", { table, tablet, limit: LISTED, before: epoch ? epoch + 1 : undefined }, signal), key, epoch || state.newest);
  if (problem) return html`<p class="note">${problem}</p>`;
  if (!answer) return html`<${Loading} what="its history" />`;
  const more = older.key === key ? older : { key, found: [], backTo: answer.looked_back_to, busy: false };
  const look = async () => {
    setOlder({ ...more, busy: true });
    try {
      const part = await get("/api/decisions", { table, tablet, limit: LISTED, before: more.backTo });
      setOlder({ key, found: [...more.found, ...part.decisions], backTo: part.looked_back_to, busy: false });
    } catch (error) {
      setOlder(more);
      fail(error);
    }
  };
  const all = [...answer.decisions, ...more.found];
  return html`${all.length
    ? html`<ol class="plain">${all.map((/** @type {any} */ d) => html`<li><button class="link" onClick=${() => go({ epoch: d.epoch })}>${d.epoch}</button> ${d.what}: ${d.outcome}${d.reason ? ` (${d.reason})` : ""}</li>`)}</ol>`
    : html`<${Empty}>No operation on this tablet since epoch ${more.backTo}.<//>`}
    ${more.backTo > state.begins && html`<button disabled=${more.busy} onClick=${look}>Search before epoch ${more.backTo}</button>`}`;
}

/** Epochs that changed the replicas of a range, up to the shown one. @param {{placement: string, place: number, epoch: number, version: number}} props */
function PastOfRange({ placement, place, epoch, version }) {
  const { answer, problem } = useAnswer((signal) => get("/api/range", { placement, place, epoch: epoch || undefined }, signal), `${placement} ${place} ${epoch}`, version);
  if (problem) return html`<p class="note">${problem}</p>`;
  if (!answer) return html`<${Loading} what="its history" />`;
  return html`<ol class="epochs" data-list="range">${answer.epochs.map((/** @type {any} */ told) => html`<${EpochItem} key=${told.epoch} told=${told} />`)}</ol>
    ${!answer.epochs.length && html`<${Empty}>No change in the epochs that were searched.<//>`}
    ${answer.next_before > 0 && html`<p class="note">Epochs before ${answer.next_before} were not searched.</p>`}`;
}

/** The balancer's verdict on each possible move. @param {{table: string, tablet: number}} props */
function WhyNot({ table, tablet }) {
  const { answer, problem } = useAnswer((signal) => get("/api/balance/why", { table, tablet }, signal), `${table} ${tablet}`, state.newest);
  if (problem) return html`<p class="note">${problem}</p>`;
  if (!answer) return null;
  return html`<h3>Possible moves</h3>
    <ul class="plain">${answer.verdicts.map((/** @type {any} */ v) => html`<li>${v.source} to ${v.target}: <${Badge} state=${v.accepted ? "accepted" : "rejected"} /> <${Sentence} text=${v.reason} /></li>`)}</ul>`;
}
