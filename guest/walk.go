package guest

// Step is an entry of the page tables that the walk for an address reads.
type Step struct {
	Level int // 5 (PML5E) or 4 (PML4E) to 1 (PTE)
	At    GPA // where the entry is
	Entry uint64
	Leaf  bool // it maps a page, if it maps anything
}

// trail is the steps of one walk.
type trail struct {
	steps [5]Step
	n     int
}

func (t *trail) addStep(s Step, read bool) {
	if read {
		t.steps[t.n] = s
		t.n++
	}
}

// Walk is Translate, and also returns the entries that were read on the way: for an
// address that is not mapped, as far as the walk got. It returns none for memory with
// a fixed address (Home).
func (as AddressSpace) Walk(va GVA) ([]Step, Mapping, error) {
	var t trail
	m, level, reason := as.walk(as.mem.Regions(), va, &t)
	if reason != 0 {
		return t.steps[:t.n], Mapping{}, &PageFaultError{VA: va, Level: level, Reason: reason}
	}
	return t.steps[:t.n], m, nil
}

// Key returns the protection key of the page at va (SDM Vol. 3, 4.6.2), which counts if the guest uses
// them; 0 for an address that is not mapped. It allocates nothing.
func (as AddressSpace) Key(va GVA) uint8 {
	var t trail
	if _, _, reason := as.walk(as.mem.Regions(), va, &t); reason != 0 || t.n == 0 {
		return 0
	}
	return uint8(t.steps[t.n-1].Entry >> pteKeyShift & 15)
}

// Levels returns the number of levels of tables: 4 or 5.
func (as AddressSpace) Levels() int {
	if as.deep {
		return 5
	}
	return 4
}

// Name returns the name of the table's entries (SDM Vol. 3, table 4-2).
func (s Step) Name() string {
	return [...]string{"?", "PTE", "PDE", "PDPTE", "PML4E", "PML5E"}[s.Level]
}

// Index returns the index of the entry in its table, 0 to 511.
func (s Step) Index() int { return int(s.At >> 3 & 511) }

// Points returns the physical address of the next table, or of the page.
func (s Step) Points() GPA {
	if s.Leaf && s.Level > 1 {
		return GPA(s.Entry & pteAddr &^ (1<<(12+9*(s.Level-1)) - 1))
	}
	return GPA(s.Entry & pteAddr)
}

// Flags returns the names of the bits that are set, as SDM Vol. 3, tables 4-15 to
// 4-20, has them. If the entry is not present it returns none, because the bits are
// then the guest's.
func (s Step) Flags() []string {
	if s.Entry&ptePresent == 0 {
		return nil
	}
	out := []string{"P"}
	for _, b := range []struct {
		bit  uint64
		name string
		leaf bool // only if it maps a page
	}{
		{pteWrite, "RW", false}, {pteUser, "US", false}, {ptePWT, "PWT", false}, {ptePCD, "PCD", false}, {pteAccessed, "A", false},
		{pteDirty, "D", true}, {pteGlobal, "G", true},
	} {
		if s.Entry&b.bit != 0 && (s.Leaf || !b.leaf) {
			out = append(out, b.name)
		}
	}
	pat := uint64(ptePS) // in a PTE bit 7 means PAT
	if s.Leaf && s.Level > 1 {
		pat = 1 << 12
		out = append(out, "PS")
	}
	if s.Leaf && s.Entry&pat != 0 {
		out = append(out, "PAT")
	}
	if s.Entry&pteNX != 0 {
		out = append(out, "XD")
	}
	return out
}
