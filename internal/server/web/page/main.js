// The frame: views by the address, the guest's state, dark and light.
import {call, open} from "./api.js";
import {el, errorText, set} from "./dom.js";
import {connect, state, watch} from "./state.js";
import * as chartsView from "./view-charts.js";
import * as codeView from "./view-code.js";
import * as consoleView from "./view-console.js";
import * as eventsView from "./view-events.js";
import * as flameView from "./view-flame.js";
import * as guestView from "./view-guest.js";
import * as probesView from "./view-probes.js";
import * as scriptsView from "./view-scripts.js";

const views = {guest: "Guest", console: "Console", probes: "Probes", events: "Events", code: "Code", scripts: "Scripts", charts: "Charts", flame: "Flame graph"};
// All are there from the start: each can be opened when the daemon has gone.
const modules = {guest: guestView, console: consoleView, probes: probesView, events: eventsView, code: codeView, scripts: scriptsView, charts: chartsView, flame: flameView};
const $ = (id) => document.getElementById(id);
let leave = null, shown = "";

// decoded returns the text of a percent-encoded part of an address, or the part itself if it is not valid.
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function show() {
  const [name, arg = ""] = location.hash.slice(1).split(/:(.*)/s);
  const view = Object.hasOwn(views, name) ? name : "guest";
  for (const a of $("views").querySelectorAll("a")) {
    a.toggleAttribute("aria-current", false);
    if (a.hash === "#" + view) {
      a.setAttribute("aria-current", "page");
    }
  }
  leave?.();
  const section = el("section", {"aria-label": views[view], id: "view-" + view});
  $("main").replaceChildren(section);
  leave = modules[view].show(section, decoded(arg)) ?? null;
  document.title = views[view] + " – guestprobe";
  if (shown !== "" && shown !== view) {
    $("main").focus({preventScroll: true});
  }
  shown = view;
}

function banner(text) {
  $("banner").hidden = text === "";
  set($("banner"), text);
}

function guestState() {
  const g = state.guest;
  const dot = document.querySelector("#state .dot");
  const stale = !state.connected && state.error !== null; // what is shown is the last that the daemon reported
  for (const e of [$("main"), $("state")]) {
    e.classList.toggle("stale", stale);
  }
  if (!state.connected) {
    if (state.error) {
      set($("state-text"), "not connected");
      dot.className = "dot";
      banner(state.error.status === 401 ? errorText(state.error) : "The daemon does not answer; trying again." + (state.at ? " Values in gray are from " + state.at.toLocaleTimeString() + "." : ""));
    }
    return;
  }
  const ended = g.state === "exited" ? " with " + g.exitCode : g.state === "crashed" ? ": " + g.crash.reason : "";
  set($("state-text"), g.state + ended);
  dot.className = "dot " + g.state;
  banner(ended === "" ? "" : "The guest has " + g.state + ended + ".");
}

function theme() {
  const dark = () => document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const is = localStorage.getItem("guestprobe-theme");
  if (is) {
    document.documentElement.dataset.theme = is;
  }
  $("theme").setAttribute("aria-pressed", String(dark()));
  $("theme").addEventListener("click", () => {
    const to = dark() ? "light" : "dark";
    document.documentElement.dataset.theme = to;
    localStorage.setItem("guestprobe-theme", to);
    $("theme").setAttribute("aria-pressed", String(dark()));
  });
}

// keys are what the keyboard does, by view.
const keys = {
  "Everywhere": {"1 … 8": "Go to a view", "?": "Show or close these keys", "Tab": "Go to the next control"},
  "Fields that complete names": {"↓ ↑": "Select a name", "Tab Enter": "Take it", "Esc": "Close the list"},
  "Events": {"Space": "Pause or resume", "↑ Page Up Home": "Pause and scroll back", "End": "Resume at the end"},
  "Code": {"↓ ↑": "Select an instruction", "Enter": "Attach a probe, or detach the probes"},
  "Scripts": {"Ctrl+Enter": "Run the script"},
  "Flame graph": {"← → ↑ ↓": "Go to neighbors, callers and callees", "Enter": "Zoom in", "Esc": "Zoom out", "/": "Search"},
};

function help() {
  const d = el("dialog", {"aria-label": "Keys"}, el("h2", {text: "Keys"}), el("dl", {class: "keys"}, ...Object.entries(keys).flatMap(([where, of]) => [el("h3", {text: where}), ...Object.entries(of).flatMap(([k, what]) => [el("dt", {}, el("kbd", {text: k})), el("dd", {text: what})])])),
    el("button", {type: "button", text: "Close", onclick: () => d.close()}));
  document.body.append(d);
  $("help").addEventListener("click", () => d.showModal());
  return d;
}

const dialog = help();
Object.entries(views).forEach(([name, title], i) => $("views").append(el("li", {}, el("a", {href: "#" + name, title: "key " + (i + 1), text: title}))));
document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.altKey || e.metaKey || /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "")) {
    return;
  }
  const name = Object.keys(views)[Number(e.key) - 1];
  if (e.key === "?") {
    dialog.open ? dialog.close() : dialog.showModal();
  } else if (name && !dialog.open) {
    location.hash = name;
  }
});
document.querySelector(".skip").addEventListener("click", (e) => {
  e.preventDefault();
  $("main").focus();
});
theme();
window.addEventListener("hashchange", show);
try {
  let refused = null;
  await open().catch((err) => { refused = err; });
  // A browser that has been here before needs no token.
  await call("GET", "/v1/guest").catch((err) => { throw refused ?? err; });
  show();
  connect();
  watch(guestState);
} catch (err) {
  set($("state-text"), "not connected");
  banner(errorText(err));
}
document.documentElement.dataset.ready = "true";
