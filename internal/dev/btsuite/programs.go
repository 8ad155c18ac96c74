package btsuite

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/debuginfo"
	"github.com/guestprobe/guestprobe/probe/script"
)

// inGuest is the folder of upstream's test programs in the guest: as long as ./testprogs/, so that columns in messages are the same.
const inGuest = "/_testprogs/"

// programs are upstream's test programs as files of the guest.
type programs struct {
	dir    string // where they are on this machine; "": nowhere
	opened map[string]*debuginfo.Info
}

// errNoProgram is the reason why nothing is known about a file.
var errNoProgram = errors.New("it was not compiled with debug information")

// info returns the debug information of a program, by its path in the guest: its own, or the separate one that upstream names in
// --debuginfo.
func (p *programs) info(file string) (*debuginfo.Info, error) {
	name, ok := strings.CutPrefix(file, inGuest)
	if p == nil || p.dir == "" || !ok || path.Clean(name) != name || strings.HasPrefix(name, "..") {
		return nil, errNoProgram
	}
	if info := p.opened[name]; info != nil {
		return info, nil
	}
	at := filepath.Join(p.dir, name)
	if separate := filepath.Join(p.dir, "external_debug", name+".debug"); isFile(separate) {
		at = separate
	}
	if !isFile(at) {
		return nil, errNoProgram
	}
	info, err := debuginfo.Open(at, "")
	if err == nil {
		p.opened[name] = info
	}
	return info, err
}

// SeparateDebug returns the files below external_debug in the folder of programs that have the debug information of
// others, by the paths of those in a guest.
func SeparateDebug(dir string) map[string]string {
	copies := map[string]string{}
	files, _ := filepath.Glob(filepath.Join(dir, "external_debug", "*.debug")) // the pattern is right
	for _, file := range files {
		copies[inGuest+strings.TrimSuffix(filepath.Base(file), ".debug")] = file
	}
	return copies
}

func isFile(name string) bool {
	st, err := os.Stat(name)
	return err == nil && st.Mode().IsRegular()
}

// Func returns the prototype of PATH:FUNCTION.
func (p *programs) Func(name string) (*btf.FuncProto, string) {
	i := strings.LastIndexByte(name, ':')
	info, err := p.info(name[:max(i, 0)])
	if err != nil {
		return nil, err.Error()
	}
	return info.Func(name[i+1:]), info.Convention(name[i+1:])
}

// Source returns the places of a line in the source of a program, PATH@SOURCE:LINE.
func (p *programs) Source(place string) (places []string, err error) {
	file, at, _ := strings.Cut(place, "@")
	info, err := p.info(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	source, line, column, ok := script.SplitSource(at)
	if !ok {
		return nil, fmt.Errorf("%s: want SOURCE:LINE", at)
	}
	found, err := info.PlacesInColumn(source, line, column)
	for _, x := range found {
		places = append(places, fmt.Sprintf("%s:%#x", file, x.Addr))
	}
	return places, err
}
