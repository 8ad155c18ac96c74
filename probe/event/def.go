package event

import (
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// Kind is the kind of probe that a definition asks for.
type Kind byte

// The kinds, named by their letter in the language.
const (
	KindProbe  Kind = 'p' // at an instruction
	KindReturn Kind = 'r' // at the return of a function
	KindWatch  Kind = 'w' // at accesses to memory
)

// String returns the letter.
func (k Kind) String() string { return string(rune(k)) }

// DefaultGroup is the group of a definition that names none.
const DefaultGroup = "kprobes"

// Limits of the language, those of Linux 6.12.
const (
	MaxArgs      = 128  // arguments of one definition
	MaxMaxActive = 4096 // activations of one return probe
	maxName      = 63   // bytes of a group or an event name
	maxArgName   = 32   // bytes of an argument name
	maxArgBody   = 63   // bytes of fetch expression and type
	maxArray     = 64   // elements of an array
	MaxText      = 4096 // bytes of a string with its NUL
	maxFixed     = 3072 // bytes of all arguments without what strings hold
	maxStackSlot = 2048 // $stackN and $argN: a kernel stack has no more words
)

// Def is one definition: what Parse makes of a line of kprobe_events. It is
// plain data; nothing in it is resolved against an image.
type Def struct {
	Kind      Kind
	Group     string // never empty
	Event     string // never empty: see AutoName
	AutoName  bool   // Event was made from the place
	MaxActive int    // r only: most activations at a time, 1..MaxMaxActive; 0 = the engine's default
	Place     Place
	Access    probe.Access // w only
	Len       int          // w only: bytes, or 0: see Def.WatchLen
	Args      []Arg

	src *line // nil for a definition that was not parsed
}

// Place is where a probe goes: Symbol with Offset, or, when Symbol is empty,
// Addr.
type Place struct {
	Module string // empty, or what stands before the colon of MODULE:SYMBOL
	Symbol string
	Offset uint64 // bytes, at most 2^32-1
	Addr   guest.GVA
}

// String returns the place as a listing has it: the offset in decimal and
// only where it is not 0. Addresses are printed as they are, not hashed as the
// kernel does.
func (p Place) String() string {
	switch {
	case p.Symbol == "":
		return fmt.Sprintf("0x%x", uint64(p.Addr))
	case p.Offset == 0:
		return p.Qualified()
	}
	return fmt.Sprintf("%s+%d", p.Qualified(), p.Offset)
}

// Qualified returns the symbol with its module, if any: the name that it is looked up by.
func (p Place) Qualified() string {
	if p.Module == "" {
		return p.Symbol
	}
	return p.Module + ":" + p.Symbol
}

// Arg is one value that an event has.
type Arg struct {
	Name  string // argN, counted from 1, where none was written
	Text  string // fetch expression and type as written
	Fetch Fetch
	Type  Type
}

// Name returns group and event, as listings and directories have them.
func (d *Def) Name() string { return d.Group + "/" + d.Event }

// String returns the definition in the canonical form of a listing:
//
//	p:kprobes/myread vfs_read fd=%di count=%dx:u64
//
// Parse of it gives the same definition, except that AutoName is not kept.
func (d *Def) String() string {
	var b strings.Builder
	b.WriteByte(byte(d.Kind))
	if d.Kind == KindReturn && d.MaxActive > 0 {
		fmt.Fprintf(&b, "%d", d.MaxActive)
	}
	fmt.Fprintf(&b, ":%s %s", d.Name(), d.where())
	for _, a := range d.Args {
		fmt.Fprintf(&b, " %s=%s", a.Name, a.Text)
	}
	return b.String()
}

// line returns where the tokens of d stand, in its listing if need be.
func (d *Def) line() *line {
	if d.src != nil {
		return d.src
	}
	return tokenize(d.String())
}

// autoName makes the name of an event that has none. The kernel replaces only
// ". : *"; every other character that a listing could not be parsed with goes
// too, so that symbols such as foo$bar have a name.
func autoName(k Kind, p Place) string {
	name := fmt.Sprintf("%c_%s_%d", k, p.Qualified(), p.Offset)
	if p.Symbol == "" {
		name = fmt.Sprintf("%c_0x%x", k, uint64(p.Addr))
	}
	if len(name) > maxName { // functions may differ behind what is left of their names
		h := fnv.New32a()
		_, _ = h.Write([]byte(name))
		name = fmt.Sprintf("%s_%08x", name[:maxName-9], h.Sum32())
	}
	return identifier(name)
}

// identifier replaces what no event's name has by _.
func identifier(name string) string {
	b := []byte(name)
	for i, c := range b {
		if !isAlpha(c) && !isDigit(c) {
			b[i] = '_'
		}
	}
	return string(b)
}
