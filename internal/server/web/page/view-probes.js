// Probes with what they count, and attaching more.
import {call, judge} from "./api.js";
import {combo} from "./complete.js";
import {button, count, el, errorBox, field, later, plural, rate, rows, set, svg, table, verdict} from "./dom.js";
import {state, watch} from "./state.js";

// place says whether the text before the cursor ends in a definition's place: its second word.
const place = (before) => /^\s*[prw][\w:/.]*\s+\S*$/.test(before);

const placeOf = (p) => (p.kind === "r" ? "return of " : "") + (p.symbol ? p.symbol + (p.offset ? "+0x" + p.offset.toString(16) : "") : p.addr);
// howOf says how hits come, and where handlers run, in the words of 'guestprobe top'.
const howOf = (p) => !p.enabled ? "disabled" : !p.armed ? "not armed" : (p.optimized ? "jump" : p.plan === "debug_register" || p.plan === "page" ? p.plan.replace("_", " ") : "int3") + (p.runs ? ", " + p.runs : "");
// What columns are sorted by.
const orders = [(p) => p.name, placeOf, howOf, (p) => p.rate, null, (p) => p.hits, (p) => p.filtered, (p) => p.missed, (p) => p.lost];
const ROW = 36; // pixels, until one is there to be measured

export function show(section) {
  const box = errorBox(), said = verdict("def-note", "Names of functions are completed while you type. A definition is checked before it is attached.");
  const def = el("input", {id: "def", class: "mono", placeholder: "p:myread vfs_read fd=%di:s32", "aria-describedby": "def-note"});
  const filter = el("input", {class: "mono", placeholder: "count > 100", autocomplete: "off", spellcheck: "false"});
  const stack = el("input", {type: "checkbox"});
  const spec = () => ({def: def.value, ...filter.value.trim() && {filter: filter.value.trim()}, ...stack.checked && {stack: true}});
  let asked = 0;
  const check = later(200, async () => {
    const mine = ++asked;
    let err = null, text = "";
    if (def.value.trim() !== "") {
      try {
        const r = await judge({probe: spec()});
        text = r.probes === 1 ? "This is one probe." : r.probes > 1 ? "These are " + count(r.probes) + " probes." : "";
      } catch (e) {
        err = e;
      }
    }
    if (mine === asked) {
      said.box.show(err);
      said.say(text);
    }
  });
  for (const e of [def, filter, stack]) {
    e.addEventListener("input", check);
  }
  const form = el("form", {class: "card"}, el("div", {class: "bar"}, el("label", {for: "def", text: "Definition"}), combo(def, place), field("Filter", filter), field("Stacks", stack), el("button", {class: "main", text: "Attach"})), said.e);
  form.addEventListener("submit", async (e) => {
    e.preventDefault();
    const mine = ++asked;
    try {
      said.box.show(null);
      const list = await call("POST", "/v1/probes", spec());
      def.value = filter.value = "";
      said.say("Attached " + list.probes.slice(0, 5).map((p) => p.name).join(", ") + (list.probes.length > 5 ? " and " + (list.probes.length - 5) + " more" : "") + ".");
    } catch (err) {
      if (mine === asked) {
        said.box.show(err);
      }
    }
  });
  const t = table("Probes, with their counts", ["probe", "place", "by, runs", "#hits/s", "last 30 s", "#hits", "#filtered", "#missed", "#lost", "~actions"]);
  const none = el("p", {class: "none"});
  const all = button("Detach all", box, async () => {
    if (confirm("Detach " + plural(state.probes.size, "probe") + "? Those that other clients attached are among them.")) {
      await call("DELETE", "/v1/probes");
    }
  }, {class: "small"});
  const search = el("input", {type: "search", id: "probes-filter", autocomplete: "off", spellcheck: "false", placeholder: "name or place"});
  const shown = el("span", {id: "probes-shown", class: "dim grow", role: "status"});
  // Of ten thousand rows those in sight are in the document; others are the heights of two bodies of the table.
  const space = () => el("tbody", {"aria-hidden": "true"}, el("tr", {}, el("td", {class: "space", colspan: "10"})));
  const above = space(), below = space();
  const room = (body, pixels) => {
    body.hidden = pixels === 0;
    body.rows[0].cells[0].style.height = pixels + "px";
  };
  t.body.before(above);
  t.body.after(below);
  const frame = el("div", {class: "scroll tall", role: "region", "aria-label": "List of probes", tabindex: "0"}, t.e);
  section.append(form, box, el("div", {class: "bar"}, el("h2", {text: "Probes"}), field("Containing", search), shown, all), frame, none);
  const make = (p) => {
    const line = svg("polyline");
    const spark = svg("svg", {class: "spark", viewBox: "0 0 59 20", preserveAspectRatio: "none", role: "img"}, line);
    const cells = Array.from({length: 10}, (_, i) => el("td", {class: [3, 5, 6, 7, 8].includes(i) ? "n" : i === 0 ? "cut" : i === 1 ? "mono cut" : null}));
    const code = el("a");
    cells[1].append(code);
    cells[4].append(spark);
    const onoff = button("", box, () => call("PATCH", "/v1/probes/" + encodeURIComponent(p.name), {enabled: !p.enabled}), {class: "small"});
    cells[9].append(el("div", {class: "bar"}, onoff, button("Detach", box, () => call("DELETE", "/v1/probes?" + new URLSearchParams({probe: p.name})), {class: "small", "aria-label": "Detach " + p.name})));
    return {e: el("tr", {"data-probe": p.name}, ...cells), cells, line, spark, onoff, code};
  };
  const update = (r, p) => {
    [p.name, null, howOf(p), rate(p.rate), null, count(p.hits), count(p.filtered), count(p.missed), count(p.lost)].forEach((v, i) => v !== null && set(r.cells[i], v));
    set(r.code, placeOf(p));
    r.cells[0].title = p.name; // what has no room in its cell
    r.cells[1].title = placeOf(p);
    r.code.href = "#code:" + encodeURIComponent(p.addr);
    r.cells[7].classList.toggle("bad", p.missed > 0);
    r.cells[8].classList.toggle("bad", p.lost > 0);
    set(r.onoff, p.enabled ? "Disable" : "Enable");
    r.onoff.setAttribute("aria-label", r.onoff.textContent + " " + p.name);
    const top = Math.max(1, ...p.rates);
    r.line.setAttribute("points", p.rates.map((v, i) => (60 - p.rates.length + i) + "," + (19 - 18 * v / top).toFixed(1)).join(" "));
    r.spark.setAttribute("aria-label", "at most " + rate(top) + " hits a second");
  };
  let list = [], by = null, down = false, drawn = false;
  [...t.e.tHead.rows[0].cells].forEach((th, i) => {
    if (!orders[i]) {
      return;
    }
    const b = el("button", {type: "button", class: "sort", text: th.textContent});
    b.addEventListener("click", () => {
      // Numbers begin with the largest, texts with the first; a third time is the order in which they were attached.
      const first = typeof orders[i]({rate: 0, hits: 0, filtered: 0, missed: 0, lost: 0, name: "", addr: ""}) === "number";
      [by, down] = by !== i ? [i, first] : down === first ? [i, !first] : [null, false];
      [...t.e.tHead.rows[0].cells].forEach((c, j) => j === by ? c.setAttribute("aria-sort", down ? "descending" : "ascending") : c.removeAttribute("aria-sort"));
      arrange();
    });
    th.replaceChildren(b);
  });
  const draw = () => {
    drawn = false;
    const height = t.body.firstElementChild?.offsetHeight || ROW;
    const from = Math.max(0, Math.min(list.length, Math.floor(frame.scrollTop / height) - 4)), to = Math.min(list.length, from + Math.ceil(frame.clientHeight / height) + 8);
    room(above, from * height);
    room(below, (list.length - to) * height);
    rows(t.body, list.slice(from, to), (p) => p.id, make, update);
    list.slice(from, to).forEach((p, i) => t.body.known.get(p.id).e.setAttribute("aria-rowindex", String(from + i + 2)));
    t.e.setAttribute("aria-rowcount", String(list.length + 1));
  };
  const arrange = () => {
    const text = search.value.trim().toLowerCase();
    const want = [...state.probes.values()].filter((p) => text === "" || p.name.toLowerCase().includes(text) || placeOf(p).toLowerCase().includes(text));
    if (by !== null) {
      const of = orders[by];
      want.sort((a, b) => {
        const x = of(a), y = of(b), n = x < y ? -1 : x > y ? 1 : 0;
        return (down ? -n : n) || a.id - b.id;
      });
    }
    if (t.body.contains(document.activeElement)) { // who is at a row's buttons does not want it to run away
      const at = new Map(list.map((p, i) => [p.id, i]));
      want.sort((a, b) => (at.get(a.id) ?? Infinity) - (at.get(b.id) ?? Infinity) || 0);
    }
    list = want;
    set(shown, list.length === state.probes.size ? plural(list.length, "probe") : count(list.length) + " of " + plural(state.probes.size, "probe"));
    none.hidden = state.guest === null || list.length > 0;
    set(none, state.probes.size > 0 ? "No probe has this text in its name or place. Change or clear the text." : "No probe is attached. Type a definition above, such as p:myread vfs_read, and press Attach.");
    frame.hidden = list.length === 0;
    all.hidden = state.probes.size === 0;
    draw();
  };
  frame.addEventListener("scroll", () => {
    if (!drawn) {
      drawn = true;
      requestAnimationFrame(draw);
    }
  });
  search.addEventListener("input", arrange);
  return watch(arrange);
}
