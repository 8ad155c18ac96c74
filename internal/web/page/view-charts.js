// Maps of scripts in the daemon, once a second: histograms, heat over time, bars.
import {call} from "./api.js";
import {count, el, errorBox, field, set, svg} from "./dom.js";

const COLUMNS = 120; // of heat: two minutes

// charts are the maps in lines of JSON as bpftrace prints them: {name, buckets} or {name, bars}.
export function charts(lines) {
  const out = [];
  for (const line of lines.split("\n")) {
    if (line === "") {
      continue;
    }
    const {type, data} = JSON.parse(line);
    for (const [name, value] of Object.entries(data ?? {})) {
      if (type === "hist" || type === "lhist") {
        for (const [key, list] of Array.isArray(value) ? [["", value]] : Object.entries(value)) {
          out.push({name: name + (key === "" ? "" : "[" + key + "]"), buckets: list.map((b) => ({label: label(b), count: b.count}))});
        }
      } else if (type === "map" || type === "stats") {
        const number = (v) => typeof v === "number" ? v : v?.count ?? v?.average;
        const bars = typeof value === "object" && value !== null && type === "map" || Object.values(value ?? {}).every((v) => typeof v === "object") ? Object.entries(value).map(([k, v]) => [k, number(v)]) : [["", number(value)]];
        out.push({name, bars: bars.filter(([, v]) => typeof v === "number").map(([k, v]) => ({label: k || name, count: v}))});
      }
    }
  }
  return out;
}

const short = (n) => Math.abs(n) >= 2 ** 20 ? n / 2 ** 20 + "M" : Math.abs(n) >= 1024 && n % 1024 === 0 ? n / 1024 + "K" : String(n);
const label = (b) => b.min === undefined ? "below " + short(b.max + 1) : b.max === undefined ? short(b.min) + " and above" : b.min === b.max ? short(b.min) : "[" + short(b.min) + ", " + short(b.max + 1) + ")";

function bars(items) {
  const rows = items.slice(0, 40), ROW = 18, LEFT = 150, WIDTH = 620;
  const most = Math.max(1, ...rows.map((r) => r.count));
  const e = svg("svg", {viewBox: "0 0 " + WIDTH + " " + Math.max(1, rows.length) * ROW, role: "img"});
  rows.forEach((r, i) => {
    const text = svg("text", {x: LEFT - 8, y: i * ROW + 13, "text-anchor": "end"});
    text.textContent = r.label.length > 22 ? r.label.slice(0, 21) + "…" : r.label;
    const value = svg("text", {x: LEFT + 6 + (WIDTH - LEFT - 90) * r.count / most, y: i * ROW + 13});
    value.textContent = count(r.count);
    e.append(text, svg("rect", {x: LEFT, y: i * ROW + 2, width: Math.max(0, (WIDTH - LEFT - 90) * r.count / most), height: ROW - 4, rx: 2}), value);
  });
  return e;
}

// heat keeps a picture: a column a second, a row a bucket, what was counted in that second.
function heat(card, buckets) {
  card.labels ??= [];
  const now = new Map(buckets.map((b) => [b.label, b.count]));
  const added = buckets.map((b) => b.label).filter((l) => !card.labels.includes(l));
  if (added.length > 0) { // buckets come as they are needed: their order is that of the histogram
    card.labels = buckets.map((b) => b.label).concat(card.labels.filter((l) => !now.has(l)));
  }
  if (card.before) {
    card.columns.push(new Map([...now].map(([l, n]) => [l, Math.max(0, n - (card.before.get(l) ?? 0))])));
    if (card.columns.length > COLUMNS) {
      card.columns.shift();
    }
  }
  card.before = now;
  const c = card.canvas, rows = Math.max(1, card.labels.length);
  c.width = COLUMNS;
  c.height = rows;
  const g = c.getContext("2d");
  const most = Math.max(1, ...card.columns.flatMap((m) => [...m.values()]));
  const [r0, g0, b0] = [255, 120, 40];
  card.columns.forEach((m, x) => card.labels.forEach((l, y) => {
    const n = m.get(l) ?? 0;
    if (n > 0) {
      g.fillStyle = `rgba(${r0}, ${g0}, ${b0}, ${0.15 + 0.85 * Math.log1p(n) / Math.log1p(most)})`;
      g.fillRect(COLUMNS - card.columns.length + x, rows - 1 - y, 1, 1);
    }
  }));
}

export function show(section, which) {
  const box = errorBox();
  const pick = el("select", {});
  const note = el("p", {class: "dim", role: "status"});
  const grid = el("div", {class: "charts"});
  section.append(el("div", {class: "bar"}, field("Script", pick), note), box, grid);
  let cards = new Map(), gone = false, timer = 0;
  pick.addEventListener("change", () => {
    cards = new Map();
    grid.replaceChildren();
    history.replaceState(null, "", "#charts:" + encodeURIComponent(pick.value));
    clearTimeout(timer);
    tick();
  });
  const tick = async () => {
    try {
      const {scripts} = await call("GET", "/v1/scripts");
      const names = scripts.map((s) => s.name);
      if (gone) {
        return;
      }
      if ([...pick.options].map((o) => o.value).join() !== names.join()) {
        const was = pick.value || which;
        pick.replaceChildren(...names.map((n) => el("option", {value: n, text: n})));
        if (names.includes(was)) {
          pick.value = was;
        }
      }
      set(note, names.length === 0 ? "No script runs in the daemon. Leave one running on the page of scripts: its histograms and maps are drawn here." : "");
      if (pick.value !== "") {
        const s = await call("GET", "/v1/scripts/" + encodeURIComponent(pick.value) + "?format=json");
        if (!gone && s.maps !== undefined && s.name === pick.value) {
          draw(charts(s.maps));
        } else if (!gone && s.ended) {
          set(note, "It has ended: " + s.ended.replaceAll("_", " ") + ".");
        }
      }
      box.show(null);
    } catch (err) {
      if (!gone) {
        box.show(err);
      }
    }
    if (!gone) {
      timer = setTimeout(tick, 1000);
    }
  };
  const draw = (all) => {
    const there = new Set(all.slice(0, 60).map((c) => c.name));
    for (const [name, card] of cards) {
      if (!there.has(name)) {
        card.e.remove();
        cards.delete(name);
      }
    }
    for (const c of all.slice(0, 60)) {
      let card = cards.get(c.name);
      if (card === undefined) {
        card = {picture: el("div"), canvas: el("canvas", {role: "img", "aria-label": "Heat of " + c.name + " over the last two minutes"}), columns: [], before: null};
        card.e = el("figure", {class: "card", "data-map": c.name}, el("h3", {text: c.name}), card.picture, c.buckets ? el("h3", {text: "each second; low values below, now on the right"}) : null, c.buckets ? card.canvas : null);
        card.e.style.margin = "0";
        cards.set(c.name, card);
        grid.append(card.e);
      }
      const items = c.buckets ?? [...c.bars].sort((a, b) => b.count - a.count);
      const e = bars(items);
      e.setAttribute("aria-label", c.name + ": " + items.slice(0, 40).map((i) => i.label + " " + i.count).join(", "));
      card.picture.replaceChildren(e);
      card.e.dataset.sum = String(items.reduce((n, i) => n + i.count, 0));
      if (c.buckets) {
        heat(card, c.buckets);
        card.e.dataset.columns = String(card.columns.length);
      }
    }
  };
  tick();
  return () => {
    gone = true;
    clearTimeout(timer);
  };
}
