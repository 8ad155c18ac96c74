package guest

// Registers is the number of general registers. Debug information numbers them
// (System V ABI for AMD64, figure 3.36).
const Registers = 16

// SavedRegisters says for an instruction where the caller's general registers are, by
// DWARF number: at the CFA plus that many words, 0 for registers that the function
// has not changed or about which nothing is known, or savedGone.
type SavedRegisters [Registers]int8

// savedGone marks a register that is saved elsewhere, or not at all. Functions save
// registers right below the CFA: one whose distance does not fit into 8 bits counts
// as gone.
const savedGone = -128

// savedPlace encodes the place of a register for SavedRegisters.
func savedPlace(how saved, off int64) int8 {
	switch words := off / 8; {
	case how == savedNowhere:
		return 0
	case how == savedAt && off%8 == 0 && words > savedGone && words < -savedGone && words != 0:
		return int8(words)
	}
	return savedGone
}

// SavedRegisters returns the places of the caller's registers for the instruction at
// pc, and false if the image's call frame information has no rule.
func (img *Image) SavedRegisters(pc GVA) (SavedRegisters, bool) {
	img.FrameRule(0) // reads them
	if row := img.frameRow(pc); row != nil {
		return row.saved, true
	}
	return SavedRegisters{}, false
}

// KnownRegisters are the known general registers of a frame, by DWARF number.
type KnownRegisters struct {
	value [Registers]uint64
	known uint16 // a bit for each
}

// Set makes a register known.
func (k *KnownRegisters) Set(n int, v uint64) {
	k.value[n] = v
	k.known |= 1 << n
}

// Get returns a register, and whether it is known.
func (k *KnownRegisters) Get(n int) (uint64, bool) { return k.value[n], k.known>>n&1 != 0 }

// preserved are the registers that a function preserves (System V ABI for AMD64,
// 3.2.1): rbx, rbp, and r12 to r15.
const preserved = 1<<3 | 1<<dwarfRBP | 0xf<<12

// Caller returns the registers of the caller of a frame with k, or of the code that
// it has interrupted: those saved at the frame's CFA, and those that functions
// preserve. word reads a word of the stack. RSP is not included.
func (k KnownRegisters) Caller(cfa uint64, r *FrameRule, s *SavedRegisters, word func(addr uint64) (uint64, bool)) (out KnownRegisters) {
	for n, at := range s {
		switch v, known := k.Get(n); {
		case n == dwarfRSP || at == savedGone:
		case at != 0:
			if v, ok := word(cfa + uint64(8*int64(at))); ok {
				out.Set(n, v)
			}
		// Registers that an interrupt's entry has not saved may have been changed by
		// it since, whatever functions preserve.
		case known && preserved>>n&1 != 0 && !r.Trap:
			out.Set(n, v)
		}
	}
	return out
}
