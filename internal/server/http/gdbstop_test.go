package http

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// stopReply is a stop as the protocol tells it.
var stopReply = regexp.MustCompile(`^T(\w\w)thread:(\w+);core:\w+;([^;]*);?.*;10:(\w{16});$`)

// stop reads an answer that is a stop.
func (d *stub) stop(answer string) (signal, thread string, rip uint64) {
	d.Helper()
	m := stopReply.FindStringSubmatch(answer)
	if m == nil {
		d.Fatalf("no stop: %q", answer)
	}
	b, _ := hex.DecodeString(m[4])
	return m[1], m[2], binary.LittleEndian.Uint64(b)
}

// hits returns how often a probe was hit.
func (h *harness) hits(name string) uint64 {
	h.Helper()
	p, err := h.c.Probe(h.ctx, name)
	if err != nil {
		h.Fatal(err)
	}
	return p.Stats.Hits
}

// TestEachHitIsTold: of a breakpoint that several vCPUs come to at once each arrival is told, and once, however
// the debugger takes it out and puts it back in between, as GDB does at each stop.
func TestEachHitIsTold(t *testing.T) {
	cycles := 400
	if testing.Short() { // emulated hosts, and slow ones
		cycles = 150
	}
	for _, offset := range []uint64{0, 7} { // at the function's entry the probe is behind an endbr64
		h := serveMachine(t, 3)
		at := h.symbol("vfs_read") + offset
		// It runs behind the debugger's handler, and has vCPU 1 hit before the one that stops the guest, and stand after it.
		late := &probe.Kprobe{Name: "late", Addr: guest.GVA(at), Pre: func(c *probe.Context) int {
			for range 2000 {
				if c.CPU == 1 && h.s.guest.State().Phase == machine.PhaseRunning {
					runtime.Gosched()
				}
			}
			return 0
		}}
		if err := h.s.guest.Engine().Register(late); err != nil {
			t.Fatal(err)
		}
		d := h.debug()
		d.expect("qSupported:swbreak+", "PacketSize")
		d.expect(fmt.Sprintf("Z0,%x,1", at), "OK")
		if _, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: fmt.Sprintf("p:all vfs_read+%d", offset)}); err != nil {
			t.Fatal(err)
		}
		told := uint64(0)
		for cycle := range cycles {
			signal, thread, rip := d.stop(d.ask("vCont;c"))
			if signal != "05" || rip != at {
				t.Fatalf("+%d, cycle %d: signal %s at %#x, not 05 at %#x", offset, cycle, signal, rip, at)
			}
			told++
			d.expect(fmt.Sprintf("z0,%x,1", at), "OK")
			switch cycle % 3 {
			case 0: // over it
				d.expect("vCont;s:"+thread, "T05")
			case 1: // on, to somewhere else
				d.expect("vCont;s:"+thread, "T05")
				d.expect(fmt.Sprintf("vCont;r%x,%x:%s", at, at+20, thread), "T05")
			}
			d.expect(fmt.Sprintf("Z0,%x,1", at), "OK")
		}
		// Those of the others that were not told yet.
		d.expect(fmt.Sprintf("z0,%x,1", at), "OK")
		d.expect(fmt.Sprintf("Z0,%x,1", at), "OK")
		hits := h.hits("all")
		for told < hits {
			if _, _, rip := d.stop(d.ask("vCont;c")); rip != at {
				t.Fatalf("+%d: at %#x", offset, rip)
			}
			told++
			if now := h.hits("all"); now != hits {
				t.Fatalf("+%d: %d hits were told of %d", offset, told-1, hits)
			}
		}
		if _, err := h.c.Detach(h.ctx, "all"); err != nil {
			t.Fatal(err)
		}
		if err := h.s.guest.Engine().Unregister(late); err != nil {
			t.Fatal(err)
		}
		d.expect("D", "OK")
		h.checkResumed()
	}
}

// TestStepsTell: a step that comes to a breakpoint or a watchpoint says so, one through a range stops there, and what was
// told at the end of a step is not told again.
func TestStepsTell(t *testing.T) {
	h := serveMachine(t, 1)
	d := h.debug()
	d.expect("qSupported:swbreak+", "PacketSize")
	tells := func(packet, why string, at uint64) {
		t.Helper()
		answer := d.ask(packet)
		if _, _, rip := d.stop(answer); rip != at || !strings.HasPrefix(answer, "T05thread:1;core:0;"+why) {
			t.Errorf("%s: %s, not %q at %#x", packet, answer, why, at)
		}
	}
	const plain = "06:" // the first of the registers
	z := func(kind string, at uint64) { t.Helper(); d.expect(fmt.Sprintf("%s,%x,8", kind, at), "OK") }
	read, total := h.symbol("vfs_read"), h.symbol("vfs_bytes_read")
	z("Z0", read)
	z("Z0", read+7)
	tells("vCont;c", "swbreak:;", read)
	tells("vCont;s:1", plain, read+4)
	tells("vCont;s:1", "swbreak:;", read+7)
	z("z0", read+7)
	tells("vCont;c", "swbreak:;", read)
	z("Z0", read+7)
	tells(fmt.Sprintf("vCont;r%x,%x:1", read, read+0x80), "swbreak:;", read+7)
	z("z0", read+7)
	z("z0", read)
	z("Z2", total)
	answer := d.ask("vCont;r1,ffffffffffffffff:1") // through all that comes
	if want := fmt.Sprintf("T05thread:1;core:0;watch:%x;", total); !strings.HasPrefix(answer, want) {
		t.Errorf("a step through what writes a word that is watched: %s, not %s", answer, want)
	}
	z("z2", total)
	z("Z0", read)

	// Into a function, by its call.
	tells("vCont;c", "swbreak:;", read)
	d.setReg(2, 0x55)
	if rip := d.reg(regRIP); rip != read {
		t.Errorf("behind a write of rcx it is at %#x", rip)
	}
	caller := h.symbol("work_files")
	back := uint64(0)
	for back < caller || back > caller+0x100 { // others call it by a pointer
		tells("vCont;s:1", plain, read+4)
		tells("vCont;c", "swbreak:;", read)
		back = binary.LittleEndian.Uint64(d.mem(d.reg(regRSP), 8))
	}
	z("z0", read)
	z("Z0", back-5)
	tells("vCont;c", "swbreak:;", back-5)
	z("z0", back-5)
	z("Z0", read)
	tells("vCont;s:1", "swbreak:;", read)
	z("z0", read)
	tells("vCont;s:1", plain, read+4)
	z("Z0", read)
	z("Z0", back)
	rsp := d.reg(regRSP)
	for {
		_, _, rip := d.stop(d.ask("vCont;c"))
		now := d.reg(regRSP)
		if rip == read && now == rsp {
			t.Error("a breakpoint that a step has come to was told again")
		}
		if rip == back && now == rsp+8 {
			break
		}
		d.expect("vCont;s:1", "T05") // the guest has taken an interrupt, and runs another thread
	}
	d.expect("D", "OK")
	h.checkResumed()
}

// TestOneThreadResumes: with scheduler-locking GDB has one thread go on alone, and the others stay where they are.
func TestOneThreadResumes(t *testing.T) {
	h := serveMachine(t, 3)
	d := h.debug()
	at := d.breakAt("Z0", "vfs_read")
	// All come to the breakpoint, where none keeps a lock that another one needs.
	_, first, _ := d.stop(d.ask("vCont;c"))
	_, second, _ := d.stop(d.ask(map[string]string{"1": "vCont;c:2;c:3", "2": "vCont;c:1;c:3", "3": "vCont;c:1;c:2"}[first]))
	third := 6 - int(first[0]-'0') - int(second[0]-'0')
	d.stop(d.ask(fmt.Sprintf("vCont;c:%d", third)))
	where := func(thread int) (rip, rsp uint64) {
		t.Helper()
		d.expect(fmt.Sprintf("Hg%d", thread), "OK")
		return d.reg(regRIP), d.reg(regRSP)
	}
	for alone := 1; alone <= 3; alone++ {
		before := [4][2]uint64{}
		for thread := 1; thread <= 3; thread++ {
			before[thread][0], before[thread][1] = where(thread)
		}
		for range 20 {
			d.expect(fmt.Sprintf("vCont;s:%d", alone), "T05")
			_, thread, rip := d.stop(d.ask(fmt.Sprintf("vCont;c:%d", alone)))
			if thread != fmt.Sprint(alone) || rip != at {
				t.Fatalf("thread %s at %#x, not %d at %#x", thread, rip, alone, at)
			}
		}
		for thread := 1; thread <= 3; thread++ {
			if rip, rsp := where(thread); thread != alone && (rip != before[thread][0] || rsp != before[thread][1]) {
				t.Errorf("while thread %d was alone %d went to %#x", alone, thread, rip)
			}
		}
		d.breakAt("z0", "vfs_read")
		d.send(fmt.Sprintf("vCont;c:%d", alone)) // an interrupt stops it
		d.sendRaw("\x03")
		if signal, _, _ := d.stop(d.answer()); signal != "02" {
			t.Errorf("behind an interrupt: signal %s", signal)
		}
		d.breakAt("Z0", "vfs_read")
		d.stop(d.ask(fmt.Sprintf("vCont;c:%d", alone)))
	}
	// All go on together: each comes to the breakpoint.
	seen := map[string]bool{}
	for len(seen) < 3 {
		_, thread, _ := d.stop(d.ask("vCont;c"))
		seen[thread] = true
		d.expect("vCont;s:"+thread, "T05")
	}
	// A debugger that goes while some are held lets all go on.
	d.send("vCont;c:2")
	d.conn.Close()
	h.checkResumed()
	g := h.s.guest.(stoppable)
	if stops := g.Stops(); len(stops) != 0 {
		t.Errorf("%+v are stopped still", stops)
	}
}

// TestStandsFor: "?" says what the guest stands for now, which a reset may have changed.
func TestStandsFor(t *testing.T) {
	h := serveMachine(t, 1)
	d := h.debug()
	d.expect("qSupported:swbreak+", "PacketSize")
	d.expect("?", "T02")
	d.breakAt("Z0", "vfs_read")
	d.expect("c", "T05thread:1;core:0;swbreak:;")
	d.expect("?", "T05thread:1;core:0;swbreak:;")
	reset := func() {
		t.Helper()
		if _, err := h.c.Reset(h.ctx, api.ResetGuest{}); err != nil {
			t.Fatal(err)
		}
		d.expect("?", "T02")
		d.expect("qThreadStopInfo1", "T02")
		if _, _, rip := d.stop(d.ask("?")); rip != h.symbol("_start") {
			t.Errorf("behind a reset at %#x", rip)
		}
		d.expect("c", "T05thread:1;core:0;swbreak:;")
		d.expect("?", "T05thread:1;core:0;swbreak:;")
	}
	reset()
	d.setReg(regRSP, 0) // there is no stack to tell its handlers of what comes now, nor code
	d.setReg(regRIP, 0)
	d.readOutput("c") // why
	if got := d.answer(); got != "W65" {
		t.Errorf("it ends with %s", got)
	}
	d.expect("?", "W65")
	reset()
}

// TestDebuggerAndSaves: a guest is saved beneath a debugger, while it stands, runs and steps, and a debugger that is
// turned away comes meanwhile. The debugger notices nothing, and nothing of its is in the file, to which a reset goes back.
func TestDebuggerAndSaves(t *testing.T) {
	h := serveMachine(t, 2)
	d := h.debug()
	d.expect("qSupported:swbreak+", "PacketSize")
	at := d.breakAt("Z0", "vfs_read")
	own := h.s.guest.Image().Code(guest.GVA(at), 16)
	var file []byte
	save := func() {
		t.Helper()
		if _, file = h.save(); !bytes.Contains(file, own) {
			t.Error("the file has not the guest's own text")
		}
	}
	_, thread, rip := d.stop(d.ask("vCont;c"))
	for range 3 {
		regs := d.ask("g")
		save()
		if now := d.ask("g"); now != regs || rip != at {
			t.Errorf("behind a save at %#x the registers are %s, and were %s", rip, now, regs)
		}
		d.expect("?", "T05thread:"+thread)
		d.expect("vCont;s:"+thread, "T05")
		_, thread, rip = d.stop(d.ask("vCont;c"))
	}
	d.breakAt("z0", "vfs_read")
	for _, packet := range []string{"vCont;c", "vCont;r1,ffffffffffffffff:" + thread} {
		d.send(packet)
		save()
		d.sendRaw("\x03")
		if signal, _, _ := d.stop(d.answer()); signal != "02" {
			t.Errorf("%s and a save: signal %s", packet, signal)
		}
	}
	d.breakAt("Z0", "vfs_read")
	d.stop(d.ask("vCont;c"))
	save()
	h.stub().expect("?", "E.another debugger is at work")
	const general = 16 * 16 // digits
	d.expect("Hg1", "OK")
	regs := d.ask("g")[:general]
	given, err := h.c.GiveSnapshot(h.ctx, bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		d.expect("vCont;s:"+thread, "T05")
		d.expect("vCont;c", "T05")
		if _, err := h.c.Reset(h.ctx, api.ResetGuest{To: given.ID}); err != nil {
			t.Fatal(err)
		}
		h.phase(machine.PhasePaused)
		d.expect("?", "T02")
		d.expect("Hg1", "OK")
		if now := d.ask("g")[:general]; now != regs {
			t.Errorf("behind a reset: %s, and before %s", now, regs)
		}
	}
	d.expect("vCont;c", "T05")
	d.expect("D", "OK")
	h.checkResumed()
}

// TestResetsForget: what a step has led past a breakpoint's address is told again when a reset has gone back to before it.
func TestResetsForget(t *testing.T) {
	h := serveMachine(t, 1)
	d := h.debug()
	d.expect("qSupported:swbreak+", "PacketSize")
	read, caller, call := d.breakAt("Z0", "vfs_read"), h.symbol("work_files"), uint64(0)
	for call < caller || call > caller+0x100 { // others call it by a pointer
		d.expect("vCont;c", "T05")
		call = binary.LittleEndian.Uint64(d.mem(d.reg(regRSP), 8)) - 5
		d.expect("vCont;s:1", "T05")
	}
	d.expect(fmt.Sprintf("Z0,%x,1", call), "OK")
	for rip := read; rip != call; {
		_, _, rip = d.stop(d.ask("vCont;c"))
	}
	_, file := h.save()
	given, err := h.c.GiveSnapshot(h.ctx, bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	d.expect("vCont;s:1", "T05thread:1;core:0;swbreak:;")
	d.expect("vCont;s:1", "T05thread:1;core:0;06:") // past it, and in front of its probe
	d.expect(fmt.Sprintf("z0,%x,1", call), "OK")
	if _, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: "p:all vfs_read"}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.c.Reset(h.ctx, api.ResetGuest{To: given.ID}); err != nil {
		t.Fatal(err)
	}
	d.expectReset("vCont;c")
	if rip := d.reg(regRIP); rip != call {
		t.Errorf("behind a reset at %#x, not %#x", rip, call)
	}
	if _, _, rip := d.stop(d.ask("vCont;c")); rip != read || h.hits("all") != 1 {
		t.Errorf("stopped at %#x behind %d hits", rip, h.hits("all"))
	}
	if _, err := h.c.Detach(h.ctx, "all"); err != nil {
		t.Fatal(err)
	}
	d.expect("D", "OK")
	h.checkResumed()
}

// TestDebuggerInterrupts: ^C ends a step through a range that has no end.
func TestDebuggerInterrupts(t *testing.T) {
	h := serveMachine(t, 2)
	d := h.debug()
	d.send("c")
	d.sendRaw("\x03")
	if got := d.answer(); !strings.HasPrefix(got, "T02") {
		t.Errorf("^C: %s", got)
	}
	d.breakAt("Z0", "vfs_read")
	d.expect("c", "T05")
	d.breakAt("z0", "vfs_read") // where the steps would end
	d.send("vCont;r0,ffffffffffffffff:1")
	d.sendRaw("\x03")
	if got := d.answer(); !strings.HasPrefix(got, "T02") {
		t.Errorf("^C in a range: %s", got)
	}
	d.expect("D", "OK")
	h.checkResumed()
}

// TestInterruptBesideResumes: ^C is answered although others have the guest go on all the time.
func TestInterruptBesideResumes(t *testing.T) {
	h := serveMachine(t, 2)
	d := h.debug()
	ctx, enough := context.WithCancel(h.ctx)
	var others sync.WaitGroup
	for range 2 {
		others.Go(func() {
			for ctx.Err() == nil {
				if _, err := h.c.Resume(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, api.ErrGuestState) {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 100 {
		d.send("c")
		d.sendRaw("\x03")
		if got := d.answer(); !strings.HasPrefix(got, "T02") {
			t.Fatalf("^C: %s", got)
		}
	}
	enough()
	others.Wait()
	d.expect("D", "OK")
	h.checkResumed()
}
