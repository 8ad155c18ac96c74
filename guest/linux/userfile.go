package linux

import (
	"cmp"
	debugelf "debug/elf"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elf"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// Code of programs has no address of its own in a View: each process has it at a
// different one. So a View gives the bytes of each requested file addresses that no
// code can have, because they are not canonical: byte N of a file is at its base + N.
const (
	fileCode  = guest.GVA(0x4000_0000_0000_0000) // base of the first file
	fileShift = 40                               // of the others
	maxFiles  = 256                              // files known at a time
	maxFile   = 64 << 20                         // bytes of one
	allFiles  = 512 << 20                        // bytes of all
)

// IsFile reports whether addr is an address that a View gives to bytes of a file.
func IsFile(addr guest.GVA) bool { return addr-fileCode < maxFiles<<fileShift }

// FileByte returns the offset of the byte of a file at an address; other addresses
// are returned unchanged.
func FileByte(addr guest.GVA) uint64 {
	if !IsFile(addr) {
		return uint64(addr)
	}
	return uint64(addr) & (1<<fileShift - 1)
}

// userFile is a known file with programs.
type userFile struct {
	path string // without symbolic links
	base guest.GVA
	text []guest.Range // the executable parts, ascending

	segments []fileSegment // of its program headers
	writable []guest.Range // where processes have data of their own
	headers  []debugelf.Prog64
	constant []guest.Range // parts that are never written, and that are as far from the code in memory as in the file
	buildID  string        // "" = it has none, or the guest does not have it in memory
	names    atomic.Pointer[fileNames]
	frames   atomic.Pointer[fileFrames]
	debug    atomic.Pointer[elf.File] // the separate debug information that was given, or nil

	mu     sync.Mutex
	inode  inode     // its address is 0 while the guest does not have it in memory
	data   []byte    // of the file; it does not change where have is set
	have   []bool    // by page
	given  bool      // data is the user's copy (Give)
	filled time.Time // when all of its pages were last looked for
	sought time.Time // time and reason of the last failed lookup
	whyNot error
}

// fileSegment is an executable program header.
type fileSegment struct{ addr, off, size uint64 }

// fileNames are the functions of a file.
type fileNames struct {
	*guest.SymbolTable
	none string // why there are no names; "" if there are
}

// userFiles are the known files, in the order of the requests.
type userFiles struct {
	mu   sync.Mutex
	all  []*userFile
	list atomic.Pointer[[]*userFile] // all, for readers that do not hold mu

	parts map[string]*elf.File // given files with parts of debug information, by their path
	given int                  // files given so far
}

// put registers f as number n. Callers hold mu.
func (u *userFiles) put(n int, f *userFile) {
	u.all = slices.Clone(u.all)
	if n == len(u.all) {
		u.all = append(u.all, f)
	}
	u.all[n] = f
	all := u.all
	u.list.Store(&all)
}

// file returns the file that contains addr, or nil. When another kernel runs it
// returns nil.
func (v *View) file(addr guest.GVA) *userFile {
	list := v.files.list.Load()
	if !IsFile(addr) || list == nil || v.now.Load().gone != "" {
		return nil
	}
	if n := int((addr - fileCode) >> fileShift); n < len(*list) {
		return (*list)[n]
	}
	return nil
}

// open returns the file at path, and registers it. Errors say why that is not
// possible.
func (v *View) open(path string) (*userFile, error) {
	if why := v.GoneReason(); why != "" {
		return nil, errors.New(why)
	}
	v.files.mu.Lock()
	defer v.files.mu.Unlock()
	return v.openLocked(path)
}

// openLocked is open. Callers hold the files' mu.
func (v *View) openLocked(asked string) (*userFile, error) {
	in, path, err := v.running.files.resolve(asked, v.read)
	if err != nil {
		if f := v.files.awaitedCopy(asked); f != nil {
			return f, nil
		}
		return nil, err
	}
	if f := v.files.fileOf(in, v.running.files, v.read); f != nil {
		v.files.readFrames(f, v)
		return f, nil
	}
	if f := cmp.Or(v.files.awaitedCopy(path), v.files.awaitedCopy(asked)); f != nil {
		if err := f.adopt(v, in, nil, v.read); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return f, nil
	}
	f, err := v.files.newFile(path, in.Size)
	if err != nil {
		return nil, err
	}
	f.inode = in
	for i := range f.have {
		f.fill(v, uint64(i))
	}
	if err := f.parse(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	v.files.readFrames(f, v)
	v.files.put(len(v.files.all), f)
	return f, nil
}

// fileOf returns the known file for the inode in, or nil. Callers hold mu.
func (u *userFiles) fileOf(in inode, x *Files, read Read) *userFile {
	for _, f := range u.all {
		f.mu.Lock()
		same := f.inode.Addr != 0 && f.inode.isSame(in)
		if same && f.inode.Addr != in.Addr {
			// It is back, if it was gone. Subvolumes of a btrfs, and above all
			// snapshots, have files that look the same.
			now, mode, err := x.inodeAt(f.inode.Addr, read)
			same = err != nil || mode != modeRegular || !now.isSame(in)
		}
		if same {
			f.inode = in
		}
		f.mu.Unlock()
		if same {
			return f
		}
	}
	return nil
}

// newFile returns a new file of that size, without bytes. Callers hold mu.
func (u *userFiles) newFile(path string, size uint64) (*userFile, error) {
	total := size
	for _, f := range u.all {
		total += uint64(len(f.data))
	}
	switch {
	case size > maxFile || total > allFiles:
		return nil, fmt.Errorf("%s: %d bytes are too many: at most %d of a file, and %d of all", path, size, maxFile, allFiles)
	case len(u.all) == maxFiles:
		return nil, fmt.Errorf("%s: %d other files have probes or had some since the guest was booted", path, maxFiles)
	}
	f := &userFile{path: path, base: fileCode + guest.GVA(len(u.all))<<fileShift, data: make([]byte, size)}
	f.have = make([]bool, (size+guest.PageSize-1)/guest.PageSize)
	return f, nil
}

// fill reads a page of the file, if the guest has it in memory. Callers hold mu, or
// have the only reference to the file.
func (f *userFile) fill(v *View, index uint64) bool {
	if f.have[index] {
		return true
	}
	b := f.data[index*guest.PageSize:]
	f.have[index] = v.pageBytes(f.inode, index, b[:min(len(b), guest.PageSize)], v.read)
	return f.have[index]
}

// has reports whether n bytes from off on are known.
func (f *userFile) has(off, n uint64) bool {
	if n == 0 || off > uint64(len(f.data)) || n > uint64(len(f.data))-off {
		return false
	}
	return !slices.Contains(f.have[off/guest.PageSize:(off+n-1)/guest.PageSize+1], false)
}

// parse reads the places of the file's code, and its names as far as the guest has
// them in memory.
func (f *userFile) parse() error {
	var h debugelf.Header64
	const headers = 4096 // linkers put the headers at the beginning, in the first page
	if n := min(uint64(len(f.data)), headers); !f.has(0, n) {
		return ErrNoPage
	}
	file, err := elf.Parse(f.data)
	if err != nil {
		// Without section headers, which are at the end.
		b := slices.Clone(f.data[:min(len(f.data), headers)])
		if len(b) < 64 || !slices.Contains(f.have, false) {
			return err
		}
		clear(b[40:48]) // e_shoff
		clear(b[58:64]) // e_shentsize, e_shnum, e_shstrndx
		whole := append(b, f.data[len(b):]...)
		if file, err = elf.Parse(whole); err != nil {
			return err
		}
	}
	h = file.Header
	if h.Phoff+uint64(h.Phnum)*56 > headers {
		return errors.New("its program headers are not at its beginning")
	}
	f.headers = file.Progs
	for _, p := range file.Progs {
		if debugelf.ProgType(p.Type) == debugelf.PT_LOAD && debugelf.ProgFlag(p.Flags)&debugelf.PF_X != 0 && p.Off < uint64(len(f.data)) {
			size := min(p.Filesz, uint64(len(f.data))-p.Off)
			f.segments = append(f.segments, fileSegment{p.Vaddr, p.Off, size})
			f.text = append(f.text, guest.Range{Start: f.base + guest.GVA(p.Off), End: f.base + guest.GVA(p.Off+size)})
		}
	}
	if len(f.text) == 0 {
		return errors.New("it has no code")
	}
	for _, p := range file.Progs {
		if debugelf.ProgType(p.Type) == debugelf.PT_LOAD && debugelf.ProgFlag(p.Flags)&debugelf.PF_W != 0 && p.Off < uint64(len(f.data)) {
			f.writable = append(f.writable, guest.Range{Start: f.base + guest.GVA(p.Off), End: f.base + guest.GVA(p.Off+min(p.Filesz, uint64(len(f.data))-p.Off))})
		}
		if debugelf.ProgType(p.Type) == debugelf.PT_LOAD && debugelf.ProgFlag(p.Flags)&debugelf.PF_W == 0 && p.Vaddr-p.Off == f.segments[0].addr-f.segments[0].off && p.Off < uint64(len(f.data)) {
			f.constant = append(f.constant, guest.Range{Start: f.base + guest.GVA(p.Off), End: f.base + guest.GVA(p.Off+min(p.Filesz, uint64(len(f.data))-p.Off))})
		}
	}
	slices.SortFunc(f.text, func(a, b guest.Range) int {
		if a.Start < b.Start {
			return -1
		}
		return 1
	})
	f.buildID = file.BuildID()
	f.names.Store(f.namesOf(file, f.has))
	return nil
}

// namesOf returns the functions of file, which is f or has its debug information. has
// reports which parts of it are available.
func (f *userFile) namesOf(file *elf.File, has func(off, n uint64) bool) *fileNames {
	names := &fileNames{}
	var syms []guest.Symbol
	for _, table := range []debugelf.SectionType{debugelf.SHT_SYMTAB, debugelf.SHT_DYNSYM} {
		i := slices.IndexFunc(file.Sections, func(s elf.Section) bool { return s.Is(table) })
		if i < 0 || len(syms) > 0 {
			continue
		}
		s := &file.Sections[i]
		if int(s.Link) >= len(file.Sections) || !has(s.Off, s.Size) || !has(file.Sections[s.Link].Off, file.Sections[s.Link].Size) {
			names.none = "its table of names is not in the guest's memory"
			continue
		}
		all, err := file.Symbols(table, MaxNames)
		if err != nil {
			names.none = err.Error()
			continue
		}
		for _, es := range all {
			if t := es.Type(); es.Section == debugelf.SHN_UNDEF || es.Name == "" || t != debugelf.STT_FUNC && t != debugelf.STT_GNU_IFUNC {
				continue
			}
			for _, g := range f.segments {
				if off := es.Value - g.addr; off < g.size {
					syms = append(syms, guest.Symbol{
						Name: f.path + ":" + strings.ToValidUTF8(es.Name, "\uFFFD"), Addr: f.base + guest.GVA(g.off+off), Size: es.Size,
						Kind: guest.SymFunc, Global: es.Global(), User: true,
					})
				}
			}
		}
	}
	switch {
	case len(syms) > 0:
		names.none = ""
	case names.none == "":
		names.none = "it has no names of functions (stripped)"
	}
	names.SymbolTable = guest.NewSymbolTable(syms, func(s *guest.Symbol) (segment, section uint64) {
		if r := f.textAt(s.Addr); r != nil {
			return uint64(r.End - s.Addr), uint64(r.End - s.Addr)
		}
		return 0, 0
	})
	return names
}

// textAt returns the executable range that contains addr, or nil.
func (f *userFile) textAt(addr guest.GVA) *guest.Range {
	for i, r := range f.text {
		if addr >= r.Start && addr < r.End {
			return &f.text[i]
		}
	}
	return nil
}

// code returns the n bytes at addr, fewer where the text ends, none if the guest does
// not have them in memory.
func (f *userFile) code(v *View, addr guest.GVA, n int) []byte {
	return f.read(v, f.textAt(addr), addr, n)
}

// read is code for addresses in r; nil r: no bytes.
func (f *userFile) read(v *View, r *guest.Range, addr guest.GVA, n int) []byte {
	if r == nil || n <= 0 {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	off := uint64(addr - f.base)
	end := off + min(uint64(n), uint64(r.End-addr))
	for at := off; at < end; at = (at/guest.PageSize + 1) * guest.PageSize {
		if !f.fill(v, at/guest.PageSize) {
			end = at
			break
		}
	}
	return slices.Clone(f.data[off:end])
}

// constantAt returns the n bytes at addr if they are never written, or nil.
func (f *userFile) constantAt(v *View, addr guest.GVA, n int) []byte {
	for i, r := range f.constant {
		if addr >= r.Start && addr < r.End {
			if b := f.read(v, &f.constant[i], addr, n); len(b) == n {
				return b
			}
		}
	}
	return nil
}

// find returns the function that contains addr. If the file does not name it, the
// result is the single instruction there.
func (f *userFile) find(v *View, addr guest.GVA) (guest.Symbol, bool) {
	if s, ok := f.names.Load().Find(addr); ok || f.textAt(addr) == nil {
		return s, ok
	}
	s := guest.Symbol{Name: fmt.Sprintf("%s:%#x", f.path, uint64(addr-f.base)), Addr: addr, Size: 1, Kind: guest.SymFunc, User: true}
	if i, err := x86.Decode(f.code(v, addr, x86.MaxLen)); err == nil {
		s.Size = uint64(i.Len)
	}
	return s, true
}

// fileName splits the name of a file's code, PATH:SYMBOL or PATH:OFFSET.
func fileName(name string) (path, symbol string, ok bool) {
	i := strings.LastIndexByte(name, ':')
	if !strings.HasPrefix(name, "/") || i < 0 {
		return "", "", false
	}
	return name[:i], name[i+1:], true
}

// lookupFile is Lookup for a place in a file.
func (v *View) lookupFile(path, symbol string) (guest.Symbol, error) {
	f, err := v.open(path)
	if err != nil {
		return guest.Symbol{}, err
	}
	if off, ok := parseOffset(symbol); ok {
		addr := f.base + guest.GVA(off)
		r := f.textAt(addr)
		if off > maxFile || r == nil {
			return guest.Symbol{}, fmt.Errorf("%s: there is no code at offset %#x of the file", f.path, off)
		}
		if len(f.code(v, addr, 1)) == 0 {
			return guest.Symbol{}, fmt.Errorf("%s, offset %#x: %w: run it once", f.path, off, ErrNoPage)
		}
		s, _ := f.find(v, addr)
		s.Size -= uint64(addr - s.Addr)
		s.Addr = addr
		return s, nil
	}
	names := f.names.Load()
	s, err := names.Lookup(f.path + ":" + symbol)
	if errors.Is(err, guest.ErrSymbolNotFound) && names.none != "" {
		err = fmt.Errorf("%s: no function %q: %s: give its offset in the file, or a copy of the file or its debug information (attach --file)", f.path, symbol, names.none)
	}
	if err == nil && len(f.code(v, s.Addr, int(s.Size))) < int(s.Size) {
		return s, fmt.Errorf("%s: %w: run it once", s.Name, ErrNoPage)
	}
	return s, err
}

// matchFile is Match for the functions of a file.
func (v *View) matchFile(path, pattern string) (out []guest.Symbol) {
	f, err := v.open(path)
	if err != nil {
		return nil
	}
	for _, s := range f.names.Load().Symbols() {
		if guest.Glob(pattern, s.Name[len(f.path)+1:]) {
			out = append(out, s)
		}
	}
	return out
}

// parseOffset parses an offset in a file, in the syntax of tracefs: hexadecimal after
// 0x, decimal, or octal after 0.
func parseOffset(s string) (uint64, bool) {
	n, err := strconv.ParseUint(s, 0, 64)
	return n, err == nil && !strings.Contains(s, "_")
}

// FilePages are the pages of guest memory with a part of a file.
type FilePages struct {
	Cached   Page // the page of the page cache; PA 0: it is not there
	Mappings []Mapping
	// Swapped: it is in the swap, with its contents.
	Swapped bool
}

// FilePages returns the pages of guest memory with the bytes of a file's page whose
// address here is addr: the page that all share, and by Mappings the private ones of
// processes. The result is reliable only if the guest is stopped during the call. It
// fails if the guest's memory cannot be read, and if the file is no longer known.
func (v *View) FilePages(addr guest.GVA, read Read) (FilePages, error) {
	f := v.file(addr)
	if f == nil {
		return FilePages{}, errNoFile
	}
	x := v.running.files
	in, err := f.guestInode(v, read)
	if err != nil {
		return FilePages{}, err
	}
	var out FilePages
	index := uint64(addr-f.base) / guest.PageSize
	p, err := x.Page(in, index, read)
	switch {
	case err == nil:
		out.Cached = p
	case !errors.Is(err, ErrNoPage):
		return out, err
	case errors.Is(err, errValue):
		out.Swapped = x.fileSystem(in, read) == "tmpfs"
	}
	out.Mappings, err = x.mappings(in, index, read)
	return out, err
}

// FileReader returns the reader of files' pages.
func (v *View) FileReader() *Files { return v.running.files }
