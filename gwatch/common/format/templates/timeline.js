// Rows, time axis and everything that is painted.

const STRIP = 13, STRIPS = 12;

class Timeline {
  constructor(root, meta, data) {
    Object.assign(this, { root, meta, data });
    this.canvas = $(root, ".time");
    this.over = $(root, ".overview");
    this.tip = $(root, ".tip");
    this.shown = meta.scopes.map(() => true);
    this.span = Math.max(1, meta.span);
    this.t0 = 0;
    this.t1 = this.span;
    this.top = 0;
    this.rowHeight = 0;
    this.selection = null;
    this.focus = null;
    this.hover = null;
    this.queued = false;
    this.releasers = new Map();
    this.legend();
    this.controls();
    this.gestures();
    const many = this.blockCount() > 1 && data.rows > 16;
    this.filter.value = many ? "block " + meta.typical_block : "";
    this.arrange();
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  blockCount() {
    return new Set(this.data.block).size;
  }

  legend() {
    const box = $(this.root, ".legend");
    const order = this.meta.scopes.map((s, i) => i).sort((a, b) => {
      const ra = this.meta.roles.indexOf(this.meta.scopes[a].role);
      const rb = this.meta.roles.indexOf(this.meta.scopes[b].role);
      return (ra < 0 ? 99 : ra) - (rb < 0 ? 99 : rb) || a - b;
    });
    let last = null;
    for (const i of order) {
      const scope = this.meta.scopes[i];
      if (this.meta.roles.length && scope.role !== last) box.append(element("b", scope.role || "other"));
      last = scope.role;
      const label = element("label"), tick = element("input"), swatch = element("i");
      tick.type = "checkbox";
      tick.checked = true;
      tick.addEventListener("change", () => { this.shown[i] = tick.checked; this.draw(); });
      swatch.className = `ink${scope.ink} hatch${scope.hatch}${scope.mark ? " mark" : ""}`;
      label.append(tick, swatch, scope.label);
      box.append(label);
    }
    const notes = this.meta.roles.length > 1 ? ["pale bar: a wait, in the colour of what ended it"] : [];
    if (this.meta.scopes.some((scope) => scope.hatch > DOTS)) notes.push("striped: a wait that was recorded");
    if (notes.length) box.append(element("span", notes.join(" · ")));
  }

  controls() {
    const on = (selector, action) => $(this.root, selector).addEventListener("click", action);
    this.filter = $(this.root, ".filter");
    this.filter.addEventListener("input", () => this.arrange());
    this.order = $(this.root, ".order");
    this.order.addEventListener("change", () => this.arrange());
    const typical = $(this.root, ".typical");
    typical.textContent = "Block " + this.meta.typical_block + " (typical)";
    typical.hidden = this.blockCount() < 2;
    on(".typical", () => { this.filter.value = "block " + this.meta.typical_block; this.arrange(); });
    on(".all", () => { this.filter.value = ""; this.arrange(); });
    on(".zoom-in", () => this.zoom(0.5));
    on(".zoom-out", () => this.zoom(2));
    on(".reset", () => this.reset());
    on(".fit", () => this.zoomToSelection());
    on(".copy", () => this.copy(this.token()));
    on(".command", () => this.copy(this.commandLine()));
  }

  // Rows that pass the filter, in display order, under one head per role (or SM).
  arrange() {
    const { data, meta } = this, keep = this.predicate(this.filter.value);
    this.filter.classList.toggle("bad", keep === null);
    if (keep === null) return;
    const rows = [];
    for (let r = 0; r < data.rows; r++) if (keep(r)) rows.push(r);
    const order = this.order.value, begin = (r) => (data.count[r] ? data.start[data.first[r]] : Infinity);
    const key = { id: () => 0, role: (r) => data.role[r], sm: (r) => data.sm[r], start: begin,
      active: (r) => -data.active[r], block: (r) => data.block[r], warpgroup: (r) => this.warpgroup(r),
      cluster: (r) => this.cluster(r) }[order];
    rows.sort((a, b) => key(a) - key(b) || a - b);
    this.groups = [];
    const name = order === "role" && meta.roles.length ? (r) => meta.roles[data.role[r]] || "no role"
      : order === "sm" ? (r) => (data.sm[r] ? "SM " + (data.sm[r] - 1) : "SM unknown")
      : order === "cluster" ? (r) => "cluster " + this.cluster(r)
      : order === "block" ? (r) => "block " + data.block[r]
      : order === "warpgroup" ? (r) => `block ${data.block[r]}, warpgroup ${data.warp[r] >> 2}` : () => "";
    for (let i = 0; i < rows.length; i++) {
      const label = name(rows[i]), last = this.groups[this.groups.length - 1];
      if (!last || last.label !== label) this.groups.push({ label, from: i, to: i + 1 });
      else last.to = i + 1;
    }
    this.rows = rows;
    this.place = new Map(rows.map((r, i) => [r, i]));
    this.selection = this.link = this.note = null;
    this.folded = this.othersFolded(rows);
    const wanted = AXIS + this.heads() + rows.length * this.tallest() + this.foldHeight(STRIPS);
    this.canvas.style.height = Math.max(120, Math.min(this.folded.length ? 600 : 520, wanted)) + "px";
    this.extent = this.filter.value.trim() ? this.extentOf(rows) : [0, this.span];
    [this.t0, this.t1] = this.extent;
    this.fitRows();
    this.draw();
  }

  // First to last thing that the rows recorded, with a margin.
  extentOf(rows, share = 0.02) {
    const { data } = this;
    let low = Infinity, high = -Infinity;
    for (const r of rows) {
      for (let m = data.first[r]; m < data.first[r + 1]; m++) {
        low = Math.min(low, data.start[m]);
        high = Math.max(high, data.start[m] + data.length[m]);
      }
    }
    if (high < low) return [0, this.span];
    const margin = share && Math.max(2, (high - low) * share);
    return [Math.max(0, low - margin), Math.min(this.span, high + margin)];
  }

  predicate(text) {
    const tests = [], words = text.trim().split(/\s+/).filter(Boolean), { data, meta } = this;
    const columns = { block: (r) => data.block[r], warp: (r) => data.warp[r], sm: (r) => data.sm[r] - 1,
      cluster: (r) => this.cluster(r), wg: (r) => data.warp[r] >> 2, warpgroup: (r) => data.warp[r] >> 2, tid: (r) => this.tid(r), thread: (r) => this.tid(r) };
    for (let i = 0; i < words.length; i += 2) {
      const word = words[i].toLowerCase().replace(/s$/, "");
      if (word === "role") {
        const wanted = (words[i + 1] || "").toLowerCase();
        tests.push((r) => (meta.roles[data.role[r]] || "").toLowerCase().includes(wanted));
        continue;
      }
      if (word === "cluster" && !meta.cluster) return null;
      const list = columns[word] && words[i + 1] ? parseRanges(words[i + 1]) : null;
      if (!list) return null;
      tests.push((r) => list.some(([a, b]) => columns[word](r) >= a && columns[word](r) <= b));
    }
    return (r) => tests.every((test) => test(r));
  }

  tid(r) {
    const { data, meta } = this, lane = data.lane[r] - 1;
    return data.block[r] * meta.block_size + data.warp[r] * 32 + Math.max(0, lane);
  }

  // Number of a row's cluster in the launch, x fastest.
  cluster(r) {
    const { cluster, grid } = this.meta, block = this.data.block[r];
    const at = [block % grid[0], Math.floor(block / grid[0]) % grid[1], Math.floor(block / (grid[0] * grid[1]))];
    const [x, y, z] = at.map((b, k) => Math.floor(b / cluster[k]));
    return x + Math.ceil(grid[0] / cluster[0]) * (y + Math.ceil(grid[1] / cluster[1]) * z);
  }

  // Four warps of a block, counted over the launch.
  warpgroup(r) {
    const { data, meta } = this;
    return data.block[r] * Math.ceil(meta.warps_per_block / 4) + (data.warp[r] >> 2);
  }

  name(r) {
    const { data } = this, base = "b" + data.block[r] + " w" + data.warp[r];
    return data.lane[r] ? base + " t" + (data.warp[r] * 32 + data.lane[r] - 1) : base;
  }

  heads() {
    return this.groups.some((g) => g.label) ? this.groups.length * HEAD : 0;
  }

  fitRows() {
    const room = this.height() - AXIS - this.heads() - this.foldHeight(STRIPS);
    const low = this.heads() > 200 ? 6 : 0.005;
    this.rowHeight = Math.max(low, Math.min(this.tallest(), room / Math.max(1, this.rows.length)));
    this.top = 0;
  }

  // Rows grow with the nesting they have to show.
  tallest() {
    return 26 + 9 * Math.min(4, this.data.deepest);
  }

  width() { return this.canvas.clientWidth; }
  height() { return this.canvas.clientHeight; }
  total() { return this.heads() + this.rows.length * this.rowHeight + this.foldHeight(); }
  x(t) { return GUTTER + (t - this.t0) / (this.t1 - this.t0) * (this.width() - GUTTER); }
  time(x) { return this.t0 + (x - GUTTER) / (this.width() - GUTTER) * (this.t1 - this.t0); }

  // Top of display row i, and the display row at y (-1 for none).
  y(i, group) {
    const heads = this.heads() ? (group + 1) * HEAD : 0;
    return AXIS + heads + i * this.rowHeight - this.top;
  }
  rowAt(y) {
    for (let g = 0; g < this.groups.length; g++) {
      const { from, to } = this.groups[g];
      if (y < this.y(from, g)) return -1;
      if (y < this.y(to, g)) return Math.min(to - 1, from + Math.floor((y - this.y(from, g)) / this.rowHeight));
    }
    return -1;
  }
  groupOf(i) {
    return this.groups.findIndex((g) => i < g.to);
  }

  draw() {
    if (this.queued || this.root.hidden || !this.rows) return;
    this.queued = true;
    requestAnimationFrame(() => { this.queued = false; this.paint(); });
  }

  prepare(canvas) {
    const ratio = window.devicePixelRatio || 1, w = canvas.clientWidth, h = canvas.clientHeight;
    if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) {
      canvas.width = Math.round(w * ratio);
      canvas.height = Math.round(h * ratio);
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = '11.5px system-ui, -apple-system, "Segoe UI", Roboto, Arial, "DejaVu Sans", sans-serif';
    context.textBaseline = "middle";
    return context;
  }

  paint() {
    const c = this.prepare(this.canvas), w = this.width(), h = this.height();
    this.top = Math.max(0, Math.min(this.top, this.total() - (h - AXIS)));
    c.fillStyle = colours.card;
    c.fillRect(0, 0, w, h);
    this.paintGrid(c, w, h);
    c.save();
    c.beginPath();
    c.rect(0, AXIS, w, h - AXIS);
    c.clip();
    for (let g = 0; g < this.groups.length; g++) this.paintGroup(c, g, w, h);
    this.paintFolded(c, w, h);
    c.restore();
    this.paintSelection(c, w, h);
    this.paintLink(c);
    this.paintOverview();
    this.describe();
  }

  paintGrid(c, w, h) {
    const step = tickStep(this.t1 - this.t0, Math.max(2, (w - GUTTER) / 110));
    c.fillStyle = colours.soft;
    c.strokeStyle = colours.grid;
    c.textAlign = "center";
    c.beginPath();
    // Counted, not added up: where times are so far apart that a step is lost in them, that would never end.
    for (let first = Math.ceil(this.t0 / step), i = 0; (first + i) * step <= this.t1 && i < w; i++) {
      const t = (first + i) * step;
      const x = Math.round(this.x(t)) + 0.5;
      c.moveTo(x, AXIS - 4);
      c.lineTo(x, h);
      if (x < w - 26) c.fillText(duration(Math.round(t * 1000) / 1000, this.meta.unit), Math.max(x, GUTTER + 8), 10);
    }
    c.stroke();
    c.strokeStyle = colours.line;
    c.beginPath();
    c.moveTo(GUTTER - 0.5, AXIS);
    c.lineTo(GUTTER - 0.5, h);
    c.stroke();
  }

  paintGroup(c, g, w, h) {
    const group = this.groups[g], height = this.rowHeight, headed = this.heads() > 0;
    const y0 = this.y(group.from, g), y1 = this.y(group.to, g);
    if (y1 < AXIS || y0 - HEAD > h) return;
    if (headed) {
      c.fillStyle = colours.band;
      c.fillRect(0, y0 - HEAD, w, HEAD);
      c.fillStyle = colours.text;
      c.textAlign = "left";
      c.font = "600 " + c.font.replace(/^600 /, "");
      c.fillText(group.label + "  (" + (group.to - group.from) + ")", 6, y0 - HEAD / 2);
      c.font = c.font.replace(/^600 /, "");
    }
    const from = Math.max(group.from, group.from + Math.floor((AXIS - y0) / height));
    const to = Math.min(group.to, group.from + Math.ceil((h - y0) / height));
    if (height >= 1.5) this.paintRows(c, g, from, to, w);
    else this.paintDense(c, g, from, to, w, Math.max(AXIS, y0), Math.min(h, y1));
    const every = Math.max(1, Math.ceil(13 / height));
    c.fillStyle = colours.soft;
    c.textAlign = "right";
    for (let i = from; i < to; i++) {
      if ((i - group.from) % every) continue;
      c.fillText(this.name(this.rows[i]), GUTTER - 8, this.y(i, g) + Math.min(26, Math.max(13, height)) / 2);
    }
  }

  // Whether a scope stands out: all do unless a site is pointed at.
  lit(scope) {
    return this.focus === null || this.meta.scopes[scope].sites.includes(this.focus);
  }

  // First mark of a row that may reach into the window.
  firstMark(r) {
    const { data } = this, limit = this.t0 - data.longest[r];
    let low = data.first[r], high = data.first[r + 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (data.start[middle] < limit) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  paintRows(c, g, from, to, w) {
    const { data, meta } = this, height = this.rowHeight, pad = height >= 6 ? 1 : 0;
    const scale = (w - GUTTER) / (this.t1 - this.t0), seen = meta.scopes.length > 1;
    const step = Math.min(9, height / (Math.min(4, data.deepest) + 2));
    for (let i = from; i < to; i++) {
      const r = this.rows[i], y = this.y(i, g);
      const lastX = new Float64Array(meta.scopes.length).fill(-1);
      let reach = Infinity, until = 0;
      for (let m = this.firstMark(r); m < data.first[r + 1] && data.start[m] <= this.t1; m++) {
        const scope = data.scope[m];
        if (!this.shown[scope]) continue;
        const a = Math.max(GUTTER, GUTTER + (data.start[m] - this.t0) * scale);
        const b = GUTTER + (data.start[m] + data.length[m] - this.t0) * scale;
        if (!meta.scopes[scope].mark) {
          if (height >= 8 && a > reach + 3) {
            const left = Math.max(GUTTER, reach), mark = a - left >= 6 ? this.waitedFor(r, m, until) : -1;
            this.waitLine(c, left, a, y + height / 2, height, mark);
            if (height >= 15 && a - left > 48) this.waitName(c, mark, left, a, y + height / 2);
          }
          reach = reach === Infinity ? b : Math.max(reach, b);
          until = Math.max(until, data.start[m] + data.length[m]);
        }
        if (b < GUTTER) continue;
        const wide = Math.max(meta.scopes[scope].mark ? 2 : 1, Math.min(w, b) - a);
        if (a + wide <= lastX[scope]) continue;
        lastX[scope] = a + wide;
        const inset = height >= 10 ? Math.min(data.depth[m] * step, height - 6) : 0;
        c.globalAlpha = this.lit(scope) ? 1 : 0.18;
        c.fillStyle = wide < 4 ? plain(meta.scopes[scope]) : fill(c, meta.scopes[scope]);
        // A hair of the row's ground between neighbours keeps back-to-back intervals apart.
        const body = wide > 4 ? wide - 1 : wide;
        c.fillRect(a, y + pad + inset, body, Math.max(1, height - 2 * pad - inset));
        c.globalAlpha = 1;
        const nested = m + 1 < data.first[r + 1] && data.depth[m + 1] > data.depth[m];
        const free = nested ? GUTTER + (data.start[m + 1] - this.t0) * scale - a : wide;
        if (seen && height >= 15 && free > 36) this.label(c, scope, a, y + inset, free, height - inset);
      }
    }
  }

  // What the wait before mark m of row r was for: the other role's work that ended last in it; -1 for nothing known.
  waitedFor(r, m, until) {
    if (!this.releasers.has(m)) this.releasers.set(m, this.releaser(r, until, this.data.start[m]).mark);
    return this.releasers.get(m);
  }

  // A row that waits between two regions shows as a thin line; as a bar in the colour of what it was for, if known.
  waitLine(c, from, to, y, height, mark) {
    if (mark < 0) {
      c.fillStyle = colours.line;
      c.fillRect(from + 1, y - 0.5, to - from - 2, 1.5);
      return;
    }
    const thick = Math.max(3, Math.min(8, Math.round(height / 3)));
    c.globalAlpha = 0.34;
    c.fillStyle = colours.ink[this.meta.scopes[this.data.scope[mark]].ink];
    c.fillRect(from + 1, y - thick / 2, to - from - 2, thick);
    c.globalAlpha = 1;
  }

  // … and where there is room, its name.
  waitName(c, mark, from, to, y) {
    if (mark < 0) return;
    const text = "for " + this.meta.scopes[this.data.scope[mark]].label, room = Math.floor((to - from - 10) / 6.2);
    if (room < 7 && room < text.length) return;
    const shown = text.length > room ? text.slice(0, room - 1) + "…" : text;
    const wide = Math.min(to - from - 4, c.measureText(shown).width + 8), middle = (from + to) / 2;
    c.fillStyle = colours.card;
    c.fillRect(middle - wide / 2, y - 7, wide, 14);
    c.fillStyle = colours.soft;
    c.textAlign = "center";
    c.fillText(shown, middle, y + 0.5);
  }

  label(c, scope, x, y, wide, height) {
    const room = Math.floor((wide - 9) / 6.2), text = this.meta.scopes[scope].label;
    if (room < Math.min(8, text.length)) return;
    const look = this.meta.scopes[scope], [red, green, blue] = rgb(look.hatch ? tint(colours.ink[look.ink]) : plain(look));
    const shown = text.length > room ? text.slice(0, room - 1) + "…" : text;
    if (look.hatch) {
      // Letters on stripes are hard to read: they get a plate.
      c.fillStyle = tint(colours.ink[look.ink]);
      c.fillRect(x + 2, y + height / 2 - 7, Math.min(wide - 4, c.measureText(shown).width + 7), 14);
    }
    c.fillStyle = 0.299 * red + 0.587 * green + 0.114 * blue > 130 ? "#10151b" : "#ffffff";
    c.textAlign = "left";
    c.fillText(shown, x + 5, y + height / 2 + 0.5);
  }

  // Many rows per pixel: every pixel shows the mean of what its rows do there.
  paintDense(c, g, from, to, w, y0, y1) {
    const { data } = this, ratio = window.devicePixelRatio || 1;
    const wide = Math.max(1, Math.floor((w - GUTTER) * ratio)), high = Math.max(1, Math.ceil((y1 - y0) * ratio));
    const hit = new Uint32Array(wide * high), red = new Float32Array(wide * high);
    const green = new Float32Array(wide * high), blue = new Float32Array(wide * high);
    const rowsIn = new Uint32Array(high), inks = this.meta.scopes.map((s) => rgb(plain(s))), ground = rgb(colours.card);
    const scale = wide / (this.t1 - this.t0);
    for (let i = from; i < to; i++) {
      const r = this.rows[i], top = (this.y(i, g) - y0) * ratio;
      const first = Math.max(0, Math.floor(top));
      const last = Math.max(first, Math.min(high - 1, Math.ceil(top + this.rowHeight * ratio) - 1));
      if (first >= high) continue;
      for (let y = first; y <= last; y++) rowsIn[y]++;
      for (let m = this.firstMark(r); m < data.first[r + 1] && data.start[m] <= this.t1; m++) {
        const scope = data.scope[m];
        if (!this.shown[scope]) continue;
        const a = Math.max(0, Math.floor((data.start[m] - this.t0) * scale));
        const b = Math.min(wide - 1, Math.floor((data.start[m] + data.length[m] - this.t0) * scale));
        const [cr, cg, cb] = inks[scope];
        for (let y = first; y <= last; y++) {
          for (let p = y * wide + a, end = y * wide + b; p <= end; p++) {
            hit[p]++;
            red[p] += cr;
            green[p] += cg;
            blue[p] += cb;
          }
        }
      }
    }
    const image = new ImageData(wide, high), out = image.data;
    for (let y = 0, p = 0; y < high; y++) {
      for (let x = 0; x < wide; x++, p++) {
        const n = hit[p], share = rowsIn[y] ? Math.min(1, n / rowsIn[y]) : 0, o = p * 4;
        out[o] = n ? ground[0] + (red[p] / n - ground[0]) * share : ground[0];
        out[o + 1] = n ? ground[1] + (green[p] / n - ground[1]) * share : ground[1];
        out[o + 2] = n ? ground[2] + (blue[p] / n - ground[2]) * share : ground[2];
        out[o + 3] = 255;
      }
    }
    const layer = document.createElement("canvas");
    layer.width = wide;
    layer.height = high;
    layer.getContext("2d").putImageData(image, 0, 0);
    c.drawImage(layer, GUTTER, y0, wide / ratio, high / ratio);
  }

  paintSelection(c, w, h) {
    const s = this.selection;
    if (s) {
      const a = s.t0 === null ? GUTTER : Math.max(GUTTER, this.x(s.t0));
      const b = s.t0 === null ? w : Math.min(w, this.x(s.t1));
      let y0 = AXIS, y1 = h;
      if (s.rows) {
        y0 = this.y(s.rows[0], this.groupOf(s.rows[0]));
        y1 = this.y(s.rows[1], this.groupOf(s.rows[1])) + this.rowHeight;
      }
      c.fillStyle = colours.sel;
      c.fillRect(a, Math.max(AXIS, y0), b - a, Math.min(h, y1) - Math.max(AXIS, y0));
      c.strokeStyle = colours.accent;
      c.strokeRect(a + 0.5, Math.max(AXIS, y0) + 0.5, b - a - 1, Math.min(h, y1) - Math.max(AXIS, y0) - 1);
    }
    if (this.hover && this.hover.x > GUTTER) {
      c.strokeStyle = colours.soft;
      c.setLineDash([3, 3]);
      c.beginPath();
      c.moveTo(this.hover.x + 0.5, AXIS);
      c.lineTo(this.hover.x + 0.5, h);
      c.stroke();
      c.setLineDash([]);
    }
  }

  paintOverview() {
    const c = this.prepare(this.over), w = this.over.clientWidth, h = this.over.clientHeight, { bins, peak } =
      this.meta.concurrency;
    c.fillStyle = colours.band;
    c.fillRect(0, 0, w, h);
    const room = w - GUTTER, step = room / bins.length;
    c.fillStyle = colours.ink[INKS];
    bins.forEach((n, i) => {
      const tall = peak ? n / peak * (h - 6) : 0;
      c.fillRect(GUTTER + i * step, h - tall, Math.ceil(step), tall);
    });
    c.fillStyle = colours.soft;
    c.textAlign = "right";
    c.fillText(peak ? "in regions, peak " + peak.toLocaleString("en") : "whole launch", GUTTER - 8, h / 2);
    const a = GUTTER + this.t0 / this.span * room, b = GUTTER + this.t1 / this.span * room;
    c.fillStyle = colours.sel;
    c.fillRect(a, 0, Math.max(2, b - a), h);
    c.strokeStyle = colours.accent;
    c.strokeRect(a + 0.5, 0.5, Math.max(2, b - a) - 1, h - 1);
  }

  describe() {
    const s = this.selection, unit = this.meta.unit, total = this.data.rows;
    const noun = total === 1 ? "row" : "rows", all = total.toLocaleString("en");
    let rows = `${this.rows.length === total ? "" : this.rows.length.toLocaleString("en") + " of "}${all} ${noun}`;
    if (!this.rows.length) rows = `none of ${all} ${noun} is what the filter asks for`;
    else if (this.rowHeight <= 0.5) rows += `, ${Math.round(1 / this.rowHeight)} to a pixel (mean colours)`;
    let text = `${rows} · ${duration(Math.round(this.t0), unit)} to ${duration(Math.round(this.t1), unit)}`;
    if (this.note) text = this.note;
    if (s) {
      text += ` · selected ${s.t0 === null ? "any time" : duration(Math.round(s.t1 - s.t0), unit)}`;
      const n = s.rows ? s.rows[1] - s.rows[0] + 1 : 0;
      if (n) text += ` × ${n} row${n > 1 ? "s" : ""}`;
    }
    $(this.root, ".state").textContent = text;
    for (const name of [".copy", ".command"]) $(this.root, name).hidden = !s;
    $(this.root, ".fit").hidden = !s || s.t0 === null;
  }
}
