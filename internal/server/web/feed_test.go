package web_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/systeminfo"
	"github.com/chromedp/chromedp"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// The feed of TestFeed.
const (
	feedRate   = 50000 // events a second
	feedEvents = 8 * feedRate
	feedQueue  = 8192 // events that wait for the page; more are lost
)

// record is one of a stream.
type record struct {
	Type api.RecordType `json:"type"`
	Data any            `json:"data"`
}

// serveFeed is the API of a guest whose probes are hit 50,000 times a second, as far as the page needs it.
func serveFeed(w http.ResponseWriter, r *http.Request) {
	guest := map[string]any{"state": "running", "cpus": []int{}}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	put := func(t api.RecordType, data any) {
		// Whoever is gone is not told.
		_ = enc.Encode(record{t, data})
	}
	flush := func() bool {
		_, err := w.Write(buf.Bytes())
		buf.Reset()
		return err == nil
	}
	switch r.URL.Path {
	case "/v1/guest":
		_ = json.NewEncoder(w).Encode(guest)
	case "/v1/probes":
		io.WriteString(w, `{"probes":[]}`)
	case "/v1/counts":
		put("counts", map[string]any{"timeNs": 1, "guest": guest, "probes": []int{}})
		flush()
		<-r.Context().Done()
	case "/v1/events":
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		lost := uint64(0)
		for began, n := time.Now(), 0; n < feedEvents; {
			select {
			case <-r.Context().Done():
				return
			case <-tick.C:
			}
			due := min(feedEvents, int(time.Since(began).Seconds()*feedRate))
			if more := due - n - feedQueue; more > 0 {
				n, lost = n+more, lost+uint64(more)
				put(api.RecordLost, api.Lost{Lost: uint64(more), Total: lost})
			}
			for ; n < due; n++ {
				put(api.RecordHit, api.Hit{
					TimeNS: int64(n) * int64(time.Second/feedRate), CPU: n % 2, Probe: "kprobes/myread", ID: 7, Stage: "entry", Addr: 0xffffffff802013b4, Symbol: "vfs_read+0x4",
					Text: fmt.Sprintf("(vfs_read+0x4/0x60) fd=5 count=%d", n), Task: &api.Task{PID: 12, Comm: "worker"},
					Args: []api.Arg{{Name: "fd", Type: "s32", Value: json.RawMessage("5"), Text: "5"}, {Name: "count", Type: "u64", Value: json.RawMessage("4096"), Text: "4096"}},
				})
				if buf.Len() > 64<<10 && !flush() {
					return
				}
			}
			if !flush() {
				return
			}
		}
		put(api.RecordEnd, api.End{Reason: api.EndAsked, Delivered: feedEvents - lost, Lost: lost})
		flush()
	default:
		http.NotFound(w, r)
	}
}

// TestFeed: under 50,000 events a second the window goes on drawing, whatever it keeps, and tells what it has missed.
func TestFeed(t *testing.T) {
	s := serve(t, serveFeed)
	w := newBrowser(t)
	w.open(s.url + "/#token=" + s.token())
	// How often what is drawn has changed, and how long that took at most.
	w.run(`(() => {
		window.drawn = 0, window.longest = 0;
		let before = performance.now(), was = "";
		const look = () => {
			const counts = document.querySelector("#event-counts"), now = performance.now();
			if (counts?.dataset.delivered !== was) {
				was = counts?.dataset.delivered;
				drawn++;
				longest = Math.max(longest, now - before);
				before = now;
			}
			if (!counts?.textContent.includes("ended")) {
				requestAnimationFrame(look);
			}
		};
		look();
	})()`)
	before := w.processorTime()
	w.view("events")
	w.waitFor(`Number(document.querySelector("#event-counts").dataset.delivered) > 50000`)
	rows := eval[int](w, `document.querySelectorAll(".list .row").length`)
	if height := eval[int](w, `document.querySelector(".list").clientHeight`); height > 800 || rows > height/20+2 {
		t.Errorf("the window of 800 lines has %d rows in a list of %d", rows, height)
	}
	w.waitForText("#event-counts", "ended: asked")
	delivered, lost := eval[int](w, `Number(document.querySelector("#event-counts").dataset.delivered)`), eval[int](w, `Number(document.querySelector("#event-counts").dataset.lost)`)
	if delivered+lost != feedEvents {
		t.Errorf("%d events have come and %d are lost, of %d", delivered, lost, feedEvents)
	}
	w.waitForText(".list .row", fmt.Sprintf("count=%d", feedEvents-1))
	// One that draws all that it keeps comes to it some five times in all; one that draws what is in sight 480 times, or
	// some eighty times on a machine with twenty times as much to do as it can.
	drawn, longest := eval[int](w, `drawn`), eval[float64](w, `longest`)
	t.Logf("%d of %d events came, %d a second, %d are lost; %.2f us of the browser's processor time for each; drawn %d times, at most %.0f ms apart",
		delivered, feedEvents, feedRate, lost, 1e6*(w.processorTime()-before)/float64(delivered), drawn, longest)
	if drawn < 10 {
		t.Errorf("the window was drawn %d times while %d events came", drawn, feedEvents)
	}
	w.checkExceptions()
}

// processorTime is what the browser's processes have had, in seconds.
func (w *window) processorTime() (sum float64) {
	w.t.Helper()
	r, err := chromedp.CallBrowser(w.ctx, systeminfo.GetProcessInfo, cdp.Empty{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, p := range r.ProcessInfo {
		sum += p.CPUTime
	}
	return sum
}
