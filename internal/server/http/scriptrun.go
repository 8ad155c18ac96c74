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

// run prints what the script writes until there is a reason to stop, with a heartbeat for
// each of heart. An error means that there is nobody to print it to.
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
			every = rs.s.opt.fleetMaps
			rs.lookAtMaps() // others learn that it runs
		}
		t := time.NewTicker(every)
		defer t.Stop()
		looks = t.C
	}
	next := rs.loaded.FirstTicks()
	tick := time.NewTimer(time.Hour)
	defer tick.Stop()
	for {
		changed, gone := rs.s.guest.Changed(), rs.s.probes.Changed()
		select { // however much there is to print
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
		if rs.script.Probes > 0 && rs.s.allDetached(rs.own().Probes()) {
			return rs.finish(api.EndDetached, nil)
		}
		if rs.script.Attached() == len(rs.script.Begin)+len(rs.script.End) {
			// Nothing else ever happens.
			return rs.finish(api.EndExit, new(int64))
		}
		for _, x := range rs.s.stopsAfter(&rs.stops, rs.stopsVCPU) {
			rs.put(api.RecordStop, x)
		}
		rs.warn(rs.printer.Problems(false))
		if err := rs.send(); err != nil {
			return err
		}
		tick.Reset(rs.loaded.Tick(next, rs.failed))
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
		case <-rs.s.stop:
			return rs.finish(api.EndShutdown, nil)
		case <-changed:
		case <-gone:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stopsVCPU reports whether it is the script that has stopped a vCPU.
func (rs *runningScript) stopsVCPU(by any) bool {
	p, ok := by.(*program.Program)
	return ok && slices.Contains(rs.loaded.Object().Programs(), p)
}

// guestLife is what a script has seen of the guest's life.
type guestLife struct {
	boots int64
	boot  int64 // when it began to run from its start
	ended bool
}

// guestLife is what there is to be seen of it.
func (s *server) guestLife() guestLife {
	_, _, ended := guestEnd(s.guest.State())
	return guestLife{boots: s.boots.Load(), boot: s.boot.Load(), ended: ended}
}

// guestEvents runs what is for what has happened to the guest since the last look, and says
// whether that ends the script, and why. One that is about another boot goes on.
func (rs *runningScript) guestEvents() (reason string, code *int64, over bool) {
	reason, code, over = guestEnd(rs.s.guest.State())
	was, now := rs.life, rs.s.guestLife()
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
	rs.s.probes.Poll()
	again := reason != api.EndShutdown && len(events[script.EventReset])+len(events[script.EventStart]) > 0
	return reason, code, over && !again
}

// failed warns of a run that has ended early.
func (rs *runningScript) failed(name string, err error) {
	rs.cut++
	rs.warn([]string{rs.fault(name, err, 1)})
}

// print gives the next records to the printer.
func (rs *runningScript) print() error {
	rs.loaded.Each(func(r session.ScriptRecord, next []byte) {
		rs.time = r.Time
		if err := rs.printer.Record(r.Data, next); err != nil {
			if rs.damaged++; rs.damaged == 1 {
				rs.s.log.Warn("damaged record of a script, counted as lost like those that follow", "err", err)
			}
			return
		}
		rs.read++
	})
	return rs.gone
}

// printAll gives the printer the records that are there by now.
func (rs *runningScript) printAll() error {
	for rounds := rs.loaded.Waiting()/session.MaxTaken + 1; rounds > 0 && rs.gone == nil; rounds-- {
		_ = rs.print() // rs.gone
	}
	return rs.gone
}

// printInterval prints all maps and clears them, behind the records that are there.
func (rs *runningScript) printInterval() {
	rs.s.probes.Poll()
	_ = rs.printAll() // run finds out what is wrong
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
			rs.put(api.RecordInterval, api.Interval{TimeNS: rs.s.probes.Now()})
		}
	}
}

// write takes what the printer prints, and sends it when it is much.
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

// lostTotal is how many records were lost.
func (rs *runningScript) lostTotal() uint64 {
	return rs.loaded.Lost() + rs.damaged
}

// send sends what was printed.
func (rs *runningScript) send() error {
	rs.delivered = rs.read
	if total := rs.lostTotal(); total > rs.lost {
		rs.printer.Lost(total - rs.lost)
		rs.putLost(total)
	}
	rs.written.Store(rs.delivered)
	rs.dropped.Store(rs.lost)
	for len(rs.out) > 0 {
		part := rs.out[:min(len(rs.out), maxGather)]
		for n := len(part); n > len(part)-utf8.UTFMax && n > 0 && len(part) < len(rs.out); n-- {
			if utf8.RuneStart(rs.out[n]) { // no letter is parted
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

// scriptWait is how long a script's runs that are under way at its end are waited for at
// most. One that has not ended then, because its task is preempted, counts as missed.
const scriptWait = time.Second

// finishUnlessExit is finish, for that reason, unless the script has called exit before.
func (rs *runningScript) finishUnlessExit(reason string, code *int64) error {
	rs.s.probes.Poll()
	if err := rs.printAll(); err != nil {
		return err
	}
	if status, exits := rs.loaded.Exit(); exits {
		reason, code = api.EndExit, &status
	}
	return rs.finish(reason, code)
}

// finish stops the probes, waits for what runs in the guest yet, takes the probes away, runs what is for the end,
// and prints what there is: behind that nothing adds to the maps.
func (rs *runningScript) finish(reason string, code *int64) error {
	wait := scriptWait
	if rs.s.guest.State().Phase != machine.PhaseRunning {
		wait = 0 // nothing goes on
	}
	rs.s.logEnd(rs.loaded.Quiesce(wait, rs.samples.end))
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
	rs.s.probes.Poll()
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
	rs.warn(rs.samples.lost())
	programs := rs.loaded.Object().Programs()
	if rs.samples != nil {
		programs = append(slices.Clip(programs), rs.samples.programs...)
	}
	for _, p := range programs {
		if s := p.Stats(); s.Last != nil {
			rs.warn([]string{rs.fault(p.Name, s.Last, s.Faults)})
			rs.cut += s.Faults
		}
	}
	full := rs.printer.Full()
	rs.close()
	if err := rs.send(); err != nil {
		return err
	}
	rs.ended = api.End{Reason: reason, Code: code, Probes: wireInfos(rs.own().Finals())}
	if rs.script.Strict() {
		rs.ended.Strict = rs.notSeen(full)
	}
	rs.endAs(rs.ended)
	return nil
}

// notSeen says what the script has not seen, or could not say or keep: "" if there is nothing. full is how often a map
// had no room.
func (rs *runningScript) notSeen(full uint64) string {
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
