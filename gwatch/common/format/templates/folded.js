// Blocks that are not open: one strip each below the open block's rows, opened by a click.

class Folding extends Timeline {
  byBlock() {
    if (!this.blocks) {
      this.blocks = new Map();
      for (let r = 0; r < this.data.rows; r++) {
        if (!this.blocks.has(this.data.block[r])) this.blocks.set(this.data.block[r], []);
        this.blocks.get(this.data.block[r]).push(r);
      }
    }
    return this.blocks;
  }

  // The blocks without a row on display, when the filter names blocks and nothing else.
  othersFolded(rows) {
    if (!/^\s*blocks?\s+\S+\s*$/i.test(this.filter.value)) return [];
    const open = new Set(rows.map((r) => this.data.block[r]));
    return [...this.byBlock().keys()].filter((block) => !open.has(block)).sort((a, b) => a - b);
  }

  foldHeight(most = Infinity) {
    const n = this.folded.length;
    return n ? HEAD + STRIP * Math.min(n, most) + 4 : 0;
  }
  foldTop() {
    return AXIS + this.heads() + this.rows.length * this.rowHeight + HEAD - this.top;
  }

  // The folded block at y; -1 for none.
  foldAt(y) {
    const k = Math.floor((y - this.foldTop()) / STRIP);
    return y > AXIS && k >= 0 && k < this.folded.length ? this.folded[k] : -1;
  }
  unfold(block) {
    const [word, list] = this.filter.value.trim().split(/\s+/);
    this.filter.value = `${word} ${list},${block}`;
    this.arrange();
  }

  paintFolded(c, w, h) {
    const n = this.folded.length, top = this.foldTop();
    if (!n || top - HEAD > h) return;
    c.fillStyle = colours.band;
    c.fillRect(0, top - HEAD, w, HEAD);
    c.fillStyle = colours.soft;
    c.textAlign = "left";
    const bands = this.meta.roles.length > 1 ? "each role's rows" : "the rows";
    c.fillText(`${n} other block${n > 1 ? "s" : ""}, folded: height is the share of ${bands}; a click opens one`, 6, top - HEAD / 2);
    const from = Math.max(0, Math.floor((AXIS - top) / STRIP)), to = Math.min(n, Math.ceil((h - top) / STRIP));
    for (let k = from; k < to; k++) this.paintStrip(c, this.folded[k], top + k * STRIP, w);
  }

  paintStrip(c, block, y, w) {
    c.fillStyle = colours.soft;
    c.textAlign = "right";
    c.fillText("block " + block, GUTTER - 8, y + STRIP / 2);
    const wide = Math.max(1, Math.floor(w - GUTTER)), image = new ImageData(wide, STRIP - 3);
    const roles = new Map();
    for (const r of this.byBlock().get(block)) {
      const role = this.data.role[r];
      if (!roles.has(role)) roles.set(role, []);
      roles.get(role).push(r);
    }
    const bands = [...roles.keys()].sort((a, b) => a - b).map((role) => roles.get(role));
    let top = 0;
    bandHeights(bands.map((rows) => rows.length), STRIP - 3).forEach((high, k) => {
      this.stack(image, bands[k], top, high);
      top += high;
    });
    const layer = document.createElement("canvas");
    layer.width = wide;
    layer.height = STRIP - 3;
    layer.getContext("2d").putImageData(image, 0, 0);
    c.drawImage(layer, GUTTER, y + 1);
  }

  // The ways that scopes look, and which is each scope's.
  kinds() {
    if (!this.looks) {
      const names = this.meta.scopes.map(({ ink, hatch }) => `${ink} ${hatch}`), unique = [...new Set(names)];
      this.looks = { kinds: unique.map((name) => this.meta.scopes[names.indexOf(name)]),
        kindOf: names.map((name) => unique.indexOf(name)) };
    }
    return this.looks;
  }

  // What rows do at each pixel, as a stack: the height of a colour is the share of the rows in it.
  stack(image, rows, top, high) {
    const { data } = this, wide = image.width, scale = wide / (this.t1 - this.t0);
    const { kinds, kindOf } = this.kinds(), counts = new Uint32Array(wide * kinds.length);
    const words = new Uint32Array(image.data.buffer);
    for (const r of rows) {
      for (let m = this.firstMark(r); m < data.first[r + 1] && data.start[m] <= this.t1; m++) {
        if (!this.shown[data.scope[m]] || data.depth[m]) continue;
        const a = Math.max(0, Math.floor((data.start[m] - this.t0) * scale)), kind = kindOf[data.scope[m]];
        const b = Math.min(wide - 1, Math.floor((data.start[m] + data.length[m] - this.t0) * scale));
        for (let x = a; x <= b; x++) counts[x * kinds.length + kind]++;
      }
    }
    const lit = new Set(this.meta.scopes.map((scope, i) => (this.lit(i) ? kindOf[i] : -1)));
    const inks = kinds.map((look, kind) =>
      rgb(plain(look)).reduce((word, part, k) => word | part << (8 * k), (lit.has(kind) ? 255 : 46) << 24));
    for (let x = 0; x < wide; x++) {
      let sum = 0, filled = 0, all = 0;
      for (let kind = 0; kind < kinds.length; kind++) all += counts[x * kinds.length + kind];
      for (let kind = 0; kind < kinds.length; kind++) {
        if (!counts[x * kinds.length + kind]) continue;
        // A row with several short intervals in one pixel counts more than once; whatever is there shows.
        sum += counts[x * kinds.length + kind];
        const level = Math.min(high, Math.max(filled + 1, Math.round(sum / Math.max(rows.length, all) * high)));
        for (; filled < level; filled++) words[(top + high - 1 - filled) * wide + x] = inks[kind];
      }
    }
  }

  describeFolded(block, at) {
    const { data, meta } = this, rows = this.byBlock().get(block), [low, high] = this.extentOf(rows, 0);
    const sm = data.sm[rows[0]] ? " · SM " + (data.sm[rows[0]] - 1) : "";
    this.tip.replaceChildren(element("strong", "block " + block + sm), element("div",
      `${rows.length} rows, ${duration(low, meta.unit)} to ${duration(high, meta.unit)}; a click opens it`));
    this.light(null);
    this.showTip(at);
  }
}

// Pixels of a strip for each role of a block: by its rows, but enough to be seen.
function bandHeights(sizes, high) {
  const all = sizes.reduce((a, b) => a + b, 0), least = Math.min(3, Math.floor(high / sizes.length));
  const heights = sizes.map((n) => Math.max(least, Math.round(n / all * high)));
  const most = heights.indexOf(Math.max(...heights));
  heights[most] += high - heights.reduce((a, b) => a + b, 0);
  return heights;
}
