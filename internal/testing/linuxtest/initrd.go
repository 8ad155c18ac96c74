package linuxtest

import (
	"bytes"
	"fmt"
	"io/fs"
)

// AddFiles returns the initrd followed by one more archive, which has the files
// of fsys below /. The kernel unpacks one after another, packed or not, with
// zeros between them. An archive that is not packed begins at a multiple of 4
// (Linux, init/initramfs.c and
// Documentation/driver-api/early-userspace/buffer-format.rst).
func AddFiles(initrd []byte, fsys fs.FS) ([]byte, error) {
	b := bytes.NewBuffer(bytes.Clone(initrd))
	pad := func() {
		for b.Len()%4 != 0 {
			b.WriteByte(0)
		}
	}
	ino := 0
	entry := func(name string, mode uint32, data []byte) {
		pad()
		ino++
		// Magic, then inode, mode, uid, gid, links, mtime, size, device, device of the node, length
		// of the name with its NUL, sum.
		fmt.Fprintf(b, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
			ino, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0)
		b.WriteString(name)
		b.WriteByte(0)
		pad()
		b.Write(data)
	}
	const regular, directory = 0o100755, 0o40755 // S_IFREG, S_IFDIR and permissions (stat(2))
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		if d.IsDir() {
			entry(name, directory, nil)
			return nil
		}
		data, err := fs.ReadFile(fsys, name)
		if err == nil {
			entry(name, regular, data)
		}
		return err
	})
	entry("TRAILER!!!", 0, nil)
	pad()
	return b.Bytes(), err
}
