package builtin

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// sourceHash is the hash that build.sh computes: sha256 over the lines
// "<sha256 of file>  <path>" of the sources, sorted by path.
func sourceHash(t *testing.T) string {
	t.Helper()
	paths := []string{"build.sh"}
	err := filepath.WalkDir("src", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			paths = append(paths, filepath.ToSlash(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(paths)
	all := sha256.New()
	for _, p := range paths {
		b, err := os.ReadFile(filepath.FromSlash(p))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(all, "%x  %s\n", sha256.Sum256(b), p)
	}
	return fmt.Sprintf("%x", all.Sum(nil))
}

// note returns the descriptor of the note in section name.
func note(t *testing.T, f *elf.File, section string) (name string, typ uint32, desc []byte) {
	t.Helper()
	s := f.Section(section)
	if s == nil {
		t.Fatalf("no section %s", section)
	}
	b, err := s.Data()
	if err != nil {
		t.Fatal(err)
	}
	namesz, descsz := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	typ = binary.LittleEndian.Uint32(b[8:])
	name = string(bytes.TrimRight(b[12:12+namesz], "\x00"))
	desc = b[12+(namesz+3)&^3:]
	return name, typ, desc[:descsz]
}

func open(t *testing.T) *elf.File {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(ELF()))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestELFBelongsToSources(t *testing.T) {
	name, typ, desc := note(t, open(t), ".note.guestprobe")
	if name != noteName || typ != noteSources {
		t.Errorf("note is %q type %d, want %q type %d", name, typ, noteName, noteSources)
	}
	if got, want := string(desc), sourceHash(t); got != want {
		t.Errorf("builtin.elf was built from other sources (hash %s, these are %s): run build.sh", got, want)
	}
}

func TestELFHasNoPaths(t *testing.T) {
	for _, s := range []string{"/home/", "/root/", "/tmp/", "/work/"} {
		if bytes.Contains(image, []byte(s)) {
			t.Errorf("builtin.elf contains %q: the build is not reproducible", s)
		}
	}
}
