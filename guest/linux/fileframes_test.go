package linux

import (
	debugelf "debug/elf"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elfbuild"
)

// framesFile has code at 0x400100, at offset 0x100 of the file, and in its second page .eh_frame, at 0x601000: from 0x400200 on the code has
// reserved 24 bytes of its stack.
func framesFile() []byte {
	le := binary.LittleEndian
	section := append(le.AppendUint32(nil, 20), "\x00\x00\x00\x00\x01zR\x00\x01\x78\x10\x01\x1b\x0c\x07\x08\x90\x01\x00\x00"...)
	section = append(le.AppendUint32(section, 20), 28, 0, 0, 0)
	section = le.AppendUint32(section, (1<<32+0x400100-0x601020)&0xffffffff)
	section = append(le.AppendUint32(section, 0x200), "\x00\x03\x00\x01\x0e\x20\x00\x00\x00\x00\x00\x00"...)
	header := le.AppendUint32([]byte{1, 0x1b, 0x03, 0x3b}, 0x601000-0x600004)
	f := elfbuild.File{Segments: []elfbuild.Segment{
		{VAddr: 0x600000, Flags: debugelf.PF_R, Data: append(header, make([]byte, 16)...)},
		{VAddr: 0x400100, Flags: debugelf.PF_R | debugelf.PF_X, Data: make([]byte, 0xf00)},
		{VAddr: 0x601000, Flags: debugelf.PF_R, Data: append(section, make([]byte, 0x100)...)},
	}}
	b := f.Bytes()
	le.PutUint32(b[64:], uint32(debugelf.PT_GNU_EH_FRAME))
	return b
}

// TestFileFrames: callers of a file's code are found by .eh_frame, as soon as the guest has it in memory.
func TestFileFrames(t *testing.T) {
	view, m := newFileView(t, framesFile())
	first, err := view.running.files.pageOf(structPage(50), m.read)
	if err != nil {
		t.Fatal(err)
	}
	rules := func(what string, want map[guest.GVA]guest.FrameRule) {
		t.Helper()
		if _, err := view.Lookup("/bin/prog:0x100"); err != nil {
			t.Fatal(err)
		}
		for _, off := range []guest.GVA{0, 0xff, 0x100, 0x1ff, 0x200, 0x2ff, 0x300, 0x1100, 1 << fileShift} {
			rule, known := want[off]
			if got, ok := view.FrameRule(fileCode + off); got != rule || ok != known {
				t.Errorf("%s: at %#x %+v, %v, want %+v, %v", what, uint64(off), got, ok, rule, known)
			}
		}
	}
	entry, later := guest.FrameRule{CFA: 8, Return: -8}, guest.FrameRule{CFA: 32, Return: -8}
	known := map[guest.GVA]guest.FrameRule{0x100: entry, 0x1ff: entry, 0x200: later, 0x2ff: later}
	m.set(structPage(50), "page.mapping", 0)
	rules("not in memory", nil)
	m.set(structPage(50), "page.mapping", guest.GVA(first.mapping))
	rules("in memory", known)
	f := view.file(fileCode)
	before := f.frames.Load()
	rules("again", known)
	if f.frames.Load() != before {
		t.Error("it is read again")
	}
	if n := testing.AllocsPerRun(100, func() { view.FrameRule(fileCode + 0x210) }); n != 0 {
		t.Errorf("a look-up allocates %v times", n)
	}

	view, m = newFileView(t, framesFile())
	m.set(structPage(50), "page.mapping", 0)
	if _, err := (Programs{view}).Give("/bin/prog", framesFile(), unused); err != nil {
		t.Fatal(err)
	}
	rules("of a copy", known)

	// The tables of all files have a limit.
	var code []byte
	for range maxFileRows / 2 {
		code = append(code, 0x41, 0x0e, 16, 0x41, 0x0e, 8)
	}
	le := binary.LittleEndian
	section := slices.Clone(framesFile()[0x1000:0x1018])
	section = le.AppendUint32(section, uint32(13+len(code)))
	section = le.AppendUint32(section, 28)
	section = le.AppendUint32(section, 0)
	section = le.AppendUint32(section, maxFileRows+1)
	large, err := guest.NewFrameTable(append(append(section, 0), code...), 0x601000, maxFileRows+4)
	if err != nil || large.Rows() != maxFileRows+2 {
		t.Fatalf("%d rows, %v", large.Rows(), err)
	}
	view, _ = newFileView(t, framesFile())
	for range allFileRows/maxFileRows - 1 {
		f := &userFile{}
		f.frames.Store(&fileFrames{FrameTable: large})
		view.files.put(len(view.files.all), f)
	}
	if _, err := view.Lookup("/bin/prog:0x100"); err != nil {
		t.Fatal(err)
	}
	last := view.files.all[len(view.files.all)-1]
	if rule, ok := last.frameRule(last.base + 0x200); rule != later || !ok {
		t.Errorf("of one of some files: %+v, %v", rule, ok)
	}
	last.frames.Store(&fileFrames{FrameTable: large})
	f.frames.Store(nil)
	view.files.readFrames(f, view)
	if rule, ok := f.frameRule(f.base + 0x200); ok {
		t.Errorf("of too many: %+v", rule)
	}
}
