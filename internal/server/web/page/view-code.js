// A function's instructions, with the probes on them, what their jumps displace, and attaching more.
import {call} from "./api.js";
import {combo} from "./complete.js";
import {count, el, errorBox, label, later, plural, rate, rows, set, table} from "./dom.js";
import {state, watch} from "./state.js";

const LISTED = 200; // functions

export function show(section, at) {
  const box = errorBox();
  const input = el("input", {class: "mono", placeholder: "vfs_read, vfs_read+0x10 or an address", value: at});
  const form = el("form", {class: "bar"}, el("label", {text: "Function"}), combo(input, () => shown !== ""), el("button", {class: "main", text: "Show"}), el("a", {class: "button", href: "#code", text: "All functions", hidden: at === ""}));
  form.querySelector("label").htmlFor = input.id = "code-at";
  const title = el("h2", {hidden: true}), note = el("p", {class: "dim", role: "status", hidden: true, text: "Press Enter on an instruction, or click it, to attach a probe to it or to detach its probes. The arrow keys select instructions."});
  const t = table("Instructions", ["offset", "bytes", "instruction", "a probe here is", "source", "#hits", "#hits/s", "probes"], {class: "code"});
  const body = el("div", {class: "scroll", hidden: true}, t.e);
  const functions = table("Functions", ["function", "address", "#bytes", "#probes", "can be probed"]), told = el("p", {class: "none", role: "status"});
  const list = el("div", {hidden: at !== ""}, told, el("div", {class: "scroll"}, functions.e));
  section.append(form, box, title, note, body, list);
  let shown = "", lines = [], gone = false, asked = 0, sources = true, listing = 0, listed = [];

  // find lists the functions whose names contain the text that is typed.
  const find = async () => {
    const mine = ++listing, text = input.value.trim().replace(/\+.*/, "");
    try {
      const l = await call("GET", "/v1/symbols?" + new URLSearchParams({match: text === "" ? "*" : "*" + text + "*", kind: "func", limit: String(LISTED)}));
      if (!gone && mine === listing) {
        listed = l.symbols;
        set(told, listed.length === 0 ? (text === "" ? "This guest's image has no names of functions. Type an address." : "No function's name contains " + text + ". Type another name, or an address.") :
          (l.more ? "The first " + count(listed.length) + " functions" : plural(listed.length, "function")) + (text === "" ? "" : " containing " + text) + ". Select one, or type part of a name.");
        drawList();
      }
    } catch (err) {
      if (!gone && mine === listing) {
        box.show(err);
      }
    }
  };
  const drawList = () => {
    const probed = new Map();
    for (const p of state.probes.values()) {
      probed.set(p.symbol, (probed.get(p.symbol) ?? 0) + 1);
    }
    rows(functions.body, listed, (s) => s.addr + s.name, (s) => {
      const probes = el("td", {class: "n"});
      return {probes, e: el("tr", {"data-function": s.name}, el("td", {class: "mono cut", title: s.name}, el("a", {href: "#code:" + encodeURIComponent(s.name), text: s.demangled || s.name})), el("td", {class: "mono dim two", text: s.addr}), el("td", {class: "n", text: count(s.size)}), probes,
        el("td", {class: "dim two", text: s.blacklist ? "no: " + s.blacklist : s.user ? "yes, user code" : "yes"}))};
    }, (r, s) => set(r.probes, probed.has(s.name) ? count(probed.get(s.name)) : ""));
  };
  const narrow = later(150, () => shown === "" && find());
  input.addEventListener("input", narrow);

  // disas asks for a function, with the source of each instruction unless the guest's is not known.
  const disas = async (what) => {
    try {
      return await call("GET", "/v1/disas?" + new URLSearchParams({at: what, lines: String(sources)}));
    } catch (err) {
      if (!sources || err.status !== 501) {
        throw err;
      }
      sources = false;
      return disas(what);
    }
  };

  const toggle = async (l) => {
    try {
      box.show(null);
      const there = l.inst.probes ?? [];
      if (there.length > 0) {
        await call("DELETE", "/v1/probes?" + new URLSearchParams(there.map((p) => ["probe", p.name])));
      } else {
        await call("POST", "/v1/probes", {def: "p " + l.inst.addr});
      }
      await load(shown, true);
    } catch (err) {
      box.show(err);
    }
  };

  const load = async (what, again) => {
    const mine = ++asked;
    try {
      const d = await disas(what);
      if (gone || mine !== asked) {
        return;
      }
      shown = what;
      draw(d, again);
    } catch (err) {
      if (!gone && mine === asked) {
        box.show(err);
      }
    }
  };

  const draw = (d, again) => {
    const focused = lines.findIndex((l) => l.e === document.activeElement);
    title.hidden = note.hidden = false;
    list.hidden = true;
    form.querySelector("a").hidden = false;
    set(title, d.symbol + ", " + plural(d.size, "byte") + " at " + d.addr + (d.user ? ", user code" : "") + (d.blacklist ? ", cannot be probed: " + d.blacklist : ""));
    let region = 0;
    lines = d.insts.map((inst) => {
      const site = inst.probes?.length > 0;
      const inRegion = inst.offset < region;
      for (const p of inst.probes ?? []) {
        region = Math.max(region, inst.offset + (p.region ?? 0));
      }
      const hits = el("td", {class: "n"}), perSecond = el("td", {class: "n"});
      const badges = (inst.probes ?? []).map((p) => el("span", {class: "badge " + p.how, text: p.name + " · " + (p.how === "none" ? "not armed" : p.how === "program" ? "jump, guest" : p.how)}));
      const kind = inst.kind === "refused" ? "rejected: " + inst.reason : (inst.ours.length > 0 ? "jump of " + plural(inst.ours.length, "byte") : "int3 (" + inst.ours.reason + ")") + ", " + inst.kind;
      const e = el("tr", {tabindex: "0", "data-offset": inst.offset, class: site ? "site" : inRegion ? "region" : inst.kind === "refused" ? "refused" : null},
        el("td", {class: "mono", text: "+0x" + inst.offset.toString(16)}), el("td", {class: "mono dim", text: inst.bytes.replace(/(..)/g, "$1 ").trim()}), el("td", {class: "mono", text: inst.text || "?"}),
        el("td", {class: "dim", text: kind, title: inst.ours.detail ?? ""}), el("td", {class: "dim", text: inst.source ?? ""}), hits, perSecond, el("td", {}, ...badges));
      const l = {e, inst, hits, perSecond};
      e.addEventListener("click", () => getSelection().isCollapsed && toggle(l));
      e.addEventListener("keydown", (k) => {
        switch (k.key) {
          case "Enter": toggle(l); break;
          case "ArrowDown": e.nextElementSibling?.focus(); break;
          case "ArrowUp": e.previousElementSibling?.focus(); break;
          default: return;
        }
        k.preventDefault();
      });
      return l;
    });
    t.body.replaceChildren(...lines.map((l) => label(t.body, l.e)));
    if (d.undecodable) {
      t.body.append(el("tr", {}, el("td", {colspan: "8", class: "warn", text: d.undecodable})));
    }
    body.hidden = false;
    counts();
    if (again && focused >= 0) {
      lines[focused]?.e.focus({preventScroll: true});
    } else if (!again) {
      lines.find((l) => l.inst.offset >= d.offset)?.e.scrollIntoView({block: "nearest"});
    }
  };

  const counts = () => {
    const by = new Map();
    for (const p of state.probes.values()) {
      // Probes on one instruction count the same hits: the one that is there for longest has most of them.
      const c = by.get(p.addr) ?? {hits: 0, rate: 0};
      by.set(p.addr, {hits: Math.max(c.hits, p.hits), rate: Math.max(c.rate, p.rate)});
    }
    for (const l of lines) {
      const c = by.get(l.inst.addr);
      set(l.hits, c ? count(c.hits) : "");
      set(l.perSecond, c ? rate(c.rate) : "");
    }
  };

  form.addEventListener("submit", (e) => {
    e.preventDefault();
    box.show(null);
    if (input.value.trim() !== "") {
      history.replaceState(null, "", "#code:" + encodeURIComponent(input.value.trim()));
      load(input.value.trim(), false);
    }
  });
  if (at !== "") {
    load(at, false);
  } else {
    find();
  }
  // What probes are there, and whether they are jumps, may change: the function is asked for again then.
  const again = later(100, () => shown !== "" && !gone && load(shown, true));
  let before = "";
  const unwatch = watch(() => {
    const now = [...state.probes.values()].map((p) => [p.id, p.armed, p.optimized, p.enabled].join()).join(";");
    if (now !== before) {
      before = now;
      again();
      drawList();
    }
    counts();
  });
  return () => {
    gone = true;
    unwatch();
  };
}
