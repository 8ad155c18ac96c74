package probe_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/probetest"
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
	)
	if err != nil {
		t.Fatal(err)
	}
	fs := probe.NewFunctions(img)
	for name, want := range map[string]string{
		"one": "2", "two": "4 a", "tail": "4 5t", "next": "0", "split": "4 a",
		"loops":   "loops does not return",
		"pointer": "pointer+0x0: where this jump leads is not known",
		"maybe":   "maybe+0x2: a conditional jump leaves it",
		"runs":    "runs+0x2: what follows belongs to another symbol",
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
