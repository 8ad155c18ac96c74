package guest

import (
	"bytes"
	"errors"
	"testing"
)

func TestPatch(t *testing.T) {
	long := bytes.Repeat([]byte{0x90}, maxPatch+1)
	tests := []struct {
		name     string
		va       GVA
		old, new []byte
		mismatch []byte // what TextMismatchError shows
		fault    FaultReason
		fails    bool
	}{
		{name: "one byte", va: 0x10, old: []byte{0}, new: []byte{0xcc}},
		{name: "jump", va: 0x10, old: make([]byte, 5), new: []byte{0xe9, 1, 2, 3, 4}},
		{name: "last byte of a page", va: 0xfff, old: []byte{0}, new: []byte{0xcc}},
		{name: "first byte in one page", va: 0xfff, old: make([]byte, 5), new: []byte{0xe9, 1, 2, 3, 4}},
		{name: "last byte in the next page", va: 0xffc, old: make([]byte, 5), new: []byte{0xe9, 1, 2, 3, 4}},
		{name: "read-only page", va: 0x3000, old: make([]byte, 2), new: []byte{1, 2}},
		{name: "longest", va: 0xff0, old: make([]byte, maxPatch), new: long[:maxPatch]},
		{name: "other bytes", va: 0x10, old: []byte{0, 1}, new: []byte{1, 2}, mismatch: []byte{0, 0}},
		{name: "other bytes in the next page", va: 0xfff, old: []byte{0, 1}, new: []byte{1, 2}, mismatch: []byte{0, 0}},
		{name: "not mapped", va: 0x2000, old: []byte{0}, new: []byte{1}, fault: FaultNotPresent},
		{name: "tail not mapped", va: 0x1ffd, old: make([]byte, 5), new: make([]byte, 5), fault: FaultNotPresent},
		{name: "outside memory", va: 0x6000, old: []byte{0}, new: []byte{1}, fault: FaultNoMemory},
		{name: "empty", va: 0x10, fails: true},
		{name: "lengths differ", va: 0x10, old: []byte{0}, new: []byte{1, 2}, fails: true},
		{name: "too long", va: 0x10, old: make([]byte, maxPatch+1), new: long, fails: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := sampleTables(t)
			as := NewAddressSpace(p.mem, 0x1000)
			before := bytes.Clone(p.host)
			err := NewText(as).Patch(tt.va, tt.old, tt.new)
			var tm *TextMismatchError
			var pf *PageFaultError
			switch {
			case tt.mismatch != nil:
				if !errors.As(err, &tm) || tm.Addr != tt.va || !bytes.Equal(tm.Got, tt.mismatch) || !bytes.Equal(tm.Want, tt.old) {
					t.Errorf("got %v", err)
				}
			case tt.fault != 0:
				if !errors.As(err, &pf) || pf.Reason != tt.fault {
					t.Errorf("got %v, want %v", err, tt.fault)
				}
			case tt.fails:
				if err == nil {
					t.Error("no error")
				}
			case err != nil:
				t.Error(err)
			default:
				if got := mustRead(t, as, tt.va, len(tt.new)); !bytes.Equal(got, tt.new) {
					t.Errorf("text is % x", got)
				}
				if err := NewText(as).Patch(tt.va, tt.new, tt.old); err != nil {
					t.Error(err)
				}
			}
			if !bytes.Equal(before, p.host) {
				t.Error("memory is not what it was")
			}
		})
	}
}

// FuzzPatch runs a series of patches on guest text and on a plain byte slice.
func FuzzPatch(f *testing.F) {
	f.Add([]byte{0xff, 0x0f, 5, 1, 0x10, 0, 1, 0, 0xfe, 0x0f, 64, 9})
	f.Add([]byte{0, 0, 1, 0xcc, 0, 0, 5, 0xe9, 1, 0, 2, 0x80, 0xff, 0x1f, 2, 3})
	f.Fuzz(func(t *testing.T, ops []byte) {
		p := newPoke(t, 8)
		p.set(1, 0, 2<<12|tabP)
		p.set(2, 0, 3<<12|tabP)
		p.set(3, 0, 4<<12|tabP)
		p.set(4, 0, 6<<12|tabP) // two pages, not in the order of their frames
		p.set(4, 1, 5<<12|tabP)
		text := NewText(NewAddressSpace(p.mem, 0x1000))
		model := make([]byte, 2*PageSize)
		// Each operation: offset (2 bytes), length, first new byte; an odd one
		// expects a wrong byte somewhere.
		for ; len(ops) >= 4; ops = ops[4:] {
			off, n := int(ops[0])|int(ops[1])<<8, int(ops[2])
			fresh := code(ops[3], n)
			old := make([]byte, n)
			inside := off+n <= len(model)
			if inside {
				copy(old, model[off:])
				if n > 0 && ops[3]&1 != 0 {
					old[int(ops[3])%n] ^= 0x40
				}
			}
			ok := inside && n > 0 && n <= maxPatch && bytes.Equal(old, model[off:off+n])
			if err := text.Patch(GVA(off), old, fresh); (err == nil) != ok {
				t.Fatalf("patch of %d bytes at %#x: %v, want success %v", n, off, err, ok)
			}
			if ok {
				copy(model[off:], fresh)
			}
			if !bytes.Equal(model[:PageSize], p.host[6*PageSize:7*PageSize]) || !bytes.Equal(model[PageSize:], p.host[5*PageSize:6*PageSize]) {
				t.Fatalf("text differs from the model after a patch of %d bytes at %#x", n, off)
			}
		}
	})
}
