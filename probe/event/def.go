package event

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// Kind is the kind of a definition's probe.
type Kind byte

// The kinds, named by their letter in the language.
const (
	KindProbe  Kind = 'p' // at an instruction
	KindReturn Kind = 'r' // at the return of a function
	KindWatch  Kind = 'w' // at accesses to memory

	KindTracepoint Kind = 't' // at a tracepoint of the guest's kernel
)

// String returns the letter.
func (k Kind) String() string { return string(rune(k)) }

// defaultGroup is the group of a definition without one, and TracepointGroup is that
// of a t definition.
const (
	defaultGroup    = "kprobes"
	TracepointGroup = "tracepoints"
)

// Limits of the language, the same as in Linux 6.12.
const (
	MaxArgs      = 128  // arguments of one definition
	MaxMaxActive = 4096 // activations of one return probe
	maxName      = 63   // bytes of a group or an event name
	maxArgName   = 32   // bytes of an argument name
	maxArgBody   = 63   // bytes of fetch expression and type
	maxArray     = 64   // elements of an array
	MaxText      = 4096 // bytes of a string with its NUL
	maxFixed     = 3072 // bytes of all arguments, without the contents of strings
	maxStackSlot = 2048 // $stackN and $argN: a kernel stack has no more words
)

// Def is one definition: the result of parsing a line of kprobe_events. It is plain
// data; no part of it is resolved against an image.
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

// Place is the place of a probe: Symbol with Offset or, if Symbol is empty, Addr.
type Place struct {
	Module string // empty, or the part of MODULE:SYMBOL before the colon
	Symbol string
	Offset uint64 // bytes, at most 2^32-1
	Addr   guest.GVA

	// Semaphore, of a place in a file by its offset, is which byte of the file is the first of a number that counts the probes there
	// (ref_ctr_offset of the kernel's uprobes); 0 = no such number.
	Semaphore uint64
}

// String formats the place as a listing does: with the offset in decimal if it is not
// 0. Addresses are printed as they are, not hashed as the kernel does.
func (p Place) String() string {
	switch {
	case p.Symbol == "":
		return fmt.Sprintf("0x%x", uint64(p.Addr))
	case p.Semaphore != 0:
		return fmt.Sprintf("%s(0x%x)", p.FullName(), p.Semaphore)
	case p.Offset == 0:
		return p.FullName()
	}
	return fmt.Sprintf("%s+%d", p.FullName(), p.Offset)
}

// FullName returns the symbol with its module, if any: the name for lookups.
func (p Place) FullName() string {
	if p.Module == "" {
		return p.Symbol
	}
	return p.Module + ":" + p.Symbol
}

// Arg is one value of an event.
type Arg struct {
	Name  string // argN, counted from 1, if it was not named
	Text  string // fetch expression and type as written
	Fetch Fetch
	Type  Type
}

// Name returns group and event, as in listings and directories.
func (d *Def) Name() string { return d.Group + "/" + d.Event }

// String returns the definition in the canonical form of a listing:
//
//	p:kprobes/myread vfs_read fd=%di count=%dx:u64
//
// Parsing it gives the same definition, except that AutoName is not kept.
func (d *Def) String() string { return strings.Join(d.tokens(), " ") }

// tokens returns the tokens of String.
func (d *Def) tokens() []string {
	head := d.Kind.String()
	if d.Kind == KindReturn && d.MaxActive > 0 {
		head += strconv.Itoa(d.MaxActive)
	}
	tokens := make([]string, 0, 2+len(d.Args))
	tokens = append(tokens, head+":"+d.Name(), d.placeText())
	for _, a := range d.Args {
		tokens = append(tokens, a.Name+"="+a.Text)
	}
	return tokens
}

// line returns the tokens of d, from its listing if necessary.
func (d *Def) line() *line {
	if d.src != nil {
		return d.src
	}
	return &line{command: d.String(), tokens: d.tokens()}
}

// ForgetLine frees the line that d was parsed from. Later errors show d as a listing does. It must not
// be called while another goroutine uses d.
func (d *Def) ForgetLine() {
	if len(d.Args) == 0 { // a listing of arguments may be longer than the line
		d.src = nil
	}
}

// autoName makes a name for an event without one. The kernel replaces only ". : *";
// this also replaces every other character that a listing could not be parsed with,
// so that symbols such as foo$bar have a name.
func autoName(k Kind, p Place) string {
	name := fmt.Sprintf("%c_%s_%d", k, p.FullName(), p.Offset)
	switch {
	case k == KindTracepoint: // as in the kernel its own name
		name = strings.TrimPrefix(p.Symbol, iteratorPrefix)
		if isDigit(name[0]) {
			name = "_" + name
		}
	case p.Symbol == "":
		name = fmt.Sprintf("%c_0x%x", k, uint64(p.Addr))
	}
	if len(name) > maxName { // functions may differ only after the part of the name that is kept
		h := fnv.New32a()
		_, _ = h.Write([]byte(name))
		name = fmt.Sprintf("%s_%08x", name[:maxName-9], h.Sum32())
	}
	return identifier(name)
}

// identifier replaces characters that an event's name cannot have by _.
func identifier(name string) string {
	b := []byte(name)
	for i, c := range b {
		if !isAlpha(c) && !isDigit(c) {
			b[i] = '_'
		}
	}
	return string(b)
}
