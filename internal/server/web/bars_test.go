package web_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// serveCharts is the API of a guest whose script has a map of many keys, as far as the page needs it.
func serveCharts(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/v1/guest":
		_ = json.NewEncoder(w).Encode(&api.Guest{State: "running", CPUs: []api.CPUInfo{}})
	case "/v1/charts":
		l := api.ChartList{Sources: []api.ChartSource{{ID: "many", Kind: "script", Label: "many"}}, Charts: []api.Chart{{Name: "@few", Bars: []api.ChartBar{{Label: "a", Count: 1}}}, {Name: "@many", Left: 7}}}
		for i := range api.MaxBars {
			l.Charts[1].Bars = append(l.Charts[1].Bars, api.ChartBar{Label: fmt.Sprint(i), Count: 1})
		}
		_ = json.NewEncoder(w).Encode(l)
	default:
		http.NotFound(w, r)
	}
}

// TestManyBars: what has no room in a chart is counted, by the daemon or here.
func TestManyBars(t *testing.T) {
	s := serve(t, serveCharts)
	w := newBrowser(t)
	w.open(s.url + "/#token=" + s.token())
	w.view("charts")
	w.waitForText("[data-map='@many'] p", "167 more are not shown.")
	if !eval[bool](w, `document.querySelector("[data-map='@few'] p").hidden`) {
		t.Error("of a map with one key some have no room")
	}
	w.checkExceptions()
}
