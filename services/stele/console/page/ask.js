// Something is asked for: what would become of it first, then why, then a confirmation.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { post, Refused } from "./api.js";
import { go, set, state } from "./store.js";
import { Sentence } from "./ui.js";

const WHO = "stele-console-who";

/** @param {any} command @param {string} title */
export function ask(command, title) {
  set({ dialog: { command, title, number: Date.now() } });
}

/** @param {{asked: {command: any, title: string, number: number}}} props */
export function AskDialog({ asked }) {
  const dialog = useRef(null);
  const [plan, setPlan] = useState(/** @type {any} */ (null));
  const [reason, setReason] = useState("");
  const [who, setWho] = useState(localStorage.getItem(WHO) ?? "");
  const [requestId, setRequestId] = useState("");
  const [outcome, setOutcome] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  const plans = asked.command.type !== "cancel";
  const may = state.about?.commands;
  useEffect(() => {
    dialog.current?.showModal();
    if (!plans) return;
    post("/api/plan", { command: asked.command }).then(setPlan, (error) => setPlan({ problem: error.message, hint: error.hint }));
  }, [asked.number]);
  const close = () => set({ dialog: null });
  const submit = async (/** @type {Event} */ e) => {
    e.preventDefault();
    setBusy(true);
    localStorage.setItem(WHO, who);
    const id = requestId || newRequestId();
    setRequestId(id);
    try {
      const found = await post("/api/commands", { command: asked.command, reason, actor: who, request_id: id });
      setOutcome({ text: `Accepted at epoch ${found.epoch}.`, done: true });
    } catch (error) {
      if (error instanceof Refused && error.status === 409) setOutcome({ text: error.message, hint: error.hint });
      else if (error instanceof Refused && error.status < 500) setOutcome({ text: error.message, hint: error.hint });
      else setOutcome({ text: "Whether it was taken is unknown.", hint: "Send it again: it takes effect once." });
    }
    setBusy(false);
  };
  return html`<dialog ref=${dialog} onClose=${close} aria-labelledby="ask-title">
    <form onSubmit=${submit}>
      <h2 id="ask-title">${asked.title}</h2>
      ${plans && html`<h3>What it would do</h3>${plan === null ? html`<p>planning…</p>` : plan.problem
        ? html`<p class="bad" data-plan="refused">${plan.problem} <${Sentence} text=${plan.hint ?? ""} /></p>`
        : html`<pre data-plan=${plan.verdict} tabindex="0">${plan.text}</pre><p class="note">On the command line: <code>${plan.command_line}</code></p>`}`}
      ${!plans && html`<p>It is undone as far as it has gone: the placements are those of before. On the command line: <code>stele cancel ${asked.command.target}</code></p>`}
      <label>why <input name="reason" required maxlength="1000" value=${reason} onInput=${(/** @type {any} */ e) => setReason(e.target.value)} /></label>
      <label>who <input name="who" maxlength="100" placeholder="console" value=${who} onInput=${(/** @type {any} */ e) => setWho(e.target.value)} /></label>
      ${!may && html`<p class="warn">This console only shows. Use the command line.</p>`}
      ${outcome && html`<p role="alert" class=${outcome.done ? "good" : "bad"} data-outcome=${outcome.done ? "done" : "refused"}>${outcome.text} <${Sentence} text=${outcome.hint ?? ""} /></p>`}
      <div class="deeds">
        ${!outcome?.done && html`<button class="deed" disabled=${!may || busy || !reason.trim()}>${plans ? "do it" : "cancel the request"}</button>`}
        <button type="button" onClick=${() => dialog.current?.close()}>${outcome?.done ? "close" : "leave it"}</button>
        ${outcome?.done && html`<button type="button" onClick=${() => { dialog.current?.close(); go({ view: "requests" }); }}>requests</button>`}
      </div>
    </form>
  </dialog>`;
}

/** A UUID of version 7: one for each thing that is asked for, however often it is sent. */
function newRequestId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  const now = Date.now();
  for (let at = 0; at < 6; at++) bytes[at] = Math.floor(now / 2 ** (8 * (5 - at))) & 255;
  bytes[6] = 0x70 | (bytes[6] & 15);
  bytes[8] = 0x80 | (bytes[8] & 63);
  const hex = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20)}`;
}
