package debuginfo

import (
	"cmp"
	"slices"
)

// Frame is a function that an address is in the code of.
type Frame struct {
	Function string // "" where it is not known
	File     string // "" where the line is not known
	Line     int    // that runs there, or that calls the function before it
	Inlined  bool   // into the function behind it
}

// Frames returns the functions that addr is in the code of: those that are inlined, the
// innermost first, and last the one that they are inlined into. There are none where
// nothing is known of addr.
func (i *Info) Frames(addr uint64) (out []Frame) {
	var err error // of which nothing is told: so much is known
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

// instancesAround returns the instances that addr is in, the innermost first, up to the function
// that they are inlined into.
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
