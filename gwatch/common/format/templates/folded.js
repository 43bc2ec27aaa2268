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
    c.fillText(`${n} other block${n > 1 ? "s" : ""}, folded: a click opens one`, 6, top - HEAD / 2);
    const from = Math.max(0, Math.floor((AXIS - top) / STRIP)), to = Math.min(n, Math.ceil((h - top) / STRIP));
    for (let k = from; k < to; k++) this.paintStrip(c, this.folded[k], top + k * STRIP, w);
  }

  paintStrip(c, block, y, w) {
    c.fillStyle = colours.soft;
    c.textAlign = "right";
    c.fillText("block " + block, GUTTER - 8, y + STRIP / 2);
    const { data } = this, wide = Math.max(1, Math.floor(w - GUTTER)), rows = this.byBlock().get(block);
    const scale = wide / (this.t1 - this.t0), inks = colours.ink.map(rgb), ground = rgb(colours.card);
    const sums = new Float32Array(wide * 4);
    for (const r of rows) {
      for (let m = this.firstMark(r); m < data.first[r + 1] && data.start[m] <= this.t1; m++) {
        if (!this.shown[data.scope[m]] || data.depth[m]) continue;
        const a = Math.floor((data.start[m] - this.t0) * scale);
        const b = Math.floor((data.start[m] + data.length[m] - this.t0) * scale);
        const colour = inks[ink(data.scope[m])];
        for (let x = Math.max(0, a); x <= Math.min(wide - 1, b); x++) {
          for (let k = 0; k < 3; k++) sums[4 * x + k] += colour[k];
          sums[4 * x + 3]++;
        }
      }
    }
    const image = new ImageData(wide, 1);
    for (let x = 0; x < wide; x++) {
      const hits = sums[4 * x + 3], share = Math.min(1, hits / rows.length);
      for (let k = 0; k < 3; k++) {
        image.data[4 * x + k] = hits ? ground[k] + (sums[4 * x + k] / hits - ground[k]) * share : ground[k];
      }
      image.data[4 * x + 3] = 255;
    }
    const layer = document.createElement("canvas");
    layer.width = wide;
    layer.height = 1;
    layer.getContext("2d").putImageData(image, 0, 0);
    c.drawImage(layer, GUTTER, y + 1, wide, STRIP - 3);
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
