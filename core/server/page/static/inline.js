// Markdown within a paragraph: code, emphasis, links, line breaks.

import { h } from "./dom.js";

// Lengths are bounded, so that no text takes time that grows with its square. Within a word a *
// multiplies more often than it stresses, though CommonMark has it otherwise.
const SPAN = new RegExp(
  [
    /(?<tick>`+)(?<code>[^`](?:.{0,2000}?[^`])??)\k<tick>(?!`)/,
    /\*\*(?=\S)(?<strong>.{1,2000}?)\*\*(?!\*)/,
    /(?<![\w_])__(?=\S)(?<strong2>.{1,2000}?)__(?!\w)/,
    /(?<!\w)\*(?=[^\s*])(?<em>[^*]{0,2000}?[^\s*])\*(?!\w)/,
    /(?<![\w_])_(?=[^\s_])(?<em2>[^_]{0,2000}?[^\s_])_(?!\w)/,
    /~~(?=\S)(?<del>.{1,2000}?)~~/,
    /!?\[(?<label>[^[\]\n]{1,1000})\]\((?<url>[^\s()]{1,2000}(?:\([^\s()]{0,200}\)[^\s()]{0,200})?)\)/,
    /(?<bare>https?:\/\/[^\s<>"'`]{1,2000}[^\s<>"'`.,;:!?)\]}*_])/,
    /\\(?<escaped>[!-/:-@[-`{-~])/,
    /(?<br> {2,}\n|\\\n|\n)/,
  ]
    .map((each) => each.source)
    .join("|"),
  "s",
);

/** The nodes of a text. */
export function inline(text, depth = 0) {
  const nodes = [];
  let rest = text;
  for (let found; depth < 8 && (found = SPAN.exec(rest)); ) {
    if (found.index) nodes.push(rest.slice(0, found.index));
    nodes.push(node(found.groups, found[0], depth + 1));
    rest = rest.slice(found.index + found[0].length);
  }
  if (rest) nodes.push(rest);
  return nodes;
}

function node(groups, source, depth) {
  const { code, strong = groups.strong2, em = groups.em2, del, label, url, bare } = groups;
  if (code !== undefined) return h("code", {}, code);
  if (strong !== undefined) return h("strong", {}, inline(strong, depth));
  if (em !== undefined) return h("em", {}, inline(em, depth));
  if (del !== undefined) return h("del", {}, inline(del, depth));
  if (label !== undefined) return link(url, inline(label, depth)) ?? source;
  if (bare !== undefined) return link(bare, [bare]) ?? source;
  if (groups.escaped !== undefined) return groups.escaped;
  return groups.br.length > 1 ? h("br") : "\n";
}

/** A link to the web, or null: a model may write `javascript:` as well. */
function link(url, children) {
  if (!/^(?:https?:\/\/|mailto:)/i.test(url) || !URL.canParse(url)) return null;
  return h("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow" }, children);
}
