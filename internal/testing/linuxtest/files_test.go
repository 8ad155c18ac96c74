package linuxtest

import (
	"debug/elf"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elfbuild"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
)

// Where the program of TestFiles is.
const (
	programAt   = guest.GVA(0x400078) // behind the headers, which the same page has
	programWork = 0x1000              // its function work, in another page
	programPad  = 0x1f00              // nothing, in that page
	programEnd  = 0x2200
)

// rounds is how often the program calls work.
const rounds = 50

// program returns a program, as an ELF file, that calls work, and exits with 0 if that has
// always returned one more than its argument. With one argument it first makes the page with
// work its own, and then waits; with two it waits first; with three it calls work as often before it
// waits. imul is where in work an instruction is that is stepped in its place, and syscall
// where in the file one is that enters the kernel.
func program(t *testing.T) (file []byte, imul, syscall uint64) {
	t.Helper()
	a := x86.NewAsm(uint64(programAt))
	loop, own, wait, count, work := a.NewLabel(), a.NewLabel(), a.NewLabel(), a.NewLabel(), a.NewLabel()
	system := func(number, di, si, dx x86.Arg) {
		a.Mov(8, x86.RDI, di)
		a.Mov(8, x86.RSI, si)
		a.Mov(8, x86.RDX, dx)
		a.Mov(8, x86.RAX, number)
		syscall = uint64(programAt%guest.PageSize) + uint64(a.Len())
		a.Syscall()
	}
	at := func(off int) x86.Imm { return x86.Imm(int64(programAt) + int64(off)) }

	a.Mov(8, x86.R12, x86.At(x86.RSP, 0)) // arguments with the name
	// A push that is the first to touch a page of the stack faults, and is hit once more
	// when the kernel has provided the page (docs/linux.md): all that is used is there now.
	a.Mov(8, x86.At(x86.RSP, -guest.PageSize), x86.RSP)
	a.Xor(4, x86.R13, x86.R13) // what went wrong
	first, half := a.NewLabel(), a.NewLabel()
	a.Cmp(8, x86.R12, x86.Imm(1))
	a.Jcc(x86.CondE, loop)
	a.Cmp(8, x86.R12, x86.Imm(3))
	a.Jcc(x86.CondE, first)
	a.Call(own)
	a.Cmp(8, x86.R12, x86.Imm(4))
	a.Jcc(x86.CondE, half)
	a.Call(wait)
	a.Jmp(loop)
	a.Place(first)
	a.Call(wait)
	a.Call(own)
	a.Jmp(loop)
	a.Place(half)
	a.Call(count)
	a.Call(wait)
	a.Place(loop)
	a.Call(count)
	system(x86.Imm(60), x86.R13, x86.Imm(0), x86.Imm(0)) // exit

	a.Place(own) // mprotect, and a write to the page
	system(x86.Imm(10), at(programWork-int(programAt%guest.PageSize)), x86.Imm(guest.PageSize), x86.Imm(7))
	a.Or(8, x86.R13, x86.RAX)
	a.Mov(8, x86.RCX, at(programPad))
	a.Mov(1, x86.At(x86.RCX, 0), x86.Imm(1))
	a.Ret()

	a.Place(wait)
	const line = 64
	a.Sub(8, x86.RSP, x86.Imm(line))
	system(x86.Imm(1), x86.Imm(1), at(programEnd-8), x86.Imm(5)) // write
	system(x86.Imm(0), x86.Imm(0), x86.RSP, x86.Imm(line))       // read
	a.Add(8, x86.RSP, x86.Imm(line))
	a.Ret()

	a.Place(count)
	a.Mov(8, x86.RBX, x86.Imm(rounds))
	again, right := a.NewLabel(), a.NewLabel()
	a.Place(again)
	a.Mov(8, x86.RDI, x86.RBX)
	a.Call(work)
	a.Sub(8, x86.RAX, x86.RBX)
	a.Cmp(8, x86.RAX, x86.Imm(1))
	a.Jcc(x86.CondE, right)
	a.Mov(4, x86.R13, x86.Imm(1))
	a.Place(right)
	a.Dec(8, x86.RBX)
	a.Jcc(x86.CondNE, again)
	a.Ret()

	a.Append(make([]byte, programWork-a.Len()))
	a.Place(work)
	a.Push(x86.RBX)
	imul = uint64(a.Len() - programWork)
	a.ImulImm(8, x86.RAX, x86.RDI, 1)
	a.Inc(8, x86.RAX)
	a.Pop(x86.RBX)
	a.Ret()
	end := a.Len()
	a.Append(make([]byte, programEnd-8-a.Len()))
	a.Append([]byte("WAIT\n\x00\x00\x00"))
	code, err := a.Link()
	if err != nil {
		t.Fatal(err)
	}
	f := elfbuild.File{
		Entry:    programAt,
		Segments: []elfbuild.Segment{{Section: ".text", VAddr: programAt, Flags: elf.PF_R | elf.PF_X, Data: code}},
		Symbols:  []elfbuild.Symbol{{Name: "work", Addr: programAt + programWork, Size: uint64(end - programWork), Type: elf.STT_FUNC}},
	}
	return f.Bytes(), imul, syscall
}

// TestFiles: a probe on a function of a program is hit by all processes that run it, those
// that have a copy of its page too, and by no process with another file of the same bytes;
// its file is what it was when the probe is gone, and so are the copies.
func TestFiles(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			prog, imul, system := program(t)
			g := boot(t, dir, "sh /files.sh", func(c *machine.Config) {
				c.VCPUs = 2
				var err error
				if c.Linux.Initrd, err = AddFiles(c.Linux.Initrd, fstest.MapFS{"prog": {Data: prog}}); err != nil {
					t.Fatal(err)
				}
			})
			e := g.Engine()
			if err := g.Resume(); err != nil {
				t.Fatal(err)
			}
			sum := g.await("SUM ")
			g.await("READY")
			g.Type("go\n")
			g.await("WAIT")
			var entries, inside atomic.Uint64
			entry := &probe.Kprobe{Symbol: "/tmp/link:work", Pre: func(c *probe.Context) int {
				if v := c.Regs.RDI; v >= 1 && v <= rounds {
					entries.Add(1)
				}
				return 0
			}}
			middle := &probe.Kprobe{Symbol: "/prog:work", Offset: imul, Pre: func(*probe.Context) int { inside.Add(1); return 0 }}
			if err := e.Register(entry, middle); err != nil {
				t.Fatal(err)
			}
			for _, p := range []*probe.Kprobe{entry, middle} {
				info, _ := e.Info(p)
				t.Logf("%s+%#x at %v: %s", info.Symbol, info.Offset, info.Addr, info.Plan)
			}
			for what, p := range map[string]probe.Probe{
				"is not the entry of a function": &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "/prog:work", Offset: imul}},
				"enters the kernel":              &probe.Kprobe{Symbol: fmt.Sprintf("/prog:%#x", system)},
				"no such file":                   &probe.Kprobe{Symbol: "/none:work"},
			} {
				var no *probe.Error
				if err := e.Register(p); !errors.As(err, &no) || !strings.Contains(err.Error(), what) {
					t.Errorf("%v, want that %s", err, what)
				}
			}
			want := uint64(0)
			step := func(what string, runs uint64) {
				t.Helper()
				if got := g.await("RC "); got != "0" {
					t.Errorf("%s: exit code %s", what, got)
				}
				if want += runs * rounds; entries.Load() != want || inside.Load() != want {
					t.Errorf("%s: %d and %d hits, want %d", what, entries.Load(), inside.Load(), want)
				}
				g.Type("go\n")
			}
			g.Type("go\n")
			step("a copy of the page from before", 1)
			step("the page of all", 20)
			g.await("RC ") // a process of another file beside one of this
			want += rounds
			g.Type("go\n")
			g.await("WAIT")
			g.Type("go\n")
			step("a copy of the page with the int3", 1)
			g.await("WAIT")
			if err := e.Unregister(entry, middle); err != nil {
				t.Error(err)
			}
			g.Type("go\n")
			step("a process that goes on when the probe is gone", 1)
			step("no probe", 0)
			if now := g.await("SUM "); now != sum {
				t.Errorf("the file has sum %s, before %s", now, sum)
			}
			t.Logf("%+v", g.Stats())
		})
	}
}
