// The user's prompts, kept in this browser: system prompts and messages, each with a name.

const NAME = "enginebay-prompts";

export const KINDS = { system: "System prompt", message: "Message" };

/** All of them, by kind and name; as they are now, since other tabs change them, too. */
export function prompts() {
  try {
    return checked(JSON.parse(localStorage.getItem(NAME)) ?? []);
  } catch {
    return []; // storage is off, or holds something else
  }
}

/** Add a prompt, or replace the one of its kind with its name. Throws words for the user. */
export function keepPrompt(prompt) {
  store([...prompts().filter((each) => !isSame(each, prompt)), prompt]);
}

export function forgetPrompt(prompt) {
  store(prompts().filter((each) => !isSame(each, prompt)));
}

/** Give a prompt another name, in place of one that has that already. */
export function renamePrompt(prompt, name) {
  const renamed = { ...prompt, name };
  const others = prompts().filter((each) => !isSame(each, prompt) && !isSame(each, renamed));
  store([...others, renamed]);
}

/** The text of a file with all of them. */
export const exported = () => JSON.stringify({ prompts: prompts() }, null, 2);

/** Add those of a file; the number of them. Throws words for the user. */
export function importPrompts(value) {
  const added = checked(Array.isArray(value) ? value : value?.prompts);
  const kept = prompts().filter((each) => !added.some((other) => isSame(each, other)));
  store([...kept, ...added]);
  return added.length;
}

/** Have `changed` called when another tab changes them. */
export function whenChanged(changed) {
  addEventListener("storage", ({ key }) => key === NAME && changed());
}

const isSame = (one, other) => one.kind === other.kind && one.name === other.name;

function checked(list) {
  if (!Array.isArray(list)) throw new Error("There are no prompts in this file.");
  return list.map((prompt, at) => {
    const { kind, name, text } = prompt ?? {};
    if (!Object.hasOwn(KINDS, kind) || typeof name !== "string" || !name || typeof text !== "string") {
      throw new Error(`prompts[${at}] needs a kind (system or message), a name and a text.`);
    }
    return { kind, name, text };
  });
}

function store(list) {
  const order = Object.keys(KINDS);
  const place = ({ kind }) => order.indexOf(kind);
  list.sort((a, b) => place(a) - place(b) || a.name.localeCompare(b.name));
  try {
    localStorage.setItem(NAME, JSON.stringify(list));
  } catch {
    throw new Error("This browser has no room for it.");
  }
}
