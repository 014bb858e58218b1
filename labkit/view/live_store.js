// What a live timeline knows: records by slot, and when now is. One store a widget,
// however many views show it. A record that comes twice lands in the same slot.

const WIDTH = 8; // slot, place, kind, start, duration, bytes, name, number
const [PLACE, KIND, START, DURATION, BYTES, NAME, NUMBER] = [1, 2, 3, 4, 5, 6, 7];
const EMPTY = -1;
const MAX_GUESS_S = 1; // So long after the last message the picture still moves on.

class Store {
  constructor(ask) {
    this.ask = ask; // Called when messages were lost.
    this.views = new Set();
    this.data = new Float64Array(0);
    this.size = 0;
    this.count = 0;
    this.open = new Float64Array(0);
    this.names = [];
    this.told = { now: 0, total: 0, count: 0, steps: 0, seq: -1 };
    this.counters = { messages: 0, asks: 0, bytes: 0, largest: 0 };
    this.receivedMs = 0;
    this.shownS = 0;
  }

  take(content, buffers) {
    const [records, open] = buffers.map(floats);
    const size = records.byteLength + open.byteLength + JSON.stringify(content).length;
    this.counters.messages += 1;
    this.counters.bytes += size;
    this.counters.largest = Math.max(this.counters.largest, size);
    if (content.seq !== this.told.seq + 1) {
      this.counters.asks += 1;
      this.ask();
    }
    this.told = content;
    if (content.names) this.names.splice(content.first, content.names.length, ...content.names);
    this.receivedMs = performance.now();
    this.open = open;
    const slots = [];
    for (let at = 0; at < records.length; at += WIDTH) {
      slots.push(this.put(records.subarray(at, at + WIDTH)));
    }
    for (const view of this.views) view.add(slots);
  }

  put(record) {
    const slot = record[0];
    this.grow(slot + 1);
    const at = slot * WIDTH;
    if (this.data[at] === EMPTY) this.count += 1;
    this.data.set(record, at);
    return slot;
  }

  grow(size) {
    if (size * WIDTH > this.data.length) {
      const larger = new Float64Array(Math.max(4096, 2 * size) * WIDTH).fill(EMPTY);
      larger.set(this.data);
      this.data = larger;
    }
    this.size = Math.max(this.size, size);
  }

  // Seconds on the picture's clock; between messages it goes on by itself, never back.
  nowS() {
    const since = (performance.now() - this.receivedMs) / 1000;
    const guess = this.told.ended ? 0 : Math.min(since, MAX_GUESS_S);
    this.shownS = Math.max(this.shownS, this.told.now + guess);
    return this.shownS;
  }

  // Every record as one: f(record, isOpen), the final ones first.
  each(f) {
    for (let slot = 0; slot < this.size; slot += 1) {
      const at = slot * WIDTH;
      if (this.data[at] !== EMPTY) f(this.data.subarray(at, at + WIDTH), false);
    }
    this.eachOpen((record) => f(record, true));
  }

  eachOpen(f) {
    for (let at = 0; at < this.open.length; at += WIDTH) {
      f(this.open.subarray(at, at + WIDTH));
    }
  }
}
