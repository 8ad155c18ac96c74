package source

import (
	"errors"
	"strings"
	"sync"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/debuginfo"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/guest/types"
)

// DebugFiles are the files of a guest. linux.Programs are some.
type DebugFiles interface {
	DebugFile(path string) (*linux.DebugFile, error)
	DebugAt(addr guest.GVA) (*linux.DebugFile, error)
	DebugVersionAt(addr guest.GVA) (version linux.DebugVersion, ok bool)
}

// Files keeps the debug information of files of a guest. The zero value is valid. Methods may be called from any goroutine.
type Files struct {
	mu    sync.Mutex
	infos map[string]keptInfo // by the file's path

	frames frames
}

// keptInfo is the debug information of one version of a file.
type keptInfo struct {
	*debuginfo.Info
	of linux.DebugVersion
}

// maxInfos bounds the files whose debug information is kept.
const maxInfos = 16

// errNoFiles is returned for a guest without files.
var errNoFiles = errors.New("only programs of a Linux guest are in files")

// Info returns the debug information of the file at path. Errors are the errors of DebugFile and of debuginfo.New.
func (fs *Files) Info(in DebugFiles, path string) (*debuginfo.Info, error) {
	info, _, err := fs.open(in, path)
	return info, err
}

func (fs *Files) open(in DebugFiles, path string) (*debuginfo.Info, *linux.DebugFile, error) {
	if in == nil {
		return nil, nil, errNoFiles
	}
	f, err := in.DebugFile(path)
	if err != nil {
		return nil, nil, err
	}
	info, err := fs.read(f)
	return info, f, err
}

// read returns the debug information of a file.
func (fs *Files) read(f *linux.DebugFile) (*debuginfo.Info, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	kept := fs.infos[f.Path]
	if kept.Info == nil || kept.of != f.Version {
		info, err := debuginfo.New(f.File, f.Open)
		if err != nil {
			return nil, err
		}
		if fs.infos == nil || len(fs.infos) >= maxInfos {
			fs.infos = map[string]keptInfo{}
		}
		kept = keptInfo{info, f.Version}
		fs.infos[f.Path] = kept
	}
	return kept.Info, nil
}

// Func returns the prototype of the function of PATH:FUNCTION, whose code is at that offset in the file, or nil. why says why it is not
// known, or why its parameters are not where the prototype puts them.
func (fs *Files) Func(in DebugFiles, place string, offset uint64) (proto *types.FuncProto, why string) {
	i := strings.LastIndexByte(place, ':')
	info, f, err := fs.open(in, place[:max(i, 0)])
	if err != nil {
		return nil, err.Error()
	}
	addr, _ := f.Address(offset)
	if proto, why = info.FuncAt(place[i+1:], addr); proto == nil && why == "" {
		why = "the file's debug information does not have the function"
	}
	return proto, why
}

// Places returns the offsets in the file at path of the code of a line of its source; column 0 is any. Errors are the errors of Info and
// of debuginfo.Info.Places.
func (fs *Files) Places(in DebugFiles, path, file string, line, column int) (offsets []uint64, err error) {
	info, f, err := fs.open(in, path)
	if err != nil {
		return nil, err
	}
	found, err := info.PlacesInColumn(file, line, column)
	for _, p := range found {
		if off, ok := f.FileOffset(p.Addr); ok {
			offsets = append(offsets, off)
		}
	}
	return offsets, err
}
