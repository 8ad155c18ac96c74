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

// LongMode sets in s what 64-bit mode takes: flat segments as if loaded from these
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
