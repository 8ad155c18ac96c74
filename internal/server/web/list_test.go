package web_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// serveProbes is the API of a guest with ten thousand probes, of which one is hit, as far as the page needs it.
func serveProbes(w http.ResponseWriter, r *http.Request) {
	guest := &api.Guest{State: "running", CPUs: []api.CPUInfo{}}
	switch r.URL.Path {
	case "/v1/guest":
		_ = json.NewEncoder(w).Encode(guest)
	case "/v1/counts":
		enc, c := json.NewEncoder(w), api.Counted{TimeNS: 1, Guest: guest}
		for i := range 10000 {
			c.Probes = append(c.Probes, api.ProbeCounts{ID: uint64(i + 1), Name: fmt.Sprintf("io/e%d", i), Kind: "k", Symbol: "vfs_read", Offset: uint64(i), Enabled: true, Armed: true, Plan: "boost"})
		}
		c.Probes[0].Symbol = longSymbol
		_ = enc.Encode(record{api.RecordCounts, c})
		one := c.Probes[7777]
		one.Hits = 50
		_ = enc.Encode(record{api.RecordCounts, api.Counted{TimeNS: 1e9 + 1, Probes: []api.ProbeCounts{one}}})
		<-r.Context().Done()
	default:
		http.NotFound(w, r)
	}
}

// longSymbol is a name as hostile programs, and compilers, make them.
var longSymbol = strings.Repeat("s", 3000)

// TestManyProbes: of a long list the document has what is in sight, wherever that is; it is sorted and filtered by keys.
func TestManyProbes(t *testing.T) {
	s := serve(t, serveProbes)
	w := newBrowser(t)
	w.open(s.url + "/#token=" + s.token())
	w.view("probes")
	w.waitForText("#probes-shown", "10,000 probes")
	row := func(i int) string {
		return fmt.Sprintf(`document.querySelectorAll("tr[data-probe]")[%d].dataset.probe`, i)
	}
	w.waitFor("%s", row(0)+` === "io/e0"`)
	// A long name takes no other column's room, and all of it can be had.
	if got := eval[string](w, `(() => {
		const r = document.querySelector("tr[data-probe='io/e0']"), b = r.querySelector("[aria-label='Detach io/e0']").getBoundingClientRect();
		return [b.left >= 0 && b.right <= innerWidth, r.cells[1].title === r.cells[1].textContent, r.cells[1].title.length].join()
	})()`); got != "true,true,3000" {
		t.Errorf("the row of a long name is %s", got)
	}
	if n := eval[int](w, `document.querySelectorAll("tr[data-probe]").length`); n > 60 {
		t.Errorf("%d rows are in the document", n)
	}
	if got := eval[string](w, `document.querySelector("[data-probe]").closest("table").getAttribute("aria-rowcount") + " " + document.querySelector("[data-probe]").getAttribute("aria-rowindex")`); got != "10001 2" {
		t.Errorf("rows are counted as %s", got)
	}
	w.do(chromedp.Focus(".tall"), chromedp.KeyEvent(kb.End))
	w.waitFor(`[...document.querySelectorAll("tr[data-probe]")].at(-1).dataset.probe === "io/e9999" && [...document.querySelectorAll("tr[data-probe]")].at(-1).getBoundingClientRect().bottom <= innerHeight`)
	sort := func(title string) {
		w.run(`[...document.querySelectorAll("button.sort")].find((b) => b.textContent === ` + quote(title) + `).focus()`)
		w.enter()
	}
	w.do(chromedp.Focus(".tall"), chromedp.KeyEvent(kb.Home))
	w.waitFor("%s", row(0)+` === "io/e0"`)
	sort("hits")
	w.waitFor("%s", row(0)+` === "io/e7777" && document.querySelectorAll("th[aria-sort=descending]").length === 1`)
	sort("probe")
	w.waitFor("%s", row(2)+` === "io/e10" && document.querySelector("th[aria-sort]").ariaSort === "ascending"`)
	sort("probe")
	w.waitFor("%s", row(0)+` === "io/e9999"`)
	w.write("#probes-filter", "E123")
	w.waitForText("#probes-shown", "11 of 10,000 probes")
	w.waitFor("%s", row(10)+` === "io/e123"`)
	sort("probe") // a third time is the order in which they were attached
	w.waitFor("%s", row(0)+` === "io/e123" && document.querySelector("th[aria-sort]") === null`)
	w.picture("many-probes")
	w.checkExceptions()
}
