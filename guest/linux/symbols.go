package linux

import (
	"bytes"
	debugelf "debug/elf"
	"errors"
	"fmt"
	"strconv"

	"github.com/guestprobe/guestprobe/guest/elf"
)

// maxSymbolFile is the size in bytes of the largest file of symbols that is read: a
// vmlinux with its debug information.
const maxSymbolFile = 2 << 30

// ReadSymbols replaces the kernel's own names by those in the file at path, a
// System.map or a vmlinux. Errors say that the file is something else, or of another
// kernel. It must be called before the kernel is used otherwise.
func (k *Kernel) ReadSymbols(path string) error {
	b, err := elf.ReadFile(path, maxSymbolFile)
	if err != nil {
		return fmt.Errorf("read symbols %w", err)
	}
	if err := k.readSymbols(b); err != nil {
		return fmt.Errorf("read symbols %s: %w", path, err)
	}
	return nil
}

func (k *Kernel) readSymbols(b []byte) error {
	file := &Kernel{mem: &elf.Memory{Sections: k.mem.Sections}}
	if bytes.HasPrefix(b, []byte(debugelf.ELFMAG)) {
		f, err := elf.Parse(b)
		if err != nil {
			return err
		}
		if id := f.BuildID(); id != "" && k.ID.BuildID != "" && id != k.ID.BuildID {
			return fmt.Errorf("it is of another build: its build ID is %s, the kernel's %s", id, k.ID.BuildID)
		}
		if _, err := file.mem.ReadNames(f, debugelf.SHT_SYMTAB, MaxNames); err != nil {
			return err
		}
	} else {
		names, err := readSystemMap(b)
		if err != nil {
			return err
		}
		file.setNames(names)
	}
	if len(file.mem.Names) == 0 {
		return errors.New("it has no names of a kernel: want a System.map, or a vmlinux that is not stripped")
	}
	checked, err := file.confirm(k.program.entry)
	if err != nil {
		return fmt.Errorf("it is of another kernel: %w", err)
	}
	k.mem.SetNames(file.mem.Names)
	k.Embeds, k.Checked, k.nameless = false, checked, false
	return nil
}

// confirm compares the names with the image's own data: its exports, its sections,
// its banner and its entry. It returns the number of names that agree.
func (k *Kernel) confirm(entry uint64) (checked int, err error) {
	if checked, err = k.addExports(); err != nil {
		return checked, err
	}
	agree := func(name string, want uint64) {
		switch at, ok := k.mem.Lookup(name); {
		case !ok || err != nil:
		case at != want:
			err = fmt.Errorf("%s would be at %#x, and is at %#x", name, at, want)
		default:
			checked++
		}
	}
	for section, b := range bounds {
		if s := k.mem.Section(section); s != nil {
			agree(b[0], s.Addr)
		}
	}
	agree("phys_startup_64", entry)
	if at, ok := k.mem.Lookup("linux_banner"); ok {
		if !bytes.HasPrefix(k.mem.Bytes(at, uint64(len(bannerMark))), []byte(bannerMark)) {
			return checked, fmt.Errorf("linux_banner would be at %#x, and is not there", at)
		}
		checked++
	}
	if err == nil && checked == 0 {
		err = errors.New("none of its names can be found in the image")
	}
	return checked, err
}

// readSystemMap reads the output of nm: an address of 16 digits, a letter and a name,
// one per line. Other lines are ignored: Debian's packages have a System.map that
// says where the real one is.
func readSystemMap(b []byte) (names []elf.Name, err error) {
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) != 3 || len(f[0]) != 16 || len(f[1]) != 1 || len(f[2]) > maxName {
			continue
		}
		addr, err := strconv.ParseUint(string(f[0]), 16, 64)
		if err != nil {
			continue
		}
		if len(names) == MaxNames {
			return nil, fmt.Errorf("more than %d names", MaxNames)
		}
		names = append(names, letterName(f[1][0], string(f[2]), addr))
	}
	return names, nil
}
