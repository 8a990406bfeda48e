// Runs after the modules. If one of them failed to load, none has run: the page is then loaded again.

{
  const KEY = "stele-console-loads";
  const PAUSE_MS = 1000;
  const MOST = 6;
  const loads = Number(sessionStorage.getItem(KEY) ?? 0) + 1;
  const text = document.querySelector("#page p");
  if ("steleConsole" in globalThis) {
    sessionStorage.removeItem(KEY);
  } else if (text && loads < MOST) {
    const pauseMs = PAUSE_MS * 2 ** (loads - 1);
    sessionStorage.setItem(KEY, String(loads));
    text.textContent = `A part of the page failed to load. Retrying in ${pauseMs / 1000} s.`;
    setTimeout(() => location.reload(), pauseMs);
  } else if (text) {
    sessionStorage.removeItem(KEY);
    text.textContent = `A part of the page failed to load ${loads} times. Reload the page. The developer tools of the browser name the part.`;
  }
}
