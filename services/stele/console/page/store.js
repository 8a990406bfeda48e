// All that the page knows, and who is told when it changes.

import { get, getBytes, mayComeBack, pauseAfter, Refused } from "./api.js";
import { readPlace, takeToken, viewNow, writePlace } from "./address.js";
import { listenOn } from "./listening.js";
import { change, unpack } from "./map_data.js";

/** Epochs that the list keeps; older ones are read when somebody scrolls to them. */
const LISTED = 1000;
const FIRST_PAGE = 100;
/** Changes that come together are read together; milliseconds. */
const GATHER_MS = 20;
const PLAY_MS = 400;
/** Between two questions to somebody who is away; milliseconds. */
const AWAY_MS = 3000;
/** Between two looks at the load of tablets while the map is coloured by it; milliseconds. */
const LOAD_MS = 5000;

/**
 * @typedef {import("./map_data.js").MapData} MapData
 * @typedef {object} State
 * @property {import("./address.js").Place} place
 * @property {any} about
 * @property {any} overview of the epoch that is shown
 * @property {any} looked the newest look at the services
 * @property {any[]} epochs the newest first
 * @property {number} nextBefore
 * @property {number} newest the newest epoch that was told of
 * @property {string} newestId
 * @property {number} delayMs how long the newest epoch took to the page, by both clocks
 * @property {MapData | null} map
 * @property {number} mapNumber counts the changes of the map
 * @property {Map<number, number> | null} load by place, of the map that is shown; null: it is not known
 * @property {string} loadProblem why it is not
 * @property {number} begins the first epoch that there is
 * @property {string} trouble why nothing comes from the console
 * @property {boolean} locked a token is needed
 * @property {string} problem of the last question
 * @property {boolean} playing
 * @property {any} dialog
 */

/** @type {State} */
export const state = {
  place: readPlace(),
  about: null,
  overview: null,
  looked: null,
  epochs: [],
  nextBefore: 0,
  newest: 0,
  newestId: "",
  delayMs: -1,
  map: null,
  mapNumber: 0,
  load: null,
  loadProblem: "",
  begins: 1,
  trouble: "",
  locked: false,
  problem: "",
  playing: false,
  dialog: null,
};

/** @type {Set<() => void>} */
const listeners = new Set();
let drawn = false;

/** @param {() => void} listener */
export function listen(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** @param {Partial<State>} patch */
export function set(patch) {
  Object.assign(state, patch);
  if (drawn) return;
  drawn = true;
  queueMicrotask(() => {
    drawn = false;
    for (const listener of [...listeners]) listener();
  });
}

/** The epoch that is shown; 0: the newest, live. */
export function shownEpoch() {
  return Number(state.place.epoch ?? 0);
}

/** @param {Record<string, string | number>} patch @param {boolean} [replace] */
export function go(patch, replace = false) {
  /** @type {Record<string, string>} */
  const place = { ...state.place };
  for (const [name, value] of Object.entries(patch)) place[name] = String(value);
  for (const name of Object.keys(place)) if (place[name] === "" || (name === "epoch" && place[name] === "0")) delete place[name];
  place.view = viewNow(place.view);
  writePlace(place, replace);
  arrive(place);
}

/** @param {import("./address.js").Place} place */
function arrive(place) {
  const before = state.place;
  set({ place });
  if (before.epoch !== place.epoch) refresh();
  else if (before.map !== place.map || before.against !== place.against || before.colour !== place.colour) refreshMap();
}

let turn = 0;

/** The map is to be read with the next state that is: whoever wanted it may have given way to a later reading. */
let mapIsDue = false;

/** A state of the past that is being read. @type {Promise<void> | null} */
let pastRead = null;

/**
 * Read the state of the epoch that is shown. States of the past are read one at a time, and of those that are
 * wanted meanwhile the last one alone: who drags the line of time means where it comes to rest.
 * @param {boolean} [withMap]
 */
export async function refresh(withMap = true) {
  const mine = ++turn;
  mapIsDue ||= withMap;
  if (!shownEpoch()) return readState(mine);
  while (pastRead) {
    await pastRead;
    if (mine !== turn) return;
  }
  pastRead = readState(mine).finally(() => (pastRead = null));
  await pastRead;
}

/** @param {number} mine */
async function readState(mine) {
  try {
    const overview = await get("/api/overview", { epoch: shownEpoch() || undefined });
    if (mine !== turn) return;
    set({ overview, problem: "" });
    if (!state.newest) set({ newest: overview.epoch, newestId: overview.state_id });
    if (mapIsDue || shownMap()?.placement !== state.map?.placement) {
      mapIsDue = false;
      await refreshMap();
    }
  } catch (error) {
    if (mine !== turn) return;
    if (shownEpoch() && state.overview?.epoch !== shownEpoch()) set({ overview: null, map: null, mapNumber: state.mapNumber + 1 });
    fail(error);
    if (shownEpoch() && mayComeBack(error)) setTimeout(() => mine === turn && refresh(false), AWAY_MS);
  }
}

/** Which map is shown: the one in the address, if it is there at this epoch; without one there the first. */
export function shownMap() {
  const maps = state.overview?.maps ?? [];
  if (state.place.map) return maps.find((/** @type {any} */ map) => map.placement === state.place.map) ?? null;
  return maps.find((/** @type {any} */ m) => m.tablets) ?? maps[0] ?? null;
}

/** Choose a row of the map that is shown; the address then names both. @param {number | string} place empty: none */
export function choose(place) {
  go(place === "" ? { row: "" } : { row: place, map: shownMap()?.placement ?? "" }, true);
}

/** Show a tablet of a table. @param {string} table @param {number} tablet */
export function showTablet(table, tablet) {
  const found = (state.overview?.maps ?? []).find((/** @type {any} */ map) => map.tablets && map.keyspaces.includes(table));
  go({ view: "map", map: found?.placement ?? "", row: found ? tablet : "" });
}

let mapTurn = 0;

/** What was told of a map since its reading began: what is read may be of before or after that. @type {{ placement: string, told: any[] } | null} */
let mapRead = null;

export async function refreshMap() {
  const mine = ++mapTurn;
  const head = shownMap();
  const read = (mapRead = head && !shownEpoch() ? { placement: head.placement, told: /** @type {any[]} */ ([]) } : null);
  if (!head) {
    set({ map: null, mapNumber: state.mapNumber + 1 });
    return;
  }
  try {
    const buffer = await getBytes("/api/map", {
      placement: head.placement,
      epoch: shownEpoch() || undefined,
      against: state.place.against,
    });
    if (mine !== mapTurn) return;
    const map = unpack(buffer);
    const isOld = read?.told.some((each) => each.anew || map.differs || !change(map, each.rows));
    mapRead = null;
    set({ map, mapNumber: state.mapNumber + 1, problem: "" });
    if (isOld) {
      mapIsOld = true;
      later();
    }
    if (state.place.colour === "load") await refreshLoad(head, mine);
  } catch (error) {
    if (mine !== mapTurn) return;
    fail(error);
    if (mayComeBack(error)) setTimeout(() => mine === mapTurn && refreshMap(), AWAY_MS);
  }
}

let loadAt = 0;

/** The load of the tablets that are shown, which is known of now alone. @param {any} head @param {number} mine */
async function refreshLoad(head, mine) {
  loadAt = Date.now();
  const table = head.keyspaces[0];
  if (!head.tablets || !table || shownEpoch()) {
    const loadProblem = shownEpoch() ? "The load of the past is not stored." : "Nodes report the load of tablets, not of ranges.";
    set({ load: null, loadProblem, mapNumber: state.mapNumber + 1 });
    return;
  }
  try {
    const answer = await get("/api/balance/sizes", { table, limit: Math.min(head.rows, 100_000), order: "rate" });
    if (mine !== mapTurn) return;
    const load = new Map();
    for (const each of answer.sizes.largest) load.set(each.tablet, (each.reads_per_s ?? 0) + (each.writes_per_s ?? 0) || each.size_bytes);
    set({ load, loadProblem: "", mapNumber: state.mapNumber + 1 });
  } catch (error) {
    if (mine !== mapTurn) return;
    const why = error instanceof Error ? error.message : String(error);
    set({ load: null, loadProblem: `The load is unknown: ${why}`, mapNumber: state.mapNumber + 1 });
  }
}

/** @param {unknown} error */
export function fail(error) {
  if (error instanceof Refused && error.status === 401) set({ locked: true });
  else if (error instanceof Refused) set({ problem: `${error.message} ${error.hint}`.trim() });
  else set({ problem: `The console does not answer (${String(error)}).` });
}

/** Whether the list of epochs goes back from the newest: a first page that was cut off is asked for again. */
let listed = false;

/** @param {number} [before] */
export async function readEpochs(before = 0) {
  try {
    const page = await get("/api/epochs", { before: before || undefined, limit: FIRST_PAGE });
    const known = before ? state.epochs : state.epochs.filter((e) => e.epoch > page.newest);
    const last = known.at(-1)?.epoch ?? Infinity;
    set({ epochs: [...known, ...page.epochs.filter((/** @type {any} */ e) => e.epoch < last)], nextBefore: page.next_before, begins: Math.max(1, page.begins) });
    listed = true;
  } catch (error) {
    fail(error);
  }
}

let mapIsOld = false;
let gathering = false;

function later() {
  if (gathering) return;
  gathering = true;
  setTimeout(async () => {
    const withMap = mapIsOld;
    mapIsOld = false;
    const begun = performance.now();
    if (!shownEpoch()) await refresh(withMap);
    setTimeout(() => {
      gathering = false;
      if (!shownEpoch() && (state.overview?.epoch ?? 0) < state.newest) later();
    }, pauseAfter(performance.now() - begun));
  }, GATHER_MS);
}

/** @param {any} told */
function take(told) {
  const listedNewer = state.epochs.length && state.epochs[0].epoch >= told.epoch; // it was read meanwhile
  const epochs = [told, ...(listedNewer ? state.epochs.filter((e) => e.epoch < told.epoch) : state.epochs)];
  if (epochs.length > LISTED) {
    epochs.length = LISTED;
    state.nextBefore = epochs[LISTED - 1].epoch;
  }
  const delayMs = Math.max(0, Date.now() - told.at_ms);
  set({ epochs, newest: told.epoch, newestId: told.state_id, delayMs });
  if (shownEpoch()) return;
  if (mapRead && told.maps[mapRead.placement]) mapRead.told.push(told.maps[mapRead.placement]);
  const changed = state.map ? told.maps[state.map.placement] : undefined;
  if (changed && state.map) {
    if (changed.anew || state.map.differs || !change(state.map, changed.rows)) mapIsOld = true;
    else set({ mapNumber: state.mapNumber + 1 });
  }
  if (!told.live) mapIsOld = true;
  later();
}

/** @param {string} name @param {any} data */
function on(name, data) {
  if (name === "epoch") {
    if (data.epoch > state.newest + 1 && state.newest) throw new Error(`epoch ${data.epoch} came after ${state.newest}`);
    if (data.epoch === state.newest + 1 || !state.newest) take(data);
  } else if (name === "looked") {
    set({ looked: data });
    if (!shownEpoch() && (state.overview?.epoch ?? 0) < state.newest) later();
    const head = shownMap();
    if (head && state.place.colour === "load" && state.place.view === "map" && !shownEpoch() && Date.now() - loadAt > LOAD_MS) refreshLoad(head, mapTurn);
  } else if (name === "hello") {
    if (data.how === "resumed") {
      if (!listed) readEpochs();
      return;
    }
    listed = false;
    set({ newest: data.epoch, newestId: data.state_id, epochs: [] });
    refresh();
    readEpochs();
  }
}

let ticking = 0;

/** Show the past as it went on, an epoch after the other. @param {boolean} playing */
export function play(playing) {
  set({ playing });
  clearTimeout(ticking);
  if (!playing) return;
  const tick = async () => {
    const next = (shownEpoch() || state.newest) + 1;
    if (!state.playing) return;
    if (shownEpoch() && state.overview?.epoch !== shownEpoch() && !state.problem) {
      ticking = setTimeout(tick, PLAY_MS); // it is still being read
      return;
    }
    if (next >= state.newest) {
      set({ playing: false });
      go({ epoch: 0 }, true);
      return;
    }
    go({ epoch: next }, true);
    ticking = setTimeout(tick, PLAY_MS);
  };
  ticking = setTimeout(tick, PLAY_MS);
}

/** @param {number} epoch 0 or the newest: live */
export function goTo(epoch) {
  const wanted = Math.max(state.begins, Math.min(state.newest, Math.round(epoch)));
  go({ epoch: !epoch || wanted >= state.newest ? 0 : wanted }, true);
}

export async function begin() {
  window.addEventListener("hashchange", () => {
    if (takeToken()) location.reload();
    else arrive(readPlace());
  });
  window.addEventListener("popstate", () => arrive(readPlace()));
  get("/api/about").then((about) => set({ about }), fail);
  listenOn(
    () => ({ after: state.newestId ? state.newest : 0, state_id: state.newestId }),
    on,
    (trouble, status) => set({ trouble, locked: status === 401 }),
  );
}
