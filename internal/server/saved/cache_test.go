package saved

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/flow"
)

var cachedID = guest.ID{BuildID: "0123456789abcdef0123"}

// openCache opens the cache in dir. It logs to the returned buffer.
func openCache(t *testing.T, dir string) (*Cache, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	c, err := OpenCache(dir, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return c, &log
}

// scan scans the text of a small kernel with the cache, and reports whether the cache did not have the scan.
func scan(t *testing.T, c *Cache, id guest.ID) (needed bool) {
	t.Helper()
	const base = 0xffff_ffff_8100_0000
	code := []byte{0xe8, 0, 0, 0, 0, 0x90, 0xe9, 0xf0, 0xff, 0xff, 0xff, 0xc3}
	text := flow.Text{
		Ranges: []flow.Span{{Lo: base, Hi: base + uint64(len(code))}},
		Spans: func() []flow.Span {
			return []flow.Span{{Lo: base, Hi: base + 6}, {Lo: base + 6, Hi: base + uint64(len(code))}}
		},
		Read:  func(addr uint64, p []byte) bool { return copy(p, code[addr-base:]) == len(p) },
		Text:  func(addr uint64) bool { return addr-base < uint64(len(code)) },
		Scans: c.Scans(id),
	}
	before := c.timer
	b := flow.NewBuilder(text.Text)
	if !b.AddText(text) {
		t.Fatal("it cannot be read")
	}
	return c.timer != before
}

// TestCache: a kernel's text is scanned only once. Files that are damaged, or belong to another kernel or user, are not used.
func TestCache(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache", "text")
	c, _ := openCache(t, dir)
	if !scan(t, c, cachedID) || scan(t, c, cachedID) {
		t.Error("a new cache has scans, or forgets them")
	}
	c.Close()
	path := filepath.Join(dir, cachedID.BuildID+cacheSuffix)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]os.FileMode{dir: 0o700, path: 0o600} {
		if st, err := os.Lstat(p); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s has mode %v, %v", p, st.Mode(), err)
		}
	}
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.WriteFile(elsewhere, good, 0o600); err != nil {
		t.Fatal(err)
	}
	write := func(b []byte, mode os.FileMode) func() error {
		return func() error {
			if err := os.WriteFile(path, b, mode); err != nil {
				return err
			}
			return os.Chmod(path, mode)
		}
	}
	for _, tt := range []struct {
		what   string
		put    func() error
		needed bool
		log    string
	}{
		{"as it was written", write(good, 0o600), false, ""},
		{"not there", func() error { return nil }, true, ""},
		{"cut off", write(good[:len(good)-1], 0o600), true, "damaged"},
		{"empty", write(nil, 0o600), true, "damaged"},
		{"another version", write(append(slices.Concat(good[:7], []byte{9}), good[8:]...), 0o600), true, "version"},
		{"with a byte changed", write(append(slices.Clone(good[:60]), append([]byte{good[60] ^ 4}, good[61:]...)...), 0o600), true, "damaged"},
		{"of a group's", write(good, 0o620), true, "others can write"},
		{"of everybody's", write(good, 0o666), true, "others can write"},
		{"a link", func() error { return os.Symlink(elsewhere, path) }, true, "too many levels"},
		{"a folder", func() error { return os.Mkdir(path, 0o700) }, true, "no regular file"},
		{"a pipe", func() error { return syscall.Mkfifo(path, 0o600) }, true, "no regular file"},
		{"too large", func() error {
			if err := write(good, 0o600)(); err != nil {
				return err
			}
			return os.Truncate(path, flow.MaxScans+1)
		}, true, "more than"},
	} {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if err := tt.put(); err != nil {
			t.Fatal(err)
		}
		c, log := openCache(t, dir)
		if got := scan(t, c, cachedID); got != tt.needed {
			t.Errorf("%s: scanned: %v", tt.what, got)
		}
		if tt.log == "" && log.Len() > 0 || !strings.Contains(log.String(), tt.log) {
			t.Errorf("%s: the log is %q, want %q in it", tt.what, log, tt.log)
		}
		c.Close()
		if b, err := os.ReadFile(elsewhere); err != nil || !bytes.Equal(b, good) {
			t.Errorf("%s: what a link leads to has changed: %v", tt.what, err)
		}
		if st, err := os.Lstat(path); err != nil || tt.what != "a folder" && (!st.Mode().IsRegular() || st.Mode().Perm() != 0o600) {
			t.Errorf("%s: afterwards it has mode %v, %v", tt.what, st.Mode(), err)
		}
	}
	if c, _ := openCache(t, dir); !scan(t, c, guest.ID{BuildID: "../../../0123456789abcdef"}) {
		t.Error("another kernel has scans")
	} else {
		c.Close()
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 2 {
		t.Errorf("%v, %v", all, err)
	}
}

// TestCachePruned: opening the folder removes the oldest files and nothing else.
func TestCachePruned(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for k := range maxCached + 3 {
		path := filepath.Join(dir, fmt.Sprintf("%d%s", k, cacheSuffix))
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Unix(int64(1000-k), 0)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c, _ := openCache(t, dir)
	c.Close()
	all, err := os.ReadDir(dir)
	if err != nil || len(all) != maxCached+1 {
		t.Errorf("%d files, %v", len(all), err)
	}
	for _, e := range all {
		if n := e.Name(); n != "mine" && n[0]-'0' >= maxCached {
			t.Errorf("%s is there", n)
		}
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenCache(dir, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a folder of everybody's is used")
	}
}
