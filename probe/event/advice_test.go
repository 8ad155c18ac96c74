package event

import (
	"errors"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// TestAdvice: a definition in another tool's syntax is rejected, with the right syntax.
func TestAdvice(t *testing.T) {
	for text, want := range map[string]string{
		"vfs_read":                  `for the function vfs_read write "p vfs_read", for its return "r vfs_read"`,
		"vfs_read+4":                `for the function vfs_read write "p vfs_read+4", for its return "r vfs_read"`,
		"kprobe:vfs_read":           `kprobe: is for scripts ('guestprobe run -e'); as a definition this is "p vfs_read"`,
		"kretprobe:vfs_read":        `as a definition this is "r vfs_read"`,
		"uprobe:/bin/sh:main":       `as a definition this is "p /bin/sh:main"`,
		"tracepoint:sched_switch":   `as a definition this is "t sched_switch"`,
		"watchpoint:0x1000:8:w":     `as a definition this is "w 0x1000:8:w"`,
		"kprobe:":                   `as a definition this is "p PLACE"`,
		"p vfs_read $arg1:int":      "write s32; types are u8 to u64",
		"p vfs_read $arg1:size_t":   "write u64; types are",
		"p vfs_read $arg1:uint32_t": "write u32; types are",
		"p vfs_read $arg1:nothing":  "types are u8 to u64",
		"p vfs_read %edi":           "did you mean %di?",
		"f:x vfs_read":              "f is for function probes",
		"p:vfs_read":                `vfs_read is the probe's name: write "p vfs_read" or "p:NAME vfs_read"`,
		"t:sched_switch":            `write "t sched_switch" or "t:NAME sched_switch"`,
		"p":                         "",
		"p vfs_read x=:u64":         "in single quotes",
		"p vfs_read x=$ret":         "there are $arg1, $retval,",
		"p vfs_read x=$arg0":        "the first is $arg1",
		"p vfs_read x=$retval":      "a return probe is defined by r",
	} {
		_, err := Parse(text)
		var e *SyntaxError
		if !errors.As(err, &e) || !strings.Contains(e.Detail, want) || want == "" && e.Detail != "" {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestRegisterNames: the kernel's and the processor's name of a register mean the same place in struct pt_regs.
func TestRegisterNames(t *testing.T) {
	for i, name := range x86.RegNames {
		kernel := x86.PtNames[x86.PtFields[i]/8]
		a, err := Parse("p f %" + name)
		if err != nil {
			t.Errorf("%%%s: %v", name, err)
			continue
		}
		b, err := Parse("p f %" + kernel)
		if err != nil || a.Args[0].Fetch != b.Args[0].Fetch {
			t.Errorf("%%%s is %v, %%%s is %v (%v)", name, a.Args[0].Fetch, kernel, b.Args, err)
		}
		if got := a.Args[0].Fetch.(Register).Reg.String(); got != kernel {
			t.Errorf("%%%s is listed as %s", name, got)
		}
	}
	for _, name := range []string{"eax", "rr8", "ripp", "al", "r16", "RDI"} {
		if _, err := Parse("p f %" + name); err == nil {
			t.Errorf("%%%s is taken for a register", name)
		}
	}
}
