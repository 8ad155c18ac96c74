"use strict";
// The page of a flame graph. Nodes are arrays: name, kernel, value, base, colour, children.
(() => {
  const NAME = 0, KERNEL = 1, VALUE = 2, BASE = 3, COLOR = 4, CHILDREN = 5;
  const ROW = 17, LEAST = 0.4; // pixels; narrower ones are not drawn
  const data = JSON.parse(document.getElementById("data").textContent);
  const graph = document.getElementById("graph"), about = document.getElementById("about");
  const search = document.getElementById("search"), matched = document.getElementById("matched");
  const back = document.getElementById("back"), reset = document.getElementById("reset");
  const hint = about.textContent;
  const parent = new Map(), boxes = new Map();
  const all = [data.root];
  for (let i = 0; i < all.length; i++) { // breadth first, without recursion: stacks are deep
    for (const c of all[i][CHILDREN]) {
      parent.set(c, all[i]);
      all.push(c);
    }
  }
  let zoomed = data.root, past = [], found = null;

  const quantity = (v) => data.unit === "ms" ? (v / 1e6).toFixed(3) + " ms" : v + " " + (v === 1 ? data.unit.replace(/s$/, "") : data.unit);
  const percent = (x) => (100 * x).toFixed(2) + "%";
  const share = (v, of) => of > 0 ? v / of : 0;
  const inside = (n) => {
    while (n && n !== zoomed) {
      n = parent.get(n);
    }
    return n === zoomed;
  };
  const says = (n) => {
    let s = n[NAME] + (n[KERNEL] ? " (kernel)" : "") + ": " + quantity(n[VALUE]) + ", " + percent(share(n[VALUE], data.root[VALUE]));
    if (data.compared) {
      const more = share(n[VALUE], data.root[VALUE]) - share(n[BASE], data.root[BASE]);
      s += " (" + (more < 0 ? "" : "+") + percent(more) + ")";
    }
    if (zoomed !== data.root && inside(n)) {
      s += "; " + percent(share(n[VALUE], zoomed[VALUE])) + " of " + zoomed[NAME];
    }
    return s;
  };

  const path = (n) => {
    const out = [];
    for (; n !== data.root; n = parent.get(n)) {
      out.unshift(parent.get(n)[CHILDREN].indexOf(n));
    }
    return out;
  };
  const at = (p) => p.reduce((n, i) => n && n[CHILDREN][i], data.root);

  // box puts the element of a node.
  const box = (n, left, width, row, above) => {
    const d = document.createElement("div");
    d.style.left = left + "%";
    d.style.width = width + "%";
    d.style.top = row * ROW + "px";
    d.style.background = n[COLOR];
    d.textContent = n[NAME];
    d.title = says(n);
    d.tabIndex = n === zoomed ? 0 : -1;
    d.setAttribute("role", "treeitem");
    d.setAttribute("aria-level", String(row + 1));
    d.setAttribute("aria-label", says(n));
    d.classList.toggle("above", above);
    d.classList.toggle("found", found !== null && found.has(n));
    boxes.set(n, d);
    d.node = n;
    graph.append(d);
  };

  const draw = () => {
    graph.textContent = "";
    boxes.clear();
    const pixels = Math.max(graph.clientWidth, 300);
    const line = [];
    for (let n = parent.get(zoomed); n; n = parent.get(n)) {
      line.unshift(n);
    }
    line.forEach((n, row) => box(n, 0, 100, row, true));
    let rows = line.length;
    const todo = [[zoomed, 0, 100, line.length]];
    while (todo.length > 0) {
      const [n, left, width, row] = todo.pop();
      box(n, left, width, row, false);
      rows = Math.max(rows, row + 1);
      let x = left;
      for (const c of n[CHILDREN]) {
        const w = width * share(c[VALUE], n[VALUE]);
        if (w * pixels / 100 >= LEAST) {
          todo.push([c, x, w, row + 1]);
        }
        x += w;
      }
    }
    graph.style.height = rows * ROW + "px";
    back.disabled = past.length === 0;
    reset.disabled = zoomed === data.root;
  };

  const zoom = (n, remember) => {
    if (n === zoomed) {
      return;
    }
    if (remember) {
      past.push(zoomed);
    }
    zoomed = n;
    draw();
    boxes.get(n).focus({preventScroll: true});
    note();
  };

  // find marks what a text or a /regular expression/ is in, and sums it up: what is below one that
  // is found is in it already.
  const find = () => {
    const text = search.value;
    found = null;
    matched.textContent = "";
    if (text !== "") {
      let is = (s) => s.toLowerCase().includes(text.toLowerCase());
      const m = /^\/(.+)\/(i?)$/.exec(text);
      if (m) {
        try {
          const re = new RegExp(m[1], m[2]);
          is = (s) => re.test(s);
        } catch (e) {
          matched.textContent = "not an expression";
          is = () => false;
        }
      }
      found = new Set(all.filter((n) => n !== data.root && is(n[NAME])));
      let sum = 0;
      const todo = [data.root];
      while (todo.length > 0) {
        const n = todo.pop();
        if (found.has(n)) {
          sum += n[VALUE];
        } else {
          todo.push(...n[CHILDREN]);
        }
      }
      if (matched.textContent === "") {
        matched.textContent = "matched " + percent(share(sum, data.root[VALUE]));
      }
    }
    for (const [n, d] of boxes) {
      d.classList.toggle("found", found !== null && found.has(n));
    }
    note();
  };

  // note keeps what is shown in the address: a reload, or another window, shows the same.
  const note = () => {
    const q = new URLSearchParams();
    if (zoomed !== data.root) {
      q.set("zoom", path(zoomed).join("."));
    }
    if (search.value !== "") {
      q.set("search", search.value);
    }
    history.replaceState(null, "", "#" + q.toString());
  };

  const nodeOf = (e) => e.target instanceof HTMLElement && e.target.node;
  graph.addEventListener("click", (e) => nodeOf(e) && zoom(nodeOf(e), true));
  graph.addEventListener("mouseover", (e) => { about.textContent = nodeOf(e) ? says(nodeOf(e)) : hint; });
  graph.addEventListener("focusin", (e) => { about.textContent = nodeOf(e) ? says(nodeOf(e)) : hint; });
  graph.addEventListener("mouseleave", () => { about.textContent = hint; });
  graph.addEventListener("keydown", (e) => {
    const n = nodeOf(e);
    if (!n) {
      return;
    }
    const beside = (step) => {
      const row = parent.has(n) ? parent.get(n)[CHILDREN].filter((c) => boxes.has(c)) : [n];
      return row[row.indexOf(n) + step];
    };
    let to = null;
    switch (e.key) {
      case "Enter": zoom(n, true); break;
      case "ArrowUp": to = parent.get(n); break;
      case "ArrowDown": to = n[CHILDREN].filter((c) => boxes.has(c)).sort((a, b) => b[VALUE] - a[VALUE])[0]; break;
      case "ArrowLeft": to = beside(-1); break;
      case "ArrowRight": to = beside(1); break;
      default: return;
    }
    e.preventDefault();
    if (to && boxes.has(to)) {
      boxes.get(to).focus();
    }
  });
  document.addEventListener("keydown", (e) => {
    if (e.key === "/" && document.activeElement !== search) {
      e.preventDefault();
      search.focus();
    } else if (e.key === "Escape") {
      if (document.activeElement === search && search.value !== "") {
        search.value = "";
        find();
      } else {
        zoom(data.root, true);
      }
    }
  });
  search.addEventListener("input", find);
  back.addEventListener("click", () => zoom(past.pop(), false));
  reset.addEventListener("click", () => zoom(data.root, true));
  window.addEventListener("resize", draw);

  const q = new URLSearchParams(location.hash.slice(1));
  const start = at((q.get("zoom") || "").split(".").filter((s) => s !== "").map(Number));
  zoomed = start || data.root;
  search.value = q.get("search") || "";
  draw();
  if (search.value !== "") {
    find();
  }
})();
