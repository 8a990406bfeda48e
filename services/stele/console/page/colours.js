// Colours of the map: one table of numbers from the theme, so that a million tablets cost a million look-ups.

import { AT_REST, MOVING, NOBODY, nodesOf } from "./map_data.js";

/** @typedef {import("./map_data.js").MapData} MapData */

export const MODES = ["node", "rack", "dc", "state", "load", "age"];
/** Degrees between two colours: none comes near an earlier one for long. */
const GOLDEN = 137.508;
const FIRST_HUE = 212;

/** @param {number} hue degrees @param {number} part saturation @param {number} light @returns {[number, number, number]} */
function rgb(hue, part, light) {
  const a = part * Math.min(light, 1 - light);
  const f = (/** @type {number} */ n) => {
    const k = (n + hue / 30) % 12;
    return Math.round(255 * (light - a * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return [f(0), f(8), f(4)];
}

/** As a canvas keeps pixels, on machines of today: alpha, blue, green, red. @param {[number, number, number]} c */
const packed = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;

/** The Okabe-Ito palette: everybody can tell these apart. @type {[number, number, number][]} */
const PALETTE = [[0, 114, 178], [213, 94, 0], [0, 158, 115], [204, 121, 167], [230, 159, 0], [86, 180, 233], [240, 228, 66]];

/** @param {number} number @param {boolean} dark @returns {[number, number, number]} */
export function colourOf(number, dark) {
  if (number < PALETTE.length) return PALETTE[number];
  const ring = Math.floor(number / 8) % 3; // hues come near each other after eight: then the lightness differs
  return rgb((FIRST_HUE + number * GOLDEN) % 360, 0.55 + 0.1 * (number % 2), (dark ? 0.52 : 0.46) + (ring - 1) * 0.13);
}

/** From little to much. @param {number} part 0 to 1 @param {boolean} dark @returns {[number, number, number]} */
export function heat(part, dark) {
  const p = Math.max(0, Math.min(1, part));
  return rgb(225 - 215 * p, 0.35 + 0.5 * p, dark ? 0.24 + 0.36 * p : 0.84 - 0.38 * p);
}

/** @param {[number, number, number]} c */
export const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;

/**
 * A function from a row to its colour.
 * @param {MapData} map
 * @param {string} mode
 * @param {{nodes: any[], load: Map<number, number> | null, dark: boolean, newestVersion: number}} known
 * @returns {{of: (place: number) => number, ofNode: ((number: number) => string) | null, legend: [string, string][]}} the colour of
 *   a row, of a node by its number (null: rows are not coloured by their nodes), and what the colours mean
 */
export function colouring(map, mode, known) {
  const dark = known.dark;
  const nobody = packed(dark ? [70, 30, 30] : [230, 190, 190]);
  const dim = packed(dark ? [38, 42, 50] : [226, 229, 234]);
  /** @type {[string, string][]} */
  let legend = [];
  /** @type {(place: number) => number} */
  let of;
  /** @type {((number: number) => string) | null} */
  let ofNode = null;
  if (mode === "state") {
    const by = [packed(dark ? [70, 120, 90] : [120, 175, 140]), packed([230, 150, 40]), nobody];
    of = (place) => by[map.state[place]];
    legend = [["at rest", css(dark ? [70, 120, 90] : [120, 175, 140])], ["moving", css([230, 150, 40])], ["no replica", css(dark ? [70, 30, 30] : [230, 190, 190])]];
  } else if (mode === "age") {
    const newest = Math.max(1, known.newestVersion);
    const table = Array.from({ length: 65 }, (_, i) => packed(heat(i / 64, dark)));
    of = (place) => table[Math.round(64 * Math.min(1, map.version[place] / newest))];
    legend = [["oldest version", css(heat(0, dark))], ["newest version", css(heat(1, dark))]];
  } else if (mode === "load" && !known.load) {
    of = () => dim;
    legend = [["unknown", css(dark ? [38, 42, 50] : [226, 229, 234])]];
  } else if (mode === "load") {
    const load = known.load ?? new Map();
    const most = Math.max(1e-9, ...top(load.values()));
    of = (place) => packed(heat(Math.sqrt((load.get(place) ?? 0) / most), dark));
    legend = [["no load", css(heat(0, dark))], ["highest load", css(heat(1, dark))]];
  } else {
    const rows = new Map(known.nodes.map((node) => [node.node_id, node]));
    const key = (/** @type {string} */ name) => {
      const node = rows.get(name);
      if (mode === "node" || !node) return name;
      return mode === "dc" ? node.dc : `${node.dc}/${node.rack}`;
    };
    const keys = [...new Set(map.nodes.map(key))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    const colours = new Map(keys.map((name, at) => [name, colourOf(at, dark)]));
    const table = new Uint32Array(map.nodes.length);
    map.nodes.forEach((name, number) => (table[number] = packed(colours.get(key(name)) ?? [0, 0, 0])));
    of = (place) => {
      const first = map.replicas[place];
      return first < 0 ? nobody : table[first];
    };
    const left = new Set(known.nodes.filter((node) => node.state === "left").map((node) => node.node_id));
    const present = new Set(map.nodes.filter((name) => !left.has(name)).map(key));
    ofNode = (number) => css(colours.get(key(map.nodes[number])) ?? [0, 0, 0]);
    legend = [...colours].filter(([name]) => present.has(name)).map(([name, colour]) => [name, css(colour)]);
  }
  const plain = of;
  const differs = map.differs;
  if (differs) of = (place) => (differs[place] ? plain(place) : dim);
  return { of, ofNode, legend };
}

/** @param {Iterable<number>} values */
function top(values) {
  let most = 0;
  for (const value of values) if (value > most) most = value;
  return [most];
}

/** @param {MapData} map @param {number} place */
export function stateText(map, place) {
  return { [AT_REST]: "at rest", [MOVING]: "moving", [NOBODY]: "no replica" }[map.state[place]] ?? "";
}

/** A row in words. @param {MapData} map @param {number} place */
export function rowText(map, place) {
  const names = nodesOf(map, place).map((number) => map.nodes[number]);
  return `${map.even ? "tablet" : "range"} ${place}: ${names.join(" ") || "no replica"}, ${stateText(map, place)}`;
}
