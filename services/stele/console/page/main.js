// The page: its head, the line of time, and the view that the address names.

import { html, render, useEffect, useErrorBoundary, useRef, useState } from "./vendor/htm-preact.js";
import { keepToken, takeToken } from "./address.js";
import { AskDialog } from "./ask.js";
import { BalanceView } from "./balance_view.js";
import { HealthView } from "./health_view.js";
import { HistoryView } from "./history_view.js";
import { frames, MapView, sheetNow } from "./map_view.js";
import { NodesView } from "./nodes_view.js";
import { RequestsView } from "./requests_view.js";
import { SchemaView } from "./schema_view.js";
import { begin, go, listen, set, shownEpoch, state } from "./store.js";
import { applyTheme, chooseTheme, chosenTheme, watchTheme } from "./theme.js";
import { TimeLine } from "./time_line.js";
import { Sentence, useStore } from "./ui.js";
import { counted } from "./words.js";

/** @type {Record<string, [string, any]>} */
const VIEWS = {
  map: ["Map", MapView],
  nodes: ["Nodes", NodesView],
  requests: ["Requests", RequestsView],
  history: ["History", HistoryView],
  balance: ["Balance", BalanceView],
  schema: ["Schema", SchemaView],
  health: ["Health", HealthView],
};

function Head() {
  const alerts = state.looked?.alerts ?? [];
  const bad = alerts.filter((/** @type {any} */ a) => a.level === "bad").length;
  const open = (state.overview?.requests ?? []).filter((/** @type {any} */ r) => r.status === "pending" || r.status === "running").length;
  const notes = /** @type {Record<string, string>} */ ({
    requests: open ? ` (${open})` : "",
    health: alerts.length ? ` (${alerts.length})` : "",
  });
  return html`<header>
    <h1>Stele <span class="cluster">${state.overview?.cluster ?? state.about?.cluster ?? ""}</span></h1>
    <nav aria-label="Views">${Object.entries(VIEWS).map(([name, [title]], at) =>
      html`<a href=${`#/${name}`} accesskey=${at + 1} class=${name === "health" && bad ? "alarm" : ""} aria-current=${state.place.view === name ? "page" : undefined}
        onClick=${(/** @type {MouseEvent} */ e) => { e.preventDefault(); go({ view: name }); }}>${title}${notes[name] ?? ""}</a>`)}</nav>
    <${Search} />
    <label class="theme">theme <select value=${chosenTheme()} onChange=${(/** @type {any} */ e) => { chooseTheme(e.target.value); set({ mapNumber: state.mapNumber + 1 }); }}>
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
    <input ref=${box} type="search" aria-label="Search the history" placeholder="search the history ( / )" value=${text} onInput=${(/** @type {any} */ e) => setText(e.target.value)} />
  </form>`;
}

/** What is the matter with what is shown, if anything is. */
function Notices() {
  const trouble = state.trouble || state.looked?.trouble || "";
  return html`<div class="notices" role="status" aria-live="polite">
    ${trouble && html`<p class="bad" data-notice="trouble">${trouble} ${state.overview ? `What is shown is of epoch ${state.overview.epoch}; the` : "The"} page goes on by itself.</p>`}
    ${state.problem && html`<p class="bad" data-notice="problem"><${Sentence} text=${state.problem} />
      <button class="link" onClick=${() => set({ problem: "" })}>well</button></p>`}
    ${shownEpoch() > 0 && html`<p class="past" data-notice="past">${state.overview?.epoch === shownEpoch() ? `This is the past: epoch ${shownEpoch()} of ${state.newest}.` : state.problem ? `Epoch ${shownEpoch()} cannot be shown.` : `Epoch ${shownEpoch()} is being read…`}
      <button class="link" onClick=${() => go({ epoch: 0 })}>back to now</button></p>`}
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
    <p>This console asks for a token: yours, where each has one of his own; else the one in the address that it has logged at its start.</p>
    <label>token <input type="password" autocomplete="off" value=${text} onInput=${(/** @type {any} */ e) => setText(e.target.value)} /></label>
    <button>open</button>
  </form></main>`;
}

/** A view; one that fails takes nothing else with it. @param {{view: any}} props */
function Whole({ view: View }) {
  const [error, again] = useErrorBoundary((/** @type {any} */ why) => globalThis.console.error(why));
  if (!error) return html`<${View} />`;
  return html`<p class="bad" role="alert" data-note="failed">This view cannot be shown: ${String(error)}. <button onClick=${again}>try again</button></p>`;
}

function Page() {
  useStore();
  if (state.locked) return html`<${TokenDialog} />`;
  const [, View] = VIEWS[Object.hasOwn(VIEWS, state.place.view) ? state.place.view : "map"];
  return html`
    <a class="skip" href="#main" onClick=${(/** @type {Event} */ e) => { e.preventDefault(); document.getElementById("main")?.focus(); }}>to the content</a>
    <${Head} />
    <${Notices} />
    <main id="main" tabindex="-1"><${Whole} key=${state.place.view} view=${View} /></main>
    <${TimeLine} />
    ${state.dialog && html`<${AskDialog} asked=${state.dialog} />`}
    <footer>${state.overview ? `epoch ${state.overview.epoch}, version ${state.overview.topology.version}` : ""}
      ${state.looked ? `, ${counted(state.looked.pages, "browser", "browsers")} connected` : ""}
      ${state.about && !state.about.commands ? ", read only" : ""}</footer>`;
}

/** For whoever measures or tries the page. */
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
