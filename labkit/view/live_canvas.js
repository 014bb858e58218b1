// Draws a store on a canvas. What is final is painted once on a layer of its own; a frame
// copies that layer and draws what is open on it. The layer is painted anew only when the
// range, the size or the theme changes: the time axis grows in leaps, not with each frame.

const [LEFT, RIGHT, TOP, AXIS] = [62, 14, 20, 30];
const FIRST_S = 0.5;
const LEAP = 1.5;
const MIN_SPAN_S = 1e-6;
const STEP_LABEL_PX = 52;
const STEP_LINE_PX = 5;
const LETTER_PX = 6.2;
const HATCH_PX = 7;

class Painter {
  constructor(canvas, store, look) {
    this.canvas = canvas;
    this.store = store;
    this.look = look; // {kinds, rows, geometry}: what Python says.
    this.base = document.createElement("canvas");
    this.fresh = [];
    this.isStale = true;
    this.whole = true; // The range is everything, and grows.
    this.follows = true; // The range's end is now.
    this.from = 0;
    this.span = FIRST_S;
    this.counters = { draws: 0, repaints: 0, painted: 0 };
  }

  add(slots) {
    for (const slot of slots) this.fresh.push(slot);
  }

  // Fit the canvas into `width` CSS pixels; whether there is anything to draw on.
  fit(width) {
    const scale = window.devicePixelRatio || 1;
    const height = TOP + this.look.rows.length * this.look.geometry.row_pixels + AXIS;
    if (width === this.width && scale === this.scale) return width > LEFT + RIGHT + 20;
    Object.assign(this, { width, height, scale, isStale: true });
    return width > LEFT + RIGHT + 20;
  }

  x(at) {
    return LEFT + ((at - this.from) / this.span) * (this.width - LEFT - RIGHT);
  }

  timeAt(x) {
    return this.from + ((x - LEFT) / (this.width - LEFT - RIGHT)) * this.span;
  }

  y(place, height) {
    return TOP + (place + 0.5 + height) * this.look.geometry.row_pixels;
  }

  // Look at [from, from + span]; without arguments at everything.
  show(from, span) {
    this.isStale = true;
    this.whole = from === undefined;
    this.follows = this.whole;
    if (this.whole) {
      this.from = 0;
      this.span = FIRST_S;
      return;
    }
    this.span = Math.max(MIN_SPAN_S, span);
    this.from = from;
  }

  // Move on with time: everything leaps to a wider range, a part moves by half of itself.
  keepUp(now) {
    if (this.whole && now > this.span) {
      while (now > this.span) this.span *= LEAP;
      this.isStale = true;
    } else if (!this.whole && this.follows && now > this.from + this.span) {
      this.from = now - this.span / 2;
      this.isStale = true;
    }
  }

  draw(theme, hovered) {
    const now = this.store.nowS();
    this.keepUp(now);
    this.paintBase(theme);
    const c = this.context(this.canvas);
    c.clearRect(0, 0, this.width, this.height);
    c.drawImage(this.base, 0, 0, this.width, this.height);
    c.save();
    this.clip(c);
    const boxes = new Boxes(this);
    this.store.eachOpen((record) => boxes.add(record, now));
    boxes.paint(c);
    this.drawNow(c, now, theme);
    if (hovered) this.outline(c, hovered, now, theme);
    c.restore();
    this.counters.draws += 1;
  }

  context(canvas) {
    return contextOf(canvas, this.width, this.height);
  }

  clip(c) {
    c.beginPath();
    c.rect(LEFT, 0, this.width - LEFT - RIGHT, this.height - AXIS + 1);
    c.clip();
  }

  paintBase(theme) {
    if (!this.isStale && !this.fresh.length) return;
    const c = this.context(this.base);
    const boxes = this.isStale ? new Boxes(this) : this.boxes;
    if (this.isStale) {
      c.clearRect(0, 0, this.width, this.height);
      this.paintFrame(c, theme);
      this.store.each((record, isOpen) => isOpen || boxes.add(record, 0));
      this.counters.repaints += 1;
    } else {
      for (const slot of this.fresh) {
        const at = slot * WIDTH;
        boxes.add(this.store.data.subarray(at, at + WIDTH), 0);
      }
    }
    c.save();
    this.clip(c);
    this.counters.painted += boxes.paint(c, theme);
    c.restore();
    this.boxes = boxes;
    this.fresh = [];
    this.isStale = false;
  }

  // Bands, names of rows, and the time axis.
  paintFrame(c, theme) {
    const { geometry, rows } = this.look;
    const right = this.width - RIGHT;
    const [top, bottom] = geometry.band;
    c.textAlign = "right";
    rows.forEach((label, place) => {
      c.fillStyle = "rgba(128,128,128,0.10)";
      const y = this.y(place, top);
      c.fillRect(LEFT, y, right - LEFT, this.y(place, bottom) - y);
      c.fillStyle = theme.muted;
      c.fillText(label, LEFT - 8, this.y(place, 0));
    });
    const y = this.height - AXIS;
    c.strokeStyle = theme.muted;
    c.lineWidth = 1;
    c.strokeRect(LEFT, Math.round(y) + 0.5, right - LEFT, 0);
    c.textAlign = "center";
    for (const at of ticks(this.from, this.from + this.span, (right - LEFT) / 90)) {
      const x = this.x(at);
      c.strokeRect(Math.round(x) + 0.5, y, 0, 4);
      c.fillText(formatSeconds(at, this.span), x, y + 14);
    }
  }

  drawNow(c, now, theme) {
    c.strokeStyle = theme.muted;
    c.globalAlpha = 0.8;
    c.lineWidth = 1;
    const x = Math.round(this.x(now)) + 0.5;
    c.strokeRect(x, TOP - 6, 0, this.height - AXIS - TOP + 6);
    c.globalAlpha = 1;
  }

  outline(c, record, now, theme) {
    const box = boxOf(this, record, now);
    if (!box) return;
    c.strokeStyle = theme.text;
    c.lineWidth = 1.5;
    c.strokeRect(box.x - 1, box.y - 1, Math.max(box.width, 1) + 2, box.height + 2);
  }

  // The record under a point: of the row there, the one that is nearest.
  at(x, y) {
    const { geometry } = this.look;
    const place = Math.floor((y - TOP) / geometry.row_pixels);
    const height = (y - TOP) / geometry.row_pixels - place - 0.5;
    const isComm = height > (geometry.compute[1] + geometry.comm[0]) / 2;
    const isMark = height < geometry.compute[0];
    const now = this.store.nowS();
    let [best, nearest] = [null, 4];
    this.store.each((record) => {
      const row = this.look.kinds[record[KIND]].row;
      const wanted = isMark ? row === "point" : row === (isComm ? "comm" : "compute");
      if (record[PLACE] !== place || !wanted) return;
      const start = this.x(record[START]);
      const end = this.x(endOf(record, now));
      const distance = Math.max(start - x, x - end, 0);
      if (distance < nearest) [best, nearest] = [record, distance];
    });
    return best && best.slice();
  }
}

// Boxes to paint, by kind: one colour at a time. Of those that are thinner than a pixel,
// one is painted a pixel and row.
class Boxes {
  constructor(painter) {
    this.painter = painter;
    this.byKind = painter.look.kinds.map(() => []);
    const pixels = Math.ceil(painter.width * painter.scale);
    this.covered = { compute: new Set(), comm: new Set(), pixels };
    this.labelFree = new Map();
  }

  add(record, now) {
    const kind = this.painter.look.kinds[record[KIND]];
    if (kind.row === "point" || kind.row === "step") {
      this.byKind[record[KIND]].push(record.slice());
      return;
    }
    const box = boxOf(this.painter, record, now);
    if (!box || box.x > this.painter.width || box.x + box.width < LEFT) return;
    if (box.width * this.painter.scale < 1) {
      const pixel = Math.floor(box.x * this.painter.scale);
      const key = record[PLACE] * this.covered.pixels + pixel;
      if (this.covered[kind.row].has(key)) return;
      this.covered[kind.row].add(key);
      box.x = pixel / this.painter.scale;
      box.width = 1 / this.painter.scale;
    }
    this.byKind[record[KIND]].push(box);
  }

  // Paint what was added since the last time; how many it was.
  paint(c, theme) {
    let painted = 0;
    this.painter.look.kinds.forEach((kind, number) => {
      const boxes = this.byKind[number];
      painted += boxes.length;
      if (boxes.length) PAINT[kind.row](c, boxes, kind, this, theme);
      this.byKind[number] = [];
    });
    return painted;
  }

  // Whether a label of so many pixels finds room on a line, which it then takes.
  takesRoom(line, x, width) {
    if (x < (this.labelFree.get(line) ?? -1e9)) return false;
    this.labelFree.set(line, x + width);
    return true;
  }
}

function paintBars(c, boxes, kind) {
  c.globalAlpha = kind.alpha;
  c.fillStyle = kind.hatched ? hatch(c, kind.color) : kind.color;
  for (const { x, y, width, height } of boxes) c.fillRect(x, y, width, height);
  c.globalAlpha = 1;
  c.lineWidth = 0.8;
  c.strokeStyle = kind.hatched ? kind.color : "rgba(255,255,255,0.55)";
  for (const { x, y, width, height } of boxes) {
    if (kind.hatched && width > 2) c.strokeRect(x, y + 0.4, width, height - 0.8);
    // A fine edge tells stretches of one colour apart.
    else if (width > 4) c.fillStyle = c.strokeStyle, c.fillRect(x, y, 0.8, height);
  }
}

function paintPoints(c, records, kind, boxes, theme) {
  const { painter } = boxes;
  c.textAlign = "left";
  for (const record of records) {
    const x = painter.x(record[START]);
    const y = painter.y(record[PLACE], painter.look.geometry.mark_at);
    c.fillStyle = kind.color || theme.muted;
    c.strokeStyle = theme.text;
    c.lineWidth = 1;
    c.beginPath();
    c.moveTo(x - 5, y - 4);
    c.lineTo(x + 5, y - 4);
    c.lineTo(x, y + 5);
    c.closePath();
    c.fill();
    if (kind.color) c.stroke();
    const label = kind.color ? kind.label : painter.store.names[record[NAME]]?.[0] ?? "";
    const width = 14 + LETTER_PX * label.length;
    c.fillStyle = theme.muted;
    if (boxes.takesRoom(record[PLACE], x, width)) c.fillText(label, x + 8, y);
  }
}

function paintSteps(c, records, kind, boxes, theme) {
  const { painter } = boxes;
  c.fillStyle = theme.muted;
  c.strokeStyle = theme.muted;
  c.textAlign = "left";
  c.setLineDash([1, 3]);
  c.globalAlpha = 0.7;
  for (const record of records) {
    const x = painter.x(record[START]);
    const label = `step ${record[NUMBER]}`;
    const isLabelled = x >= LEFT && boxes.takesRoom("step", x, STEP_LABEL_PX);
    if (isLabelled) c.fillText(label, x + 4, 7);
    if (boxes.takesRoom("step line", x, STEP_LINE_PX)) {
      const top = isLabelled ? 1 : TOP - 4;
      c.strokeRect(Math.round(x) + 0.5, top, 0, painter.height - AXIS - top);
    }
  }
  c.setLineDash([]);
  c.globalAlpha = 1;
}

const PAINT = { compute: paintBars, comm: paintBars, point: paintPoints, step: paintSteps };

function boxOf(painter, record, now) {
  const { row } = painter.look.kinds[record[KIND]];
  const heights = painter.look.geometry[row];
  if (!heights) return null;
  const x = painter.x(record[START]);
  const y = painter.y(record[PLACE], heights[0]);
  const width = painter.x(endOf(record, now)) - x;
  return { x, y, width, height: painter.y(record[PLACE], heights[1]) - y };
}

function endOf(record, now) {
  const grows = Number.isNaN(record[DURATION]);
  return grows ? Math.max(now, record[START]) : record[START] + record[DURATION];
}

const hatches = new Map();

function hatch(c, color) {
  if (!hatches.has(color)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = HATCH_PX;
    const t = tile.getContext("2d");
    t.fillStyle = "rgba(128,128,128,0.14)";
    t.fillRect(0, 0, HATCH_PX, HATCH_PX);
    t.strokeStyle = color;
    t.lineWidth = 1;
    for (const shift of [-HATCH_PX, 0, HATCH_PX]) {
      t.moveTo(shift, HATCH_PX);
      t.lineTo(shift + HATCH_PX, 0);
    }
    t.stroke();
    hatches.set(color, tile);
  }
  return c.createPattern(hatches.get(color), "repeat");
}
