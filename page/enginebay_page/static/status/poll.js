// Asking again and again, as long as somebody looks.

/**
 * Run `ask` every `seconds`, never twice at once and not while the tab is hidden, until its answer is
 * false. `now()` runs it, and goes on from there.
 */
export function poll(ask, seconds) {
  let timer = null;
  let running = false;
  let again = false;
  async function round() {
    again = running;
    if (running) return;
    clearTimeout(timer);
    running = true;
    let goOn = true;
    try {
      goOn = await ask();
    } finally {
      running = false;
      if (again) round();
      else if (goOn && !document.hidden) timer = setTimeout(round, seconds * 1000);
    }
  }
  document.addEventListener("visibilitychange", () => !document.hidden && round());
  round();
  return { now: round };
}
