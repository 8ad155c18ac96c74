package guest

// Bits of a page-table entry, any level (SDM Vol. 3, 4.5.4, tables 4-15 to
// 4-20).
const (
	ptePresent  = 1 << 0
	pteWrite    = 1 << 1
	pteUser     = 1 << 2
	ptePWT      = 1 << 3
	ptePCD      = 1 << 4
	pteAccessed = 1 << 5
	pteDirty    = 1 << 6
	ptePS       = 1 << 7 // the entry maps a page: 1 GiB at level 3, 2 MiB at level 2
	pteGlobal   = 1 << 8
	pteNX       = 1 << 63
	pteKeyShift = 59 // of the 4 bits of the protection key

	// pteAddr are the bits that hold a physical address (51:12).
	pteAddr = 0x000f_ffff_ffff_f000
	maxPhys = 1 << 52
)

// Page sizes of the levels that can map one.
const (
	page4K = 1 << 12
	page2M = 1 << 21
	page1G = 1 << 30
)
