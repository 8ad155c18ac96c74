package source

import (
	"errors"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/guest/dies"
	"github.com/guestprobe/guestprobe/guest/elf"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/guest/types"
)

// testFiles are a guest with the file /opt/a@1/app, which is the built-in guest.
type testFiles struct {
	file *elf.File
	read int // sections

	asked, absent int // by address: how often, and how often in vain
}

func (f *testFiles) DebugFile(path string) (*linux.DebugFile, error) {
	if path != "/opt/a@1/app" {
		return nil, errors.New(path + ": no such file")
	}
	return &linux.DebugFile{
		File: &dies.File{Path: path, Section: func(name string) ([]byte, error) {
			f.read++
			if n := f.file.IndexDebug(name); n >= 0 {
				return f.file.Data(n, 1<<30)
			}
			return nil, nil
		}},
		FileOffset: func(addr uint64) (uint64, bool) { return addr & 0xffffff, addr != 0 },
		Address:    func(off uint64) (uint64, bool) { return off, off != 0 },
	}, nil
}

// DebugVersionAt knows one file, everywhere but at 1 << 40.
func (f *testFiles) DebugVersionAt(addr guest.GVA) (linux.DebugVersion, bool) {
	return linux.DebugVersion{}, addr != 1<<40
}

func (f *testFiles) DebugAt(addr guest.GVA) (*linux.DebugFile, error) {
	if f.asked++; f.asked <= f.absent {
		return nil, errors.New("not in memory")
	}
	return f.DebugFile("/opt/a@1/app")
}

// TestFiles: functions, types and places of lines of a file.
func TestFiles(t *testing.T) {
	file, err := elf.Parse(builtin.ELF())
	if err != nil {
		t.Fatal(err)
	}
	in, fs := &testFiles{file: file}, &Files{}
	proto, why := fs.Func(in, "/opt/a@1/app:vfs_read", 0)
	if proto == nil || why != "" || len(proto.Params) != 4 || proto.Params[2].Name != "count" {
		t.Fatalf("%+v, %q", proto, why)
	}
	read := in.read
	for place, want := range map[string]string{"/opt/a@1/app:none": "does not have the function", "/opt/none:vfs_read": "/opt/none: no such file"} {
		if proto, why := fs.Func(in, place, 0); proto != nil || !strings.Contains(why, want) {
			t.Errorf("%s: %+v, %q, want %q", place, proto, why, want)
		}
	}
	if _, why := fs.Func(nil, "/opt/a@1/app:vfs_read", 0); why != errNoFiles.Error() {
		t.Errorf("a guest without files: %q", why)
	}
	info, err := fs.Info(in, "/opt/a@1/app")
	if err != nil || info.TypeByName(types.TagStruct, "file") == nil {
		t.Errorf("no struct file: %v", err)
	}
	addrs, err := info.Places("fs.c", 71)
	offsets, fault := fs.Places(in, "/opt/a@1/app", "fs.c", 71, 0)
	if err != nil || fault != nil || len(offsets) != len(addrs) || len(offsets) == 0 || offsets[0] != addrs[0].Addr&0xffffff {
		t.Errorf("%x, %v, of %x, %v", offsets, fault, addrs, err)
	}
	if _, err := fs.Places(in, "/opt/a@1/app", "fs.c", 61, 0); err == nil || !strings.Contains(err.Error(), "the next line with code is 64") {
		t.Errorf("a line without code: %v", err)
	}
	if in.read != read {
		t.Errorf("debug information is read again: %d sections, and %d", read, in.read)
	}
}
