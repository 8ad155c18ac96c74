package http

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/server/service"
)

// debugForms unpacks a program with its debug information in all forms (guest/debuginfo/testdata/forms).
func debugForms(t *testing.T) string {
	t.Helper()
	f, err := os.Open("../../../guest/debuginfo/testdata/forms.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(to, 0o700)
		} else {
			var b []byte
			if b, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(to, b, 0o600)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestDebugBeside: files that have parts of a program's debug information are known before the daemon confines itself, and may be
// read afterwards. Where one is missing --debug is refused; a guest runs, and its source is not known, with the file's name.
func TestDebugBeside(t *testing.T) {
	dir := debugForms(t)
	for form, want := range map[string][]string{"gcc5": nil, "split5": {"a.dwo", "b.dwo"}, "clangpackage5": {"prog.dwp"}, "multi5": {"common"}, "sup5": {"common"}} {
		prog := filepath.Join(dir, form, "prog")
		for k := range want {
			want[k] = filepath.Join(dir, form, want[k])
		}
		for _, o := range []options{{guest: prog}, {guest: prog, debug: prog}} {
			p, err := loadProgram(&o)
			if err != nil || !slices.Equal(o.beside, want) {
				t.Errorf("%s: %q, %v, want %q", form, o.beside, err, want)
				continue
			}
			if o.debug == "" {
				if i, err := p.readSource(&o); err != nil || i.Func("work1") == nil {
					t.Errorf("%s: %v", form, err)
				}
			}
			s := &server{opt: &o, manager: &service.Manager{}}
			c, err := s.jailConfig(&socket{path: filepath.Join(dir, "socket")}, p)
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range want {
				if !slices.Contains(c.Files.Read, file) {
					t.Errorf("%s: confined, the daemon cannot read %s", form, file)
				}
			}
		}
		if len(want) == 0 {
			continue
		}
		if err := os.Remove(want[0]); err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(want[0])
		if form == "clangpackage5" {
			name = "a.dwo"
		}
		if _, err := loadProgram(&options{guest: prog, debug: prog}); err == nil || !strings.HasPrefix(err.Error(), "--debug: ") || !strings.Contains(err.Error(), " is in "+name+", which is not found at ") {
			t.Errorf("%s: --debug without %s: %v", form, name, err)
		}
		o := options{guest: prog}
		p, err := loadProgram(&o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.readSource(&o); err == nil || !strings.Contains(err.Error(), " is in "+name+", which is not found at ") {
			t.Errorf("%s: the source without %s: %v", form, name, err)
		}
		// One that is damaged, and that the confined daemon may not look at again.
		if err := os.WriteFile(want[0], []byte("\x7fELF"), 0o600); err != nil {
			t.Fatal(err)
		}
		o = options{guest: prog}
		if p, err = loadProgram(&o); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(want[0]); err != nil {
			t.Fatal(err)
		}
		if _, err := p.readSource(&o); err == nil || !strings.Contains(err.Error(), want[0]) || strings.Contains(err.Error(), "is not found") {
			t.Errorf("%s: the source with a damaged %s: %v", form, name, err)
		}
	}
}
