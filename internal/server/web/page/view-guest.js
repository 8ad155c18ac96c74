// The guest and its vCPUs.
import {call} from "./api.js";
import {button, count, el, errorBox, rate, rows, set, table} from "./dom.js";
import {state, watch} from "./state.js";

// What exits mean to a user, by KVM's names.
const meanings = {
  "hlt": "idle, waiting for an interrupt", "io": "device access through a port", "mmio": "device access through memory", "debug": "breakpoint or single step",
  "interrupted": "stopped by the host for a moment", "intr": "signal to the vCPU's thread", "irq-window-open": "ready for a waiting interrupt", "exception": "exception for the host to handle",
  "x86-rdmsr": "read of a model-specific register", "x86-wrmsr": "write to a model-specific register", "hypercall": "call to the hypervisor", "hyperv": "call to Hyper-V's interface", "xen": "call to Xen's interface",
  "shutdown": "triple fault", "fail-entry": "vCPU state that the processor rejects", "internal-error": "instruction that KVM cannot emulate", "system-event": "request to reset or power off",
  "ioapic-eoi": "end of a device's interrupt", "set-tpr": "change of the interrupt priority", "tpr-access": "access to the interrupt priority", "nmi": "NMI on the host", "memory-fault": "access to memory that KVM cannot map",
  "dirty-ring-full": "log of written pages is full", "x86-bus-lock": "instruction that locks the bus", "notify": "guest that lets no interrupt through", "ap-reset-hold": "vCPU waiting to be started",
};

export function show(section) {
  const box = errorBox();
  const post = (path, body) => () => call("POST", path, body);
  const pause = button("Pause", box, post("/v1/guest/pause"), {class: "main"});
  const resume = button("Resume", box, post("/v1/guest/resume"), {class: "main"});
  const reset = button("Reset", box, async () => {
    if (confirm("Reboot the guest? Its probes stay attached.")) {
      await call("POST", "/v1/guest/reset", {});
    }
  });
  const facts = el("div", {class: "cards"});
  const cpus = table("vCPUs", ["vCPU", "state", "at", "#exits/s", "#exits", "#probe hits/s", "#exits for probes", "#steps in place", "#timer ticks"]);
  const exits = table("Exits by cause", ["cause", "#per second", "#total", "KVM's name"]);
  const waiting = el("p", {class: "none", text: "Waiting for the daemon's first counts."});
  const crash = el("pre", {class: "card", hidden: true});
  section.append(el("div", {class: "bar"}, pause, resume, reset), box, waiting, facts, crash, el("div", {}, el("h2", {text: "vCPUs"}), el("div", {class: "scroll"}, cpus.e)), el("div", {}, el("h2", {text: "Exits"}), el("div", {class: "scroll"}, exits.e)));
  return watch(() => {
    const g = state.guest;
    if (g === null) {
      return;
    }
    waiting.hidden = true;
    pause.hidden = g.state !== "running";
    resume.hidden = g.state !== "paused" && g.state !== "created";
    const hits = [...state.probes.values()].reduce((n, p) => n + p.rate, 0);
    rows(facts, [["State", g.state], ["vCPUs", g.vcpus], ["Memory", g.memory / 2 ** 20 + " MiB"], ["Probes", count(g.probes) + (g.enabled ? "" : ", disarmed")], ["Hits per second", rate(hits)], ["Exits per second", rate(state.exits.reduce((n, c) => n + c.total, 0))],
      ["Boots", g.boots], ["Image", g.kernel?.version ?? g.image]], (f) => f[0],
    (f) => {
      const value = el("strong");
      return {e: el("div", {class: "card"}, el("div", {class: "label", text: f[0]}), value), value};
    }, (r, f) => set(r.value, String(f[1])));
    crash.hidden = !g.crash;
    set(crash, g.crash?.report ?? "");
    rows(cpus.body, g.cpus, (c) => c.cpu, () => {
      const cells = Array.from({length: 9}, (_, i) => el("td", {class: i > 2 ? "n" : i === 2 ? "mono" : null}));
      return {e: el("tr", {}, ...cells), cells};
    }, (r, c) => {
      const x = state.exits[c.cpu];
      [c.cpu, c.state + (c.stop ? " by " + c.stop.probe : ""), c.symbol ?? c.rip ?? "", x ? rate(x.total) : "", count(c.total), x ? rate(x.hits) : "", count(c.trapExits), count(c.inPlace), count(c.ticks)]
        .forEach((v, i) => set(r.cells[i], String(v)));
    });
    const by = new Map();
    g.cpus.forEach((c, i) => {
      for (const [reason, n] of Object.entries(c.exits)) {
        const e = by.get(reason) ?? {reason, n: 0, rate: 0};
        e.n += n;
        e.rate += state.exits[i]?.by[reason] ?? 0;
        by.set(reason, e);
      }
    });
    rows(exits.body, [...by.values()].filter((e) => e.n > 0).sort((a, b) => b.n - a.n), (e) => e.reason, () => {
      const cells = [el("td", {class: "three"}), el("td", {class: "n"}), el("td", {class: "n"}), el("td", {class: "mono dim"})];
      return {e: el("tr", {}, ...cells), cells};
    }, (r, e) => [meanings[e.reason] ?? "exit " + e.reason, rate(e.rate), count(e.n), e.reason].forEach((v, i) => set(r.cells[i], v)));
  });
}
