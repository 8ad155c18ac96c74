package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync"
	"testing"
)

func TestReadWrite(t *testing.T) {
	tests := []struct {
		name  string
		va    GVA
		n     int
		write bool
		user  bool
		err   PageFaultError
	}{
		{"nothing, anywhere", 1 << 47, 0, true, false, PageFaultError{}},
		{"a whole page", 0, 4096, true, false, PageFaultError{}},
		{"across a page", 0xffc, 8, true, false, PageFaultError{}},
		{"two pages", 0, 8192, true, false, PageFaultError{}},
		{"into a hole", 0x1ffc, 8, true, false, PageFaultError{0x2000, 1, FaultNotPresent}},
		{"read into a hole", 0x1ffc, 8, false, false, PageFaultError{0x2000, 1, FaultNotPresent}},
		{"read-only", 0x3000, 1, true, false, PageFaultError{0x3000, 1, FaultNotWritable}},
		{"read of read-only", 0x3000, 4096, false, false, PageFaultError{}},
		{"outside memory", 0x6000, 1, false, false, PageFaultError{0x6000, 0, FaultNoMemory}},
		{"in a 2 MiB page", 0x200000 + 31*4096, 4096, false, false, PageFaultError{}},
		{"2 MiB page beyond memory", 0x200000 + 32*4096 - 4, 8, false, false, PageFaultError{0x200000 + 32*4096, 0, FaultNoMemory}},
		{"CPL3, supervisor page", 0, 1, false, true, PageFaultError{0, 1, FaultNotUser}},
		{"CPL3, user page", 0x4000, 4096, true, true, PageFaultError{}},
		{"CPL3, off a user page", 0x4ffc, 8, true, true, PageFaultError{0x5000, 1, FaultNotUser}},
		{"non-canonical", 1 << 47, 1, false, false, PageFaultError{1 << 47, 0, FaultNonCanonical}},
		{"around the end of the address space", 0xfffffffffffffffc, 8, true, false, PageFaultError{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := sampleTables(t)
			as := NewAddressSpace(p.mem, 0x1000)
			if tt.user {
				as = as.AsUser()
			}
			before := bytes.Clone(p.host)
			data := bytes.Repeat([]byte{0xa5}, tt.n)
			var err error
			if tt.write {
				err = as.Write(tt.va, data)
			} else {
				err = as.Read(tt.va, data)
			}
			if tt.err.Reason != 0 {
				var pf *PageFaultError
				if !errors.As(err, &pf) || *pf != tt.err {
					t.Fatalf("got %v, want %v", err, &tt.err)
				}
				if !bytes.Equal(before, p.host) {
					t.Error("a failed access changed memory")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := mustRead(t, as, tt.va, tt.n); !bytes.Equal(got, data) {
				t.Errorf("read back % x", got)
			}
		})
	}
}

func TestPokeWritesReadOnly(t *testing.T) {
	p := sampleTables(t)
	as := NewAddressSpace(p.mem, 0x1000)
	if err := as.Poke(0x3ffe, []byte{1, 2}); err != nil {
		t.Fatal(err)
	}
	if got := p.host[0x7ffe:0x8000]; got[0] != 1 || got[1] != 2 {
		t.Errorf("memory % x", got)
	}
	if err := as.Poke(0x2000, []byte{1}); err == nil {
		t.Error("poke of an unmapped page succeeded")
	}
}

func TestUint64(t *testing.T) {
	p := sampleTables(t)
	as := NewAddressSpace(p.mem, 0x1000)
	binary.LittleEndian.PutUint64(p.host[0x5ff8:], 0x1122334455667788)
	binary.LittleEndian.PutUint64(p.host[0x6000:], 0x99aabbccddeeff00)
	for _, tt := range []struct {
		va   GVA
		want uint64
	}{{0xff8, 0x1122334455667788}, {0x1000, 0x99aabbccddeeff00}, {0xffc, 0xddeeff0011223344}} {
		if got, err := as.Uint64(tt.va); err != nil || got != tt.want {
			t.Errorf("Uint64(%v) = %#x, %v; want %#x", tt.va, got, err, tt.want)
		}
	}
	for _, va := range []GVA{0x2000, 0x1ffc, 0x6000, 1 << 47} {
		if got, err := as.Uint64(va); err == nil {
			t.Errorf("Uint64(%v) = %#x, want an error", va, got)
		}
	}
}

// The guest may write the value and the tables while the host reads: a word
// that is always stored whole is always read whole.
func TestUint64WhileItChanges(t *testing.T) {
	p := sampleTables(t)
	as := NewAddressSpace(p.mem, 0x1000)
	const a, b = 0x1111111111111111, 0x2222222222222222
	var wg sync.WaitGroup
	stop := make(chan struct{})
	storeWord(p.mem.Regions(), 0x5008, a)
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				storeWord(p.mem.Regions(), 0x5008, []uint64{a, b}[i%2])
				storeWord(p.mem.Regions(), 4*PageSize, []uint64{5<<12 | tabPW, 5<<12 | tabPWU}[i%2])
			}
		}
	})
	for range 20000 {
		if v, err := as.Uint64(8); err != nil || v != a && v != b {
			t.Errorf("read %#x, %v", v, err)
			break
		}
	}
	close(stop)
	wg.Wait()
}

func TestSetUint64(t *testing.T) {
	p := sampleTables(t)
	as := NewAddressSpace(p.mem, 0x1000)
	for _, va := range []GVA{0xff8, 0x1000, 0xffc, 0x4000} {
		if err := as.setUint64(va, 0x1122334455667788); err != nil {
			t.Errorf("setUint64(%v): %v", va, err)
		}
		if got := mustRead(t, as, va, 8); !bytes.Equal(got, []byte{0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11}) {
			t.Errorf("setUint64(%v) wrote % x", va, got)
		}
	}
	for va, want := range map[GVA]PageFaultError{
		0x3000: {0x3000, 1, FaultNotWritable},
		0x2000: {0x2000, 1, FaultNotPresent},
		0x6000: {0x6000, 0, FaultNoMemory},
		0x1ffc: {0x2000, 1, FaultNotPresent},
	} {
		var pf *PageFaultError
		if err := as.setUint64(va, 1); !errors.As(err, &pf) || *pf != want {
			t.Errorf("setUint64(%v): %v, want %v", va, err, &want)
		}
	}
}

func TestAccessAllocatesNothing(t *testing.T) {
	p := sampleTables(t)
	as := NewAddressSpace(p.mem, 0x1000)
	var b [32]byte
	for name, f := range map[string]func() error{
		"Translate": func() error { _, err := as.Translate(0x10); return err },
		"Read":      func() error { return as.Read(0xff8, b[:]) },
		"Write":     func() error { return as.Write(0xff8, b[:]) },
		"Uint64":    func() error { _, err := as.Uint64(0x10); return err },
		"SetUint64": func() error { return as.setUint64(0x10, 1) },
		"Patch":     func() error { return NewText(as).Patch(0xff8, b[:], b[:]) },
	} {
		var err error
		if n := testing.AllocsPerRun(100, func() { err = f() }); n != 0 || err != nil {
			t.Errorf("%s: %v allocations, %v", name, n, err)
		}
	}
}

func BenchmarkTranslate(b *testing.B) {
	mem, _, st := bootSound(b, BootOptions{VCPUs: 1, RAM: 16 << 20})
	as := NewAddressSpace(mem, st.Root)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := as.Translate(testKernel + 0x123); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRead8(b *testing.B) {
	mem, _, st := bootSound(b, BootOptions{VCPUs: 1, RAM: 16 << 20})
	as := NewAddressSpace(mem, st.Root)
	var p [8]byte
	b.ReportAllocs()
	for b.Loop() {
		if err := as.Read(testKernel+0x120, p[:]); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUint64(b *testing.B) {
	mem, _, st := bootSound(b, BootOptions{VCPUs: 1, RAM: 16 << 20})
	as := NewAddressSpace(mem, st.Root)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := as.Uint64(testKernel + 0x120); err != nil {
			b.Fatal(err)
		}
	}
}
