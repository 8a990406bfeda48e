// Asking the console: JSON and bytes.

import { token } from "./address.js";

export class Refused extends Error {
  /** @param {number} status @param {{code?: string, message?: string, hint?: string, details?: Record<string, any>}} body */
  constructor(status, body) {
    super(body.message ?? `The console answered ${status}.`);
    this.status = status;
    this.code = body.code ?? "";
    this.hint = body.hint ?? "";
    this.details = body.details ?? {};
  }
}

/** Whether it is worth asking again: somebody is away. @param {unknown} error */
export function mayComeBack(error) {
  return !(error instanceof Refused) || error.status >= 500;
}

/** Between two answers to a question about what changes all the time; milliseconds. */
const PAUSE_LEAST_MS = 30;
const PAUSE_MOST_MS = 1000;

/**
 * How long to wait before such a question is asked again: three times as long as it took, so that a console that is
 * quick is asked at once, and one that is not has rest.
 * @param {number} tookMs
 */
export function pauseAfter(tookMs) {
  return Math.min(PAUSE_MOST_MS, Math.max(PAUSE_LEAST_MS, 3 * tookMs));
}

/** How long a question may take; milliseconds. */
const LIMIT_MS = 130_000;

/** @param {string} known the token, if there is one @param {Record<string, string>} [more] */
export function headers(known, more) {
  return { ...(known ? { authorization: `Bearer ${known}` } : {}), ...more };
}

/** @param {Response} answer */
export async function check(answer) {
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
export function url(path, params) {
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
  const answer = await fetch(url(path, params), { headers: headers(token()), signal: either });
  return plain(await (await check(answer)).text());
}

/** @param {string} path @param {Record<string, string | number | undefined>} params @param {AbortSignal} [signal] */
export async function getBytes(path, params, signal) {
  const limit = AbortSignal.timeout(LIMIT_MS);
  const either = signal ? AbortSignal.any([signal, limit]) : limit;
  const answer = await fetch(url(path, params), { headers: headers(token()), signal: either });
  return (await check(answer)).arrayBuffer();
}

/** @param {string} path @param {unknown} body @returns {Promise<any>} */
export async function post(path, body) {
  const answer = await fetch(path, {
    method: "POST",
    headers: headers(token(), { "content-type": "application/json", "x-stele-console": "1" }),
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(LIMIT_MS),
  });
  return plain(await (await check(answer)).text());
}
