package web_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestGuestView: the guest's state, its vCPUs, and what stops and starts it.
func TestGuestView(t *testing.T) {
	g := startGuest(t, "--vcpus", "2")
	w := newBrowser(t)
	w.open(g.address())
	w.waitFor(`location.hash === "" && location.search === ""`) // the token is gone
	w.waitForText("#state-text", "running")
	w.waitFor(`document.querySelectorAll("table[aria-label=vCPUs] tbody tr").length === 2`)
	w.waitFor(`document.querySelectorAll("table[aria-label^=Exits] tbody tr").length > 0`)
	w.waitFor(`document.querySelector("table[aria-label=vCPUs] td:nth-child(4)").textContent !== ""`)
	// Each cause is in words, beside KVM's name.
	w.waitFor(`[...document.querySelectorAll("table[aria-label^=Exits] tbody tr")].every((r) => /[a-z] [a-z]/.test(r.cells[0].textContent) && !r.cells[0].textContent.startsWith("exit ") && r.cells[3].textContent !== "")`)
	w.picture("guest")
	w.press("Pause")
	w.waitForText("#state-text", "paused")
	w.waitForText("table[aria-label=vCPUs] td", "+0x") // where it stands
	w.press("Resume")
	w.waitForText("#state-text", "running")
	w.run(`window.confirm = () => true`)
	w.press("Reset")
	w.waitFor(`[...document.querySelectorAll(".card")].some((c) => c.textContent === "Boots2")`)
	w.view("console")
	w.waitFor(`document.querySelector(".term").textContent.includes("\n")`)
	w.picture("console")
	w.write("main form input", "ls")
	w.press("Send")
	w.waitForText(".error", "[unavailable]") // the built-in guest reads no console
	w.checkExceptions()
}

// TestProbesView: attaching with completion and carets, rates, and detaching.
func TestProbesView(t *testing.T) {
	g := startGuest(t, "--vcpus", "2")
	w := newBrowser(t)
	w.open(g.address())
	w.view("probes")
	w.write("#def", "p:myread vfs_re")
	w.waitForText(".options li", "vfs_read")
	w.do(chromedp.SendKeys("#def", kb.ArrowDown))
	w.waitFor(`document.querySelector(".options li[aria-selected=true]").id === document.querySelector("#def").getAttribute("aria-activedescendant")`)
	w.do(chromedp.SendKeys("#def", kb.Tab))
	w.waitFor(`document.querySelector("#def").value === "p:myread vfs_read"`)
	w.waitForText("#def-note", "This is one probe.")
	w.write("#def", "p:myread vfs_read fd=%zz")
	w.waitFor(`document.querySelector(".error").textContent.startsWith("Invalid register name (registers have the names of struct pt_regs, as %%di or %%rdi): EINVAL [bad_definition, BAD_REG_NAME]")`)
	if got, want := eval[string](w, `document.querySelector(".error pre").textContent`), "  Command: p:myread vfs_read fd=%zz\n                                ^"; got != want {
		t.Errorf("the caret is\n%s\nwant\n%s", got, want)
	}
	w.checkConsole()
	w.picture("error")
	w.press("Attach") // is refused in the same words
	w.waitFor(`document.querySelector(".error").textContent.startsWith("Invalid register name (registers have the names of struct pt_regs, as %%di or %%rdi): EINVAL [bad_definition, BAD_REG_NAME]")`)
	w.write("#def", "p:myread vfs_read fd=%di:s32")
	w.waitFor(`document.querySelector(".error").hidden`)
	w.press("Attach")
	w.waitFor(`document.querySelector("tr[data-probe='kprobes/myread']")`)
	w.waitFor(`Number(document.querySelector("tr[data-probe='kprobes/myread']").cells[5].textContent.replaceAll(",", "")) > 0`)
	g.attach("r:forks do_fork", "p:sites/w vfs_write+4") // by somebody else
	w.waitFor(`document.querySelectorAll("tr[data-probe]").length === 3`)
	w.waitFor(`document.querySelectorAll("tr[data-probe]")[0].querySelector("polyline").getAttribute("points").split(" ").length > 5`)
	w.picture("probes")
	w.press("Disable kprobes/myread")
	w.press("Enable kprobes/myread")
	w.run(`document.querySelector("button[aria-label='Detach kprobes/myread']").focus()`)
	w.enter()
	w.waitFor(`!document.querySelector("tr[data-probe='kprobes/myread']")`)
	w.waitFor(`/^Detach (kprobes.forks|sites.w)$/.test(document.activeElement.ariaLabel)`) // who works with keys is at the next
	if ps, err := g.Probes(g.ctx); err != nil || len(ps) != 2 {
		t.Errorf("there are %d probes, want 2: %v", len(ps), err)
	}
	w.run(`window.confirm = () => false`)
	w.press("Detach all") // asks
	w.waitFor(`!document.querySelector("main button[aria-disabled]")`)
	if ps, err := g.Probes(g.ctx); err != nil || len(ps) != 2 {
		t.Errorf("there are %d probes after Detach all was canceled, want 2: %v", len(ps), err)
	}
	w.run(`window.confirm = (text) => text.startsWith("Detach 2 probes?")`)
	w.press("Detach all")
	w.waitForText("p.none", "No probe is attached. Type a definition above")
	w.checkExceptions()
}

// TestEventsView: events come, stop when they are to, and are filtered; what the window shows is the last of them.
func TestEventsView(t *testing.T) {
	g := startGuest(t, "--vcpus", "2")
	g.attach("p:myread vfs_read fd=%di:s32 count=%dx:u64", "p:mywrite vfs_write")
	w := newBrowser(t)
	w.open(g.address())
	w.view("events")
	w.waitFor(`Number(document.querySelector("#event-counts").dataset.delivered) > 200`)
	w.waitForText(".list .row", "myread: (vfs_read+0x4")
	w.waitForText(".list .row", "mywrite: (vfs_write+0x4")
	w.picture("events")
	w.press("Pause")
	w.press("Resume")
	w.write("input[type=search]", "mywrite")
	w.waitFor(`(() => { const r = [...document.querySelectorAll(".list .row:not([hidden])")]; return r.length > 5 && r.every((e) => e.textContent.includes("mywrite")) })()`)
	w.run(`document.querySelector(".list .row").click()`)
	w.waitForText("pre.card", `"probe": "kprobes/mywrite"`)
	// Lines wrap in a narrow window, and the first and the last one can be scrolled to.
	w.resize(400, 800)
	w.waitFor(`document.querySelector(".list .row").offsetHeight > 30`)
	w.press("Pause")
	w.waitFor(`[...document.querySelectorAll("main button")].some((b) => b.textContent === "Resume")`)
	for _, c := range []struct{ to, row, at string }{
		{"0", `document.querySelector(".list .row")`, `r.at === 0 && Math.abs(e.top - f.top) < 3`},
		{"1e9", `[...document.querySelectorAll(".list .row:not([hidden])")].at(-1)`, `r.at > 3 && Math.abs(e.bottom - f.bottom) < 3`},
		{"document.querySelector('.list').scrollTop - 20", `[...document.querySelectorAll(".list .row:not([hidden])")].at(-1)`, `e.bottom > f.bottom - 60 && e.bottom < f.bottom + 300`},
	} {
		w.run(`document.querySelector(".list").scrollTop = ` + c.to)
		w.waitFor(`(() => { const r = %s, e = r.getBoundingClientRect(), f = document.querySelector(".list").getBoundingClientRect(); return %s })()`, c.row, c.at)
	}
	w.picture("events-paused-400")
	w.press("Resume")
	w.waitFor(`(() => { const e = [...document.querySelectorAll(".list .row:not([hidden])")].at(-1).getBoundingClientRect(), f = document.querySelector(".list").getBoundingClientRect(); return Math.abs(e.bottom - f.bottom) < 3 })()`)
	w.resize(1280, 800)
	w.write("input[type=search]", "")
	w.run(`(() => { const s = document.querySelector("main select"); s.value = "kprobes/myread"; s.dispatchEvent(new Event("change")) })()`)
	w.waitFor(`Number(document.querySelector("#event-counts").dataset.delivered) > 50 && [...document.querySelectorAll(".list .row:not([hidden])")].every((e) => e.textContent.includes("myread"))`)
	w.checkExceptions()
}

// TestCodeView: a function with its sites and regions; Enter attaches and detaches.
func TestCodeView(t *testing.T) {
	g := startGuest(t, "--vcpus", "2")
	g.attach("p:myread vfs_read")
	w := newBrowser(t)
	w.open(g.address())
	w.view("code:vfs_read")
	w.waitForText(".code td .badge", "kprobes/myread · ")
	w.waitFor(`document.querySelector(".code .badge.jump, .code .badge.program")`) // it has become a jump
	w.waitFor(`document.querySelector(".code tr.region")`)
	w.waitFor(`Number([...document.querySelectorAll(".code tr.site")].find((r) => r.querySelector(".badge")).cells[5].textContent.replaceAll(",", "")) > 0`)
	w.picture("code")
	w.run(`document.querySelector(".code tbody tr:last-child").focus()`)
	w.enter()
	w.waitFor(`document.querySelector(".code tbody tr:last-child .badge")`)
	w.enter() // it has the focus still
	w.waitFor(`!document.querySelector(".code tbody tr:last-child .badge")`)
	if ps, err := g.Probes(g.ctx); err != nil || len(ps) != 1 {
		t.Errorf("there are %d probes, want 1: %v", len(ps), err)
	}
	w.write("#code-at", "no_such_function")
	w.press("Show")
	w.waitForText(".error", "[symbol_not_found]")
	w.checkExceptions()
}

// TestCodeViewWithoutSource: the instructions are there though nobody knows the source.
func TestCodeViewWithoutSource(t *testing.T) {
	g := startGuest(t, "--guest", filepath.Join("..", "..", "..", "docs", "examples", "guest", "first.elf"), "--paused")
	w := newBrowser(t)
	w.open(g.address())
	w.view("code:collatz")
	w.waitFor(`document.querySelectorAll(".code tbody tr[data-offset]").length > 5`)
	w.waitFor(`document.querySelector(".error").hidden`)
	w.run(`document.querySelector(".code tbody tr").focus()`)
	w.enter()
	w.waitForText(".code tbody tr .badge", "kprobes/p_") // and can be probed
	w.checkExceptions()
}

// TestAddresses: an address that somebody has written is one of the page's, whatever is in it.
func TestAddresses(t *testing.T) {
	g := startGuest(t, "--paused")
	w := newBrowser(t)
	w.open(g.address())
	w.view("code:%")
	w.waitForText(".error", "[symbol_not_found]")
	w.view("scripts:%E0%A4%A")
	w.view("code:vfs%5fread")
	w.waitForText("h2", "vfs_read, ")
	w.run(`location.hash = "constructor"`)
	w.waitFor(`document.querySelector("main > section#view-guest")`)
	w.checkExceptions()
}

// TestScriptsView: a script is checked while it is written, runs, prints, stops; one that is left running has charts.
func TestScriptsView(t *testing.T) {
	g := startGuest(t, "--vcpus", "2")
	w := newBrowser(t)
	w.open(g.address())
	w.view("scripts")
	w.waitForText("#script-note", "The script is valid: 2 probes.")
	w.write("textarea", "kprobe:vfs_read { @a = nope(); }")
	w.waitForText(".error", "ERROR: Unknown function: 'nope'")
	if got, want := eval[string](w, `document.querySelector(".error pre").textContent`), "kprobe:vfs_read { @a = nope(); }\n                       ~~~~~~"; got != want {
		t.Errorf("the caret is\n%s\nwant\n%s", got, want)
	}
	w.checkConsole()
	w.write("textarea", `kprobe:vfs_read { printf("read of %d\n", arg2); @sizes = hist(arg2); @by[arg0] = count(); @line = lhist(arg2, 0, 64, 8); }`)
	w.waitFor(`document.querySelector(".error").hidden`)
	w.press("Run")
	w.waitForText(".term", "read of ")
	w.picture("scripts")
	w.view("guest") // it goes on, and what it has printed is there
	w.waitFor(`document.querySelector("#view-scripts") === null`)
	w.view("scripts")
	w.waitForText(".term", "read of ")
	w.press("Stop")
	w.waitForText("#script-note", "The script has ended: asked")
	w.waitForText(".term", "@sizes:")
	w.press("Leave running as")
	w.waitFor(`document.querySelector("tr[data-script=reads]").cells[1].textContent === "runs"`)
	w.view("charts:reads")
	w.waitFor(`Number(document.querySelector("figure[data-map='@sizes']").dataset.columns) >= 3`)
	w.waitFor(`Number(document.querySelector("figure[data-map='@by']").dataset.sum) > 0`)
	before := eval[string](w, `document.querySelector("figure[data-map='@sizes']").dataset.sum`)
	w.waitFor(`document.querySelector("figure[data-map='@sizes']").dataset.sum !== %s`, quote(before)) // it moves
	w.picture("charts")
	// A script that somebody else runs, and is looked at.
	s, err := g.RunScript(g.ctx, api.RunScript{Script: `kprobe:vfs_write { @elsewhere = hist(arg2); }`, Name: "other"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	option := `[...document.querySelectorAll("main select option")].find((o) => o.textContent.startsWith("other (stream "))`
	w.waitFor("%s", option)
	w.run(`(() => { const o = ` + option + `; o.parentElement.value = o.value; o.parentElement.dispatchEvent(new Event("change")) })()`)
	w.waitFor(`Number(document.querySelector("figure[data-map='@elsewhere']").dataset.columns) >= 2 && document.querySelector("figure[data-map='@sizes']") === null`)
	w.view("scripts")
	w.press("End reads")
	w.waitForText(".term", "@by[")
	w.waitFor(`!document.querySelector("tr[data-script=reads]")`)
	w.checkExceptions()
}

// TestFlameView: a profile is recorded and drawn.
func TestFlameView(t *testing.T) {
	g := startGuest(t, "--vcpus", "2")
	w := newBrowser(t)
	w.open(g.address())
	w.view("flame")
	frame := `document.querySelector("iframe").contentDocument`
	w.write("main form input.mono", "p vfs_read")
	w.press("Record")
	w.waitForText("p", "Recording for")
	// What was seen is sent at the end alone; that a probe has been hit often shows in its counts.
	for {
		ps, err := g.Probes(g.ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(ps) == 1 && ps[0].Stats.Hits > 20 {
			break
		}
	}
	w.press("Stop and show")
	w.waitFor(`[...%s.querySelectorAll("#graph div")].some((d) => d.textContent === "vfs_read")`, frame)
	w.picture("flame")
	for _, width := range []int64{1280, 800, 400} {
		w.resize(width, 800)
		w.checkLayout(fmt.Sprintf("flame-%d-light", width), frame+`.querySelectorAll("#graph div").length > 3`)
		if got := eval[string](w, layoutFaults+`(`+frame+`)`); got != "" {
			t.Errorf("the flame graph in a window of %d pixels:\n%s", width, got)
		}
	}
	w.run(frame + `.querySelector("#search").focus()`)
	w.run(`(() => { const s = ` + frame + `.querySelector("#search"); s.value = "vfs_read"; s.dispatchEvent(new Event("input")) })()`)
	w.waitFor(`%s.querySelector("#matched").textContent === "matched 100.00%%"`, frame)
	w.write("main form input.mono", "p nowhere")
	w.press("Record")
	w.waitForText(".error", "[symbol_not_found")
	w.checkExceptions()
}

// TestEnds: a guest that ends, and a daemon that does, are said so.
func TestEnds(t *testing.T) {
	g := startGuest(t, "--vcpus", "2")
	w := newBrowser(t)
	w.open(g.address())
	w.view("events")
	if _, err := g.Call(g.ctx, api.Call{Symbol: "panic"}); err == nil {
		t.Log("the call has returned")
	}
	w.waitForText("#banner", "The guest has ")
	w.waitFor(`!document.querySelector("#state-text").textContent.includes("running")`)
	w.waitForText("#event-counts", "ended: guest")
	g.end()
	w.waitForText("#banner", "The daemon does not answer")
	w.waitForText("#state-text", "not connected")
	// The last values are gray, and their time is there.
	w.waitForText("#banner", "Values in gray are from ")
	w.waitFor(`getComputedStyle(document.querySelector("#event-counts")).filter === "grayscale(1)"`)
	// Each view can be opened, and says how it is, also one that was never seen.
	for _, view := range []string{"guest", "console", "probes", "code", "scripts", "charts", "flame", "events"} {
		w.view(view)
	}
	w.waitForText("main .error", "the daemon does not answer [unreachable]")
	w.view("charts")
	w.waitForText("main .error", "the daemon does not answer [unreachable]")
	w.checkExceptions()
}

// TestReload: a reload, and a second window, need no other token, and both show the same.
func TestReload(t *testing.T) {
	g := startGuest(t, "--cmdline", "idle") // nothing that the page shows here is of the workload
	w := newBrowser(t)
	w.prefer("dark")
	address := g.address()
	w.open(address)
	w.view("probes")
	w.do(chromedp.Reload())
	w.waitFor(`document.documentElement.dataset.ready && document.querySelector("#view-probes")`)
	w.waitForText("#state-text", "running")
	if got := eval[string](w, `getComputedStyle(document.body).backgroundColor`); got != "rgb(15, 19, 25)" {
		t.Errorf("a dark page is %s", got)
	}
	w.do(chromedp.Click("#theme"))
	w.waitFor(`getComputedStyle(document.body).backgroundColor === "rgb(255, 255, 255)"`)
	// Ten windows: more than a browser has connections for.
	others := []*window{}
	for range 9 {
		o := w.openWindow()
		o.open(eval[string](w, `location.origin`) + "/#events")
		o.waitFor(`document.querySelector("#event-counts").textContent !== ""`)
		others = append(others, o)
	}
	o := others[8]
	o.view("probes")
	w.write("#def", "p:both vfs_read")
	w.press("Attach")
	o.waitFor(`document.querySelector("tr[data-probe='kprobes/both']")`)
	o.press("Detach kprobes/both")
	w.waitForText("p", "No probe is attached.")
	w.checkExceptions()
	o.checkExceptions()

	// Another browser gets nothing by a token that was used.
	x := newBrowser(t)
	x.open(address)
	x.waitForText("#banner", "this token was used before, or is too old ('guestprobe web' prints an address with a new one): EACCES [forbidden]")
	x.open(eval[string](w, `location.origin`))
	x.waitForText("#banner", "the page has no valid token")
}
