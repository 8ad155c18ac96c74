package web_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// serveTwo is the API of a guest with two probes on one instruction, and a profile of which samples are lost, as far as the page needs it.
func serveTwo(w http.ResponseWriter, r *http.Request) {
	guest := &api.Guest{State: "running", CPUs: []api.CPUInfo{}}
	enc := json.NewEncoder(w)
	switch r.URL.Path {
	case "/v1/guest":
		_ = enc.Encode(guest)
	case "/v1/counts":
		c := api.Counted{TimeNS: 1, Guest: guest}
		for i, hits := range []uint64{1500, 1200} {
			c.Probes = append(c.Probes, api.ProbeCounts{ID: uint64(i + 1), Name: fmt.Sprintf("kprobes/p%d", i), Kind: "k", Symbol: "f", Addr: 0x1000, Enabled: true, Armed: true, Hits: hits})
		}
		_ = enc.Encode(record{api.RecordCounts, c})
		<-r.Context().Done()
	case "/v1/disas":
		_ = enc.Encode(api.Disas{Symbol: "f", Addr: 0x1000, Size: 1, Insts: []api.DisasInst{{Addr: 0x1000, Bytes: "90", Text: "nop", Kind: "boost", Ours: api.DisasRegion{Reason: "short"}, Probes: []api.DisasProbe{{Name: "kprobes/p0", How: "int3"}, {Name: "kprobes/p1", How: "int3"}}}}})
	case "/v1/symbols":
		l := api.SymbolList{Symbols: []api.Symbol{}}
		for _, name := range []string{"f", "g", "fg"} {
			if strings.Contains(name, strings.Trim(r.URL.Query().Get("match"), "*")) {
				l.Symbols = append(l.Symbols, api.Symbol{Name: name, Addr: 0x1000, Size: 1, Kind: "func"})
			}
		}
		_ = enc.Encode(l)
	case "/v1/profile":
		_ = enc.Encode(record{"start", map[string]any{"stream": 1}})
		_ = enc.Encode(record{"graph", map[string]any{"unit": "samples", "compared": false, "root": []any{"all", false, 10, 0, "#ffffff", []any{}}}})
		_ = enc.Encode(record{api.RecordEnd, api.End{Reason: api.EndAsked, Delivered: 10, Lost: 4}})
	case "/v1/charts":
		_ = enc.Encode(api.ChartList{Sources: []api.ChartSource{{ID: "s", Kind: "script", Label: "s"}}, Charts: []api.Chart{
			{Name: "@", Hist: true, Bars: []api.ChartBar{{Label: "[0, 1)", Count: 1}, {Label: "[1, 2)", Count: 1}, {Label: "[2, 4)", Count: 1}}}}})
	default:
		http.NotFound(w, r)
	}
}

// TestWhatIsShown: what the views say of their numbers, over an API whose numbers are known.
func TestWhatIsShown(t *testing.T) {
	s := serve(t, serveTwo)
	w := newBrowser(t)
	w.open(s.url + "/#token=" + s.token())
	w.waitForText("#state-text", "running")

	// The functions are listed, and fewer while a name is typed.
	w.view("code")
	w.waitFor(`[...document.querySelectorAll("tr[data-function]")].map((r) => r.dataset.function).join() === "f,g,fg" && document.querySelector("tr[data-function=f]").cells[3].textContent === "2"`)
	w.write("#code-at", "g")
	w.waitFor(`[...document.querySelectorAll("tr[data-function]")].map((r) => r.dataset.function).join() === "g,fg"`)
	w.write("#code-at", "none")
	w.waitForText(".none", "No function's name contains none.")
	w.write("#code-at", "")
	w.waitFor(`document.querySelectorAll("tr[data-function]").length === 3`)
	w.run(`document.querySelector("tr[data-function=f] a").click()`)
	// Two probes on an instruction are hit together: the place was hit as often as one of them.
	w.waitFor(`document.querySelectorAll(".code .badge").length === 2 && document.querySelector(".code tbody tr").cells[5].textContent !== ""`)
	if got := eval[string](w, `document.querySelector(".code tbody tr").cells[5].textContent`); got != "1,500" {
		t.Errorf("a place with probes that have 1,500 and 1,200 hits has %s", got)
	}
	w.run(`[...document.querySelectorAll("main a")].find((a) => a.textContent === "All functions").click()`)
	w.waitFor(`document.querySelectorAll("tr[data-function]").length === 3`)

	// A heat map has the names of its rows, times, and the counts of its shades.
	w.view("charts")
	w.waitFor(`document.querySelector(".heat .scale i")`)
	if got := eval[string](w, `[".y span", ".x span", ".scale span"].map((s) => [...document.querySelectorAll(".heat " + s)].map((e) => e.textContent).join("|")).join("; ")`); got != "[0, 1)|[1, 2)|[2, 4); 2 min ago|1 min ago|now; 1" {
		t.Errorf("a heat map's axes and scale are %s", got)
	}

	w.view("flame")
	w.waitForText(".none", "No graph yet. Press Record")
	w.press("Record")
	w.waitForText("p", "10 samples, 4 lost. Lost are samples that were taken too late or within a hit of a probe, and stacks for which there was no room. The graph lacks them.")

	// ? shows the keys, unless it is typed into a field, and closes them.
	w.view("probes")
	key := func(k string) {
		w.run(`document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key: ` + quote(k) + `, bubbles: true}))`)
	}
	open := `document.querySelector("dialog").open`
	w.run(`document.querySelector("#def").focus()`)
	key("?")
	if eval[bool](w, open) {
		t.Error("a question mark in a definition shows the keys")
	}
	w.run(`document.activeElement.blur()`)
	key("?")
	w.waitFor("%s", open)
	w.waitForText("dialog dd", "Pause or resume")
	key("1")
	if got := eval[string](w, `location.hash`); got != "#probes" {
		t.Errorf("a key goes to %s while the keys are shown", got)
	}
	key("?")
	w.waitFor("!%s", open)
	w.checkExceptions()
}

// TestEmptyViews: a view without content says what to do.
func TestEmptyViews(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		guest := &api.Guest{State: "paused", CPUs: []api.CPUInfo{}}
		enc := json.NewEncoder(w)
		switch r.URL.Path {
		case "/v1/guest":
			_ = enc.Encode(guest)
		case "/v1/probes":
			_ = enc.Encode(map[string]any{"probes": []any{}})
		case "/v1/scripts":
			_ = enc.Encode(map[string]any{"scripts": []any{}})
		case "/v1/check":
			_ = enc.Encode(map[string]any{"probes": 1})
		case "/v1/symbols":
			_ = enc.Encode(api.SymbolList{Symbols: []api.Symbol{}})
		case "/v1/charts":
			_ = enc.Encode(api.ChartList{Sources: []api.ChartSource{}, Charts: []api.Chart{}})
		case "/v1/counts":
			_ = enc.Encode(record{api.RecordCounts, api.Counted{TimeNS: 1, Guest: guest, Probes: []api.ProbeCounts{}}})
			<-r.Context().Done()
		case "/v1/guest/console", "/v1/events":
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			http.NotFound(w, r)
		}
	})
	w := newBrowser(t)
	w.open(s.url + "/#token=" + s.token())
	w.waitForText("#state-text", "paused")
	for view, want := range map[string]string{
		"probes": "Type a definition above", "events": "Attach a probe under Probes.", "code": "Type an address.", "scripts": "press Leave running as", "charts": "Leave a script running under Scripts", "flame": "Press Record",
	} {
		w.view(view)
		w.waitFor(`[...document.querySelectorAll("main p")].some((e) => e.textContent.includes(%s) && e.getBoundingClientRect().height > 0)`, quote(want))
	}
	for view, want := range map[string]string{"console": "The guest has written nothing yet.", "scripts": "Press Run"} {
		w.view(view)
		w.waitFor(`getComputedStyle(document.querySelector(".term"), "::before").content.includes(%s)`, quote(want))
	}
	w.checkExceptions()
}
