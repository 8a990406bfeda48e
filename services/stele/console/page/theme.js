// Dark or light: as the machine has it, or as was chosen here.

const KEY = "stele-console-theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");

export function chosenTheme() {
  return localStorage.getItem(KEY) ?? "system";
}

export function isDark() {
  const chosen = chosenTheme();
  return chosen === "system" ? system.matches : chosen === "dark";
}

/** @param {string} theme system, dark or light */
export function chooseTheme(theme) {
  localStorage.setItem(KEY, theme);
  applyTheme();
}

export function applyTheme() {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
}

/** @param {() => void} then */
export function watchTheme(then) {
  system.addEventListener("change", () => {
    applyTheme();
    then();
  });
}
