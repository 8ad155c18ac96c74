package debuginfo

import (
	"debug/dwarf"
	"errors"
	"testing"
)

// TestCalls: each call of the built-in guest by the name of a function of its unit is known for that function, and for no other one;
// what it has passed is in registers that arguments come in. What GDB makes of the values is held against
// backtraces (TestOuterArguments of internal/server/http).
func TestCalls(t *testing.T) {
	i, _ := guest(t)
	values, others, tails := 0, 0, 0
	for n := range i.units {
		c, err := i.contents(n)
		if err != nil {
			t.Fatal(err)
		}
		for k := range c.instances {
			f := function{n, &c.instances[k]}
			if f.inlined {
				continue
			}
			sites, err := i.calls(f)
			if err != nil {
				t.Fatal(f.name, err)
			}
			for _, s := range sites {
				at, ok := s.origin()
				if !ok || s.tail() {
					continue
				}
				for _, callee := range i.instancesOf(n, at) {
					call, err := i.Call(s.returnAddr(), callee.entry)
					if errors.Is(err, errTailCalls) {
						tails++
						continue
					}
					if err != nil || call.Function != callee.entry || call.Target != nil {
						t.Fatalf("%s calls %s: %+v, %v", f.name, callee.name, call, err)
					}
					for reg := -1; reg <= regIP; reg++ {
						where, err := call.PassedValue(reg)
						switch {
						case err == nil && reg != 5 && reg != 4 && reg != 1 && reg != 2 && reg != 8 && reg != 9:
							t.Errorf("%s calls %s with register %d: %+v", f.name, callee.name, reg, where)
						case err == nil && where.Memory:
							t.Errorf("%s calls %s: %+v is no value", f.name, callee.name, where)
						case err == nil:
							values++
						}
					}
				}
				for m := range c.instances {
					if o := &c.instances[m]; !o.inlined && i.name(i.entryAt(at), nil) != o.name {
						if _, err := i.Call(s.returnAddr(), o.entry); !errors.Is(err, errOtherCalled) {
							t.Errorf("%s at %#x is taken for a call of %s: %v", f.name, s.returnAddr(), o.name, err)
						}
						others++
						break
					}
				}
				if _, err := i.Call(s.returnAddr()+1, f.entry); err == nil {
					t.Errorf("%s has a call that returns to %#x", f.name, s.returnAddr()+1)
				}
			}
		}
	}
	t.Logf("%d values, %d of other functions, %d functions behind tail calls", values, others, tails)
	if values < 50 || others < 50 || tails == 0 {
		t.Error("too few")
	}
	if _, err := i.Call(0, 1<<40); err == nil {
		t.Error("a call of nothing")
	}
}

// TestRegisterOf: a register and nothing else.
func TestRegisterOf(t *testing.T) {
	for code, want := range map[string]int{"\x50": 0, "\x5f": 15, "\x90\x05": 5, "\x60": -1, "\x90\x10": -1, "": -1, "\x90": -1, "\x55\x55": -1, "\x75\x00": -1, "\x90\x05\x96": -1, "\x90\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01": -1} {
		got, ok := registerOf([]byte(code))
		if !ok {
			got = -1
		}
		if got != want {
			t.Errorf("% x: %d, want %d", code, got, want)
		}
	}
}

// TestCallsOfGNU: before DWARF 5 calls are entries of GNU's.
func TestCallsOfGNU(t *testing.T) {
	s := callSite{Entry: &dwarf.Entry{Tag: tagGNUCallSite, Field: []dwarf.Field{{Attr: dwarf.AttrLowpc, Val: uint64(7)}, {Attr: dwarf.AttrAbstractOrigin, Val: dwarf.Offset(9)}, {Attr: attrGNUTail, Val: true}}}}
	if at, ok := s.origin(); s.returnAddr() != 7 || at != 9 || !ok || !s.tail() {
		t.Errorf("%d, %d, %v, %v", s.returnAddr(), at, ok, s.tail())
	}
}
