// The line of time: from the first epoch to now.

import { html, useState } from "./vendor/htm-preact.js";
import { get } from "./api.js";
import { fail, go, goTo, play, shownEpoch, state } from "./store.js";
import { Field, Time, useStore } from "./ui.js";

export function TimeLine() {
  useStore();
  const [moment, setMoment] = useState("");
  const [tooEarly, setTooEarly] = useState("");
  const epoch = shownEpoch() || state.newest;
  const told = state.epochs.find((each) => each.epoch === epoch);
  const toMoment = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const at = new Date(moment).getTime();
    if (!Number.isFinite(at)) return;
    try {
      const found = await get("/api/moment", { at_ms: Math.max(0, at) });
      setTooEarly(found.epoch < state.begins ? moment : "");
      goTo(Math.max(state.begins, found.epoch));
    } catch (error) {
      fail(error);
    }
  };
  return html`<section class="time" aria-label="Time">
    <div class="buttons" role="group" aria-label="Steps">
      <button onClick=${() => goTo(epoch - 1)} disabled=${epoch <= state.begins} aria-label="one epoch back">◀</button>
      <button onClick=${() => play(!state.playing)} aria-label=${state.playing ? "pause" : "play"} aria-pressed=${state.playing}>${state.playing ? "❚❚" : "▶"}</button>
      <button onClick=${() => goTo(epoch + 1)} disabled=${!shownEpoch()} aria-label="one epoch on">▶|</button>
      <button onClick=${() => go({ epoch: 0 })} disabled=${!shownEpoch()} aria-pressed=${!shownEpoch()}>live</button>
    </div>
    <input class="slider" type="range" min=${state.begins} max=${Math.max(state.begins, state.newest)} value=${epoch} aria-label="Epoch" aria-valuetext=${`epoch ${epoch} of ${state.newest}`}
      onInput=${(/** @type {any} */ e) => goTo(Number(e.target.value))} />
    <label>epoch <${Field} type="number" min=${state.begins} max=${state.newest} value=${epoch} data-field="epoch" done=${(/** @type {string} */ text) => goTo(Number(text))} /></label>
    <form onSubmit=${toMoment}><label>moment <input type="datetime-local" step="1" value=${moment} onInput=${(/** @type {any} */ e) => setMoment(e.target.value)} /></label><button>go</button></form>
    ${tooEarly && tooEarly === moment && html`<span class="warn" role="status" data-note="moment">No epoch that is kept is as old; this is the first one.</span>`}
    <label>against epoch <${Field} type="number" min=${state.begins} max=${state.newest} value=${state.place.against ?? ""} data-field="against" done=${(/** @type {string} */ text) => go({ against: text })} /></label>
    ${state.place.against && html`<button onClick=${() => go({ view: "history", from: state.place.against, to: epoch })}>difference as text</button>`}
    <p class="what" aria-live=${state.playing || !shownEpoch() ? "off" : "polite"}>${told && html`<${Time} ms=${told.at_ms} /> ${told.command} by ${told.actor || "nobody"}: ${told.lines[0] ?? "a barrier"}`}</p>
  </section>`;
}
