package guest

import (
	"errors"
	"sort"
)

// FrameTable is the call frame information of a file's code.
type FrameTable struct{ rows []tableRow }

// tableRow is the rule from its address up to the next row's.
type tableRow struct {
	start GVA
	rule  FrameRule
	known bool
}

// NewFrameTable reads a section .eh_frame that is at addr in memory, up to its end or
// its terminator, into at most that many rows. If it is damaged, or longer, the table
// has the information before that.
func NewFrameTable(section []byte, addr GVA, most int) (*FrameTable, error) {
	p := frameParser{data: section, addr: addr, eh: true, cies: map[int]*cie{}, most: min(most, maxFrameRows)}
	err := p.readSection()
	t := &FrameTable{}
	for _, row := range p.sortedRows() {
		t.rows = append(t.rows, tableRow{row.start, row.rule, row.known})
	}
	return t, err
}

// Rows is the number of the table's rows.
func (t *FrameTable) Rows() int { return len(t.rows) }

// Rule returns the rule for the instruction at pc, and false if the table has none. It
// allocates nothing.
func (t *FrameTable) Rule(pc GVA) (FrameRule, bool) {
	i := sort.Search(len(t.rows), func(i int) bool { return t.rows[i].start > pc }) - 1
	if i < 0 || !t.rows[i].known {
		return FrameRule{}, false
	}
	return t.rows[i].rule, true
}

// EHFrame returns the address of the section .eh_frame that the header at addr, of a
// section .eh_frame_hdr, has (Linux Standard Base, Core, 10.6.2).
func EHFrame(header []byte, addr GVA) (GVA, error) {
	r := reader{b: header}
	version, encoding := r.u8(), r.u8()
	r.pos += 2
	at := r.readEncoded(encoding, addr)
	if r.err != nil || version != 1 {
		return 0, errors.New("damaged header of call frame information")
	}
	return GVA(at), nil
}
