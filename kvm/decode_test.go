package kvm

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
)

// bytesAt says what KVM left in the exit union: little endian values by their
// offset in struct kvm_run, as gcc has it, so that the offsets here and those
// in decode are independent of each other.
type bytesAt map[int]any

// exitUnion is where the union starts in struct kvm_run.
const exitUnion = 32

func (m bytesAt) union() (u [256]byte) {
	for at, v := range m {
		dst := u[at-exitUnion:]
		switch v := v.(type) {
		case uint8:
			dst[0] = v
		case uint16:
			binary.LittleEndian.PutUint16(dst, v)
		case uint32:
			binary.LittleEndian.PutUint32(dst, v)
		case uint64:
			binary.LittleEndian.PutUint64(dst, v)
		case []byte:
			copy(dst, v)
		default:
			panic("BUG: kvm: value of no size in a test table")
		}
	}
	return u
}

func TestExitDecode(t *testing.T) {
	mapping := make([]byte, 3*4096)
	for i := range mapping {
		mapping[i] = byte(i / 16)
	}
	for _, tt := range []struct {
		name   string
		reason uint32
		raw    bytesAt
		got    func(*Exit) any
		want   any
	}{
		{
			name: "io out", reason: 2,
			raw: bytesAt{32: uint8(1), 33: uint8(2), 34: uint16(0x3f8), 36: uint32(3), 40: uint64(4096)},
			got: func(e *Exit) any { return e.IO },
			want: IOExit{Port: 0x3f8, Size: 2, Count: 3, In: false,
				Data: []byte{0, 0, 0, 0, 0, 0}},
		},
		{
			name: "io in at the very end", reason: 2,
			raw:  bytesAt{32: uint8(0), 33: uint8(1), 34: uint16(0xffff), 36: uint32(1), 40: uint64(3*4096 - 1)},
			got:  func(e *Exit) any { return e.IO },
			want: IOExit{Port: 0xffff, Size: 1, Count: 1, In: true, Data: []byte{0xff}},
		},
		{
			name: "mmio write", reason: 6,
			raw:  bytesAt{32: uint64(0xfee00300), 40: []byte{1, 2, 3, 4, 5, 6, 7, 8}, 48: uint32(8), 52: uint8(1)},
			got:  func(e *Exit) any { return e.MMIO },
			want: MMIOExit{GPA: 0xfee00300, Len: 8, Write: true, Data: [8]byte{1, 2, 3, 4, 5, 6, 7, 8}},
		},
		{
			name: "mmio read", reason: 6,
			raw:  bytesAt{32: uint64(1), 48: uint32(1)},
			got:  func(e *Exit) any { return e.MMIO },
			want: MMIOExit{GPA: 1, Len: 1},
		},
		{
			name: "debug", reason: 4,
			raw:  bytesAt{32: uint32(3), 40: uint64(0xffffffff81000000), 48: uint64(0xffff0ff1), 56: uint64(0x401)},
			got:  func(e *Exit) any { return e.Debug },
			want: DebugExit{Exception: 3, PC: 0xffffffff81000000, DR6: 0xffff0ff1, DR7: 0x401},
		},
		{
			name: "exception", reason: 1,
			raw:  bytesAt{32: uint32(13), 36: uint32(0x18)},
			got:  func(e *Exit) any { return e.Exception },
			want: ExceptionExit{Vector: 13, Code: 0x18},
		},
		{
			name: "fail entry", reason: 9,
			raw:  bytesAt{32: uint64(0x80000021), 40: uint32(7)},
			got:  func(e *Exit) any { return e.FailEntry },
			want: FailEntryExit{Reason: 0x80000021, CPU: 7},
		},
		{
			name: "system event", reason: 24,
			raw:  bytesAt{32: uint32(3), 36: uint32(2), 40: uint64(5), 48: uint64(6), 160: uint64(7)},
			got:  func(e *Exit) any { return e.SystemEvent },
			want: SystemEventExit{Type: 3, NData: 2, Data: [16]uint64{0: 5, 1: 6, 15: 7}},
		},
		{
			name: "system event with too many words", reason: 24,
			raw:  bytesAt{36: uint32(17)},
			got:  func(e *Exit) any { return e.SystemEvent },
			want: SystemEventExit{NData: 16},
		},
		{
			name: "rdmsr", reason: 29,
			raw:  bytesAt{40: uint32(2), 44: uint32(0xc0000080), 48: uint64(0)},
			got:  func(e *Exit) any { return e.MSR },
			want: MSRExit{Index: 0xc0000080, Cause: 2},
		},
		{
			name: "wrmsr", reason: 30,
			raw:  bytesAt{40: uint32(4), 44: uint32(0x10), 48: uint64(0x1122334455667788)},
			got:  func(e *Exit) any { return e.MSR },
			want: MSRExit{Index: 0x10, Cause: 4, Data: 0x1122334455667788},
		},
		{
			name: "hypercall", reason: 3,
			raw:  bytesAt{32: uint64(12), 40: uint64(1), 80: uint64(6), 96: uint32(1)},
			got:  func(e *Exit) any { return e.Hypercall },
			want: HypercallExit{Nr: 12, Args: [6]uint64{0: 1, 5: 6}, Long: true},
		},
		{
			name: "tpr access", reason: 12,
			raw:  bytesAt{32: uint64(0xfffffff0), 40: uint32(1)},
			got:  func(e *Exit) any { return e.TPRAccess },
			want: TPRAccessExit{RIP: 0xfffffff0, Write: true},
		},
		{
			name: "memory fault", reason: 39,
			raw:  bytesAt{32: uint64(8), 40: uint64(0x1000), 48: uint64(0x2000)},
			got:  func(e *Exit) any { return e.MemoryFault },
			want: MemoryFaultExit{Flags: 8, GPA: 0x1000, Size: 0x2000},
		},
		{
			name: "ioapic eoi", reason: 26,
			raw:  bytesAt{32: uint8(0x31)},
			got:  func(e *Exit) any { return e.EOIVector },
			want: uint8(0x31),
		},
		{
			name: "notify", reason: 37,
			raw:  bytesAt{32: uint32(1)},
			got:  func(e *Exit) any { return e.NotifyFlags },
			want: uint32(1),
		},
		{
			name: "intr without EINTR", reason: 10,
			got:  func(e *Exit) any { return e.Reason },
			want: ReasonInterrupted,
		},
		{
			name: "hlt", reason: 5,
			got:  func(e *Exit) any { return e.Reason },
			want: ReasonHLT,
		},
		{
			name: "xen shows its data raw", reason: 34,
			raw:  bytesAt{32: uint32(1), 40: uint32(1)},
			got:  func(e *Exit) any { return e.Raw[:9] },
			want: []byte{1, 0, 0, 0, 0, 0, 0, 0, 1},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			page := runPage{exitReason: tt.reason, flags: 2, exit: tt.raw.union()}
			var e Exit
			if err := e.decode(&page, mapping); err != nil {
				t.Fatal(err)
			}
			if got := tt.got(&e); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if e.Flags != RunBusLock {
				t.Errorf("flags %#x, want %#x", e.Flags, RunBusLock)
			}
			if len(e.Raw) != 256 {
				t.Errorf("raw data has %d bytes, want 256", len(e.Raw))
			}
		})
	}
}

func TestExitDecodeInternalError(t *testing.T) {
	insn := []byte{0xcc, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}
	for _, tt := range []struct {
		name string
		raw  bytesAt
		want []byte
	}{
		{"one byte", bytesAt{32: uint32(1), 36: uint32(3), 40: uint64(1), 48: uint8(1), 49: insn}, insn[:1]},
		{"all bytes", bytesAt{32: uint32(1), 36: uint32(3), 40: uint64(1), 48: uint8(15), 49: insn}, insn},
		{"size out of range", bytesAt{32: uint32(1), 36: uint32(3), 40: uint64(1), 48: uint8(16), 49: insn}, insn},
		{"with debug data behind", bytesAt{32: uint32(1), 36: uint32(9), 40: uint64(1), 48: uint8(2), 49: insn}, insn[:2]},
		{"size 0", bytesAt{32: uint32(1), 36: uint32(3), 40: uint64(1), 48: uint8(0), 49: insn}, nil},
		{"flag clear", bytesAt{32: uint32(1), 36: uint32(3), 40: uint64(2), 48: uint8(15), 49: insn}, nil},
		{"two words", bytesAt{32: uint32(1), 36: uint32(2), 40: uint64(1), 48: uint8(15), 49: insn}, nil},
		{"old kernel without data", bytesAt{32: uint32(1), 48: uint8(15), 49: insn}, nil},
		{"other suberror", bytesAt{32: uint32(3), 36: uint32(3), 40: uint64(1), 48: uint8(15), 49: insn}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			page := runPage{exitReason: 17, exit: tt.raw.union()}
			// What an earlier exit left must not show.
			e := Exit{Internal: InternalExit{insnLen: 15, insn: [15]byte(insn)}}
			if err := e.decode(&page, nil); err != nil {
				t.Fatal(err)
			}
			if got := e.Internal.EmulationBytes(); !cmp.Equal(got, tt.want) {
				t.Errorf("got % x, want % x", got, tt.want)
			}
		})
	}
}

func TestExitDecodeErrors(t *testing.T) {
	mapping := make([]byte, 8192)
	for _, tt := range []struct {
		name   string
		reason uint32
		raw    bytesAt
		want   string
	}{
		{"io data one byte too far", 2, bytesAt{33: uint8(1), 36: uint32(1), 40: uint64(8192)}, "outside the shared memory"},
		{"io data too long", 2, bytesAt{33: uint8(4), 36: uint32(1025), 40: uint64(4096)}, "4100 bytes at offset 0x1000"},
		{"io offset wraps", 2, bytesAt{33: uint8(1), 36: uint32(1), 40: uint64(1<<64 - 1)}, "outside the shared memory"},
		{"io of 255 times 4 Gi", 2, bytesAt{33: uint8(255), 36: uint32(1<<32 - 1), 40: uint64(0)}, "outside the shared memory"},
		{"mmio length 0", 6, bytesAt{32: uint64(0x5000), 48: uint32(0)}, "length 0 at gpa 0x5000"},
		{"mmio length 9", 6, bytesAt{48: uint32(9)}, "length 9"},
		{"unknown", 0, bytesAt{32: uint64(0x1234)}, "unknown kvm exit 0 (unknown), hardware exit reason 0x1234, data 34 12"},
		{"other architecture", 13, bytesAt{32: uint8(8), 34: uint8(9)}, "unknown kvm exit 13 (s390-sieic), data 08 00 09"},
		{"newer", 42, nil, "unknown kvm exit 42 (exit-42), no data"},
		{"ours from the kernel", 1 << 31, nil, "unknown kvm exit 2147483648"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			page := runPage{exitReason: tt.reason, exit: tt.raw.union()}
			var e Exit
			err := e.decode(&page, mapping)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got error %v, want one with %q", err, tt.want)
			}
			var unknown *UnknownExitError
			if errors.As(err, &unknown) && unknown.Raw != page.exit {
				t.Errorf("the error has other data than the exit")
			}
		})
	}
}

// Every reason is decoded or refused by intention: none of this architecture
// is an error, all others are.
func TestExitDecodeEveryReason(t *testing.T) {
	foreign := map[Reason]bool{
		ReasonUnknown: true, ReasonS390SIEIC: true, ReasonS390Reset: true, ReasonDCR: true,
		ReasonOSI: true, ReasonPAPRHcall: true, ReasonS390UControl: true, ReasonS390TSCH: true,
		ReasonEPR: true, ReasonS390STSI: true, ReasonARMNISV: true, ReasonRISCVSBI: true,
		ReasonRISCVCSR: true, ReasonLoongArchIOCSR: true, ReasonARMSEA: true,
	}
	for r := Reason(0); int(r) < NumReasons; r++ {
		page := runPage{exitReason: uint32(r)}
		page.exit[16] = 1 // a valid length for mmio
		var e Exit
		err := e.decode(&page, make([]byte, 64))
		var unknown *UnknownExitError
		if got := errors.As(err, &unknown); got != foreign[r] {
			t.Errorf("%v: error %v, want unknown = %v", r, err, foreign[r])
		}
	}
}

func FuzzExitDecode(f *testing.F) {
	f.Add(uint32(2), []byte{1, 1, 0xe9, 0, 1, 0, 0, 0, 0, 0x10}, uint16(8192))
	f.Add(uint32(2), []byte{0, 4, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, uint16(0))
	f.Add(uint32(6), []byte{0, 0, 0, 0, 1, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 0, 0, 0, 1}, uint16(1))
	f.Add(uint32(17), []byte{1, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 15, 0xcc}, uint16(1))
	f.Add(uint32(0), []byte{0xff}, uint16(1))
	f.Add(uint32(99), []byte{}, uint16(1))
	f.Fuzz(func(t *testing.T, reason uint32, raw []byte, size uint16) {
		page := runPage{exitReason: reason}
		copy(page.exit[:], raw)
		mapping := make([]byte, size)
		var e Exit
		if err := e.decode(&page, mapping); err != nil {
			if err.Error() == "" {
				t.Error("error without a text")
			}
			var unknown *UnknownExitError
			if errors.As(err, &unknown) && strings.TrimRight(hex.EncodeToString(unknown.Raw[:]), "0") !=
				strings.TrimRight(hex.EncodeToString(page.exit[:]), "0") {
				t.Error("the error lost data")
			}
			return
		}
		_ = e.String()
		switch e.Reason {
		case ReasonIO:
			if n := uint64(e.IO.Size) * uint64(e.IO.Count); uint64(len(e.IO.Data)) != n {
				t.Errorf("%d bytes of data for %d items of %d", len(e.IO.Data), e.IO.Count, e.IO.Size)
			}
		case ReasonMMIO:
			if e.MMIO.Len < 1 || e.MMIO.Len > 8 {
				t.Errorf("mmio of %d bytes", e.MMIO.Len)
			}
		case ReasonInternalError:
			if n := len(e.Internal.EmulationBytes()); n > 15 || e.Internal.NData > 16 {
				t.Errorf("%d instruction bytes, %d words", n, e.Internal.NData)
			}
		}
	})
}
