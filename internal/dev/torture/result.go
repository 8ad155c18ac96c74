package torture

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"strings"

	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/dev/oracle"
)

// Layout of the kernel's struct result.
const (
	frameWords = 22
	logWords   = 6
	logSize    = 64
	resultSize = (frameWords + 5 + logSize*logWords) * 8
	configSize = 10 * 8
)

// flags are the bits of RFLAGS that belong to the program: CF PF AF ZF SF TF DF
// OF AC.
const flags = 0x40dd5

// frameNames are the words of the kernel's struct frame.
var frameNames = func() (names [frameWords]string) {
	for i, r := range x86.PtRegs {
		names[i] = r.String()
	}
	copy(names[len(x86.PtRegs):], []string{"vector", "error", "rip", "cs", "rflags", "rsp", "ss"})
	return names
}()

// States of a task.
const (
	stateRunning = iota
	stateDone
	stateKilled
)

// outcome is the result of a task, as far as it must be the same on the
// processor and in the guest.
type outcome struct {
	State      uint64
	Regs       [frameWords]uint64 // vector, error, cs and ss are 0
	Exceptions uint64
	Hash       uint64 // of all registers at each exception
	Log        []exception
	Data       []byte
	Stack      []byte // from RSP up
}

// exception is one of the first that a task had.
type exception struct{ Vector, RIP, RSP, Flags, Addr, Hash uint64 }

// normalize clears values that do not belong to the program.
func (o *outcome) normalize() {
	for i, n := range frameNames {
		switch n {
		case "vector", "error", "cs", "ss":
			o.Regs[i] = 0
		case "rflags":
			o.Regs[i] &= flags
		}
	}
}

// parseResult reads a struct result.
func parseResult(b []byte) (o outcome, ticks, signals uint64) {
	w := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	for i := range o.Regs {
		o.Regs[i] = w(i)
	}
	o.State, o.Exceptions, o.Hash = w(frameWords), w(frameWords+1), w(frameWords+2)
	for i := range min(o.Exceptions, logSize) {
		at := frameWords + 5 + int(i)*logWords
		o.Log = append(o.Log, exception{w(at), w(at + 1), w(at + 2), w(at + 3), w(at + 4), w(at + 5)})
	}
	o.normalize()
	return o, w(frameWords + 3), w(frameWords + 4)
}

// words returns registers in the order of struct frame.
func words(r *oracle.Regs) [frameWords]uint64 {
	return [frameWords]uint64{r.R15, r.R14, r.R13, r.R12, r.Rbp, r.Rbx, r.R11, r.R10, r.R9, r.R8, r.Rax, r.Rcx, r.Rdx, r.Rsi, r.Rdi,
		0, 0, r.Rip, 0, r.Eflags, r.Rsp, 0}
}

// note mixes an exception into the outcome, as the kernel does.
func (o *outcome) note(r *oracle.Regs, vector uint8, addr uint64) {
	w := words(r)
	o.Exceptions++
	mix := func(v uint64) {
		o.Hash = (o.Hash ^ v) * 0x100000001b3
		o.Hash ^= o.Hash >> 29
	}
	for _, v := range w[:15] {
		mix(v)
	}
	mix(uint64(vector))
	mix(r.Rip)
	mix(r.Rsp)
	mix(r.Eflags & flags)
	mix(addr)
	if len(o.Log) < logSize {
		o.Log = append(o.Log, exception{uint64(vector), r.Rip, r.Rsp, r.Eflags & flags, addr, o.Hash})
	}
}

// diff says where two outcomes differ, or "".
func (o *outcome) diff(want *outcome) string {
	var s []string
	add := func(format string, args ...any) { s = append(s, fmt.Sprintf(format, args...)) }
	if o.State != want.State {
		add("state %d, want %d", o.State, want.State)
	}
	for i, n := range frameNames {
		if o.Regs[i] != want.Regs[i] {
			add("%s %#x, want %#x", n, o.Regs[i], want.Regs[i])
		}
	}
	if o.Exceptions != want.Exceptions || o.Hash != want.Hash {
		add("%d exceptions, want %d", o.Exceptions, want.Exceptions)
		for i := range min(len(o.Log), len(want.Log)) {
			if o.Log[i] != want.Log[i] {
				add("number %d is %#x, want %#x", i, o.Log[i], want.Log[i])
				break
			}
		}
		if n := len(want.Log); n < len(o.Log) {
			add("number %d is %#x, want none", n, o.Log[n])
		}
	}
	for _, m := range []struct {
		name      string
		got, want []byte
	}{{"data", o.Data, want.Data}, {"stack", o.Stack, want.Stack}} {
		if len(m.got) != len(m.want) {
			add("%s has %d bytes, want %d", m.name, len(m.got), len(m.want))
			continue
		}
		for i := range m.got {
			if m.got[i] != m.want[i] {
				add("%s+%#x is %#x, want %#x (%d bits)", m.name, i, m.got[i], m.want[i], bits.OnesCount8(m.got[i]^m.want[i]))
				break
			}
		}
	}
	return strings.Join(s, "; ")
}
