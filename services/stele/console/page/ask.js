// Starts an operation: its fields, a dry run with the consequences, then the reason and a confirmation.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { post, Refused } from "./api.js";
import { go, set, state } from "./store.js";
import { Sentence, Stepper } from "./ui.js";
import { capital, duration, size } from "./words.js";

const WHO = "stele-console-who";

/** Code of the console's answer if the plan has changed since it was shown. */
const PLAN_CHANGED = "plan_changed";

/** Code of the log's answer to an id that is older than the decisions that it remembers. */
const TOO_OLD = "request_id_expired";

/** Request ids whose outcome is unknown, by operation and fields. @type {Map<string, string>} */
const unknown = new Map();

/**
 * @typedef {{name: string, label: string, kind: string, is_needed: boolean}} FieldRow
 * @typedef {{name: string, title: string, about: string, plans: boolean, fields: FieldRow[]}} Operation
 */

/** Operations by what they change. Those of a newer console that are not named here come last. */
const GROUPS = {
  Nodes: ["join", "replace", "decommission", "remove", "exclude", "move", "rebuild", "cleanup"],
  Schema: ["create-keyspace", "alter-keyspace", "drop-keyspace", "create-table", "drop-table", "truncate"],
  Tablets: ["resize-table", "move-tablet", "repair-table", "balance-off", "balance-on"],
};

/** Operations that delete data, or after which a node can never return. */
const DESTRUCTIVE = new Set(["decommission", "remove", "exclude", "drop-keyspace", "drop-table", "truncate"]);

/** @returns {Operation[]} all operations */
const operations = () => state.about?.operations ?? [];

/** The button that opens the list of all operations, and that list. */
export function OperationMenu() {
  const dialog = useRef(/** @type {any} */ (null));
  const named = new Set(["cancel", ...Object.values(GROUPS).flat()]);
  const rest = operations().filter((each) => !named.has(each.name)).map((each) => each.name);
  const groups = Object.entries({ ...GROUPS, ...(rest.length ? { Other: rest } : {}) });
  const choose = (/** @type {string} */ name) => {
    dialog.current?.close();
    ask(name);
  };
  return html`<div class="bar"><button class="primary" data-deed="start" disabled=${!operations().length} onClick=${() => dialog.current?.showModal()}>Start an operation…</button>
      ${state.about && !state.about.commands ? html`<span class="note">This console is read-only: it plans operations and shows their command lines.</span>` : ""}</div>
    <dialog ref=${dialog} aria-labelledby="menu-title"><h2 id="menu-title">Start an operation</h2>
      ${groups.map(([title, names]) => html`<h3>${title}</h3><div class="choices">${names.map((name) => operations().find((each) => each.name === name)).map((each) => each && html`<button
        data-operation=${each.name} onClick=${() => choose(each.name)}><strong>${each.title}</strong><small>${each.about}</small></button>`)}</div>`)}
      <div class="deeds"><button onClick=${() => dialog.current?.close()}>Close</button></div></dialog>`;
}

/** Open the dialog of an operation. @param {string} name @param {Record<string, string>} [fields] @param {string} [title] */
export function ask(name, fields = {}, title = "") {
  set({ dialog: { name, fields, title, number: Date.now() } });
}

/** Names to choose from. @param {string} kind @returns {string[]} */
function known(kind) {
  const now = state.overview ?? {};
  if (kind === "node" || kind === "nodes") return (now.nodes ?? []).filter((/** @type {any} */ n) => n.state !== "left").map((/** @type {any} */ n) => n.node_id);
  if (kind === "keyspace") return now.keyspaces ?? [];
  return kind === "table" ? [...(now.keyspaces ?? []), ...(now.tables ?? [])] : [];
}

/** @param {{field: FieldRow, value: string, put: (text: string) => void}} props */
function Input({ field, value, put }) {
  if (field.kind === "flag") {
    return html`<label class="flag"><input type="checkbox" name=${field.name} checked=${value === "true"} onChange=${(/** @type {any} */ e) => put(e.target.checked ? "true" : "")} /> ${capital(field.label)}</label>`;
  }
  const some = known(field.kind);
  const list = some.length ? `ask-${field.name}` : undefined;
  return html`<label>${capital(field.label)} <input name=${field.name} required=${field.is_needed} maxlength="4000" autocomplete="off" list=${list} value=${value} onInput=${(/** @type {any} */ e) => put(e.target.value)} />
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
    // The list of operations may arrive after the click.
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
    // The same operation keeps its request id until its outcome is known: it takes effect once.
    const thing = `${asked.name} ${key}`;
    const before = unknown.get(thing);
    let id = before ?? newRequestId();
    unknown.set(thing, id);
    const send = () => post("/api/commands", { operation: asked.name, fields, reason, actor: caller ? "" : who, request_id: id, planned: plan.mark ?? "" });
    try {
      const found = await send().catch((error) => {
        const horizon = error instanceof Refused && error.code === TOO_OLD ? Number(error.details.horizon_ms ?? -1) : -1;
        if (before || horizon < 0) throw error;
        // The log rejects ids of this clock's time, and has decided nothing under this one.
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
        setOutcome({ text: "The outcome is unknown.", hint: "Send it again: it takes effect once." });
      }
    }
    sending.current = false;
    setBusy(false);
  };
  if (!operation) return null;
  const put = (/** @type {string} */ name) => (/** @type {string} */ text) => setFields((/** @type {any} */ old) => ({ ...old, [name]: text }));
  const isDestructive = DESTRUCTIVE.has(asked.name);
  const step = outcome?.done ? 3 : isPlanned && !plan.problem ? 2 : isWhole ? 1 : 0;
  return html`<dialog ref=${dialog} onClose=${close} aria-labelledby="ask-title">
    <form onSubmit=${submit}>
      <h2 id="ask-title">${asked.title || operation.title}</h2>
      <${Stepper} steps=${["Fields", operation.plans ? "Dry run" : "Command line", "Reason and confirmation"]} at=${step} />
      <p>${operation.about}</p>
      ${operation.fields.map((field) => html`<${Input} key=${field.name} field=${field} value=${fields[field.name] ?? ""} put=${put(field.name)} />`)}
      ${plan?.key === key && html`<${Plan} plan=${plan} />`}
      ${isPlanned && html`<label>Reason <input name="reason" required maxlength="1000" placeholder="kept in the log" value=${reason} onInput=${(/** @type {any} */ e) => setReason(e.target.value)} /></label>
      ${caller
        ? html`<p data-note="caller">Requested as ${caller}</p>`
        : html`<label>Requested by <input name="who" maxlength="100" placeholder="console" value=${who} onInput=${(/** @type {any} */ e) => setWho(e.target.value)} /></label>`}`}
      ${!may && html`<p class="warn">This console is read-only. Use the command line.</p>`}
      ${outcome && html`<p role="alert" class=${outcome.done ? "good" : "bad"} data-outcome=${outcome.done ? "done" : "refused"}>${outcome.text} <${Sentence} text=${outcome.hint ?? ""} /></p>`}
      <div class="deeds">
        <button type="button" data-deed="close" onClick=${() => dialog.current?.close()}>Close</button>
        ${!isPlanned && html`<button type="button" class="primary" data-deed="plan" disabled=${!isWhole || plan?.busy} onClick=${look}>${operation.plans ? "Dry run" : "Show the command line"}</button>`}
        ${isPlanned && !outcome?.done && html`<button class=${isDestructive ? "primary danger" : "primary"} data-deed="confirm" disabled=${!may || busy || !reason.trim()}>${operation.title}</button>`}
        ${outcome?.done && html`<button type="button" class="primary" data-deed="follow" onClick=${() => { dialog.current?.close(); go({ view: "operations", request: fields.request ?? outcome.id }); }}>Show progress</button>`}
      </div>
    </form>
  </dialog>`;
}

/** Verdicts of a dry run: the status, and what it means. @type {Record<string, [string, string]>} */
const VERDICTS = {
  starts: ["good", "starts at once"],
  waits: ["warn", "waits before it starts"],
  fails: ["bad", "would fail"],
};

/** @param {{plan: any}} props */
function Plan({ plan }) {
  if (plan.busy) return html`<p class="loading" role="status">Planning. Nothing is changed…</p>`;
  if (plan.problem) return html`<p class="bad" data-plan="refused">${plan.problem} <${Sentence} text=${plan.hint ?? ""} /></p>`;
  return html`${plan.text && html`<h3>Consequences</h3><${Consequences} plan=${plan} />
    <details><summary>Full plan at epoch ${plan.epoch}</summary><pre tabindex="0">${plan.text}</pre></details>`}
    <p class="note">Command line: <code>${plan.command_line}</code></p>`;
}

/** @param {{plan: any}} props */
function Consequences({ plan }) {
  const [kind, text] = VERDICTS[plan.verdict] ?? ["", plan.verdict];
  const time = plan.duration_s === null ? "unknown" : `${plan.at_least ? "at least" : "about"} ${duration(plan.duration_s)}`;
  return html`<div class=${`card ${kind}`} data-plan=${plan.verdict}>
    <p><span class=${`badge ${kind}`}>${text}</span> <${Sentence} text=${plan.why} /></p>
    ${plan.foreseen.map((/** @type {string} */ each) => html`<p>${capital(each)}.</p>`)}
    <dl>
      ${plan.receivers.length > 0 && html`<dt>Data to stream</dt><dd>${plan.size_bytes === null ? "unknown" : `about ${size(plan.size_bytes)}`} to ${plan.receivers.join(", ")}</dd><dt>Duration</dt><dd>${time}</dd>`}
      ${plan.excludes.length > 0 && html`<dt>Excluded</dt><dd class="bad">${plan.excludes.join(", ")}: these nodes can never return</dd>`}
      ${plan.steps.length > 0 && html`<dt>States</dt><dd>${plan.steps.map((/** @type {string} */ each) => each.replaceAll("_", " ")).join(" → ")}</dd>
        <dt>Cancel</dt><dd>${plan.final_from === null ? "possible in every state" : plan.final_from === 0 ? "not possible once it has started" : `possible before the state ${plan.steps[plan.final_from].replaceAll("_", " ")}`}</dd>`}
    </dl>
    ${plan.concerns.map((/** @type {string} */ each) => html`<p class="warn">${each}</p>`)}
  </div>`;
}

/**
 * A UUID of version 7. An operation keeps its id however often it is sent.
 * @param {number} [horizon] its time is later than this; milliseconds since 1970
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
