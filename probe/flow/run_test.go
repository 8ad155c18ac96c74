package flow

import (
	"debug/elf"
	"errors"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// overlay is memory in which every byte that was not written has a value that
// depends on its address only.
type overlay map[uint64]byte

func (o overlay) Read(addr uint64, p []byte) error {
	for k := range p {
		a := addr + uint64(k)
		b, ok := o[a]
		if !ok {
			b = byte(a * 0x9e3779b97f4a7c15 >> 56)
		}
		p[k] = b
	}
	return nil
}

func (o overlay) Write(addr uint64, p []byte) error {
	for k, b := range p {
		o[addr+uint64(k)] = b
	}
	return nil
}

// run emulates code at address addr from its beginning until it leaves it, or returns
// to its beginning; false if an instruction is not emulated.
func run(t *testing.T, code []byte, addr uint64, r *x86.Regs, m overlay) bool {
	t.Helper()
	r.RIP = addr
	for n := 0; n < 64; n++ {
		off := r.RIP - addr
		p := x86.Analyze(code[off:], r.RIP, x86.Options{})
		if p.Kind != x86.Emulate {
			return false
		}
		if err := p.Inst.Emulate(r.RIP, r, m); errors.Is(err, x86.ErrCannotEmulate) {
			return false
		} else if err != nil {
			t.Fatal(err)
		}
		if r.RIP == addr || r.RIP-addr >= uint64(len(code)) {
			return true
		}
	}
	t.Fatalf("% x does not end", code)
	return false
}

// TestCopiesRun runs every region of the built-in guest whose instructions can be
// emulated, in its place and as a copy elsewhere, with random registers: both end in
// the same state and, except for the jump back, at the same address.
func TestCopiesRun(t *testing.T) {
	file, err := elf.Open("../../guest/builtin/builtin.elf")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	syms, err := file.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(6, 2))
	ran, calls := 0, 0
	for _, s := range syms {
		if elf.ST_TYPE(s.Info) != elf.STT_FUNC || int(s.Section) >= len(file.Sections) || s.Size == 0 {
			continue
		}
		sec := file.Sections[s.Section]
		body := make([]byte, s.Size)
		if _, err := sec.ReadAt(body, int64(s.Value-sec.Addr)); err != nil {
			t.Fatal(err)
		}
		f := Analyze(Input{Addr: s.Value, Code: body})
		for _, i := range f.Insts() {
			reg, no := f.Region(i.Off, OursCalls)
			if no != nil {
				continue
			}
			for range 8 {
				to := s.Value + uint64(rng.IntN(1<<28)) + 1<<20
				if compareRuns(t, rng, reg, body[i.Off:][:reg.Len], to) {
					ran++
					if reg.Call {
						calls++
					}
				}
			}
		}
	}
	if ran < 10000 || calls < 1000 {
		t.Errorf("only %d runs, %d with a call", ran, calls)
	}
	t.Logf("%d runs, %d with a call", ran, calls)
}

// compareRuns runs one region in both places; false when it cannot be emulated.
func compareRuns(t *testing.T, rng *rand.Rand, reg Region, body []byte, to uint64) bool {
	t.Helper()
	c, starts, err := reg.AppendCopy(nil, to)
	if err != nil {
		t.Fatalf("%#x: %v", reg.Addr, err)
	}
	r := x86.Regs{RFLAGS: 2 | rng.Uint64()&0xad5}
	for k := x86.RAX; k <= x86.R15; k++ {
		*r.Reg(k) = rng.Uint64() >> rng.IntN(64)
	}
	was, now := r, r
	a, b := overlay{}, overlay{}
	if !run(t, body, reg.Addr, &was, a) || !run(t, c, to, &now, b) {
		return false
	}
	if was.RIP == reg.Addr+uint64(reg.Len) && now.RIP == to+uint64(len(c)) {
		now.RIP = was.RIP
	}
	if was != now || !maps.Equal(a, b) {
		t.Errorf("%#x: % x as % x at %v:\nbefore %x\nin place %x\ncopy %x", reg.Addr, body, c, starts, r, was, now)
	}
	return true
}
