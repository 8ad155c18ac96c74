package saved

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/files"
	"github.com/guestprobe/guestprobe/probe/flow"
)

const (
	// maxCached is how many files OpenCache keeps in the folder: the newest ones. There is one file per kernel.
	maxCached = 8
	// cacheSuffix is the suffix of the files' names.
	cacheSuffix = ".scans"
	// cacheDelay is how long a write is delayed after a new scan, so that it includes later scans.
	cacheDelay = time.Second
)

// Cache is a folder with the results of scans of kernels' text, one file for each build ID. It ignores files that are damaged or that other
// users could have written. Any goroutine may use it.
type Cache struct {
	dir   string
	owner []int // accepted owners of files: our user, and the one that the daemon changes to
	log   *slog.Logger

	mu    sync.Mutex
	name  string // file name of scans
	scans *flow.Scans
	timer *time.Timer // runs the next write; nil: no write is scheduled
}

// OpenCache opens the folder, and creates it if necessary. It removes the oldest files. It returns an error if other users can write to the folder. user
// is the user that the daemon will change to.
func OpenCache(dir string, log *slog.Logger, user ...int) (*Cache, error) {
	if err := files.CheckPrivate(dir, user...); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	c := &Cache{dir: dir, owner: append([]int{os.Geteuid()}, user...), log: log}
	return c, c.prune()
}

// Dir returns the folder.
func (c *Cache) Dir() string { return c.dir }

// prune removes the oldest files.
func (c *Cache) prune() error {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	type file struct {
		path string
		at   time.Time
	}
	var all []file
	for _, e := range entries {
		if st, err := e.Info(); err == nil && st.Mode().IsRegular() && strings.HasSuffix(e.Name(), cacheSuffix) {
			all = append(all, file{filepath.Join(c.dir, e.Name()), st.ModTime()})
		}
	}
	slices.SortFunc(all, func(a, b file) int { return b.at.Compare(a.at) })
	for _, f := range all[min(len(all), maxCached):] {
		if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Scans returns the scans of the kernel with this ID, or an empty set for a new kernel. New scans are written to the file after cacheDelay.
func (c *Cache) Scans(id guest.ID) *flow.Scans {
	name := id.BuildID
	if b, err := hex.DecodeString(name); err != nil || len(b) < 8 || len(b) > 64 {
		name = hex.EncodeToString(id.SHA256[:])
	}
	name = strings.ToLower(name) + cacheSuffix
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.scans != nil && c.name == name {
		return c.scans
	}
	c.write()
	s, err := c.read(name)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			c.log.Warn("scans of the kernel's text are not taken from the cache, and made again", "file", filepath.Join(c.dir, name), "err", err)
		}
		s = flow.NewScans()
	}
	s.OnChange(c.schedule)
	c.name, c.scans = name, s
	return s
}

// read reads a file, and returns an error if it is damaged or other users can write to it.
func (c *Cache) read(name string) (*flow.Scans, error) {
	f, err := os.OpenFile(filepath.Join(c.dir, name), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	switch owner := int(st.Sys().(*syscall.Stat_t).Uid); {
	case !st.Mode().IsRegular():
		return nil, errors.New("no regular file")
	case !slices.Contains(c.owner, owner):
		return nil, fmt.Errorf("it belongs to user %d", owner)
	case st.Mode().Perm()&0o022 != 0:
		return nil, fmt.Errorf("others can write to it (mode %v)", st.Mode().Perm())
	case st.Size() > flow.MaxScans:
		return nil, fmt.Errorf("%d bytes, more than %d", st.Size(), flow.MaxScans)
	}
	b, err := io.ReadAll(io.LimitReader(f, flow.MaxScans+1))
	if err != nil {
		return nil, err
	}
	return flow.DecodeScans(b)
}

// schedule schedules a write after cacheDelay.
func (c *Cache) schedule() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer == nil {
		c.timer = time.AfterFunc(cacheDelay, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.write()
		})
	}
}

// write writes the file if a write is scheduled. Callers hold mu.
func (c *Cache) write() {
	if c.timer == nil {
		return
	}
	c.timer.Stop()
	c.timer = nil
	path := filepath.Join(c.dir, c.name)
	if st, err := os.Lstat(path); err == nil && !st.Mode().IsRegular() {
		_ = os.Remove(path) // if this fails, so does the replacement below
	}
	err := files.ReplaceLink(path, 0o600, func(f *os.File) error {
		_, err := f.Write(c.scans.Encode())
		return err
	})
	if err != nil {
		c.log.Warn("scans of the kernel's text are not kept: the next daemon makes them again", "file", path, "err", err)
	}
}

// Close writes new scans to the file. It does nothing for a nil Cache.
func (c *Cache) Close() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.write()
}
