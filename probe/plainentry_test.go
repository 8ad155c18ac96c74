package probe_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// TestPlainEntry: which functions of a kernel need no analysis for a probe at their entry: no branch leads into its instruction, and all of
// the function can be decoded.
func TestPlainEntry(t *testing.T) {
	const nop5 = "0f 1f 44 00 00 "
	cases := []struct {
		name, code string
		off        int
		want       bool
	}{
		{"first", "48 8d 47 02 c3", 0, true},
		{"after_endbr", "f3 0f 1e fa 48 8d 47 02 c3", 4, true},
		{"after_call", "f3 0f 1e fa " + nop5 + "48 8d 47 02 c3", 9, true},
		{"branch_there", nop5 + "31 c0 ff cf 75 fa c3", 5, false},               // jne to the xor
		{"branch_to_start", "31 c0 ff cf 75 fa c3", 0, true},                    // the entry itself
		{"branch_later", "31 c0 ff cf 75 fc c3", 0, true},                       // to the dec
		{"branch_inside", "48 8d 47 02 75 fb c3", 0, false},                     // into the lea
		{"between", "48 8d 47 02 48 8d 47 03 75 f9 c3", 0, false},               // into the second lea: other instructions begin there
		{"not_an_instruction", "48 8d 47 02 c3", 1, false},                      // inside the lea
		{"undecodable", "48 8d 47 02 06 c3", 0, false},                          // push %es
		{"cut_off", "48 8d 47 02 48 8d", 0, false},                              // an instruction longer than the function
		{"indirect", "48 8d 47 02 ff e0", 0, false},                             // jmp *%rax
		{"unreached", "c3 48 8d 47 02 c3", 1, false},                            // after a ret
		{"called_from_elsewhere", "89 f8 ff c0 89 c0 83 c0 01 90 c3", 2, false}, // an edge leads to the inc
		{"edge_to_nothing", "89 f8 83 c0 01 90 c3", 0, false},                   // an edge leads into the add
		{"jumps_into_first", "e9 00 00 00 00 c3", 0, true},
	}
	var fns []probetest.Func
	for _, c := range cases {
		fns = append(fns, hexFunc(t, c.name, c.code))
	}
	img, err := probetest.BuildImage(textBase, false, fns...)
	if err != nil {
		t.Fatal(err)
	}
	k := &probetest.Kernel{Image: img}
	for name, off := range map[string]guest.GVA{"called_from_elsewhere": 2, "edge_to_nothing": 3} {
		s, err := img.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		k.Leads = append(k.Leads, s.Addr+off)
	}
	fs := probe.NewFunctions(k)
	for _, c := range cases {
		s, err := img.Lookup(c.name)
		if err != nil {
			t.Fatal(err)
		}
		if got := fs.IsPlainEntry(s, s.Addr+guest.GVA(c.off)); got != c.want {
			t.Errorf("%s: %t, want %t", c.name, got, c.want)
		}
	}
	if fs := probe.NewFunctions(img); fs.IsPlainEntry(img.Match("first")[0], img.Match("first")[0].Addr) {
		t.Error("a function of an image that is no kernel: without symbols of all code")
	}
}

// TestPlainEntryExact: with functions of random bytes, whose branches lead anywhere, analysis rejects no entry that is plain.
func TestPlainEntryExact(t *testing.T) {
	rnd := rand.New(rand.NewPCG(4, 2))
	parts := []string{"90", "31 c0", "48 8d 47 02", "75 ", "eb ", "74 ", "e8 00 00 00 00", "c3", "0f 1f 44 00 00", "f0 ff 00", "50", "66 90", "06"}
	plain, rejected := 0, 0
	for round := range 300 {
		var fns []probetest.Func
		for i := range 20 {
			text := []string{"", "f3 0f 1e fa ", "0f 1f 44 00 00 "}[rnd.IntN(3)]
			for range 2 + rnd.IntN(12) {
				part := parts[rnd.IntN(len(parts)-rnd.IntN(2))]
				if len(part) == 3 {
					part += fmt.Sprintf("%02x", byte(rnd.IntN(60)-30))
				}
				text += part + " "
			}
			fns = append(fns, hexFunc(t, fmt.Sprintf("f%d", i), text+"c3"))
		}
		img, err := probetest.BuildImage(textBase, false, fns...)
		if err != nil {
			t.Fatal(err)
		}
		fs := probe.NewFunctions(&probetest.Kernel{Image: img})
		for _, s := range img.Match("f*") {
			for off := range min(guest.GVA(s.Size), 12) {
				f, why := fs.Analyze(s)
				var bad error
				if f == nil {
					bad = errors.New(why)
				} else if refused := probe.Boundary(f, s, s.Addr+off); refused != nil {
					bad = refused
				} else if off > 0 && f.Branched(int(off)) {
					bad = errors.New("a branch leads there")
				}
				switch ok := fs.IsPlainEntry(s, s.Addr+off); {
				case ok && bad != nil:
					t.Fatalf("round %d, %s+%d is plain: %v; % x", round, s.Name, off, bad, img.Code(s.Addr, int(s.Size)))
				case ok:
					plain++
				case bad != nil:
					rejected++
				}
			}
		}
	}
	if plain < 1000 || rejected < 1000 {
		t.Errorf("%d are plain, %d rejected: too few to say anything", plain, rejected)
	}
}

// TestCheckListed: it rejects what Check rejects, and makes no slots.
func TestCheckListed(t *testing.T) {
	f, _ := newPatchingFake(t, nil)
	e := f.Engine()
	for _, s := range f.Image().Match("*") {
		_, want := e.Check(&probe.Kprobe{Addr: s.Addr})
		if got := probe.CheckListed(e, &probe.Kprobe{Addr: s.Addr}); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", s.Name, got, want)
		}
	}
}
