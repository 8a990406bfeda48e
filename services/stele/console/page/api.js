// Asking the console: JSON, bytes, and the one stream, which goes on where it left.

import { token } from "./address.js";

export class Refused extends Error {
  /** @param {number} status @param {{code?: string, message?: string, hint?: string}} body */
  constructor(status, body) {
    super(body.message ?? `The console answered ${status}.`);
    this.status = status;
    this.code = body.code ?? "";
    this.hint = body.hint ?? "";
  }
}

/** Whether it is worth asking again: somebody is away. @param {unknown} error */
export function mayComeBack(error) {
  return !(error instanceof Refused) || error.status >= 500;
}

/** How long a question may take; milliseconds. */
const LIMIT_MS = 130_000;
/** No sign of life for so long: the stream is opened anew. */
const SILENT_MS = 25_000;
const RETRY_MS = 500;
const RETRY_MOST_MS = 5_000;

/** @param {Record<string, string>} [more] */
function headers(more) {
  const known = token();
  return { ...(known ? { authorization: `Bearer ${known}` } : {}), ...more };
}

/** @param {Response} answer */
async function check(answer) {
  if (answer.ok) return answer;
  /** @type {any} */
  let body = {};
  try {
    body = plain(await answer.text());
  } catch {
    // it is none of the console's own
  }
  throw new Refused(answer.status, body.rejection ?? body);
}

/** What reorders or hides text where it is shown. */
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const MAY_HIDE = /[\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]|\\u00[01]/;

/**
 * JSON, with the number of each character that would not be seen in its place: names and reasons are anybody's.
 * @param {string} text
 */
export function plain(text) {
  if (!MAY_HIDE.test(text)) return JSON.parse(text);
  const named = (/** @type {string} */ c) => `⟨U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
  return JSON.parse(text, (_, value) => (typeof value === "string" ? value.replace(HIDDEN, named) : value));
}

/** @param {string} path @param {Record<string, string | number | undefined>} params */
function url(path, params) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) if (value !== undefined && value !== "") query.set(name, String(value));
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

/**
 * @param {string} path
 * @param {Record<string, string | number | undefined>} [params]
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function get(path, params = {}, signal) {
  const limit = AbortSignal.timeout(LIMIT_MS);
  const either = signal ? AbortSignal.any([signal, limit]) : limit;
  const answer = await fetch(url(path, params), { headers: headers(), signal: either });
  return plain(await (await check(answer)).text());
}

/** @param {string} path @param {Record<string, string | number | undefined>} params @param {AbortSignal} [signal] */
export async function getBytes(path, params, signal) {
  const limit = AbortSignal.timeout(LIMIT_MS);
  const either = signal ? AbortSignal.any([signal, limit]) : limit;
  const answer = await fetch(url(path, params), { headers: headers(), signal: either });
  return (await check(answer)).arrayBuffer();
}

/** @param {string} path @param {unknown} body @returns {Promise<any>} */
export async function post(path, body) {
  const answer = await fetch(path, {
    method: "POST",
    headers: headers({ "content-type": "application/json", "x-stele-console": "1" }),
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(LIMIT_MS),
  });
  return plain(await (await check(answer)).text());
}

/**
 * Follow the stream for ever. `at` says from where; `on` gets each event; `state` how it stands.
 * @param {() => {after: number, state_id: string}} at
 * @param {(name: string, data: any) => void} on
 * @param {(trouble: string, status: number) => void} state
 */
export async function follow(at, on, state) {
  let pause = RETRY_MS;
  for (;;) {
    try {
      await once(at(), on, () => {
        pause = RETRY_MS;
        state("", 200);
      });
      state("The console has ended its stream.", 0);
    } catch (error) {
      const status = error instanceof Refused ? error.status : 0;
      const why = error instanceof Refused ? `${error.message} ${error.hint}` : "The console does not answer.";
      state(why, status);
    }
    await new Promise((done) => setTimeout(done, pause));
    pause = Math.min(RETRY_MOST_MS, pause * 2);
  }
}

/**
 * @param {{after: number, state_id: string}} from
 * @param {(name: string, data: any) => void} on
 * @param {() => void} opened
 */
async function once(from, on, opened) {
  const cut = new AbortController();
  let watchdog = setTimeout(() => cut.abort(), SILENT_MS);
  try {
    const answer = await check(
      await fetch(url("/api/stream", from.after ? from : {}), { headers: headers(), signal: cut.signal }),
    );
    if (!answer.body) return;
    opened();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(watchdog);
      watchdog = setTimeout(() => cut.abort(), SILENT_MS);
      const parts = (rest + value.replaceAll("\r", "")).split("\n\n");
      rest = parts.pop() ?? "";
      for (const part of parts) dispatch(part, on);
    }
  } finally {
    clearTimeout(watchdog);
    cut.abort();
  }
}

/** @param {string} part @param {(name: string, data: any) => void} on */
function dispatch(part, on) {
  let name = "message";
  let data = "";
  for (const line of part.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    else if (line.startsWith("data: ")) data += line.slice(6);
  }
  if (data) on(name, plain(data));
}
