package device

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// aTable is a table as its reader finds it.
type aTable struct {
	at   uint64
	body []byte // behind the header
}

// readTables follows the pointers from the root, with the checks of a reader.
func readTables(t *testing.T, b []byte) map[string]aTable {
	t.Helper()
	le := binary.LittleEndian
	sum := func(b []byte) (s byte) {
		for _, x := range b {
			s += x
		}
		return s
	}
	if string(b[:8]) != "RSD PTR " || b[15] != 2 || sum(b[:20]) != 0 || sum(b[:le.Uint32(b[20:])]) != 0 {
		t.Fatalf("root pointer % x", b[:36])
	}
	out := map[string]aTable{}
	get := func(at uint64, want string) aTable {
		t.Helper()
		x := b[at-uint64(TablesAddr):]
		x = x[:le.Uint32(x[4:])]
		if got := string(x[:4]); got != want || sum(x) != 0 {
			t.Fatalf("table %q at %#x, want %q; its sum is %d", got, at, want, sum(x))
		}
		out[want] = aTable{at, x[36:]}
		return out[want]
	}
	x := get(le.Uint64(b[24:]), "XSDT").body
	f := get(le.Uint64(x), "FACP").body
	get(le.Uint64(x[8:]), "APIC")
	get(le.Uint64(f[140-36:]), "DSDT")
	return out
}

func TestTables(t *testing.T) {
	for _, n := range []int{1, 2, 16, 64, MaxVCPUs} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			p, _ := board(t, func(c *Config) { c.VCPUs = n })
			b := p.Tables()
			tables := readTables(t, b)

			// The local APICs, in order, and all that stands behind.
			m := tables["APIC"].body
			want := []byte{0, 0, 0xe0, 0xfe, 1, 0, 0, 0}
			for i := range n {
				want = append(want, 0, 8, byte(i), byte(i), 1, 0, 0, 0)
			}
			want = append(want,
				1, 12, 0, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0, // I/O APIC
				2, 10, 0, 9, 9, 0, 0, 0, 0x0d, 0, // line 9: active high, level
				4, 6, 0xff, 0, 0, 1) // all: NMI on LINT1
			if d := cmp.Diff(want, m); d != "" {
				t.Errorf("MADT (-want +got):\n%s", d)
			}
			// Fields at the offsets of the specification's table.
			f := append(make([]byte, 36), tables["FACP"].body...)
			le := binary.LittleEndian
			if len(f) != 276 {
				t.Fatalf("FADT of %d bytes", len(f))
			}
			for _, w := range []struct {
				name     string
				at, size int
				want     uint64
			}{
				{"SCI_INT", 46, 2, 9}, {"SMI_CMD", 48, 4, 0}, {"PM1a_EVT_BLK", 56, 4, 0x600}, {"PM1a_CNT_BLK", 64, 4, 0x604},
				{"PM_TMR_BLK", 76, 4, 0x608}, {"PM1_EVT_LEN", 88, 1, 4}, {"PM1_CNT_LEN", 89, 1, 2}, {"PM_TMR_LEN", 91, 1, 4},
				{"CENTURY", 108, 1, 0x32}, {"RESET_REG", 116, 4, 0x01000801}, {"RESET_REG address", 120, 8, 0xcf9}, {"RESET_VALUE", 128, 1, 6},
				{"X_FIRMWARE_CTRL", 132, 8, 0}, {"X_PM1a_EVT_BLK", 152, 8, 0x600}, {"X_PM1a_CNT_BLK", 176, 8, 0x604}, {"X_PM_TMR_BLK", 212, 8, 0x608},
			} {
				var x [8]byte
				copy(x[:], f[w.at:w.at+w.size])
				if got := le.Uint64(x[:]); got != w.want {
					t.Errorf("%s is %#x, want %#x", w.name, got, w.want)
				}
			}
			facs := uint64(le.Uint32(f[36:]))
			if c := b[facs-uint64(TablesAddr):]; facs%64 != 0 || string(c[:4]) != "FACS" || le.Uint32(c[4:]) != 64 {
				t.Errorf("FACS at %#x: % x", facs, c[:8])
			}
			// What turns the machine off says so: name _S5_, package of 4, sleep type 5.
			if s5 := []byte("\x08_S5_\x12\x08\x04\x0a\x05\x0a\x05\x00\x00"); !bytes.HasPrefix(tables["DSDT"].body, s5) {
				t.Errorf("DSDT begins with % x", tables["DSDT"].body[:len(s5)])
			}
		})
	}
}

// Lengths of one to four bytes, as the specification counts them.
func TestAMLLength(t *testing.T) {
	for _, tt := range []struct {
		body int
		want []byte
	}{
		{0, []byte{1}}, {62, []byte{0x3f}}, {63, []byte{0x41, 0x04}}, {0xfff - 2, []byte{0x4f, 0xff}},
		{0xfff - 1, []byte{0x81, 0x00, 0x01}}, {0xfffff - 3, []byte{0x8f, 0xff, 0xff}}, {0xfffff - 2, []byte{0xc1, 0x00, 0x00, 0x01}},
	} {
		got := appendSized([]byte{amlScope}, make([]byte, tt.body))
		if len(got) != 1+len(tt.want)+tt.body || !bytes.Equal(got[1:1+len(tt.want)], tt.want) {
			t.Errorf("body of %d bytes: length % x, want % x", tt.body, got[1:5], tt.want)
		}
	}
	for n, want := range map[uint32][]byte{0: {0}, 1: {1}, 2: {0x0a, 2}, 255: {0x0a, 255}, 256: {0x0b, 0, 1}, 65536: {0x0c, 0, 0, 1, 0}} {
		if got := amlInt(n); !bytes.Equal(got, want) {
			t.Errorf("%d is % x, want % x", n, got, want)
		}
	}
}

func TestConfigErrors(t *testing.T) {
	for _, n := range []int{-1, 0, MaxVCPUs + 1} {
		if _, err := New(Config{VCPUs: n}); err == nil {
			t.Errorf("%d vCPUs are accepted", n)
		}
	}
}
