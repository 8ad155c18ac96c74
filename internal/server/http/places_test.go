package http

import (
	"testing"

	"github.com/guestprobe/guestprobe/guest/types"
	"github.com/guestprobe/guestprobe/internal/testing/kerneltest"
	"github.com/guestprobe/guestprobe/probe/script"
)

// debugTarget is a guest with one function in a file, which has the parameters of vfs_read.
type debugTarget struct {
	script.Target
	known *types.Info
}

func (d debugTarget) Func(name string) (*types.FuncProto, string) {
	if name != "/bin/app:work" {
		return nil, "not known"
	}
	return d.known.Func("", "vfs_read"), ""
}

// TestFilePrototype: the list of places has the parameters of functions in files, if types are requested.
func TestFilePrototype(t *testing.T) {
	spec, err := types.Read(kerneltest.Types(), nil)
	if err != nil {
		t.Fatal(err)
	}
	d := debugTarget{known: types.New(spec, nil)}
	if p := filePrototype(d, d.known, "/bin/app:work"); p == nil || len(p.Params) != 4 || p.Params[2].Name != "count" {
		t.Errorf("%+v", p)
	}
	if p := filePrototype(d, d.known, "/bin/app:other"); p != nil {
		t.Errorf("a function that is not known: %+v", p)
	}
	if p := filePrototype(d, nil, "/bin/app:work"); p != nil {
		t.Errorf("without types: %+v", p)
	}
}
