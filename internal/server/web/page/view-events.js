// Events as they come: the last 50,000, of which the window has those in sight.
import {APIError, call, key} from "./api.js";
import {count, el, errorBox, field, later, plural, rate, set} from "./dom.js";
import {state} from "./state.js";

const ROW = 20; // pixels of scrolling for each event

// rowText returns the text of an event in columns or, where there is no room for columns, without.
function rowText(line, columns) {
  const r = JSON.parse(line), d = r.data;
  switch (r.type) {
    case "lost": return ["— " + plural(d.lost, "event") + " lost here —", "lost"];
    case "boot": return ["— the guest rebooted —", ""];
    case "stop": return ["— " + d.probe + " stopped vCPU " + d.cpu + " —", ""];
  }
  const task = d.task ? d.task.comm + "-" + d.task.pid : "";
  return [(d.timeNs / 1e9).toFixed(6).padStart(columns ? 14 : 0) + "  [" + String(d.cpu).padStart(3, "0") + "]  " + (columns ? task.padEnd(task ? 22 : 0) : task && task + "  ") + d.probe.slice(d.probe.indexOf("/") + 1) + ": " + d.text + (d.durationNs ? "  " + (d.durationNs / 1000).toFixed(1) + " us" : ""), ""];
}

export function show(section) {
  const box = errorBox();
  const worker = new Worker("events-worker.js", {type: "module"});
  const pause = el("button", {type: "button", text: "Pause", "aria-pressed": "false"});
  const clear = el("button", {type: "button", text: "Clear"});
  const needle = el("input", {type: "search", class: "mono", placeholder: "text", autocomplete: "off", spellcheck: "false"});
  const only = el("select", {}, el("option", {value: "", text: "all probes"}), ...[...state.probes.values()].slice(0, 500).map((p) => el("option", {value: p.name, text: p.name})));
  const counts = el("p", {id: "event-counts", role: "status", "aria-live": "off"});
  // Lines wrap, so rows differ in height. The scroll bar moves over all events as if each were one line; the rows in sight
  // are those at its fraction of the way, shifted by that fraction of the height that has no room.
  const body = el("div", {class: "rows"}), spacer = el("div", {class: "space"}, body), none = el("p", {class: "none"});
  const frame = el("div", {class: "list mono", role: "log", "aria-label": "Events", "aria-live": "off", tabindex: "0"}, spacer, none);
  const detail = el("pre", {class: "card", hidden: true, "aria-label": "The event"});
  section.append(el("div", {class: "bar"}, pause, clear, field("Probe", only), field("Containing", needle), counts), box, frame, detail);

  let rowsThere = [], held = false, asked = false, size = 0, gone = false, lastDelivered = 0, lastAt = 0, perSecond = 0;
  const openStream = () => {
    const body = only.value === "" ? {} : {names: [only.value]};
    worker.postMessage({open: {key: key.get(), method: "POST", path: "/v1/events", body}});
    lastDelivered = lastAt = perSecond = 0;
    hold(false);
  };
  const hold = (on) => {
    held = on;
    worker.postMessage({hold: on});
    pause.setAttribute("aria-pressed", String(on));
    set(pause, on ? "Resume" : "Pause");
    if (!on) {
      frame.scrollTop = frame.scrollHeight;
    }
  };
  const fraction = () => {
    const most = spacer.offsetHeight - frame.clientHeight;
    return held && most > 0 ? Math.min(1, frame.scrollTop / most) : 1;
  };
  const frameLoop = () => {
    if (gone) {
      return;
    }
    if (!asked) {
      asked = true;
      const n = Math.ceil(frame.clientHeight / ROW) + 1;
      worker.postMessage({rows: n, from: Math.floor(fraction() * Math.max(0, size - n)), follow: !held});
    }
    requestAnimationFrame(frameLoop);
  };
  // The browser loads the worker from the daemon, which may have ended.
  worker.onerror = (e) => {
    e.preventDefault();
    box.show(new APIError(0, {message: "the daemon does not answer", code: "unreachable"}));
  };
  worker.onmessage = ({data: m}) => {
    asked = false;
    if (m.at - lastAt > 1000 || m.delivered < lastDelivered) {
      perSecond = lastAt === 0 ? 0 : Math.max(0, m.delivered - lastDelivered) / (m.at - lastAt) * 1000;
      lastDelivered = m.delivered;
      lastAt = m.at;
    }
    while (rowsThere.length < m.lines.length) {
      const r = el("div", {class: "row"});
      rowsThere.push(r);
      body.append(r);
    }
    const columns = frame.clientWidth > 700;
    rowsThere.forEach((r, i) => {
      r.hidden = i >= m.lines.length;
      if (r.hidden || r.line === m.lines[i] && r.at === m.from + i && r.columns === columns) {
        return;
      }
      r.line = m.lines[i];
      r.at = m.from + i;
      r.columns = columns;
      const [text, kind] = rowText(r.line, columns);
      r.className = "row " + kind;
      set(r, text);
    });
    size = m.size;
    const height = body.offsetHeight;
    spacer.style.height = Math.max(size * ROW, height) + "px";
    if (!held) {
      frame.scrollTop = frame.scrollHeight;
    }
    body.style.top = frame.scrollTop - fraction() * Math.max(0, height - frame.clientHeight) + "px";
    none.hidden = m.size > 0;
    set(none, state.probes.size === 0 ? "No probe is attached, so there are no events. Attach a probe under Probes." : needle.value !== "" ? "No event contains this text. Change or clear the text." : "No event yet of " + (only.value || plural(state.probes.size, "probe")) + ". Events appear when the guest runs into a probe.");
    set(counts, plural(m.delivered, "event") + ", " + rate(perSecond) + " per second, " + count(m.lost) + " lost" + (m.size >= 50000 ? "; the last 50,000 are kept" : "") + (m.ended ? "; ended: " + m.ended.replaceAll("_", " ") : ""));
    counts.classList.toggle("bad", m.lost > 0);
    counts.dataset.delivered = m.delivered;
    counts.dataset.lost = m.lost;
    if (m.error) {
      box.show(new APIError(0, m.error));
    }
  };
  pause.addEventListener("click", () => hold(!held));
  clear.addEventListener("click", openStream);
  only.addEventListener("change", openStream);
  needle.addEventListener("input", later(200, () => worker.postMessage({needle: needle.value})));
  frame.addEventListener("wheel", (e) => e.deltaY < 0 && !held && hold(true), {passive: true});
  frame.addEventListener("keydown", (e) => {
    if (["ArrowUp", "PageUp", "Home"].includes(e.key) && !held) {
      hold(true);
    } else if (e.key === "End" && held || e.key === " ") {
      e.preventDefault();
      hold(e.key === " " && !held);
    }
  });
  frame.addEventListener("click", (e) => {
    if (e.target.line) {
      detail.hidden = false;
      set(detail, JSON.stringify(JSON.parse(e.target.line).data, null, 2));
    }
  });
  call("GET", "/v1/probes").then((l) => only.replaceChildren(only.firstChild, ...l.probes.slice(0, 500).map((p) => el("option", {value: p.name, text: p.name})))).catch((err) => box.show(err));
  openStream();
  frameLoop();
  return () => {
    gone = true;
    worker.terminate();
  };
}
