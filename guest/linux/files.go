package linux

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest"
)

// Files reads the files in a running kernel's memory: their names, their pages, and
// the processes that map them. Its methods may be called from any goroutine, and
// while the guest runs; the results are then a hint that only a stopped guest makes
// certain.
type Files struct {
	missing []string // nil: all is known

	tasks   *Tasks
	vmemmap guest.GVA // vmemmap_base; 0 = the address is structPages
	page    uint64    // size of a struct page
	read    uint64    // the flag that says that the page was read; 0: not known

	f fileFields
}

// fileFields are the fields that are read of files.
type fileFields struct {
	fs, rootMount, rootEntry                             field // task_struct, fs_struct
	inode, nameLen, name, children, sibling              field // dentry
	mount, mountRoot, mountPoint, mounts, mountChild     field // mount
	mode, ino, super, mapping, size, generation, symlink field // inode
	fsType, fsName                                       field // super_block, file_system_type
	host, head, flags, tree                              field // address_space
	last                                                 field // vm_area_struct, of the tree of mappings
	shift, slots, marks                                  field // xa_node
	pageMapping, pageIndex, pageFlags                    field // folio, or page
	compound                                             field // page; its size is 0 if it does not exist
	vmFlags                                              field // vm_area_struct; likewise
	start, end, offset, mm, node, left, right, pgd       field // vm_area_struct, rb_node, mm_struct
}

// structPages is the address of the struct pages in kernels that do not have it in
// the variable vmemmap_base (arch/x86/include/asm/pgtable_64_types.h,
// __VMEMMAP_BASE_L4).
const structPages = 0xffffea0000000000

// newFiles determines how to read the files of a kernel with these types, which may
// be nil, and these symbols.
func newFiles(types *Types, lookup Lookup, tasks *Tasks) *Files {
	f := &finder{types: types, lookup: lookup}
	x := &Files{tasks: tasks}
	o := &x.f
	var page field
	const feature = "files of processes"
	if f.fields(feature, need{&o.fs, "task_struct.fs"}, need{&o.rootMount, "fs_struct.root.mnt"}, need{&o.rootEntry, "fs_struct.root.dentry"},
		need{&o.inode, "dentry.d_inode"}, need{&o.nameLen, "dentry.d_name.len"}, need{&o.name, "dentry.d_name.name"},
		need{&o.children, "dentry.d_children|dentry.d_subdirs"}, need{&o.sibling, "dentry.d_sib|dentry.d_child"},
		need{&o.mount, "mount.mnt"}, need{&o.mountRoot, "mount.mnt.mnt_root"}, need{&o.mountPoint, "mount.mnt_mountpoint"},
		need{&o.mounts, "mount.mnt_mounts"}, need{&o.mountChild, "mount.mnt_child"},
		need{&o.mode, "inode.i_mode"}, need{&o.ino, "inode.i_ino"}, need{&o.super, "inode.i_sb"}, need{&o.mapping, "inode.i_mapping"},
		need{&o.size, "inode.i_size"}, need{&o.generation, "inode.i_generation"}, need{&o.symlink, "inode.i_link"}, need{&o.fsType, "super_block.s_type"},
		need{&o.fsName, "file_system_type.name"},
		need{&o.host, "address_space.host"}, need{&o.head, "address_space.i_pages.xa_head"}, need{&o.flags, "address_space.i_pages.xa_flags"},
		need{&o.tree, "address_space.i_mmap.rb_root.rb_node"},
		need{&o.shift, "xa_node.shift"}, need{&o.slots, "xa_node.slots"}, need{&o.marks, "xa_node.marks"},
		need{&page, "page"}, need{&o.pageMapping, "folio.mapping|page.mapping"}, need{&o.pageIndex, "folio.index|page.index"}, need{&o.pageFlags, "folio.flags|page.flags"},
		need{&o.start, "vm_area_struct.vm_start"}, need{&o.end, "vm_area_struct.vm_end"}, need{&o.offset, "vm_area_struct.vm_pgoff"},
		need{&o.mm, "vm_area_struct.vm_mm"}, need{&o.node, "vm_area_struct.shared.rb"}, need{&o.last, "vm_area_struct.shared.rb_subtree_last"}, need{&o.left, "rb_node.rb_left"}, need{&o.right, "rb_node.rb_right"},
		need{&o.pgd, "mm_struct.pgd"}) && tasks.init == 0 {
		f.missing = append(f.missing, feature+": the list of tasks is not known")
	}
	x.page = uint64(page.Size)
	if types != nil {
		o.compound, _ = types.field("page.compound_head")
		o.vmFlags, _ = types.field("vm_area_struct.vm_flags")
	}
	var flags *btf.Enum
	if types != nil && types.Spec.TypeByName("pageflags", &flags) == nil {
		for _, v := range flags.Values {
			if v.Name == "PG_uptodate" {
				x.read = 1 << (v.Value & 63)
			}
		}
	}
	x.vmemmap, _ = lookup("vmemmap_base")
	if n := o.slots.Size / 8; f.missing == nil && (page.Size == 0 || n == 0 || n&(n-1) != 0 || o.marks.Size == 0) {
		f.missing = append(f.missing, feature+": the page cache is not as it was")
	}
	x.missing = f.missing
	return x
}

// MissingFeatures returns why no file of this kernel can be found, if so.
func (x *Files) MissingFeatures() []string { return x.missing }

// inode is a file of the guest.
type inode struct {
	Addr       guest.GVA // of its struct inode
	Super      guest.GVA // of its file system's struct super_block
	Mapping    guest.GVA // of the struct address_space with its pages
	Ino        uint64
	Generation uint64
	Size       uint64 // bytes
}

// isSame reports whether both are the same file: a struct inode may be freed and
// allocated again elsewhere.
func (a inode) isSame(b inode) bool {
	return a.Super == b.Super && a.Ino == b.Ino && a.Generation == b.Generation
}

// File types in i_mode (include/uapi/linux/stat.h).
const (
	modeType    = 0o170000
	modeRegular = 0o100000
	modeLink    = 0o120000
)

// inodeAt reads the inode at addr and its mode. A file whose size changes remains the
// same file.
func (x *Files) inodeAt(addr guest.GVA, read Read) (in inode, mode uint64, err error) {
	o := &x.f
	in.Addr = addr
	for _, v := range []struct {
		to *uint64
		f  field
	}{{&mode, o.mode}, {(*uint64)(&in.Super), o.super}, {(*uint64)(&in.Mapping), o.mapping}, {&in.Ino, o.ino}, {&in.Generation, o.generation}, {&in.Size, o.size}} {
		if *v.to, err = read.value(addr, v.f); err != nil {
			return inode{}, 0, err
		}
	}
	return in, mode & modeType, nil
}

// Limits on reading a guest's directories.
const (
	maxEntries  = 1 << 18 // directory entries examined for a path
	maxMounts   = 1 << 12 // mounts below one
	maxPath     = 4096    // bytes of a path (PATH_MAX)
	maxSymlinks = 40      // of a path (MAXSYMLINKS)
)

// errNoFile is the error for a path that does not exist.
var errNoFile = errors.New("the guest has no such file in memory: it does not exist, or has not been used yet")

// entry is a place in the tree of files: a struct dentry in a struct mount.
type entry struct{ mount, dentry guest.GVA }

// resolve returns the file at path, as seen by the guest's first process, and its
// path without symbolic links. Only files that the kernel has in memory are found.
func (x *Files) resolve(path string, read Read) (inode, string, error) {
	fail := func(err error) (inode, string, error) { return inode{}, "", fmt.Errorf("%s: %w", path, err) }
	at, names, err := x.walk(path, read)
	if err != nil {
		return fail(err)
	}
	addr, err := read.follow(at[len(at)-1].dentry, x.f.inode)
	if err != nil {
		return fail(errNoFile)
	}
	in, mode, err := x.inodeAt(addr, read)
	switch {
	case err != nil:
		return fail(err)
	case mode != modeRegular:
		return fail(errors.New("it is no regular file"))
	}
	switch x.fileSystem(in, read) {
	case "overlay":
		return fail(errors.New("its file system (overlay) has the pages of other files: give the path of the file below it"))
	case "hugetlbfs":
		return fail(errors.New("its file system (hugetlbfs) counts its pages in others than 4 KiB"))
	}
	return in, "/" + strings.Join(names, "/"), nil
}

// walk returns the entries on the way to path, without symbolic links, the last of which is its own, and their names
// below the root.
func (x *Files) walk(path string, read Read) (at []entry, names []string, err error) {
	if x.missing != nil {
		return nil, nil, errors.New(strings.Join(x.missing, "; "))
	}
	root, err := x.root(read)
	if err != nil {
		return nil, nil, err
	}
	at = []entry{root}
	todo := strings.Split(path, "/")
	left := maxEntries
	for links := 0; len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			if len(names) > 0 {
				at, names = at[:len(at)-1], names[:len(names)-1]
			}
			continue
		}
		next, err := x.child(at[len(at)-1], name, &left, read)
		if err != nil {
			return nil, nil, err
		}
		in, err := read.follow(next.dentry, x.f.inode)
		if err != nil {
			return nil, nil, errNoFile // a negative entry
		}
		if mode, err := read.value(in, x.f.mode); err != nil {
			return nil, nil, err
		} else if mode&modeType != modeLink {
			at, names = append(at, next), append(names, name)
			continue
		}
		if links++; links > maxSymlinks {
			return nil, nil, errors.New("too many symbolic links")
		}
		to, err := x.target(in, read)
		if err != nil {
			return nil, nil, err
		}
		if strings.HasPrefix(to, "/") {
			at, names = at[:1], nil
		}
		if todo = append(strings.Split(to, "/"), todo...); len(todo) > maxPath {
			return nil, nil, errors.New("too long a way")
		}
	}
	return at, names, nil
}

// root returns the root of the guest's first process.
func (x *Files) root(read Read) (entry, error) {
	t := x.tasks
	link, err := read.follow(t.init, field{Off: t.f.tasks.Off, Size: word.Size})
	if err != nil {
		return entry{}, err
	}
	first := link - guest.GVA(t.f.tasks.Off)
	if pid, err := read.value(first, t.f.pid); err != nil || pid != 1 {
		return entry{}, errors.New("the guest has no first process yet: attach when it has, or give a copy of the file (attach --file)")
	}
	fs, err := read.follow(first, x.f.fs)
	if err != nil {
		return entry{}, err
	}
	mnt, err := read.follow(fs, x.f.rootMount)
	if err != nil {
		return entry{}, err
	}
	dentry, err := read.follow(fs, x.f.rootEntry)
	if err != nil {
		return entry{}, err
	}
	return x.mountedAt(entry{mnt - guest.GVA(x.f.mount.Off), dentry}, read)
}

// mountedAt returns the root of the file system mounted at e, or e.
func (x *Files) mountedAt(e entry, read Read) (entry, error) {
	errFound := errors.New("found")
	for range maxSymlinks {
		left, over := maxMounts, e
		err := read.list(e.mount+guest.GVA(x.f.mounts.Off), x.f.mountChild, &left, func(mount guest.GVA) error {
			if point, err := read.value(mount, x.f.mountPoint); err != nil || guest.GVA(point) != e.dentry {
				return err
			}
			top, err := read.follow(mount, x.f.mountRoot)
			if err != nil {
				return err
			}
			over = entry{mount, top}
			return errFound
		})
		if err != errFound {
			return e, err
		}
		e = over
	}
	return e, errLoop
}

// child returns the entry of that name in the directory dir, examining at most left
// entries.
func (x *Files) child(dir entry, name string, left *int, read Read) (entry, error) {
	found := entry{mount: dir.mount}
	is := func(dentry guest.GVA) (bool, error) {
		if n, err := read.value(dentry, x.f.nameLen); err != nil || n != uint64(len(name)) {
			return false, err
		}
		at, err := read.follow(dentry, x.f.name)
		if err != nil {
			return false, err
		}
		b := make([]byte, len(name))
		if err := read(at, b); err != nil || string(b) != name {
			return false, err
		}
		found.dentry = dentry
		return true, nil
	}
	link, err := read.value(dir.dentry, field{Off: x.f.children.Off, Size: word.Size})
	head := dir.dentry + guest.GVA(x.f.children.Off)
	for ; err == nil; *left-- {
		if link == 0 || guest.GVA(link) == head {
			return found, errNoFile
		}
		if *left <= 0 {
			return found, errMany
		}
		var ok bool
		if ok, err = is(guest.GVA(link) - guest.GVA(x.f.sibling.Off)); ok {
			return x.mountedAt(found, read)
		}
		if err == nil {
			link, err = read.value(guest.GVA(link), word)
		}
	}
	return found, err
}

// target returns the target of the symbolic link with that inode. Its text is in the
// inode, or in the first page of the file.
func (x *Files) target(inode guest.GVA, read Read) (string, error) {
	in, _, err := x.inodeAt(inode, read)
	if err != nil {
		return "", err
	}
	b := make([]byte, min(in.Size, maxPath))
	at, err := read.follow(inode, x.f.symlink)
	if errors.Is(err, errNull) {
		var p Page
		if p, err = x.Page(in, 0, read); err == nil {
			at = x.tasks.directBase(read) + guest.GVA(p.PA)
		}
	}
	if err == nil {
		err = read(at, b)
	}
	if err != nil {
		return "", fmt.Errorf("a symbolic link: %w", err)
	}
	return strings.TrimRight(string(b), "\x00"), nil
}

// fileSystem returns the name of the type of the file's file system, or "".
func (x *Files) fileSystem(in inode, read Read) string {
	at, err := read.follow(in.Super, x.f.fsType, x.f.fsName)
	if err != nil {
		return ""
	}
	var b [16]byte
	if read(at, b[:]) != nil {
		return ""
	}
	name, _, _ := strings.Cut(string(b[:]), "\x00")
	return name
}
