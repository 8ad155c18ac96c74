package web_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// servePlain is the API of a guest that turns the direction of its lines, as far as the page needs it.
func servePlain(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/v1/guest":
		_ = json.NewEncoder(w).Encode(&api.Guest{State: "running", CPUs: []api.CPUInfo{}})
	case "/v1/counts":
		_ = json.NewEncoder(w).Encode(record{api.RecordCounts, api.Counted{TimeNS: 1, Probes: []api.ProbeCounts{}, Guest: &api.Guest{State: "running", CPUs: []api.CPUInfo{}}}})
		<-r.Context().Done()
	case "/v1/guest/console":
		enc := json.NewEncoder(w)
		_ = enc.Encode(record{api.RecordConsole, api.Console{Text: "pay \u202e\"drawer\"\\\u2066"}})
		_ = enc.Encode(record{api.RecordConsole, api.Console{Seq: 1, Bytes: []byte("\xff\u061c")}})
		_ = enc.Encode(record{api.RecordEnd, api.End{Reason: api.EndGuestExit}})
	case "/v1/charts":
		_ = json.NewEncoder(w).Encode(api.ChartList{Sources: []api.ChartSource{{ID: "s", Kind: "script", Label: "s"}}, Charts: []api.Chart{{Name: "@", Hist: true, Bars: []api.ChartBar{{Label: "a\u200fb", Count: 1}}}}})
	default:
		http.NotFound(w, r)
	}
}

// TestPlainText: what turns the direction of a line is shown as what it is.
func TestPlainText(t *testing.T) {
	s := serve(t, servePlain)
	w := newBrowser(t)
	w.open(s.url + "/#token=" + s.token())
	w.view("console")
	w.waitFor(`document.querySelector(".term").textContent === %s`, quote(`pay \xe2\x80\xae"drawer"\\xe2\x81\xa6`+"\n\ufffd"+`\xd8\x9c`+"\n"))
	w.view("charts")
	w.waitFor(`document.querySelector("figure[data-map='@'] svg text").textContent === %s`, quote(`a\xe2\x80\x8fb`))
	w.checkExceptions()
}

// TestHeadings: headings have text and leave no level out, and columns have names, in every view.
func TestHeadings(t *testing.T) {
	s := serve(t, servePlain)
	w := newBrowser(t)
	w.open(s.url + "/#token=" + s.token())
	for view, there := range map[string]string{"guest": ".cards .card", "console": ".term", "probes": "#probes-shown", "code": "#code-at", "scripts": "textarea", "charts": "figure[data-map='@'] canvas", "flame": "main form", "events": "#event-counts"} {
		w.view(view)
		w.waitFor(`document.querySelector(%s) !== null`, quote(there))
		if got := eval[string](w, `(() => {
			let level = 0, bad = [];
			for (const h of document.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
				if (!h.hidden) {
					if (h.textContent === "" || Number(h.tagName[1]) > level + 1) {
						bad.push(h.outerHTML);
					}
					level = Number(h.tagName[1]);
				}
			}
			return bad.concat([...document.querySelectorAll("th")].filter((h) => h.textContent === "").map((h) => h.outerHTML)).join();
		})()`); got != "" {
			t.Errorf("the view %s has %s", view, got)
		}
	}
	w.checkExceptions()
}
