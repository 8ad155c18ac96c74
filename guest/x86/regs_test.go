package x86

import (
	"slices"
	"strings"
	"testing"
)

// TestRegNames: names, values and places of registers go together, whatever the way to them.
func TestRegNames(t *testing.T) {
	var r Regs
	for i, p := range r.Fields() {
		*p = uint64(i + 1)
	}
	for i, v := range r.Values() {
		if v != uint64(i+1) {
			t.Errorf("%s is %d, want %d", RegNames[i], v, i+1)
		}
	}
	for i, v := range r.Args() {
		if v != *r.Reg(ArgRegs[i]) {
			t.Errorf("argument %d is %d, want %s", i, v, ArgRegs[i])
		}
	}
	for i, at := range PtFields[:16] {
		if name := strings.TrimPrefix(RegNames[i], "r"); strings.TrimPrefix(PtNames[at/8], "r") != name {
			t.Errorf("field %s is at the place of %s in struct pt_regs", RegNames[i], PtNames[at/8])
		}
	}
	fields := r.Fields()
	for n := RAX; n <= R15; n++ {
		i := slices.Index(fields[:], r.Reg(n))
		if name := n.String(); name != RegNames[i] {
			t.Errorf("register %d is called %s, its field %s", uint8(n), name, RegNames[i])
		}
	}
}
