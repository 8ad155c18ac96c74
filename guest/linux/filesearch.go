package linux

import (
	"path"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
)

// Folders in which a file is looked for by its name: the dynamic linker's on Debian and on Fedora, and a login's $PATH.
var (
	libraryFolders = []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/usr/local/lib/x86_64-linux-gnu", "/usr/local/lib64", "/usr/local/lib", "/lib", "/usr/lib"}
	programFolders = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
)

// FindFile returns the path of the library or the program with a name that has no path, or "": of NAME.so, NAME.so.6, libNAME.so
// and so on in the guest's folders for libraries, or of NAME in the folders for programs or libraries. Only files that the
// guest has in memory are found, and files with a copy (AddFile).
func (v Programs) FindFile(name string) string {
	if name == "" || strings.Contains(name, "/") || v.GoneReason() != "" {
		return ""
	}
	v.files.mu.Lock()
	defer v.files.mu.Unlock()
	for _, c := range []struct {
		folders []string
		is      func(file string) bool
	}{
		{libraryFolders, func(file string) bool { return isLibrary(name, file) }},
		{programFolders, func(file string) bool { return file == name }},
		{libraryFolders, func(file string) bool { return file == name }},
	} {
		if at := v.running.files.search(c.folders, c.is, v.read); at != "" {
			return at
		}
		for _, f := range v.files.all {
			f.mu.Lock()
			at, given := f.path, f.given
			f.mu.Unlock()
			if given && slices.Contains(c.folders, path.Dir(at)) && c.is(path.Base(at)) {
				return at
			}
		}
	}
	return ""
}

// isLibrary reports whether a file of a folder for libraries is the one that a name means: libc for libc.so.6, c for it,
// too.
func isLibrary(name, file string) bool {
	for _, stem := range []string{name, "lib" + name} {
		if rest, ok := strings.CutPrefix(file, stem+".so"); ok && (rest == "" || rest[0] == '.') {
			return true
		}
	}
	return false
}

// search returns the path, without symbolic links, of the first file in these folders for whose name is returns true, or "".
func (x *Files) search(folders []string, is func(name string) bool, read Read) string {
	left := maxEntries
	for _, folder := range folders {
		at, _, err := x.walk(folder, read)
		if err != nil {
			continue
		}
		var found []string
		for name := range x.names(at[len(at)-1], &left, read) {
			if is(name) {
				found = append(found, name)
			}
		}
		slices.Sort(found)
		for _, name := range found {
			if _, at, err := x.resolve(folder+"/"+name, read); err == nil {
				return at
			}
		}
	}
	return ""
}

// maxFileName is the longest name of a file (NAME_MAX).
const maxFileName = 255

// names returns the names of the entries of a directory, also for files that do not exist, until one cannot be read. It examines at
// most left entries.
func (x *Files) names(dir entry, left *int, read Read) func(yield func(name string) bool) {
	return func(yield func(name string) bool) {
		link, err := read.value(dir.dentry, field{Off: x.f.children.Off, Size: word.Size})
		head := dir.dentry + guest.GVA(x.f.children.Off)
		for ; err == nil && link != 0 && guest.GVA(link) != head && *left > 0; *left-- {
			dentry := guest.GVA(link) - guest.GVA(x.f.sibling.Off)
			n, err := read.value(dentry, x.f.nameLen)
			if err != nil || n > maxFileName {
				return
			}
			at, err := read.follow(dentry, x.f.name)
			if err != nil {
				return
			}
			b := make([]byte, n)
			if read(at, b) != nil || !yield(string(b)) {
				return
			}
			if link, err = read.value(guest.GVA(link), word); err != nil {
				return
			}
		}
	}
}
