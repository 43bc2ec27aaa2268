// Theme, numbers, and the unpacking of the drawing data.

const GUTTER = 148, AXIS = 24, HEAD = 20, INKS = 7, DOTS = 1, TINT = 0.42;
const $ = (root, selector) => root.querySelector(selector);

// ---- theme ----
const rootElement = document.documentElement;
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const views = [];
let colours = {};
function setTheme(name) {
  rootElement.dataset.theme = name;
  const style = getComputedStyle(rootElement);
  colours = {};
  for (const key of ["bg", "card", "text", "soft", "line", "grid", "band", "sel", "accent", "faint"]) {
    colours[key] = style.getPropertyValue("--" + key).trim();
  }
  colours.ink = [];
  for (let i = 0; i <= INKS; i++) colours.ink.push(style.getPropertyValue("--ink" + i).trim());
  for (const view of views) view.draw();
}
document.getElementById("theme").addEventListener("click", () =>
  setTheme(rootElement.dataset.theme === "dark" ? "light" : "dark"));
dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));

// ---- numbers ----
function duration(value, unit) {
  const steps = unit === "ns" ? [["ns", 1], ["µs", 1e3], ["ms", 1e6], ["s", 1e9]]
    : [["cyc", 1], ["k cyc", 1e3], ["M cyc", 1e6], ["G cyc", 1e9]];
  const best = steps.find((step) => Math.round(Math.abs(value) / step[1] * 100) < 100000) || steps[3];
  if (best[1] === 1 && Number.isInteger(value)) return value + " " + best[0];
  return (value / best[1]).toFixed(2) + " " + best[0];
}
function tickStep(span, count) {
  const rough = span / count, power = 10 ** Math.floor(Math.log10(rough));
  for (const m of [1, 2, 5, 10]) if (m * power >= rough) return m * power;
  return 10 * power;
}
function ranges(ids) {
  const sorted = [...new Set(ids)].sort((a, b) => a - b), parts = [];
  for (let i = 0; i < sorted.length;) {
    let j = i;
    while (j + 1 < sorted.length && sorted[j + 1] === sorted[j] + 1) j++;
    parts.push(i === j ? String(sorted[i]) : sorted[i] + "-" + sorted[j]);
    i = j + 1;
  }
  return parts.join(",");
}
function parseRanges(text) {
  const list = [];
  for (const part of text.split(",")) {
    const m = /^(\d+)(?:-(\d+))?$/.exec(part);
    if (!m || (m[2] !== undefined && +m[2] < +m[1])) return null;
    list.push([+m[1], m[2] === undefined ? +m[1] : +m[2]]);
  }
  return list;
}

// ---- data ----
async function unpack(meta, text) {
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const kinds = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f8: Float64Array };
  const data = {};
  for (const { name, type, length, offset } of meta.columns) {
    const size = +type[1], out = new Uint8Array(length * size);
    for (let b = 0; b < size; b++) {
      const plane = offset + b * length;
      for (let i = 0, o = b; i < length; i++, o += size) out[o] = bytes[plane + i];
    }
    data[name] = new kinds[type](out.buffer);
  }
  const rows = data.count.length, marks = data.scope.length;
  const first = new Uint32Array(rows + 1), start = new Float64Array(marks), longest = new Float64Array(rows);
  const active = new Float64Array(rows);
  let deepest = 0;
  for (let r = 0; r < rows; r++) {
    first[r + 1] = first[r] + data.count[r];
    let t = 0;
    for (let i = first[r]; i < first[r + 1]; i++) {
      start[i] = t += data.step[i];
      const length = data.length[i];
      if (length > longest[r]) longest[r] = length;
      if (data.depth[i] === 0) active[r] += length;
      else if (data.depth[i] > deepest) deepest = data.depth[i];
    }
  }
  return Object.assign(data, { rows, marks, first, start, longest, active, deepest });
}

// ---- how scopes look ----
// A colour mixed with the ground, as hatched scopes have it.
function tint(colour, share = TINT) {
  const ground = rgb(colours.card);
  return `rgb(${rgb(colour).map((part, k) => Math.round(ground[k] + (part - ground[k]) * share)).join(",")})`;
}
// Fill of a scope: its colour, or a tint of it with dots (hatch 1) or stripes that rise, fall or cross (2, 3, 4).
function fill(context, { ink, hatch }) {
  const colour = colours.ink[ink];
  if (!hatch) return colour;
  const key = colours.card + colour + hatch;
  if (!cache[key]) {
    const tile = document.createElement("canvas"), size = 7, c = tile.getContext("2d");
    tile.width = tile.height = size;
    c.fillStyle = tint(colour);
    c.fillRect(0, 0, size, size);
    c.strokeStyle = c.fillStyle = colour;
    c.lineWidth = 1.8;
    c.beginPath();
    if (hatch === DOTS) { c.arc(3.5, 3.5, 1.7, 0, 7); c.fill(); }
    for (let shift = hatch === DOTS ? 9 : -size; shift <= size; shift += size) {
      if (hatch !== 3) { c.moveTo(shift, size); c.lineTo(shift + size, 0); }
      if (hatch !== 2) { c.moveTo(shift, 0); c.lineTo(shift + size, size); }
    }
    c.stroke();
    cache[key] = context.createPattern(tile, "repeat");
  }
  return cache[key];
}
// The colour of a scope where there is no room for its hatch.
const plain = ({ ink, hatch }) => (hatch ? tint(colours.ink[ink], 0.62) : colours.ink[ink]);

function quoted(word) {
  return "'" + word.replaceAll("'", "'\\''") + "'";
}
function element(tag, text) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  return node;
}
const cache = {};
function rgb(colour) {
  if (!cache[colour]) {
    const context = document.createElement("canvas").getContext("2d");
    context.fillStyle = colour;
    const hex = context.fillStyle;
    cache[colour] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  }
  return cache[colour];
}
