"use strict";
/* A step is [number, kind, beat, prefill tokens, decode tokens, requests, held, start us, duration us or -1, why]. */
const KINDS = ["prefill", "mixed", "decode", "held", "dummy", "exchange", "empty"];
const LETTERS = { prefill: "P", mixed: "M", decode: "", held: "H", dummy: "", exchange: "", empty: "" };
const SAID = {
  prefill: "prefill", mixed: "prefill and decode", decode: "decode", held: "decode, with prefills held back",
  dummy: "dummy: no tokens of its own", exchange: "exchange: whether to go on", empty: "nothing scheduled",
};
let data = JSON.parse(document.getElementById("data").textContent);
const LEFT = 74, TOP = 26, STRIP = 20;
const ROW = Math.max(76, Math.min(190, 400 / data.ranks.length));
let from = 0, to = 1, first = 0, last = 0, tallest = 1, log = false, colours = {};
const detail = document.getElementById("detail"), overview = document.getElementById("overview");
const tip = document.getElementById("tip");

const number = (step) => step[0];
const prefills = (step) => KINDS[step[1]] === "prefill" || KINDS[step[1]] === "mixed";
const offBeat = (step) => prefills(step) && !step[2];
const ms = (us) => (us < 0 ? "not recorded" : us >= 1e5 ? `${(us / 1e3).toFixed(0)} ms` : `${(us / 1e3).toFixed(us < 1e3 ? 2 : 1)} ms`);

function take(next) {
  data = next;
  const ends = data.ranks.filter((rank) => rank.steps.length);
  first = Math.min(...ends.map((rank) => number(rank.steps[0])));
  last = Math.max(...ends.map((rank) => number(rank.steps[rank.steps.length - 1]))) + 1;
  if (!ends.length) { first = 0; last = 1; }
  const times = ends.flatMap((rank) => rank.steps.map((step) => step[8])).filter((us) => us >= 0).sort((a, b) => a - b);
  tallest = times.length ? Math.max(1, times[Math.ceil((times.length - 1) * 0.998)]) : 1;
}

function palette() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["card", "ink", "soft", "line", "beat", "bad", "link", "prefill", "mixed", "decode", "held", "dummy", "exchange"])
    colours[name] = style.getPropertyValue(`--${name}`).trim();
  colours.empty = colours.line;
}

function at(steps, wanted) {
  let low = 0, high = steps.length;
  while (low < high) { const middle = (low + high) >> 1; if (number(steps[middle]) < wanted) low = middle + 1; else high = middle; }
  return low;
}

function share(step) {
  const us = step[8];
  if (us < 0) return KINDS[step[1]] === "exchange" ? 0.03 : 0.12;
  const part = log ? Math.log1p(us / tallest * 60) / Math.log(61) : us / tallest;
  return Math.max(0.02, Math.min(1, part));
}

function context(canvas, height) {
  const width = canvas.clientWidth, scale = window.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * scale); canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale); pen.clearRect(0, 0, width, height);
  return [pen, width];
}

/* Colour is never alone: mixed is striped up, held striped down, a dummy is hollow, prefill is solid. */
function bar(pen, kind, x, y, width, height) {
  pen.fillStyle = colours[kind];
  if (kind === "dummy" || kind === "empty") {
    pen.globalAlpha = 0.35; pen.fillRect(x, y, width, height); pen.globalAlpha = 1;
    if (width > 3) { pen.strokeStyle = colours.dummy; pen.strokeRect(x + 0.5, y + 0.5, width - 1, Math.max(0.5, height - 1)); }
    return;
  }
  pen.fillRect(x, y, width, height);
  if ((kind === "mixed" || kind === "held") && width >= 4) {
    pen.save(); pen.beginPath(); pen.rect(x, y, width, height); pen.clip();
    pen.strokeStyle = colours.card; pen.lineWidth = 1.2; pen.beginPath();
    const lean = kind === "mixed" ? 1 : -1, start = lean > 0 ? x - height : x;
    for (let line = start; line < x + width + height; line += 5) { pen.moveTo(line, y + height); pen.lineTo(line + lean * height, y); }
    pen.stroke(); pen.restore();
  }
}

function mark(pen, x, y) {
  pen.fillStyle = colours.ink; pen.beginPath(); pen.moveTo(x - 5, y - 8); pen.lineTo(x + 5, y - 8); pen.lineTo(x, y); pen.fill();
}

function lane(pen, steps, x0, width, a, b, base, room, letters) {
  const wide = width / (b - a);
  const begin = at(steps, Math.floor(a)), end = at(steps, Math.ceil(b));
  if (wide >= 2) {
    for (let i = begin; i < end; i++) {
      const step = steps[i], kind = KINDS[step[1]], x = x0 + (number(step) - a) * wide;
      const gap = wide >= 4 ? Math.min(3, wide / 6) : 0, tall = Math.max(2, share(step) * room);
      if (wide < 4) { bar(pen, kind, x, base - tall, Math.max(1, wide), tall); }
      else bar(pen, kind, x + gap / 2, base - tall, wide - gap, tall);
      if (letters && wide >= 16 && LETTERS[kind]) {
        pen.fillStyle = colours.soft; pen.font = "11px system-ui, sans-serif"; pen.textAlign = "center";
        pen.fillText(LETTERS[kind], x + wide / 2, base - tall - 4);
      }
    }
  } else {  /* several steps a pixel: the tallest stands, so that no prefill gets lost */
    let pixel = -1, best = null;
    const put = () => { if (best) { const tall = Math.max(2, share(best) * room); bar(pen, KINDS[best[1]], x0 + pixel, base - tall, 1, tall); } };
    for (let i = begin; i < end; i++) {
      const spot = Math.floor((number(steps[i]) - a) * wide);
      if (spot !== pixel) { put(); pixel = spot; best = steps[i]; }
      else if (prefills(steps[i]) > prefills(best) || (prefills(steps[i]) === prefills(best) && steps[i][8] > best[8])) best = steps[i];
    }
    put();
  }
  for (let i = begin; i < end; i++)
    if (offBeat(steps[i])) {
      const tall = letters ? share(steps[i]) * room + (wide >= 16 ? 15 : 2) : room;
      mark(pen, x0 + (number(steps[i]) - a + 0.5) * wide, base - (letters ? tall : Math.min(room - 2, tall)));
    }
}

function beats(pen, x0, width, a, b, top, height) {
  const wide = width / (b - a);
  if (data.interval < 2 || !data.lockStep || wide < 2.5) return;
  const seen = new Set();
  for (const { steps } of data.ranks)
    for (let i = at(steps, Math.floor(a)); i < steps.length && number(steps[i]) < b; i++)
      if (steps[i][2] && !seen.has(number(steps[i]))) {
        seen.add(number(steps[i]));
        const x = x0 + (number(steps[i]) - a) * wide;
        pen.fillStyle = colours.beat; pen.fillRect(x, top - 8, wide, height + 8);
        if (wide >= 5) { pen.fillStyle = colours.soft; pen.beginPath(); pen.arc(x + wide / 2, top - 4, 2.2, 0, 7); pen.fill(); }
      }
}

function axis(pen, x0, width, a, b) {
  const aim = width / 90, raw = (b - a) / aim, power = 10 ** Math.floor(Math.log10(Math.max(1, raw)));
  const every = Math.max(1, [1, 2, 5, 10].find((m) => m * power >= raw) * power);
  pen.fillStyle = colours.soft; pen.font = "11px system-ui, sans-serif"; pen.textAlign = "center";
  for (let n = Math.ceil(a / every) * every; n < b; n += every) pen.fillText(n.toLocaleString("en"), x0 + (n - a + 0.5) * (width / (b - a)), 12);
}

function draw() {
  from = Math.max(first, from); to = Math.min(last, Math.max(to, from + 4));
  const [pen, full] = context(detail, TOP + data.ranks.length * ROW + 4);
  const width = full - LEFT - 8, wide = width / (to - from);
  pen.save(); pen.beginPath(); pen.rect(LEFT, 0, width, detail.clientHeight); pen.clip();
  beats(pen, LEFT, width, from, to, TOP, data.ranks.length * ROW);
  axis(pen, LEFT, width, from, to);
  data.ranks.forEach(({ steps }, row) => {
    const base = TOP + (row + 1) * ROW - 6;
    pen.strokeStyle = colours.line; pen.beginPath(); pen.moveTo(LEFT, base + 0.5); pen.lineTo(LEFT + width, base + 0.5); pen.stroke();
    lane(pen, steps, LEFT, width, from, to, base, ROW - 30, true);
  });
  pen.restore();
  pen.textAlign = "left";
  data.ranks.forEach(({ rank }, row) => {
    const base = TOP + (row + 1) * ROW - 6;
    pen.fillStyle = colours.ink; pen.font = "600 13px system-ui, sans-serif"; pen.fillText(`rank ${rank}`, 8, base - ROW / 2 + 8);
    pen.fillStyle = colours.soft; pen.font = "10px system-ui, sans-serif"; pen.textAlign = "right";
    if (tallest > 1) { pen.fillText(ms(tallest), LEFT - 6, base - ROW + 36); pen.fillText("0", LEFT - 6, base); }
    pen.textAlign = "left";
  });
  const [small, all] = context(overview, data.ranks.length * (STRIP + 4) + 8);
  const room = all - LEFT - 8, x = (n) => LEFT + (n - first) / (last - first) * room;
  data.ranks.forEach(({ rank, steps }, row) => {
    const base = 4 + (row + 1) * (STRIP + 4) - 2;
    lane(small, steps, LEFT, room, first, last, base, STRIP, false);
    small.fillStyle = colours.soft; small.font = "11px system-ui, sans-serif"; small.fillText(`rank ${rank}`, 8, base - 4);
  });
  small.strokeStyle = colours.ink; small.lineWidth = 1.5;
  small.strokeRect(x(from), 1.5, Math.max(4, x(to) - x(from)), overview.clientHeight - 3);
  const words = data.lockStep ? "lock steps" : "steps";
  document.getElementById("window").textContent = `${words} ${Math.ceil(from).toLocaleString("en")} to ${(Math.ceil(to) - 1).toLocaleString("en")} of ${first.toLocaleString("en")} to ${(last - 1).toLocaleString("en")}` + (wide < 2 ? " (the tallest step of each pixel)" : "");
}

function move(a, b) {
  const size = Math.min(last - first, Math.max(8, b - a));
  from = Math.max(first, Math.min(a, last - size)); to = from + size; draw();
}
function zoom(factor, around) {
  const middle = around ?? (from + to) / 2, size = Math.min(last - first, Math.max(8, (to - from) * factor));
  move(middle - (middle - from) / (to - from) * size, middle - (middle - from) / (to - from) * size + size);
}
function follow() { move(last - Math.min(last - first, Math.max(16, Math.floor((detail.clientWidth - LEFT) / 9))), last); }
function nextOff(direction) {
  const all = [...new Set(data.ranks.flatMap(({ steps }) => steps.filter(offBeat).map(number)))].sort((a, b) => a - b);
  if (!all.length) return;
  const middle = Math.round((from + to) / 2 - 0.5);
  const found = direction > 0 ? all.find((n) => n > middle) ?? all[0] : all.findLast((n) => n < middle) ?? all[all.length - 1];
  const half = Math.min(60, (to - from) / 2);
  move(found + 0.5 - half, found + 0.5 + half);
}

function found(event) {
  const box = detail.getBoundingClientRect(), x = event.clientX - box.left - LEFT, row = Math.floor((event.clientY - box.top - TOP) / ROW);
  const lane = data.ranks[row];
  if (!lane || x < 0) return null;
  const wanted = Math.floor(from + x / (box.width - LEFT - 8) * (to - from)), i = at(lane.steps, wanted);
  const step = lane.steps[i];
  return step && number(step) === wanted ? [lane.rank, step] : null;
}
function say(rank, step) {
  const [n, kind, beat, prefill, decode, requests, held, start, took, why] = step;
  const lines = [`rank ${rank}, ${data.lockStep ? "lock step" : "step"} ${n.toLocaleString("en")}${data.interval > 1 ? (beat ? ", on the beat" : ", off the beat") : ""}`, SAID[KINDS[kind]]];
  if (requests) lines.push(`${prefill.toLocaleString("en")} prefill + ${decode.toLocaleString("en")} decode tokens, ${requests} request${requests > 1 ? "s" : ""}`);
  if (held) lines.push(`${held} request${held > 1 ? "s" : ""} held back`);
  lines.push(`took ${ms(took)}, began at ${(start / 1e6).toFixed(3)} s`);
  if (why >= 0) lines.push(`prefill off the beat: ${data.whys[why]}`);
  return lines.join("\n");
}

detail.addEventListener("mousemove", (event) => {
  const hit = found(event);
  tip.style.display = hit ? "block" : "none";
  if (!hit) return;
  tip.textContent = say(...hit);
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - box.width - 8)}px`;
  tip.style.top = `${Math.min(event.clientY + 14, innerHeight - box.height - 8)}px`;
});
detail.addEventListener("mouseleave", () => { tip.style.display = "none"; });
detail.addEventListener("wheel", (event) => {
  event.preventDefault();
  const box = detail.getBoundingClientRect(), wide = (to - from) / (box.width - LEFT - 8);
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) { const by = (event.deltaX || event.deltaY) * wide; move(from + by, to + by); }
  else zoom(event.deltaY > 0 ? 1.25 : 0.8, from + Math.max(0, event.clientX - box.left - LEFT) * wide);
}, { passive: false });
function drag(canvas, act) {
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); act(event, true); });
  canvas.addEventListener("pointermove", (event) => { if (event.buttons) act(event, false); });
}
drag(detail, (event, start) => {
  if (start) { drag.x = event.clientX; drag.from = from; drag.to = to; return; }
  const by = (drag.x - event.clientX) * (drag.to - drag.from) / (detail.clientWidth - LEFT - 8);
  move(drag.from + by, drag.to + by);
});
drag(overview, (event) => {
  const box = overview.getBoundingClientRect(), size = to - from;
  const middle = first + (event.clientX - box.left - LEFT) / (box.width - LEFT - 8) * (last - first);
  move(middle - size / 2, middle + size / 2);
});
const ACTS = {
  all: () => move(first, last), end: follow, in: () => zoom(0.5), out: () => zoom(2),
  left: () => move(from - (to - from) / 2, to - (to - from) / 2), right: () => move(from + (to - from) / 2, to + (to - from) / 2),
  previous: () => nextOff(-1), next: () => nextOff(1),
};
const KEYS = { ArrowLeft: "left", ArrowRight: "right", "+": "in", "=": "in", "-": "out", Home: "all", End: "end", n: "next", p: "previous" };
for (const button of document.querySelectorAll("button[data-act]")) button.addEventListener("click", () => ACTS[button.dataset.act]());
document.addEventListener("keydown", (event) => {
  if (KEYS[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) { event.preventDefault(); ACTS[KEYS[event.key]](); }
});
document.getElementById("log").addEventListener("change", (event) => { log = event.target.checked; draw(); });

function refresh() {
  for (const [name, text] of Object.entries(data.texts)) { const place = document.getElementById(name); if (place) place.textContent = text; }
  const off = data.ranks.some(({ steps }) => steps.some(offBeat));
  for (const name of ["previous", "next"]) document.querySelector(`[data-act=${name}]`).disabled = !off;
}
function legend() {
  for (const canvas of document.querySelectorAll(".legend canvas")) {
    const [pen] = context(canvas, 16), kind = canvas.dataset.kind;
    if (kind === "beat") { pen.fillStyle = colours.beat; pen.fillRect(0, 0, 20, 16); pen.fillStyle = colours.soft; pen.beginPath(); pen.arc(10, 5, 2.2, 0, 7); pen.fill(); }
    else if (kind === "off") mark(pen, 10, 13);
    else bar(pen, kind, 0, 1, 20, 14);
  }
}
async function live() {
  const atEnd = to >= last - 0.5, size = to - from;
  try {
    const answer = await fetch(data.live);
    if (answer.ok) {
      take({ ...(await answer.json()), live: data.live }); refresh();
      if (atEnd) move(last - size, last); else draw();
    }
  } finally { setTimeout(live, 2000); }
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { palette(); legend(); draw(); });
new ResizeObserver(draw).observe(detail.parentElement);
palette(); take(data); refresh(); legend(); follow();
if (data.live) setTimeout(live, 2000);
