// Tablets as cells of a field: one pixel each in a picture that is scaled, and more to see the closer one looks.

import { nodesOf } from "./map_data.js";

/** @typedef {import("./map_data.js").MapData} MapData */
/** @typedef {{ink: string, paper: string, node: (number: number) => string, byNode: boolean}} Look `byNode`: colours mean nodes, racks or datacentres */
/** @typedef {{x: number, y: number, scale: number}} View where the field's corner is on the canvas, and pixels a cell */

/** Pixels a cell from which on there are lines between cells, a strip for each replica, and names. */
const LINES_FROM = 8;
const REPLICAS_FROM = 9;
/** Where colours do not mean nodes, the strips are small, and begin later. */
const SMALL_STRIPS_FROM = 28;
const TEXT_FROM = 72;
const LEAST_LEVEL = 64;

export class TabletDraw {
  constructor() {
    /** @type {HTMLCanvasElement[]} the picture, then halved again and again */
    this.levels = [];
    this.columns = 1;
    this.lines = 1;
    /** @type {Uint32Array} */
    this.pixels = new Uint32Array(0);
    /** @type {MapData | null} */
    this.map = null;
  }

  /** Make the picture anew. @param {MapData} map @param {(place: number) => number} of @param {number} aspect */
  paint(map, of, aspect) {
    this.map = map;
    this.columns = Math.max(1, Math.min(map.rows, Math.ceil(Math.sqrt(map.rows * aspect))));
    this.lines = Math.ceil(map.rows / this.columns);
    const picture = this.levels[0] ?? document.createElement("canvas");
    picture.width = this.columns;
    picture.height = this.lines;
    const context = picture.getContext("2d", { willReadFrequently: false });
    if (!context) return;
    const image = context.createImageData(this.columns, this.lines);
    this.pixels = new Uint32Array(image.data.buffer);
    for (let place = 0; place < map.rows; place++) this.pixels[place] = of(place);
    context.putImageData(image, 0, 0);
    this.levels = [picture];
    this.halve();
  }

  halve() {
    let from = this.levels[0];
    while (Math.min(from.width, from.height) > LEAST_LEVEL) {
      const half = document.createElement("canvas");
      half.width = Math.ceil(from.width / 2);
      half.height = Math.ceil(from.height / 2);
      const context = half.getContext("2d");
      if (!context) return;
      context.imageSmoothingEnabled = true;
      context.drawImage(from, 0, 0, half.width, half.height);
      this.levels.push(half);
      from = half;
    }
  }

  /** The view in which all is seen. @param {number} width @param {number} height @returns {View} */
  whole(width, height) {
    const scale = Math.min(width / this.columns, height / this.lines, 160);
    return { x: (width - this.columns * scale) / 2, y: (height - this.lines * scale) / 2, scale };
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {View} view
   * @param {number} selected
   * @param {Look} look
   */
  draw(context, view, selected, look) {
    const { width, height } = context.canvas;
    context.fillStyle = look.paper;
    context.fillRect(0, 0, width, height);
    if (!this.levels.length || !this.map) return;
    let level = 0;
    while (level + 1 < this.levels.length && view.scale * 2 ** (level + 1) <= 1) level++;
    const picture = this.levels[level];
    context.imageSmoothingEnabled = view.scale < 1;
    context.drawImage(picture, view.x, view.y, this.columns * view.scale, this.lines * view.scale);
    if (view.scale >= LINES_FROM) this.closer(context, view, look);
    if (selected >= 0 && selected < this.map.rows) {
      const [x, y] = this.corner(view, selected);
      const side = Math.max(4, view.scale);
      context.lineWidth = 3;
      context.strokeStyle = look.ink;
      context.strokeRect(x - 1.5, y - 1.5, side + 3, side + 3);
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {View} view @param {Look} look */
  closer(context, view, look) {
    const map = this.map;
    if (!map) return;
    const { width, height } = context.canvas;
    const left = Math.max(0, Math.floor(-view.x / view.scale));
    const right = Math.min(this.columns, Math.ceil((width - view.x) / view.scale));
    const above = Math.max(0, Math.floor(-view.y / view.scale));
    const below = Math.min(this.lines, Math.ceil((height - view.y) / view.scale));
    const line = Math.min(2, view.scale / 10);
    context.fillStyle = look.paper;
    for (let x = left; x <= right; x++) context.fillRect(view.x + x * view.scale - line / 2, 0, line, height);
    for (let y = above; y <= below; y++) context.fillRect(0, view.y + y * view.scale - line / 2, width, line);
    if (view.scale < (look.byNode ? REPLICAS_FROM : SMALL_STRIPS_FROM)) return;
    for (let y = above; y < below; y++) {
      for (let x = left; x < right; x++) {
        const place = y * this.columns + x;
        if (place < map.rows) this.cell(context, view, place, look);
      }
    }
  }

  /** The replicas of one cell as a strip each, and their names. @param {CanvasRenderingContext2D} context @param {View} view @param {number} place @param {Look} look */
  cell(context, view, place, look) {
    const map = this.map;
    if (!map) return;
    const [x, y] = this.corner(view, place);
    const side = view.scale;
    const nodes = nodesOf(map, place);
    const line = Math.min(2, side / 10);
    const [top, height] = look.byNode ? [line / 2, side - line] : [side * 0.62, side * 0.28];
    const [left, width] = look.byNode ? [line / 2, side - line] : [side * 0.1, side * 0.8];
    const strip = width / Math.max(1, nodes.length);
    context.fillStyle = look.paper;
    context.fillRect(x + left, y + top, width, height);
    nodes.forEach((number, at) => {
      const reads = at < map.reads[place];
      context.fillStyle = look.node(number);
      context.globalAlpha = reads ? 1 : 0.5;
      context.fillRect(x + left + at * strip, y + top, strip - Math.min(1, strip / 6), height);
    });
    context.globalAlpha = 1;
    if (side < TEXT_FROM) return;
    context.fillStyle = look.paper;
    context.globalAlpha = 0.85;
    context.fillRect(x + side * 0.06, y + side * 0.06, side * 0.88, side * 0.48);
    context.globalAlpha = 1;
    context.fillStyle = look.ink;
    context.font = `600 ${Math.min(16, side / 6)}px system-ui, sans-serif`;
    context.textBaseline = "top";
    const names = nodes.map((number) => map.nodes[number]).join(" ");
    for (const [text, down] of /** @type {[string, number][]} */ ([[String(place), 0.1], [names, 0.33]])) context.fillText(text, x + side * 0.1, y + side * down, side * 0.8);
  }

  /** @param {View} view @param {number} place @returns {[number, number]} */
  corner(view, place) {
    const x = place % this.columns;
    return [view.x + x * view.scale, view.y + ((place - x) / this.columns) * view.scale];
  }

  /** The row at a point of the canvas; -1: none. @param {View} view @param {number} x @param {number} y */
  at(view, x, y) {
    const column = Math.floor((x - view.x) / view.scale);
    const line = Math.floor((y - view.y) / view.scale);
    if (!this.map || column < 0 || line < 0 || column >= this.columns) return -1;
    const place = line * this.columns + column;
    return place < this.map.rows ? place : -1;
  }
}
