package gdb

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// debugger is the other end of a session.
type debugger struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
	done chan error // what Serve returned
}

func connect(t *testing.T, target Target) *debugger {
	t.Helper()
	ours, theirs := net.Pipe()
	d := &debugger{t: t, conn: ours, in: bufio.NewReader(ours), done: make(chan error, 1)}
	go func() { d.done <- Serve(context.Background(), theirs, target, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() { ours.Close() })
	d.expect("QStartNoAckMode", "OK") // with its acknowledgement
	return d
}

func (d *debugger) send(data string) {
	d.t.Helper()
	if _, err := d.conn.Write(appendPacket(nil, []byte(data))); err != nil {
		d.t.Fatal(err)
	}
}

// packet reads an answer.
func (d *debugger) packet() string {
	d.t.Helper()
	for {
		e, err := readEvent(d.in)
		if err != nil {
			d.t.Fatal(err)
		}
		if e.data != nil {
			if e.damaged {
				d.t.Fatalf("the answer %q has a wrong checksum", e.data)
			}
			return string(e.data)
		}
	}
}

func (d *debugger) ask(data string) string {
	d.t.Helper()
	d.send(data)
	return d.packet()
}

func (d *debugger) expect(data, want string) {
	d.t.Helper()
	if got := d.ask(data); got != want {
		d.t.Errorf("%s: %q, want %q", data, got, want)
	}
}

// TestPackets: each packet and its answer, in one session.
func TestPackets(t *testing.T) {
	f := newFake()
	f.program = Program{File: func() []byte { return []byte("\x7fELF#$}*") }, Base: 0x400000, Landmark: "_text", At: 0x400000}
	d := connect(t, f)
	for _, c := range [][2]string{
		{"qSupported:multiprocess+;swbreak+;hwbreak+;xmlRegisters=i386", "PacketSize=4000;QStartNoAckMode+;vContSupported+;swbreak+;hwbreak+;QNonStop-;qXfer:features:read+;qXfer:threads:read+;qXfer:exec-file:read+"},
		{"vMustReplyEmpty", ""},
		{"vKill;1", ""},
		{"QNonStop:1", ""},
		{"?", "T02thread:1;core:0;06:6666666666666666;07:7777777777777777;10:0000010000000000;"},
		{"qAttached", "1"},
		{"qC", "QC1"},
		{"qfThreadInfo", "m1,2"},
		{"qsThreadInfo", "l"},
		{"qThreadExtraInfo,2", hex.EncodeToString([]byte("paused <1>"))},
		{"qThreadExtraInfo,3", "E0e"},
		{"qXfer:threads:read::0,fff", `l<threads><thread id="1" core="0" name="vCPU 0">paused &lt;0&gt;</thread><thread id="2" core="1" name="vCPU 1">paused &lt;1&gt;</thread></threads>`},
		{"T2", "OK"}, {"T3", "E0e"}, {"T", "E01"}, {"T-2", "E01"},
		{"Hg2", "OK"}, {"qC", "QC2"}, {"p10", "0001010000000000"}, {"Hg0", "OK"}, {"qC", "QC2"}, {"Hg1", "OK"}, {"Hc-1", "OK"}, {"Hg9", "E0e"}, {"H", "E01"}, {"Hz1", ""},
		{"p0", "0000000000000000"}, {"p3", "3333333333333333"}, {"p11", "02000000"}, {"pffff", "E0e"}, {"pzz", "E01"}, {"p", "E01"},
		{"P3=8877665544332211", "OK"}, {"p3", "8877665544332211"}, {"P3=00", "E01"}, {"P3", "E01"},
		{"P12=10000000", "OK"}, {"P12=10000100", "E01"}, // cs has 16 bits
		{"m10000,4", "00070e15"}, {"m11ff8,8", hex.EncodeToString(f.mem[0x1ff8:])}, {"m11ff8,20", hex.EncodeToString(f.mem[0x1ff8:])},
		{"m12000,1", "E0e"}, {"mffffffffffffffff,2", "E0e"}, {"m,", "E01"}, {"m10000", "E01"}, {"m10000,0", ""}, {"m10000,4,4", "E01"}, {"m+10000,4", "E01"},
		{"M10010,3:abcdef", "OK"}, {"m10010,3", "abcdef"}, {"M10010,3:ab", "E01"}, {"M10010,ffffffffffffffff:ab", "E01"}, {"M12000,1:00", "E0e"}, {"M11fff,2:0000", "E0e"},
		{"X10020,4:#$}*", "OK"}, {"m10020,4", "23247d2a"}, {"X0,0:", "OK"}, {"X10020,4:#$}", "E01"},
		{"qSearch:memory:10000;2000;#$}*", "1,10020"}, {"qSearch:memory:10000;20;#$}*", "0"}, {"qSearch:memory:10000;2001;zzzz", "E0e"}, {"qSearch:memory:10000;ffffffffffffffff;z", "E0e"}, {"qSearch:memory:1;2;", "E01"}, {"qSearch:memory:1", "E01"},
		{"qOffsets", "TextSeg=400000"},
		{"qSymbol::", "qSymbol:5f74657874"}, {"qSymbol:400000:5f74657874", "OK"},
		{"qXfer:exec-file:read:1:0,fff", "l/guest"},
		{"vFile:setfs:0", "F0"}, {"vFile:open:2f6775657374,0,0", "F0"}, {"vFile:pread:0,100,0", "F8;\x7fELF#$}*"}, {"vFile:pread:0,3,4", "F3;#$}"}, {"vFile:pread:0,3,100", "F0;"},
		{"vFile:fstat:0", "F40;" + "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x81\x24\x00\x00\x00\x01" + strings.Repeat("\x00", 19) + "\x08" + strings.Repeat("\x00", 28)},
		{"vFile:close:0", "F0"}, {"vFile:close:0", "F-1,9"}, {"vFile:open:2f6775657374,1,0", "F-1,2"}, {"vFile:open:2f657463,0,0", "F-1,2"}, {"vFile:open:2,0,0", "F-1,16"}, {"vFile:pread:ffffffff,1,1", "F-1,9"}, {"vFile:pwrite:0,0,x", "F-1,58"}, {"vFile:zzz", ""},
		{"vCont?", "vCont;c;C;s;S;r"},
		{"Z0,10105,1", "OK"}, {"Z0,10105,1", "OK"}, {"Z3,10000,8", "E0e"}, {"Z9,1,1", ""}, {"Z0,1", "E01"}, {"Z0,10,1;X1,00", "E01"}, {"Zx", "E01"}, {"Z2,10000,0", "E01"}, {"z4,10000,0", "E01"},
		{"vCont;s:2;c", "T05thread:1;core:0;swbreak:;06:6666666666666666;07:7777777777777777;10:0501010000000000;"},
	} {
		if c[0] == "vCont;s:2;c" { // the vCPU that runs comes first
			f.regs[0].RIP = 0x10104
		}
		d.expect(c[0], c[1])
	}
	for _, c := range [][2]string{
		{"z0,10105,1", "OK"}, {"z0,10105,1", "OK"},
		{"vCont;s:2", "T05thread:2;core:1;06:6766666666666666;07:7877777777777777;10:0101010000000000;"},
		{"vCont;r10100,10108:2", "T05thread:2;core:1;06:6766666666666666;07:7877777777777777;10:0801010000000000;"},
		{"s", "T05thread:2;core:1;06:6766666666666666;07:7877777777777777;10:0901010000000000;"},
		{"vCont;x", "E01"}, {"vCont;C", "E01"}, {"vCont;Szz", "E01"}, {"vCont;S005", "E01"}, {"vCont;", "E01"}, {"vCont;s:7", "E0e"}, {"vCont;r1:1", "E01"},
		{"cx", "E01"}, {"c10000", "E01"}, {"s10000", "E01"}, {"s10000x", "E01"}, {"C", "E01"}, {"C1", "E01"}, {"C05;zz", "E01"},
		{"C05;10000", "E01"}, {"C005", "E01"}, {"S", "E01"}, {"Szz", "E01"}, {"S05;10000", "E01"}, {"p10", "0901010000000000"},
		{"S05", "T05thread:2;core:1;06:6766666666666666;07:7877777777777777;10:0a01010000000000;"},
		{"qRcmd,68656c70", "O" + hex.EncodeToString([]byte("said help\n"))},
	} {
		d.expect(c[0], c[1])
	}
	if got := d.packet(); got != "OK" {
		t.Errorf("behind what monitor says: %q", got)
	}
	if got, want := d.ask("qRcmd,"+hex.EncodeToString([]byte("fail"))), "O"+hex.EncodeToString([]byte("there is no such thing\n")); got != want {
		t.Errorf("monitor fail: %q, want %q", got, want)
	}
	if got := d.packet(); got != "E01" {
		t.Errorf("behind it: %q", got)
	}
	d.expect("qRcmd,zz", "E01")
	d.expect("D", "OK")
	if err := <-d.done; err != nil || f.attached || f.paused {
		t.Errorf("detached: %v; attached %t, paused %t", err, f.attached, f.paused)
	}
}

// TestStops: a stop of each kind, as a debugger is told it.
func TestStops(t *testing.T) {
	for _, c := range []struct {
		stop Stop
		want string
	}{
		{Stop{Why: Stopped, CPU: 1}, "T02thread:2;core:1;"},
		{Stop{Why: Breaking, CPU: 1, Kind: Hardware}, "T05thread:2;core:1;hwbreak:;"},
		{Stop{Why: Watching, Kind: WatchWrite, Addr: 0x1234}, "T05thread:1;core:0;watch:1234;"},
		{Stop{Why: Watching, Kind: WatchAccess, Addr: 0x1234}, "T05thread:1;core:0;awatch:1234;"},
		{Stop{Why: Watching, Kind: WatchRead, Addr: 0x1234}, "T05thread:1;core:0;rwatch:1234;"},
		{Stop{Why: Crashed}, "T0bthread:1;core:0;"},
		{Stop{Why: Exited, Code: 7}, "W07"},
		{Stop{Why: Terminated}, "X0f"},
		{Stop{Why: Exited, Code: 7, Text: "it has ended"}, "W07"},
	} {
		f := newFake()
		f.next = &c.stop
		d := connect(t, f)
		d.ask("qSupported:swbreak+;hwbreak+")
		d.send("c")
		if c.stop.Text != "" {
			if got, want := d.packet(), "O"+hex.EncodeToString([]byte(c.stop.Text+"\n")); got != want {
				t.Errorf("%+v: %q, want %q", c.stop, got, want)
			}
		}
		got := d.packet()
		if head, _, _ := strings.Cut(got, "06:"); head != c.want {
			t.Errorf("%+v: %q, want %q", c.stop, head, c.want)
		}
		d.expect("?", got)
	}
}

// TestInterrupt: a guest that runs stops when the debugger asks for it, and when it goes away.
func TestInterrupt(t *testing.T) {
	f := newFake()
	d := connect(t, f)
	d.send("vCont;c")
	if _, err := d.conn.Write([]byte{interrupt}); err != nil {
		t.Fatal(err)
	}
	if got := d.packet(); !strings.HasPrefix(got, "T02thread:1;") {
		t.Errorf("after the interrupt: %q", got)
	}
	d.send("vCont;c")
	d.conn.Close()
	<-d.done
	if f.attached {
		t.Error("the session has ended, and its debugger is still attached")
	}
}

// TestEarlyInterrupt: an interrupt that comes while the guest does not run stops it when it is to run next, before it has executed
// anything, and once. So does one that comes when the guest has just stopped by itself.
func TestEarlyInterrupt(t *testing.T) {
	f := newFake()
	d := connect(t, f)
	for _, resume := range []string{"vCont;c", "vCont;s:1", "c"} {
		if _, err := d.conn.Write([]byte{interrupt}); err != nil {
			t.Fatal(err)
		}
		before := d.ask("p10")
		if got := d.ask(resume); !strings.HasPrefix(got, "T02thread:1;") {
			t.Errorf("%s after an interrupt: %q", resume, got)
		}
		if now := d.ask("p10"); now != before {
			t.Errorf("%s after an interrupt executes: RIP %s, now %s", resume, before, now)
		}
	}
	// It stops the guest once.
	f.next = &Stop{Why: Breaking}
	if got := d.ask("vCont;c"); !strings.HasPrefix(got, "T05thread:1;") {
		t.Errorf("then: %q", got)
	}
}

// TestRefused: a debugger that is turned away gets the reason for each of its packets, however many it has sent before it reads.
func TestRefused(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "gdb"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if conn, err := l.Accept(); err == nil {
			Refuse(conn, "another debugger is at work")
		}
	}()
	conn, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	d := &debugger{t: t, conn: conn, in: bufio.NewReader(conn)}
	for range 3 {
		d.send("qSupported:swbreak+")
	}
	for range 3 {
		if got := d.packet(); got != "E.another debugger is at work" {
			t.Errorf("%q", got)
		}
	}
	conn.Close()
	<-done
}

// TestRegisterText: what is wrong with a register that is set is text for any debugger, as GDB shows it since before there was a feature
// for that; a number says nothing.
func TestRegisterText(t *testing.T) {
	d := connect(t, newFake())
	for _, packet := range []string{"Pffff=00", "Pffff=0000000000000000"} {
		if got, want := d.ask(packet), "E.there is no register 0xffff: the last is 0x"; !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", packet, got, want)
		}
	}
	d.expect("P3=00", "E01")
	d.expect("m12000,1", "E0e") // in an answer to m, text would be memory
}

// TestThreadStops: each vCPU says what it stands still for, the same until the guest goes on.
func TestThreadStops(t *testing.T) {
	f := newFake()
	d := connect(t, f)
	d.ask("qSupported:swbreak+")
	rest := func(cpu int) string {
		return strings.SplitAfterN(d.ask(fmt.Sprintf("qThreadStopInfo%x", cpu+1)), "06:", 2)[0]
	}
	f.next = &Stop{Why: Breaking, CPU: 1}
	if got := d.ask("c"); !strings.HasPrefix(got, "T05thread:2;core:1;swbreak:;") {
		t.Errorf("the stop: %q", got)
	}
	f.also = map[int]Stop{0: {Why: Breaking, CPU: 0, Kind: Hardware}}
	for range 2 {
		if got := rest(0); got != "T05thread:1;core:0;hwbreak:;06:" {
			t.Errorf("another one: %q", got)
		}
		if got := rest(1); got != "T05thread:2;core:1;swbreak:;06:" {
			t.Errorf("the one that was told: %q", got)
		}
	}
	f.next = &Stop{Why: Breaking, CPU: 1}
	d.ask("c")
	if got := rest(0); got != "T00thread:1;core:0;06:" {
		t.Errorf("behind that: %q", got)
	}
	d.expect("qThreadStopInfo3", "E0e")
	d.expect("qThreadStopInfo", "E01")
}

// TestAlarm: it rings behind each wait that was begun, whatever is left of the one before.
func TestAlarm(t *testing.T) {
	a := alarm{rings: make(chan struct{}, 1)}
	for range 3 {
		a.begin()
		a.begin() // the timer goes already
		<-a.rings
	}
	a.begin()
	for len(a.rings) == 0 {
		runtime.Gosched()
	}
	a.begin() // takes away what was for the wait before
	<-a.rings
}

// TestMonitorEnds: what waits behind "monitor" ends with an interrupt, and with the connection.
func TestMonitorEnds(t *testing.T) {
	d := connect(t, newFake())
	wait := "qRcmd," + hex.EncodeToString([]byte("wait"))
	for _, other := range []string{"", "+"} { // an acknowledgement is no reason
		d.send(wait)
		if _, err := io.WriteString(d.conn, other+"\x03"); err != nil {
			t.Fatal(err)
		}
		if got, want := d.packet(), "O"+hex.EncodeToString([]byte(context.Canceled.Error()+"\n")); got != want {
			t.Errorf("monitor wait, interrupted: %q, want %q", got, want)
		}
		if got := d.packet(); got != "E01" {
			t.Errorf("monitor wait, interrupted: %q", got)
		}
	}
	d.expect("m12000,1", "E0e") // what comes behind is answered
	d.send(wait)
	d.conn.Close()
	<-d.done
}

// TestCannotResume: a debugger that waits for a stop gets one where the guest cannot go on, and is told why. GDB takes an
// error there for a stop without a reason, and steps on for ever.
func TestCannotResume(t *testing.T) {
	f := newFake()
	f.refuses = errors.New("no step of that")
	d := connect(t, f)
	for _, packet := range []string{"vCont;s:2", "vCont;r1000,20000:2", "vCont;c", "s", "c"} {
		d.expect(packet, "O"+hex.EncodeToString([]byte("no step of that\n")))
		cpu := map[bool]int{true: 2, false: 1}[strings.HasSuffix(packet, ":2")]
		if got, want := d.packet(), fmt.Sprintf("T04thread:%d;", cpu); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", packet, got, want)
		}
		d.expect("Hg1", "OK")
	}
}

// TestMessages: a debugger that takes text gets it, and one with other symbols is told.
func TestMessages(t *testing.T) {
	f := newFake()
	f.program = Program{Landmark: "_text", At: 0x400000}
	d := connect(t, f)
	d.ask("qSupported:error-message+")
	d.expect("m12000,1", "E.nothing is mapped there")
	for _, packet := range []string{"pffff", "Pffff=00"} {
		if got, want := d.ask(packet), "E.there is no register 0xffff: the last is 0x"; !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q and its number", packet, got, want)
		}
	}
	d.expect("c10000", "E.the packet is malformed: to resume elsewhere set RIP")
	d.expect("qSymbol::", "qSymbol:5f74657874")
	d.expect("qSymbol:401000:5f74657874", "OK")
	d.send("qRcmd," + hex.EncodeToString([]byte("x")))
	said, err := hex.DecodeString(strings.TrimPrefix(d.packet(), "O"))
	if err != nil || !strings.HasPrefix(string(said), "the debugger's file has _text at 0x401000, the guest at 0x400000") {
		t.Errorf("monitor says %q, %v", said, err)
	}
	for d.packet() != "OK" {
	}
}

// TestAcknowledged: until a debugger asks to do without, each packet is acknowledged, and what
// came damaged is asked for again.
func TestAcknowledged(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	done := make(chan error, 1)
	go func() { done <- Serve(context.Background(), theirs, newFake(), slog.New(slog.DiscardHandler)) }()
	talk := func(send, want string) {
		t.Helper()
		if _, err := io.WriteString(ours, send); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(ours, got); err != nil || string(got) != want {
			t.Errorf("%q: %q, %v, want %q", send, got, err, want)
		}
	}
	talk("$qC#b4", "+$QC1#c5")
	talk("-", "$QC1#c5")
	talk("+$qC#b5", "-")
	talk("junk$junk$qC#b4", "+$QC1#c5")
	talk("+$"+strings.Repeat("m", packetSize+1)+"#00", "-")
	talk("$qC}#00", "-")
	ours.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestDescription: the XML is that, the registers are numbered as they stand, and each can be
// read and written.
func TestDescription(t *testing.T) {
	for v, want := range map[Vector]int{SSE: 76, AVX: 92, AVX512: 164, AVX512PKU: 165} {
		regs, text := description(v)
		if len(regs) != want {
			t.Errorf("vectors %d: %d registers, want %d", v, len(regs), want)
		}
		var target struct {
			Features []struct {
				Regs []struct {
					Name   string `xml:"name,attr"`
					Bits   int    `xml:"bitsize,attr"`
					Number int    `xml:"regnum,attr"`
				} `xml:"reg"`
			} `xml:"feature"`
		}
		if err := xml.Unmarshal([]byte(text), &target); err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, f := range target.Features {
			for _, r := range f.Regs {
				if r.Number != n || r.Name != regs[n].name || r.Bits != 8*regs[n].size {
					t.Errorf("register %d is described as %+v, and is %+v", n, r, regs[n])
				}
				n++
			}
		}
		if n != len(regs) {
			t.Errorf("%d registers are described", n)
		}
		var all Registers
		seen := map[string]bool{}
		for i := range regs {
			b := bytes.Repeat([]byte{byte(i + 1)}, regs[i].size)
			if seen[regs[i].name] {
				t.Errorf("%s is there twice", regs[i].name)
			}
			seen[regs[i].name] = true
			if len(regs[i].get(nil, &all)) != regs[i].size {
				t.Errorf("%s has %d bytes, not %d", regs[i].name, len(regs[i].get(nil, &all)), regs[i].size)
			}
			if _, narrow := regs[i].at(&all).(*uint16); narrow {
				b[2], b[3] = 0, 0
			}
			if !regs[i].set(b, &all) || !bytes.Equal(regs[i].get(nil, &all), b) {
				t.Errorf("%s: % x does not come back", regs[i].name, b)
			}
		}
		for i := range regs { // each has its own place
			if b := regs[i].get(nil, &all); b[0] != byte(i+1) {
				t.Errorf("%s was changed by another", regs[i].name)
			}
		}
	}
}

// TestAllRegisters: what g has, G gives back, with other registers behind it or without.
func TestAllRegisters(t *testing.T) {
	f := newFake()
	d := connect(t, f)
	all := d.ask("g")
	if want := 2 * (17*8 + 7*4); len(all) != want {
		t.Errorf("g has %d digits, want %d", len(all), want)
	}
	d.expect("G"+all+strings.Repeat("5a", 10), "OK") // and st0
	if f.regs[0].X87[0] != [10]byte(bytes.Repeat([]byte{0x5a}, 10)) {
		t.Errorf("st0 is %x", f.regs[0].X87[0])
	}
	want := strings.Replace(all, "8888888888888888", "0102030405060708", 1)
	d.expect("G"+want, "OK")
	d.expect("g", want)
	d.expect("G"+want+"00", "E01")
	d.expect("G"+want[2:], "E01")
	if f.regs[0].General[8] != 0x0807060504030201 {
		t.Errorf("r8 is %#x", f.regs[0].General[8])
	}
}

// TestReadOnce: a run of p packets asks for what is not at hand once, and never for what somebody has changed
// in between.
func TestReadOnce(t *testing.T) {
	f := newFake()
	d := connect(t, f)
	f.asked = 0
	for range 3 {
		d.expect("p18", "00000000000000000000") // st0
		d.expect("p3", "3333333333333333")
	}
	if f.asked != 1 {
		t.Errorf("asked %d times", f.asked)
	}
	d.expect("qC", "QC1")
	f.regs[0].X87[0][0], f.regs[0].General[3] = 7, 7
	d.expect("p18", "07000000000000000000")
	d.expect("p3", "0700000000000000")
	d.expect("P18=01000000000000000000", "OK")
	d.expect("p18", "01000000000000000000")
}

// TestSlices: a document comes whole in parts, whatever their length.
func TestSlices(t *testing.T) {
	doc := strings.Repeat("#$}*plain", 4000)
	for _, length := range []int{1, 7, 4096, packetSize, 1 << 30} {
		var got strings.Builder
		for {
			part, err := slice(doc, fmt.Appendf(nil, "%x,%x", got.Len(), length))
			if err != nil {
				t.Fatal(err)
			}
			if n := len(appendPacket(nil, []byte(part))); n > packetSize+4 {
				t.Fatalf("a part is a packet of %d bytes", n)
			}
			got.WriteString(part[1:])
			if part[0] == 'l' {
				break
			}
		}
		if got.String() != doc {
			t.Errorf("in parts of %d: %d bytes of %d, or others", length, got.Len(), len(doc))
		}
	}
}

// TestChecksum: the CRC is that which GDB's compare-sections has for the same bytes.
func TestChecksum(t *testing.T) {
	f := newFake()
	copy(f.mem, "123456789")
	d := connect(t, f)
	d.expect("qCRC:10000,9", "C376e6e7") // CRC-32/MPEG-2's check value
	d.expect("qCRC:10000,fffff", "E0e")
}
