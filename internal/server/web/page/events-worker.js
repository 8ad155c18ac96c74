// The stream of events: read here, so that the window stays quick. The last lines are kept as they came; what the
// window shows is asked for, and only that is read.
import {socket} from "./api.js";

const KEPT = 50000;
let ring = [], first = 0; // ring[i % KEPT] is line i, for first <= i < next
let next = 0, delivered = 0, lost = 0, ended = null, error = null, close = null;
let needle = "", held = null;

const HIT = '{"type":"hit"';

function put(line) {
  ring[next++ % KEPT] = line;
  first = Math.max(0, next - KEPT);
}

function text(lines) {
  let from = 0;
  for (let to = lines.indexOf("\n"); to >= 0; from = to + 1, to = lines.indexOf("\n", from)) {
    const line = lines.slice(from, to);
    if (line.startsWith(HIT)) {
      delivered++;
      if (needle === "" || line.toLowerCase().includes(needle)) {
        put(line);
      }
      continue;
    }
    const r = JSON.parse(line);
    switch (r.type) {
      case "lost":
        lost = r.data.total;
        put(line);
        break;
      case "boot": case "stop":
        put(line);
        break;
      case "end":
        lost = r.data.lost;
        ended = r.data.reason;
    }
  }
}

onmessage = ({data: m}) => {
  if (m.open) {
    close?.();
    ring = [];
    first = next = delivered = lost = 0;
    ended = error = held = null;
    close = socket(m.open, {text, end: (err) => { ended ??= "cut off"; error = err?.fields ?? null; }});
  } else if (m.needle !== undefined) {
    const all = [];
    for (let i = first; i < next; i++) {
      all.push(ring[i % KEPT]);
    }
    needle = m.needle.toLowerCase();
    ring = [];
    first = next = 0;
    all.filter((l) => !l.startsWith(HIT) || l.toLowerCase().includes(needle)).forEach(put);
  } else if (m.hold !== undefined) {
    held = null;
    if (m.hold) {
      held = [];
      for (let i = first; i < next; i++) {
        held.push(ring[i % KEPT]);
      }
    }
  } else if (m.rows !== undefined) {
    const size = held ? held.length : next - first;
    const end = Math.max(0, size - m.rows), from = m.follow ? end : Math.min(m.from, end);
    const lines = [];
    for (let i = from; i < Math.min(size, from + m.rows); i++) {
      lines.push(held ? held[i] : ring[(first + i) % KEPT]);
    }
    postMessage({size, from, lines, delivered, lost, ended, error, at: performance.now()});
  }
};
