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
/** No sign of life for so long: what is shown may be old. The console gives one every ten seconds. */
const QUIET_MS = 13_000;
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

/** What reorders, hides or is not seen where it is shown; what joins letters or chooses their form stays. */
const HIDDEN = /(?![\t\n\u200c\u200d\ufe0e\ufe0f])[\p{Cc}\p{Default_Ignorable_Code_Point}\u2028\u2029\u2800]/gu;
const MAY_HIDE = /(?![\u200c\u200d\ufe0e\ufe0f])[\u007f-\u009f\p{Default_Ignorable_Code_Point}\u2028\u2029\u2800]|\\u00[01]/u;

/** A text with the number of each character that would not be seen in its place. @param {string} text */
export function visible(text) {
  return text.replace(HIDDEN, (c) => `⟨U+${(c.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

/**
 * JSON with texts that can be seen: names and reasons are anybody's.
 * @param {string} text
 */
export function plain(text) {
  if (!MAY_HIDE.test(text)) return JSON.parse(text);
  return JSON.parse(text, (_, value) => (typeof value === "string" ? visible(value) : value));
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
      await once(at(), on, (trouble) => {
        if (!trouble) pause = RETRY_MS;
        state(trouble, 200);
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
 * @param {(trouble: string) => void} heard how the stream stands, when that changes
 */
async function once(from, on, heard) {
  const cut = new AbortController();
  let watchdog = setTimeout(() => cut.abort(), SILENT_MS);
  let quiet = 0;
  try {
    const answer = await check(
      await fetch(url("/api/stream", from.after ? from : {}), { headers: headers(), signal: cut.signal }),
    );
    if (!answer.body) return;
    heard("");
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    let isQuiet = false;
    for (;;) {
      quiet = setTimeout(() => {
        isQuiet = true;
        heard(`The console has said nothing for ${QUIET_MS / 1000} s.`);
      }, QUIET_MS);
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(quiet);
      if (isQuiet) heard("");
      isQuiet = false;
      clearTimeout(watchdog);
      watchdog = setTimeout(() => cut.abort(), SILENT_MS);
      const parts = (rest + value.replaceAll("\r", "")).split("\n\n");
      rest = parts.pop() ?? "";
      for (const part of parts) dispatch(part, on);
    }
  } finally {
    clearTimeout(quiet);
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
