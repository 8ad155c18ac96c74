package files

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// TestTrusted: what others can write to, replace or redirect is refused, as sshd's StrictModes refuses it.
func TestTrusted(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	in := func(names ...string) string { return strings.Join(append([]string{dir}, names...), "/") }
	for name, mode := range map[string]os.FileMode{"own": 0o755, "group": 0o775, "open": 0o777, "sticky": 0o777 | os.ModeSticky} {
		must(os.Mkdir(in(name), 0o700))
		must(os.WriteFile(in(name, "file"), nil, 0o644))
		must(os.WriteFile(in(name, "bad"), nil, 0o600))
		must(os.Chmod(in(name, "bad"), 0o622))
		must(os.Chmod(in(name), mode))
		if os.Geteuid() == 0 {
			must(os.Chown(in(name), 0, 12345))
		}
	}
	must(os.Symlink("own", in("folderlink")))
	must(os.Symlink("../own/file", in("sticky", "link")))
	must(os.Symlink(in("open", "file"), in("own", "out")))
	must(os.Symlink("loop", in("own", "loop")))
	must(os.Mkdir(in("open", "folder"), 0o755))
	must(os.Symlink("../open/folder", in("own", "away")))
	must(os.Symlink("away/../file", in("own", "back")))
	must(os.Symlink("/", in("own", "root")))
	for name, want := range map[string]struct{ trusted, private string }{
		"own":                        {"", ""},
		"own/file":                   {"", ""},
		"own/none":                   {"", ""},
		"own/none/deeper":            {"", ""},
		"own/bad":                    {"may write to " + in("own", "bad"), "may write to " + in("own", "bad")},
		"group/file":                 {"may write to " + in("group"), "may write to " + in("group")},
		"open/none":                  {"may write to " + in("open"), "may write to " + in("open")},
		"sticky/file":                {"", ""},
		"sticky":                     {"may write to " + in("sticky"), "may write to " + in("sticky")},
		"folderlink":                 {"", "is a symbolic link"},
		"folderlink/file":            {"", ""},
		"sticky/link":                {"", "is a symbolic link"},
		"own/out":                    {"may write to " + in("open"), "is a symbolic link"},
		"own/away/../file":           {"may write to " + in("open"), "may write to " + in("open")},
		"own/back":                   {"may write to " + in("open"), "is a symbolic link"},
		"own/root":                   {"", "is a symbolic link"},
		"own/./file":                 {"", ""},
		"sticky/../own/../own//file": {"", ""},
		"own/loop":                   {"too many levels of symbolic links", "is a symbolic link"},
	} {
		for what, x := range map[string]struct {
			err  error
			want string
		}{"Trusted": {CheckTrusted(in(name)), want.trusted}, "Private": {CheckPrivate(in(name)), want.private}} {
			if (x.err == nil) != (x.want == "") || x.err != nil && !strings.Contains(x.err.Error(), x.want) {
				t.Errorf("%s(%s): %v, want %q", what, name, x.err, x.want)
			}
			if x.err != nil && !strings.HasPrefix(x.err.Error(), in(name)+": ") {
				t.Errorf("%s(%s): %v", what, name, x.err)
			}
		}
	}
	if os.Geteuid() != 0 {
		return // the rest gives files to others
	}
	must(os.Mkdir(in("private"), 0o700)) // of a user's own group
	must(os.WriteFile(in("private", "file"), nil, 0o664))
	must(os.Chown(in("private", "file"), 12345, 12345))
	must(os.Chmod(in("private", "file"), 0o664))
	if err := CheckTrusted(in("private", "file"), 12345); err != nil {
		t.Error(err)
	}
	must(os.Chmod(in("private", "file"), 0o666))
	if err := CheckTrusted(in("private", "file"), 12345); err == nil {
		t.Error("a file that everybody may write to is trusted")
	}
	must(os.Chown(in("own", "file"), 12345, -1))
	if err := CheckTrusted(in("own", "file")); !errors.Is(err, ErrUntrusted) || !strings.Contains(err.Error(), "belongs to user 12345") {
		t.Error(err)
	}
	if err := CheckTrusted(in("own", "file"), 12345); err != nil {
		t.Error(err)
	}
	t.Setenv("SUDO_UID", "12345")
	if err := CheckTrusted(in("own", "file")); err != nil {
		t.Error(err)
	}
	t.Setenv("SUDO_UID", "")
	must(os.Lchown(in("sticky", "link"), 12345, -1)) // another user's link in a folder writable by all
	if err := CheckTrusted(in("sticky", "link")); err == nil {
		t.Error("a link of somebody else is followed")
	}
}
