// The guest's console.
import {call, stream} from "./api.js";
import {bytesText, el, errorBox, field, plural, terminal} from "./dom.js";

export function show(section) {
  const box = errorBox();
  const out = terminal("The guest's console", "The guest has written nothing yet.");
  const note = el("p", {class: "dim", role: "status"});
  const input = el("input", {class: "mono grow", autocomplete: "off", spellcheck: "false", "aria-label": "Type a line at the guest's console"});
  const form = el("form", {class: "bar"}, field("Type", input), el("button", {text: "Send"}));
  form.addEventListener("submit", async (e) => {
    e.preventDefault();
    try {
      box.show(null);
      await call("POST", "/v1/guest/console", {text: input.value + "\n"});
      input.value = "";
    } catch (err) {
      box.show(err);
    }
  });
  section.append(out, note, form, box);
  return stream("GET", "/v1/guest/console?follow=true", undefined, {
    onconsole: (l) => out.write(bytesText(l) + (l.partial ? "" : "\n")),
    onlost: (l) => out.write("[" + plural(l.lost, "line") + " lost]\n"),
    onend: (e) => { note.textContent = "The console has ended: " + e.reason.replaceAll("_", " ") + "."; },
    end: (err) => err && box.show(err),
  });
}
