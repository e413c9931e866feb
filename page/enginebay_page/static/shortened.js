// What the view leaves out of texts that browsers lay out slowly. Copies and files have it all.

import { exact } from "./format.js";

const LINE = 10_000; // characters
const LONG_LINE = new RegExp(`(?<![^\\n])([^\\n]{${LINE}})([^\\n]+)`, "gu");
const MARKS = 16; // on one letter; languages need fewer than 8
const STACK = new RegExp(`([\\p{M}\\p{Cf}\\p{Emoji_Modifier}]{${MARKS}})[\\p{M}\\p{Cf}\\p{Emoji_Modifier}]+`, "gu");

/** A text without the ends of long lines, and without accents that stand on each other in numbers. */
export const shortened = (text) =>
  text
    .replace(LONG_LINE, (_, start, rest) => `${start}… (${exact(rest.length)} more characters in this line are not shown)`)
    .replace(STACK, "$1…");
