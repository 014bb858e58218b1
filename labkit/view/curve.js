// A curve that grows: each message holds all of it, so that none needs another.

const [LEFT, RIGHT, TOP, BOTTOM, HEIGHT] = [62, 16, 8, 40, 260];

class Axes {
  constructor(lines, width) {
    this.width = width;
    this.x = new Range(lines.flatMap((line) => [...line.x]), LEFT, width - RIGHT, 90);
    this.y = new Range(lines.flatMap((line) => [...line.y]), HEIGHT - BOTTOM, TOP, 45);
  }

  draw(c, theme, look) {
    c.strokeStyle = "rgba(128,128,128,0.2)";
    c.fillStyle = theme.muted;
    c.lineWidth = 1;
    c.textAlign = "center";
    for (const at of this.x.ticks) {
      const x = this.x.pixel(at);
      c.strokeRect(Math.round(x) + 0.5, TOP, 0, HEIGHT - BOTTOM - TOP);
      c.fillText(formatNumber(at), x, HEIGHT - BOTTOM + 12);
    }
    c.fillText(look.x, (LEFT + this.width - RIGHT) / 2, HEIGHT - 8);
    c.textAlign = "right";
    for (const at of this.y.ticks) {
      const y = this.y.pixel(at);
      c.strokeRect(LEFT, Math.round(y) + 0.5, this.width - LEFT - RIGHT, 0);
      c.fillText(formatNumber(at), LEFT - 6, y);
    }
    c.save();
    c.translate(12, (TOP + HEIGHT - BOTTOM) / 2);
    c.rotate(-Math.PI / 2);
    c.textAlign = "center";
    c.fillText(look.y, 0, 0);
    c.restore();
  }
}

// From values to pixels, with round numbers on the way; values that are none are left out.
class Range {
  constructor(values, first, last, pixels) {
    const real = values.filter(Number.isFinite);
    let [low, high] = [Math.min(...real), Math.max(...real)];
    if (!real.length) [low, high] = [0, 1];
    if (low === high) [low, high] = [low - 0.5, high + 0.5];
    Object.assign(this, { low, high, first, last });
    this.ticks = ticks(low, high, Math.abs(last - first) / pixels);
  }

  pixel(value) {
    const share = (value - this.low) / (this.high - this.low);
    return this.first + share * (this.last - this.first);
  }
}

function drawLine(c, line, axes) {
  c.strokeStyle = c.fillStyle = line.color;
  c.lineWidth = 2;
  c.lineJoin = "round";
  c.beginPath();
  let isDown = false;
  line.x.forEach((x, n) => {
    const isReal = Number.isFinite(line.y[n]);
    if (isReal) c[isDown ? "lineTo" : "moveTo"](axes.x.pixel(x), axes.y.pixel(line.y[n]));
    isDown = isReal;
  });
  c.stroke();
  const last = line.x.length - 1;
  if (!Number.isFinite(line.y[last])) return;
  c.beginPath();
  c.arc(axes.x.pixel(line.x[last]), axes.y.pixel(line.y[last]), 3, 0, 7);
  c.fill();
}

function formatNumber(value) {
  return Number.isFinite(value) ? String(Number(value.toPrecision(4))) : "no number";
}

class CurveView {
  constructor(el, store, look) {
    this.store = store;
    this.look = look;
    this.parts = frameOf(el, "curve", look.title);
    const { root, canvas } = this.parts;
    this.abort = new AbortController();
    const { signal } = this.abort;
    canvas.addEventListener("mousemove", (event) => {
      this.pointer = { x: event.offsetX, y: event.offsetY };
      this.request();
    }, { signal });
    canvas.addEventListener("mouseleave", () => {
      this.pointer = null;
      this.request();
    }, { signal });
    this.resized = new ResizeObserver(() => this.request());
    this.resized.observe(root);
    this.themes = new MutationObserver(() => this.request());
    this.themes.observe(document.body, { attributes: true });
    store.views.add(this);
    this.draws = 0;
    this.request();
  }

  remove() {
    this.abort.abort();
    this.resized.disconnect();
    this.themes.disconnect();
    cancelAnimationFrame(this.requested);
    this.store.views.delete(this);
  }

  request() {
    this.requested ??= requestAnimationFrame(() => {
      this.requested = undefined;
      this.draw();
    });
  }

  draw() {
    const { root, canvas } = this.parts;
    const { lines, messages, largest } = this.store;
    const width = root.clientWidth;
    if (width < LEFT + RIGHT + 20 || !lines.length) return;
    const c = contextOf(canvas, width, HEIGHT);
    const theme = readTheme(root);
    const axes = new Axes(lines, width);
    c.clearRect(0, 0, width, HEIGHT);
    axes.draw(c, theme, this.look);
    for (const line of lines) drawLine(c, line, axes);
    this.hover(c, axes, theme);
    this.say();
    this.draws += 1;
    const points = lines.reduce((sum, line) => sum + line.x.length, 0);
    Object.assign(root.dataset, { draws: this.draws, messages, largest, points });
  }

  // The values of the points that lie nearest to the pointer.
  hover(c, axes, theme) {
    const { lines } = this.store;
    this.parts.tip.hidden = true;
    if (!this.pointer) return;
    const told = [];
    for (const line of lines) {
      const away = Array.from(line.x, (x) => Math.abs(axes.x.pixel(x) - this.pointer.x));
      const n = away.indexOf(Math.min(...away));
      told.push(`${line.name}: ${formatNumber(line.y[n])} at ${formatNumber(line.x[n])}`);
      if (!Number.isFinite(line.y[n])) continue;
      c.strokeStyle = theme.text;
      c.lineWidth = 1.5;
      c.beginPath();
      c.arc(axes.x.pixel(line.x[n]), axes.y.pixel(line.y[n]), 4.5, 0, 7);
      c.stroke();
    }
    showTip(this.parts, told, this.pointer);
  }

  say() {
    const { canvas, legend, text } = this.parts;
    const told = this.store.lines.map(({ name, x, y }) =>
      `${name}: ${formatNumber(y.at(-1))} at ${formatNumber(x.at(-1))}`);
    text.textContent = `Running: ${this.look.y} by ${this.look.x}. ${told.join("; ")}.`;
    canvas.setAttribute("aria-label", `Live curve ${this.look.title}. ${text.textContent}`);
    if (legend.childElementCount === this.store.lines.length) return;
    legend.replaceChildren();
    for (const line of this.store.lines) {
      const entry = part(legend, "span");
      part(entry, "i").style.background = line.color;
      entry.append(line.name);
    }
  }
}

export default () => {
  const store = { lines: [], views: new Set(), messages: 0, largest: 0 };
  function take(content, [buffer]) {
    const values = floats(buffer);
    let at = 0;
    store.messages += 1;
    store.largest = Math.max(store.largest, values.byteLength + JSON.stringify(content).length);
    store.lines = content.lines.map(({ name, color, points }) => {
      const [x, y] = [values.subarray(at, at + points), values.subarray(at + points, at + 2 * points)];
      at += 2 * points;
      return { name, color, x, y };
    });
    for (const view of store.views) view.request();
  }
  return {
    initialize({ model }) {
      model.on("msg:custom", take);
    },
    render({ model, el }) {
      const view = new CurveView(el, store, model.get("look"));
      return () => view.remove();
    },
  };
};
