package web_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/guestprobe/guestprobe/internal/api"
)

// servePlain is the API of a guest that turns the direction of its lines, as far as the page needs it.
func servePlain(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/v1/guest":
		_ = json.NewEncoder(w).Encode(&api.Guest{State: "running", CPUs: []api.CPUInfo{}})
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
	w.until(`document.querySelector(".term").textContent === %s`, quote(`pay \xe2\x80\xae"drawer"\\xe2\x81\xa6`+"\n\ufffd"+`\xd8\x9c`+"\n"))
	w.view("charts")
	w.until(`document.querySelector("figure[data-map='@'] svg text").textContent === %s`, quote(`a\xe2\x80\x8fb`))
	w.clean()
}
