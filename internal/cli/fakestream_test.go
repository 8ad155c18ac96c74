package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// stream sends records. If end has no reason it waits until a client requests the end. Then it sends after and
// end. With the reason "cut" it closes the stream without an end.
func (f *fakeDaemon) stream(w http.ResponseWriter, r *http.Request, id uint64, records []any, end api.End, after ...any) {
	asked := make(chan struct{})
	f.mu.Lock()
	for f.asked[id] != nil { // there can be several clients at the same time
		id += 100
	}
	f.asked[id] = asked
	f.mu.Unlock()
	send := func(records []any) {
		var b strings.Builder
		for _, x := range records {
			if s, ok := x.(api.Start); ok {
				s.Stream = id
				x = s
			}
			line, err := json.Marshal(map[string]any{"type": recordTypeOf(x), "data": x})
			if err != nil {
				panic(err)
			}
			b.Write(append(line, '\n'))
		}
		_, _ = io.WriteString(w, b.String())
		_ = http.NewResponseController(w).Flush()
	}
	send(records)
	if end.Reason == "" {
		select {
		case <-asked:
		case <-r.Context().Done():
			return
		}
		end.Reason = api.EndAsked
	}
	send(after)
	f.mu.Lock()
	delete(f.asked, id)
	f.mu.Unlock()
	if end.Reason != "cut" {
		line, _ := json.Marshal(map[string]any{"type": api.RecordEnd, "data": end})
		_, _ = w.Write(append(line, '\n'))
	}
}

func recordTypeOf(x any) api.RecordType {
	switch x.(type) {
	case api.Start:
		return api.RecordStart
	case api.Hit:
		return api.RecordHit
	case api.Boot:
		return api.RecordBoot
	case api.Stop:
		return api.RecordStop
	case api.Lost:
		return api.RecordLost
	case api.Heartbeat:
		return api.RecordHeartbeat
	case api.Output:
		return api.RecordOutput
	case api.ScriptMaps:
		return api.RecordMaps
	case api.Warning:
		return api.RecordWarning
	case api.Interval:
		return api.RecordInterval
	}
	panic(fmt.Sprintf("a record of %T", x))
}

// timeAt returns a time of the daemon. The times of several daemons alternate.
func (f *fakeDaemon) timeAt(i int) int64 { return 1_000_000*int64(i) + 1000*int64(f.n) }

// events streams three hits. The definition or the probe's name selects further records.
func (f *fakeDaemon) events(w http.ResponseWriter, r *http.Request) {
	var req api.StreamEvents
	_ = json.NewDecoder(r.Body).Decode(&req)
	what := strings.Join(req.Names, " ")
	for i, s := range req.Probes {
		if what += s.Def; strings.Contains(what, "nosuch") {
			rejectFake(w, http.StatusNotFound, api.Error{Code: "symbol_not_found", Errno: "ENOENT", Message: `no symbol "nosuch"`, Index: &i})
			return
		}
	}
	if strings.Contains(what, "myread2") {
		f.findProbes(w, req.Names)
		return
	}
	if strings.Contains(what, "late") {
		time.Sleep(300 * time.Millisecond)
	}
	p := f.listProbes()[0]
	p.Post = strings.Contains(what, "post")
	start := api.Start{Epoch: fakeEpoch, TimeNS: f.timeAt(0), BootNS: 500, Probes: []api.Probe{p}}
	if strings.Contains(what, "*") {
		start.Skipped = []api.Skipped{{Def: "p vfs_write", Error: api.Error{Code: "blacklisted", Errno: "EINVAL", Message: "vfs_write may not be probed"}}}
	}
	records := []any{start}
	for i := range 3 {
		h := api.Hit{
			TimeNS: f.timeAt(i + 1), Probe: p.Name, ID: p.ID, Stage: "pre", Addr: p.Addr, Symbol: p.Symbol, Task: &api.Task{PID: int32(f.n), Comm: "cat"},
			Args: []api.Arg{{Name: "fd", Type: "s32", Value: i, Text: fmt.Sprint(i)}}, Text: fmt.Sprintf("(vfs_read+0x0/0x10) fd=%d", i),
		}
		records = append(records, h)
		if p.Post {
			h.Stage, h.TimeNS, h.Args, h.Text = "post", h.TimeNS+10, nil, "(vfs_read+0x0/0x10)"
			records = append(records, h)
		}
	}
	if strings.Contains(what, "more") {
		records = append(records, api.Heartbeat{Delivered: 3}, api.Boot{BootNS: f.timeAt(4)}, api.Lost{Lost: 2, Total: 2}, api.Stop{TimeNS: f.timeAt(5), Since: fakeEpoch, Probe: p.Name, RIP: 16, Symbol: "vfs_read+0x0/0x10"},
			api.Hit{TimeNS: f.timeAt(6) - 5, Late: true, Probe: p.Name, ID: p.ID, Stage: "pre", Symbol: p.Symbol, Text: "(vfs_read+0x0/0x10) late"})
	}
	end := api.End{Delivered: uint64(len(records) - 1)}
	switch {
	case strings.Contains(what, "cut"):
		end.Reason = "cut"
	case strings.Contains(what, "exits"):
		code := int64(3)
		end.Reason, end.Code = api.EndGuestExit, &code
	case strings.Contains(what, "more"):
		end.Delivered, end.Lost, end.Late = 4, 2, 1
	}
	if len(req.Probes) > 0 {
		end.Probes = []api.Probe{p}
	}
	f.stream(w, r, 7, records, end)
}

// scripts serves the daemon's scripts. A script's text says what it does.
func (f *fakeDaemon) scripts(w http.ResponseWriter, r *http.Request, name string) {
	name, output, _ := strings.Cut(name, "/")
	code := int64(3)
	all := []api.ScriptInfo{
		{Name: "reads", Script: "kprobe:vfs_read { @n = count(); }", Format: "text", Since: fakeEpoch, Attached: 2, Hits: 10 * f.n, Written: f.n, Lost: f.n / 2},
		{Name: "ended", Script: "BEGIN { exit(3); }", Format: "text", Since: fakeEpoch, Attached: 1, Ended: api.EndExit, Code: &code},
	}
	if f.n != 1 {
		all = append(all, api.ScriptInfo{Name: "others", Script: "kprobe:do_fork\n{ }", Format: "text", Since: fakeEpoch, Attached: 1, Ended: api.EndDetached})
	}
	switch {
	case r.Method == http.MethodPost:
		f.run(w, r)
		return
	case name == "":
		answerFake(w, api.ScriptList{Scripts: all})
		return
	}
	for _, s := range all {
		switch {
		case s.Name != name:
			continue
		case r.Method == http.MethodDelete:
			end := api.End{Reason: api.EndAsked}
			if s.Ended != "" {
				end.Reason, end.Code = s.Ended, s.Code
			}
			f.stream(w, r, 9, []any{
				api.Start{Epoch: fakeEpoch, TimeNS: f.timeAt(0), Attached: s.Attached}, api.Output{Text: fmt.Sprintf("end of %s\n", f.name), TimeNS: f.timeAt(1)},
				api.ScriptMaps{TimeNS: f.timeAt(2), Final: true, Maps: f.states()},
			}, end)
		case output == "output":
			f.stream(w, r, 9, []any{api.Start{Epoch: fakeEpoch, Attached: s.Attached}, api.Output{Text: "begun\n"}}, api.End{Reason: api.EndDetached})
		case s.Ended != "":
			answerFake(w, s)
		case r.URL.Query().Get("format") == api.ScriptData:
			s.States, s.Left = f.states(), int(f.n/2)
			answerFake(w, s)
		default:
			text := f.mapText(r.URL.Query().Get("format"))
			s.Maps = &text
			answerFake(w, s)
		}
		return
	}
	rejectFake(w, http.StatusNotFound, api.Error{Code: api.CodeNoScript, Errno: "ENOENT", Message: fmt.Sprintf("no script %q", name)})
}

// states returns a script's maps as data. mapText is how the daemon prints them.
func (f *fakeDaemon) states() json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`[{"name":"@n","keyed":false,"kind":"count","elements":[{"words":[%d]}]},{"name":"@x","keyed":false,"kind":"int","elements":[{"words":[7],"text":"7","json":"7"}]}]`, f.n))
}

func (f *fakeDaemon) mapText(format string) string {
	if format == api.ScriptJSON {
		return fmt.Sprintf("{\"type\": \"map\", \"data\": {\"@n\": %d}}\n{\"type\": \"map\", \"data\": {\"@x\": 7}}\n", f.n)
	}
	return fmt.Sprintf("@n: %d\n@x: 7\n", f.n)
}

// run runs a script.
func (f *fakeDaemon) run(w http.ResponseWriter, r *http.Request) {
	var req api.RunScript
	_ = json.NewDecoder(r.Body).Decode(&req)
	has := func(what string) bool { return strings.Contains(req.Script, what) }
	program := func(section string) *api.ProgramInfo {
		return &api.ProgramInfo{Section: section, Instructions: 12, Budget: 100, CodeBytes: 64}
	}
	start := api.Start{Epoch: fakeEpoch, TimeNS: f.timeAt(0), Attached: 2, Probes: []api.Probe{{Symbol: "vfs_read", Runs: api.RunsInGuest, Program: program("kprobe:vfs_read")}}, Idle: []api.ProgramInfo{*program("BEGIN")}}
	if has("license") {
		start.Notes = []string{"stdin:1:12: license has no effect here"}
	}
	switch {
	case has("nope"):
		at, width := 8, 4
		rejectFake(w, http.StatusBadRequest, api.Error{Code: api.CodeBadScript, Errno: "EINVAL", Message: "stdin:1:9-13: ERROR: Unknown function: 'nope'", Column: &at, Width: &width, Command: req.Script})
		return
	case req.Detach != "":
		answerFake(w, api.ScriptInfo{Name: req.Detach, Script: req.Script, Since: fakeEpoch, Attached: 2, Warnings: []string{"stdin:1:1-2: WARNING: it is slow"}, Begin: &start})
		return
	}
	records := []any{start}
	print := func(text string, i int) {
		if req.Format == api.ScriptJSON {
			b, _ := json.Marshal(text)
			text = fmt.Sprintf("{\"type\": \"printf\", \"data\": %s}\n", b)
		}
		records = append(records, api.Output{Text: text, TimeNS: f.timeAt(i)})
	}
	maps := func(before, after string, m api.ScriptMaps) {
		if m.Maps = f.states(); req.Data {
			records = append(records, m)
			return
		}
		if req.Format == api.ScriptJSON {
			before, after = "", ""
		}
		records = append(records, api.Output{Text: before + f.mapText(req.Format) + after})
	}
	if !has("silent") && req.IntervalMS == 0 {
		print("first line\n", 1)
		print("half ", 2)
		print("of it\n", 2)
	}
	if has("warn") && f.n == 1 {
		records = append(records, api.Warning{Text: "stdin:1:1-2: WARNING: it is slow\nand says so"}, api.Lost{Lost: 2, Total: 2}, api.Lost{Lost: 3, Total: 5},
			api.Stop{TimeNS: f.timeAt(5), Since: fakeEpoch, Probe: "kprobe:vfs_read", RIP: 16, Symbol: "vfs_read+0x0/0x10"})
	}
	if req.IntervalMS > 0 {
		for i := range 2 {
			maps("", "\n", api.ScriptMaps{TimeNS: f.timeAt(3 + i), Part: true})
			records = append(records, api.Interval{TimeNS: f.timeAt(3 + i)})
		}
	}
	if !has("cut") {
		maps("\n\n", "", api.ScriptMaps{TimeNS: f.timeAt(9), Final: true, Part: req.IntervalMS > 0})
	}
	end := api.End{Delivered: 3}
	switch {
	case has("exit(3)"):
		code := int64(3)
		end.Reason, end.Code = api.EndExit, &code
	case has("exit()"):
		code := int64(0)
		end.Reason, end.Code = api.EndExit, &code
	case has("cut"):
		end.Reason = "cut"
	case has("gone"):
		code := int64(5)
		end.Reason, end.Code = api.EndGuestExit, &code
	case has("detached"):
		end.Reason = api.EndDetached
	}
	if has("strict") {
		end.Strict = "3 hits were missed"
	}
	if has("missed") {
		end.Probes = []api.Probe{{Symbol: "vfs_read", Stats: api.Stats{Counts: api.Counts{Hits: 9, Missed: 2}}}}
	}
	if has("waits") { // until all daemons have started
		f.stream(w, r, 8, records[:1], end, records[1:]...)
		return
	}
	f.stream(w, r, 8, records, end)
}
