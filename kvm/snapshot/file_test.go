package snapshot

import (
	"bytes"
	"errors"
	"hash/crc32"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing" // keeps the target at work
	"github.com/guestprobe/guestprobe/kvm"
)

// sample is a snapshot with something of everything.
func sample() *Snapshot {
	s := &Snapshot{
		Config: Config{
			ID: "X", Image: "/x", SHA256: "abc", VCPUs: 2, Memory: 1 << 20, Cmdline: "a b", TickUS: 10000, Started: true, Vendor: "GenuineIntel",
			LeftOut: []string{"this"}, Checks: 3, LastBad: 4, Tables: 8192, KernelFar: map[guest.GVA]guest.GPA{0x1000: 0x2000},
			Ended: "crashed", Crash: []byte(`{"cpu":1}`), Activity: []string{"parked", "stopped"},
			RAM:   []Range{{0, 1 << 20}, {1 << 30, 1 << 16}},
			Linux: &Linux{CoreInfo: "OSRELEASE=6\n", Initrd: "/i", Disks: []Disk{{"/d", true}}, Slide: 1 << 21, Image: 1 << 25, PMD: 0x3000, Devices: []byte(`{}`)},
		},
		CPUID:    []kvm.CPUIDEntry{{Function: 0, Ebx: 0x756e6547, Edx: 0x49656e69, Ecx: 0x6c65746e}, {Function: 7, Ebx: 1 << 5}},
		Memory:   []Run{{At: 0x1000, Bytes: bytes.Repeat([]byte{1}, 8192)}, {At: 0x8000, Bytes: bytes.Repeat([]byte{2}, 4096)}},
		Attached: []byte(`{"probes":[]}`),
	}
	s.Board.Clock, s.Board.Chips[2][5] = 5, 6
	for i := range 2 {
		c := CPU{Asleep: i == 1, Tick: i == 0, State: kvm.MPHalted, XSave: bytes.Repeat([]byte{byte(i)}, 4096), MSRs: []kvm.MSR{{Index: 0x10, Data: 77}}}
		c.LAPIC.Regs[3] = 9
		c.Regs.RIP, c.Sregs.CR3, c.Debug.DR7, c.Events.Flags, c.XCRs.NrXRCS = 5, 6, 7, 8, 1
		s.CPUs = append(s.CPUs, c)
	}
	return s
}

func writeSnapshot(t testing.TB, s *Snapshot) []byte {
	t.Helper()
	var b bytes.Buffer
	n, err := s.WriteTo(&b)
	if err != nil || n != int64(b.Len()) {
		t.Fatalf("%d bytes of %d, %v", n, b.Len(), err)
	}
	return b.Bytes()
}

func TestFile(t *testing.T) {
	want := sample()
	b := writeSnapshot(t, want)
	got, err := Read(bytes.NewReader(b), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	blank := cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == "._" }, cmp.Ignore())
	if diff := cmp.Diff(want, got, blank); diff != "" {
		t.Errorf("(-written +read):\n%s", diff)
	}
	config, err := ReadConfig(bytes.NewReader(b))
	if diff := cmp.Diff(want.Config, config); diff != "" || err != nil {
		t.Errorf("%v (-written +read):\n%s", err, diff)
	}
}

// TestDamage cuts a file off everywhere, and changes each byte of it: none is read as a snapshot.
func TestDamage(t *testing.T) {
	b := writeSnapshot(t, sample())
	for n := range b {
		_, err := Read(bytes.NewReader(b[:n]), 1<<20)
		if want := ErrTruncated; n >= len(magic) && !errors.Is(err, want) || n < len(magic) && !errors.Is(err, ErrNone) {
			t.Fatalf("the first %d bytes: %v", n, err)
		}
	}
	for n := range b {
		if _, err := ReadConfig(bytes.NewReader(b[:n])); err == nil {
			t.Fatalf("the configuration of the first %d bytes is read", n)
		}
	}
	long := append(bytes.Clone(b), 0)
	if _, err := Read(bytes.NewReader(long), 1<<20); !errors.Is(err, ErrDamaged) {
		t.Errorf("a byte behind the end: %v", err)
	}
	if _, err := ReadConfig(bytes.NewReader(long)); !errors.Is(err, ErrDamaged) {
		t.Errorf("a byte behind the end, of which the configuration is read: %v", err)
	}
	for i := range b {
		b[i] ^= 0x40
		_, err := Read(bytes.NewReader(b), 1<<20)
		if !errors.Is(err, ErrNone) && !errors.Is(err, ErrVersion) && !errors.Is(err, ErrTruncated) && !errors.Is(err, ErrDamaged) {
			t.Fatalf("byte %d changed: %v", i, err)
		}
		b[i] ^= 0x40
	}
	if _, err := Read(bytes.NewReader(b), 8192); !errors.Is(err, ErrDamaged) {
		t.Errorf("more memory than there may be: %v", err)
	}
}

// TestLacks: features that a guest may have seen, and a host does not have.
func TestLacks(t *testing.T) {
	had := []kvm.CPUIDEntry{{Function: 1, Eax: 0xffff, Ecx: 1 << 3, Edx: 5}, {Function: 7, Ebx: 1<<5 | 1}, {Function: 0xb, Edx: 3}}
	for want, host := range map[string][]kvm.CPUIDEntry{
		"":                  {{Function: 1, Ecx: ^uint32(0), Edx: 5}, {Function: 7, Ebx: 1<<5 | 1}},
		"CPUID.7H.0:EBX[5]": {{Function: 1, Ecx: 1 << 3, Edx: 7}, {Function: 7, Ebx: 1}},
		"CPUID.1H.0:ECX[3]": {{Function: 7, Ebx: 1<<5 | 1}},
	} {
		if got := MissingFeature(had, host); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if v := Vendor(sample().CPUID); v != "GenuineIntel" {
		t.Errorf("vendor %q", v)
	}
}

// FuzzRead: no file is read with more memory than it has, and what is read is written again as it was. The checksum is
// made right, or nothing behind it would be tried.
func FuzzRead(f *testing.F) {
	f.Add(writeSnapshot(f, sample()))
	one := sample()
	one.Config.VCPUs, one.CPUs, one.Memory, one.Attached = 1, one.CPUs[:1], nil, nil
	f.Add(writeSnapshot(f, one))
	f.Fuzz(func(t *testing.T, b []byte) {
		if n := len(b) - 4; n > 16 {
			b = append([]byte{}, b...)
			sum := crc32.Checksum(b[:n], castagnoli)
			for i := range 4 {
				b[n+i] = byte(sum >> (8 * i))
			}
		}
		s, err := Read(bytes.NewReader(b), 1<<20)
		if err != nil {
			return
		}
		if len(s.CPUs) != s.Config.VCPUs || s.Len() > len(b) {
			t.Errorf("%d vCPUs of %d, %d bytes of memory from %d", len(s.CPUs), s.Config.VCPUs, s.Len(), len(b))
		}
		if _, err := Read(bytes.NewReader(writeSnapshot(t, s)), 1<<20); err != nil {
			t.Errorf("read again: %v", err)
		}
	})
}
