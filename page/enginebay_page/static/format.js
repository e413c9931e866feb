// Numbers for people: in words, and the scales of plots.

const MIB = 2 ** 20;
const GIB = 2 ** 30;

/** Bytes of memory and files. */
export const size = (bytes) =>
  bytes < GIB ? `${Math.ceil(bytes / MIB)} MiB` : `${(bytes / GIB).toFixed(1)} GiB`;

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const whole = new Intl.NumberFormat("en");

/** A number for a glance: 1.2M. */
export const short = (value) => compact.format(value);

/** A number for a table: 1,234,567. */
export const exact = (value) => whole.format(value);

/** How long something takes, roughly. */
export function duration(seconds) {
  if (seconds < 90) return `${Math.ceil(seconds)} s`;
  return seconds < 5400 ? `${Math.ceil(seconds / 60)} min` : `${Math.ceil(seconds / 3600)} h`;
}

/** The next 1, 2 or 5 times a power of ten: a scale that changes seldom. */
export function niceTop(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * unit).find((top) => top >= value * 0.999);
}
