// Moves of tablets, drawn from node to node.

import { html } from "./vendor/htm-preact.js";
import { asCounted, counted } from "./words.js";

/** @typedef {{from: string, to: string, text: string, running: boolean}} Move */

const LINE = 30;
const WIDTH = 560;
const LEFT = 90;
const RIGHT = WIDTH - 90;
const MOST_NODES = 24;

/** Sources on the left, targets on the right, and a curve for all moves between two nodes. @param {{moves: Move[]}} props */
export function MovesGraph({ moves }) {
  const sources = [...new Set(moves.map((m) => m.from || "new"))].sort(asCounted);
  const targets = [...new Set(moves.map((m) => m.to || "deleted"))].sort(asCounted);
  if (sources.length > MOST_NODES || targets.length > MOST_NODES) return html`<p class="note">Moves between ${counted(sources.length + targets.length, "node", "nodes")} are too many to draw. The list has all.</p>`;
  /** @type {Map<string, Move[]>} */
  const pairs = new Map();
  for (const move of moves) {
    const key = `${move.from || "new"} ${move.to || "deleted"} ${move.running}`;
    pairs.set(key, [...(pairs.get(key) ?? []), move]);
  }
  const most = Math.max(...[...pairs.values()].map((each) => each.length));
  const height = 34 + LINE * Math.max(sources.length, targets.length);
  const y = (/** @type {string[]} */ names, /** @type {string} */ name) => 44 + LINE * (names.indexOf(name) + (Math.max(sources.length, targets.length) - names.length) / 2);
  return html`<figure class="moves"><svg viewBox=${`0 0 ${WIDTH} ${height}`} role="img" aria-label=${`${counted(moves.length, "move", "moves")} of tablets between nodes`}>
      <text class="head" x=${LEFT} y="16" text-anchor="end">from</text><text class="head" x=${RIGHT} y="16">to</text>
      ${[...pairs].map(([key, own]) => {
        const [from, to] = key.split(" ");
        const [a, b] = [y(sources, from), y(targets, to)];
        const middle = (LEFT + RIGHT) / 2;
        const text = own.length > 1 ? counted(own.length, "tablet", "tablets") : own[0].text;
        return html`<g class=${own[0].running ? "move running" : "move planned"} key=${key}>
          <title>${`${own[0].running ? "running" : "planned"}, ${from} to ${to}: ${own.map((m) => m.text).join(", ")}`}</title>
          <path d=${`M${LEFT + 12} ${a} C${middle} ${a} ${middle} ${b} ${RIGHT - 16} ${b}`} stroke-width=${1.5 + (5 * own.length) / most} />
          <path class="head" d=${`M${RIGHT - 18} ${b - 6} L${RIGHT - 6} ${b} L${RIGHT - 18} ${b + 6} Z`} />
          ${targets.length < sources.length ? html`<text x=${LEFT + 22} y=${a - 5}>${text}</text>` : html`<text x=${RIGHT - 26} y=${b - 5} text-anchor="end">${text}</text>`}</g>`;
      })}
      ${sources.map((name) => html`<g key=${`s${name}`}><circle cx=${LEFT + 6} cy=${y(sources, name)} r="6" /><text x=${LEFT - 6} y=${y(sources, name) + 4} text-anchor="end">${name}</text></g>`)}
      ${targets.map((name) => html`<g key=${`t${name}`}><circle cx=${RIGHT} cy=${y(targets, name)} r="6" /><text x=${RIGHT + 12} y=${y(targets, name) + 4}>${name}</text></g>`)}
    </svg>
    <figcaption><span class="line running"></span>running <span class="line planned"></span>planned</figcaption></figure>`;
}
