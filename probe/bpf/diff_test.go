//go:build linux && amd64

package bpf

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
)

// rig runs programs in both back ends, each with maps of its own.
type rig struct {
	n    *native
	host []*Map
	own  []*Map

	refused, hostOnly, ran, small int
	faults                        [numFaults]int
}

const rigCPUs = 2

func newRig(t testing.TB) *rig {
	return &rig{n: newNative(t)}
}

// fresh makes new maps.
func (r *rig) fresh(t testing.TB) {
	r.n.reset()
	r.host, r.own = nil, nil
	for _, s := range genSpecs() {
		a, err := NewMap(s, rigCPUs, Heap{})
		if err != nil {
			t.Fatal(err)
		}
		b, err := NewMap(s, rigCPUs, r.n)
		if err != nil {
			t.Fatal(err)
		}
		r.host, r.own = append(r.host, a), append(r.own, b)
	}
}

// compare runs a generated program in both back ends and reports every
// difference: result, fault, stack, context and every byte of the maps.
func (r *rig) compare(t testing.TB, prog []Insn, kind Kind, runs int) {
	r.compareAs(t, prog, kind, runs, false)
	r.compareAs(t, prog, kind, runs, true)
}

// compareAs is compare with small programs compiled as such, or like all others.
func (r *rig) compareAs(t testing.TB, prog []Insn, kind Kind, runs int, full bool) {
	r.fresh(t)
	const budget = 3000
	a, err := New(Spec{Kind: kind, Insns: prog, Maps: r.host, Budget: budget})
	if err != nil {
		if ce := (*CheckError)(nil); !errors.As(err, &ce) {
			t.Fatal(err)
		}
		r.refused++
		return
	}
	b, err := New(Spec{Kind: kind, Insns: prog, Maps: r.own, Budget: budget})
	if err != nil {
		t.Fatal(err)
	}
	const cpu = 1
	code, err := r.n.load(b, Layout{Fixups: true, noGuest: true, full: full, Rejects: true}, BlockConfig{CPU: cpu}, 256)
	if host := (*HostOnlyError)(nil); errors.As(err, &host) {
		r.hostOnly++
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if code.info.Small {
		r.small++
	} else if !full && kind != Raw {
		return // the other way is the same
	}
	v := NewVM(a, cpu)
	rejects := uint64(0)
	for i := range v.stack {
		v.stack[i] = byte(i)
		code.block.Bytes[blkStack+i] = byte(i)
	}
	ctx := alignedBytes(RegsSize)
	for i := range ctx {
		ctx[i] = byte(3 * i)
	}
	ctx2 := bytes.Clone(ctx)
	for run := range runs {
		got0, err0 := v.Run(ctx, NoEnv{})
		got1, err1 := code.run(ctx2)
		f0, f1 := faultOf(t, err0), faultOf(t, err1)
		r.ran++
		r.faults[f0.Code]++
		if got0 != got1 || f0 != f1 {
			t.Fatalf("run %d: interpreter %#x %v, compiled %#x %v\n%s", run, got0, err0, got1, err1, listing(prog))
		}
		if !bytes.Equal(ctx, ctx2) {
			t.Fatalf("run %d: contexts differ\n%s", run, listing(prog))
		}
		if got0 == 0 {
			rejects++
		}
		if n := BlockRejects(code.block); n != rejects {
			t.Fatalf("run %d: %d rejects, want %d\n%s", run, n, rejects, listing(prog))
		}
		if s := code.block.Bytes[blkStack:][:StackSize]; !code.info.Small && !bytes.Equal(v.stack, s) {
			t.Fatalf("run %d: stacks differ\n%s", run, listing(prog))
		}
		for i := range r.host {
			if !bytes.Equal(r.host[i].area.Bytes, r.own[i].area.Bytes) {
				t.Fatalf("run %d: maps %s differ\n%s", run, r.host[i].spec.Name, listing(prog))
			}
		}
	}
}

func faultOf(t testing.TB, err error) Fault {
	t.Helper()
	if err == nil {
		return Fault{}
	}
	f := (*Fault)(nil)
	if !errors.As(err, &f) {
		t.Fatal(err)
	}
	return *f
}

func listing(prog []Insn) string {
	var b bytes.Buffer
	for pc, i := range prog {
		b.WriteString(pad(pc) + i.String() + "\n")
	}
	return b.String()
}

func pad(n int) string {
	s := []byte("     : ")
	for i := 4; n > 0 || i == 4; i-- {
		s[i] = byte('0' + n%10)
		n /= 10
	}
	return string(s)
}

// FuzzBackends runs generated programs in the interpreter and compiled, and
// wants the same of both.
func FuzzBackends(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(randomBytes(seed, 300), byte(seed))
		f.Add(randomBytes(seed, 300), byte(8+seed))
	}
	r := newRig(f)
	f.Fuzz(func(t *testing.T, src []byte, kind byte) {
		r.compare(t, RandomProgram(src[:min(len(src), 2000)], kind&8 != 0), Kind(kind&7%3), 3)
	})
}

// TestBackendsAgree is the fuzzer with fixed random programs.
func TestBackendsAgree(t *testing.T) {
	r := newRig(t)
	const n = 3000 // FuzzBackends goes on from here
	for seed := range uint64(n) {
		r.compare(t, RandomProgram(randomBytes(seed, 400), false), Kind(seed%3), 3)
		r.compare(t, RandomProgram(randomBytes(seed, 60+int(seed%200)), true), Kprobe, 3)
	}
	if r.small < n/3 {
		t.Errorf("only %d of %d small programs were compiled as such", r.small, n)
	}
	t.Logf("%d programs: %d small, %d refused, %d host only, %d runs, faults %v", n, r.small, r.refused, r.hostOnly, r.ran, r.faults)
	if r.ran < n || r.faults[NoFault] < r.ran/20 {
		t.Errorf("of %d programs %d were refused and %d host only; %d of %d runs came to their end: the generator tests too little",
			n, r.refused, r.hostOnly, r.faults[NoFault], r.ran)
	}
}

func randomBytes(seed uint64, n int) []byte {
	rng := rand.New(rand.NewPCG(seed, 7))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}
