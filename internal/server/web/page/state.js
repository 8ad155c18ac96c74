// What guest and probes count, from one stream for all views of the window.
import {stream} from "./api.js";

const HISTORY = 60;
export const state = {guest: null, probes: new Map(), exits: [], connected: false, error: null, at: null};
const listeners = new Set();

// watch calls f now and after each change, until the function that it returns is called.
export function watch(f) {
  listeners.add(f);
  f();
  return () => listeners.delete(f);
}

function changed() {
  for (const f of [...listeners]) {
    f();
  }
}

let last = 0, guestBefore = null;

function moment(m) {
  const seconds = last === 0 ? 0 : (m.timeNs - last) / 1e9;
  if (m.guest) {
    guestBefore = state.guest;
    state.guest = m.guest;
    if (seconds > 0 && guestBefore !== null) {
      state.exits = m.guest.cpus.map((c, i) => {
        const was = guestBefore.cpus[i] ?? c;
        const by = {};
        for (const [reason, n] of Object.entries(c.exits)) {
          by[reason] = Math.max(0, n - (was.exits[reason] ?? 0)) / seconds;
        }
        return {total: Math.max(0, c.total - was.total) / seconds, hits: Math.max(0, c.hits - was.hits) / seconds, by};
      });
    }
  }
  for (const c of m.probes) {
    const p = state.probes.get(c.id) ?? {rate: 0, rates: [], before: c.hits};
    state.probes.set(c.id, Object.assign(p, c));
  }
  for (const id of m.detached ?? []) {
    state.probes.delete(id);
  }
  if (m.more) {
    return;
  }
  if (seconds > 0) {
    for (const p of state.probes.values()) {
      p.rate = Math.max(0, p.hits - p.before) / seconds;
      p.before = p.hits;
      p.rates.push(p.rate);
      if (p.rates.length > HISTORY) {
        p.rates.shift();
      }
    }
  }
  last = m.timeNs;
  state.at = new Date();
  state.connected = true;
  state.error = null;
  changed();
}

// connect follows the counts, and tries again when the daemon has gone, unless it refuses.
export function connect() {
  last = 0;
  stream("POST", "/v1/counts", {intervalMs: 500}, {
    onstart: () => state.probes.clear(),
    oncounts: moment,
    onend: () => {},
    end: (err) => {
      state.connected = false;
      state.error = err;
      changed();
      setTimeout(connect, 2000);
    },
  });
}
