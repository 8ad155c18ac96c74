package debuginfo

import (
	"cmp"
	"debug/dwarf"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/guest/dies"
)

// row is the beginning of the code of a line.
type row struct {
	addr uint64
	file string
	line int
	col  int  // 0: not known
	stmt bool // a place for breakpoints
	end  bool // the code ends here

	prologue bool // the function's prologue ends here
}

// maxRows bounds the lines of one unit.
const maxRows = 1 << 22

// readRows returns the rows of a unit, ascending by address, and its files.
func (i *Info) readRows(n int) ([]row, []*dwarf.LineFile, error) {
	r, err := i.units[n].LineReader()
	if err != nil {
		return nil, nil, fmt.Errorf("read line numbers: %w", err)
	}
	var out []row
	var e dwarf.LineEntry
	for r != nil {
		err := r.Next(&e)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && len(out) == maxRows {
			err = fmt.Errorf("more than %d", maxRows)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read line numbers: %w", err)
		}
		x := row{addr: e.Address, line: e.Line, col: e.Column, stmt: e.IsStmt, end: e.EndSequence, prologue: e.PrologueEnd}
		if e.File != nil {
			x.file = e.File.Name
		}
		out = append(out, x)
	}
	slices.SortStableFunc(out, func(a, b row) int {
		if a.addr == b.addr && a.end && !b.end {
			return -1 // another sequence begins where one ends
		}
		if a.addr == b.addr && b.end && !a.end {
			return 1
		}
		return cmp.Compare(a.addr, b.addr)
	})
	if r == nil {
		return out, nil, nil
	}
	return out, r.Files(), nil
}

// Line returns the source line of the code at addr.
func (i *Info) Line(addr uint64) (file string, line int, ok bool) {
	var err error
	i.mu.Lock()
	defer i.mu.Unlock()
	defer guard(&err)()
	n, in := i.unitAt(addr)
	if !in {
		return "", 0, false
	}
	c, err := i.contents(n)
	if err != nil {
		return "", 0, false
	}
	return c.line(addr)
}

// line is Line, for one unit.
func (c *contents) line(addr uint64) (file string, line int, ok bool) {
	at, _ := slices.BinarySearchFunc(c.rows, addr+1, func(r row, addr uint64) int {
		if r.addr < addr {
			return -1
		}
		return 1
	})
	if at == 0 || c.rows[at-1].end || c.rows[at-1].line == 0 {
		return "", 0, false
	}
	return c.rows[at-1].file, c.rows[at-1].line, true
}

// NoLineError is returned for a line without code.
type NoLineError struct {
	File string // as in the query
	Line int
	Next int // the next line with code; 0: no later line has code, or there is no such file

	Column  int   // as in the query; 0: any
	Columns []int // of the line, if only the column has no code

	NoFile bool // no file of the debug information has this name
}

// Error says which lines have code.
func (e *NoLineError) Error() string {
	if len(e.Columns) > 0 {
		return fmt.Sprintf("%s:%d has no code in column %d: it has some in %s", e.File, e.Line, e.Column, strings.Trim(fmt.Sprint(e.Columns), "[]"))
	}
	if e.NoFile {
		return fmt.Sprintf("%s:%d has no code: the debug information has no file of this name", e.File, e.Line)
	}
	if e.Next == 0 {
		return fmt.Sprintf("%s:%d has no code", e.File, e.Line)
	}
	return fmt.Sprintf("%s:%d has no code: the next line with code is %d", e.File, e.Line, e.Next)
}

// isFile reports whether name ends in the path asked.
func isFile(name, asked string) bool {
	name, asked = path.Clean(name), path.Clean(asked)
	return name == asked || strings.HasSuffix(name, "/"+asked)
}

// Place is the beginning of a line.
type Place struct {
	Addr     uint64
	Function string // the function of the line, if known; others may also begin there
}

// Places returns the addresses where a line of a file begins, ascending: one in each
// function, and in each inlined copy of one. The file is the end of a path. Errors
// are *NoLineError, and errors in the format.
func (i *Info) Places(file string, line int) (out []Place, err error) {
	return i.PlacesInColumn(file, line, 0)
}

// PlacesInColumn is Places for the code of one column of the line; 0: of any.
func (i *Info) PlacesInColumn(file string, line, column int) (out []Place, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	defer guard(&err)()
	next, hasFile := 0, false
	var columns []int
	for n := range i.units {
		if !i.hasFile(n, file) {
			continue
		}
		hasFile = true
		c, err := i.contents(n)
		if err != nil {
			return nil, err
		}
		var found []uint64
		for _, r := range c.rows {
			if r.end || !r.stmt || r.line < line || !isFile(r.file, file) {
				continue
			}
			if r.line > line {
				if next == 0 || r.line < next {
					next = r.line
				}
				continue
			}
			if column != 0 && r.col != column {
				columns = append(columns, r.col)
				continue
			}
			found = append(found, r.addr)
		}
		had := map[dwarf.Offset]bool{}
		for _, addr := range found {
			if in := c.instancesAround(addr); len(in) > 0 && !had[in[0].at] {
				had[in[0].at] = true
				out = append(out, Place{addr, i.functionOf(c, in, file, line)})
			}
		}
		if len(out) > maxPlaces {
			return nil, fmt.Errorf("%s:%d is at more than %d places", file, line, maxPlaces)
		}
	}
	if len(out) == 0 {
		slices.Sort(columns)
		return nil, &NoLineError{File: file, Line: line, Next: next, NoFile: !hasFile, Column: column, Columns: slices.Compact(columns)}
	}
	slices.SortFunc(out, func(a, b Place) int { return cmp.Compare(a.Addr, b.Addr) })
	return slices.CompactFunc(out, func(a, b Place) bool { return a.Addr == b.Addr }), nil
}

// functionOf returns which of the functions around an address a line belongs to: the
// one that begins last before the line in its file. Functions of C are not nested.
func (i *Info) functionOf(c *contents, around []*instance, file string, line int) (name string) {
	last := int64(0)
	for _, x := range around {
		e := i.entryAt(x.at)
		if e == nil {
			continue
		}
		in, owner := i.attributeOwner(e, dwarf.AttrDeclFile)
		at := i.attribute(e, dwarf.AttrDeclLine)
		if in == nil || at == nil {
			continue
		}
		number, _ := in.Val.(int64)
		files := c
		if u := i.data.UnitOf(owner.Offset); u != i.data.UnitOf(e.Offset) {
			files = &contents{files: filesOf(u)}
		}
		if from, ok := at.Val.(int64); ok && from > last && from <= int64(line) && isFile(files.file(number), file) {
			name, last = x.name, from
		}
	}
	return name
}

// hasFile reports whether a unit has lines of such a file.
func (i *Info) hasFile(n int, file string) bool {
	if i.units[n].Kind != dies.Compile {
		return false // its lines are in the units that import it
	}
	return slices.ContainsFunc(filesOf(i.units[n]), func(f *dwarf.LineFile) bool { return f != nil && isFile(f.Name, file) })
}

// filesOf returns the files of a unit.
func filesOf(u *dies.Unit) []*dwarf.LineFile {
	r, err := u.LineReader()
	if err != nil || r == nil {
		return nil
	}
	return r.Files()
}
