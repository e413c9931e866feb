// What this tab remembers: gone when it is closed, unless the user wants it kept.

/** A value of this tab's storage, or `otherwise`. */
export function load(name, otherwise) {
  try {
    return JSON.parse(sessionStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

/** Keep a value as long as the tab is open; false, and none kept, if storage is full or off. */
export function save(name, value) {
  try {
    sessionStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    sessionStorage.removeItem(name);
    return false;
  }
}

const KEY = "enginebay-key";

/** The API key; localStorage has it only if the user said so. */
export const apiKey = {
  get value() {
    return sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? "";
  },
  get remembered() {
    return localStorage.getItem(KEY) !== null;
  },
  set(value, remember) {
    this.forget();
    (remember ? localStorage : sessionStorage).setItem(KEY, value);
  },
  forget() {
    sessionStorage.removeItem(KEY);
    localStorage.removeItem(KEY);
  },
};
