"use strict";
// Draws the charts of a report from the data in the page, and follows the pointer.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const hidden = new Set();
  let axis = "steps";
  const charts = [];

  const make = (name, attributes, parent) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (parent) parent.appendChild(element);
    return element;
  };
  const color = (run) => `var(--c${run % 10})`;
  const dash = (run) => (run < 10 ? "none" : "6 3");

  // A number in about four digits.
  const say = (value) => {
    const size = Math.abs(value);
    for (const [unit, name] of [[1e9, " G"], [1e6, " M"], [1e4, " k"]]) {
      if (size >= unit) return `${+(value / (unit === 1e4 ? 1e3 : unit)).toPrecision(4)}${name}`;
    }
    return size && size < 1e-3 ? value.toExponential(2) : `${+value.toPrecision(4)}`;
  };

  // Round values between two, about `count` of them.
  const ticks = (low, high, count) => {
    const rough = (high - low) / Math.max(1, count) || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
    const found = [];
    for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index++) found.push(index * step);
    return found;
  };

  // The runs that a chart shows now, each with its points as [x, y].
  const linesOf = (key) =>
    data.runs.flatMap((run, number) => {
      const x = run[axis], y = run.series[key];
      if (hidden.has(number) || !x || !y) return [];
      const points = [];
      for (let i = 0; i < x.length; i++) if (y[i] !== null && x[i] !== null) points.push([x[i], y[i]]);
      return points.length ? [{ number, points }] : [];
    });

  const nearest = (points, x) => {
    let low = 0, high = points.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (points[middle][0] < x) low = middle + 1; else high = middle;
    }
    return low > 0 && x - points[low - 1][0] < points[low][0] - x ? points[low - 1] : points[low];
  };

  const draw = (chart) => {
    const { svg, key, height } = chart;
    const width = Math.max(220, svg.clientWidth);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    svg.replaceChildren();
    const lines = (chart.lines = linesOf(key));
    chart.scale = null;
    if (!lines.length) {
      make("text", { x: 12, y: 24 }, svg).textContent = axis === "minutes" ? "no time recorded" : "nothing to show";
      return;
    }
    const levels = key === data.charts[0].key ? data.thresholds : [];
    const ys = lines.flatMap((line) => line.points.map((point) => point[1])).concat(levels);
    let low = ys.reduce((a, b) => Math.min(a, b)), high = ys.reduce((a, b) => Math.max(a, b));
    if (low === high) { low -= Math.abs(low) / 10 || 1; high += Math.abs(high) / 10 || 1; }
    const right = lines.reduce((most, line) => Math.max(most, line.points[line.points.length - 1][0]), 0) || 1;
    const marks = ticks(low, high, height / 45);
    const box = { left: 14 + 6.6 * Math.max(...marks.map((mark) => say(mark).length)), right: width - 16, top: 10, bottom: height - 24 };
    const px = (x) => box.left + (x / right) * (box.right - box.left);
    const py = (y) => box.bottom - ((y - low) / (high - low)) * (box.bottom - box.top);
    for (const mark of marks) {
      make("line", { class: "grid", x1: box.left, x2: box.right, y1: py(mark), y2: py(mark) }, svg);
      make("text", { x: box.left - 6, y: py(mark) + 4, "text-anchor": "end" }, svg).textContent = say(mark);
    }
    for (const mark of ticks(0, right, width / 110)) {
      make("text", { x: px(mark), y: height - 6, "text-anchor": "middle" }, svg).textContent = say(mark) + (axis === "minutes" ? " min" : "");
    }
    for (const level of levels) {
      make("line", { class: "threshold", x1: box.left, x2: box.right, y1: py(level), y2: py(level) }, svg);
    }
    for (const { number, points } of lines) {
      const path = points.map((point, i) => `${i ? "L" : "M"}${px(point[0]).toFixed(1)} ${py(point[1]).toFixed(1)}`).join("");
      const at = { class: "line", d: path, stroke: color(number), "stroke-dasharray": dash(number) };
      make("path", at, svg).style.stroke = color(number);
    }
    chart.scale = { box, px, py, right };
    chart.cursor = make("g", {}, svg);
  };

  const leave = (chart) => {
    if (chart.cursor) chart.cursor.replaceChildren();
    chart.tip.hidden = true;
  };

  const follow = (chart, event) => {
    if (!chart.scale) return;
    const { box, px, py, right } = chart.scale;
    const frame = chart.svg.getBoundingClientRect();
    const x = Math.min(1, Math.max(0, (event.clientX - frame.left - box.left) / (box.right - box.left))) * right;
    const found = chart.lines.map(({ number, points }) => ({ number, point: nearest(points, x) }));
    chart.cursor.replaceChildren();
    make("line", { class: "cursor", x1: px(x), x2: px(x), y1: box.top, y2: box.bottom }, chart.cursor);
    for (const { number, point } of found) {
      make("circle", { cx: px(point[0]), cy: py(point[1]), r: 3.5 }, chart.cursor).style.fill = color(number);
    }
    const row = (name, value, number) => {
      const line = document.createElement("div");
      const [left, end] = [document.createElement("span"), document.createElement("span")];
      left.textContent = name;
      end.textContent = value;
      if (number !== undefined) left.style.color = color(number);
      line.append(left, end);
      return line;
    };
    const rows = found.sort((a, b) => b.point[1] - a.point[1]);
    const unit = axis === "minutes" ? "minutes" : "steps";
    chart.tip.replaceChildren(row(`${say(x)} ${unit}`, ""), ...rows.map((each) => row(data.runs[each.number].name, say(each.point[1]), each.number)));
    chart.tip.hidden = false;
    const beside = px(x) + 14 + chart.tip.offsetWidth < frame.width ? px(x) + 26 : px(x) - chart.tip.offsetWidth - 4;
    chart.tip.style.left = `${Math.max(2, beside)}px`;
    chart.tip.style.top = "2.6rem";
  };

  const drawAll = () => charts.forEach(draw);

  for (const { key, title, wide, place } of data.charts) {
    const figure = document.createElement("div");
    figure.className = wide ? "chart wide" : "chart";
    const heading = document.createElement("h3");
    heading.textContent = title;
    const svg = make("svg", { role: "img", "aria-label": title });
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    figure.append(heading, svg, tip);
    document.getElementById(place).appendChild(figure);
    const chart = { key, svg, tip, height: wide ? 320 : 180, lines: [] };
    charts.push(chart);
    svg.addEventListener("pointermove", (event) => follow(chart, event));
    svg.addEventListener("pointerdown", (event) => follow(chart, event));
    svg.addEventListener("pointerleave", () => leave(chart));
    let drawn = 0;
    new ResizeObserver(() => {
      if (svg.clientWidth && svg.clientWidth !== drawn) { drawn = svg.clientWidth; draw(chart); leave(chart); }
    }).observe(figure);
  }

  for (const button of document.querySelectorAll("button[data-axis]")) {
    button.addEventListener("click", () => {
      axis = button.dataset.axis;
      for (const each of document.querySelectorAll("button[data-axis]")) each.setAttribute("aria-pressed", each === button);
      drawAll();
    });
  }
  for (const button of document.querySelectorAll("button[data-run]")) {
    button.addEventListener("click", () => {
      const run = +button.dataset.run;
      if (!hidden.delete(run)) hidden.add(run);
      button.setAttribute("aria-pressed", !hidden.has(run));
      drawAll();
    });
  }
})();
