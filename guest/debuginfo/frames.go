package debuginfo

import (
	"cmp"
	"slices"
)

// Frame is a function whose code contains an address.
type Frame struct {
	Function string // "" if not known
	File     string // "" if the line is not known
	Line     int    // the line that runs there, or the line of the call of the preceding function
	Inlined  bool   // into the next function
}

// Frames returns the functions whose code contains addr: inlined ones, the innermost
// first, and last the function that they are inlined into. It returns none if nothing
// is known about addr.
func (i *Info) Frames(addr uint64) (out []Frame) {
	var err error // not reported: the result so far is still valid
	i.mu.Lock()
	defer i.mu.Unlock()
	defer guard(&err)()
	n, ok := i.unitAt(addr)
	if !ok {
		return nil
	}
	c, err := i.contents(n)
	if err != nil {
		return nil
	}
	file, line, known := c.line(addr)
	for _, x := range c.instancesAround(addr) {
		out = append(out, Frame{x.name, file, line, x.inlined})
		file, line = c.file(x.calledFile), int(x.calledLine)
	}
	if len(out) == 0 && known {
		out = []Frame{{File: file, Line: line}}
	}
	return out
}

// file returns the name of a file by its number, or "".
func (c *contents) file(n int64) string {
	if n < 0 || n >= int64(len(c.files)) || c.files[n] == nil {
		return ""
	}
	return c.files[n].Name
}

// instancesAround returns the instances that contain addr, the innermost first, up to
// the function that they are inlined into.
func (c *contents) instancesAround(addr uint64) []*instance {
	var out []*instance
	for n := range c.instances {
		if within(c.instances[n].ranges, addr) {
			out = append(out, &c.instances[n])
		}
	}
	slices.SortStableFunc(out, func(a, b *instance) int { return cmp.Compare(b.depth, a.depth) })
	if n := slices.IndexFunc(out, func(x *instance) bool { return !x.inlined }); n >= 0 {
		out = out[:n+1]
	}
	return out
}
