package kvm

// TSSAddr is where KVM may keep three pages for real mode on Intel processors
// without "unrestricted guest" (KVM API document, section 4.37).
const TSSAddr = 0xfffbd000

// Bits of the control registers that a guest starts with (SDM Vol. 3, 2.2.1
// and 2.5).
const (
	longCR0  = 1<<0 | 1<<1 | 1<<4 | 1<<5 | 1<<16 | 1<<31 // PE, MP, ET, NE, WP, PG
	longCR4  = 1<<5 | 1<<9 | 1<<10                       // PAE, OSFXSR, OSXMMEXCPT
	longEFER = 1<<8 | 1<<10                              // LME, LMA
)

// LongMode sets s up for 64-bit mode: flat segments as if loaded from these
// selectors, and the control registers, with page tables at root.
func LongMode(s *Sregs, code, data uint16, root uint64) {
	s.CS = CodeSegment(code)
	for _, d := range []*Segment{&s.DS, &s.ES, &s.FS, &s.GS, &s.SS} {
		*d = DataSegment(data)
	}
	s.CR0, s.CR3, s.CR4, s.EFER = longCR0, root, longCR4, longEFER
}

// CodeSegment is a flat 64-bit code segment (SDM Vol. 3, 3.4.5), as the processor
// caches it after loading sel.
func CodeSegment(sel uint16) Segment {
	return Segment{Selector: sel, Limit: 0xffffffff, Typ: 11, Present: 1, DPL: uint8(sel & 3), S: 1, L: 1, G: 1}
}

// DataSegment is a flat data segment.
func DataSegment(sel uint16) Segment {
	return Segment{Selector: sel, Limit: 0xffffffff, Typ: 3, Present: 1, DPL: uint8(sel & 3), S: 1, DB: 1, G: 1}
}

// DescribedSegment returns the segment of a selector whose descriptor is d (SDM
// Vol. 3, 3.4.5), as the processor holds it once it is loaded.
func DescribedSegment(sel uint16, d uint64) Segment {
	s := Segment{
		Selector: sel, Base: d>>16&0xffffff | d>>56<<24, Limit: uint32(d&0xffff | d>>32&0xf0000),
		Typ: uint8(d >> 40 & 0xf), S: uint8(d >> 44 & 1), DPL: uint8(d >> 45 & 3), Present: uint8(d >> 47 & 1),
		AVL: uint8(d >> 52 & 1), L: uint8(d >> 53 & 1), DB: uint8(d >> 54 & 1), G: uint8(d >> 55 & 1),
	}
	if s.G != 0 {
		s.Limit = s.Limit<<12 | 0xfff
	}
	return s
}
