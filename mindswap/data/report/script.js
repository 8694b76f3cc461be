"use strict";
// Draws the streams of one pipeline stage and its memory, with all stages above them where there are several.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const canvas = document.getElementById("chart");
  const tip = document.getElementById("tip");
  const context = canvas.getContext("2d");
  const LEFT = 108, RIGHT = 14, AXIS = 22, LANE = 30, ROW = 17, GAP = 5, MEMORY = 250;
  const lanesOf = data.stages.map(splitLanes);
  const memoryOf = data.stages.map(readMemory);
  const usedLanes = data.lanes.map((_, lane) => lane).filter((lane) => lanesOf.some((lanes) => lanes[lane].length));
  const isPipeline = data.stages.length > 1;
  const view = { stage: data.stages.findIndex((s) => s.stage === data.peak_stage), from: 0, to: data.step_ns };
  let pointer = null, dragFrom = null, layout = null;

  function runningSum(differences) {
    let sum = 0;
    return differences.map((difference) => (sum += difference));
  }

  // Bars of a stage per lane, by start.
  function splitLanes(stage) {
    const bars = stage.bars, starts = runningSum(bars.start), lanes = data.lanes.map(() => []);
    starts.forEach((start, i) => lanes[bars.lane[i]].push({
      kind: bars.kind[i], start, end: start + bars.duration[i], idle: bars.idle[i], label: bars.label[i],
      layer: bars.layer[i], microBatch: bars.micro_batch[i], count: bars.count[i], size: bars.size[i],
    }));
    let at = data.timeline_ns;
    for (const [name, duration] of data.terms) {
      lanes[0].push({ kind: data.bar_titles.length - 1, start: at, end: at + duration, idle: 0, label: -1, name,
        layer: -1, microBatch: -1, count: 1, size: 0 });
      at += duration;
    }
    return lanes;
  }

  // Levels of memory: `stack[k][i]` is the top of kind k from `time[i]` on, in bytes; `real` are the curves of a dry run.
  function readMemory(stage) {
    const time = runningSum(stage.memory.time), unit = data.memory_unit_bytes, stack = [];
    let below = time.map(() => stage.static_bytes);
    for (const kind of stage.memory.kinds) {
      below = below.map((bytes, i) => bytes + kind[i] * unit);
      stack.push(below);
    }
    const real = stage.real.map((curve) => ({
      name: curve.name, colour: curve.colour, time: runningSum(curve.time), level: curve.level.map((n) => n * unit),
    }));
    return { time, stack, real };
  }

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  }

  function isLight(hex) {
    const [red, green, blue] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
    return 0.299 * red + 0.587 * green + 0.114 * blue > 150;
  }

  // To the microsecond, wherever in a step of seconds.
  function formatMoment(ns) {
    return (ns / 1e6).toFixed(3) + " ms";
  }

  function formatTime(ns) {
    const [unit, size] = [["s", 1e9], ["ms", 1e6], ["us", 1e3], ["ns", 1]].find(([, s]) => Math.abs(ns) >= s) || ["ns", 1];
    const value = ns / size;
    return value.toFixed(size === 1 || value >= 100 ? 0 : value >= 10 ? 1 : 2) + " " + unit;
  }

  function formatBytes(bytes) {
    const [unit, size] = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]].find(([, s]) => bytes >= s) || ["B", 1];
    return (bytes / size).toFixed(size === 1 ? 0 : 2) + " " + unit;
  }

  // First position whose key is larger than the value.
  function upperBound(items, value, key) {
    let low = 0, high = items.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (key(items[middle]) <= value) low = middle + 1; else high = middle;
    }
    return low;
  }

  // 1, 2 or 5 times a power of ten, so that about `count` of them make the span.
  function niceStep(span, count) {
    const raw = span / count, power = 10 ** Math.floor(Math.log10(raw));
    return power * ([1, 2, 5].find((factor) => factor * power >= raw) || 10);
  }

  function placeRows() {
    const rows = [];
    let y = AXIS;
    if (isPipeline) {
      data.stages.forEach((stage, i) => {
        rows.push({ y, height: ROW - 3, name: "stage " + stage.stage, stage: i, lane: 0, isOverview: true });
        y += ROW;
      });
      y += 14;
    }
    for (const lane of usedLanes) {
      rows.push({ y, height: LANE - GAP, name: data.lanes[lane], stage: view.stage, lane });
      y += LANE;
    }
    y += 16;
    return { rows, memoryTop: y, memoryBottom: y + MEMORY, height: y + MEMORY + 26, width: canvas.clientWidth };
  }

  const toX = (ns) => LEFT + ((ns - view.from) / (view.to - view.from)) * (layout.width - LEFT - RIGHT);
  const toTime = (x) => view.from + ((x - LEFT) / (layout.width - LEFT - RIGHT)) * (view.to - view.from);

  function draw() {
    const ratio = window.devicePixelRatio || 1;
    layout = placeRows();
    canvas.style.height = layout.height + "px";
    canvas.width = Math.round(layout.width * ratio);
    canvas.height = Math.round(layout.height * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    drawTimeAxis();
    layout.rows.forEach(drawRow);
    drawMemory();
    drawPointer();
  }

  function drawTimeAxis() {
    const step = niceStep(view.to - view.from, Math.max(3, layout.width / 130));
    const unit = [["s", 1e9], ["ms", 1e6], ["us", 1e3], ["ns", 1]].find(([, size]) => view.to >= 2 * size) || ["ns", 1];
    context.textAlign = "center";
    for (let n = Math.ceil(view.from / step); n * step <= view.to; n++) {
      const x = toX(n * step);
      context.fillStyle = colour("grid");
      context.fillRect(x, AXIS - 4, 1, layout.memoryBottom - AXIS + 4);
      context.fillStyle = colour("soft");
      const words = +((n * step) / unit[1]).toFixed(6) + " " + unit[0];
      const at = Math.min(x, layout.width - 24);
      context.fillText(words, at, 8);
      context.fillText(words, at, layout.memoryBottom + 14);
    }
  }

  function drawRow(row) {
    const isChosen = row.isOverview && row.stage === view.stage;
    context.textAlign = "right";
    context.fillStyle = colour(isChosen ? "accent" : "text");
    context.fillText((isChosen ? "\u25b8 " : "") + row.name, LEFT - 8, row.y + row.height / 2);
    const bars = lanesOf[row.stage][row.lane];
    const area = [LEFT, row.y, layout.width - LEFT - RIGHT, row.height];
    context.save();
    context.beginPath();
    context.rect(...area);
    context.clip();
    for (let i = Math.max(0, upperBound(bars, view.from, (bar) => bar.start) - 1); i < bars.length; i++) {
      const bar = bars[i];
      if (bar.start > view.to) break;
      const x = toX(bar.start), width = toX(bar.end) - x;
      context.fillStyle = colours[bar.kind];
      // A hair apart where they are wide, so that neighbours can be told from each other.
      context.fillRect(x, row.y, Math.max(width > 6 ? width - 1 : width, 0.5), row.height);
      const left = Math.max(x, LEFT), right = Math.min(x + width, layout.width - RIGHT);
      writeInto(bar, left, right - left, row);
    }
    context.restore();
  }

  // The name, where there is room for enough of it.
  function writeInto(bar, x, width, row) {
    if (width < 16) return;
    const words = shortName(bar, row.isOverview), room = width - 10;
    const letters = Math.floor((words.length * room) / context.measureText(words).width);
    if (letters < Math.min(words.length, 12)) return;
    context.textAlign = "center";
    context.fillStyle = bar.kind === data.bubble ? colour("soft") : isLight(colours[bar.kind]) ? "#1d2733" : "#ffffff";
    const shown = letters < words.length ? words.slice(0, letters - 1) + "\u2026" : words;
    context.fillText(shown, x + width / 2, row.y + row.height / 2 + 0.5);
  }

  function shortName(bar, isOverview) {
    if (bar.name) return bar.name;
    if (bar.kind >= data.first_wait) return data.bar_titles[bar.kind];
    if (isOverview && bar.microBatch >= 0) return String(bar.microBatch);
    if (bar.count > 1) return bar.layer >= 0 ? "layer " + bar.layer : data.bar_titles[bar.kind];
    return bar.label >= 0 ? data.labels[bar.label] : data.bar_titles[bar.kind];
  }

  function drawMemory() {
    const stage = data.stages[view.stage], { time, stack, real } = memoryOf[view.stage];
    const highest = real.reduce((most, curve) => curve.level.reduce((a, b) => Math.max(a, b), most), stage.peak_bytes);
    // A budget far above the peak is said and not drawn: the memory would be a thin line below it.
    const isFar = (data.budget_bytes || 0) > 3 * highest;
    const top = 1.12 * Math.max(highest, isFar ? 0 : data.budget_bytes || 0, 1);
    const height = layout.memoryBottom - layout.memoryTop;
    const toY = (bytes) => layout.memoryBottom - (bytes / top) * height;
    const end = layout.width - RIGHT;
    const [name, unit] = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]].find(([, size]) => top >= 2 * size) || ["B", 1];
    const step = unit * niceStep(top / unit, 8);
    context.textAlign = "right";
    for (let bytes = 0; bytes <= top; bytes += step) {
      context.fillStyle = colour("grid");
      context.fillRect(LEFT, toY(bytes), end - LEFT, 1);
      context.fillStyle = colour("soft");
      context.fillText(+(bytes / unit).toFixed(3) + " " + name, LEFT - 8, toY(bytes));
    }
    context.save();
    context.beginPath();
    context.rect(LEFT, layout.memoryTop - 12, end - LEFT, height + 12);
    context.clip();
    context.fillStyle = colour("static");
    context.fillRect(LEFT, toY(stage.static_bytes), end - LEFT, layout.memoryBottom - toY(stage.static_bytes));
    const first = Math.max(0, upperBound(time, view.from, (t) => t) - 1);
    const behind = Math.min(time.length, upperBound(time, view.to, (t) => t) + 1);
    let below = time.map(() => stage.static_bytes);
    stack.forEach((level, k) => {
      context.fillStyle = colour("memory-" + data.memory_kinds[k][0]);
      context.beginPath();
      traceLevel(level, time, first, behind, toY, false);
      traceLevel(below, time, first, behind, toY, true);
      context.fill();
      below = level;
    });
    context.strokeStyle = colour("text");
    context.lineWidth = 0.8;
    context.beginPath();
    traceLevel(below, time, first, behind, toY, false);
    context.stroke();
    context.lineWidth = 1.6;
    for (const curve of real) {
      context.strokeStyle = colour(curve.colour);
      context.beginPath();
      traceLevel(curve.level, curve.time, 0, curve.time.length, toY, false);
      context.stroke();
    }
    const isPeakShown = stage.peak_ns >= view.from && stage.peak_ns <= view.to;
    const peakBox = isPeakShown ? boxOfPeak(stage, toX(stage.peak_ns), toY(stage.peak_bytes)) : null;
    if (isFar) {
      context.fillStyle = colour("budget");
      writeBudget("budget " + formatBytes(data.budget_bytes) + ", far above", [toY(top) - 5], peakBox);
    } else if (data.budget_bytes !== null) {
      context.strokeStyle = context.fillStyle = colour("budget");
      context.lineWidth = 1.5;
      context.setLineDash([7, 4]);
      context.beginPath();
      context.moveTo(LEFT, toY(data.budget_bytes));
      context.lineTo(end, toY(data.budget_bytes));
      context.stroke();
      context.setLineDash([]);
      const line = toY(data.budget_bytes);
      writeBudget("budget " + formatBytes(data.budget_bytes), [line - 9, line + 11], peakBox);
    }
    if (isPeakShown) markPeak(stage, toX(stage.peak_ns), toY(stage.peak_bytes), peakBox);
    context.restore();
    context.fillStyle = colour("text");
    context.save();
    context.translate(14, (layout.memoryTop + layout.memoryBottom) / 2);
    context.rotate(-Math.PI / 2);
    context.textAlign = "center";
    context.fillText(isPipeline ? "memory, stage " + stage.stage : "device memory", 0, 0);
    context.restore();
  }

  const PLAIN = "12px system-ui, sans-serif", BOLD = "600 " + PLAIN;

  // The label of the peak is beside its point, on the side with more room.
  function boxOfPeak(stage, x, y) {
    context.font = BOLD;
    const width = context.measureText(stage.peak_words).width + 6;
    context.font = PLAIN;
    const left = x > LEFT + 0.7 * (layout.width - LEFT - RIGHT) ? x - 6 - width : x + 6;
    return { left, right: left + width, top: y - 19, bottom: y - 3 };
  }

  // The label of the budget is in the first place that the label of the peak leaves free: at the left or the right end.
  function writeBudget(words, heights, peakBox) {
    const width = context.measureText(words).width, end = layout.width - RIGHT;
    const places = heights.flatMap((y) => [LEFT + 6, end - 6 - width].map((left) => [left, y]));
    const isFree = ([left, y]) => !peakBox || left > peakBox.right || left + width < peakBox.left
      || y + 7 < peakBox.top || y - 7 > peakBox.bottom;
    const [left, y] = places.find(isFree) || places[0];
    context.textAlign = "left";
    context.fillText(words, left, y);
  }

  function markPeak(stage, x, y, box) {
    context.fillStyle = colour("text");
    context.beginPath();
    context.arc(x, y, 4, 0, 2 * Math.PI);
    context.fill();
    context.globalAlpha = 0.85;
    context.fillStyle = colour("card");
    context.fillRect(box.left, box.top, box.right - box.left, box.bottom - box.top);
    context.globalAlpha = 1;
    context.fillStyle = colour("text");
    context.textAlign = "left";
    context.font = BOLD;
    context.fillText(stage.peak_words, box.left + 3, y - 11);
    context.font = PLAIN;
  }

  // A staircase from left to right, or back, as part of the current path.
  function traceLevel(level, time, first, behind, toY, isBack) {
    const put = (t, bytes) => context.lineTo(toX(t), toY(bytes));
    if (!isBack) {
      for (let i = first; i < behind; i++) {
        put(time[i], level[Math.max(first, i - 1)]);
        put(time[i], level[i]);
      }
    } else {
      for (let i = behind - 1; i >= first; i--) {
        put(time[i], level[i]);
        put(time[i], level[Math.max(first, i - 1)]);
      }
    }
  }

  function drawPointer() {
    if (!pointer || pointer.x < LEFT || pointer.x > layout.width - RIGHT) return;
    if (dragFrom !== null && Math.abs(pointer.x - dragFrom) > 3) {
      context.globalAlpha = 0.15;
      context.fillStyle = colour("accent");
      context.fillRect(Math.min(dragFrom, pointer.x), AXIS, Math.abs(pointer.x - dragFrom), layout.memoryBottom - AXIS);
      context.globalAlpha = 1;
    }
    context.fillStyle = colour("soft");
    context.fillRect(pointer.x, AXIS - 4, 1, layout.memoryBottom - AXIS + 4);
  }

  function addLine(text, swatch) {
    const line = document.createElement("div");
    if (swatch) {
      const mark = document.createElement("i");
      mark.className = "swatch";
      mark.style.background = "var(--" + swatch + ")";
      line.append(mark);
    }
    line.append(text);
    tip.append(line);
  }

  function addHeading(text) {
    const heading = document.createElement("b");
    heading.textContent = text;
    tip.append(heading);
  }

  function describeBar(bar) {
    const title = data.bar_titles[bar.kind], isWait = bar.kind >= data.first_wait;
    const label = bar.name || (bar.label >= 0 ? data.labels[bar.label] : "");
    addHeading(bar.count > 1 || !label ? title : label);
    if (bar.count === 1 && label) addLine(bar.name ? title : isWait && bar.kind !== data.bubble ? title + " of this" : title, "bar-" + bar.kind);
    const where = [];
    if (bar.layer >= 0) where.push("layer " + bar.layer);
    if (bar.microBatch >= 0) where.push("micro-batch " + bar.microBatch);
    if (where.length) addLine(where.join(", "));
    const duration = bar.end - bar.start;
    addLine(formatTime(duration) + ", from " + formatMoment(bar.start));
    if (bar.count > 1) {
      const what = isWait ? " waits" : bar.size ? " copies" : " operators";
      addLine(bar.count + what + (bar.idle ? ", " + formatTime(duration - bar.idle) + " busy" : ""));
    }
    if (bar.size) addLine(formatBytes(bar.size) + ", " + (bar.size / (duration - bar.idle)).toFixed(1) + " GB/s");
  }

  function describeMemory(ns) {
    const stage = data.stages[view.stage], { time, stack, real } = memoryOf[view.stage];
    const i = Math.max(0, upperBound(time, ns, (t) => t) - 1);
    addHeading(formatBytes(stack.length ? stack[stack.length - 1][i] : stage.static_bytes) + " at " + formatMoment(ns));
    for (let k = stack.length - 1; k >= 0; k--) {
      const bytes = stack[k][i] - (k ? stack[k - 1][i] : stage.static_bytes);
      if (bytes) addLine(formatBytes(bytes) + " " + data.memory_kinds[k][1], "memory-" + data.memory_kinds[k][0]);
    }
    addLine(formatBytes(stage.static_bytes) + " static", "static");
    for (const curve of real) {
      const at = upperBound(curve.time, ns, (t) => t) - 1;
      if (at >= 0) addLine(formatBytes(curve.level[at]) + " " + curve.name, curve.colour);
    }
    if (Math.abs(toX(stage.peak_ns) - toX(ns)) < 8) addLine("peak: " + stage.peak_moment);
  }

  function showTip() {
    tip.hidden = true;
    tip.replaceChildren();
    if (!pointer || dragFrom !== null || pointer.x < LEFT || pointer.x > layout.width - RIGHT) return;
    const ns = toTime(pointer.x);
    const row = layout.rows.find((r) => pointer.y >= r.y && pointer.y < r.y + r.height);
    if (row) {
      const bars = lanesOf[row.stage][row.lane];
      const bar = bars[upperBound(bars, ns, (b) => b.start) - 1];
      const slack = (view.to - view.from) / (layout.width - LEFT - RIGHT);
      if (!bar || ns > bar.end + slack) return;
      if (row.isOverview) addLine(row.name);
      describeBar(bar);
    } else if (pointer.y >= layout.memoryTop && pointer.y <= layout.memoryBottom) {
      describeMemory(ns);
    } else {
      return;
    }
    tip.hidden = false;
    const isRight = pointer.x > layout.width / 2;
    tip.style.left = isRight ? "" : pointer.x + 16 + "px";
    tip.style.right = isRight ? layout.width - pointer.x + 16 + "px" : "";
    tip.style.top = Math.min(pointer.y + 14, layout.height - tip.offsetHeight) + "px";
  }

  let colours = [];
  function readColours() {
    colours = data.bar_titles.map((_, kind) => colour("bar-" + kind));
  }

  function refresh() {
    draw();
    showTip();
  }

  function setView(from, to) {
    const span = Math.min(data.step_ns, Math.max(to - from, Math.min(100, data.step_ns)));
    view.from = Math.max(0, Math.min(from, data.step_ns - span));
    view.to = view.from + span;
    refresh();
  }

  function zoom(factor, at) {
    setView(at - (at - view.from) * factor, at + (view.to - at) * factor);
  }

  function chooseStage(index) {
    view.stage = index;
    document.getElementById("stage").value = String(index);
    fillLegends();
    refresh();
  }

  function place(event) {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  canvas.addEventListener("pointermove", (event) => { pointer = place(event); refresh(); });
  canvas.addEventListener("pointerleave", () => { if (dragFrom === null) { pointer = null; refresh(); } });
  canvas.addEventListener("pointerdown", (event) => {
    pointer = place(event);
    dragFrom = pointer.x;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", (event) => {
    pointer = place(event);
    const start = dragFrom;
    dragFrom = null;
    if (start !== null && Math.abs(pointer.x - start) > 3) {
      setView(toTime(Math.max(LEFT, Math.min(start, pointer.x))), toTime(Math.max(start, pointer.x)));
      return;
    }
    const row = layout.rows.find((r) => r.isOverview && pointer.y >= r.y && pointer.y < r.y + ROW);
    if (row) chooseStage(row.stage); else refresh();
  });
  canvas.addEventListener("pointercancel", () => { dragFrom = null; pointer = null; refresh(); });
  canvas.addEventListener("dblclick", () => setView(0, data.step_ns));
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, toTime(place(event).x));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const span = view.to - view.from, middle = (view.from + view.to) / 2;
    if (event.key === "ArrowLeft") setView(view.from - span / 5, view.to - span / 5);
    else if (event.key === "ArrowRight") setView(view.from + span / 5, view.to + span / 5);
    else if (event.key === "+" || event.key === "=") zoom(0.6, middle);
    else if (event.key === "-") zoom(1 / 0.6, middle);
    else if (event.key === "0") setView(0, data.step_ns);
    else return;
    event.preventDefault();
  });
  document.getElementById("zoom-in").addEventListener("click", () => zoom(0.6, (view.from + view.to) / 2));
  document.getElementById("zoom-out").addEventListener("click", () => zoom(1 / 0.6, (view.from + view.to) / 2));
  document.getElementById("zoom-reset").addEventListener("click", () => setView(0, data.step_ns));

  function fillLegend(id, entries) {
    const box = document.getElementById(id);
    box.replaceChildren();
    for (const [name, title] of entries) {
      const entry = document.createElement("span"), mark = document.createElement("i");
      mark.className = "swatch";
      mark.style.background = "var(--" + name + ")";
      entry.append(mark, title);
      box.append(entry);
    }
  }

  function fillLegends() {
    fillLegend("bar-legend", data.stages[view.stage].bar_legend);
    const real = data.stages[view.stage].real.map((curve) => [curve.colour, curve.name]);
    fillLegend("memory-legend", [...data.stages[view.stage].memory_legend, ...real]);
  }

  fillLegends();
  const choice = document.getElementById("stage");
  data.stages.forEach((stage, i) => choice.append(new Option(String(stage.stage), String(i))));
  choice.addEventListener("change", () => chooseStage(Number(choice.value)));
  document.getElementById("stage-choice").hidden = !isPipeline;
  choice.value = String(view.stage);
  readColours();
  draw();
  window.addEventListener("resize", refresh);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); refresh(); });
})();
