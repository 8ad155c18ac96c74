package source

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/debuginfo"
	"github.com/guestprobe/guestprobe/guest/linux"
)

// Bounds of the functions that are looked up for output, whose number and size the guest decides.
const (
	maxFiles   = 64                     // files of which results are kept
	maxAddrs   = 1 << 16                // addresses of one file
	maxInlined = 64                     // functions inlined in one another
	maxName    = 1024                   // bytes of a function's name
	maxPath    = 4096                   // bytes of a source file's name
	maxLooking = 20 * time.Second       // for one file
	askAgain   = 500 * time.Millisecond // how long missing debug information is not looked for again
)

// frames keeps the results of Files.Frames.
type frames struct {
	mu    sync.Mutex
	files map[linux.DebugVersion]*fileFrames
}

// fileFrames are the results of one version of a file.
type fileFrames struct {
	mu      sync.Mutex
	known   map[guest.GVA][]debuginfo.Frame
	spent   time.Duration
	missing time.Time // when its debug information was last found missing
}

// forVersion returns the results of a version.
func (k *frames) forVersion(version linux.DebugVersion) *fileFrames {
	k.mu.Lock()
	defer k.mu.Unlock()
	if f := k.files[version]; f != nil {
		return f
	}
	if k.files == nil || len(k.files) >= maxFiles {
		k.files = map[linux.DebugVersion]*fileFrames{}
	}
	f := &fileFrames{known: map[guest.GVA][]debuginfo.Frame{}}
	k.files[version] = f
	return f
}

// Frames returns the functions whose code contains the byte of a file at an address of the guest's view (debuginfo.Info.Frames), for
// output. It returns none if the debug information does not know the address, is not there, or has taken too long so far.
func (fs *Files) Frames(in DebugFiles, addr guest.GVA) []debuginfo.Frame {
	if in == nil {
		return nil
	}
	version, ok := in.DebugVersionAt(addr)
	if !ok {
		return nil
	}
	f := fs.frames.forVersion(version)
	f.mu.Lock()
	defer f.mu.Unlock()
	if found, ok := f.known[addr]; ok {
		return found
	}
	if f.spent >= maxLooking || len(f.known) >= maxAddrs || time.Since(f.missing) < askAgain {
		return nil
	}
	from := time.Now()
	defer func() { f.spent += time.Since(from) }()
	file, err := in.DebugAt(addr)
	if err != nil {
		f.missing = from
		return nil
	}
	info, err := fs.read(file)
	if err != nil {
		f.missing = from
		return nil
	}
	var found []debuginfo.Frame
	if at, ok := file.Address(linux.FileByte(addr)); ok {
		found = limitFrames(info.Frames(at))
	}
	f.known[addr] = found
	return found
}

// limitFrames returns the functions within the bounds: of too many, the innermost and the last.
func limitFrames(all []debuginfo.Frame) []debuginfo.Frame {
	if n := len(all); n > maxInlined {
		all = append(all[:maxInlined-1], all[n-1])
	}
	cut := func(s string, most int) string { return strings.ToValidUTF8(s[:min(len(s), most)], "\uFFFD") }
	all = slices.Clip(all)
	for i := range all {
		all[i].Function, all[i].File = cut(all[i].Function, maxName), cut(all[i].File, maxPath)
	}
	return all
}
