package x86

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
)

// seeds adds instructions of every class and encoding to a fuzz target.
func seeds(f *testing.F, add func(code []byte)) {
	f.Helper()
	n := 0
	readCorpus(f, func(l *line) {
		if n++; n%97 == 0 {
			add(l.bytes)
		}
	})
	for _, code := range []string{
		"e800000000", "66e90000", "67e3fe", "c20800", "ff24c500000000", "65ff1425", "f30f1efa", "d500a10807060504030201",
		"d510ffd0", "62f44c18f7c101000000", "8fe878c0c001", "2e2e2e2e2e2e2e2e2e2e2e2e2e2e90", "6666666666666666666666666666666690",
	} {
		add(unhex(f, code))
	}
}

// FuzzDecode: no panic; a length within bounds; bytes after an instruction change
// nothing; every proper prefix of it is truncated.
func FuzzDecode(f *testing.F) {
	seeds(f, func(code []byte) { f.Add(code) })
	f.Fuzz(func(t *testing.T, b []byte) {
		i, err := Decode(b)
		if err != nil {
			checkDecodeError(t, b, err)
			return
		}
		n := int(i.Len)
		if n < 1 || n > MaxLen || n > len(b) {
			t.Fatalf("% x: length %d", b, n)
		}
		if !bytes.Equal(i.Bytes(), b[:n]) || !bytes.Equal(i.AppendBytes(nil), b[:n]) {
			t.Fatalf("% x: bytes % x", b, i.Bytes())
		}
		if j, err := Decode(b[:n]); err != nil || j != i {
			t.Fatalf("% x: alone %+v, %v; want %+v", b, j, err, i)
		}
		for k := range n {
			if _, err := Decode(b[:k]); !errors.Is(err, ErrTruncated) {
				t.Fatalf("% x: %d bytes: got %v, want %v", b, k, err, ErrTruncated)
			}
		}
		checkViews(t, &i)
	})
}

// checkDecodeError: only ErrTruncated may change with more bytes.
func checkDecodeError(t *testing.T, b []byte, err error) {
	switch err {
	case ErrTruncated:
		if len(b) >= MaxLen {
			t.Fatalf("% x: truncated at %d bytes", b, len(b))
		}
	case ErrInvalid, ErrTooLong:
		if _, more := Decode(append(b[:len(b):len(b)], 0)); more != err {
			t.Fatalf("% x: got %v, with more %v", b, err, more)
		}
	default:
		t.Fatalf("% x: unknown error %v", b, err)
	}
}

// checkViews asks everything of an instruction that can be asked.
func checkViews(t *testing.T, i *Inst) {
	m, has := i.Mem()
	if i.RIPRelative() != m.RIP {
		t.Fatalf("%x: RIP-relative %v, operand %+v", i.Bytes(), i.RIPRelative(), m)
	}
	var r Regs
	if _, ok := i.Addr(0x1000, &r); ok && !has {
		t.Fatalf("%x: address without operand", i.Bytes())
	}
	var buf [3]Touch
	if touches, _ := i.AppendTouches(buf[:0], 0x1000, &r); len(touches) > len(buf) {
		t.Fatalf("%x: %d touches", i.Bytes(), len(touches))
	}
	i.Flags()
	i.KernelBoostable()
	i.Falls()
	p := Analyze(i.Bytes(), 0x1000, Options{CPL: 3})
	if p.Kind == Refuse && p.Reason == ReasonNone {
		t.Fatalf("%x: refused without a reason", i.Bytes())
	}
	if p.Kind == Emulate && i.emulation() == emuNone || p.Kind != Emulate && p.Fallback != Refuse {
		t.Fatalf("%x: plan %+v", i.Bytes(), p)
	}
	if p.Kind == Boost || p.Fallback == Boost { // it can be copied
		var dst [MaxRelocated]byte
		if _, err := Relocate(dst[:], i, 0x1000, 0x2000); err != nil && !errors.Is(err, ErrOutOfReach) {
			t.Fatalf("%x: to be moved, but %v", i.Bytes(), err)
		}
	}
}

// FuzzRelocate: a copy decodes to the same operation with the same target and
// operand, and can be moved back.
func FuzzRelocate(f *testing.F) {
	seeds(f, func(code []byte) {
		f.Add(code, uint64(0xffffffff81000000), uint64(0xffffffffc0000000))
		f.Add(code, uint64(0x401000), uint64(0x7fff0000))
	})
	f.Fuzz(func(t *testing.T, b []byte, from, to uint64) {
		i, err := Decode(b)
		if err != nil {
			return
		}
		var dst [MaxRelocated]byte
		n, err := Relocate(dst[:], &i, from, to)
		if err != nil {
			if !errors.Is(err, ErrOutOfReach) && !errors.Is(err, ErrNotMovable) || n != 0 {
				t.Fatalf("%x: %d, %v", i.Bytes(), n, err)
			}
			return
		}
		at, c := to, dst[:n]
		if i.Class() == ClassLoop { // its jump is the last of three
			c, at = dst[n-JmpLen:n], to+uint64(n-JmpLen)
		}
		j, err := Decode(c)
		if err != nil || int(j.Len) != len(c) {
			t.Fatalf("%x: copy % x: %v, length %d", i.Bytes(), dst[:n], err, j.Len)
		}
		want, ok := i.Target(from)
		if got, has := j.Target(at); has != ok || got != want {
			t.Fatalf("%x: copy % x goes to %#x, %v; want %#x, %v", i.Bytes(), dst[:n], got, has, want, ok)
		}
		if ok {
			return
		}
		if j.Opcode != i.Opcode || j.Map != i.Map || j.Enc != i.Enc || j.Prefix != i.Prefix || j.ModRM != i.ModRM || j.Imm != i.Imm {
			t.Fatalf("%x: copy % x is another instruction", i.Bytes(), dst[:n])
		}
		if i.RIPRelative() && j.RIPTarget(to) != i.RIPTarget(from) {
			t.Fatalf("%x: copy % x has its operand at %#x, want %#x", i.Bytes(), dst[:n], j.RIPTarget(to), i.RIPTarget(from))
		}
		var back [MaxRelocated]byte
		if n, err := Relocate(back[:], &j, to, from); err != nil || !bytes.Equal(back[:n], i.Bytes()) {
			t.Fatalf("%x: and back: % x, %v", i.Bytes(), back[:n], err)
		}
	})
}

// fuzzMemory is memory that answers every address below a limit.
type fuzzMemory struct {
	limit uint64
	wrote bool
}

func (m *fuzzMemory) Read(addr uint64, p []byte) error {
	if addr >= m.limit {
		return errors.New("no memory")
	}
	for k := range p {
		p[k] = byte(addr) + byte(k)*17
	}
	return nil
}

func (m *fuzzMemory) Write(addr uint64, p []byte) error {
	if addr >= m.limit {
		return errors.New("no memory")
	}
	m.wrote = true
	return nil
}

// FuzzEmulate: no panic; on error nothing has changed, and the error is one of
// two; on success RIP is at the next instruction or the instruction branches.
func FuzzEmulate(f *testing.F) {
	seeds(f, func(code []byte) { f.Add(code, bytes.Repeat(code, 20), uint8(3)) })
	f.Fuzz(func(t *testing.T, b, state []byte, cpl uint8) {
		i, err := Decode(b)
		if err != nil {
			return
		}
		i.CPL = cpl & 3
		var r Regs
		var s [19 * 8]byte
		copy(s[:], state)
		for k := range Reg64(16) {
			*r.Reg(k) = binary.LittleEndian.Uint64(s[8*k:])
		}
		r.RIP = 0xdead
		r.RFLAGS = binary.LittleEndian.Uint64(s[16*8:])
		addr := binary.LittleEndian.Uint64(s[17*8:])
		m := &fuzzMemory{limit: binary.LittleEndian.Uint64(s[18*8:])}
		before := r
		emulate := i.Emulate
		if i.data() != NoData {
			emulate = i.EmulateData
		}
		if err := emulate(addr, &r, m); err != nil {
			var merr *MemoryError
			if !errors.Is(err, ErrCannotEmulate) && !errors.As(err, &merr) {
				t.Fatalf("%x: %v", i.Bytes(), err)
			}
			if r != before || m.wrote {
				t.Fatalf("%x: %v, but state %+v, was %+v, wrote %v", i.Bytes(), err, r, before, m.wrote)
			}
			return
		}
		if m.wrote && i.data() == LoadsData {
			t.Fatalf("%x: a load has written", i.Bytes())
		}
		switch i.Class() {
		case ClassOther, ClassNop, ClassInterruptFlag:
			if r.RIP != addr+uint64(i.Len) {
				t.Fatalf("%x: RIP %#x", i.Bytes(), r.RIP)
			}
		}
		fl := i.Flags()
		if d := uint32(r.RFLAGS^before.RFLAGS) &^ (fl.Writes | FlagRF); d != 0 {
			t.Fatalf("%x: changed flags %#x", i.Bytes(), d)
		}
	})
}
