package machine

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/probe"
)

var (
	formsSeed = flag.Uint64("forms.seed", 1, "seed of TestTransparency")
	formsMax  = flag.Int("forms.max", formsUsual, "forms per privilege level of TestTransparency")
)

const (
	// formsUsual is how many forms per privilege level run where nothing else is asked.
	formsUsual = 400

	// formsWant is how many distinct forms must have run probed and unprobed then, both
	// levels together.
	formsWant = 500
)

// formRun is a guest that runs forms.
type formRun struct {
	t       *testing.T
	m       *Machine
	ctx     context.Context // of calls
	cpl     int
	base    uint64
	vectors vectors
}

// bootForms boots the built-in guest with the forms in it.
func bootForms(t *testing.T, cpl int, v vectors, forms []*form) *formRun {
	t.Helper()
	return bootFormsOf(t, cpl, v, forms, elf.PF_R|elf.PF_X)
}

// bootFormsOf is bootForms with the forms in a segment that may be writable.
func bootFormsOf(t *testing.T, cpl int, v vectors, forms []*form, access elf.ProgFlag) *formRun {
	t.Helper()
	var code [][]byte
	var names []string
	for _, f := range forms {
		code, names = append(code, f.code), append(names, f.name)
	}
	r := &formRun{t: t, ctx: patience.Context(t), cpl: cpl, base: formsKernelCode, vectors: v}
	if cpl == 3 {
		r.base = formsUserCode
	}
	img := formsImageOf(t, cpl, layout(r.base, v, code), names, access)
	// Plans are what is compared here; jumps have TestOptimizeEverySite.
	m, err := New(Config{Image: img, Cmdline: "bench quiet", Tick: -1, Probe: probe.Options{OptimizeDelay: -1}})
	if err != nil {
		t.Fatal(err)
	}
	r.m = m
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	if v == vectorAVX {
		r.enableAVX()
	}
	return r
}

// enableAVX gives the guest what its own kernel leaves off: CR4.OSXSAVE, and
// x87, SSE and AVX state in XCR0 (SDM Vol. 1, 13.3). It does so from outside,
// once the guest has come to its user program.
func (r *formRun) enableAVX() {
	r.t.Helper()
	hot, err := r.m.Image().Lookup("user_hot")
	if err == nil {
		err = r.call(hot.Addr)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	err = r.m.Stop(func(probe.World) error {
		v := r.m.vcpus[0]
		v.sregs.CR4 |= 1 << 18
		v.kvm.SetSregsDirty()
		var xcrs kvm.XCRs
		if err := v.kvm.GetXCRs(&xcrs); err != nil {
			return err
		}
		xcrs.NrXRCS = 1
		xcrs.Registers[0].Value = 7
		return v.kvm.SetXCRs(&xcrs)
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *formRun) close() {
	if err := r.m.Close(context.Background()); err != nil {
		r.t.Errorf("close: %v", err)
	}
}

// data returns the address of the block of registers.
func (r *formRun) data() guest.GVA { return guest.GVA(r.base + formsDataOff) }

// formResult is everything a form left behind.
type formResult struct {
	regs  [16]uint64
	flags uint64
	taken byte
	xmm   [16 * 32]byte
	arena [formsDataSize - formsArena]byte
}

// differ says in what b differs from a, or "".
func (a *formResult) differ(b *formResult) string {
	for n := range a.regs {
		if a.regs[n] != b.regs[n] {
			return fmt.Sprintf("register %d is %#x, want %#x", n, b.regs[n], a.regs[n])
		}
	}
	switch {
	case a.flags != b.flags:
		return fmt.Sprintf("flags are %#x, want %#x", b.flags, a.flags)
	case a.taken != b.taken:
		return fmt.Sprintf("branch taken: %d, want %d", b.taken, a.taken)
	case a.xmm != b.xmm:
		return fmt.Sprintf("vector registers are % x, want % x", b.xmm, a.xmm)
	}
	for k := range a.arena {
		if a.arena[k] != b.arena[k] {
			return fmt.Sprintf("memory differs from offset %#x of the arena on: % x, want % x", k, b.arena[k:min(k+16, len(b.arena))], a.arena[k:min(k+16, len(a.arena))])
		}
	}
	return ""
}

var errFormDied = errors.New("the guest does not survive the form unprobed")

// run executes form i from its state over the memory that seed makes.
func (r *formRun) run(f *form, i int, seed uint64) (*formResult, error) {
	le := binary.LittleEndian
	mem := make([]byte, formsDataSize)
	rnd := rand.New(rand.NewPCG(seed, uint64(i)))
	for k := range mem {
		mem[k] = byte(rnd.Uint32())
	}
	clear(mem[:blkEnd])
	for n, v := range f.regs {
		le.PutUint64(mem[blkIn+8*n:], v)
	}
	le.PutUint64(mem[blkFlags:], f.fl)
	le.PutUint64(mem[blkTarget:], r.base+formsFirst+uint64(i)*formSlot)
	for k := range 16 * 32 {
		mem[blkXIn+k] = byte(rnd.Uint32())
	}
	for off, v := range f.mem {
		le.PutUint64(mem[off:], v)
	}
	for off := 0; off < len(mem); off += guest.PageSize {
		if err := r.m.WriteMemory(0, r.data()+guest.GVA(off), mem[off:off+guest.PageSize]); err != nil {
			return nil, err
		}
	}
	if err := r.call(guest.GVA(r.base)); err != nil {
		return nil, err
	}
	if err := r.m.Peek(r.data(), mem); err != nil {
		return nil, err
	}
	o := &formResult{flags: le.Uint64(mem[blkOutFl:]), taken: mem[blkTaken]}
	for n := range o.regs {
		o.regs[n] = le.Uint64(mem[blkOut+8*n:])
	}
	copy(o.xmm[:], mem[blkXOut:])
	copy(o.arena[:], mem[formsArena:])
	return o, nil
}

// call runs fn once at the run's privilege level.
func (r *formRun) call(fn guest.GVA) error {
	if r.cpl == 0 {
		_, err := r.m.Call(r.ctx, fn)
		if err != nil && r.ctx.Err() == nil {
			return errors.Join(errFormDied, err)
		}
		return err
	}
	box, err := r.m.Image().Lookup("user_bench_mailbox")
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	var b [64]byte
	if err := r.m.Peek(box.Addr, b[:]); err != nil {
		return err
	}
	request := le.Uint64(b[:]) + 1
	le.PutUint64(b[16:], uint64(fn))
	le.PutUint64(b[24:], 1) // n
	if err := r.m.WriteMemory(0, box.Addr+16, b[16:32]); err != nil {
		return err
	}
	le.PutUint64(b[:], request)
	if err := r.m.WriteMemory(0, box.Addr, b[:8]); err != nil {
		return err
	}
	for {
		if err := r.m.Peek(box.Addr+8, b[:8]); err != nil {
			return err
		}
		if le.Uint64(b[:]) == request {
			return nil
		}
		if s := r.m.State(); s.Phase != PhaseRunning {
			return errors.Join(errFormDied, fmt.Errorf("the guest is %s", s.Phase))
		}
		if err := r.ctx.Err(); err != nil {
			return err
		}
		breathe()
	}
}

// TestTransparency runs every form unprobed and probed from the same random
// state, and compares all registers, flags and memory: with one probe, with one
// that has a post handler, and with three. What the host cannot execute
// unprobed (an emulator that lacks the instruction) is counted, not compared.
func TestTransparency(t *testing.T) {
	kvmtest.Require(t)
	t.Logf("-forms.seed=%d -forms.max=%d", *formsSeed, *formsMax)
	max := *formsMax
	if testing.Short() {
		max = 60
	} else if max == formsUsual {
		max = kvmtest.ChooseSize(100, max)
	}
	ran := 0
	for _, part := range []struct {
		what string
		cpl  int
		v    vectors
		want func(*x86.Inst) bool
	}{
		{"kernel code", 0, vectorNone, func(i *x86.Inst) bool { return runnable(i, 0) }},
		{"user code", 3, vectorSSE, func(i *x86.Inst) bool { return runnable(i, 3) }},
		{"user code, AVX and BMI", 3, vectorAVX, runnableVEX},
	} {
		rep, err := host.Calibrate(context.Background(), "")
		if err != nil {
			t.Fatal(err)
		}
		rnd := rand.New(rand.NewPCG(*formsSeed, uint64(part.cpl)))
		forms := loadForms(t, rnd, part.cpl, max, part.want)
		n, plans, dead := runForms(t, part.cpl, part.v, forms)
		t.Logf("%s (int3: %s): %d of %d forms are transparent, by plan %v; this host cannot execute %d: %v",
			part.what, rep.Traps.CPL(uint8(part.cpl)).Int3, n, len(forms), plans, len(dead), dead)
		ran += n
	}
	if max >= formsUsual && ran < formsWant {
		t.Errorf("only %d forms were compared, want at least %d", ran, formsWant)
	}
}

func runForms(t *testing.T, cpl int, v vectors, forms []*form) (n int, plans map[string]int, dead []string) {
	plans = map[string]int{}
	r := bootForms(t, cpl, v, forms)
	defer func() { r.close() }()
	nop := func(*probe.Context) int { return 0 }
	post := func(*probe.Context) {}
	for i, f := range forms {
		seed := *formsSeed
		want, err := r.run(f, i, seed)
		if errors.Is(err, errFormDied) {
			dead = append(dead, f.text)
			r.close()
			r = bootForms(t, cpl, v, forms)
			continue
		}
		if err != nil {
			t.Fatalf("%s (% x): %v", f.text, f.code, err)
		}
		again, err := r.run(f, i, seed)
		if err != nil || want.differ(again) != "" {
			t.Fatalf("%s (% x) is not deterministic: %v %s", f.text, f.code, err, want.differ(again))
		}
		good := true
		for _, set := range [][]*probe.Kprobe{
			{{Symbol: f.name, Pre: nop}},
			{{Symbol: f.name, Pre: nop, Post: post}},
			{{Symbol: f.name, Pre: nop}, {Symbol: f.name, Post: post}, {Symbol: f.name, Pre: nop, Filter: func(*probe.Context) bool { return false }}},
		} {
			e := r.m.Engine()
			if err := e.Register(probe.Probes(set)...); err != nil {
				var pe *probe.Error
				if errors.As(err, &pe) && pe.Code == probe.CodeHostCannot {
					t.Logf("%s: %v", f.text, err)
					good = false
					break
				}
				t.Fatalf("%s (% x): %v", f.text, f.code, err)
			}
			info, _ := e.Info(set[0])
			got, err := r.run(f, i, seed)
			s, _, _ := e.Stats(set[0])
			if uerr := e.Unregister(set...); uerr != nil {
				t.Fatalf("%s: unregister: %v", f.text, uerr)
			}
			switch {
			case err != nil:
				t.Errorf("%s (% x) with %d probes, %s: %v", f.text, f.code, len(set), info.Plan, err)
			case want.differ(got) != "":
				t.Errorf("%s (% x) with %d probes, %s: %s", f.text, f.code, len(set), info.Plan, want.differ(got))
			case s.Hits != 1:
				t.Errorf("%s (% x): %d hits, want 1", f.text, f.code, s.Hits)
			default:
				if len(set) == 1 && set[0].Post == nil {
					plans[info.Plan]++
				}
				continue
			}
			good = false
			if err != nil {
				r.close()
				r = bootForms(t, cpl, v, forms)
				break
			}
		}
		var text [formSlot]byte
		if err := r.m.Peek(guest.GVA(r.base+formsFirst+uint64(i)*formSlot), text[:]); err != nil || !bytes.HasPrefix(text[:], f.code) {
			t.Errorf("%s: the text is % x after the probes, want % x (%v)", f.text, text[:len(f.code)], f.code, err)
		}
		if good {
			n++
		}
	}
	return n, plans, dead
}
