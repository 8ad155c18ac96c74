package linux

import (
	"bytes"
	"debug/elf"
	"errors"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elfbuild"
)

// newFileView returns a View of a kernel that has the file /usr/bin/prog, which is b, as far
// as three pages go.
func newFileView(t *testing.T, b []byte) (*View, *fileMemory) {
	t.Helper()
	m := newFileMemory(t)
	m.set(m.prog, "inode.i_size", len(b))
	for i, page := range []guest.GVA{40, 50, 51} {
		if at := i * guest.PageSize; at < len(b) {
			m.put(memBase+page*guest.PageSize, b[at:min(len(b), at+guest.PageSize)])
		}
	}
	v := &View{read: m.read, core: &piece{}, running: &running{files: m.files, tasks: m.files.tasks, kprobes: &kprobes{}}}
	v.now.Store(&snapshot{pieces: []*piece{v.core}})
	return v, m
}

// programFile has two functions at the beginning of its second page, followed by code
// without a name; its names are in the third.
func programFile(names bool) []byte {
	const base, text = 0x400000, 0x400078
	code := make([]byte, 0x2000)
	copy(code[0x1000-0x78:], "\xf3\x0f\x1e\xfa\x55\xc3\x90\x90\x53\xc3\x48\x89\xf8\xc3")
	f := elfbuild.File{Entry: text, Segments: []elfbuild.Segment{{VAddr: text, Flags: elf.PF_R | elf.PF_X, Data: code}}}
	if names {
		f.Segments[0].Section = ".text"
		f.Symbols = []elfbuild.Symbol{{Name: "first", Addr: base + 0x1000, Size: 6, Type: elf.STT_FUNC}, {Name: "second", Addr: base + 0x1008, Size: 2, Type: elf.STT_FUNC},
			{Name: "data", Addr: base + 0x1100, Size: 8, Type: elf.STT_OBJECT}, {Name: "elsewhere", Addr: 0x10, Size: 8, Type: elf.STT_FUNC}}
	}
	return f.Bytes()
}

func TestFileLookup(t *testing.T) {
	v, m := newFileView(t, programFile(true))
	first, err := v.Lookup("/bin/prog:first")
	if err != nil || first.Name != "/usr/bin/prog:first" || first.Addr != fileCode+0x1000 || first.Size != 6 || !first.User || first.Kind != guest.SymFunc {
		t.Fatalf("%+v, %v", first, err)
	}
	for name, want := range map[string]guest.Symbol{
		"/usr/bin/prog:second":  {Name: "/usr/bin/prog:second", Addr: fileCode + 0x1008, Size: 2},
		"/usr/bin/prog:0x1004":  {Name: "/usr/bin/prog:first", Addr: fileCode + 0x1004, Size: 2},
		"/usr/bin/prog:4106":    {Name: "/usr/bin/prog:0x100a", Addr: fileCode + 0x100a, Size: 3}, // no function's: one instruction
		"/usr/bin/prog:0x100d":  {Name: "/usr/bin/prog:0x100d", Addr: fileCode + 0x100d, Size: 1},
		"/usr/bin/prog:010014":  {Name: "/usr/bin/prog:0x100c", Addr: fileCode + 0x100c, Size: 1}, // octal
		"/mnt/top:first":        first,
		"//usr/bin/prog:0x1000": first,
	} {
		s, err := v.Lookup(name)
		if err != nil || s.Name != want.Name || s.Addr != want.Addr || s.Size != want.Size {
			t.Errorf("%s: %+v, %v, want %+v", name, s, err, want)
		}
		if f, ok := v.Find(s.Addr); !ok || f.Name != want.Name || !v.IsText(s.Addr) || !v.IsUserText(s.Addr) {
			t.Errorf("%s: found %+v, %v", name, f, ok)
		}
	}
	for name, want := range map[string]string{
		"/usr/bin/prog:third":     "symbol not found",
		"/usr/bin/prog:data":      "symbol not found",
		"/usr/bin/prog:elsewhere": "symbol not found",
		"/usr/bin/prog:0x10":      "no code at offset 0x10",
		"/usr/bin/prog:0x100000":  "no code at offset 0x100000",
		"/usr/bin/none:first":     "no such file",
		"/usr/bin:first":          "no regular file",
	} {
		if s, err := v.Lookup(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v, want %q", name, s, err, want)
		}
	}
	if b := v.Code(first.Addr+4, 4); !bytes.Equal(b, []byte("\x55\xc3\x90\x90")) {
		t.Errorf("code % x", b)
	}
	if all := v.Match("/bin/prog:[fs]*"); len(all) != 2 {
		t.Errorf("matched %+v", all)
	}
	if v.IsText(fileCode+0x10) || v.IsText(fileCode+1<<fileShift+0x1000) || v.Code(fileCode+1<<fileShift+0x1000, 1) != nil {
		t.Error("text where there is none")
	}
	// The page is evicted: its contents and addresses stay known.
	at, err := v.FilePages(first.Addr, m.read)
	if err != nil || at.Cached.PA != 50<<12 {
		t.Errorf("%+v, %v", at, err)
	}
	m.set(structPage(50), "page.mapping", 0)
	if at, err := v.FilePages(first.Addr, m.read); err != nil || at.Cached.PA != 0 {
		t.Errorf("a page that went: %+v, %v", at, err)
	}
	if len(v.Code(first.Addr, 4)) != 4 {
		t.Error("code is forgotten")
	}
	m.set(m.prog, "inode.i_ino", 1)
	defer func() { // another kernel has the memory
		v.MarkGone(ReplacedText)
		if _, err := v.Lookup("/bin/prog:first"); err == nil || v.IsText(first.Addr) || v.Code(first.Addr, 1) != nil {
			t.Errorf("another kernel has the file: %v", err)
		}
	}()
	if _, err := v.FilePages(first.Addr, m.read); !errors.Is(err, errNoFile) {
		t.Errorf("another file: %v", err)
	}
}

// TestFileMissingParts: of a file that is not completely in memory, the present parts
// are known.
func TestFileMissingParts(t *testing.T) {
	named, bare := programFile(true), programFile(false)
	gone := func(pages ...int) func(*fileMemory) {
		return func(m *fileMemory) {
			for _, n := range pages {
				m.set(structPage(n), "page.mapping", 0)
			}
		}
	}
	for what, c := range map[string]struct {
		file   []byte
		do     func(*fileMemory)
		name   string
		ok     bool
		reason string
	}{
		"stripped":                {bare, nil, "/bin/prog:first", false, "no names of functions (stripped)"},
		"stripped, by offset":     {bare, nil, "/bin/prog:0x1004", true, ""},
		"not the headers":         {named, gone(40), "/bin/prog:0x1004", false, ErrNoPage.Error()},
		"not the code":            {bare, gone(50), "/bin/prog:0x1004", false, ErrNoPage.Error()},
		"no ELF file":             {[]byte(strings.Repeat("x", 9000)), nil, "/bin/prog:0x10", false, "ELF"},
		"a program without code":  {elfWithoutCode(), nil, "/bin/prog:0x10", false, "it has no code"},
		"too large":               {bare, func(m *fileMemory) { m.set(m.prog, "inode.i_size", maxFile+1) }, "/bin/prog:0x1004", false, "too many"},
		"longer than what it has": {bare, func(m *fileMemory) { m.set(m.prog, "inode.i_size", maxFile) }, "/bin/prog:0x1004", true, ""},
	} {
		v, m := newFileView(t, c.file)
		if c.do != nil {
			c.do(m)
		}
		s, err := v.Lookup(c.name)
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s: %+v, %v, want %q", what, s, err, c.reason)
		}
	}
}

func elfWithoutCode() []byte {
	f := elfbuild.File{Segments: []elfbuild.Segment{{VAddr: 0x400078, Flags: elf.PF_R, Data: make([]byte, 64)}}}
	return f.Bytes()
}

// TestFilesOfOthers: files that look the same, as in a snapshot, are not confused;
// swapped pages are recognized; file systems whose pages belong to others are
// rejected.
func TestFilesOfOthers(t *testing.T) {
	v, m := newFileView(t, programFile(true))
	first, err := v.Lookup("/usr/bin/prog:first")
	if err != nil {
		t.Fatal(err)
	}
	copied := make([]byte, 0x80)
	if err := m.read(m.prog, copied); err != nil {
		t.Fatal(err)
	}
	other := m.alloc(0x80)
	m.put(other, copied)
	host, _ := m.types.field("inode.i_mapping")
	mapping := guest.GVA(Read(m.read).valueOrZero(m.prog, host))
	// The directory has it in the place of the one that is probed.
	m.set(m.names["prog"], "dentry.d_inode", other)
	m.set(mapping, "address_space.host", other)
	second, err := v.Lookup("/bin/prog:first")
	if err != nil || second.Addr == first.Addr {
		t.Errorf("a file that looks like %v: %v, %v", first.Addr, second.Addr, err)
	}
	m.set(m.prog, "inode.i_ino", 4711) // it is gone: now the other one is what it was
	if third, err := v.Lookup("/bin/prog:first"); err != nil || third.Addr != first.Addr {
		t.Errorf("a file that has come back: %v, %v", third.Addr, err)
	}

	slots := Read(m.read).valueOrZero(mapping, m.files.f.head) &^ entryKind
	low := guest.GVA(Read(m.read).valueOrZero(guest.GVA(slots), field{Off: m.files.f.slots.Off, Size: 8})) &^ entryKind
	m.put(low+guest.GVA(m.files.f.slots.Off)+8, le.AppendUint64(nil, 0x42<<1|1))
	if at, err := v.FilePages(second.Addr, m.read); err != nil || at.Swapped || at.Cached.PA != 0 {
		t.Errorf("a page that went: %+v, %v", at, err)
	}
	super, _ := m.types.field("inode.i_sb")
	kind, _ := m.types.field("super_block.s_type")
	name, _ := m.types.field("file_system_type.name")
	at, err := Read(m.read).follow(other, super, kind, name)
	if err != nil {
		t.Fatal(err)
	}
	m.put(at, []byte("tmpfs\x00"))
	if at, err := v.FilePages(second.Addr, m.read); err != nil || !at.Swapped {
		t.Errorf("a page in the swap: %+v, %v", at, err)
	}
	for _, fs := range []string{"overlay", "hugetlbfs"} {
		m.put(at, []byte(fs+"\x00"))
		if _, err := v.Lookup("/usr/bin/prog:first"); err == nil || !strings.Contains(err.Error(), fs) {
			t.Errorf("%s: %v", fs, err)
		}
	}
}
