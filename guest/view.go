package guest

import "crypto/sha256"

// View describes the code that a guest runs: its names, its text, and the structure
// of its functions. *Image is the view of a guest that is one ELF file; package
// guest/linux has that of a Linux kernel, whose text and names change while it runs.
// Methods may be called from any goroutine.
type View interface {
	// ID identifies the program.
	ID() ID

	// Lookup returns the one symbol of that name, ErrSymbolNotFound, or an
	// *AmbiguousSymbolError. Find returns the symbol whose extent contains addr;
	// Match the symbols whose names match a pattern (Glob); Symbols all symbols,
	// ascending by address.
	Lookup(name string) (Symbol, error)
	Find(addr GVA) (Symbol, bool)
	Match(pattern string) []Symbol
	Symbols() []Symbol

	// IsText reports whether addr is code, IsUserText whether it is code of CPL3.
	// Text returns the ranges of the code of one privilege level, ascending.
	IsText(addr GVA) bool
	IsUserText(addr GVA) bool
	Text(user bool) []Range

	// Code returns the guest's own n bytes at addr, without probes; fewer where the
	// text ends. Constant returns n bytes that the guest never changes, or nil.
	// Neither may be changed by the caller.
	Code(addr GVA, n int) []byte
	Constant(addr GVA, n int) []byte

	// Data describes the data in [lo, hi) of the text, or returns ""; BlacklistReason
	// returns why the symbol at addr must not be probed, "" if it may be.
	Data(lo, hi GVA) string
	BlacklistReason(addr GVA) string

	// FrameRule says how to find the caller of the function at pc; it allocates
	// nothing. Profile says how to find the task that a stack belongs to; the error
	// says why that is not known.
	FrameRule(pc GVA) (FrameRule, bool)
	Profile() (Profile, error)
}

// Piece is a part of a guest's code that is loaded, unloaded and changed as a whole:
// a kernel, or one of its modules.
type Piece struct {
	ID   any     // comparable; it changes whenever the code does, also by a reset of the guest
	Text []Range // ascending
	// Link is not nil for code of the image that View.ID names, the same in each boot except for the slide and for the guest's own changes. It
	// changes the image's addresses in p, text at addr, to those that it was linked at, and back again; words that are only partly in p stay.
	Link func(addr GVA, p []byte, back bool)
}

// ID identifies the program of a guest.
type ID struct {
	Entry   GVA               // of the first instruction
	BuildID string            // hexadecimal; "" if the file has none
	SHA256  [sha256.Size]byte // of the file
}

// ID implements View.
func (img *Image) ID() ID { return ID{Entry: img.Entry, BuildID: img.BuildID, SHA256: img.SHA256} }

var _ View = (*Image)(nil)
