// A function's instructions, with the probes on them, what their jumps displace, and attaching more.
import {call} from "./api.js";
import {combo} from "./complete.js";
import {count, el, errorBox, later, plural, rate, set, table} from "./dom.js";
import {state, watch} from "./state.js";

export function show(section, at) {
  const box = errorBox();
  const input = el("input", {class: "mono", placeholder: "vfs_read, vfs_read+0x10 or an address", value: at});
  const form = el("form", {class: "bar"}, el("label", {text: "Function"}), combo(input), el("button", {class: "main", text: "Show"}));
  form.querySelector("label").htmlFor = input.id = "code-at";
  const title = el("h2", {hidden: true}), note = el("p", {class: "dim", role: "status", text: "Enter or a click on an instruction attaches a probe to it, or detaches the one that is there; arrow keys go up and down."});
  const t = table("Instructions", ["offset", "bytes", "instruction", "a probe here is", "source", "#hits", "#hits/s", "probes"], {class: "code"});
  const body = el("div", {class: "scroll", hidden: true}, t.e);
  section.append(form, box, title, note, body);
  let shown = "", lines = [], gone = false, asked = 0, sources = true;

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
    title.hidden = false;
    set(title, d.symbol + ", " + plural(d.size, "byte") + " at " + d.addr + (d.user ? ", user code" : "") + (d.blacklist ? ", not to be probed: " + d.blacklist : ""));
    let region = 0;
    lines = d.insts.map((inst) => {
      const site = inst.probes?.length > 0;
      const inRegion = inst.offset < region;
      for (const p of inst.probes ?? []) {
        region = Math.max(region, inst.offset + (p.region ?? 0));
      }
      const hits = el("td", {class: "n"}), perSecond = el("td", {class: "n"});
      const badges = (inst.probes ?? []).map((p) => el("span", {class: "badge " + p.how, text: p.name + " · " + (p.how === "none" ? "not armed" : p.how === "program" ? "jump, guest" : p.how)}));
      const kind = inst.kind === "refused" ? "refused: " + inst.reason : (inst.ours.length > 0 ? "jump of " + plural(inst.ours.length, "byte") : "int3 (" + inst.ours.reason + ")") + ", " + inst.kind;
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
    t.body.replaceChildren(...lines.map((l) => l.e));
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
      const c = by.get(p.addr) ?? {hits: 0, rate: 0};
      c.hits += p.hits;
      c.rate += p.rate;
      by.set(p.addr, c);
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
  }
  // What probes are there, and whether they are jumps, may change: the function is asked for again then.
  const again = later(100, () => shown !== "" && !gone && load(shown, true));
  let before = "";
  const unwatch = watch(() => {
    const now = [...state.probes.values()].map((p) => [p.id, p.armed, p.optimized, p.enabled].join()).join(";");
    if (now !== before) {
      before = now;
      again();
    }
    counts();
  });
  return () => {
    gone = true;
    unwatch();
  };
}
