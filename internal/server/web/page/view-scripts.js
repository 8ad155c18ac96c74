// Scripts: edited, checked, run here, or left running in the daemon.
import {call, judge, stream} from "./api.js";
import {button, bytesText, count, el, errorBox, field, later, plural, rows, set, table, terminal, verdict} from "./dom.js";

const EXAMPLE = `kprobe:vfs_read {
	@reads[cpu] = count();
	@bytes = hist(arg2);
}

interval:s:1 { print(@reads); }
`;
// What is in the editor stays while the window is open.
let draft = sessionStorage.getItem("guestprobe-script") ?? EXAMPLE;

// The view is made once: a script that runs here goes on while another view is looked at, and what it has printed stays.
let view = null;

export function show(section) {
  view ??= make();
  section.append(...view.nodes);
  view.list().catch(view.box.show);
  const clock = setInterval(() => view.list().catch(() => {}), 1000);
  return () => clearInterval(clock);
}

function make() {
  const box = errorBox(), said = verdict("script-note", "A script is checked while you type. Run prints its output here; Leave running keeps it in the daemon.");
  const editor = el("textarea", {spellcheck: "false", autocomplete: "off", "aria-label": "Script, in bpftrace's language", "aria-describedby": "script-note"});
  editor.value = draft;
  const unsafe = el("input", {type: "checkbox"});
  const name = el("input", {class: "mono", size: "14", value: "reads", spellcheck: "false", autocomplete: "off"});
  const out = terminal("Output of the script", "No output yet. Press Run, or Control and Enter in the editor.");
  const request = () => ({script: editor.value, name: "page", ...unsafe.checked && {unsafe: true}});
  let asked = 0, close = null, number = 0;
  const check = later(250, async () => {
    const mine = ++asked;
    let err = null, text = "";
    try {
      if (editor.value.trim() !== "") {
        const r = await judge({script: request()});
        text = "The script is valid: " + plural(r.probes, "probe") + "." + (r.warnings ?? []).map((w) => " " + w).join("");
      }
    } catch (e) {
      err = e;
    }
    if (mine === asked) {
      said.box.show(err);
      said.say(text);
    }
  });
  editor.addEventListener("input", () => {
    draft = editor.value;
    sessionStorage.setItem("guestprobe-script", draft);
    check();
  });
  unsafe.addEventListener("input", check);
  editor.addEventListener("keydown", (e) => {
    if (e.key === "Enter" && e.ctrlKey) {
      e.preventDefault();
      run.click();
    }
  });
  const ended = (err) => {
    close = null;
    run.disabled = false;
    stop.disabled = true;
    if (err !== null) {
      box.show(err);
    }
  };
  const begin = (method, path, body, what) => {
    close?.();
    asked++;
    box.show(null);
    said.box.show(null);
    out.clear();
    said.say(what);
    run.disabled = true;
    close = stream(method, path, body, {
      onstart: (s) => {
        number = s.stream;
        stop.disabled = false;
      },
      onoutput: (o) => out.write(bytesText(o)),
      onwarning: (w) => out.write(w.text + "\n"),
      onlost: (l) => out.write("[" + plural(l.lost, "record") + " lost]\n"),
      onend: (e) => said.say("The script has ended: " + e.reason.replaceAll("_", " ") + (e.code === undefined ? "" : " " + e.code) + (e.lost ? ", " + plural(e.lost, "record") + " lost" : "") + "."),
      end: ended,
    });
  };
  const run = el("button", {type: "button", class: "main", text: "Run", title: "Control and Enter"});
  run.addEventListener("click", () => begin("POST", "/v1/scripts", request(), "The script is running."));
  const stop = el("button", {type: "button", text: "Stop", disabled: true});
  stop.addEventListener("click", () => call("DELETE", "/v1/events/" + number).catch((err) => box.show(err)));
  const keep = button("Leave running as", box, async () => {
    asked++;
    const i = await call("POST", "/v1/scripts", {...request(), detach: name.value});
    said.say(i.name + " runs in the daemon, with " + plural(i.attached, "probe") + ".");
    await list();
  });
  const t = table("Scripts in the daemon", ["name", "state", "#probes", "#hits", "#written", "#lost", "~actions"]);
  const kept = el("div", {class: "scroll", hidden: true}, t.e), none = el("p", {class: "none", text: "No script is left running. Type a name and press Leave running as to keep this one in the daemon without a client."});
  const bar = el("div", {class: "bar"}, run, stop, field("Unsafe", unsafe), el("span", {class: "grow"}), keep, name);
  name.setAttribute("aria-label", "Name of the script in the daemon");

  const list = async () => {
    const {scripts} = await call("GET", "/v1/scripts");
    kept.hidden &&= scripts.length === 0;
    rows(t.body, scripts, (s) => s.name, (s) => {
      const cells = Array.from({length: 7}, (_, i) => el("td", {class: i > 1 && i < 6 ? "n" : null}));
      cells[6].append(el("div", {class: "bar"},
        button("Output", box, () => begin("GET", "/v1/scripts/" + encodeURIComponent(s.name) + "/output", undefined, "Below is the output of " + s.name + "."), {class: "small"}),
        el("a", {href: "#charts:" + encodeURIComponent(s.name), text: "Charts"}),
        button("End", box, async () => {
          const lines = [];
          await new Promise((done, fail) => stream("DELETE", "/v1/scripts/" + encodeURIComponent(s.name), undefined, {onoutput: (o) => lines.push(bytesText(o)), end: (err) => err ? fail(err) : done()}));
          out.clear();
          out.write(lines.join(""));
          await list();
        }, {class: "small", "aria-label": "End " + s.name})));
      return {e: el("tr", {"data-script": s.name}, ...cells), cells};
    }, (r, s) => [s.name, s.ended ? s.ended.replaceAll("_", " ") : "runs", count(s.attached), count(s.hits), count(s.written), count(s.lost)].forEach((v, i) => set(r.cells[i], v)));
    kept.hidden = scripts.length === 0; // after the rows, of which one may have the focus
    none.hidden = !kept.hidden;
  };
  check();
  return {nodes: [el("div", {}, editor, said.e), bar, box, out, el("div", {}, el("h2", {text: "In the daemon"}), none, kept)], list, box};
}
