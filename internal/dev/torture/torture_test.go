package torture

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
)

func code(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestKernel: the kernel does what native runs say, without probes: ends,
// exceptions, resumes, paging, patches, services.
func TestKernel(t *testing.T) {
	kvmtest.Require(t)
	x, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for i, tt := range []struct{ name, code string }{
		{"end", "b8 07 00 00 00 0f 0b 00"},
		{"killed", "0f 0b 90"},
		// lea 9(%rip),%rax; mov %rax,(%rdi); xor %ecx,%ecx; div %ecx; ud2; nop; mov $9,%ebx; end
		{"divides by zero, resumes", "48 8d 05 09 00 00 00 48 89 07 31 c9 f7 f1 0f 0b bb 09 00 00 00 0f 0b 00"},
		{"int3", "48 8d 05 06 00 00 00 48 89 07 cc 90 90 bb 09 00 00 00 0f 0b 00"},
		// sub $0x2800,%rsp; push %rsp; pop %rbx; add $0x2800,%rsp; end
		{"touches lazy pages", "48 81 ec 00 28 00 00 54 5b 48 81 c4 00 28 00 00 0f 0b 00"},
		// lea 0x11(%rip),%rdi; mov $7,%esi; mov $1,%edx; patch; mov $1,%ecx (becomes 7); end
		{"patches itself", "48 8d 3d 0e 00 00 00 be 07 00 00 00 ba 01 00 00 00 0f 0b 02 b9 01 00 00 00 0f 0b 00"},
		// pushf; orl $0x100,(%rsp); popf; nop; nop; end
		{"steps itself", "9c 81 0c 24 00 01 00 00 9d 90 90 0f 0b 00"},
		// lea(resume); pushf; orl $0x40000,(%rsp); popf; mov 1(%rdi),%eax; resume: end
		{"alignment", "48 8d 05 0f 00 00 00 48 89 07 9c 81 0c 24 00 00 04 00 9d 8b 47 09 90 0f 0b 00"},
		{"yields", "0f 0b 04 b8 01 00 00 00 0f 0b 04 0f 0b 00"},
		{"asks for an alias", "0f 0b 05 b8 01 00 00 00 0f 0b 00"},
		// lea 7(%rip),%rax; btc $33,%rax; jmp *%rax; nop; call 1f; 1: end
		{"runs at an alias", "48 8d 05 07 00 00 00 48 0f ba f8 21 ff e0 90 e8 00 00 00 00 0f 0b 00"},
		// lea 5(%rip),%rdi; breakpoint; inc %eax; inc %ebx; end of the breakpoint; end
		{"has a breakpoint", "48 8d 3d 05 00 00 00 0f 0b 06 ff c0 ff c3 0f 0b 07 0f 0b 00"},
		// lea 5(%rip),%rdi; breakpoint; jmp 1f; nop; 1: inc %ebx; end of the breakpoint; end
		{"has a breakpoint that is not hit", "48 8d 3d 05 00 00 00 0f 0b 06 eb 01 90 ff c3 0f 0b 07 0f 0b 00"},
		// lea 13(%rip),%rdi; mov $0xe9,%esi; mov $5,%edx; poke; nop (becomes jmp); nop; end
		{"pokes", "48 8d 3d 0d 00 00 00 be e9 00 00 00 ba 05 00 00 00 0f 0b 08 0f 1f 44 00 00 90 0f 0b 00"},
		// lea 8(%rip),%rdi; mov $4,%esi; keep; inc %eax; inc %ebx; write back; end
		{"reads text and writes it back", "48 8d 3d 08 00 00 00 be 04 00 00 00 0f 0b 09 ff c0 ff c3 0f 0b 0a 0f 0b 00"},
		{"makes a system call", "f9 0f 05 48 89 c8 f8 0f 05 0f 0b 00"},
	} {
		p := &Program{Text: code(t, tt.code), Tasks: 3, Lazy: 2, Funcs: []Func{{Name: "main"}}, Alias: &Alias{Bits: 1 << 33, Late: i%2 == 0}}
		if strings.HasPrefix(tt.name, "runs") {
			p.Alias.Late = false
		}
		p.Funcs[0].Size = len(p.Text)
		want, err := x.runAllNative(p)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if err := x.boot(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if err := p.tracer(x.m, tracerBack|tracerTells); err != nil {
			t.Fatal(err)
		}
		if err := x.wait(t.Context()); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if err := x.compare(p, want); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// TestStepsItselfElsewhere: code that single-steps itself at a second address of its page, where a probed
// instruction is executed in its place, has each of its debug exceptions.
func TestStepsItselfElsewhere(t *testing.T) {
	kvmtest.Require(t)
	if kvmtest.DetectHost() == kvmtest.HostBochs {
		return // see TestGuests
	}
	x, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	// lea 7(%rip),%rax; btc $33,%rax; jmp *%rax; nop; pushf; orl $0x100,(%rsp); popf; nop; pushf; andl $~0x100,(%rsp); popf; end
	p := &Program{Text: code(t, "48 8d 05 07 00 00 00 48 0f ba f8 21 ff e0 90 9c 81 0c 24 00 01 00 00 9d 90 9c 81 24 24 ff fe ff ff 9d 0f 0b 00"),
		Tasks: 2, Funcs: []Func{{Name: "main"}}, Alias: &Alias{Bits: 1 << 33}, Steps: true}
	p.Funcs[0].Size = len(p.Text)
	want, err := x.runAllNative(p)
	if err != nil {
		t.Fatal(err)
	}
	if n := want.tasks[0].Exceptions; n != 4 {
		t.Fatalf("%d exceptions natively, want 4", n)
	}
	for _, off := range []guest.GVA{24, 25, 26, 33} {
		if err := x.boot(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		k := &probe.Kprobe{Addr: textVA + off}
		if err := x.m.Engine().Register(k); err != nil {
			t.Fatal(err)
		}
		if err := x.wait(t.Context()); err != nil {
			t.Fatalf("probe at +%d: %v", off, err)
		}
		if err := x.compare(p, want); err != nil {
			t.Errorf("probe at +%d: %v", off, err)
		}
		if st, _, _ := x.m.Engine().Stats(k); st.Hits != uint64(p.Tasks) {
			t.Errorf("probe at +%d: %d hits, want %d", off, st.Hits, p.Tasks)
		}
	}
}

// TestWatchedByStages: vCPUs that take turns, because a page is watched, have timer interrupts come while the code of a probe reads
// that page.
func TestWatchedByStages(t *testing.T) {
	kvmtest.Require(t)
	x, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	// mov $10,%r15d; 1: nop; dec %r15d; jne 1b; end
	const loops, at = 10, 6
	p := &Program{Text: code(t, "41 bf 0a 00 00 00 0f 1f 44 00 00 41 ff cf 75 f6 0f 0b 00"), Tasks: 4, Funcs: []Func{{Name: "main"}}}
	p.Funcs[0].Size = len(p.Text)
	want, err := x.runAllNative(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.boot(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	block, words, err := x.m.AllocShared(192, true)
	if err != nil {
		t.Fatal(err)
	}
	word := guest.AtomicWords(words)
	const times = 100
	s := &probe.Stage{Block: block, Stride: 64, Lost: block + 128, NoStrings: true, Aligned: true, Stack: 16}
	s.Counts = func(cpu int) (handled, filtered, missed uint64) { return word[8*cpu].Load(), 0, 0 }
	var a x86.Asm
	a.Lock().Inc(8, x86.At(x86.RSI, 0))
	a.Push(x86.RCX)
	a.Mov(4, x86.RCX, x86.Imm(times))
	a.Mov(8, x86.RDI, x86.Imm(int64(dataOf(maxTasks-1))))
	top := a.LabelHere()
	a.Mov(8, x86.RAX, x86.At(x86.RDI, 0))
	a.Dec(4, x86.RCX)
	a.Jcc(x86.CondNE, top)
	a.Pop(x86.RCX)
	a.Ret()
	s.Code = a.Code()
	k := &probe.Kprobe{Addr: textVA + at, Stage: s, Pre: func(*probe.Context) int { return 0 }}
	w := &probe.Watch{Addr: guest.GVA(dataOf(maxTasks - 1)), Len: 8, Access: probe.AccessReadWrite, Emulate: true}
	if err := x.m.Engine().Register(k); err != nil {
		t.Fatal(err)
	}
	if err := x.m.Engine().Watch(w); err != nil {
		t.Fatal(err)
	}
	if err := x.m.Engine().Optimize(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(x.wait(t.Context()), x.compare(p, want)); err != nil {
		t.Error(err)
	}
	st, _, _ := x.m.Engine().Stats(k)
	info, _ := x.m.Engine().WatchInfo(w)
	if st.Hits != uint64(loops*p.Tasks) || info.Stats.Hits != times*st.InGuest {
		t.Errorf("%+v\n%+v", st, info.Stats)
	}
	t.Logf("%d hits in the guest", st.InGuest)
}

// TestSaveUneven: a snapshot has the return addresses of calls that a return probe follows where the stack is at no multiple of 8, too.
func TestSaveUneven(t *testing.T) {
	kvmtest.Require(t)
	x, err := New(Options{VCPUs: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	// 00 lea -3(%rsp),%rsp; 05 call 10; 0a lea 3(%rsp),%rsp; 0f end; 13 inc %eax; 15 ret
	const fn = 0x13
	p := &Program{Text: code(t, "48 8d 64 24 fd e8 09 00 00 00 48 8d 64 24 03 0f 0b 00 90 ff c0 c3"), Tasks: 1,
		Funcs: []Func{{Name: "main", Size: fn}, {Name: "fn", Off: fn, Size: 3, Calls: true}}}
	want, err := x.runAllNative(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.boot(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	returned := 0
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Addr: textVA + fn}, MaxActive: 4, Return: func(*probe.Context) { returned++ }}
	if err := x.m.Engine().Register(r); err != nil {
		t.Fatal(err)
	}
	if reached, err := x.m.RunTo(t.Context(), 0, textVA+fn+2, 0); err != nil || !reached {
		t.Fatal(reached, err)
	}
	s, err := x.m.Save(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(x.wait(t.Context()), x.compare(p, want)); err != nil || returned != 1 {
		t.Fatal(err, returned)
	}
	if err := errors.Join(x.m.Engine().Unregister(&r.Kprobe), x.m.ResetTo(t.Context(), s), x.wait(t.Context()), x.compare(p, want)); err != nil {
		t.Error(err)
	}
}

// TestGuests: generated guests do what native runs say, probed or not.
func TestGuests(t *testing.T) {
	kvmtest.Require(t)
	// In code that steps itself the emulated VMX host tells some steps twice, without a
	// probe as well.
	// QEMU's bt leaves AF at what the code before it in the same block it translated says:
	// the oracle, which stops there at other places, sees another value than the guest.
	// And it sometimes executes, in a guest of its guest, instructions that the one before them has overwritten as they were,
	// without a probe as well (seed 25: 17 of 40 runs).
	here, classes := kvmtest.DetectHost(), Classes
	if here == kvmtest.HostQEMU {
		classes &^= Rewrites
	}
	x, err := New(Options{NoSteps: here == kvmtest.HostBochs, NoBits: here == kvmtest.HostQEMU, Classes: classes})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	n := *guests
	switch {
	case n > 0:
	case kvmtest.Slow:
		n = 6
	default:
		n = 60
	}
	for seed := uint64(*first); seed < uint64(*first+n); seed++ {
		if err := x.Run(t.Context(), seed, HowOf(seed, classes)); err != nil {
			t.Fatal(err)
		}
	}
	plain, err := New(Options{NoSteps: here == kvmtest.HostBochs, NoBits: here == kvmtest.HostQEMU})
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	for _, seed := range found {
		for range 5 {
			if err := plain.Run(t.Context(), seed, Probed); err != nil {
				t.Error(err)
			}
		}
	}
	t.Logf("%+v", x.Summary())
}

// found are guests without classes that have shown what others do not.
var found = []uint64{
	3002970, // a timer interrupt was delivered twice, the second time with IF clear
}

var (
	guests = flag.Int("guests", 0, "how many guests; 0: as the host allows")
	first  = flag.Int("first", 0, "the first one's seed")
)

// TestKernelSources: the kernel that is embedded was built from these sources.
func TestKernelSources(t *testing.T) {
	want, err := os.ReadFile("kernel/kernel.sum")
	if err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	for _, name := range []string{"build.sh", "entry.S", "kernel.c", "kernel.h", "kernel.lds"} {
		b, err := os.ReadFile("kernel/" + name)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&lines, "%x  %s\n", sha256.Sum256(b), name)
	}
	if got := fmt.Sprintf("%x\n", sha256.Sum256([]byte(lines.String()))); got != string(want) {
		t.Error("kernel/kernel.elf is older than its sources: run kernel/build.sh")
	}
}

// TestSavedWhileStageFaults saves a guest whose alignment checks refuse what a stage does on a stack that is not aligned: that exception, on its way
// in or in a handler that has not handed it over, is not the guest's.
func TestSavedWhileStageFaults(t *testing.T) {
	kvmtest.Require(t)
	if here := kvmtest.DetectHost(); here == kvmtest.HostBochs || here == kvmtest.HostQEMU {
		return // their native runs differ where the generator's features do: the seed is another guest there
	}
	x, err := New(Options{Classes: All})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for range 60 {
		if err := x.Run(t.Context(), 10060986, Saved); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSavedReturnPops saves a guest while the code of a return probe runs after a return that takes an argument off the stack. The argument is
// then right below the stack pointer, where the return address of other functions is. In the snapshot the vCPU is where the function returns to.
func TestSavedReturnPops(t *testing.T) {
	kvmtest.Require(t)
	x, err := New(Options{VCPUs: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	const back, fn, argument = textVA + 0x10, 0x18, 0x5a5a5a5a
	// 00 mov $2000,%r15d; 06 push $argument; 0b call 18; 10 dec %r15d; 13 jne 06; 15 end; 18 nopl 0(%rax); 1f ret $8
	p := &Program{Text: code(t, "41 bf d0 07 00 00 68 5a 5a 5a 5a e8 08 00 00 00 41 ff cf 75 f1 0f 0b 00 0f 1f 80 00 00 00 00 c2 08 00"), Tasks: 1, Kernel: true,
		Funcs: []Func{{Name: "main", Size: fn}, {Name: "fn", Off: fn, Size: 10, Calls: true}}}
	want, err := x.runAllNative(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.boot(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	block, _, err := x.m.AllocShared(64, false)
	if err != nil {
		t.Fatal(err)
	}
	stage := func() *probe.Stage {
		var a x86.Asm
		a.Xor(4, x86.RAX, x86.RAX)
		a.Ret()
		return &probe.Stage{Code: a.Code(), Stack: 8, Block: block, Stride: 64, NoStrings: true, Counts: func(int) (handled, filtered, missed uint64) { return 0, 0, 0 }}
	}
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Addr: textVA + fn, Stage: stage()}, ReturnStage: stage(), MaxActive: 4}
	if err := errors.Join(x.m.Engine().Register(r), x.m.Engine().Optimize()); err != nil {
		t.Fatal(err)
	}
	if i, _ := x.m.Engine().Info(&r.Kprobe); !i.InGuest {
		t.Fatalf("not in the guest: %+v", i.Unoptimized)
	}
	if err := x.m.Resume(); err != nil {
		t.Fatal(err)
	}
	at, rng := map[uint64]int{}, rand.New(rand.NewPCG(1, 8))
	for x.m.Phase() == machine.PhaseRunning && at[argument] == 0 {
		time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
		s, err := x.m.Save(nil)
		if err != nil {
			t.Fatal(err)
		}
		at[s.CPUs[0].Regs.RIP]++
	}
	// Kernel code that is emulated is seen between any two instructions.
	if at[argument] != 0 || at[back] == 0 && kvmtest.DetectHost() == kvmtest.HostPVM {
		t.Errorf("%d saves are at the argument, and %d where the function returns to: %x", at[argument], at[back], at)
	}
	for x.m.Phase() == machine.PhaseRunning {
		time.Sleep(time.Millisecond)
	}
	if err := x.compare(p, want); err != nil {
		t.Error(err)
	}
}
