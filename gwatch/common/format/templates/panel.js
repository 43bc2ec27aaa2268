// Pointer, keyboard, selection, and what is under the pointer.

// A recorded value as what it may be: a number, signed, a float or a double, an address.
function readings(value) {
  const view = new DataView(new ArrayBuffer(8)), narrow = value < 1n << 32n;
  view.setBigUint64(0, value);
  const signed = narrow ? BigInt(view.getInt32(4)) : view.getBigInt64(0);
  const real = narrow ? view.getFloat32(4) : view.getFloat64(0);
  const parts = [`value ${value} = 0x${value.toString(16)}`];
  if (signed < 0n) parts.push(String(signed));
  // Small integers and addresses read as floats are noise: shown is what a program may have meant.
  if (real === 0 || (Math.abs(real) >= 1e-6 && Math.abs(real) < 1e9)) {
    if (value) parts.push((narrow ? "float " : "double ") + Number(real.toPrecision(narrow ? 7 : 12)));
  }
  return parts.join(" · ");
}

class Panel extends Folding {
  gestures() {
    const canvas = this.canvas;
    let press = null;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const at = place(event), amount = event.deltaY || event.deltaX;
      if (event.ctrlKey || event.metaKey) this.zoom(Math.exp(amount * 0.0022), this.time(at.x));
      else if (event.altKey) this.zoomRows(Math.exp(-amount * 0.0022), at.y);
      else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        this.pan(amount / (this.width() - GUTTER));
      } else { this.top += event.deltaY; this.draw(); }
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      press = place(event);
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const at = place(event);
      this.hover = at;
      if (press && Math.abs(at.x - press.x) + Math.abs(at.y - press.y) > 4) {
        this.tip.hidden = true;
        this.select(press, at);
      } else if (!press) this.point(at);
      this.draw();
    });
    canvas.addEventListener("pointerup", (event) => {
      const at = place(event);
      if (press && Math.abs(at.x - press.x) + Math.abs(at.y - press.y) <= 4) {
        this.selection = null;
        if (this.foldAt(at.y) >= 0) this.unfold(this.foldAt(at.y));
        this.draw();
      }
      press = null;
    });
    canvas.addEventListener("pointerleave", () => {
      this.hover = this.link = null;
      this.tip.hidden = true;
      this.light(null);
      this.draw();
    });
    canvas.addEventListener("dblclick", () => this.reset());
    canvas.addEventListener("keydown", (event) => this.key(event));
    const jump = (event) => {
      if (!(event.buttons & 1) && event.type !== "click") return;
      const box = this.over.getBoundingClientRect(), half = (this.t1 - this.t0) / 2;
      const t = (event.clientX - box.left - GUTTER) / (box.width - GUTTER) * this.span;
      this.window(t - half, t + half);
    };
    this.linkSites();
    this.linkLines();
    $(this.root, ".jump").addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      const found = this.jump(event.target.value.trim());
      event.target.classList.toggle("bad", !found);
    });
    for (const place of this.root.querySelectorAll("[data-to]")) {
      place.addEventListener("click", () => this.jump(place.dataset.to));
    }
    this.over.addEventListener("click", jump);
    this.over.addEventListener("pointermove", jump);
  }

  // A site in the table and its intervals in the picture point at each other; a click holds the site.
  linkSites() {
    const rows = [...this.root.querySelectorAll("tr[data-site]")];
    let held = null;
    for (const row of rows) {
      const site = +row.dataset.site;
      const focus = (value) => { this.focus = value; this.draw(); };
      const hold = () => {
        held = held === site ? null : site;
        for (const other of rows) other.classList.toggle("held", +other.dataset.site === held);
        focus(held);
      };
      row.addEventListener("pointerenter", () => focus(site));
      row.addEventListener("pointerleave", () => focus(held));
      row.addEventListener("click", hold);
      row.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        hold();
      });
    }
  }

  // The code opens where most time begins. A click on a source line marks every instruction that stems from it.
  linkLines() {
    const share = (row) => parseFloat(row.style.getPropertyValue("--share"));
    const sites = [...this.root.querySelectorAll(".listing tr[data-site]")];
    if (sites.length) this.reveal(sites.reduce((most, row) => (share(row) > share(most) ? row : most)));
    for (const cell of this.root.querySelectorAll(".listing td.line")) {
      cell.addEventListener("click", (event) => {
        event.stopPropagation();
        const number = cell.parentElement.dataset.line, on = !cell.parentElement.classList.contains("same");
        for (const row of this.root.querySelectorAll(".listing tr[data-line]")) {
          row.classList.toggle("same", on && number !== "-1" && row.dataset.line === number);
        }
      });
    }
  }

  // To a place as gwatch prints it ("b4 w2 +1.33 µs", either part), or to the next longest run of a scope.
  jump(text) {
    const { data, meta } = this;
    const match = /^(?:b(\d+) w(\d+)(?: t(\d+))?)?\s*(?:\+?([\d.]+)\s*(ns|µs|us|ms|s|cyc|k ?cyc|M ?cyc))?$/.exec(text);
    if (!text || !match) return this.jumpToScope(text);
    const [, block, warp, thread, amount, unit] = match;
    let row = -1;
    if (block !== undefined) {
      const lane = thread === undefined ? null : (+thread & 31) + 1;
      row = (this.byBlock().get(+block) || []).findIndex((r) => data.warp[r] === +warp && (lane === null || data.lane[r] === lane));
      if (row < 0) return false;
      row = this.byBlock().get(+block)[row];
    }
    const scale = { ns: 1, "µs": 1e3, us: 1e3, ms: 1e6, s: 1e9, cyc: 1, kcyc: 1e3, Mcyc: 1e6 }[(unit || "").replace(" ", "")];
    if (amount !== undefined && ((meta.unit === "ns") === unit.endsWith("cyc") || +amount * scale > this.span)) return false;
    this.show(row, amount === undefined ? null : +amount * scale);
    return true;
  }

  jumpToScope(text) {
    const { data, meta } = this, wanted = text.toLowerCase();
    const scope = meta.scopes.findIndex((s) => s.label.toLowerCase() === wanted);
    const near = scope >= 0 ? scope : meta.scopes.findIndex((s) => wanted && s.label.toLowerCase().includes(wanted));
    if (near < 0) return false;
    if (!this.found || this.found.scope !== near) {
      const marks = [];
      for (let m = 0; m < data.marks; m++) if (data.scope[m] === near) marks.push(m);
      marks.sort((a, b) => data.length[b] - data.length[a]);
      this.found = { scope: near, marks: marks.slice(0, 1000), at: -1 };
    }
    if (!this.found.marks.length) return false;
    this.found.at = (this.found.at + 1) % this.found.marks.length;
    const m = this.found.marks[this.found.at];
    let low = 0, high = data.rows;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (data.first[middle] <= m) low = middle;
      else high = middle;
    }
    const note = `${meta.scopes[near].label}: number ${this.found.at + 1} by length, ` +
      `${duration(data.length[m], meta.unit)} at ${this.name(low)} +${duration(data.start[m], meta.unit)}`;
    this.show(low, data.start[m], data.length[m], note);
    return true;
  }

  // Brings a row (-1: any) and a time (null: any) into view.
  show(row, time, length = 0, note = null) {
    if (row >= 0 && !this.place.has(row)) {
      this.filter.value = "block " + this.data.block[row];
      this.arrange();
    }
    if (time !== null) {
      const span = Math.max(length * 4, (this.extent[1] - this.extent[0]) / 20);
      this.window(time + length / 2 - span / 2, time + length / 2 + span / 2);
    }
    if (row >= 0) {
      const i = this.place.get(row), y = this.y(i, this.groupOf(i));
      if (y < AXIS || y + this.rowHeight > this.height()) this.top += y - this.height() / 2;
      this.hover = { x: time === null ? GUTTER : this.x(time), y: this.y(i, this.groupOf(i)) + this.rowHeight / 2 };
    }
    this.note = note;
    this.draw();
  }

  key(event) {
    const actions = { "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2),
      "0": () => this.reset(), ArrowLeft: () => this.pan(-0.15), ArrowRight: () => this.pan(0.15),
      ArrowUp: () => { this.top -= 60; }, ArrowDown: () => { this.top += 60; },
      PageUp: () => { this.top -= this.height() - 60; }, PageDown: () => { this.top += this.height() - 60; },
      z: () => this.zoomToSelection(), Escape: () => { this.selection = null; } };
    const action = actions[event.key];
    if (!action || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    action();
    this.draw();
  }

  window(a, b) {
    const span = Math.min(this.span, Math.max(b - a, Math.min(this.span, 4)));
    const start = Math.max(0, Math.min(a, this.span - span));
    this.t0 = start;
    this.t1 = start + span;
    this.draw();
  }
  zoom(factor, at = (this.t0 + this.t1) / 2) {
    this.window(at - (at - this.t0) * factor, at + (this.t1 - at) * factor);
  }
  pan(share) {
    const move = (this.t1 - this.t0) * share;
    this.window(this.t0 + move, this.t1 + move);
  }
  zoomRows(factor, y) {
    const before = this.rowHeight;
    this.rowHeight = Math.max(0.005, Math.min(60, before * factor));
    this.top = (this.top + y - AXIS) * (this.rowHeight / before) - (y - AXIS);
    this.draw();
  }
  reset() {
    [this.t0, this.t1] = this.extent;
    this.selection = null;
    this.fitRows();
    this.draw();
  }
  zoomToSelection() {
    if (!this.selection || this.selection.t0 === null) return;
    const { t0, t1 } = this.selection;
    this.selection = null;
    this.window(t0, t1);
  }

  // A drag along the names of rows, or straight down, chooses rows at any time.
  select(from, to) {
    const left = Math.max(GUTTER, Math.min(from.x, to.x)), right = Math.max(from.x, to.x), any = right - left < 4;
    const clamp = (t) => Math.max(0, Math.min(this.span, t));
    const first = this.rowAt(Math.min(from.y, to.y)), last = this.rowAt(Math.max(from.y, to.y));
    const several = first >= 0 && (last > first || (any && last === first)) && Math.abs(to.y - from.y) > (any ? 4 : 10);
    if (any && !several) { this.selection = null; return; }
    let t0 = Math.round(clamp(this.time(left))), t1 = Math.round(clamp(this.time(right)));
    if (t0 === t1) [t0, t1] = [Math.floor(clamp(this.time(left))), Math.ceil(clamp(this.time(right)))];
    this.selection = { t0: any ? null : t0, t1: any ? null : t1, rows: several ? [first, last] : null };
  }

  commandLine() {
    const run = +this.root.id.replace("run-", "");
    return `gwatch show trace.json${run ? ` --run ${run}` : ""} --select ${quoted(this.token())}`;
  }

  token() {
    const { meta, data } = this, s = this.selection;
    const parts = [`gwtrace/1 kernel=${meta.tag} t=${s.t0 ?? 0}:${s.t1 ?? meta.span}${meta.unit}`];
    const chosen = s.rows ? this.rows.slice(s.rows[0], s.rows[1] + 1)
      : this.rows.length < data.rows ? this.rows : null;
    if (chosen) {
      const warps = meta.granularity === "warp";
      parts.push(`lane=${warps ? "warp" : "thread"}:` + ranges(chosen.map((r) =>
        (warps ? data.block[r] * meta.warps_per_block + data.warp[r] : this.tid(r)))));
    }
    const shown = meta.scopes.filter((x, i) => this.shown[i] && !x.mark).map((x) => encodeURIComponent(x.label));
    if (shown.length && shown.length < meta.scopes.filter((x) => !x.mark).length) {
      parts.push("scopes=" + shown.join(","));
    }
    return parts.join(" ");
  }

  copy(text) {
    const done = () => { $(this.root, ".state").textContent = "Copied: " + text; };
    const byHand = () => {
      const area = element("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      done();
    };
    if (navigator.clipboard && window.isSecureContext) navigator.clipboard.writeText(text).then(done, byHand);
    else byHand();
  }

  // The hole in row r's work around t, and the interval of another role in its block that ended last in it.
  waitAt(r, t) {
    const { data, meta } = this;
    let reach = -1, before = -1;
    for (let m = data.first[r]; m < data.first[r + 1]; m++) {
      if (meta.scopes[data.scope[m]].mark) continue;
      if (before >= 0 && data.start[m] > reach && reach <= t && t <= data.start[m]) {
        return Object.assign({ from: reach, to: data.start[m], before, after: m }, this.releaser(r, reach, data.start[m]));
      }
      const end = data.start[m] + data.length[m];
      if (end > reach) { reach = end; before = m; }
    }
    return null;
  }

  releaser(r, from, to) {
    const { data, meta } = this;
    let mark = -1, row = -1, when = from;
    if (data.role[r] >= meta.roles.length) return { mark, row };
    for (const q of this.byBlock().get(data.block[r])) {
      if (data.role[q] === data.role[r] || data.role[q] >= meta.roles.length) continue;
      for (let m = data.first[q]; m < data.first[q + 1] && data.start[m] <= to; m++) {
        const end = data.start[m] + data.length[m];
        if (!meta.scopes[data.scope[m]].mark && end > when && end <= to) { mark = m; row = q; when = end; }
      }
    }
    return { mark, row };
  }

  describeWait(tip, r, wait, where) {
    const { data, meta } = this, unit = meta.unit;
    const label = (m) => meta.scopes[data.scope[m]].label;
    tip.append(element("strong", "waiting  " + duration(wait.to - wait.from, unit)), element("div", where));
    tip.append(element("div", `between ${label(wait.before)} and ${label(wait.after)}`));
    this.light([meta.scopes[data.scope[wait.before]].sites[1], meta.scopes[data.scope[wait.after]].sites[0]]);
    if (wait.mark < 0) return;
    const end = data.start[wait.mark] + data.length[wait.mark];
    tip.append(element("div", `${meta.roles[data.role[wait.row]]} ${this.name(wait.row)} ended ${label(wait.mark)} ` +
      `${duration(wait.to - end, unit)} before it went on`));
    this.link = { fromRow: wait.row, from: end, toRow: r, to: wait.to };
  }

  paintLink(c) {
    const link = this.link;
    if (!link || !this.place.has(link.fromRow) || !this.place.has(link.toRow)) return;
    const middle = (r) => {
      const i = this.place.get(r);
      return this.y(i, this.groupOf(i)) + this.rowHeight / 2;
    };
    const x0 = this.x(link.from), y0 = middle(link.fromRow), x1 = this.x(link.to), y1 = middle(link.toRow);
    c.strokeStyle = c.fillStyle = colours.text;
    c.lineWidth = 1.6;
    c.beginPath();
    c.moveTo(x0, y0);
    c.bezierCurveTo(x0 + 14, y0, x1 - 22, y1, x1 - 3, y1);
    c.stroke();
    c.lineWidth = 1;
    c.beginPath();
    c.arc(x0, y0, 3, 0, 7);
    c.moveTo(x1, y1);
    c.lineTo(x1 - 7, y1 - 4);
    c.lineTo(x1 - 7, y1 + 4);
    c.fill();
  }

  // ---- what is under the pointer ----
  point(at) {
    this.link = this.note = null;
    const folded = this.foldAt(at.y);
    this.canvas.style.cursor = folded >= 0 ? "pointer" : "";
    if (folded >= 0) { this.describeFolded(folded, at); return; }
    const i = at.x > GUTTER ? this.rowAt(at.y) : -1;
    if (i < 0) { this.tip.hidden = true; this.light(null); return; }
    const { data, meta } = this, r = this.rows[i], t = this.time(at.x);
    const slack = 3 * (this.t1 - this.t0) / (this.width() - GUTTER);
    let best = -1;
    for (let m = this.firstMark(r); m < data.first[r + 1] && data.start[m] <= t + slack; m++) {
      const end = data.start[m] + data.length[m], reach = data.length[m] < slack ? slack : 0;
      if (this.shown[data.scope[m]] && data.start[m] - reach <= t && t <= end + reach) {
        if (best < 0 || data.depth[m] >= data.depth[best]) best = m;
      }
    }
    const tip = this.tip, unit = meta.unit;
    tip.replaceChildren();
    const role = meta.roles[data.role[r]], sm = data.sm[r] ? " · SM " + (data.sm[r] - 1) : "";
    const where = this.name(r) + (role ? " · " + role : "") + sm;
    if (best >= 0) {
      const scope = meta.scopes[data.scope[best]];
      tip.append(element("strong", scope.mark ? scope.label : scope.label + "  " + duration(data.length[best], unit)));
      tip.append(element("div", where));
      tip.append(element("div", `at ${duration(data.start[best], unit)}` +
        (scope.mark ? "" : ` to ${duration(data.start[best] + data.length[best], unit)}`)));
      this.light(scope.sites);
      const names = scope.mark ? [""] : ["from", "to"];
      names.forEach((name, k) => this.site(tip, name, scope.sites[k], best, k));
    } else if (this.waitAt(r, t)) {
      this.describeWait(tip, r, this.waitAt(r, t), where);
    } else {
      tip.append(element("strong", where), element("div", `nothing recorded at ${duration(Math.round(t), unit)}`));
      this.light(null);
    }
    if (data.dropped[r]) tip.append(element("div", data.dropped[r] + " records of this row were dropped"));
    this.showTip(at);
  }

  showTip(at) {
    const { tip } = this;
    tip.hidden = false;
    const room = this.canvas.clientWidth, left = at.x + 16 + tip.offsetWidth > room ? at.x - 16 - tip.offsetWidth : at.x + 16;
    tip.style.left = Math.max(0, left) + "px";
    tip.style.top = this.canvas.offsetTop + at.y + 14 + "px";
  }

  site(tip, name, number, mark, side) {
    const { meta, data } = this, known = meta.sites[number] || ["", "", true];
    const line = element("span");
    line.className = "code";
    let text = (name ? name + " " : "") + "site " + number;
    if (known[0]) text += "  " + known[0].split("/").pop();
    if (known[1]) text += "\n" + known[1];
    if (meta.values && known[2]) {
      const key = side ? "out" : "in";
      const value = (BigInt(data[key + "_high"][mark]) << 32n) | BigInt(data[key + "_low"][mark]);
      text += "\n" + readings(value);
    }
    line.textContent = text;
    tip.append(line);
  }

  light(sites) {
    for (const row of this.root.querySelectorAll("tr[data-site]")) {
      row.classList.toggle("lit", sites !== null && sites.includes(+row.dataset.site));
    }
    const first = sites && this.root.querySelector(".listing tr.lit");
    if (!first) return;
    this.reveal(first);
  }

  // Scrolls the code to a line, unless it's in view.
  reveal(line) {
    const pane = line.closest(".listing"), at = line.offsetTop, seen = pane.clientHeight;
    if (at < pane.scrollTop + 40 || at > pane.scrollTop + seen - 40) pane.scrollTop = at - seen / 2;
  }
}
