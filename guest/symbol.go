package guest

import (
	"errors"
	"fmt"
	"strings"
)

// SymbolKind says what a symbol names.
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
	Size    uint64 // bytes; where the ELF says 0, up to the next symbol or the section's end
	Kind    SymbolKind
	Global  bool
	User    bool // in a segment that CPL3 can use
	Section string
	Label   bool // the file does not say what it names: perhaps data among code
}

// ErrSymbolNotFound is returned for a name that the image does not have.
var ErrSymbolNotFound = errors.New("symbol not found")

// ErrModuleNotFound is the ErrSymbolNotFound of a name MODULE:SYMBOL where the guest's
// kernel can load modules and this one is not there: it may come.
var ErrModuleNotFound = fmt.Errorf("module not loaded: %w", ErrSymbolNotFound)

// MissingSymbolError is an ErrSymbolNotFound with what to do about it.
type MissingSymbolError struct{ Name, Advice string }

func (e *MissingSymbolError) Error() string {
	return fmt.Sprintf("look up %q: %v: %s", e.Name, ErrSymbolNotFound, e.Advice)
}

// Unwrap returns ErrSymbolNotFound.
func (e *MissingSymbolError) Unwrap() error { return ErrSymbolNotFound }

// Advice returns what err says to do about a symbol that is missing, or "".
func Advice(err error) string {
	var e *MissingSymbolError
	if errors.As(err, &e) {
		return e.Advice
	}
	return ""
}

// AmbiguousSymbolError is returned for a name that stands for several
// addresses.
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

// TextMismatchError is returned when the text at Addr is not what a patch
// expected; nothing was changed.
type TextMismatchError struct {
	Addr      GVA
	Want, Got []byte
}

// Error shows both byte strings.
func (e *TextMismatchError) Error() string {
	return fmt.Sprintf("text at %v is % x, expected % x", e.Addr, e.Got, e.Want)
}
