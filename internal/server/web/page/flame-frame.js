// The frame of a flame graph: has the script of profiles' pages, flame.js, draw what the window gives it.

const theme = localStorage.getItem("guestprobe-theme");
if (theme) {
  document.documentElement.dataset.theme = theme;
}
window.addEventListener("message", (e) => {
  if (e.origin !== location.origin || document.querySelector("h1").textContent !== "") {
    return;
  }
  document.querySelector("h1").textContent = e.data.title;
  document.getElementById("data").textContent = e.data.graph;
  const script = document.createElement("script");
  script.src = "flame.js";
  document.body.append(script);
});
parent.postMessage("ready", location.origin);
