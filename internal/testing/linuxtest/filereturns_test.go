package linuxtest

import (
	"debug/elf"
	"encoding/binary"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elfbuild"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
)

// jumps is how often the program leaves a function by a long jump.
const jumps = 7

// returner returns a program, as an ELF file, that does by its number of arguments: call
// outer, which ends with a jump to fact, which is recursive; leave away by long jumps; fork in
// forker; have threads that call outer; be in raiser while a handler of a signal calls outer;
// be killed in killer.
func returner(t *testing.T) []byte {
	t.Helper()
	at := map[string]uint64{"landed": uint64(programAt), "handler": uint64(programAt), "restorer": uint64(programAt)}
	returnerAt(t, at) // finds out where they are
	return returnerAt(t, at)
}

// returnerAt is returner with those addresses, which it puts right.
func returnerAt(t *testing.T, at map[string]uint64) []byte {
	t.Helper()
	a := x86.NewAsm(uint64(programAt))
	var symbols []elfbuild.Symbol
	function := func(name string, l x86.Label, code func()) {
		a.Align(16)
		a.Place(l)
		from := a.Len()
		code()
		symbols = append(symbols, elfbuild.Symbol{Name: name, Addr: programAt + guest.GVA(from), Size: uint64(a.Len() - from), Type: elf.STT_FUNC})
	}
	system := func(number int, args ...x86.Arg) {
		for i, x := range args {
			if r := []x86.Reg64{x86.RDI, x86.RSI, x86.RDX, x86.R10, x86.R8}[i]; x != r {
				a.Mov(8, r, x)
			}
		}
		a.Mov(8, x86.RAX, x86.Imm(number))
		a.Syscall()
	}
	outer, fact, away, long, forker, raiser, killer, handler, restorer, loop := a.NewLabel(), a.NewLabel(), a.NewLabel(), a.NewLabel(), a.NewLabel(), a.NewLabel(), a.NewLabel(), a.NewLabel(), a.NewLabel(), a.NewLabel()
	landed := a.NewLabel()
	const stack = 64 << 10

	function("_start", a.NewLabel(), func() {
		exit, first := a.NewLabel(), a.NewLabel()
		a.Mov(8, x86.R12, x86.At(x86.RSP, 0))
		a.Xor(4, x86.R13, x86.R13)
		a.Mov(8, x86.At(x86.RSP, -guest.PageSize), x86.RSP) // as in program
		ways := make([]x86.Label, 7)
		for n := 2; n <= 6; n++ {
			ways[n] = a.NewLabel()
			a.Cmp(8, x86.R12, x86.Imm(n+1))
			a.Jcc(x86.CondE, ways[n])
		}
		a.Place(first)
		a.Call(loop)
		a.Place(exit)
		system(60, x86.R13)

		a.Place(ways[2])
		a.Mov(8, x86.RBX, x86.Imm(jumps))
		again := a.NewLabel()
		a.Place(again)
		a.Mov(8, x86.RBP, x86.RSP)
		a.Mov(8, x86.RCX, x86.Imm(at["landed"]))
		a.Call(away)
		a.Mov(4, x86.R13, x86.Imm(1)) // it came back
		a.Place(landed)
		a.Dec(8, x86.RBX)
		a.Jcc(x86.CondNE, again)
		a.Jmp(exit)

		a.Place(ways[3])
		a.Call(forker)
		child := a.NewLabel()
		a.Test(8, x86.RAX, x86.RAX)
		a.Jcc(x86.CondE, child)
		system(61, x86.Imm(-1), x86.Imm(0), x86.Imm(0), x86.Imm(0)) // wait4
		a.Jmp(exit)
		a.Place(child)
		system(60, x86.Imm(0))

		a.Place(ways[4])
		a.Push(x86.Imm(0))
		a.Mov(8, x86.R15, x86.RSP) // how many threads are at their end
		for n := 1; n <= 2; n++ {
			main, end := a.NewLabel(), a.NewLabel()
			a.Lea(8, x86.RSI, x86.At(x86.RSP, -n*stack))
			a.Mov(8, x86.At(x86.RSI, -guest.PageSize), x86.RSP)
			a.Mov(8, x86.At(x86.RSI, -8), x86.RSP)
			system(56, x86.Imm(0x10f00), x86.RSI, x86.Imm(0), x86.Imm(0), x86.Imm(0)) // clone: a thread
			a.Test(8, x86.RAX, x86.RAX)
			a.Jcc(x86.CondNE, main)
			a.Call(loop)
			a.Lock().Add(8, x86.At(x86.R15, 0), x86.Imm(1))
			a.Place(end)
			system(60, x86.Imm(0))
			a.Place(main)
		}
		a.Call(loop)
		spin := a.NewLabel()
		a.Place(spin)
		a.Pause()
		a.Cmp(8, x86.At(x86.R15, 0), x86.Imm(2))
		a.Jcc(x86.CondNE, spin)
		a.Jmp(exit)

		a.Place(ways[5])
		a.Mov(8, x86.RAX, x86.Imm(at["restorer"]))
		a.Mov(8, x86.RCX, x86.Imm(at["handler"]))
		a.Push(x86.Imm(0)) // struct sigaction of the kernel, from its end: mask, restorer, flags, handler
		a.Push(x86.RAX)
		a.Push(x86.Imm(0x4000000)) // SA_RESTORER
		a.Push(x86.RCX)
		a.Mov(8, x86.R9, x86.RSP)
		system(13, x86.Imm(10), x86.R9, x86.Imm(0), x86.Imm(8)) // rt_sigaction of SIGUSR1
		a.Or(8, x86.R13, x86.RAX)
		a.Call(raiser)
		a.Jmp(exit)

		a.Place(ways[6])
		a.Call(killer)
		a.Jmp(exit)
	})
	function("loop", loop, func() {
		again, right := a.NewLabel(), a.NewLabel()
		a.Mov(8, x86.R14, x86.Imm(rounds))
		a.Place(again)
		a.Mov(8, x86.RDI, x86.Imm(5))
		a.Call(outer)
		a.Cmp(8, x86.RAX, x86.Imm(120))
		a.Jcc(x86.CondE, right)
		a.Mov(4, x86.R13, x86.Imm(1))
		a.Place(right)
		a.Dec(8, x86.R14)
		a.Jcc(x86.CondNE, again)
		a.Ret()
	})
	function("outer", outer, func() {
		a.Inc(8, x86.RDI)
		a.Dec(8, x86.RDI)
		a.Jmp(fact)
	})
	function("fact", fact, func() {
		deeper := a.NewLabel()
		a.Push(x86.RBX)
		a.Mov(8, x86.RBX, x86.RDI)
		a.Cmp(8, x86.RDI, x86.Imm(1))
		a.Jcc(x86.CondNE, deeper)
		a.Mov(8, x86.RAX, x86.Imm(1))
		a.Pop(x86.RBX)
		a.Ret()
		a.Place(deeper)
		a.Dec(8, x86.RDI)
		a.Call(fact)
		a.Imul(8, x86.RAX, x86.RBX)
		a.Pop(x86.RBX)
		a.Ret()
	})
	function("away", away, func() {
		a.Push(x86.RBX)
		a.Call(long)
		a.Pop(x86.RBX)
		a.Ret()
	})
	function("long", long, func() {
		a.Mov(8, x86.RSP, x86.RBP)
		a.JmpAt(x86.RCX)
	})
	function("forker", forker, func() {
		system(57)
		a.Ret()
	})
	raise := func(signal int) {
		system(39) // getpid
		a.Mov(8, x86.RDI, x86.RAX)
		a.Mov(8, x86.RSI, x86.Imm(signal))
		system(62)
		a.Ret()
	}
	function("raiser", raiser, func() { raise(10) })
	function("killer", killer, func() { raise(9) })
	function("handler", handler, func() {
		a.Mov(8, x86.RDI, x86.Imm(5))
		a.Call(outer)
		a.Ret()
	})
	function("restorer", restorer, func() { system(15) }) // rt_sigreturn
	code, err := a.Link()
	if err != nil {
		t.Fatal(err)
	}
	for name, l := range map[string]x86.Label{"landed": landed, "handler": handler, "restorer": restorer} {
		at[name] = uint64(programAt) + uint64(a.Offset(l))
	}
	f := elfbuild.File{Entry: programAt, Segments: []elfbuild.Segment{{Section: ".text", VAddr: programAt, Flags: elf.PF_R | elf.PF_X, Data: code}}, Symbols: symbols}
	return f.Bytes()
}

// returned is what a test sees of the returns of a function.
type returned struct {
	mu      sync.Mutex
	results map[uint64]int // calls that were seen to return, by result
	wrong   int            // to elsewhere than they came from, or before they began
}

// TestFilesReturn: returns of functions of a program are seen, each with its result, of its
// own call, through recursion, functions that end with a jump to another, threads and
// handlers of signals; what is left by long jumps, or by the end of its process, is known to be
// abandoned, and a fork's copy is nobody's return.
func TestFilesReturn(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			prog := returner(t)
			g := boot(t, dir, "sh /returns.sh", func(c *machine.Config) {
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
			g.await("READY")
			seen := map[string]*returned{}
			probes := map[string]*probe.Kretprobe{}
			var all []probe.Probe
			for _, name := range []string{"outer", "fact", "away", "forker", "raiser", "killer", "loop"} {
				s := &returned{results: map[uint64]int{}}
				p := &probe.Kretprobe{
					DataSize: 24,
					Kprobe:   probe.Kprobe{Symbol: "/prog:" + name},
					Entry: func(c *probe.Context) int {
						for i, w := range []uint64{uint64(c.Ret), c.Regs.RSP, uint64(time.Now().UnixNano())} {
							binary.LittleEndian.PutUint64(c.Data[8*i:], w)
						}
						return 0
					},
					Return: func(c *probe.Context) {
						s.mu.Lock()
						defer s.mu.Unlock()
						s.results[c.Regs.RAX]++
						var w [3]uint64
						for i := range w {
							w[i] = binary.LittleEndian.Uint64(c.Data[8*i:])
						}
						if w[0] != uint64(c.Ret) || w[0] != c.Regs.RIP || w[1]+8 != c.Regs.RSP || int64(w[2]) > time.Now().UnixNano() {
							s.wrong++
						}
					},
				}
				seen[name], probes[name] = s, p
				all = append(all, p)
			}
			if err := e.Register(all...); err != nil {
				t.Fatal(err)
			}
			if err := e.Register(&probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "/prog:long"}}); err == nil || !strings.Contains(err.Error(), "the exits of /prog:long are not all known") {
				t.Errorf("a function that is left nobody knows where to: %v", err)
			}
			g.Type("go\n")
			if got := g.await("RC "); got != "0 0 0 0 0 137" {
				t.Errorf("exit codes %s", got)
			}
			const loops = 1 + 3 + 10 // processes, of which one has three threads
			factorials := map[uint64]int{1: loops*rounds + 1, 2: loops*rounds + 1, 6: loops*rounds + 1, 24: loops*rounds + 1, 120: loops*rounds + 1}
			for name, want := range map[string]struct {
				calls, returns uint64
				results        map[uint64]int // nil: any
			}{
				"outer":  {loops*rounds + 1, loops*rounds + 1, map[uint64]int{120: loops*rounds + 1}},
				"fact":   {5 * (loops*rounds + 1), 5 * (loops*rounds + 1), factorials},
				"loop":   {loops, loops, map[uint64]int{120: loops}},
				"away":   {jumps, 0, map[uint64]int{}},
				"forker": {1, 1, nil},
				"raiser": {1, 1, map[uint64]int{0: 1}},
				"killer": {1, 0, map[uint64]int{}},
			} {
				info, ok := e.Info(&probes[name].Kprobe)
				s, got := info.Stats, seen[name]
				if !ok || s.Handled != want.calls || s.Returns != want.returns || s.Abandoned+uint64(info.InUse) != want.calls-want.returns || s.Missed != 0 || got.wrong != 0 {
					t.Errorf("%s: %+v in use %d, %d wrong, %v, want %d calls and %d returns", name, s, info.InUse, got.wrong, ok, want.calls, want.returns)
				}
				n := 0
				for v, k := range got.results {
					if n += k; want.results != nil && want.results[v] != k {
						t.Errorf("%s: %d times %d, want %d", name, k, v, want.results[v])
					}
				}
				if uint64(n) != want.returns {
					t.Errorf("%s: %d results, want %d", name, n, want.returns)
				}
				if info.InUse != 0 {
					t.Errorf("%s: %d calls are under way of processes that are gone", name, info.InUse)
				}
			}
			for _, p := range probes {
				if err := e.Unregister(&p.Kprobe); err != nil {
					t.Error(err)
				}
			}
			g.Type("go\n")
			if got := g.await("RC "); got != "0" {
				t.Errorf("without probes: exit code %s", got)
			}
		})
	}
}
