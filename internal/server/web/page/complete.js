// An input that completes names of functions.
import {call} from "./api.js";
import {el, later} from "./dom.js";

let number = 0;

// combo returns the element of an input with completion of the word at the cursor, where wants says so of the text
// before it.
export function combo(input, wants = () => true) {
  const id = "options-" + ++number;
  const list = el("ul", {class: "options", role: "listbox", id, hidden: true, "aria-label": "Functions"});
  for (const [k, v] of Object.entries({role: "combobox", "aria-autocomplete": "list", "aria-controls": id, "aria-expanded": "false", autocomplete: "off", spellcheck: "false"})) {
    input.setAttribute(k, v);
  }
  let at = -1, asked = 0;
  const word = () => /[A-Za-z_.$][\w.$]*$/.exec(input.value.slice(0, input.selectionStart ?? 0))?.[0] ?? "";
  const close = () => {
    asked++;
    list.hidden = true;
    at = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  };
  const take = (name) => {
    const to = input.selectionStart, from = to - word().length;
    input.setRangeText(name, from, to, "end");
    close();
    input.focus();
    input.dispatchEvent(new Event("input", {bubbles: true}));
    close();
  };
  const mark = (i) => {
    at = (i + list.children.length) % list.children.length;
    [...list.children].forEach((li, j) => li.setAttribute("aria-selected", String(j === at)));
    input.setAttribute("aria-activedescendant", list.children[at].id);
    list.children[at].scrollIntoView({block: "nearest"});
  };
  const ask = later(120, async () => {
    const w = word(), mine = ++asked;
    if (w.length < 2 || !wants(input.value.slice(0, input.selectionStart))) {
      close();
      return;
    }
    let found = [];
    try {
      found = (await call("GET", "/v1/symbols?" + new URLSearchParams({match: w + "*", kind: "func", limit: "50"}))).symbols;
    } catch {
      // What is wrong with the word is said of the definition.
    }
    if (mine !== asked || found.length === 0 || found.length === 1 && found[0].name === w) {
      if (mine === asked) {
        close();
      }
      return;
    }
    list.replaceChildren(...found.map((s, i) => el("li", {role: "option", id: id + "-" + i, "aria-selected": "false", onmousedown: (e) => { e.preventDefault(); take(s.name); }},
      el("span", {class: "mono", text: s.name}), el("span", {class: "dim", text: s.blacklist ? "refused" : s.user ? "user" : ""}))));
    list.hidden = false;
    at = -1;
    input.setAttribute("aria-expanded", "true");
  });
  input.addEventListener("input", ask);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (e) => {
    if (list.hidden) {
      return;
    }
    switch (e.key) {
      case "ArrowDown": mark(at + 1); break;
      case "ArrowUp": mark(at < 0 ? -1 : at - 1); break;
      case "Tab": case "Enter":
        if (at < 0) {
          if (e.key === "Tab") {
            close();
          }
          return;
        }
        take(list.children[at].querySelector("span").textContent);
        break;
      case "Escape": close(); break;
      default: return;
    }
    e.preventDefault();
  });
  return el("div", {class: "combo grow"}, input, list);
}
