// Something is asked for: what would become of it first, then why, then a confirmation.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { post, Refused } from "./api.js";
import { go, set, state } from "./store.js";
import { Sentence } from "./ui.js";

const WHO = "stele-console-who";

/** The answer of the console where the plan is not any more what was shown. */
const PLAN_CHANGED = "plan_changed";

/** The answer of the log where it may have forgotten what was decided under ids of that time. */
const TOO_OLD = "request_id_expired";

/** By what was asked for, the id of a request of which nobody knows yet whether it was taken. @type {Map<string, string>} */
const unknown = new Map();

/**
 * @typedef {{name: string, label: string, kind: string, is_needed: boolean}} FieldRow
 * @typedef {{name: string, title: string, about: string, plans: boolean, fields: FieldRow[]}} Operation
 */

/** @returns {Operation[]} all that can be asked for */
export const operations = () => state.about?.operations ?? [];

/** Ask for an operation, with what is known of its fields. @param {string} name @param {Record<string, string>} [fields] @param {string} [title] */
export function ask(name, fields = {}, title = "") {
  set({ dialog: { name, fields, title, number: Date.now() } });
}

/** What there is to choose from. @param {string} kind @returns {string[]} */
function known(kind) {
  const now = state.overview ?? {};
  if (kind === "node" || kind === "nodes") return (now.nodes ?? []).filter((/** @type {any} */ n) => n.state !== "left").map((/** @type {any} */ n) => n.node_id);
  if (kind === "keyspace") return now.keyspaces ?? [];
  return kind === "table" ? [...(now.keyspaces ?? []), ...(now.tables ?? [])] : [];
}

/** @param {{field: FieldRow, value: string, put: (text: string) => void}} props */
function Input({ field, value, put }) {
  if (field.kind === "flag") {
    return html`<label class="flag"><input type="checkbox" name=${field.name} checked=${value === "true"} onChange=${(/** @type {any} */ e) => put(e.target.checked ? "true" : "")} /> ${field.label}</label>`;
  }
  const some = known(field.kind);
  const list = some.length ? `ask-${field.name}` : undefined;
  return html`<label>${field.label} <input name=${field.name} required=${field.is_needed} maxlength="4000" autocomplete="off" list=${list} value=${value} onInput=${(/** @type {any} */ e) => put(e.target.value)} />
    ${list && html`<datalist id=${list}>${some.map((each) => html`<option value=${each} />`)}</datalist>`}</label>`;
}

/** @param {{asked: {name: string, fields: Record<string, string>, title: string, number: number}}} props */
export function AskDialog({ asked }) {
  const dialog = useRef(null);
  const [fields, setFields] = useState(asked.fields);
  const [plan, setPlan] = useState(/** @type {any} */ (null));
  const [reason, setReason] = useState("");
  const [who, setWho] = useState(localStorage.getItem(WHO) ?? "");
  const [outcome, setOutcome] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  const sending = useRef(false);
  const operation = operations().find((each) => each.name === asked.name);
  const may = state.about?.commands;
  const caller = state.about?.caller;
  const key = JSON.stringify(fields);
  const isWhole = operation?.fields.every((field) => !field.is_needed || fields[field.name]?.trim()) ?? false;
  const look = async () => {
    setPlan({ key, busy: true });
    try {
      setPlan({ key, ...(await post("/api/plan", { operation: asked.name, fields })) });
    } catch (error) {
      const refused = /** @type {any} */ (error);
      setPlan({ key, problem: refused.message, hint: refused.hint });
    }
  };
  useEffect(() => {
    // what there is to ask for may come after the click
    if (!operation || dialog.current?.open) return;
    dialog.current?.showModal();
    if (isWhole) look();
  }, [asked.number, operation !== undefined]);
  const close = () => set({ dialog: null });
  const isPlanned = plan?.key === key && !plan.busy;
  const submit = async (/** @type {Event} */ e) => {
    e.preventDefault();
    if (sending.current) return;
    if (!isPlanned || !may) {
      look();
      return;
    }
    sending.current = true;
    setBusy(true);
    localStorage.setItem(WHO, who);
    // the same thing is the same request until its outcome is known; after that it is another one
    const thing = `${asked.name} ${key}`;
    const before = unknown.get(thing);
    let id = before ?? newRequestId();
    unknown.set(thing, id);
    const send = () => post("/api/commands", { operation: asked.name, fields, reason, actor: caller ? "" : who, request_id: id, planned: plan.mark ?? "" });
    try {
      const found = await send().catch((error) => {
        const horizon = error instanceof Refused && error.code === TOO_OLD ? Number(error.details.horizon_ms ?? -1) : -1;
        if (before || horizon < 0) throw error;
        // the log takes no id of this clock's time, and has decided nothing under this one
        id = newRequestId(horizon);
        unknown.set(thing, id);
        return send();
      });
      unknown.delete(thing);
      setOutcome({ text: `Accepted at epoch ${found.epoch}.`, done: true, id });
    } catch (error) {
      if (error instanceof Refused && error.status < 500) {
        unknown.delete(thing);
        setOutcome({ text: error.message, hint: error.hint });
        if (error.code === PLAN_CHANGED) look();
      } else {
        setOutcome({ text: "Whether it was taken is unknown.", hint: "Send it again: it takes effect once." });
      }
    }
    sending.current = false;
    setBusy(false);
  };
  if (!operation) return null;
  const put = (/** @type {string} */ name) => (/** @type {string} */ text) => setFields((/** @type {any} */ old) => ({ ...old, [name]: text }));
  return html`<dialog ref=${dialog} onClose=${close} aria-labelledby="ask-title">
    <form onSubmit=${submit}>
      <h2 id="ask-title">${asked.title || operation.title}</h2>
      <p>${operation.about}</p>
      ${operation.fields.map((field) => html`<${Input} key=${field.name} field=${field} value=${fields[field.name] ?? ""} put=${put(field.name)} />`)}
      ${plan?.key === key && html`<${Plan} plan=${plan} />`}
      ${!isPlanned && html`<p><button type="button" data-deed="plan" disabled=${!isWhole || plan?.busy} onClick=${look}>${operation.plans ? "what would it do?" : "show the command"}</button></p>`}
      <label>why <input name="reason" required maxlength="1000" value=${reason} onInput=${(/** @type {any} */ e) => setReason(e.target.value)} /></label>
      ${caller
        ? html`<p data-note="caller">as ${caller}</p>`
        : html`<label>who <input name="who" maxlength="100" placeholder="console" value=${who} onInput=${(/** @type {any} */ e) => setWho(e.target.value)} /></label>`}
      ${!may && html`<p class="warn">This console only shows. Use the command line.</p>`}
      ${outcome && html`<p role="alert" class=${outcome.done ? "good" : "bad"} data-outcome=${outcome.done ? "done" : "refused"}>${outcome.text} <${Sentence} text=${outcome.hint ?? ""} /></p>`}
      <div class="deeds">
        ${!outcome?.done && html`<button class="deed" disabled=${!may || busy || !isPlanned || !reason.trim()}>${asked.name === "cancel" ? "cancel the request" : "do it"}</button>`}
        <button type="button" onClick=${() => dialog.current?.close()}>${outcome?.done ? "close" : "leave it"}</button>
        ${outcome?.done && html`<button type="button" onClick=${() => { dialog.current?.close(); go({ view: "requests", request: fields.request ?? outcome.id }); }}>follow it</button>`}
      </div>
    </form>
  </dialog>`;
}

/** @param {{plan: any}} props */
function Plan({ plan }) {
  if (plan.busy) return html`<p>planning…</p>`;
  if (plan.problem) return html`<p class="bad" data-plan="refused">${plan.problem} <${Sentence} text=${plan.hint ?? ""} /></p>`;
  return html`${plan.text && html`<h3>What it would do</h3><pre data-plan=${plan.verdict} tabindex="0">${plan.text}</pre>`}
    <p class="note">On the command line: <code>${plan.command_line}</code></p>`;
}

/**
 * A UUID of version 7: one for each thing that is asked for, however often it is sent.
 * @param {number} [horizon] milliseconds since 1970 that its time comes after
 */
function newRequestId(horizon = -1) {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  const now = Math.max(Date.now(), horizon + 1);
  for (let at = 0; at < 6; at++) bytes[at] = Math.floor(now / 2 ** (8 * (5 - at))) & 255;
  bytes[6] = 0x70 | (bytes[6] & 15);
  bytes[8] = 0x80 | (bytes[8] & 63);
  const hex = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20)}`;
}
