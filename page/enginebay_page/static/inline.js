// Markdown within a paragraph: code, emphasis, links, line breaks. The time it takes grows with the
// length of the text, whatever is in it.

import { h } from "./dom.js";
import { shortened } from "./shortened.js";

const TOKEN = /`+|\*+|_+|~+|!?\[|\\[\n!-/:-@[-`{-~]|https?:\/\/[^\s<>"'`]+|(?<! ) *\n/g;
const LINK = /\[([^[\]\n]+)\]\(([^\s()]+(?:\([^\s()]*\)[^\s()]*)?)\)/y;
const AFTER_URL = /(?<![.,;:!?)\]}*_])[.,;:!?)\]}*_]+$/;
const TAGS = { "**": "strong", __: "strong", "*": "em", _: "em", "~~": "del" };
const OPEN = 16; // marks that wait for their end at once, and so the depth of elements

/** The nodes of a text. */
export const inline = (text) => new Inline(shortened(text)).nodes;

class Inline {
  #text;
  #codeMarks;
  #open = []; // the marks that may begin something, each with its place in `nodes`
  #at = 0;
  #shown = 0; // up to there the text is in `nodes`

  constructor(text) {
    this.nodes = [];
    this.#text = text;
    this.#codeMarks = codeMarks(text);
    for (let found; (TOKEN.lastIndex = this.#at), (found = TOKEN.exec(text)); ) {
      this.#at = found.index + found[0].length;
      this.#read(found[0], found.index);
    }
    this.#push(text.slice(this.#shown));
  }

  #read(token, start) {
    if (token === "\\\n" || /^ {2,}\n/.test(token)) this.#show(h("br"), start, this.#at);
    else if (token.endsWith("\n")) this.#show("\n", start, this.#at);
    else if (token[0] === "\\") this.#show(token[1], start, this.#at);
    else if (token[0] === "`") this.#code(token, start);
    else if (token.endsWith("[")) this.#link(start);
    else if (token[0] === "h") this.#address(token.replace(AFTER_URL, ""), start);
    else this.#emphasis(token, start);
  }

  /** Have this node in place of the text from `start` to `end`. */
  #show(node, start, end) {
    this.#push(this.#text.slice(this.#shown, start), node);
    this.#shown = this.#at = end;
  }

  #push(...nodes) {
    this.nodes.push(...nodes.filter((each) => each !== ""));
  }

  #code({ length }, start) {
    const places = this.#codeMarks.get(length) ?? []; // the last one first
    while (places.at(-1) <= start) places.pop();
    const end = places.at(-1);
    if (end) this.#show(h("code", {}, this.#text.slice(this.#at, end)), start, end + length);
  }

  #link(start) {
    LINK.lastIndex = this.#at - 1;
    const [source, label, url] = LINK.exec(this.#text) ?? [];
    const element = source && link(url, new Inline(label).nodes);
    if (element) this.#show(element, start, this.#at - 1 + source.length);
  }

  #address(url, start) {
    this.#at = start + url.length;
    const element = link(url, [url]);
    if (element) this.#show(element, start, this.#at);
  }

  /**
   * A run of * or _, or ~~: the end of what the nearest such mark began, else a beginning. Within a
   * word a * multiplies more often than it stresses, though CommonMark has it otherwise.
   */
  #emphasis(run, start) {
    const [before, after] = [this.#text[start - 1] ?? " ", this.#text[this.#at] ?? " "];
    if (run.length > 3 || (run[0] === "~" && run.length !== 2)) return;
    const inWords = run[0] !== "_" && run.length > 1;
    const ends = /\S/.test(before) && (inWords || !/\w/.test(after));
    const begins = /\S/.test(after) && (inWords || !/\w/.test(before));
    this.#show("", start, this.#at);
    const rest = ends ? this.#close(run) : run;
    if (begins) this.#begin(rest);
    else this.#push(rest);
  }

  /** Make elements of what stands between marks of this run and the ones before; the rest of it. */
  #close(run) {
    const fits = ({ mark }) => (run.length === 2 ? mark === run : run.startsWith(mark));
    const begun = run ? this.#open.findLastIndex(fits) : -1;
    if (begun < 0) return run;
    const [{ mark, place }] = this.#open.splice(begun);
    const children = this.nodes.splice(place);
    this.nodes.push(h(TAGS[mark], {}, children.slice(1)));
    return this.#close(run.slice(mark.length));
  }

  #begin(run) {
    const marks = run.length === 3 ? [run.slice(1), run[0]] : [run];
    for (const mark of marks.filter(Boolean)) {
      this.#open.push({ mark, place: this.nodes.length });
      if (this.#open.length > OPEN) this.#open.shift();
      this.nodes.push(mark);
    }
  }
}

/** Where the runs of backticks begin, by their length, the last one first. */
function codeMarks(text) {
  const runs = new Map();
  for (const { 0: { length }, index } of text.matchAll(/`+/g)) {
    if (!runs.has(length)) runs.set(length, []);
    runs.get(length).push(index);
  }
  for (const places of runs.values()) places.reverse();
  return runs;
}

/** A link to the web, or null: a model may write `javascript:` as well. */
function link(url, children) {
  if (!/^(?:https?:\/\/|mailto:)/i.test(url) || !URL.canParse(url)) return null;
  return h("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow" }, children);
}
