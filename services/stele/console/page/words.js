// Numbers and moments for people.

/** @param {number} ms milliseconds since 1970; 0: nothing */
export function clock(ms) {
  if (!ms) return "";
  const at = new Date(ms);
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/** @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "never";
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes >= 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${minutes} min ${Math.round(seconds % 60)} s`;
}

/** @param {number | null | undefined} bytes */
export function size(bytes) {
  if (bytes === null || bytes === undefined) return "unknown";
  let left = bytes;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (left < 1000) return unit === "B" ? `${Math.round(left)} B` : `${left.toFixed(1)} ${unit}`;
    left /= 1000;
  }
  return `${left.toFixed(1)} TB`;
}

/** @param {number} number @param {string} one @param {string} more */
export function counted(number, one, more) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : more}`;
}

/** The first fact of an epoch, and how many more it has. @param {{lines: string[], more: number}} told */
export function firstLine(told) {
  const others = told.lines.length + told.more - 1;
  return `${told.lines[0] ?? ""}${others > 0 ? ` and ${others} more` : ""}`;
}

/** n2 before n10. @param {string} a @param {string} b */
export function asCounted(a, b) {
  return a.localeCompare(b, "en", { numeric: true });
}

/** A sentence begins with a capital. @param {string} text */
export function capital(text) {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}
