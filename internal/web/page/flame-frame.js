// The frame of a flame graph: makes the tree of the stacks that the window gives it, and has the script of
// profiles' pages, flame.js, draw it. A node is an array: name, kernel, value, base, colour, children.

function node(name, kernel) {
  let h = 2166136261;
  for (let i = 0; i < name.length; i++) {
    h = Math.imul(h ^ name.charCodeAt(i), 16777619) >>> 0;
  }
  const shade = h % 60;
  const colour = kernel === null ? "#d0d0d0" : kernel ? `rgb(235, ${140 + shade}, ${60 + (shade >> 1)})` : `rgb(${110 + shade}, ${200 + Math.floor(shade / 3)}, ${100 + (shade >> 1)})`;
  return [name, kernel ? 1 : 0, 0, 0, colour, []];
}

const plain = (f) => (f.symbol || f.addr).replace(/\+0x[0-9a-f]+(\/0x[0-9a-f]+)?$/, "");

function tree(stacks) {
  const root = node("all", null), inside = new Map([[root, new Map()]]);
  const child = (of, name, kernel) => {
    const k = (kernel ? "k" : "u") + name;
    let c = inside.get(of).get(k);
    if (c === undefined) {
      c = node(name, kernel);
      inside.get(of).set(k, c);
      inside.set(c, new Map());
      of[5].push(c);
    }
    return c;
  };
  for (const s of stacks) {
    let n = root;
    n[2] += s.count;
    if (s.task) {
      n = child(n, s.task.comm, false);
      n[2] += s.count;
    }
    if (s.cut) {
      n = child(n, "[more]", false);
      n[2] += s.count;
    }
    for (const f of [...s.frames].reverse()) {
      n = child(n, plain(f), !f.user);
      n[2] += s.count;
    }
  }
  for (const n of inside.keys()) {
    n[5].sort((a, b) => a[0] < b[0] ? -1 : 1);
  }
  return root;
}

const theme = localStorage.getItem("guestprobe-theme");
if (theme) {
  document.documentElement.dataset.theme = theme;
}
window.addEventListener("message", (e) => {
  if (e.origin !== location.origin || document.querySelector("h1").textContent !== "") {
    return;
  }
  document.querySelector("h1").textContent = e.data.title;
  document.getElementById("data").textContent = JSON.stringify({unit: e.data.unit, compared: false, root: tree(e.data.stacks)});
  const script = document.createElement("script");
  script.src = "flame.js";
  document.body.append(script);
});
parent.postMessage("ready", location.origin);
