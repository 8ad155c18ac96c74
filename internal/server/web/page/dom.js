// Elements, numbers and errors.
import {plain} from "./plain.js";

// el makes an element; attributes that begin with "on" are listeners, class and text what they say.
export function el(tag, attrs = {}, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attrs)) {
    if (k.startsWith("on")) {
      e.addEventListener(k.slice(2), v);
    } else if (k === "text") {
      e.textContent = v;
    } else if (v !== false && v !== undefined && v !== null) {
      e.setAttribute(k, v === true ? "" : v);
    }
  }
  e.append(...children.filter((c) => c !== null && c !== undefined));
  return e;
}

export function svg(tag, attrs = {}, ...children) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [k, v] of Object.entries(attrs)) {
    e.setAttribute(k, v);
  }
  e.append(...children);
  return e;
}

// set changes a text, where it has changed.
export function set(e, text) {
  if (e.textContent !== text) {
    e.textContent = text;
  }
}

const grouped = new Intl.NumberFormat("en");
export const count = (n) => grouped.format(n);
export const plural = (n, one) => count(n) + " " + one + (n === 1 ? "" : "s");
export const rate = (n) => n >= 100 || n === 0 ? grouped.format(Math.round(n)) : n.toFixed(1);

// table makes a table; of its columns # has numbers, and the name of ~ is for those who do not see.
export function table(name, columns, attrs = {}) {
  const body = el("tbody");
  body.labels = columns.map((c) => c.startsWith("~") ? "" : c.replace("#", ""));
  const e = el("table", {"aria-label": name, ...attrs}, el("thead", {}, el("tr", {}, ...columns.map((c) => c.startsWith("~") ? el("th", {scope: "col"}, el("span", {class: "hidden", text: c.slice(1)})) : el("th", {scope: "col", class: c.startsWith("#") ? "n" : null, text: c.replace("#", "")})))), body);
  return {e, body};
}

const controls = (row) => [...row.querySelectorAll("a, button, input, select")];

// label gives the cells of a row their columns' names, which narrow windows show.
export function label(body, row) {
  [...row.cells].forEach((c, i) => c.colSpan === 1 && (c.dataset.label = body.labels?.[i] ?? ""));
  return row;
}

// rows keeps the rows of a table by key: make makes one, update changes it. Who is at a row that goes is at the one in its
// place then.
export function rows(body, items, keyOf, make, update) {
  body.known ??= new Map();
  const there = new Set(items.map(keyOf));
  let left = -1, at = 0;
  for (const [k, r] of body.known) { // first: those that stay where they are keep the focus
    if (!there.has(k)) {
      if (r.e.contains(document.activeElement)) {
        left = [...body.children].indexOf(r.e);
        at = controls(r.e).indexOf(document.activeElement);
      }
      r.e.remove();
      body.known.delete(k);
    }
  }
  items.forEach((item, i) => {
    const k = keyOf(item);
    let r = body.known.get(k);
    if (r === undefined) {
      r = make(item);
      if (r.e.tagName === "TR") {
        label(body, r.e);
      }
      body.known.set(k, r);
    }
    update(r, item);
    if (body.children[i] !== r.e) {
      body.insertBefore(r.e, body.children[i] ?? null);
    }
  });
  if (left >= 0) {
    const row = body.children[Math.min(left, body.children.length - 1)];
    (row && controls(row)[at] || document.querySelector("main")).focus({preventScroll: true});
  }
}

// errorText is an error as guestprobe says it: text, detail, errno and code.
export function errorText(err) {
  const e = err.fields;
  if (e === undefined) {
    return String(err);
  }
  return e.message + (e.detail ? " (" + e.detail + ")" : "") + (e.errno ? ": " + e.errno : "") + " [" + e.code + (e.syntax ? ", " + e.syntax : "") + "]";
}

// caretText points into the definition or the script, as guestprobe does. Columns are bytes.
export function caretText(err) {
  const e = err.fields;
  if (e?.column === undefined) {
    return "";
  }
  const bytes = new TextEncoder().encode(e.command ?? "");
  const letters = (from, to) => [...new TextDecoder().decode(bytes.slice(from, to))].length;
  const col = Math.min(e.column, bytes.length);
  if (e.width !== undefined) {
    return e.command.replaceAll("\t", " ") + "\n" + " ".repeat(letters(0, col)) + "~".repeat(Math.max(1, letters(col, col + e.width)));
  }
  return "  Command: " + e.command + "\n" + " ".repeat(11 + letters(0, col)) + "^";
}

// fit cuts what caretText returns to a width in letters, around the mark.
function fit(text, width) {
  const lines = text.split("\n").map((l) => [...l]), longest = Math.max(...lines.map((l) => l.length));
  if (longest <= width) {
    return text;
  }
  const mark = lines.at(-1).findIndex((c) => c !== " ");
  const from = Math.max(0, Math.min(mark - Math.floor(width / 2), longest - width));
  return lines.map((l, i) => (from > 0 && i < lines.length - 1 ? "…" : from > 0 ? " " : "") + l.slice(from > 0 ? from + 1 : 0, from + width).join("")).join("\n");
}

// errorBox is where errors are shown.
export function errorBox() {
  const e = el("div", {class: "error", role: "alert", hidden: true});
  e.show = (err) => {
    e.hidden = err === null;
    if (err === null) {
      e.replaceChildren();
      return;
    }
    const caret = fit(caretText(err), Math.max(20, Math.floor((e.clientWidth || 600) / 7.8) - 3));
    e.replaceChildren(errorText(err), ...caret === "" ? [] : [el("pre", {text: caret})]);
  };
  return e;
}

// verdict has the room for what is said of a text while it is typed: a note or an error. It is as high without one, so
// that what is below it stays where it is.
export function verdict(id, hint) {
  const note = el("p", {id, class: "dim", role: "status", text: hint}), box = errorBox();
  const e = el("div", {class: "verdict"}, note, box);
  const show = box.show;
  box.show = (err) => {
    show(err);
    note.hidden = err !== null;
  };
  return {e, box, say: (text) => set(note, text || hint)};
}

// button makes a button whose work's error goes to box.
export function button(text, box, work, attrs = {}) {
  const b = el("button", {type: "button", text, ...attrs});
  b.addEventListener("click", async () => {
    if (b.ariaDisabled === "true") {
      return;
    }
    b.ariaDisabled = "true"; // one that is disabled loses the focus
    try {
      box.show(null);
      await work();
    } catch (err) {
      box.show(err);
    } finally {
      b.ariaDisabled = null;
    }
  });
  return b;
}

export function field(text, control) {
  return el("label", {class: control.classList.contains("grow") ? "grow" : null}, text, control);
}

// later calls f once things have been quiet for so many milliseconds.
export function later(ms, f) {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => f(...args), ms);
  };
}

// terminal shows the last text of a stream, and stays at its end unless its reader has scrolled up. Until then it shows
// the text of empty.
export function terminal(name, empty, most = 400000) {
  const e = el("pre", {class: "term", role: "log", "data-empty": empty, "aria-label": name, "aria-live": "off", tabindex: "0"});
  let waiting = "", drawn = false;
  const draw = () => {
    drawn = false;
    const end = e.scrollTop + e.clientHeight >= e.scrollHeight - 8;
    e.append(waiting);
    waiting = "";
    while (e.childNodes.length > 1 && e.textContent.length > most) {
      e.firstChild.remove();
    }
    if (end) {
      e.scrollTop = e.scrollHeight;
    }
  };
  e.write = (text) => {
    waiting = (waiting + text).slice(-most);
    if (!drawn) {
      drawn = true;
      setTimeout(draw, 30);
    }
  };
  e.clear = () => {
    waiting = "";
    e.replaceChildren();
  };
  return e;
}

const utf8 = new TextDecoder();
// bytesText is text that came as text or, where it is not valid UTF-8, in base64.
export const bytesText = (r) => r.bytes ? plain(utf8.decode(Uint8Array.from(atob(r.bytes), (c) => c.charCodeAt(0)))) : r.text ?? "";
