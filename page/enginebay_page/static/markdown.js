// The Markdown that chat models write, as elements: no HTML, no images, nothing is fetched.

import { copyButton, h } from "./dom.js";
import { inline } from "./inline.js";
import { shortened } from "./shortened.js";

const FENCE = /^ {0,3}(`{3,}|~{3,}) *([^\s`]{0,40})/;
const HEADING = /^ {0,3}(#{1,6})(?: ([^]*))?$/;
const HEADING_END = /(?<![^ ])#+$/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;
const TABLE = /^(?:\| *)?(?::?-+:? *\| *)+(?::?-+:?)?$/;
const COLUMNS = 64; // of a table; what has more is shown as text
const DEEPEST = 12; // lists and quotes in each other

/** Show `text` in `container`. Blocks that are as they were stay: only the last one grows. */
export function renderMarkdown(container, text) {
  let shown = container.firstElementChild;
  for (const source of split(text)) {
    if (shown?.source !== source) {
      const element = block(source, 0);
      element.source = source;
      if (shown) shown.replaceWith(element);
      else container.append(element);
      shown = element;
    }
    shown = shown.nextElementSibling;
  }
  while (shown) [shown] = [shown.nextElementSibling, shown.remove()];
}

/** The sources of the blocks of a text. */
export function split(text) {
  const lines = text.split("\n");
  const blocks = [];
  for (let at = 0; at < lines.length; ) {
    if (!lines[at].trim()) at += 1;
    else {
      const end = endOf(lines, at);
      blocks.push(lines.slice(at, end).join("\n"));
      at = end;
    }
  }
  return blocks;
}

function endOf(lines, start) {
  const first = lines[start];
  const fence = FENCE.exec(first);
  if (fence) {
    let last = start + 1;
    while (last < lines.length && !closes(lines[last], fence[1])) last += 1;
    return Math.min(last + 1, lines.length);
  }
  if (HEADING.test(first) || RULE.test(first)) return start + 1;
  let goesOn = (line, at) => line.trim() && !begins(lines, at);
  if (QUOTE.test(first)) goesOn = (line) => QUOTE.test(line);
  else if (ITEM.test(first)) goesOn = (line, at) => staysInList(lines, at, first);
  else if (isTable(lines, start)) goesOn = (line) => line.includes("|");
  let end = start + 1;
  while (end < lines.length && goesOn(lines[end], end)) end += 1;
  return end;
}

const closes = (line, fence) =>
  line.trim().startsWith(fence) && !line.trim().replaceAll(fence[0], "");

const isTable = (lines, at) =>
  lines[at].includes("|") &&
  TABLE.test((lines[at + 1] ?? "").trim()) &&
  cells(lines[at]).length <= COLUMNS;

const begins = (lines, at) =>
  [FENCE, HEADING, RULE, QUOTE, ITEM].some((start) => start.test(lines[at])) || isTable(lines, at);

function staysInList(lines, at, first) {
  const line = lines[at];
  if (!line.trim()) {
    const next = lines.slice(at, at + 3).find((each) => each.trim());
    return next !== undefined && (/^ {2}/.test(next) || sameList(next, first));
  }
  if (/^ {2}/.test(line) || sameList(line, first)) return true;
  return lines[at - 1].trim() && !begins(lines, at);
}

const sameList = (line, first) =>
  ITEM.test(line) && !RULE.test(line) && isOrdered(line) === isOrdered(first);
const isOrdered = (line) => /^ *\d/.test(line);

function block(source, depth) {
  const lines = source.split("\n");
  const fence = FENCE.exec(lines[0]);
  if (fence) return code(lines, fence);
  const heading = HEADING.exec(lines[0]);
  if (heading) {
    const title = (heading[2] ?? "").trim().replace(HEADING_END, "").trim();
    return h(`h${Math.min(heading[1].length + 2, 6)}`, {}, inline(title));
  }
  if (RULE.test(lines[0])) return h("hr");
  if (depth < DEEPEST && QUOTE.test(lines[0])) {
    return h("blockquote", {}, blocks(lines.map((line) => line.replace(QUOTE, "")), depth));
  }
  if (depth < DEEPEST && ITEM.test(lines[0])) return list(lines, depth);
  if (isTable(lines, 0)) return table(lines);
  return h("p", {}, inline(source));
}

const blocks = (lines, depth) => split(lines.join("\n")).map((each) => block(each, depth + 1));

function code(lines, [, fence, language]) {
  const closed = lines.length > 1 && closes(lines.at(-1), fence);
  const text = lines.slice(1, closed ? -1 : undefined).join("\n");
  return h(
    "figure",
    { class: "code" },
    h("figcaption", {}, h("span", {}, shortened(language) || "text"), copyButton(() => text)),
    h("pre", { tabIndex: 0 }, h("code", {}, shortened(text))),
  );
}

function list(lines, depth) {
  const items = [];
  const outermost = ITEM.exec(lines[0])[1].length;
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1].length < outermost + 2 && !RULE.test(line)) {
      items.push([line.slice(item[0].length)]);
    } else items.at(-1).push(line.replace(/^ {1,4}/, ""));
  }
  const ordered = isOrdered(lines[0]);
  const props = ordered ? { start: Number.parseInt(lines[0], 10) } : {};
  return h(ordered ? "ol" : "ul", props, items.map((item) => h("li", {}, tight(item, depth))));
}

/** An item's blocks; where there is one paragraph, its text without a `p`. */
function tight(lines, depth) {
  const [first, ...rest] = blocks(lines, depth);
  const alone = first?.tagName === "P" && rest.every((each) => each.tagName !== "P");
  return [alone ? [...first.childNodes] : (first ?? ""), rest].flat();
}

function table(lines) {
  const [head, , ...rows] = lines.map(cells);
  const row = (tag, texts) => {
    const missing = head.length - texts.length; // one cell has the place of all of them
    const rest = missing > 0 ? h(tag, { colSpan: missing > 1 ? missing : null }) : null;
    return h("tr", {}, texts.slice(0, head.length).map((text) => h(tag, {}, inline(text))), rest);
  };
  const body = h("tbody", {}, rows.map((each) => row("td", each)));
  return h("div", { class: "table", tabIndex: 0 }, h("table", {}, h("thead", {}, row("th", head)), body));
}

const cells = (line) =>
  line.trim().replace(/^\||(?<!\\)\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim());
