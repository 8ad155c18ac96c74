package http

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// stub is a debugger's connection.
type stub struct {
	*harness
	conn net.Conn
	in   *bufio.Reader
}

// debug connects a debugger, which stops the guest, as soon as the one before is gone for good.
func (h *harness) debug() *stub {
	h.Helper()
	for {
		d := h.stub()
		switch got := d.ask("QStartNoAckMode"); {
		case got == "OK":
			return d
		case h.ctx.Err() != nil || !strings.HasPrefix(got, "E.another"):
			h.Fatalf("a debugger: %q", got)
		}
		d.conn.Close()
	}
}

// stub connects to the socket for debuggers.
func (h *harness) stub() *stub {
	h.Helper()
	conn, err := net.Dial("unix", h.path+api.GDBSuffix)
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { conn.Close() })
	if end, ok := h.ctx.Deadline(); ok {
		conn.SetDeadline(end)
	}
	return &stub{harness: h, conn: conn, in: bufio.NewReader(conn)}
}

func (d *stub) send(data string) {
	d.Helper()
	var sum byte
	for _, c := range []byte(data) {
		sum += c
	}
	d.sendRaw(fmt.Sprintf("$%s#%02x", data, sum))
}

func (d *stub) sendRaw(bytes string) {
	d.Helper()
	if _, err := d.conn.Write([]byte(bytes)); err != nil {
		d.Fatal(err)
	}
}

// answer reads a packet; none has escapes that is asked for here.
func (d *stub) answer() string {
	d.Helper()
	_, err := d.in.ReadString('$')
	if err == nil {
		var data string
		if data, err = d.in.ReadString('#'); err == nil {
			d.in.Discard(2)
			return strings.TrimSuffix(data, "#")
		}
	}
	d.Fatalf("the debugger's connection: %v", err)
	return ""
}

func (d *stub) ask(data string) string {
	d.Helper()
	d.send(data)
	return d.answer()
}

// expect asks, and wants an answer that begins with want.
func (d *stub) expect(data, want string) string {
	d.Helper()
	got := d.ask(data)
	if !strings.HasPrefix(got, want) {
		d.Fatalf("%s: %q, want %q", data, got, want)
	}
	return got
}

// Registers in the protocol's numbering.
const (
	regRSP = 7
	regRIP = 16
)

func (d *stub) reg(n int) uint64 {
	d.Helper()
	b, err := hex.DecodeString(d.ask(fmt.Sprintf("p%x", n)))
	if err != nil || len(b) != 8 {
		d.Fatalf("register %d: %x, %v", n, b, err)
	}
	return binary.LittleEndian.Uint64(b)
}

func (d *stub) setReg(n int, v uint64) {
	d.Helper()
	d.expect(fmt.Sprintf("P%x=%x", n, binary.LittleEndian.AppendUint64(nil, v)), "OK")
}

// breakAt sets or takes out ("Z0", "z0") a breakpoint at a function.
func (d *stub) breakAt(packet, symbol string) uint64 {
	d.Helper()
	at := d.symbol(symbol)
	d.expect(fmt.Sprintf("%s,%x,1", packet, at), "OK")
	return at
}

func (h *harness) symbol(name string) uint64 {
	h.Helper()
	sym, err := h.s.guest.Image().Lookup(name)
	if err != nil {
		h.Fatal(err)
	}
	return uint64(sym.Addr)
}

// checkResumed waits until no debugger is at work, and wants the guest to run, with hits of a probe, and
// nothing of a debugger's in its text.
func (h *harness) checkResumed() {
	h.Helper()
	for h.s.debugger.Load() != nil {
		if h.ctx.Err() != nil {
			h.Fatal("the debugger is still at work")
		}
		time.Sleep(time.Millisecond)
	}
	h.checkIdentical(true)
	h.attach("p:goes_on vfs_read")
	h.await("goes_on", "hit", func(p api.Probe) bool { return p.Stats.Hits > 2 })
	if _, err := h.c.Detach(h.ctx, "goes_on"); err != nil {
		h.Fatal(err)
	}
	h.checkIdentical(true)
}

func (h *harness) phase(want machine.Phase) {
	h.Helper()
	g, err := h.c.Guest(h.ctx)
	if err != nil || g.State != string(want) {
		h.Errorf("the guest is %s, not %s: %v", g.State, want, err)
	}
}

// awaitPhase waits until the guest is there.
func (h *harness) awaitPhase(want machine.Phase) {
	h.Helper()
	for {
		changed := h.s.guest.Changed()
		if h.s.guest.State().Phase == want {
			return
		}
		select {
		case <-changed:
		case <-h.ctx.Done():
			h.Fatalf("the guest does not become %s", want)
		}
	}
}

// TestRefusedByTarget: what no processor can have, or watch, is refused once, and says what was asked for.
func TestRefusedByTarget(t *testing.T) {
	d := serveMachine(t, 1).debug()
	d.expect("qSupported:error-message+", "PacketSize")
	for _, c := range []struct{ packet, want string }{
		{"P20=ffffff00", "E.fctrl: no processor has that in the register: it has 16 bits: EINVAL [bad_value]"},
		{"P27=00080000", "E.fop: no processor has that in the register: it has 11 bits: EINVAL [bad_value]"},
		{"P20=7f030000", "OK"},
		{fmt.Sprintf("Z2,%x,1000", d.symbol("user_hot_calls")), "E.4096 bytes cannot be watched (1, 2, 4 or 8): EINVAL [watch_length]"},
		{"Z2,8000000000000000,8", "E.0x8000000000000000 is not a canonical address: EFAULT [unreadable]"},
	} {
		if got := d.ask(c.packet); got != c.want {
			t.Errorf("%s: %q, want %q", c.packet, got, c.want)
		}
	}
}

// TestDebuggerGone: a debugger that is gone leaves nothing behind, whatever it was about, and the guest
// goes on.
func TestDebuggerGone(t *testing.T) {
	h := serveMachine(t, 2)
	low, high := h.symbol("_start"), h.symbol("_start")+1<<20
	for _, c := range []struct {
		name  string
		about func(*stub)
	}{
		{"at once", func(*stub) {}},
		{"stopped at a breakpoint", func(d *stub) { d.breakAt("Z0", "vfs_read"); d.expect("c", "T05") }},
		{"running, with breakpoints", func(d *stub) {
			d.breakAt("Z0", "bench_target")
			d.expect(fmt.Sprintf("Z2,%x,8", d.symbol("user_hot_calls")+8*7), "OK")
			d.send("c")
		}},
		{"behind steps", func(d *stub) {
			d.breakAt("Z0", "vfs_read")
			d.expect("c", "T05")
			d.expect("s", "T05")
			d.expect("s", "T05")
		}},
		{"in the middle of a range", func(d *stub) {
			d.breakAt("Z0", "vfs_read")
			d.expect("c", "T05")
			d.send(fmt.Sprintf("vCont;r%x,%x:1", low, high))
		}},
		{"in the middle of a packet", func(d *stub) { d.sendRaw("$m1000,") }},
		{"behind garbage", func(d *stub) {
			d.sendRaw("\x00\xff-+#00$#00$}#7d$" + strings.Repeat("z", 1<<20) + "#00\x03\x03")
			for _, want := range []string{"", "E01", "E01"} {
				if got := d.answer(); got != want {
					d.Errorf("garbage: %q, want %q", got, want)
				}
			}
			d.expect("?", "T")
		}},
		{"with answers that it did not read", func(d *stub) {
			d.conn.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
			for err := error(nil); err == nil; { // until both directions are full
				_, err = d.conn.Write([]byte("$g#67"))
			}
			h.phase(machine.PhasePaused) // others are served meanwhile
		}},
	} {
		d := h.debug()
		h.phase(machine.PhasePaused)
		c.about(d)
		d.conn.Close()
		t.Log(c.name)
		h.checkResumed()
	}
	// A debugger that does not read does not hold up the daemon's end either.
	d := h.debug()
	d.breakAt("Z0", "vfs_read")
	d.expect("c", "T05")
	d.conn.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	for err := error(nil); err == nil; {
		_, err = d.conn.Write([]byte("$g#67"))
	}
	h.stop()
}

// TestDebuggerKilled: GDB is killed, with breakpoints set.
func TestDebuggerKilled(t *testing.T) {
	program := kvmtest.RequireCommand(t, "gdb")
	h := serveMachine(t, 1)
	for _, last := range []string{"echo here\\n", "continue"} { // it stands, or the guest runs
		cmd := exec.CommandContext(h.ctx, program, "--nx", "-q", "-ex", "set confirm off", "-ex", "set debuginfod enabled off", "-ex", "target remote "+h.path+api.GDBSuffix,
			"-ex", "hbreak vfs_read", "-ex", "continue", "-ex", "delete", "-ex", "break bench_target", "-ex", "echo here\\n", "-ex", last)
		in, err := cmd.StdinPipe() // which it waits at
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		r, said := bufio.NewReader(out), ""
		for line := ""; err == nil && line != "here\n"; said += line {
			line, err = r.ReadString('\n')
		}
		if err != nil || !strings.Contains(said, "Breakpoint 1, ") {
			t.Fatalf("%v: %s", err, said)
		}
		want := machine.PhasePaused
		if last == "continue" {
			want = machine.PhaseRunning
		}
		h.awaitPhase(want)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, r)
		cmd.Wait()
		h.checkResumed()
	}
}

// TestSecondDebugger: one that comes while another one is at work is told so, and the first one does not
// notice it.
func TestSecondDebugger(t *testing.T) {
	h := serveMachine(t, 1)
	first := h.debug()
	first.breakAt("Z0", "vfs_read")
	for range 3 {
		second := h.stub()
		second.expect("qSupported:swbreak+", "E.another debugger is at work")
		if _, err := second.in.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("behind a refusal: %v", err)
		}
		silent := h.stub() // which is not answered
		first.expect("c", "T05")
		silent.conn.Close()
	}
	first.expect("D", "OK")
	h.checkResumed()
	h.debug().expect("?", "T02")
}

// TestDebuggerHolds: while a debugger has stopped the guest nobody else has it go on, and what others
// attach stops it for the debugger.
func TestDebuggerHolds(t *testing.T) {
	h := serveMachine(t, 1)
	d := h.debug()
	busy := func(what string, err error) {
		t.Helper()
		var e *api.Error
		if !errors.As(err, &e) || e.Code != api.CodeGuestState || e.Errno != "EBUSY" || !errors.Is(err, api.ErrGuestState) {
			t.Errorf("%s while a debugger has the guest: %v", what, err)
		}
	}
	_, err := h.c.Resume(h.ctx)
	busy("resume", err)
	_, err = h.c.ResumeVCPU(h.ctx, 0)
	busy("resume --vcpu", err)
	for _, how := range []string{api.StepInto, api.StepNext, api.StepFinish} {
		_, err = h.c.Step(h.ctx, api.Step{How: how})
		busy(how, err)
	}
	d.breakAt("Z0", "do_fork")
	d.expect("c", "T05")
	// A probe that stops, of somebody else's.
	if _, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: "p:theirs vfs_read", Stop: api.StopVCPU}); err != nil {
		t.Fatal(err)
	}
	d.breakAt("z0", "do_fork")
	for range 2 {
		d.expect("c", "T02thread:1;")
		if rip := d.reg(regRIP); rip != h.symbol("vfs_read")+4 {
			t.Errorf("stopped at %#x", rip)
		}
	}
	// The same place, by both: told as the breakpoint.
	d.breakAt("Z0", "vfs_read")
	for range 2 {
		d.expect("c", "T05thread:1;")
	}
	p, err := h.c.Probe(h.ctx, "theirs")
	if err != nil || p.Stats.Hits != 4 {
		t.Errorf("%+v, %v", p.Stats, err)
	}
	if _, err := h.c.Detach(h.ctx, "theirs"); err != nil {
		t.Fatal(err)
	}
	d.expect("D", "OK")
	h.checkResumed()
}

// TestDetachLeavesStops: a vCPU that somebody's probe has stopped is not the debugger's to let go, whether it was
// stopped before or while the debugger had the guest; one that the debugger has stopped goes on.
func TestDetachLeavesStops(t *testing.T) {
	h := serveMachine(t, 2)
	stopped := func(want int) {
		t.Helper()
		h.phase(machine.PhaseRunning)
		if n := len(h.s.guest.(stoppable).Stops()); n != want {
			t.Errorf("%d vCPUs are stopped, want %d", n, want)
		}
	}
	theirs := func(how string) {
		t.Helper()
		if _, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: "p:theirs vfs_read", Stop: how}); err != nil {
			t.Fatal(err)
		}
	}
	gone := func() { // their probe, so that it stops nobody again
		t.Helper()
		if _, err := h.c.Detach(h.ctx, "theirs"); err != nil {
			t.Fatal(err)
		}
	}
	resume := func() {
		t.Helper()
		if _, err := h.c.Resume(h.ctx); err != nil {
			t.Fatal(err)
		}
		stopped(0)
	}
	theirs(api.StopVCPU)
	g := h.s.guest.(stoppable)
	for changed := g.Changed(); len(g.Stops()) < 2; changed = g.Changed() {
		select {
		case <-changed:
		case <-h.ctx.Done():
			t.Fatal("the vCPUs do not stop")
		}
	}
	h.debug().expect("D", "OK")
	stopped(2)
	d := h.debug()
	gone()
	d.expect("vCont;s:1", "T05") // it is the debugger's now
	d.expect("D", "OK")
	stopped(1)
	resume()
	d = h.debug()
	theirs(api.StopAll)
	d.expect("c", "T02")
	d.expect("D", "OK")
	h.phase(machine.PhasePaused)
	gone()
	resume()
}

// TestDebuggerAndResets: a guest that is reset while a debugger has it waits for that, and its
// breakpoints are there.
func TestDebuggerAndResets(t *testing.T) {
	h := serveMachine(t, 1)
	d := h.debug()
	d.breakAt("Z0", "start_cpu")
	at := d.breakAt("Z0", "vfs_read")
	d.expect("c", "T05")
	_, file := h.save()
	given, err := h.c.GiveSnapshot(h.ctx, bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	rsp := d.reg(regRSP)
	for _, to := range []string{"", given.ID} {
		g, err := h.c.Reset(h.ctx, api.ResetGuest{To: to})
		if err != nil {
			t.Fatal(err)
		}
		if want := map[string]string{"": string(machine.PhaseCreated)}[to]; want != "" && g.State != want || g.State == string(machine.PhaseRunning) {
			t.Errorf("reset to %q: %s", to, g.State)
		}
		d.expect("P0=0000000000000000", "OK") // whatever registers it has read before
		if now := d.reg(regRSP); to == "" && now == rsp || to != "" && now != rsp {
			t.Errorf("reset to %q: rsp %#x, and before %#x", to, now, rsp)
		}
		d.expectReset("c")
		d.expect("c", "T05")
		if to == "" {
			if got := d.reg(regRIP); got != h.symbol("start_cpu") {
				t.Errorf("stopped at %#x", got)
			}
			d.breakAt("z0", "start_cpu")
			d.expect("c", "T05")
		}
		if got := d.reg(regRIP); got != at {
			t.Errorf("stopped at %#x", got)
		}
	}
	// While the debugger waits the guest goes on, and so does the waiting.
	d.breakAt("z0", "vfs_read")
	d.breakAt("Z0", "start_cpu")
	d.send("c")
	for range 3 {
		h.awaitPhase(machine.PhaseRunning)
		if _, err := h.c.Reset(h.ctx, api.ResetGuest{}); err != nil {
			t.Fatal(err)
		}
		if got := d.answer(); !strings.HasPrefix(got, "T05") || d.reg(regRIP) != h.symbol("start_cpu") {
			t.Errorf("%s at %#x", got, d.reg(regRIP))
		}
		d.breakAt("z0", "start_cpu")
		d.breakAt("Z0", "vfs_read")
		d.expect("c", "T05")
		d.breakAt("z0", "vfs_read")
		d.breakAt("Z0", "start_cpu")
		d.send("c")
	}
	d.conn.Close()
	h.checkResumed()
}

// readOutput is what the debugger's user is told, with which the next answer is due.
func (d *stub) readOutput(packet string) string {
	d.Helper()
	text, err := hex.DecodeString(strings.TrimPrefix(d.expect(packet, "O"), "O"))
	if err != nil {
		d.Fatal(err)
	}
	return string(text)
}

// expectReset lets the guest go on, which was reset beneath the debugger: it stays, and the debugger is told where.
func (d *stub) expectReset(packet string) {
	d.Helper()
	if got := d.readOutput(packet); got != "The guest was reset, and waits here.\n" {
		d.Errorf("behind a reset %s says %q", packet, got)
	}
	if got := d.answer(); !strings.HasPrefix(got, "T02thread:") {
		d.Errorf("behind a reset %s: %s", packet, got)
	}
}

// TestDebuggerAndEnds: how a guest ended is told in the protocol's words, and in the user's.
func TestDebuggerAndEnds(t *testing.T) {
	h := serveMachine(t, 1)
	d := h.debug()
	read := d.breakAt("Z0", "vfs_read")
	d.expect("c", "T05")
	d.setReg(regRSP, 0) // there is no stack to tell its handlers of what comes now, nor code
	d.setReg(regRIP, 0)
	ends := func(packet, why, code string) {
		t.Helper()
		if got := d.readOutput(packet); !strings.HasPrefix(got, why) {
			t.Errorf("%s says %q, not %q", packet, got, why)
		}
		if got := d.answer(); got != code {
			t.Errorf("%s: %s, want %s", packet, got, code)
		}
	}
	const code, why = "W65", "The guest has exited with code 101, on vCPU 0 at guest_exit+0x" // EXIT_FAULT
	ends("c", why, code)
	d.expect("?", code)
	ends("c", why, code)
	ends("s", "the guest has ended; reset it first", code)
	d.expect("g", "")

	// A triple fault: an invalid instruction, and no table of handlers.
	if _, err := h.c.Reset(h.ctx, api.ResetGuest{}); err != nil {
		t.Fatal(err)
	}
	d.expectReset("c")
	d.expect("c", "T05")
	d.expect("vCont;s:1", "T05")
	lidt := []byte{0x0f, 0x01, 0x1c, 0x24, 0x0f, 0x0b} // lidt (%rsp); ud2
	d.expect(fmt.Sprintf("M%x,10:%s", d.reg(regRSP), strings.Repeat("00", 16)), "OK")
	free := d.symbol("work_files")
	d.expect(fmt.Sprintf("M%x,%x:%x", free, len(lidt), lidt), "OK")
	d.setReg(regRIP, free)
	d.expect("P11=02000000", "OK") // no interrupts, which would have another thread run
	const crash = "The guest has crashed on vCPU 0: triple fault: "
	for range 2 {
		if got := d.readOutput("c"); !strings.HasPrefix(got, crash) {
			t.Errorf("a crash is told as %q", got)
		}
		if signal, thread, rip := d.stop(d.answer()); signal != "0b" || thread != "1" || rip != free+4 {
			t.Errorf("a crash: signal %s of thread %s at %#x, not 0b of 1 at %#x", signal, thread, rip, free+4)
		}
	}
	d.expect("?", "T0bthread:1;")
	if got := d.mem(free, len(lidt)); !bytes.Equal(got, lidt) {
		t.Errorf("behind a crash the code is % x", got)
	}
	if got := d.readOutput("s"); got != "the guest has ended; reset it first\n" {
		t.Errorf("a step behind a crash says %q", got)
	}
	if signal, _, _ := d.stop(d.answer()); signal != "0b" {
		t.Errorf("a step behind a crash: signal %s", signal)
	}
	if _, err := h.c.Reset(h.ctx, api.ResetGuest{}); err != nil {
		t.Fatal(err)
	}
	d.expectReset("s")
	d.breakAt("Z0", "vfs_read")
	if _, _, rip := d.stop(d.ask("c")); rip != read {
		t.Errorf("behind a crash and a reset at %#x", rip)
	}
	d.expect("D", "OK")
	h.checkResumed()
}
