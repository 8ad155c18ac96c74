package http

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/program"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/script"
	"github.com/guestprobe/guestprobe/probe/session"
)

// run prints the script's output until there is a reason to stop, and a
// heartbeat at each tick of heart. An error means that the client is gone.
func (rs *runningScript) run(ctx context.Context, heart <-chan time.Time) error {
	var every <-chan time.Time
	if rs.every > 0 {
		t := time.NewTicker(rs.every)
		defer t.Stop()
		every = t.C
	}
	var looks <-chan time.Time
	if rs.data && rs.every == 0 {
		every := mapsEvery
		if rs.fleet != nil {
			every = rs.host.opt.fleetMaps
			rs.lookAtMaps() // tells others that it runs
		}
		t := time.NewTicker(every)
		defer t.Stop()
		looks = t.C
	}
	next := rs.loaded.FirstTicks()
	tick := time.NewTimer(time.Hour)
	defer tick.Stop()
	for {
		changed, gone := rs.host.guest.Changed(), rs.host.probes.Changed()
		select { // regardless of how much there is to print
		case <-rs.asked:
			rs.guestEvents() // before it was asked
			return rs.finishUnlessExit(api.EndAsked, nil)
		default:
		}
		if err := rs.print(); err != nil {
			return err
		}
		if _, exits := rs.loaded.Exit(); exits {
			return rs.finishUnlessExit("", nil)
		}
		if reason, code, ended := rs.guestEvents(); ended {
			return rs.finishUnlessExit(reason, code)
		}
		if rs.script.Probes > 0 && rs.host.allDetached(rs.owner().Probes()) {
			return rs.finish(api.EndDetached, nil)
		}
		if rs.script.CountProbes() == len(rs.script.Begin)+len(rs.script.End) {
			// No other event can happen.
			return rs.finish(api.EndExit, new(int64))
		}
		rs.putStops()
		rs.warn(rs.printer.Problems(false))
		if err := rs.send(); err != nil {
			return err
		}
		tick.Reset(rs.loaded.Tick(next, rs.warnFailed))
		select {
		case <-rs.loaded.Ready():
		case <-tick.C:
		case <-looks:
			rs.lookAtMaps()
		case <-heart:
			rs.putHeartbeat()
		case <-every:
			rs.printInterval()
		case f := <-rs.look:
			f()
		case <-rs.asked:
			rs.guestEvents() // before it was asked
			return rs.finishUnlessExit(api.EndAsked, nil)
		case <-rs.host.streams.stop:
			return rs.finish(api.EndShutdown, nil)
		case <-changed:
		case <-gone:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// putStops reports the vCPUs that the script has stopped since the last call.
func (rs *runningScript) putStops() {
	for _, x := range rs.host.stopsAfter(&rs.stops, rs.stopsVCPU) {
		rs.put(api.RecordStop, x)
	}
}

// stopsVCPU reports whether the script has stopped a vCPU.
func (rs *runningScript) stopsVCPU(by any) bool {
	p, ok := by.(*program.Program)
	return ok && slices.Contains(rs.loaded.Object().Programs(), p)
}

// guestEvents runs the script's probes for events of the guest since the last
// call. It reports whether the events end the script, and why. A script that
// handles a later boot continues.
func (rs *runningScript) guestEvents() (reason string, code *int64, over bool) {
	reason, code, over = guestEnd(rs.host.guest.State())
	was, now := rs.life, rs.host.control.guestLife()
	rs.life = now
	events := rs.script.Events
	if len(events) == 0 {
		return reason, code, over
	}
	for ; was.boots < now.boots; was.boots++ {
		rs.warn(rs.runAll(events[script.EventReset]))
		was.ended = false
	}
	if was.boot != now.boot {
		rs.warn(rs.runAll(events[script.EventStart]))
	}
	switch {
	case was.ended:
	case reason == api.EndGuestExit:
		rs.warn(rs.runAll(events[script.EventExit]))
	case reason == api.EndGuestCrash:
		rs.warn(rs.runAll(events[script.EventCrash]))
	}
	rs.host.probes.Poll()
	again := reason != api.EndShutdown && len(events[script.EventReset])+len(events[script.EventStart]) > 0
	return reason, code, over && !again
}

// warnFailed warns about a run that has ended early.
func (rs *runningScript) warnFailed(name string, err error) {
	why := rs.fault(name, err, 1)
	rs.noteCut(1, why)
	rs.warn([]string{why})
}

// noteCut counts runs that have ended early.
func (rs *runningScript) noteCut(n uint64, why string) {
	if rs.cut += n; rs.cutWhy == "" {
		rs.cutWhy = why
	}
}

// print passes the next records to the printer.
func (rs *runningScript) print() error {
	rs.loaded.ForEach(func(r session.ScriptRecord, next []byte) {
		rs.time = r.Time
		if err := rs.printer.Record(r.Data, next); err != nil {
			if rs.damaged++; rs.damaged == 1 {
				rs.host.log.Warn("damaged record of a script, counted as lost like those that follow", "err", err)
			}
			return
		}
		rs.read++
	})
	return rs.gone
}

// printAll passes all available records to the printer.
func (rs *runningScript) printAll() error {
	for rounds := rs.loaded.PendingRecords()/session.MaxTaken + 1; rounds > 0 && rs.gone == nil; rounds-- {
		_ = rs.print() // rs.gone
	}
	return rs.gone
}

// printInterval prints all maps and clears them, after the records that are
// there.
func (rs *runningScript) printInterval() {
	rs.host.probes.Poll()
	_ = rs.printAll() // run finds the error
	if rs.data {
		rs.takeMaps()
	} else if err := rs.printer.TakeMaps(); err != nil {
		rs.warn([]string{"clear maps: " + err.Error()})
	}
	if rs.format == api.ScriptText && !rs.data {
		rs.write("\n")
	}
	if rs.gone == nil {
		if rs.gone = rs.send(); rs.gone == nil {
			rs.put(api.RecordInterval, api.Interval{TimeNS: rs.host.probes.Now()})
		}
	}
}

// write takes the printer's output, and sends it when there is much.
func (rs *runningScript) write(text string) {
	if rs.gone != nil {
		return
	}
	if rs.data {
		rs.putOutput(text)
		return
	}
	if rs.out = append(rs.out, text...); len(rs.out) >= maxGather {
		rs.gone = rs.send()
	}
}

func (rs *runningScript) warn(texts []string) {
	for _, t := range texts {
		rs.put(api.RecordWarning, api.Warning{Text: t})
	}
}

// countLost returns how many records were lost.
func (rs *runningScript) countLost() uint64 {
	return rs.loaded.LostRecords() + rs.damaged
}

// send sends the printed output.
func (rs *runningScript) send() error {
	rs.delivered = rs.read
	if total := rs.countLost(); total > rs.lost {
		rs.printer.PrintLost(total - rs.lost)
		rs.putLost(total)
	}
	rs.written.Store(rs.delivered)
	rs.dropped.Store(rs.lost)
	for len(rs.out) > 0 {
		part := rs.out[:min(len(rs.out), maxGather)]
		for n := len(part); n > len(part)-utf8.UTFMax && n > 0 && len(part) < len(rs.out); n-- {
			if utf8.RuneStart(rs.out[n]) { // do not split a letter
				part = rs.out[:n]
				break
			}
		}
		o := api.Output{Text: string(part)}
		if !utf8.Valid(part) {
			o = api.Output{Bytes: part}
		}
		rs.put(api.RecordOutput, o)
		rs.out = rs.out[len(part):]
		if err := rs.flush(); err != nil {
			return err
		}
	}
	return rs.flush()
}

// scriptWait is how long the end of a script waits for runs in progress. A run
// that does not end in time, because its task is preempted, counts as missed.
const scriptWait = time.Second

// finishUnlessExit is finish, for that reason, unless the script has called exit before.
func (rs *runningScript) finishUnlessExit(reason string, code *int64) error {
	rs.host.probes.Poll()
	if err := rs.printAll(); err != nil {
		return err
	}
	if status, exits := rs.loaded.Exit(); exits {
		reason, code = api.EndExit, &status
	}
	return rs.finish(reason, code)
}

// finish ends the script and prints the rest of its output. It stops the probes,
// waits for programs that still run in the guest, detaches the probes, and runs
// the END probes. Nothing changes the maps after that.
func (rs *runningScript) finish(reason string, code *int64) error {
	wait := scriptWait
	if rs.host.guest.State().Phase != machine.PhaseRunning {
		wait = 0 // nothing runs
	}
	rs.host.logEnd(rs.loaded.Quiesce(wait, rs.samples.end))
	rs.putStops() // of a hit that has also ended the script
	if err := rs.printAll(); err != nil {
		return err
	}
	if rs.ending != nil {
		if err := rs.send(); err != nil {
			return err
		}
		rs.ending()
	}
	rs.warn(rs.runAll(rs.script.End))
	rs.host.probes.Poll()
	if err := rs.printAll(); err != nil {
		return err
	}
	if status, _ := rs.loaded.Exit(); status != 0 { // perhaps END's
		reason, code = api.EndExit, &status
	}
	if rs.data {
		rs.putMaps(api.ScriptMaps{Final: true})
	} else {
		rs.printer.PrintMaps()
	}
	if rs.gone != nil {
		return rs.gone
	}
	rs.warn(rs.printer.Problems(true))
	rs.warn(rs.samples.warnLost())
	programs := rs.loaded.Object().Programs()
	if rs.samples != nil {
		programs = append(slices.Clip(programs), rs.samples.programs...)
	}
	for _, p := range programs {
		if s := p.Stats(); s.Last != nil {
			why := rs.fault(p.Name, s.Last, s.Faults)
			rs.warn([]string{why})
			rs.noteCut(s.Faults, why)
		}
	}
	full := rs.printer.FullCount()
	rs.close()
	if err := rs.send(); err != nil {
		return err
	}
	rs.ended = api.End{Reason: reason, Code: code, Probes: wireInfos(rs.owner().Finals()), Cut: rs.cut, CutWhy: rs.cutWhy}
	if rs.script.Strict() {
		rs.ended.Strict = rs.unseenText(full)
	}
	rs.endAs(rs.ended)
	return nil
}

// unseenText describes the data that the script has missed, or could not print
// or keep, or returns "". full is how often a map had no room.
func (rs *runningScript) unseenText(full uint64) string {
	missed := uint64(0)
	for _, p := range rs.ended.Probes {
		missed += p.Stats.Missed
	}
	if rs.samples != nil {
		missed += rs.samples.missed.Load()
	}
	var what []string
	for _, w := range []struct {
		n    uint64
		what string
	}{{missed, "missed"}, {rs.lost, "lost"}, {rs.cut, "ended early"}, {full, "without room in a map"}} {
		if w.n > 0 {
			what = append(what, fmt.Sprintf("%d %s", w.n, w.what))
		}
	}
	return strings.Join(what, ", ")
}
