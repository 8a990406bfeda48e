// What comes in while a page is open: by the worker that all pages of this browser share, or by a stream of its own.

import { token } from "./address.js";
import { follow, REFUSED } from "./stream.js";

/**
 * The worker tells of each new look at the services, and of each try to get there: silent for so long, it is gone.
 * One that was silent from the beginning has not begun, and whoever asks for it again gets the same one.
 */
const SILENT_MS = 30_000;
/** Between two questions under a token that was refused. */
const REFUSED_MS = 5_000;
/** Pages that speak otherwise have another worker: this counts up with what goes to and fro. */
export const WORKER = "stele-stream-1";

/** @typedef {{token: string, after: number, state_id: string}} Asked what a page sends: its place */

/**
 * Listen for ever. `at` says from where; `on` gets each event; `state` how the stream stands.
 * @param {() => {after: number, state_id: string}} at
 * @param {(name: string, data: any) => void} on
 * @param {(trouble: string, status: number) => void} state
 */
export async function listenOn(at, on, state) {
  while (typeof SharedWorker === "function") if (!(await byWorker(at, on, state))) break;
  for (;;) {
    await follow(token(), at, on, state);
    await new Promise((done) => setTimeout(done, REFUSED_MS));
  }
}

/**
 * Until the worker is silent; false: there can be none, or it does not begin.
 * @param {() => {after: number, state_id: string}} at
 * @param {(name: string, data: any) => void} on
 * @param {(trouble: string, status: number) => void} state
 * @returns {Promise<boolean>}
 */
function byWorker(at, on, state) {
  return new Promise((done) => {
    const worker = new SharedWorker("/page/shared_stream.js", { type: "module", name: WORKER });
    let watchdog = 0;
    let hasBegun = false;
    const end = (/** @type {boolean} */ again) => {
      clearTimeout(watchdog);
      worker.port.onmessage = null;
      worker.port.close();
      done(again);
    };
    const ask = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => end(hasBegun), SILENT_MS);
      worker.port.postMessage(/** @type {Asked} */ ({ token: token(), ...at() }));
    };
    worker.onerror = () => end(false);
    worker.port.onmessage = ({ data }) => {
      clearTimeout(watchdog);
      hasBegun = true;
      try {
        for (const [name, told] of data.news) on(name, told);
      } catch (error) {
        end(true); // asked from its place anew
        throw error;
      }
      if (data.stands) state(data.stands.trouble, data.stands.status);
      if (data.stands?.status === REFUSED) watchdog = setTimeout(ask, REFUSED_MS);
      else ask();
    };
    ask();
  });
}
