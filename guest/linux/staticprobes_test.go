package linux

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elfbuild"
	"github.com/guestprobe/guestprobe/guest/sdt"
)

// markedFile returns a file with a statically defined probe in its second page, a semaphore in its data, and notes and section headers in its third page.
func markedFile() []byte {
	const base = 0x400000
	const headers = 64 + 2*56
	var desc []byte
	for _, v := range []uint64{base + 0x1004, 0, base + 0x10000 + 6} {
		desc = binary.LittleEndian.AppendUint64(desc, v)
	}
	desc = append(desc, "app\x00tick\x00-4@%edi\x00"...)
	note := binary.LittleEndian.AppendUint32(nil, 8)
	note = binary.LittleEndian.AppendUint32(note, uint32(len(desc)))
	note = binary.LittleEndian.AppendUint32(note, 3)
	note = append(append(note, "stapsdt\x00"...), desc...)
	code := make([]byte, 0x2000-headers)
	code[0x1004-headers] = 0x90
	f := elfbuild.File{
		Entry: base + headers,
		Segments: []elfbuild.Segment{
			{Section: ".text", VAddr: base + headers, Flags: elf.PF_R | elf.PF_X, Data: code},
			{Section: ".probes", VAddr: base + 0x10000, Flags: elf.PF_R | elf.PF_W, Data: make([]byte, 16)},
		},
		Extra: []elfbuild.Extra{{Name: ".note.stapsdt", Data: note}},
	}
	return f.Bytes()
}

func TestStaticProbes(t *testing.T) {
	view, m := newFileView(t, markedFile())
	v := Programs{view}
	all, path, err := v.StaticProbes("/bin/prog")
	if err != nil || path != "/usr/bin/prog" || len(all) != 1 {
		t.Fatalf("%+v, %q, %v", all, path, err)
	}
	p := all[0]
	if p.Provider != "app" || p.Name != "tick" || p.Offset != 0x1004 || p.Semaphore != 0x2006 || p.Why != "" || len(p.Args) != 1 {
		t.Errorf("%+v", p)
	}
	at := fileCode + guest.GVA(p.Offset)
	if sem, err := v.SemaphoreAddr(at, p.Semaphore); err != nil || sem != fileCode+0x2006 {
		t.Errorf("%v, %v", sem, err)
	}
	for _, off := range []uint64{0x2007, 0x2010, 0x1004, 1 << 50} { // odd, after the data, in the code, outside
		if sem, err := v.SemaphoreAddr(at, off); err == nil {
			t.Errorf("a semaphore at %#x: %v", off, sem)
		}
	}
	if id := v.BuildID(at); id != "" {
		t.Errorf("a file without a build ID: %q", id)
	}
	for own, want := range map[string]string{"abcd": "abcd" + strings.Repeat("0", 36), strings.Repeat("12", 20): strings.Repeat("12", 20), strings.Repeat("12", 21): ""} {
		if v.file(at).buildID = own; v.BuildID(at) != want || v.BuildID(at+1<<fileShift) != "" {
			t.Errorf("build ID %s is %q", own, v.BuildID(at))
		}
	}
	if _, err := v.SemaphoreAddr(fileCode+1<<fileShift, p.Semaphore); err == nil {
		t.Error("a semaphore of no file")
	}
	if !v.FillPage(fileCode+0x2000) || v.FillPage(fileCode+1<<fileShift) {
		t.Error("pages that are known")
	}

	// The end of the file, with the section headers, is not in memory.
	view, m = newFileView(t, markedFile())
	v = Programs{view}
	m.set(structPage(50), "page.mapping", 0) // a folio of two pages
	if _, _, err := v.StaticProbes("/bin/prog"); !errors.Is(err, sdt.ErrUnknown) {
		t.Errorf("%v", err)
	}
	if v.FillPage(fileCode + 0x2000) {
		t.Error("a page that is not there is known")
	}
	view, _ = newFileView(t, programFile(true))
	v = Programs{view}
	if _, _, err := v.StaticProbes("/bin/prog"); !errors.Is(err, sdt.ErrNoProbes) {
		t.Errorf("%v", err)
	}
}
