package web_test

import (
	"fmt"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// layoutFaults returns, of a document, each thing that has no room: elements that scroll sideways or are wider than the window, controls of
// less than 32 pixels, and text that is cut off. A cell that ends in an ellipsis must have its whole text as a title.
const layoutFaults = `((doc) => {
	const LEAST = 32, view = doc.defaultView, faults = [];
	const canvas = doc.createElement("canvas").getContext("2d");
	const name = (e) => e.tagName.toLowerCase() + (e.id ? "#" + e.id : "") + (e.className?.baseVal ?? e.className ? "." + String(e.className?.baseVal ?? e.className).replaceAll(" ", ".") : "") + " " + JSON.stringify((e.ariaLabel || e.textContent || "").slice(0, 40));
	if (doc.documentElement.scrollWidth > view.innerWidth) {
		faults.push("the page scrolls sideways: " + doc.documentElement.scrollWidth + " of " + view.innerWidth);
	}
	const top = doc.querySelector("dialog[open]") ?? doc.body;
	for (const e of top.querySelectorAll("svg text")) {
		const r = e.getBoundingClientRect(), within = e.ownerSVGElement.getBoundingClientRect();
		if (r.left < within.left - 0.5 || r.right > within.right + 0.5 || r.height < 11) {
			faults.push("the chart's text " + JSON.stringify(e.textContent) + " is " + r.height + " high, from " + r.left + " to " + r.right + " in " + within.left + " to " + within.right);
		}
	}
	for (const e of top.querySelectorAll("*")) {
		const r = e.getBoundingClientRect(), s = view.getComputedStyle(e);
		if (r.width === 0 || r.height === 0 || s.visibility === "hidden" || e.closest(".hidden, .skip:not(:focus), svg *, [aria-hidden=true], #graph")) {
			continue;
		}
		if (r.right < 0) { // kept for screen readers only
			continue;
		}
		if (r.right > view.innerWidth + 0.5) {
			faults.push(name(e) + " ends at " + r.right + " of " + view.innerWidth);
		}
		const cut = e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0;
		if (cut && !(s.textOverflow === "ellipsis" && s.overflowX === "hidden" && e.title === e.textContent)) {
			faults.push(name(e) + " has " + e.scrollWidth + " in " + e.clientWidth + " pixels");
		}
		if (e.matches("button, input, select, textarea, summary, a[href], [role=option], tr[tabindex]") && (r.width < LEAST || r.height < LEAST)) {
			faults.push(name(e) + " is a control of " + r.width + " x " + r.height);
		}
		if (e.matches("input, select")) {
			canvas.font = s.font;
			const text = e.tagName === "SELECT" ? e.selectedOptions[0]?.text ?? "" : e.value || e.placeholder;
			const room = e.clientWidth - parseFloat(s.paddingLeft) - parseFloat(s.paddingRight);
			if (e.type !== "checkbox" && canvas.measureText(text).width > room + 1) {
				faults.push(name(e) + " has no room for " + JSON.stringify(text) + ": " + canvas.measureText(text).width + " in " + room);
			}
		}
	}
	return faults.join("\n");
})`

// resize gives the window a size.
func (w *window) resize(width, height int64) {
	w.t.Helper()
	if _, err := chromedp.Call(w.ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1}); err != nil {
		w.t.Fatal(err)
	}
	w.waitFor(`innerWidth === %d`, width)
}

// emulateFocus has the page behave as if its window had the focus, whichever window has it.
func (w *window) emulateFocus() {
	w.t.Helper()
	if _, err := chromedp.Call(w.ctx, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true}); err != nil {
		w.t.Fatal(err)
	}
}

// TestLayout: every view has room for its controls and texts in windows of three widths, dark and light. With GUESTPROBE_PAGE_PICTURES it
// leaves a picture of each.
func TestLayout(t *testing.T) {
	g := startGuest(t, "--vcpus", "2")
	g.attach("p:myread vfs_read fd=%di:s32 count=%dx:u64", "r:forks do_fork", "p:sites/w vfs_write+4", "p:sites/a_probe_with_a_rather_long_name_of_its_own do_fork")
	script, err := g.RunScript(g.ctx, api.RunScript{Script: `kprobe:vfs_read { @sizes = hist(arg2); @by_file_and_size[arg0, arg2] = count(); }`, Detach: "reads"})
	if err != nil {
		t.Fatal(err)
	}
	script.Close()
	w := newBrowser(t)
	w.open(g.address())
	w.emulateFocus()
	for _, width := range []int64{1280, 800, 400} {
		w.resize(width, 800)
		for _, v := range layoutViews {
			w.view(v.address)
			if v.prepare != nil {
				v.prepare(w)
			}
			for _, scheme := range []string{"light", "dark"} {
				w.prefer(scheme)
				w.checkLayout(fmt.Sprintf("%s-%d-%s", v.name, width, scheme), v.ready)
			}
		}
	}
	w.checkExceptions()
}

// layoutViews are the views in the states that TestLayout looks at.
var layoutViews = []struct {
	name, address, ready string
	prepare              func(*window)
}{
	{"guest", "guest", `document.querySelectorAll("table[aria-label^=Exits] tbody tr").length > 0`, nil},
	{"console", "console", `document.querySelector(".term").textContent.includes("\n")`, nil},
	{"probes", "probes", `document.querySelectorAll("tr[data-probe]").length > 3`, nil},
	{"probes-names", "probes", `document.querySelector(".options:not([hidden]) li")`, func(w *window) { w.write("#def", "p vfs_") }},
	{"probes-error", "probes", `document.querySelector(".options").hidden && document.querySelector(".verdict .error:not([hidden])")?.textContent.includes("BAD_REG_NAME")`, func(w *window) { w.write("#def", "p:a_name vfs_read fd=%zz") }},
	{"events", "events", `document.querySelectorAll(".list .row").length > 5 && !document.querySelector("main pre").hidden`, func(w *window) {
		w.waitFor(`document.querySelectorAll("main select option").length > 3 && document.querySelectorAll(".list .row").length > 5`)
		w.run(`document.querySelector(".list .row").click()`)
	}},
	{"functions", "code", `document.querySelectorAll("tr[data-function]").length > 5`, nil},
	{"code", "code:vfs_read", `document.querySelector(".code .badge")`, nil},
	{"scripts", "scripts", `document.querySelector("tr[data-script=reads]")`, nil},
	{"charts", "charts:reads", `document.querySelector("figure[data-map='@sizes'] .y span") && document.querySelectorAll("figure").length > 1`, nil},
	{"flame-empty", "flame", `document.querySelector("main .none")`, nil},
	{"keys", "guest", `document.querySelector("dialog").open`, func(w *window) { w.run(`document.querySelector("#help").click()`) }},
	{"tabs", "guest", `document.activeElement.hash === "#probes" && !document.querySelector("dialog").open`, func(w *window) {
		w.run(`document.querySelector("dialog").close(); document.querySelector("nav a[href='#probes']").focus({focusVisible: true})`)
	}},
}

// checkLayout fails for what has no room in the window, once an expression is true.
func (w *window) checkLayout(name, ready string) {
	w.t.Helper()
	w.waitFor("%s", ready)
	w.picture(name)
	if got := eval[string](w, layoutFaults+`(document)`); got != "" {
		w.t.Errorf("%s:\n%s", name, got)
	}
}

// TestTypedErrors: an error that comes while a definition or a script is typed moves nothing.
func TestTypedErrors(t *testing.T) {
	g := startGuest(t, "--paused")
	g.attach("p:myread vfs_read")
	w := newBrowser(t)
	w.open(g.address())
	for _, c := range []struct{ view, field, bad, below string }{
		{"probes", "#def", "p vfs_read fd=%zz", ".tall"},
		{"scripts", "textarea", "kprobe:vfs_read { @a = nope(); }", ".term"},
	} {
		for _, width := range []int64{1280, 400} {
			w.resize(width, 800)
			w.view(c.view)
			w.waitFor(`document.querySelector(%s).offsetHeight > 0`, quote(c.below))
			top := fmt.Sprintf(`document.querySelector(%s).getBoundingClientRect().top`, quote(c.below))
			w.write(c.field, "")
			w.waitFor(`document.querySelector("main .error").hidden`)
			before := eval[float64](w, top)
			w.write(c.field, c.bad)
			w.waitFor(`!document.querySelector("main .error").hidden`)
			if after := eval[float64](w, top); after != before {
				t.Errorf("in the view %s an error moves %s from %v to %v, in a window of %d", c.view, c.below, before, after, width)
			}
		}
	}
	w.checkExceptions()
}

// TestFocus: the outline of the focus covers no tab, its own included, and neither does the link that skips them.
func TestFocus(t *testing.T) {
	s := serve(t, servePlain)
	w := newBrowser(t)
	w.open(s.url + "/#token=" + s.token())
	w.emulateFocus()
	for _, width := range []int64{1280, 400} {
		w.resize(width, 800)
		if got := eval[string](w, `(() => {
			const tabs = [...document.querySelectorAll("nav a")], faults = [];
			const over = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
			for (const t of tabs) {
				t.focus({focusVisible: true});
				const s = getComputedStyle(t), r = t.getBoundingClientRect(), by = parseFloat(s.outlineWidth) + parseFloat(s.outlineOffset);
				if (s.outlineStyle === "none" || parseFloat(s.outlineWidth) < 2) faults.push(t.textContent + " has no outline");
				if (parseFloat(s.outlineOffset) < 0) faults.push(t.textContent + " has an outline over itself");
				const box = {left: r.left - by, right: r.right + by, top: r.top - by, bottom: r.bottom + by};
				if (box.left < 0 || box.top < 0 || box.right > innerWidth) faults.push(t.textContent + " has an outline beyond the window");
				for (const o of tabs) if (o !== t && over(box, o.getBoundingClientRect())) faults.push(t.textContent + " has an outline over " + o.textContent);
			}
			const main = document.querySelector("main"), style = getComputedStyle(main);
			main.focus({focusVisible: true});
			if (style.outlineStyle !== "none" && parseFloat(style.outlineOffset) + parseFloat(style.outlineWidth) > 0) faults.push("the view has an outline over the tabs");
			const skip = document.querySelector(".skip");
			skip.focus({focusVisible: true});
			for (const o of [...tabs, document.querySelector("h1")]) if (over(skip.getBoundingClientRect(), o.getBoundingClientRect())) faults.push("the link is over " + o.textContent);
			return faults.join("\n");
		})()`); got != "" {
			t.Errorf("in a window of %d pixels:\n%s", width, got)
		}
	}
	w.checkExceptions()
}
