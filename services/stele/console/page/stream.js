// The stream of events. It resumes where it broke off. A worker follows it for all pages of a browser.

import { check, headers, plain, Refused, url } from "./api.js";

/** Silence after which the page may be stale; the console sends a ping every ten seconds. */
const QUIET_MS = 13_000;
/** Silence after which the stream is opened again. */
const SILENT_MS = 25_000;
const RETRY_MS = 500;
const RETRY_MOST_MS = 5_000;
/** The status of an answer without a valid token. */
export const REFUSED = 401;

/**
 * Follow the stream until the token is refused. `at` returns the position, `on` receives each event, `state` each change of the connection.
 * @param {string} token
 * @param {() => {after: number, state_id: string}} at
 * @param {(name: string, data: any) => void} on
 * @param {(trouble: string, status: number) => void} state
 */
export async function follow(token, at, on, state) {
  let pause = RETRY_MS;
  for (;;) {
    try {
      await once(token, at(), on, (trouble) => {
        if (!trouble) pause = RETRY_MS;
        state(trouble, 200);
      });
      state("The console closed the stream.", 0);
    } catch (error) {
      const status = error instanceof Refused ? error.status : 0;
      const why = error instanceof Refused ? `${error.message} ${error.hint}` : "The console does not answer.";
      state(why, status);
      if (status === REFUSED) return;
    }
    await new Promise((done) => setTimeout(done, pause));
    pause = Math.min(RETRY_MOST_MS, pause * 2);
  }
}

/**
 * @param {string} token
 * @param {{after: number, state_id: string}} from
 * @param {(name: string, data: any) => void} on
 * @param {(trouble: string) => void} heard receives each change of the connection; empty: it works
 */
async function once(token, from, on, heard) {
  const cut = new AbortController();
  let watchdog = setTimeout(() => cut.abort(), SILENT_MS);
  let quiet = 0;
  try {
    const answer = await check(
      await fetch(url("/api/stream", from.after ? from : {}), { headers: headers(token), signal: cut.signal }),
    );
    if (!answer.body) return;
    heard("");
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    let isQuiet = false;
    for (;;) {
      quiet = setTimeout(() => {
        isQuiet = true;
        heard(`The console has sent nothing for ${QUIET_MS / 1000} s.`);
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
