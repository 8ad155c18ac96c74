package guest

import (
	"errors"
	"fmt"
	"strings"
)

// SymbolKind is the kind of object that a symbol names.
type SymbolKind uint8

// The kinds of symbol that an image keeps.
const (
	SymOther SymbolKind = iota
	SymFunc             // STT_FUNC, or untyped in an executable section
	SymData             // STT_OBJECT, or untyped elsewhere
)

// Symbol is one name of an image.
type Symbol struct {
	Name    string
	Addr    GVA
	Size    uint64 // bytes; if the ELF file says 0, up to the next symbol or the section's end
	Kind    SymbolKind
	Global  bool
	User    bool // in a segment accessible at CPL3
	Section string
	Label   bool // the file does not say what it names: possibly data among code
}

// ErrSymbolNotFound is returned for a name that the image does not have.
var ErrSymbolNotFound = errors.New("symbol not found")

// ErrModuleNotFound is the ErrSymbolNotFound for a name MODULE:SYMBOL if the guest's
// kernel can load modules and has not loaded this one: it may do so later.
var ErrModuleNotFound = fmt.Errorf("module not loaded: %w", ErrSymbolNotFound)

// MissingSymbolError is an ErrSymbolNotFound with advice.
type MissingSymbolError struct{ Name, Advice string }

func (e *MissingSymbolError) Error() string {
	return fmt.Sprintf("look up %q: %v: %s", e.Name, ErrSymbolNotFound, e.Advice)
}

// Unwrap returns ErrSymbolNotFound.
func (e *MissingSymbolError) Unwrap() error { return ErrSymbolNotFound }

// Advice returns the advice of err about a missing symbol, or "".
func Advice(err error) string {
	var e *MissingSymbolError
	if errors.As(err, &e) {
		return e.Advice
	}
	return ""
}

// AmbiguousSymbolError is returned for a name with several addresses.
type AmbiguousSymbolError struct {
	Name  string
	Addrs []GVA // ascending
}

// Error lists the addresses, so that the user can pick one.
func (e *AmbiguousSymbolError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "symbol %q is ambiguous: %d functions have that name, at", e.Name, len(e.Addrs))
	for _, a := range e.Addrs {
		fmt.Fprintf(&b, " %v", a)
	}
	return b.String()
}

// TextMismatchError is returned if the text at Addr differs from what a patch
// expected; nothing was changed.
type TextMismatchError struct {
	Addr      GVA
	Want, Got []byte
}

// Error shows both byte strings.
func (e *TextMismatchError) Error() string {
	return fmt.Sprintf("text at %v is % x, expected % x", e.Addr, e.Got, e.Want)
}
