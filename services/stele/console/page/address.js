// What the page shows stands in its address, so that it can be sent to somebody and gone back to.

/** @typedef {Record<string, string>} Place */

/** What is a whole number wherever it stands in the address; anything else there is left out. */
const NUMBERS = ["epoch", "against", "from", "to", "row"];
const KEY = "stele-console-token";

/** Take the token out of the address before anybody sees it there; whether there was one. */
export function takeToken() {
  const found = /^#token=([A-Za-z0-9._~+/=-]+)$/.exec(location.hash);
  if (found) {
    sessionStorage.setItem(KEY, found[1]);
    history.replaceState(null, "", location.pathname);
  }
  return found !== null;
}

export function token() {
  return sessionStorage.getItem(KEY) ?? "";
}

/** @param {string} text */
export function keepToken(text) {
  sessionStorage.setItem(KEY, text.trim());
}

/** Views by the names that they had, so that old links still work. @type {Record<string, string>} */
const RENAMED = { requests: "operations" };

/** @param {string} view @returns {string} its name today */
export function viewNow(view) {
  return Object.hasOwn(RENAMED, view) ? RENAMED[view] : view || "overview";
}

/** @returns {Place} with `view` */
export function readPlace() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  /** @type {Place} */
  const place = { view: viewNow(path) };
  for (const [name, value] of new URLSearchParams(query ?? "")) {
    if (!NUMBERS.includes(name) || /^[0-9]{1,15}$/.test(value)) place[name] = value;
  }
  return place;
}

/** @param {Place} place @param {boolean} replace without an entry in the browser's history */
export function writePlace(place, replace) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(place)) if (name !== "view" && value !== "") query.set(name, value);
  const text = query.toString();
  const hash = `#/${place.view}${text ? `?${text}` : ""}`;
  if (hash === location.hash) return;
  if (replace) history.replaceState(null, "", hash);
  else history.pushState(null, "", hash);
}
