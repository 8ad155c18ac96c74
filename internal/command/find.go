package command

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Find returns the path of another program of the project: the one beside our
// own binary, else the one in PATH. The error names both places.
func Find(name string) (string, error) {
	self, err := os.Executable()
	if err == nil {
		p := filepath.Join(filepath.Dir(self), name)
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Mode().Perm()&0o111 != 0 {
			return p, nil
		}
	}
	p, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s: %w: it is neither beside %s nor in PATH", name, exec.ErrNotFound, filepath.Base(os.Args[0]))
	}
	return p, nil
}
