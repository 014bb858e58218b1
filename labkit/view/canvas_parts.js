// What every canvas of labkit's shares: parts of the page, the theme's colours, numbers.

function part(parent, tag, name) {
  const made = document.createElement(tag);
  if (name) made.className = `labkit-${name}`;
  return parent.appendChild(made);
}

function readTheme(element) {
  const style = getComputedStyle(element);
  const color = (name, other) => style.getPropertyValue(name).trim() || other;
  return {
    text: color("--jp-ui-font-color1", "#808080"),
    muted: color("--jp-ui-font-color2", "#808080"),
  };
}

const STYLE = `
.labkit-root { position: relative; outline: none; font-size: 12px; padding: 2px 0 6px;
  font-family: var(--jp-ui-font-family, sans-serif); color: var(--jp-ui-font-color1); }
.labkit-root:focus-visible { box-shadow: inset 0 0 0 1px var(--jp-brand-color1, #1976d2); }
.labkit-root canvas { display: block; }
.labkit-title { font-weight: 600; font-size: 14px; padding: 2px 8px; }
.labkit-legend { display: flex; flex-wrap: wrap; gap: 2px 16px; padding: 2px 8px;
  min-height: 18px; color: var(--jp-ui-font-color2); }
.labkit-legend i { display: inline-block; width: 18px; height: 10px;
  margin-right: 5px; border-radius: 1px; }
.labkit-text { padding: 2px 8px 0; color: var(--jp-ui-font-color2); }
.labkit-tip { position: absolute; pointer-events: none; z-index: 10;
  padding: 4px 8px; border-radius: 3px; white-space: nowrap; line-height: 1.35;
  background: var(--jp-layout-color1, #fff); color: var(--jp-ui-font-color1, #000);
  border: 1px solid var(--jp-border-color1, #999); box-shadow: 0 1px 4px #0004; }
.labkit-tip[hidden] { display: none; }
`;

// The widget's outer element, and in it a title, a legend, a canvas, a line of text.
function frameOf(el, name, title) {
  const root = part(el, "div", "root");
  root.classList.add(`labkit-${name}`);
  part(root, "style").textContent = STYLE;
  if (title) part(root, "div", "title").textContent = title;
  const legend = part(root, "div", "legend");
  const canvas = part(root, "canvas");
  canvas.setAttribute("role", "img");
  const text = part(root, "div", "text");
  const tip = part(root, "div", "tip");
  tip.hidden = true;
  return { root, legend, canvas, text, tip };
}

// Write lines into the tip, beside a point of the canvas.
function showTip(frame, lines, { x, y }) {
  const { root, canvas, tip } = frame;
  tip.hidden = false;
  tip.replaceChildren(...lines.flatMap((line, n) =>
    n ? [document.createElement("br"), line] : [line]));
  tip.style.left = `${Math.max(0, Math.min(x + 14, root.clientWidth - tip.offsetWidth))}px`;
  tip.style.top = `${canvas.offsetTop + y + 16}px`;
}

// A canvas's context, in CSS pixels; resized where the size or the screen has changed.
function contextOf(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  const [w, h] = [Math.max(1, Math.round(width * scale)), Math.round(height * scale)];
  if (canvas.width !== w || canvas.height !== h) {
    Object.assign(canvas, { width: w, height: h });
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  }
  const c = canvas.getContext("2d");
  c.setTransform(scale, 0, 0, scale, 0, 0);
  c.font = "11px sans-serif";
  c.textBaseline = "middle";
  return c;
}

function floats(view) {
  const { buffer, byteOffset, byteLength } = view;
  return new Float64Array(buffer.slice(byteOffset, byteOffset + byteLength));
}

// Round numbers in a range, about `wanted` of them.
function ticks(from, to, wanted) {
  const rough = (to - from) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((each) => each * power >= rough) * power;
  const found = [];
  for (let n = Math.ceil(from / step); n * step <= to; n += 1) found.push(n * step);
  return found;
}

function formatSeconds(seconds, size = Math.abs(seconds)) {
  const [scale, unit] = [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]]
    .find(([each]) => size >= each) ?? [1, "s"];
  return `${Number((seconds / scale).toPrecision(4))} ${unit}`;
}

function formatBytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(4, Math.floor(Math.log2(Math.max(1, bytes)) / 10));
  return `${Number((bytes / 1024 ** power).toPrecision(3))} ${units[power]}`;
}
