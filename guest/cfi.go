package guest

import (
	"debug/elf"
	"fmt"
	"slices"
	"sort"
)

// frameRow is the rule from its address up to the next row's.
type frameRow struct {
	start GVA
	rule  FrameRule
	known bool
	saved SavedRegisters
}

// Limits of call frame information.
const (
	maxFrameRows = 4 << 20
	maxFrameData = 256 << 20
	maxFrameCode = 1 << 28 // bytes of instructions that are executed
)

// FrameRule returns the rule for the instruction at pc. It returns false if the
// image's call frame information (sections .debug_frame and .eh_frame) has none, or
// one that needs other registers or expressions. The information is read on the first
// call; later calls allocate nothing.
func (img *Image) FrameRule(pc GVA) (FrameRule, bool) {
	img.framesOnce.Do(func() { img.frames, img.framesErr = img.readFrames() })
	if row := img.frameRow(pc); row != nil {
		return row.rule, true
	}
	return FrameRule{}, false
}

// frameRow returns the rule of pc once frames are read, or nil.
func (img *Image) frameRow(pc GVA) *frameRow {
	rows := img.frames
	i := sort.Search(len(rows), func(i int) bool { return rows[i].start > pc }) - 1
	if i < 0 || !rows[i].known {
		return nil
	}
	return &rows[i]
}

// FrameError returns the error in the image's call frame information, if any;
// information before the damage is still used.
func (img *Image) FrameError() error {
	img.FrameRule(0)
	return img.framesErr
}

func (img *Image) readFrames() (rows []frameRow, err error) {
	p := frameParser{most: maxFrameRows}
	for _, name := range []string{".debug_frame", ".eh_frame"} {
		i := img.file.Index(name)
		if i < 0 || img.file.Sections[i].Is(elf.SHT_NOBITS) {
			continue
		}
		s := &img.file.Sections[i]
		b, e := img.file.Data(i, maxFrameData)
		if e != nil {
			return nil, fmt.Errorf("read call frame information: %s: %w", name, e)
		}
		p.data, p.addr, p.eh, p.cies = b, GVA(s.Addr), name == ".eh_frame", map[int]*cie{}
		if e := p.readSection(); e != nil && err == nil {
			err = fmt.Errorf("read call frame information: %s: %w", name, e)
		}
	}
	return p.sortedRows(), err
}

// frameParser reads one section after the other and collects their rows.
type frameParser struct {
	data []byte
	addr GVA // of data in memory, for .eh_frame
	eh   bool
	cies map[int]*cie
	fdes []frameDesc
	rows int
	most int // rows
	code int // bytes of instructions executed so far
}

// frameDesc is one FDE after execution: the rows of one range of code.
type frameDesc struct {
	start, end GVA
	rows       []frameRow
}

// cie is the common part of the FDEs of a compilation (DWARF 5, 6.4.1).
type cie struct {
	codeAlign uint64
	dataAlign int64
	retReg    uint64
	encoding  uint8 // of addresses, in .eh_frame
	augmented bool
	signal    bool // its code was not called, but interrupted other code
	code      []byte
}

// readSection reads all entries of p.data.
func (p *frameParser) readSection() error {
	for pos := 0; pos < len(p.data); {
		start, b, id, idPos, wide, err := p.entry(pos)
		if err != nil {
			return fmt.Errorf("at %#x: %w", pos, err)
		}
		if b == nil {
			break // the terminator of .eh_frame
		}
		pos = start + len(b)
		if p.isCIE(id, wide) {
			continue // read when an FDE refers to it
		}
		at := int(id)
		if p.eh {
			at = idPos - int(id) // relative to the field itself
		}
		if at < 0 || at >= len(p.data) {
			return fmt.Errorf("at %#x: common information at %#x", idPos, at)
		}
		c, err := p.cie(at)
		if err != nil {
			return fmt.Errorf("common information at %#x: %w", at, err)
		}
		if c == nil {
			continue
		}
		if err := p.fde(c, start+4+4*wide, b[4+4*wide:]); err != nil {
			return fmt.Errorf("at %#x: %w", idPos, err)
		}
	}
	return nil
}

// entry finds the entry at pos: the beginning of its body (with the ID field first),
// the body, and the ID; wide is 1 in the 64-bit format.
func (p *frameParser) entry(pos int) (start int, b []byte, id uint64, idPos, wide int, err error) {
	r := reader{b: p.data, pos: pos}
	n := uint64(r.u32())
	if n == 0 && p.eh {
		return 0, nil, 0, 0, 0, r.err
	}
	if n == 0xffffffff {
		n, wide = r.u64(), 1
	}
	start = r.pos
	idPos = r.pos
	if r.err != nil || n > uint64(len(p.data)-r.pos) || n < uint64(4+4*wide) {
		return 0, nil, 0, 0, 0, fmt.Errorf("entry of %d bytes", n)
	}
	if wide == 1 && !p.eh {
		id = r.u64()
	} else {
		id, wide = uint64(r.u32()), 0
	}
	return start, p.data[start : start+int(n)], id, idPos, wide, nil
}

// isCIE reports whether an ID field is a CIE's.
func (p *frameParser) isCIE(id uint64, wide int) bool {
	switch {
	case p.eh:
		return id == 0
	case wide == 1:
		return id == 1<<64-1
	}
	return id == 0xffffffff
}

// cie returns the CIE at pos, nil if its kind is not supported.
func (p *frameParser) cie(pos int) (*cie, error) {
	if c, ok := p.cies[pos]; ok {
		return c, nil
	}
	p.cies[pos] = nil
	start, b, id, _, wide, err := p.entry(pos)
	if err != nil || b == nil || !p.isCIE(id, wide) {
		return nil, fmt.Errorf("it does not exist (%v)", err)
	}
	r := reader{b: p.data[:start+len(b)], pos: start + 4 + 4*wide}
	c := &cie{}
	version := r.u8()
	aug := r.str()
	if version == 4 {
		if size, seg := r.u8(), r.u8(); size != 8 || seg != 0 {
			return nil, r.err
		}
	}
	c.codeAlign, c.dataAlign = r.uleb(), r.sleb()
	if version == 1 {
		c.retReg = uint64(r.u8())
	} else {
		c.retReg = r.uleb()
	}
	if version != 1 && version != 3 && version != 4 {
		return nil, r.err
	}
	if aug == "S" { // as the GNU assembler writes it in .debug_frame
		c.signal = true
	} else if aug != "" {
		if aug[0] != 'z' {
			return nil, r.err
		}
		c.augmented = true
		end := int(r.uleb()) + r.pos
		for _, ch := range aug[1:] {
			switch ch {
			case 'R':
				c.encoding = r.u8()
			case 'L':
				r.u8()
			case 'P':
				r.readEncoded(r.u8(), p.addr)
			case 'S':
				c.signal = true
			case 'B':
			}
		}
		if end < r.pos && r.err == nil || end > len(r.b) {
			return nil, fmt.Errorf("augmentation %q", aug)
		}
		r.pos = end
	}
	if r.err != nil {
		return nil, r.err
	}
	c.code = r.b[r.pos:]
	p.cies[pos] = c
	return c, nil
}

// fde reads and runs one FDE, whose fields begin at pos.
func (p *frameParser) fde(c *cie, pos int, b []byte) error {
	r := reader{b: p.data[:pos+len(b)], pos: pos}
	var start GVA
	var size uint64
	if p.eh {
		start = GVA(r.readEncoded(c.encoding, p.addr))
		size = r.readEncoded(c.encoding&0x0f, 0)
		if c.augmented {
			n := r.uleb()
			if n > uint64(len(r.b)-r.pos) {
				return fmt.Errorf("augmentation of %d bytes", n)
			}
			r.pos += int(n)
		}
	} else {
		start, size = GVA(r.u64()), r.u64()
	}
	if r.err != nil || size == 0 || uint64(start)+size < uint64(start) {
		return r.err
	}
	// All FDEs may have the same long instructions in their common part.
	if p.code += len(c.code) + len(r.b) - r.pos; p.code > maxFrameCode {
		return fmt.Errorf("more than %d bytes of instructions", maxFrameCode)
	}
	d := frameDesc{start: start, end: start + GVA(size)}
	m := frameMachine{cie: c, at: start}
	if err := m.run(c.code); err != nil {
		return err
	}
	m.initial = m.state
	d.rows = append(d.rows, frameRow{start: start})
	done := false // after the range the rules are irrelevant
	m.emit = func(at GVA) {
		if done {
			return
		}
		done = at >= d.end
		last := &d.rows[len(d.rows)-1]
		last.rule, last.known = m.rule()
		last.saved = m.state.general
		if done = done || p.rows+len(d.rows) >= p.most; done {
			return
		}
		if at > last.start {
			d.rows = append(d.rows, frameRow{start: at})
		}
	}
	if err := m.run(r.b[r.pos:]); err != nil {
		return err
	}
	m.emit(start)
	if p.rows += len(d.rows) + 1; p.rows > p.most {
		return fmt.Errorf("more than %d rows", p.most)
	}
	p.fdes = append(p.fdes, d)
	return nil
}

// sortedRows returns all rows that were read, ascending. If FDEs overlap, the one
// that begins first counts.
func (p *frameParser) sortedRows() []frameRow {
	slices.SortStableFunc(p.fdes, func(a, b frameDesc) int {
		switch {
		case a.start < b.start:
			return -1
		case a.start > b.start:
			return 1
		}
		return 0
	})
	rows := make([]frameRow, 0, p.rows)
	end := GVA(0)
	for _, d := range p.fdes {
		if d.start < end {
			continue
		}
		if n := len(rows); n > 0 && rows[n-1].start == d.start {
			rows = rows[:n-1]
		}
		rows = append(append(rows, d.rows...), frameRow{start: d.end})
		end = d.end
	}
	return rows
}
