// Run behind the modules: where one of them did not come none has run, and the page is loaded again.

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
    text.textContent = `A part of the page did not come; it is loaded again in ${pauseMs / 1000} s.`;
    setTimeout(() => location.reload(), pauseMs);
  } else if (text) {
    sessionStorage.removeItem(KEY);
    text.textContent = `A part of the page did not come, ${loads} times: reload it. The browser's own console says which part.`;
  }
}
