// The time line of the frame: from the first epoch to now.

import { html, useState } from "./vendor/htm-preact.js";
import { get } from "./api.js";
import { fail, go, goTo, play, shownEpoch, state } from "./store.js";
import { Field, Time, useStore } from "./ui.js";

export function TimeLine() {
  useStore();
  const [moment, setMoment] = useState("");
  const [note, setNote] = useState("");
  const epoch = shownEpoch() || state.newest;
  const told = state.epochs.find((each) => each.epoch === epoch);
  const toMoment = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const at = new Date(moment.trim().replace(" ", "T")).getTime();
    if (!Number.isFinite(at)) {
      setNote(`'${moment}' is not a time. Write it as 2026-01-31 12:00:00.`);
      return;
    }
    try {
      const found = await get("/api/moment", { at_ms: Math.max(0, at) });
      setNote(found.epoch < state.begins ? "The log has no epoch of that time. This is its first one." : "");
      goTo(Math.max(state.begins, found.epoch));
    } catch (error) {
      fail(error);
    }
  };
  return html`<section class="time" aria-label="Time">
    <div class="buttons" role="group" aria-label="Steps">
      <button onClick=${() => goTo(epoch - 1)} disabled=${epoch <= state.begins} aria-label="Previous epoch">◀</button>
      <button onClick=${() => play(!state.playing)} aria-label=${state.playing ? "Pause" : "Play"} aria-pressed=${state.playing}>${state.playing ? "❚❚" : "▶"}</button>
      <button onClick=${() => goTo(epoch + 1)} disabled=${!shownEpoch()} aria-label="Next epoch">▶|</button>
      <button onClick=${() => go({ epoch: 0 })} disabled=${!shownEpoch()} aria-pressed=${!shownEpoch()}>Live</button>
    </div>
    <input class="slider" type="range" min=${state.begins} max=${Math.max(state.begins, state.newest)} value=${epoch} aria-label="Epoch" aria-valuetext=${`epoch ${epoch} of ${state.newest}`}
      onInput=${(/** @type {any} */ e) => goTo(Number(e.target.value))} />
    <label>Epoch <${Field} type="number" min=${state.begins} max=${state.newest} value=${epoch} data-field="epoch" done=${(/** @type {string} */ text) => goTo(Number(text))} /></label>
    <form onSubmit=${toMoment}><label>Time <input name="moment" size="19" placeholder="2026-01-31 12:00:00" value=${moment} onInput=${(/** @type {any} */ e) => { setMoment(e.target.value); setNote(""); }} /></label><button>Go</button></form>
    <label>Compare with <${Field} type="number" min=${state.begins} max=${state.newest} value=${state.place.against ?? ""} data-field="against" aria-label="Compare with epoch" done=${(/** @type {string} */ text) => go({ against: text })} /></label>
    ${state.place.against && html`<button onClick=${() => go({ view: "history", from: state.place.against, to: epoch })}>Differences</button>`}
    <p class="what" aria-live=${state.playing || !shownEpoch() ? "off" : "polite"}>${note ? html`<span class="warn" role="status" data-note="moment">${note}</span>`
      : told && html`<${Time} ms=${told.at_ms} /> ${told.command}${told.actor ? ` by ${told.actor}` : ""}${told.lines.length ? `: ${told.lines[0]}` : ""}`}</p>
  </section>`;
}
