package script

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// foreign is a guest whose functions are of a language with rules of its own.
type foreign struct{ fakeTarget }

func (f foreign) Func(name string) (*btf.FuncProto, string) {
	proto, _ := f.fakeTarget.Func(name)
	return proto, "Go passes parameters by rules of its own"
}

// TestForeignParameters: parameters that are not where the ABI has them are refused by name, and their registers are not.
func TestForeignParameters(t *testing.T) {
	_, err := Compile("kprobe:vfs_read { print(args.count); }", foreign{target}, Options{CPUs: 1})
	const want = "the parameter count of vfs_read cannot be read by its name here: Go passes parameters by rules of its own"
	if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "'p vfs_read count'") {
		t.Errorf("%v, want %q", err, want)
	}
	if _, err := Compile("kprobe:vfs_read { print(reg(\"ax\")); }", foreign{target}, Options{CPUs: 1}); err != nil {
		t.Error(err)
	}
}
