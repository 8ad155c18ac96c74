// Package scriptfiles reads the files that scripts import.
package scriptfiles

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"unicode/utf8"

	"github.com/guestprobe/guestprobe/guest/files"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/script"
)

// Read returns the files that a script imports, directly or through others. name is the path of the script: paths of
// imports begin at the folder of the file that has them. A name without a slash means the current folder. Errors name
// the file, and the one that imports it.
func Read(name, text string) (all []api.ScriptFile, err error) {
	found, err := script.Gather(name, text, script.Reader{Folder: readFolder, File: readFile})
	if err != nil {
		return nil, err
	}
	for _, f := range found {
		all = append(all, api.ScriptFile(f))
	}
	return all, nil
}

// ForCompiler returns the files of a request as the compiler takes them.
func ForCompiler(all []api.ScriptFile) (out []script.File) {
	for _, f := range all {
		out = append(out, script.File(f))
	}
	return out
}

// readFolder returns the names of the files in a folder.
func readFolder(at string) (names []string, isFolder bool, err error) {
	st, err := os.Stat(at)
	if err != nil {
		return nil, false, pathError(at, err)
	}
	if !st.IsDir() {
		return nil, false, nil
	}
	if err := checkWriters(at); err != nil {
		return nil, true, err
	}
	entries, err := os.ReadDir(at)
	if err != nil {
		return nil, true, pathError(at, err)
	}
	for _, e := range entries {
		if st, err := os.Stat(path.Join(at, e.Name())); err == nil && st.IsDir() {
			continue
		}
		names = append(names, e.Name())
	}
	return names, true, nil
}

// readFile reads a file of at most limit bytes.
func readFile(at string, limit int) (string, error) {
	if err := checkWriters(at); err != nil {
		return "", err
	}
	b, err := files.Read(at, int64(limit))
	if errors.Is(err, files.ErrTooLarge) {
		return "", fmt.Errorf("%s: %w: a script and its files have at most %d bytes in all", at, files.ErrTooLarge, script.MaxSource)
	}
	if err != nil {
		return "", err
	}
	for i := 0; i < len(b); { // a request could not carry it unchanged
		c, n := utf8.DecodeRune(b[i:])
		if c == utf8.RuneError && n == 1 {
			return "", fmt.Errorf("%s: byte %d, %#02x, is not UTF-8", at, i+1, b[i])
		}
		i += n
	}
	return string(b), nil
}

// checkWriters rejects what every user of the machine could replace or change: a file or a folder that all may write
// to, or that is in a folder to which all may write. Of a symbolic link both folders count, its own and its target's.
func checkWriters(at string) error {
	target, err := filepath.EvalSymlinks(at)
	if err != nil {
		return pathError(at, err)
	}
	for _, name := range []string{at, path.Dir(at), path.Dir(target)} {
		st, err := os.Stat(name)
		if err != nil {
			return pathError(name, err)
		}
		if st.Mode().Perm()&0o002 != 0 {
			return fmt.Errorf("%s: every user may write to %s (mode %04o): 'chmod o-w' it, or import from another place", at, name, st.Mode().Perm())
		}
	}
	return nil
}

// pathError is an error that begins with the path.
func pathError(at string, err error) error {
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		err = e.Err
	}
	return fmt.Errorf("%s: %w", at, err)
}
