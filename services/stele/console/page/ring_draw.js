// The ring: an arc for each range, a ring for each replica; where ranges are finer than pixels, one of them stands for all.

import { MOVING, rowAt, startOf } from "./map_data.js";

/** @typedef {import("./map_data.js").MapData} MapData */
/** @typedef {import("./tablet_draw.js").View} View */

const MOST_ARCS = 1440;
const FULL = 2 * Math.PI;

export class RingDraw {
  constructor() {
    /** @type {MapData | null} */
    this.map = null;
    /** @type {(place: number) => number} */
    this.of = () => 0;
  }

  /** @param {MapData} map @param {(place: number) => number} of */
  paint(map, of) {
    this.map = map;
    this.of = of;
  }

  /** @param {number} width @param {number} height @returns {View} */
  whole(width, height) {
    return { x: width / 2, y: height / 2, scale: Math.max(20, Math.min(width, height) / 2 - 12) };
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {View} view
   * @param {number} selected
   * @param {{ink: string, paper: string, node: (number: number) => string}} look
   */
  draw(context, view, selected, look) {
    const { width, height } = context.canvas;
    context.fillStyle = look.paper;
    context.fillRect(0, 0, width, height);
    const map = this.map;
    if (!map) return;
    const pieces = Math.min(map.rows, MOST_ARCS);
    const all = map.rows <= MOST_ARCS;
    for (let piece = 0; piece < pieces; piece++) {
      const place = all ? piece : rowAt(map, (piece + 0.5) / pieces);
      const from = all ? startOf(map, place) : piece / pieces;
      const to = all ? startOf(map, place + 1) : (piece + 1) / pieces;
      this.arcs(context, view, place, from, to, look);
    }
    if (selected >= 0 && selected < map.rows) {
      context.strokeStyle = look.ink;
      context.lineWidth = 3;
      this.path(context, view, startOf(map, selected), startOf(map, selected + 1), 0.4, 1.02);
      context.stroke();
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {View} view @param {number} place @param {number} from @param {number} to @param {{ink: string, paper: string, node: (number: number) => string}} look */
  arcs(context, view, place, from, to, look) {
    const map = this.map;
    if (!map) return;
    const rings = Math.max(1, map.width);
    const deep = 0.42 / rings;
    for (let ring = 0; ring < rings; ring++) {
      const number = map.replicas[ring * map.rows + place];
      if (ring > 0 && number < 0) continue;
      const dimmed = map.differs && !map.differs[place];
      context.fillStyle = ring === 0 || dimmed ? cssOf(this.of(place)) : look.node(number);
      context.globalAlpha = ring < map.reads[place] || ring === 0 ? 1 : 0.45;
      this.path(context, view, from, to, 1 - (ring + 1) * deep + 0.006, 1 - ring * deep);
      context.fill();
    }
    context.globalAlpha = 1;
    if (map.state[place] === MOVING) {
      context.fillStyle = "rgb(230 150 40)";
      this.path(context, view, from, to, 1.005, 1.03);
      context.fill();
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {View} view @param {number} from @param {number} to @param {number} inner @param {number} outer */
  path(context, view, from, to, inner, outer) {
    const begin = from * FULL - Math.PI / 2;
    const end = to * FULL - Math.PI / 2;
    context.beginPath();
    context.arc(view.x, view.y, outer * view.scale, begin, end);
    context.arc(view.x, view.y, inner * view.scale, end, begin, true);
    context.closePath();
  }

  /** The row at a point of the canvas; -1: none. @param {View} view @param {number} x @param {number} y */
  at(view, x, y) {
    const far = Math.hypot(x - view.x, y - view.y) / view.scale;
    if (!this.map || far < 0.4 || far > 1.06) return -1;
    const angle = Math.atan2(y - view.y, x - view.x) + Math.PI / 2;
    return rowAt(this.map, (((angle / FULL) % 1) + 1) % 1);
  }
}

/** @param {number} pixel */
function cssOf(pixel) {
  return `rgb(${pixel & 255} ${(pixel >> 8) & 255} ${(pixel >> 16) & 255})`;
}
