package linux

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest"
)

// fileTypes are the structures that files are read from.
func fileTypes() []btf.Type {
	path := structOf("path", "mnt", tPtr, "dentry", tPtr)
	name := structOf("qstr", "len", tInt, "hash", tInt, "name", tPtr)
	head := structOf("hlist_head", "first", tPtr)
	node := structOf("hlist_node", "next", tPtr, "pprev", tPtr)
	array8 := structOf("xarray", "xa_flags", tInt, "pad", tInt, "xa_head", tPtr)
	rb := structOf("rb_node", "__rb_parent_color", tLong, "rb_right", tPtr, "rb_left", tPtr)
	tree := structOf("rb_root_cached", "rb_root", structOf("rb_root", "rb_node", tPtr))
	return []btf.Type{
		structOf("task_struct", "state", tInt, "pid", tInt, "comm", array(tChar, 16), "tgid", tInt, "pad", tInt, "tasks", tList, "fs", tPtr,
			"signal", tPtr, "thread_node", tList),
		structOf("signal_struct", "thread_head", tList),
		structOf("fs_struct", "users", tLong, "root", path),
		structOf("dentry", "d_flags", tLong, "d_parent", tPtr, "d_name", name, "d_inode", tPtr, "d_sib", node, "d_children", head),
		structOf("mount", "mnt_mountpoint", tPtr, "mnt", structOf("vfsmount", "mnt_root", tPtr), "mnt_mounts", tList, "mnt_child", tList),
		structOf("inode", "i_mode", tShort, "pad", tShort, "i_generation", tInt, "i_sb", tPtr, "i_mapping", tPtr, "i_ino", tLong, "i_size", tLong, "i_link", tPtr),
		structOf("super_block", "s_flags", tLong, "s_type", tPtr),
		structOf("file_system_type", "name", tPtr),
		structOf("address_space", "host", tPtr, "i_pages", array8, "i_mmap", tree),
		structOf("xa_node", "shift", tLong, "slots", array(tPtr, 64), "marks", array(tLong, 3)),
		&btf.Enum{Name: "pageflags", Size: 4, Values: []btf.EnumValue{{Name: "PG_locked", Value: 0}, {Name: "PG_uptodate", Value: 3}}},
		structOf("page", "flags", tLong, "mapping", tPtr, "index", tLong, "compound_head", tLong),
		structOf("vm_area_struct", "vm_start", tLong, "vm_end", tLong, "vm_mm", tPtr, "vm_pgoff", tLong, "vm_flags", tLong, "shared", structOf("shared", "rb", rb, "rb_subtree_last", tLong)),
		structOf("mm_struct", "count", tLong, "pgd", tPtr),
	}
}

// fileMemory is a kernel with a tree of files:
//
//	/bin -> usr/bin
//	/usr/bin/prog, of 130 pages of which it has those with the number 0, 1, 2 and 70
//	/usr/bin/loop -> loop
//	/usr/bin/gone, of which it knows that it is not there
//	/mnt, where another file system is, with /top -> /bin/prog, and below that one more
type fileMemory struct {
	*memory
	next  guest.GVA
	files *Files
	prog  guest.GVA            // the inode
	names map[string]guest.GVA // dentries
}

const pagesAt = memBase + 0x20000 // the struct pages

func newFileMemory(t testing.TB) *fileMemory {
	m := &fileMemory{memory: &memory{t: t, types: typesOf(t, fileTypes()...), base: memBase, b: make([]byte, 0x40000)}, next: memBase + 0x2000, names: map[string]guest.GVA{}}
	tasks, fs := initTask, m.alloc(0x40)
	m.set(tasks+0x100, "task_struct.pid", 1, "task_struct.tgid", 1, "task_struct.fs", fs)
	list, _ := m.types.field("task_struct.tasks")
	m.link(tasks+guest.GVA(list.Off), "task_struct.tasks", tasks+0x100)

	super := m.alloc(0x20)
	kind := m.alloc(0x10)
	m.set(super, "super_block.s_type", kind)
	m.set(kind, "file_system_type.name", m.text("ext4"))
	ino := 100
	inode := func(mode int) guest.GVA {
		at := m.alloc(0x80)
		ino++
		m.set(at, "inode.i_mode", mode, "inode.i_sb", super, "inode.i_ino", ino, "inode.i_generation", 7)
		return at
	}
	link := func(to string) guest.GVA {
		at := inode(modeLink)
		m.set(at, "inode.i_size", len(to), "inode.i_link", m.text(to))
		return at
	}
	const dir = 0o040755
	m.prog = inode(modeRegular | 0o755)
	loop, gone := m.dentry("loop", link("loop")), m.dentry("gone", 0)
	bin := m.dentry("bin", inode(dir), gone, loop, m.dentry("prog", m.prog), m.dentry("tool", link("prog")))
	lib := m.dentry("lib", inode(dir), m.dentry("libgone.so.1", 0), m.dentry("libx.so.6", link("/usr/bin/prog")), m.dentry("libxy.so", m.prog), m.dentry("libdir.so", inode(dir)))
	point := m.dentry("mnt", inode(dir))
	root := m.dentry("/", inode(dir), m.dentry("bin", link("usr/bin")), m.dentry("usr", inode(dir), bin, lib), point)
	deeper := m.dentry("deeper", inode(dir))
	top := m.dentry("/", inode(dir), m.dentry("top", link("/bin/prog")), deeper)
	below := m.dentry("/", inode(dir), m.dentry("up", link("../../usr/bin/prog")))

	at := []guest.GVA{m.alloc(0x60), m.alloc(0x60), m.alloc(0x60)}
	mounts, _ := m.types.field("mount.mnt_mounts")
	for i, r := range []guest.GVA{root, top, below} {
		m.set(at[i], "mount.mnt.mnt_root", r)
	}
	m.set(at[1], "mount.mnt_mountpoint", point)
	m.set(at[2], "mount.mnt_mountpoint", deeper)
	m.link(at[0]+guest.GVA(mounts.Off), "mount.mnt_child", at[1])
	m.link(at[1]+guest.GVA(mounts.Off), "mount.mnt_child", at[2])
	m.link(at[2]+guest.GVA(mounts.Off), "mount.mnt_child")
	mnt, _ := m.types.field("mount.mnt")
	m.set(fs, "fs_struct.root.mnt", at[0]+guest.GVA(mnt.Off), "fs_struct.root.dentry", root)
	m.cache()

	where := map[string]guest.GVA{"init_task": initTask, "vmemmap_base": m.alloc(8)}
	m.put(where["vmemmap_base"], le.AppendUint64(nil, uint64(pagesAt)))
	lookup := symbols(where)
	m.files = newFiles(m.types, lookup, newTasks(m.types, lookup))
	if missing := m.files.MissingFeatures(); missing != nil {
		t.Fatal(missing)
	}
	return m
}

func (m *fileMemory) alloc(n guest.GVA) guest.GVA {
	at := m.next
	m.next += (n + 15) &^ 15
	return at
}

func (m *fileMemory) text(s string) guest.GVA {
	at := m.alloc(guest.GVA(len(s) + 16))
	m.put(at, []byte(s))
	return at
}

func (m *fileMemory) dentry(name string, inode guest.GVA, children ...guest.GVA) guest.GVA {
	at := m.alloc(0x60)
	m.names[name] = at
	m.set(at, "dentry.d_name.len", len(name), "dentry.d_name.name", m.text(name), "dentry.d_inode", inode)
	link, _ := m.types.field("dentry.d_sib")
	next := guest.GVA(0)
	for _, c := range children {
		m.set(c, "dentry.d_sib.next", next)
		next = c + guest.GVA(link.Off)
	}
	m.set(at, "dentry.d_children.first", next)
	return at
}

// structPage returns the struct page of a page of memory.
func structPage(n int) guest.GVA { return pagesAt + guest.GVA(n)*32 }

// cache gives prog its pages: 0 alone; 1 and 2 as one folio, of which 1 is to be written; and
// 70 in another node.
func (m *fileMemory) cache() {
	mapping := m.alloc(0x40)
	m.set(m.prog, "inode.i_mapping", mapping, "inode.i_size", 130*guest.PageSize-5)
	top, low, high := m.alloc(0x230), m.alloc(0x230), m.alloc(0x230)
	m.set(mapping, "address_space.host", m.prog, "address_space.i_pages.xa_head", top|2)
	slots, _ := m.types.field("xa_node.slots")
	marks, _ := m.types.field("xa_node.marks")
	slot := func(node guest.GVA, n int, entry guest.GVA) {
		m.put(node+guest.GVA(slots.Off+uint32(n)*8), le.AppendUint64(nil, uint64(entry)))
	}
	m.set(top, "xa_node.shift", 6)
	slot(top, 0, low|2)
	slot(top, 1, high|2)
	slot(top, 2, 0x123<<1|1) // the entry of a page that was evicted
	slot(low, 0, structPage(40))
	slot(low, 1, structPage(50))
	slot(low, 2, 1<<2|2) // the entry of slot 1
	slot(high, 6, structPage(60))
	m.put(low+guest.GVA(marks.Off), le.AppendUint64(nil, 1<<1))
	for n, index := range map[int]int{40: 0, 50: 1, 60: 70} {
		m.set(structPage(n), "page.mapping", mapping, "page.index", index, "page.flags", 1<<3)
	}
}

func TestResolve(t *testing.T) {
	m := newFileMemory(t)
	for _, c := range []struct{ path, want, fails string }{
		{"/usr/bin/prog", "/usr/bin/prog", ""},
		{"/bin/prog", "/usr/bin/prog", ""},
		{"//usr/./bin/../../bin//prog", "/usr/bin/prog", ""},
		{"/../../usr/bin/prog", "/usr/bin/prog", ""},
		{"/mnt/top", "/usr/bin/prog", ""},
		{"/mnt/deeper/up", "/usr/bin/prog", ""},
		{"/mnt/deeper/../top", "/usr/bin/prog", ""},
		{"/bin/loop", "", "too many symbolic links"},
		{"/bin/gone", "", "no such file"},
		{"/bin/other", "", "no such file"},
		{"/usr/bin", "", "no regular file"},
		{"/usr/bin/prog/x", "", "no such file"},
	} {
		in, path, err := m.files.resolve(c.path, m.read)
		switch {
		case c.fails == "" && (err != nil || path != c.want || in.Addr != m.prog || in.Ino != 101 || in.Size != 130*guest.PageSize-5):
			t.Errorf("%s: %q %+v, %v", c.path, path, in, err)
		case c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)):
			t.Errorf("%s: %v, want %q", c.path, err, c.fails)
		}
	}
}

// TestSearch: a name without a path means a library, or a program, that the guest has in memory.
func TestSearch(t *testing.T) {
	m := newFileMemory(t)
	find := func(name string) string {
		for _, c := range []struct {
			folders []string
			is      func(string) bool
		}{{libraryFolders, func(file string) bool { return isLibrary(name, file) }}, {programFolders, func(file string) bool { return file == name }}} {
			if at := m.files.search(c.folders, c.is, m.read); at != "" {
				return at
			}
		}
		return ""
	}
	for name, want := range map[string]string{
		"libx": "/usr/bin/prog", "x": "/usr/bin/prog", "libxy": "/usr/lib/libxy.so", "prog": "/usr/bin/prog", "tool": "/usr/bin/prog",
		"libgone": "", "gone": "", "libdir": "", "lib": "", "li": "", "loop": "", "none": "", "": "",
	} {
		if got := find(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	// A directory that never ends costs a bounded time.
	link, _ := m.types.field("dentry.d_sib")
	m.set(m.names["libxy.so"], "dentry.d_sib.next", m.names["libxy.so"]+guest.GVA(link.Off))
	if got := find("prog"); got != "/usr/bin/prog" {
		t.Errorf("beside an endless directory: %q", got)
	}
}

// TestResolveHostile: directories and mounts that do not end cost a bounded time.
func TestResolveHostile(t *testing.T) {
	m := newFileMemory(t)
	in, _, err := m.files.resolve("/bin/prog", m.read)
	if err != nil {
		t.Fatal(err)
	}
	loop := m.dentry("a", 0)
	link, _ := m.types.field("dentry.d_sib")
	m.set(loop, "dentry.d_sib.next", loop+guest.GVA(link.Off))
	root, _ := m.files.root(m.read)
	m.set(root.dentry, "dentry.d_children.first", loop+guest.GVA(link.Off))
	if _, _, err := m.files.resolve("/bin/prog", m.read); !errors.Is(err, errMany) {
		t.Errorf("a directory without end: %v", err)
	}
	m = newFileMemory(t)
	entries := []guest.GVA{m.names["usr"]}
	for range 199 {
		entries = append([]guest.GVA{m.dentry("x", 0)}, entries...)
	}
	root, _ = m.files.root(m.read)
	next := guest.GVA(0)
	for i := range entries {
		m.set(entries[len(entries)-1-i], "dentry.d_sib.next", next)
		next = entries[len(entries)-1-i] + guest.GVA(link.Off)
	}
	m.set(root.dentry, "dentry.d_children.first", next)
	if _, _, err := m.files.resolve(strings.Repeat("/usr/..", 1000)+"/usr/bin/prog", m.read); err != nil {
		t.Errorf("a long way: %v", err)
	}
	if _, _, err := m.files.resolve(strings.Repeat("/usr/..", 1400)+"/usr/bin/prog", m.read); !errors.Is(err, errMany) {
		t.Errorf("a way without end: %v", err)
	}
	mounts, _ := m.types.field("mount.mnt_mounts")
	m.set(root.mount, "mount.mnt_mounts.next", root.mount+guest.GVA(mounts.Off)+16)
	if _, _, err := m.files.resolve("/bin/prog", m.read); err == nil {
		t.Error("mounts that lead into themselves")
	}
	// A node of the page cache that is its own child.
	head, err := Read(m.read).value(in.Mapping, m.files.f.head)
	if err != nil {
		t.Fatal(err)
	}
	node := guest.GVA(head &^ 3)
	m.put(node+guest.GVA(m.files.f.slots.Off), le.AppendUint64(nil, head))
	if _, err := m.files.Page(in, 0, m.read); !errors.Is(err, ErrNoPage) {
		t.Errorf("a node in itself: %v", err)
	}
}

func TestPages(t *testing.T) {
	m := newFileMemory(t)
	in, _, err := m.files.resolve("/bin/prog", m.read)
	if err != nil {
		t.Fatal(err)
	}
	for index, want := range map[uint64]struct {
		pa   guest.GPA
		busy bool
	}{0: {40 << 12, false}, 1: {50 << 12, true}, 2: {51 << 12, true}, 70: {60 << 12, false}, 3: {}, 71: {}, 64: {}, 128: {}, 5000: {}, 1 << 60: {}} {
		p, err := m.files.Page(in, index, m.read)
		if p.PA != want.pa || p.Busy != want.busy || (err == nil) != (want.pa != 0) || err != nil && !errors.Is(err, ErrNoPage) {
			t.Errorf("page %d: %+v, %v, want %+v", index, p, err, want)
		}
	}
	// A page that now belongs to another file, or to none, is not found, and is known
	// to be gone.
	p, err := m.files.Page(in, 0, m.read)
	holds := func() bool {
		for _, k := range m.files.Marks(&p) {
			if now, err := Read(m.read).value(k.At, word); err != nil || now != k.Word {
				return false
			}
		}
		return true
	}
	if err != nil || !holds() {
		t.Errorf("%+v, %v: does not hold", p, err)
	}
	m.set(structPage(40), "page.flags", 1)
	if _, err := m.files.Page(in, 0, m.read); !errors.Is(err, ErrNoPage) {
		t.Errorf("a page that is being read: %v", err)
	}
	m.set(structPage(40), "page.mapping", memBase, "page.flags", 1<<3)
	if _, err := m.files.Page(in, 0, m.read); !errors.Is(err, ErrNoPage) || holds() {
		t.Errorf("a page of another file: %v, holds %v", err, holds())
	}
	// A process's own page, one that several share, and one of a file.
	for mapping, ok := range map[guest.GVA]bool{memBase | 1: true, memBase | 3: false, memBase: false, 0: false} {
		m.set(structPage(80), "page.mapping", mapping)
		if p, err := m.files.Copy(80<<12, m.read); (err == nil) != ok || ok && p.PA != 80<<12 {
			t.Errorf("a page of %v: %+v, %v", mapping, p, err)
		}
	}
	// A file of one page has no node.
	m.set(in.Mapping, "address_space.i_pages.xa_head", structPage(60), "address_space.i_pages.xa_flags", 1<<25)
	m.set(structPage(60), "page.index", 0)
	if p, err := m.files.Page(in, 0, m.read); err != nil || p.PA != 60<<12 || !p.Busy {
		t.Errorf("the only page: %+v, %v", p, err)
	}
	if _, err := m.files.Page(in, 1, m.read); !errors.Is(err, ErrNoPage) {
		t.Errorf("behind the only page: %v", err)
	}
}

func TestMappings(t *testing.T) {
	m := newFileMemory(t)
	in, _, err := m.files.resolve("/bin/prog", m.read)
	if err != nil {
		t.Fatal(err)
	}
	rb, _ := m.types.field("vm_area_struct.shared.rb")
	vma := func(root guest.GPA, start, pages, offset, flags int) guest.GVA {
		at, mm := m.alloc(0x60), m.alloc(0x20)
		m.set(mm, "mm_struct.pgd", memBase+guest.GVA(root))
		m.set(at, "vm_area_struct.vm_start", start, "vm_area_struct.vm_end", start+pages*guest.PageSize, "vm_area_struct.vm_mm", mm, "vm_area_struct.vm_pgoff", offset, "vm_area_struct.vm_flags", flags)
		return at + guest.GVA(rb.Off)
	}
	a, b, c := vma(0x1000, 0x400000, 3, 0, 0x75), vma(0x2000, 0x7f0000, 1, 2, 0x73), vma(0x3000, 0x10000, 9, 3, 0x7b)
	side := func(at guest.GVA, left, right guest.GVA, last int) {
		m.set(at-guest.GVA(rb.Off), "vm_area_struct.shared.rb.rb_left", left, "vm_area_struct.shared.rb.rb_right", right, "vm_area_struct.shared.rb_subtree_last", last)
	}
	// By their offsets, and each with the largest end of its descendants.
	side(a, 0, 0, 2)
	side(c, 0, 0, 11)
	side(b, a, c, 11)
	a, b = b, a
	m.set(in.Mapping, "address_space.i_mmap.rb_root.rb_node", a)
	for index, want := range map[uint64][]Mapping{
		0: {{0x1000, 0x400000, false}}, 2: {{0x1000, 0x402000, false}, {0x2000, 0x7f0000, true}}, 3: {{0x3000, 0x10000, false}}, 12: nil,
	} {
		got, err := m.files.mappings(in, index, m.read)
		slices.SortFunc(got, func(x, y Mapping) int { return int(x.Root) - int(y.Root) })
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("page %d: %+v, %v, want %+v", index, got, err, want)
		}
	}
	// Other addresses are not looked at.
	const nowhere = guest.GVA(0x1234)
	side(b, nowhere, nowhere, 2)
	if got, err := m.files.mappings(in, 7, m.read); err != nil || len(got) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	side(b, 0, nowhere, 2)
	side(a, b, nowhere, 11)
	if got, err := m.files.mappings(in, 0, m.read); err == nil || len(got) != 1 {
		t.Errorf("%+v, %v", got, err) // the right side of what begins at 0 is
	}
	side(b, 0, 0, 2)
	if got, err := m.files.mappings(in, 1, m.read); err != nil || len(got) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	side(a, b, c, 11)
	side(c, a, a, 11)
	if _, err := m.files.mappings(in, 4, m.read); !errors.Is(err, errMany) {
		t.Errorf("a tree without end: %v", err)
	}
}

// TestFilesMissing: missing features of a kernel are reported, and no file is found.
func TestFilesMissing(t *testing.T) {
	m := newFileMemory(t)
	types := typesOf(t, slices.DeleteFunc(fileTypes(), func(x btf.Type) bool { return x.TypeName() == "mount" })...)
	files := newFiles(types, symbols(nil), newTasks(types, symbols(nil)))
	if missing := files.MissingFeatures(); len(missing) != 1 || missing[0] != "files of processes: the kernel's types have no struct mount" {
		t.Errorf("missing %q", missing)
	}
	if _, _, err := files.resolve("/bin/prog", m.read); err == nil || !strings.Contains(err.Error(), "no struct mount") {
		t.Error(err)
	}
}
