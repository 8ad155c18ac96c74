// Maps of scripts and programs, once a second, as the daemon has them: histograms, heat over time, bars.
import {call} from "./api.js";
import {count, el, errorBox, field, set, svg} from "./dom.js";

const COLUMNS = 120; // of heat: two minutes

const ROWS = 40; // of a chart
const LETTER = 6.7; // pixels, at most, of a letter of the charts' font
const HEIGHT = 160; // of heat, as in style.css

// bars draws bars in a width of so many pixels, at which letters keep their size.
function bars(items, WIDTH) {
  const rows = items.slice(0, ROWS), ROW = 18;
  const LEFT = 12 + Math.min(WIDTH * 0.45, LETTER * Math.max(...rows.map((r) => r.label.length), 3)), letters = Math.floor((LEFT - 10) / LETTER);
  const most = Math.max(1, ...rows.map((r) => r.count));
  const e = svg("svg", {viewBox: "0 0 " + WIDTH + " " + Math.max(1, rows.length) * ROW, role: "img"});
  rows.forEach((r, i) => {
    const text = svg("text", {x: LEFT - 8, y: i * ROW + 13, "text-anchor": "end"});
    text.textContent = r.label.length > letters ? r.label.slice(0, letters - 1) + "…" : r.label;
    const whole = svg("title");
    whole.textContent = r.label;
    const value = svg("text", {x: LEFT + 6 + (WIDTH - LEFT - 90) * r.count / most, y: i * ROW + 13});
    value.textContent = count(r.count);
    if (r.label.length > letters) {
      text.append(whole);
    }
    e.append(text, svg("rect", {x: LEFT, y: i * ROW + 2, width: Math.max(0, (WIDTH - LEFT - 90) * r.count / most), height: ROW - 4, rx: 2}), value);
  });
  return e;
}

const shade = (n, most) => `rgba(255, 120, 40, ${0.15 + 0.85 * Math.log1p(n) / Math.log1p(most)})`;

// heatFrame makes the place of a picture, with axes and a scale.
function heatFrame(name) {
  const canvas = el("canvas", {role: "img", "aria-label": "Heat map of " + name + " over the last two minutes"});
  const y = el("div", {class: "y", "aria-hidden": "true"}), scale = el("p", {class: "scale dim"});
  const x = el("div", {class: "x dim"}, el("span", {text: "2 min ago"}), el("span", {text: "1 min ago"}), el("span", {text: "now"}));
  return {frame: el("div", {class: "heat"}, y, canvas, x, scale), canvas, y, scale};
}

// axes draws the names of a picture's rows, as many as there is room for, and the counts of its shades.
function axes(card, most) {
  const n = card.labels.length, step = Math.ceil(n * 14 / HEIGHT);
  const named = card.labels.map((text, i) => ({text, at: 100 * (n - i - 0.5) / n})).filter((_, i) => i % step === 0);
  const key = JSON.stringify([named, most]);
  if (card.axes === key) {
    return;
  }
  card.axes = key;
  card.y.style.width = Math.min(24, Math.max(...named.map((r) => r.text.length))) + "ch";
  card.y.replaceChildren(...named.map((r) => {
    const e = el("span", {text: r.text.length > 24 ? r.text.slice(0, 23) + "…" : r.text, title: r.text});
    e.style.top = r.at + "%";
    return e;
  }));
  const counts = [...new Set([1, Math.round(most ** (1 / 3)), Math.round(most ** (2 / 3)), most])];
  card.scale.replaceChildren("Counted per second:", ...counts.map((c) => {
    const i = el("i");
    i.style.background = shade(c, most);
    return el("span", {}, i, count(c));
  }));
}

// heat keeps a picture: a column a second, a row a bucket, what was counted in that second.
function heat(card, buckets) {
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
  axes(card, most);
  card.columns.forEach((m, x) => card.labels.forEach((l, y) => {
    const n = m.get(l) ?? 0;
    if (n > 0) {
      g.fillStyle = shade(n, most);
      g.fillRect(COLUMNS - card.columns.length + x, rows - 1 - y, 1, 1);
    }
  }));
}

export function show(section, which) {
  const box = errorBox();
  const pick = el("select", {});
  const note = el("p", {class: "dim", role: "status"});
  const grid = el("div", {class: "charts"});
  section.append(el("div", {class: "bar"}, field("Source", pick), note), box, grid);
  let cards = new Map(), gone = false, timer = 0, turn = 0;
  const empty = () => {
    cards = new Map();
    grid.replaceChildren();
  };
  pick.addEventListener("change", () => {
    empty();
    history.replaceState(null, "", "#charts:" + encodeURIComponent(pick.value));
    clearTimeout(timer);
    tick();
  });
  const tick = async () => {
    const mine = ++turn; // another one has begun when another source was chosen
    try {
      let l = await call("GET", "/v1/charts" + (pick.value ? "?" + new URLSearchParams({of: pick.value}) : "")).catch((err) => {
        if (err.status !== 404) {
          throw err;
        }
        return call("GET", "/v1/charts"); // it has gone
      });
      if (gone || mine !== turn) {
        return;
      }
      const ids = l.sources.map((s) => s.id), was = pick.value;
      if ([...pick.options].map((o) => o.value).join("\n") !== ids.join("\n")) {
        const want = was || which;
        pick.replaceChildren(...l.sources.map((s) => el("option", {value: s.id, text: s.label + (s.kind === "script" ? "" : s.kind === "stream" ? ", run elsewhere" : "")})));
        if (ids.includes(want)) {
          pick.value = want;
        }
      }
      if (pick.value !== was && pick.value !== "") {
        empty();
        l = await call("GET", "/v1/charts?" + new URLSearchParams({of: pick.value}));
        if (gone || mine !== turn) {
          return;
        }
      }
      const source = l.sources.find((s) => s.id === pick.value);
      set(note, source === undefined ? "No script runs, and no program from an object file is attached. Leave a script running under Scripts; its histograms and maps appear here." :
        source.ended ? "The source has ended: " + source.ended.replaceAll("_", " ") + "." : l.left ? count(l.left) + (l.left === 1 ? " more is" : " more are") + " not shown." : l.charts.length === 0 ? "It has no maps yet. They appear when its probes are hit." : "");
      if (source !== undefined && !source.ended) {
        draw(l.charts);
      }
      box.show(null);
    } catch (err) {
      if (!gone && mine === turn) {
        box.show(err);
      }
    }
    if (!gone && mine === turn) {
      timer = setTimeout(tick, 1000);
    }
  };
  const draw = (all) => {
    const there = new Set(all.map((c) => c.name));
    for (const [name, card] of cards) {
      if (!there.has(name)) {
        card.e.remove();
        cards.delete(name);
      }
    }
    for (const c of all) {
      let card = cards.get(c.name);
      if (card === undefined) {
        card = {picture: el("div"), more: el("p", {class: "dim", hidden: true}), columns: [], labels: [], before: null, ...c.hist ? heatFrame(c.name) : {}};
        card.e = el("figure", {class: "card", "data-map": c.name}, el("h2", {class: "label", text: c.name}), card.picture, card.more, c.hist ? el("div", {class: "label", text: "Over time"}) : null, c.hist ? card.frame : null);
        card.e.style.margin = "0";
        cards.set(c.name, card);
        grid.append(card.e);
      }
      const e = bars(c.bars, Math.max(240, card.picture.clientWidth));
      e.setAttribute("aria-label", c.name + ": " + c.bars.slice(0, ROWS).map((i) => i.label + " " + i.count).join(", "));
      card.picture.replaceChildren(e);
      const more = c.bars.length - Math.min(c.bars.length, ROWS) + (c.left ?? 0);
      card.more.hidden = more === 0;
      set(card.more, count(more) + (more === 1 ? " more is" : " more are") + " not shown.");
      card.e.dataset.sum = String(c.bars.reduce((n, i) => n + i.count, 0));
      if (c.hist) {
        heat(card, c.bars);
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
