package guest

import "crypto/sha256"

// View is what is known of the code that a guest runs: its names, its text, and how
// its functions are built. *Image is the view of a guest that is one ELF file; package
// guest/linux has that of a Linux kernel, whose text and names change while it runs.
// Methods may be called from any goroutine.
type View interface {
	// ID says which program it is.
	ID() ID

	// Lookup returns the one symbol of that name, ErrSymbolNotFound, or an
	// *AmbiguousSymbolError. Find returns the symbol whose extent holds addr; Match
	// those whose names match a pattern (Glob); Symbols all, ascending by address.
	Lookup(name string) (Symbol, error)
	Find(addr GVA) (Symbol, bool)
	Match(pattern string) []Symbol
	Symbols() []Symbol

	// IsText reports whether addr is code, IsUserText whether it is code of CPL3.
	// Text returns the ranges of the code of one privilege level, ascending.
	IsText(addr GVA) bool
	IsUserText(addr GVA) bool
	Text(user bool) []Range

	// Code returns the n bytes that the guest itself has at addr, without probes; fewer
	// where the text ends. Constant returns n bytes that the guest never changes, or nil.
	// Neither may be changed by the caller.
	Code(addr GVA, n int) []byte
	Constant(addr GVA, n int) []byte

	// Data says what in [lo, hi) of the text is data, "" for nothing; Blacklisted why
	// nothing in the symbol at addr may be probed, "" if that may be.
	Data(lo, hi GVA) string
	Blacklisted(addr GVA) string

	// FrameRule says how to find the caller of the function at pc; it allocates nothing.
	// Profile says how to find the task that a stack belongs to; its error says why that
	// is not known.
	FrameRule(pc GVA) (FrameRule, bool)
	Profile() (Profile, error)
}

// Piece is a part of a guest's code that comes, goes and changes as a whole: a kernel, or a
// module of its.
type Piece struct {
	ID   any     // comparable, and another one when the code is another, of a guest that was reset too
	Text []Range // ascending
}

// ID says which program a guest runs.
type ID struct {
	Entry   GVA               // of the first instruction
	BuildID string            // hexadecimal; "" when the file has none
	SHA256  [sha256.Size]byte // of the file
}

// ID implements View.
func (img *Image) ID() ID { return ID{Entry: img.Entry, BuildID: img.BuildID, SHA256: img.SHA256} }

var _ View = (*Image)(nil)
