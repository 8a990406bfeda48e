// Charts over time, drawn by uPlot in the colours of the theme.

import { html, useEffect, useRef } from "./vendor/htm-preact.js";
import uPlot from "./vendor/uplot.js";
import { isDark } from "./theme.js";

/** The Okabe-Ito palette, in an order whose neighbours differ for everybody. Text beside it names each series. */
const LIGHT = ["#0072b2", "#d55e00", "#009e73", "#a64f86", "#b07a00", "#2f8fc4", "#5b6470"];
const DARK = ["#56b4e9", "#e2702a", "#12b886", "#d98cb8", "#e6b800", "#8fd0f5", "#a3adba"];

/** @param {number} at the position of a series @returns {string} */
export function seriesColour(at) {
  const palette = isDark() ? DARK : LIGHT;
  return palette[at % palette.length];
}

/** @param {string} name of a colour of the design system */
const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const two = (/** @type {number} */ n) => String(n).padStart(2, "0");

/** @param {number} s seconds since 1970 */
function timeOfDay(s) {
  const at = new Date(1000 * s);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/**
 * @typedef {{label: string, values: (number | null)[], dash?: number[]}} Series
 * @param {{label: string, times: number[], series: Series[], format: (value: number) => string, height?: number, filled?: boolean}} props
 *   `times` are seconds since 1970; null is a gap; `filled` paints the area below the first series.
 */
export function Chart({ label, times, series, format, height = 180, filled = false }) {
  const box = useRef(/** @type {any} */ (null));
  const chart = useRef(/** @type {any} */ (null));
  const key = `${isDark()} ${height} ${series.map((each) => each.label).join("\n")}`;
  const data = [times, ...series.map((each) => each.values)];
  useEffect(() => {
    const axis = { stroke: token("--soft"), grid: { stroke: token("--line"), width: 1 }, ticks: { stroke: token("--line"), width: 1 } };
    // Without a cursor the legend shows the newest values.
    const text = (/** @type {any} */ plot, /** @type {number | null} */ value, /** @type {number} */ at, /** @type {number | null} */ index) => {
      const shown = index === null ? plot.data[at].at(-1) ?? null : value;
      return shown === null ? "no data" : format(shown);
    };
    const options = {
      width: Math.max(100, box.current.clientWidth),
      height,
      cursor: { drag: { x: false, y: false }, points: { size: 6 } },
      legend: { live: true },
      scales: { y: { range: (/** @type {any} */ _, /** @type {number} */ low, /** @type {number} */ high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.1 : 1] } },
      axes: [
        { ...axis, space: 70, values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map((each) => timeOfDay(each).slice(0, ticks[1] - ticks[0] < 60 ? 8 : 5)) },
        { ...axis, size: 64, values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map(format) },
      ],
      series: [
        { label: "time", value: (/** @type {any} */ plot, /** @type {number | null} */ s) => timeOfDay(s ?? plot.data[0].at(-1)) },
        ...series.map((each, at) => ({ label: each.label, stroke: seriesColour(at), width: 2, dash: each.dash, fill: filled && !at ? `${seriesColour(at)}26` : undefined, value: text })),
      ],
    };
    const own = new uPlot(options, data, box.current);
    chart.current = own;
    const watcher = new ResizeObserver(() => own.setSize({ width: Math.max(100, box.current.clientWidth), height }));
    watcher.observe(box.current);
    return () => {
      watcher.disconnect();
      own.destroy();
    };
  }, [key]);
  useEffect(() => chart.current?.setData(data), [times.at(-1), times.length, key]);
  return html`<div ref=${box} class="chart" role="img" aria-label=${label}></div>`;
}
