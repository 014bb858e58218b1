// The widget: a legend, the canvas, a line of text; mouse and keys. Its counters stand in
// data attributes, where tests read them.

const SUMMARY_MS = 1000;
const ZOOM = 1.5;
const PAN = 0.2;

class View {
  constructor(el, store, look) {
    this.store = store;
    this.look = look;
    this.abort = new AbortController();
    this.parts = frameOf(el, "live", look.title);
    Object.assign(this, this.parts);
    this.root.tabIndex = 0;
    // JupyterLab would take arrows and digits for commands of the notebook.
    this.root.setAttribute("data-lm-suppress-shortcuts", "true");
    this.painter = new Painter(this.canvas, store, look);
    this.frames = 0;
    this.lags = { last: 0, max: 0 };
    this.seenMessages = 0;
    this.summaryMs = -Infinity;
    this.listen();
    store.views.add(this.painter);
    this.frame = this.frame.bind(this);
    this.request = requestAnimationFrame(this.frame);
  }

  listen() {
    const on = (target, name, f) =>
      target.addEventListener(name, f, { signal: this.abort.signal });
    on(this.root, "keydown", (event) => this.press(event));
    on(this.canvas, "mousemove", (event) => this.move(event));
    on(this.canvas, "mouseleave", () => { this.pointer = null; });
    on(this.canvas, "mousedown", (event) => this.grab(event));
    on(window, "mouseup", () => { this.grabbed = null; });
    on(this.canvas, "dblclick", () => this.painter.show());
    this.themes = new MutationObserver(() => { this.theme = null; });
    this.themes.observe(document.body, { attributes: true });
  }

  remove() {
    cancelAnimationFrame(this.request);
    this.abort.abort();
    this.themes.disconnect();
    this.store.views.delete(this.painter);
  }

  frame() {
    this.request = requestAnimationFrame(this.frame);
    this.frames += 1;
    this.firstMs ??= performance.now();
    const width = this.root.clientWidth;
    if (this.painter.fit(width) && this.store.counters.messages) {
      if (!this.theme) {
        this.theme = readTheme(this.root);
        this.painter.isStale = true;
      }
      this.draw();
    }
    this.count();
  }

  draw() {
    const now = this.store.nowS();
    const step = this.painter.span / Math.max(1, this.painter.width * this.painter.scale);
    const isNews = this.store.counters.messages !== this.seenMessages;
    const hasMoved = now - (this.drawnS ?? -1) >= step;
    const key = JSON.stringify(this.pointer ?? null);
    if (!isNews && !hasMoved && !this.painter.isStale && key === this.pointerKey) return;
    this.pointerKey = key;
    this.drawnS = now;
    const hovered = this.pointer && this.painter.at(this.pointer.x, this.pointer.y);
    this.painter.draw(this.theme, hovered);
    this.showTip(hovered, now);
    if (isNews) {
      this.seenMessages = this.store.counters.messages;
      this.lags.last = Date.now() - this.store.told.wall * 1000;
      this.lags.max = Math.max(this.lags.max, this.lags.last);
    }
    if (performance.now() - this.summaryMs > SUMMARY_MS || this.store.told.ended) {
      this.summaryMs = performance.now();
      this.summarise(now);
    }
  }

  count() {
    const { store, painter } = this;
    Object.assign(this.root.dataset, {
      frames: this.frames, ms: Math.round(performance.now() - this.firstMs),
      records: store.count, open: store.open.length / WIDTH,
      lagMs: Math.round(this.lags.last), maxLagMs: Math.round(this.lags.max),
      ended: Boolean(store.told.ended), from: painter.from, to: painter.from + painter.span, now: store.shownS,
      ...painter.counters, ...store.counters,
    });
  }

  // The line of text, the legend, and what a screen reader says.
  summarise(now) {
    const { told, count } = this.store;
    const ranks = this.look.rows.length;
    const parts = [`${ranks} rank${ranks === 1 ? "" : "s"}`];
    if (told.steps) parts.push(`${told.steps} step${told.steps === 1 ? "" : "s"}`);
    parts.push(formatSeconds(now), `${told.total.toLocaleString("en")} stretches`);
    const fewer = told.count < told.total
      ? ` The shortest ${(told.total - told.count).toLocaleString("en")} are not drawn.` : "";
    const state = told.ended ? "Ended" : "Running";
    this.text.textContent = `${state}: ${parts.join(", ")}.${fewer} Times: measured on `
      + "this machine. Keys: arrows, + and −, 0, Home, End.";
    this.canvas.setAttribute("aria-label", `Live timeline. ${state}: ${parts.join(", ")}, `
      + `${count} drawn. ${this.doing().join("; ")}.`);
    this.showLegend();
  }

  // What each rank does now, in words.
  doing() {
    const found = this.look.rows.map((label) => `${label} silent`);
    this.store.eachOpen((record) => {
      const kind = this.look.kinds[record[KIND]];
      if (Number.isNaN(record[DURATION]) && kind.key !== "issued") {
        found[record[PLACE]] = `${this.look.rows[record[PLACE]]} ${this.called(record)}`;
      }
    });
    return found;
  }

  showLegend() {
    const seen = new Set();
    this.store.each((record) => seen.add(record[KIND]));
    const shown = this.look.kinds.filter((kind, n) => kind.label && seen.has(n));
    const key = shown.map((kind) => kind.key).join();
    if (key === this.legendKey) return;
    this.legendKey = key;
    this.legend.replaceChildren();
    for (const kind of shown) {
      const entry = part(this.legend, "span");
      const swatch = part(entry, "i");
      swatch.style.background = kind.hatched
        ? `repeating-linear-gradient(-45deg, ${kind.color} 0 1px, #80808024 1px 5px)`
        : kind.color;
      swatch.style.opacity = kind.alpha;
      if (kind.hatched) swatch.style.boxShadow = `inset 0 0 0 1px ${kind.color}`;
      entry.append(kind.label);
    }
  }

  called(record) {
    const kind = this.look.kinds[record[KIND]];
    const [name] = this.store.names[record[NAME]] ?? [""];
    if (kind.row === "compute") return name;
    const number = record[NUMBER] ? `#${record[NUMBER]}` : "";
    return `${name}${number}${kind.verb ? ` ${kind.verb}` : ""}`;
  }

  // What, which rank, start, duration, bytes, rate, line.
  showTip(record, now) {
    this.tip.hidden = !record;
    if (!record) return;
    const where = this.store.names[record[NAME]]?.[1];
    const kind = this.look.kinds[record[KIND]];
    const length = endOf(record, now) - record[START];
    const lines = [`${this.called(record)}, ${this.look.rows[record[PLACE]]}`];
    if (kind.row === "point") lines.push(`at ${formatSeconds(record[START])}`);
    else {
      const sofar = Number.isNaN(record[DURATION]) ? " so far" : "";
      lines.push(`${formatSeconds(length)}${sofar} from ${formatSeconds(record[START])}`);
    }
    if (record[BYTES]) {
      const isTransfer = kind.verb === "transfer" && length > 0;
      const rate = isTransfer ? `, ${(record[BYTES] / length / 1e9).toPrecision(3)} GB/s` : "";
      lines.push(`payload ${formatBytes(record[BYTES])}${rate}`);
    }
    if (where) lines.push(where);
    showTip(this.parts, lines, this.pointer);
  }

  move(event) {
    this.pointer = { x: event.offsetX, y: event.offsetY };
    if (this.grabbed) {
      const by = this.painter.timeAt(this.grabbed.x) - this.painter.timeAt(event.offsetX);
      this.painter.show(this.grabbed.from + by, this.painter.span);
    }
  }

  grab(event) {
    this.grabbed = { x: event.offsetX, from: this.painter.from };
    this.root.focus({ preventScroll: true });
  }

  press(event) {
    const { painter } = this;
    const [from, span] = [painter.from, painter.span];
    const zoom = (by) => painter.show(from + (span - span * by) / 2, span * by);
    const now = this.store.nowS();
    const keys = {
      ArrowLeft: () => painter.show(from - span * PAN, span),
      ArrowRight: () => painter.show(from + span * PAN, span),
      "+": () => zoom(1 / ZOOM), "=": () => zoom(1 / ZOOM), "-": () => zoom(ZOOM),
      0: () => painter.show(),
      Home: () => painter.show(0, span),
      End: () => { painter.show(now - span, span); painter.follows = true; },
    };
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    keys[event.key]();
    event.preventDefault();
    event.stopPropagation();
  }
}

export default () => {
  let store;
  return {
    initialize({ model }) {
      store = new Store(() => model.send({ ask: "all" }));
      model.on("msg:custom", (content, buffers) => store.take(content, buffers));
    },
    render({ model, el }) {
      const view = new View(el, store, model.get("look"));
      return () => view.remove();
    },
  };
};
