package probe_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// TestExits: the instructions that a function is left by, by hand.
func TestExits(t *testing.T) {
	img, err := probetest.BuildImage(textBase, false,
		hexFunc(t, "one", "31 c0 c3 90 90 90 90 90 90 90 90 90 90 90 90 90"),
		hexFunc(t, "two", "85 ff 74 01 c3 b8 01 00 00 00 c2 08 00 90 90 90"),  // test; je 1f; ret; 1: mov; ret $8
		hexFunc(t, "tail", "85 ff 74 01 c3 e9 d6 ff ff ff 90 90 90 90 90 90"), // test; je 1f; ret; 1: jmp one
		hexFunc(t, "loops", "48 ff cf 75 fb eb f9"),                           // no way out
		hexFunc(t, "pointer", "ff e7"),
		hexFunc(t, "maybe", "85 ff 0f 84 b3 ff ff ff c3"), // je one
		hexFunc(t, "runs", "85 ff 90"),
		hexFunc(t, "next", "c3"),
		hexFunc(t, "split", "85 ff 75 01 c3 eb 01 90"), // jne 1f; ret; 1: jmp split.cold
		hexFunc(t, "split.cold", "31 c0 c3"),
		hexFunc(t, "iret", "85 ff 74 02 48 cf c3"),              // test; je 1f; iretq; 1: ret
		hexFunc(t, "lret", "85 ff 74 02 48 cb c3"),              // lretq
		hexFunc(t, "lretn", "85 ff 74 03 ca 08 00 c3"),          // lret $8
		hexFunc(t, "ljmp", "85 ff 74 02 ff 2f c3"),              // ljmp *(%rdi)
		hexFunc(t, "lcall", "85 ff 74 02 ff 1f c3"),             // lcall *(%rdi)
		hexFunc(t, "sysret", "85 ff 74 03 48 0f 07 c3"),         // sysretq
		hexFunc(t, "sysexit", "85 ff 74 03 48 0f 35 c3"),        // sysexitq
		hexFunc(t, "vmlaunch", "85 ff 74 03 0f 01 c2 c3"),       // vmlaunch
		hexFunc(t, "inner", "e8 01 00 00 00 c3 31 c0 c3"),       // call 1f; ret; 1: xor; ret
		hexFunc(t, "recurses", "85 ff 74 05 e8 f7 ff ff ff c3"), // call recurses
	)
	if err != nil {
		t.Fatal(err)
	}
	fs := probe.NewFunctions(img)
	for name, want := range map[string]string{
		"one": "2", "two": "4 a", "tail": "4 5t", "next": "0", "split": "4 a",
		"loops":    "loops does not return",
		"pointer":  "pointer+0x0: where this jump leads is not known",
		"maybe":    "maybe+0x2: a conditional jump leaves it",
		"runs":     "runs+0x2: what follows belongs to another symbol",
		"iret":     "iret+0x4: this goes to other code (iret), and is no return",
		"lret":     "lret+0x4: this goes to other code (far return or jump), and is no return",
		"lretn":    "lretn+0x4: this goes to other code (far return or jump), and is no return",
		"ljmp":     "ljmp+0x4: this goes to other code (far return or jump), and is no return",
		"lcall":    "6",
		"sysret":   "sysret+0x4: this goes to other code (transfer), and is no return",
		"sysexit":  "sysexit+0x4: this goes to other code (transfer), and is no return",
		"vmlaunch": "vmlaunch+0x4: this goes to other code (vm_entry), and is no return",
		"inner":    "inner+0x0: it calls a place within itself",
		"recurses": "9",
	} {
		sym, err := img.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		exits, err := fs.Exits(sym)
		var got []string
		for _, x := range exits {
			s := fmt.Sprintf("%x", uint64(x.Addr-sym.Addr))
			if x.Tail {
				s += "t"
			}
			got = append(got, s)
		}
		var refused *probe.Error
		if errors.As(err, &refused) {
			if refused.Code != probe.CodeExitsUnknown || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %s", name, err, want)
			}
		} else if s := strings.Join(got, " "); s != want {
			t.Errorf("%s is left at %s (%v), want %s", name, s, err, want)
		}
	}
}

// hexFunc is a function whose code is given in hexadecimal.
func hexFunc(t *testing.T, name, code string) probetest.Func {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(code, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return probetest.Func{Name: name, Code: b}
}
