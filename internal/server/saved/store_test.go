package saved

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/files"
	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
)

// FuzzState: any file of --state is rejected, or can be written and read again without a change.
func FuzzState(f *testing.F) {
	for _, seed := range []string{
		"", "{", "null", "[]", `{"version":2}`, `{"version":-1}`, `{"probes":[{"def":"p:kprobes/a vfs_read","stay":true}]}`,
		`{"version":1,"probes":[{"def":"x"}],"objects":[{"attach":{"object":"AAA=","section":"kprobe/x"},"probes":{"a/b":true},"maps":[{"name":"m","entries":[[["AA==","AQ=="]]]}]}],"disarmed":true}`,
		`{"version":1,"scripts":[{"run":{"script":"BEGIN { }","detach":"x"}}],"pending":{"probes":[{"def":"p x"}],"pending":{}},"leftOut":["x"]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := decode(b)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\x1b") {
				t.Errorf("an error of several lines: %q", err)
			}
			return
		}
		x.Version = version
		once, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		y, err := decode(once)
		if err != nil {
			t.Fatalf("%v: %s", err, once)
		}
		if twice, err := json.Marshal(y); err != nil || !bytes.Equal(once, twice) {
			t.Errorf("%s is read as %s: %v", once, twice, err)
		}
		k := &Store{pending: x.Attachments}
		k.Forget(false, "a", "kprobes/a")
		k.Forget(true, "x")
		_ = k.PendingNames()
	})
}

// TestStateThroughLink: for a path with a link followed by .., the folder that the kernel would open is checked.
func TestStateThroughLink(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"own": 0o700, "open": 0o777, "private": 0o700} {
		for _, d := range []string{name, name + "/sub"} {
			if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"open", "private"} {
		if err := os.Symlink("../"+name+"/sub", filepath.Join(dir, "own", "to-"+name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(dir + "/own/to-open/../state"); !errors.Is(err, files.ErrUntrusted) {
		t.Errorf("in a folder that others may write to: %v", err)
	}
	for _, at := range []string{"own/state", "open/state"} {
		if _, err := os.Lstat(filepath.Join(dir, at)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", at, err)
		}
	}
	k, err := Open(dir + "/own/to-private/../state")
	if err != nil {
		t.Fatal(err)
	}
	k.Close()
	if want := filepath.Join(dir, "private", "state", fileName); k.Path() != want {
		t.Errorf("kept in %s, want %s", k.Path(), want)
	}
}
