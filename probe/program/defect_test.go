package program

import (
	"errors"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// TestCompilerDefect: what the compiler panics at runs on the host, with the place in the reason.
func TestCompilerDefect(t *testing.T) {
	var why *bpf.HostOnlyError
	c := (&Runtime{}).compile(nil, false, 0)
	if !errors.As(c.err, &why) || !strings.Contains(why.Why, "defect") || !strings.Contains(why.Why, ".go:") {
		t.Errorf("%v", c.err)
	}
}
