// Where the guest spends its time, or who calls what is probed.
import {call, stream} from "./api.js";
import {combo} from "./complete.js";
import {count, el, errorBox, field, plural, set} from "./dom.js";

// The last graph stays while the window is open.
let last = null;

export function show(section) {
  const box = errorBox();
  const hz = el("input", {type: "number", min: "1", max: "1000", value: "99", size: "5"});
  const def = el("input", {class: "mono", placeholder: "p vfs_read; empty: vCPUs", "aria-label": "Stacks of this definition's hits"});
  const go = el("button", {class: "main", text: "Record"});
  const stop = el("button", {type: "button", text: "Stop and show", disabled: true});
  const note = el("p", {class: "dim", role: "status"}), none = el("p", {class: "none", text: "No graph yet. Press Record, wait some seconds, then press Stop and show. With a definition the graph has the callers of its hits; without one, samples of the vCPUs.", hidden: last !== null});
  const form = el("form", {class: "bar"}, go, stop, field("Hz", hz), combo(def, (before) => /\s\S*$/.test(before)));
  const frame = el("iframe", {title: "Flame graph", src: "flame.html", hidden: true});
  section.append(form, box, note, none, frame);
  let close = null, number = 0, clock = 0;

  const draw = () => {
    frame.hidden = false;
    frame.contentWindow.postMessage(last, location.origin);
  };
  const ready = (e) => e.source === frame.contentWindow && e.data === "ready" && last !== null && draw();
  window.addEventListener("message", ready);

  form.addEventListener("submit", (e) => {
    e.preventDefault();
    if (close) {
      return;
    }
    box.show(null);
    const probes = def.value.trim() === "" ? null : [{def: def.value}];
    const began = Date.now();
    let lost = 0, graph = null;
    go.disabled = none.hidden = true;
    close = stream("POST", "/v1/profile", {graph: true, ...probes ? {probes} : {hz: Number(hz.value)}}, {
      onstart: (s) => {
        number = s.stream;
        stop.disabled = false;
        const tick = () => set(note, "Recording for " + Math.round((Date.now() - began) / 1000) + " s.");
        tick();
        clock = setInterval(tick, 1000);
      },
      ongraph: (g) => { graph = g; },
      onend: (e) => { lost = e.lost; },
      end: (err) => {
        clearInterval(clock);
        close = null;
        go.disabled = false;
        stop.disabled = true;
        if (err !== null) {
          set(note, "");
          box.show(err);
          return;
        }
        if (graph === null) {
          set(note, "The recording was cut off before its graph arrived. Record again.");
          return;
        }
        set(note, (graph.unit === "ms" ? count(graph.root[2] / 1e6) + " ms" : plural(graph.root[2], graph.unit.replace(/s$/, ""))) + ", " + count(lost) + " lost" + (lost === 0 ? "." : ". Lost are " + (probes ? "hits that came faster than their stacks could be recorded" : "samples that were taken too late or within a hit of a probe") + ", and stacks for which there was no room. The graph lacks them."));
        last = {title: probes ? "Hits of " + def.value : "The guest's vCPUs at " + hz.value + " Hz", graph: JSON.stringify(graph)};
        frame.src = "flame.html"; // it says when it is ready
        frame.hidden = false;
      },
    });
  });
  stop.addEventListener("click", () => call("DELETE", "/v1/events/" + number).catch((err) => box.show(err)));
  return () => {
    clearInterval(clock);
    close?.();
    window.removeEventListener("message", ready);
  };
}
