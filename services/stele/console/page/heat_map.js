// The load of nodes over time: a line for each node, a column for each sample.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { css } from "./colours.js";
import { isDark } from "./theme.js";
import { Empty } from "./ui.js";
import { asCounted, clock, size } from "./words.js";

const LINE = 20;
const PARTS = 5;

/** From little to much: one hue that gets stronger, which people of any sight can order. @type {Record<string, [number, number, number][]>} */
const STOPS = {
  light: [[252, 243, 214], [246, 205, 110], [217, 122, 38], [128, 40, 10]],
  dark: [[44, 50, 60], [98, 72, 38], [200, 126, 36], [255, 224, 140]],
};

/** @param {number} part 0 to 1 @param {boolean} dark */
function heat(part, dark) {
  const stops = STOPS[dark ? "dark" : "light"];
  const at = Math.max(0, Math.min(1, part)) * (stops.length - 1);
  const low = Math.min(stops.length - 2, Math.floor(at));
  const mixed = stops[low].map((value, n) => Math.round(value + (stops[low + 1][n] - value) * (at - low)));
  return css(/** @type {[number, number, number]} */ (mixed));
}

/** @typedef {{title: string, of: (sample: any) => Record<string, number>, text: (value: number) => string, least: number}} Measure `least`: the end of the scale when all values are below */

/** @type {Record<string, Measure>} */
export const MEASURES = {
  operations: { title: "operations/s", of: (s) => s.rates, text: (n) => (n < 10 ? n.toFixed(1) : String(Math.round(n))), least: 1 },
  bytes: { title: "bytes", of: (s) => s.sizes, text: size, least: 1000 },
  tablets: { title: "tablets", of: (s) => s.tablets, text: (n) => String(Math.round(n)), least: 1 },
};

/** @param {{samples: any[], measure: Measure}} props */
export function HeatMap({ samples, measure }) {
  const canvas = useRef(null);
  const [at, setAt] = useState("");
  const nodes = [...new Set(samples.flatMap((s) => Object.keys(s.tablets)))].sort(asCounted);
  const value = (/** @type {any} */ s, /** @type {string} */ node) => Object.getOwnPropertyDescriptor(measure.of(s), node)?.value;
  let most = 0;
  for (const s of samples) for (const node of nodes) most = Math.max(most, value(s, node) ?? 0);
  const end = Math.max(measure.least, most);
  const dark = isDark();
  useEffect(() => {
    const element = canvas.current;
    const draw = () => {
      const context = element?.getContext("2d");
      if (!context || !samples.length) return;
      const ratio = window.devicePixelRatio || 1;
      const width = Math.max(50, element.clientWidth);
      element.width = Math.round(width * ratio);
      element.height = Math.round(nodes.length * LINE * ratio);
      element.style.height = `${nodes.length * LINE}px`;
      context.scale(ratio, ratio);
      const cell = width / samples.length;
      samples.forEach((s, x) => nodes.forEach((node, y) => {
        const known = value(s, node);
        if (known === undefined) return;
        context.fillStyle = heat(known / end, dark);
        context.fillRect(x * cell, y * LINE, Math.ceil(cell + 0.5), LINE - 2);
      }));
    };
    draw();
    const watcher = new ResizeObserver(draw);
    watcher.observe(element.parentElement);
    return () => watcher.disconnect();
  });
  if (!samples.length) return html`<${Empty}>No node has reported its load in this time. Nodes report every minute; the balancer keeps one day.<//>`;
  const point = (/** @type {MouseEvent} */ e) => {
    const box = canvas.current.getBoundingClientRect();
    const sample = samples[Math.min(samples.length - 1, Math.floor(((e.clientX - box.left) / box.width) * samples.length))];
    const node = nodes[Math.floor((e.clientY - box.top) / LINE)];
    const known = sample && node ? value(sample, node) : undefined;
    setAt(sample && node ? `${node}, ${clock(sample.at_ms)}: ${known === undefined ? "no report" : `${measure.text(known)} ${measure.title === "bytes" ? "" : measure.title}`}` : "");
  };
  const marks = Array.from({ length: PARTS + 1 }, (_, n) => samples[Math.round((n * (samples.length - 1)) / PARTS)].at_ms);
  const text = `${measure.title} of ${nodes.length} nodes from ${clock(samples[0].at_ms)} to ${clock(samples.at(-1).at_ms)}; at most ${measure.text(most)}`;
  return html`<div class="heat-map">
    <ul class="names">${nodes.map((node) => html`<li>${node}</li>`)}</ul>
    <div class="cells"><canvas ref=${canvas} role="img" aria-label=${text} onPointerMove=${point} onPointerLeave=${() => setAt("")}></canvas>
      <ul class="axis">${(samples.length > 1 ? marks : marks.slice(0, 1)).map((ms) => html`<li>${clock(ms).slice(11, 16)}</li>`)}</ul></div>
    <div class="scale"><span>${measure.title}</span>
      ${Array.from({ length: PARTS + 1 }, (_, n) => html`<span class="swatch"><${Swatch} colour=${heat(n / PARTS, dark)} /> ${measure.text((end * n) / PARTS)}</span>`)}
      <span class="swatch"><i class="none"></i> no report</span></div>
    <p class="note" role="status">${at || (most === 0 ? `All reported values are 0. The scale ends at ${measure.text(end)}, so that small values are visible as soon as they come.` : `The largest value is ${measure.text(most)}.`)}</p></div>`;
}

/** @param {{colour: string}} props */
const Swatch = ({ colour }) => html`<svg viewBox="0 0 10 10" preserveAspectRatio="none" aria-hidden="true"><rect width="10" height="10" fill=${colour} /></svg>`;
