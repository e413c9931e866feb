// Asking again and again, as long as somebody looks.

/** Run `ask` every `seconds`, never twice at once, not while the tab is hidden; `now()` runs it soon. */
export function poll(ask, seconds) {
  let timer = null;
  let running = false;
  async function round() {
    if (running) return;
    clearTimeout(timer);
    running = true;
    try {
      await ask();
    } finally {
      running = false;
      if (!document.hidden) timer = setTimeout(round, seconds * 1000);
    }
  }
  document.addEventListener("visibilitychange", () => !document.hidden && round());
  round();
  return { now: round };
}
