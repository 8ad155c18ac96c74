package scriptfiles

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/guestprobe/guestprobe/probe/script"
)

// write makes the files of a map, and the folders that they are in.
func write(t *testing.T, folder string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		at := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRead: the files that a script imports are read by their places, up to the limits of a script.
func TestRead(t *testing.T) {
	d := t.TempDir()
	own := `import "lib"; import "../d.h"; import "` + d + `/abs/x.bt"; BEGIN { }`
	write(t, d, map[string]string{
		"s/main.bt": own, "s/lib/b.bt": `import "deep/c.bt"; macro b() { 1 }`, "s/lib/a.h": "struct a { int x; };", "s/lib/deep/c.bt": `import "../../main.bt";`, "s/lib/deep.bt/no": "",
		"d.h": "", "abs/x.bt": "", "s/lib/.git": "",
	})
	got, err := Read(filepath.Join(d, "s/main.bt"), own)
	var names []string
	for _, f := range got {
		names = append(names, f.Name)
	}
	if all := strings.Join(names, " "); err != nil || all != "lib/a.h lib/b.bt lib/deep/c.bt ../d.h "+d+"/abs/x.bt" {
		t.Fatalf("%q, %v", names, err)
	}
	if got[1].Text != `import "deep/c.bt"; macro b() { 1 }` {
		t.Errorf("text %q", got[1].Text)
	}
	if err := script.Check(filepath.Join(d, "s/main.bt"), own, ForCompiler(got), nil, nil); err != nil {
		t.Error(err)
	}

	write(t, d, map[string]string{"large.bt": strings.Repeat("\n", script.MaxSource), "bytes.bt": "äx\xff", "sticky/a.bt": ""})
	if err := syscall.Mkfifo(filepath.Join(d, "pipe.bt"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(d, "sticky"), 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("sticky/a.bt", filepath.Join(d, "link.bt")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../abs/x.bt", filepath.Join(d, "sticky/link.bt")); err != nil {
		t.Fatal(err)
	}
	for i := range script.MaxFiles + 1 {
		write(t, d, map[string]string{"many/" + strings.Repeat("x", i+1) + ".h": ""})
	}
	in := func(name string) string { return filepath.Join(d, name) }
	for _, c := range []struct{ imported, want string }{
		{"large.bt", in("large.bt") + ": the file is too large: a script and its files have at most 1048576 bytes in all"},
		{"many", "more than 64 files"},
		{"bytes.bt", in("bytes.bt") + ": byte 4, 0xff, is not UTF-8"},
		{"pipe.bt", in("pipe.bt") + ": not a regular file"},
		{"none.bt", in("none.bt") + ": no such file or directory"},
		{"none", in("none") + ": no such file or directory"},
		{"sticky/a.bt", in("sticky/a.bt") + ": every user may write to " + in("sticky") + " (mode 0777): 'chmod o-w' it, or import from another place"},
		{"sticky", in("sticky") + ": every user may write to " + in("sticky") + " (mode 0777): 'chmod o-w' it, or import from another place"},
		{"sticky/link.bt", in("sticky/link.bt") + ": every user may write to " + in("sticky") + " (mode 0777): 'chmod o-w' it, or import from another place"},
		{"link.bt", in("link.bt") + ": every user may write to " + in("sticky") + " (mode 0777): 'chmod o-w' it, or import from another place"},
	} {
		_, err := Read(in("x.bt"), `import "`+c.imported+`";`)
		if want := in("x.bt") + `: import "` + c.imported + `": ` + c.want; err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", c.imported, err, want)
		}
	}
	if err := os.Chmod(in("sticky"), 0o777); err != nil {
		t.Fatal(err)
	}
	write(t, d, map[string]string{"sticky/in/a.bt": "", "y.txt": ""})
	if _, err := Read(in("x.bt"), `import "sticky/in";`); err == nil || !strings.Contains(err.Error(), "every user may write to "+in("sticky")) {
		t.Error(err)
	}
	if got, err := Read(in("x.bt"), `import "sticky/in/a.bt"; import "stdlib"; import "y.bpf.c"; import "y.txt";`); len(got) != 1 || err != nil || got[0].Name != "sticky/in/a.bt" {
		t.Errorf("%v, %v", got, err)
	}
}
