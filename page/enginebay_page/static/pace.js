// How often something that grows is drawn.

const REST = 3; // times as long as drawing takes the page is left to its user

/**
 * Calls `draw(thing)` in a frame for what `ask(thing)` was called with since the last one. The more a
 * frame takes, with its layout, the later comes the next, so that no text can make the page hang.
 */
export class Pace {
  #asked = new Set();
  #pause = 0;
  #waits = false;

  constructor(draw) {
    this.draw = draw;
  }

  ask(thing) {
    this.#asked.add(thing);
    if (this.#waits) return;
    this.#waits = true;
    setTimeout(() => requestAnimationFrame(() => this.#frame()), this.#pause);
  }

  #frame() {
    const began = performance.now();
    const asked = [...this.#asked];
    this.#asked.clear();
    setTimeout(() => { // after the layout
      this.#pause = REST * (performance.now() - began);
      this.#waits = false;
      for (const thing of this.#asked) this.ask(thing);
    });
    for (const thing of asked) this.draw(thing);
  }
}
