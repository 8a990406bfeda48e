// The frame of the page: navigation, notices, the time line, and the view that the address names.

import { html, render, useEffect, useErrorBoundary, useRef, useState } from "./vendor/htm-preact.js";
import { keepToken, takeToken } from "./address.js";
import { AskDialog } from "./ask.js";
import { BalanceView } from "./balance_view.js";
import { HealthView } from "./health_view.js";
import { HistoryView } from "./history_view.js";
import { frames, MapView, sheetNow } from "./map_view.js";
import { NodesView } from "./nodes_view.js";
import { isOpen, OperationsView } from "./operations_view.js";
import { OverviewView } from "./overview_view.js";
import { SchemaView } from "./schema_view.js";
import { begin, go, listen, set, shownEpoch, state } from "./store.js";
import { applyTheme, chooseTheme, chosenTheme, watchTheme } from "./theme.js";
import { TimeLine } from "./time_line.js";
import { Sentence, useStore } from "./ui.js";
import { counted } from "./words.js";

/** Views: title, icon (a path in a box of 16), component. @type {Record<string, [string, string, any]>} */
const VIEWS = {
  overview: ["Overview", "M2 9h5V2H2zM9 6h5V2H9zM9 14h5V9H9zM2 14h5v-2H2z", OverviewView],
  operations: ["Operations", "M2 4h2M7 4h7M2 8h2M7 8h7M2 12h2M7 12h7", OperationsView],
  nodes: ["Nodes", "M2 3h12v4H2zM2 9h12v4H2zM5 5h.1M5 11h.1", NodesView],
  map: ["Map", "M8 2a6 6 0 1 0 .1 0M8 5a3 3 0 1 0 .1 0M8 2v3M14 8h-3", MapView],
  balance: ["Balance", "M2 14V8M6 14V4M10 14v-4M14 14V6", BalanceView],
  history: ["History", "M8 2a6 6 0 1 1-5 2.5M2 2v3h3M8 5v3l2 2", HistoryView],
  schema: ["Schema", "M2 3h12v10H2zM2 7h12M6 3v10", SchemaView],
  health: ["Health", "M1 8h3l2-5 3 10 2-5h4", HealthView],
};

/** The view that the address names. */
const viewName = () => (Object.hasOwn(VIEWS, state.place.view) ? state.place.view : "overview");

function Side() {
  const alerts = state.looked?.alerts ?? [];
  const bad = alerts.some((/** @type {any} */ a) => a.level === "bad");
  const open = (state.overview?.requests ?? []).filter(isOpen).length;
  const counts = /** @type {Record<string, [number, string]>} */ ({ operations: [open, ""], health: [alerts.length, bad ? "bad" : "warn"] });
  return html`<div class="side"><div>
    <p class="brand">Stele <span class="cluster">${state.overview?.cluster ?? state.about?.cluster ?? ""}</span></p>
    <nav aria-label="Views">${Object.entries(VIEWS).map(([name, [title, icon]], at) => {
      const [count, kind] = counts[name] ?? [0, ""];
      return html`<a href=${`#/${name}`} accesskey=${at + 1} aria-current=${viewName() === name ? "page" : undefined}
        onClick=${(/** @type {MouseEvent} */ e) => { e.preventDefault(); go({ view: name }); }}>
        <svg viewBox="0 0 16 16" aria-hidden="true"><path d=${icon} /></svg>${title}${count > 0 && html` <span class=${`count ${kind}`}>${count}</span>`}</a>`;
    })}</nav>
    <footer>${state.overview && html`<p>epoch ${state.overview.epoch}</p><p>version ${state.overview.topology.version}</p>`}
      ${state.looked && html`<p>${counted(state.looked.pages, "browser", "browsers")} connected</p>`}
      ${state.about && html`<p>release ${state.about.release}${state.about.commands ? "" : ", read-only"}</p>`}</footer>
  </div></div>`;
}

function Top() {
  return html`<header class="top">
    <h1>${VIEWS[viewName()][0]}</h1>
    <${Search} />
    <label>Theme <select value=${chosenTheme()} onChange=${(/** @type {any} */ e) => { chooseTheme(e.target.value); set({ mapNumber: state.mapNumber + 1 }); }}>
      ${["system", "light", "dark"].map((each) => html`<option value=${each}>${each}</option>`)}
    </select></label>
  </header>`;
}

function Search() {
  const box = useRef(null);
  const [text, setText] = useState(state.place.text ?? "");
  useEffect(() => {
    const onKey = (/** @type {KeyboardEvent} */ e) => {
      const inside = e.target instanceof HTMLElement && e.target.matches("input, textarea, select");
      if (e.key === "/" && !inside) {
        e.preventDefault();
        box.current?.focus();
      }
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, []);
  const submit = (/** @type {Event} */ e) => {
    e.preventDefault();
    go({ view: "history", text, from: "", to: "" });
  };
  return html`<form role="search" onSubmit=${submit}>
    <input ref=${box} type="search" aria-label="Search the history" placeholder="Search the history ( / )" value=${text} onInput=${(/** @type {any} */ e) => setText(e.target.value)} />
  </form>`;
}

/** Warnings about the data that is shown. */
function Notices() {
  const trouble = state.trouble || state.looked?.trouble || "";
  return html`<div class="notices" role="status" aria-live="polite">
    ${trouble && html`<p class="bad" data-notice="trouble">${trouble} ${state.overview ? `This page shows epoch ${state.overview.epoch}. ` : ""}It reconnects by itself.</p>`}
    ${state.problem && html`<p class="bad" data-notice="problem"><${Sentence} text=${state.problem} />
      <button class="link" onClick=${() => set({ problem: "" })}>Dismiss</button></p>`}
    ${shownEpoch() > 0 && html`<p class="past" data-notice="past">${state.overview?.epoch === shownEpoch() ? `This page shows the past: epoch ${shownEpoch()} of ${state.newest}.` : state.problem ? `Epoch ${shownEpoch()} cannot be shown.` : `Loading epoch ${shownEpoch()}…`}
      <button class="link" onClick=${() => go({ epoch: 0 })}>Back to now</button></p>`}
  </div>`;
}

function TokenDialog() {
  const [text, setText] = useState("");
  const submit = (/** @type {Event} */ e) => {
    e.preventDefault();
    keepToken(text);
    location.reload();
  };
  return html`<main class="locked"><form onSubmit=${submit}>
    <h1>Stele</h1>
    <p>This console requires a token. Enter your own, or the one in the address that the console logged at its start.</p>
    <label>Token <input type="password" autocomplete="off" value=${text} onInput=${(/** @type {any} */ e) => setText(e.target.value)} /></label>
    <button class="primary">Open</button>
  </form></main>`;
}

/** A view. An error in it leaves the rest of the page alone. @param {{view: any}} props */
function Whole({ view: View }) {
  const [error, again] = useErrorBoundary((/** @type {any} */ why) => globalThis.console.error(why));
  if (!error) return html`<${View} />`;
  return html`<p class="bad" role="alert" data-note="failed">This view cannot be shown: ${String(error)}. <button onClick=${again}>Try again</button></p>`;
}

function Page() {
  useStore();
  if (state.locked) return html`<${TokenDialog} />`;
  const name = viewName();
  return html`
    <a class="skip" href="#main" onClick=${(/** @type {Event} */ e) => { e.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to the content</a>
    <${Side} />
    <${Top} />
    <${Notices} />
    <main id="main" tabindex="-1"><${Whole} key=${name} view=${VIEWS[name][2]} /></main>
    <${TimeLine} />
    ${state.dialog && html`<${AskDialog} asked=${state.dialog} />`}`;
}

/** For tests and measurements of the page. */
Object.assign(globalThis, { steleConsole: { state, frames, listen, sheet: sheetNow } });

takeToken();
applyTheme();
watchTheme(() => set({ mapNumber: state.mapNumber + 1 }));
const root = document.getElementById("page");
if (root) {
  root.textContent = "";
  render(html`<${Page} />`, root);
}
begin();
