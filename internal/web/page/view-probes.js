// Probes with what they count, and attaching more.
import {call} from "./api.js";
import {combo} from "./complete.js";
import {button, count, el, errorBox, field, later, rate, rows, set, svg, table} from "./dom.js";
import {state, watch} from "./state.js";

// place says whether the text before the cursor ends in a definition's place: its second word.
const place = (before) => /^\s*[prw][\w:/.]*\s+\S*$/.test(before);

export function show(section) {
  const box = errorBox();
  const def = el("input", {id: "def", class: "mono", placeholder: "p:myread vfs_read fd=%di count=%dx:u64", "aria-describedby": "def-note"});
  const filter = el("input", {class: "mono", placeholder: "count > 100", autocomplete: "off", spellcheck: "false"});
  const stack = el("input", {type: "checkbox"});
  const note = el("span", {id: "def-note", class: "dim", role: "status"});
  const spec = () => ({def: def.value, ...filter.value.trim() && {filter: filter.value.trim()}, ...stack.checked && {stack: true}});
  let asked = 0;
  const check = later(200, async () => {
    const mine = ++asked;
    let err = null, text = "";
    if (def.value.trim() !== "") {
      try {
        const r = await call("POST", "/v1/check", {probe: spec()});
        text = r.probes === 1 ? "This is one probe." : r.probes > 1 ? "These are " + count(r.probes) + " probes." : "";
      } catch (e) {
        err = e;
      }
    }
    if (mine === asked) {
      box.show(err);
      set(note, text);
    }
  });
  for (const e of [def, filter, stack]) {
    e.addEventListener("input", check);
  }
  const form = el("form", {class: "card"}, el("div", {class: "bar"}, el("label", {for: "def", text: "Definition"}), combo(def, place), field("Filter", filter), field("Stacks", stack), el("button", {class: "main", text: "Attach"})), note);
  form.addEventListener("submit", async (e) => {
    e.preventDefault();
    const mine = ++asked;
    try {
      box.show(null);
      const list = await call("POST", "/v1/probes", spec());
      def.value = filter.value = "";
      set(note, "Attached " + list.probes.slice(0, 5).map((p) => p.name).join(", ") + (list.probes.length > 5 ? " and " + (list.probes.length - 5) + " more" : "") + ".");
    } catch (err) {
      if (mine === asked) {
        box.show(err);
      }
    }
  });
  const t = table("Probes", ["probe", "place", "by", "#hits/s", "last 30 s", "#hits", "#filtered", "#missed", "#lost", ""]);
  const none = el("p", {class: "dim", text: "No probe is attached."});
  const all = button("Detach all", box, () => call("DELETE", "/v1/probes"), {class: "small"});
  section.append(form, box, el("div", {}, el("div", {class: "bar"}, el("h2", {text: "Probes", class: "grow"}), all), el("div", {class: "scroll"}, t.e), none));
  const make = (p) => {
    const line = svg("polyline");
    const spark = svg("svg", {class: "spark", viewBox: "0 0 59 20", preserveAspectRatio: "none", role: "img"}, line);
    const cells = Array.from({length: 10}, (_, i) => el("td", {class: [3, 5, 6, 7, 8].includes(i) ? "n" : i === 1 ? "mono" : null}));
    const code = el("a");
    cells[1].append(code);
    cells[4].append(spark);
    const onoff = button("", box, () => call("PATCH", "/v1/probes/" + encodeURIComponent(p.name), {enabled: !p.enabled}), {class: "small"});
    cells[9].append(el("div", {class: "bar"}, onoff, button("Detach", box, () => call("DELETE", "/v1/probes?" + new URLSearchParams({probe: p.name})), {class: "small", "aria-label": "Detach " + p.name})));
    return {e: el("tr", {"data-probe": p.name}, ...cells), cells, line, spark, onoff, code};
  };
  const update = (r, p) => {
    const how = !p.enabled ? "disabled" : !p.armed ? "not armed" : p.optimized ? p.runs === "guest" ? "program" : "jump" : p.plan === "debug_register" || p.plan === "page" ? p.plan.replace("_", " ") : "int3";
    [p.name, null, how, rate(p.rate), null, count(p.hits), count(p.filtered), count(p.missed), count(p.lost)].forEach((v, i) => v !== null && set(r.cells[i], v));
    set(r.code, (p.kind === "r" ? "return of " : "") + (p.symbol ? p.symbol + (p.offset ? "+0x" + p.offset.toString(16) : "") : p.addr));
    r.code.href = "#code:" + encodeURIComponent(p.addr);
    r.cells[7].classList.toggle("bad", p.missed > 0);
    r.cells[8].classList.toggle("bad", p.lost > 0);
    set(r.onoff, p.enabled ? "Disable" : "Enable");
    r.onoff.setAttribute("aria-label", r.onoff.textContent + " " + p.name);
    const top = Math.max(1, ...p.rates);
    r.line.setAttribute("points", p.rates.map((v, i) => (60 - p.rates.length + i) + "," + (19 - 18 * v / top).toFixed(1)).join(" "));
    r.spark.setAttribute("aria-label", "at most " + rate(top) + " hits a second");
  };
  return watch(() => {
    const ps = [...state.probes.values()];
    rows(t.body, ps.slice(0, 500), (p) => p.id, make, update);
    none.hidden = state.guest === null || ps.length > 0 && ps.length <= 500;
    set(none, ps.length > 500 ? count(ps.length - 500) + " more are not shown." : "No probe is attached.");
    all.hidden = ps.length === 0;
  });
}
