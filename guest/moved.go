package guest

import "fmt"

// MoveView returns v with all addresses moved by slide bytes: the view of a program
// that runs elsewhere than it was linked.
func MoveView(v View, slide GVA) View {
	if slide == 0 {
		return v
	}
	return moved{v, slide}
}

// moved is the view of a program that was moved.
type moved struct {
	of    View
	slide GVA
}

func (m moved) symbol(s Symbol) Symbol {
	s.Addr += m.slide
	return s
}

func (m moved) symbols(in []Symbol) []Symbol {
	out := make([]Symbol, len(in))
	for i, s := range in {
		out[i] = m.symbol(s)
	}
	return out
}

// ID implements View.
func (m moved) ID() ID {
	id := m.of.ID()
	id.Entry += m.slide
	return id
}

// Lookup implements View.
func (m moved) Lookup(name string) (Symbol, error) {
	s, err := m.of.Lookup(name)
	if err != nil {
		return s, err
	}
	return m.symbol(s), nil
}

// Find implements View.
func (m moved) Find(addr GVA) (Symbol, bool) {
	s, ok := m.of.Find(addr - m.slide)
	return m.symbol(s), ok
}

// Match implements View.
func (m moved) Match(pattern string) []Symbol { return m.symbols(m.of.Match(pattern)) }

// Symbols implements View.
func (m moved) Symbols() []Symbol { return m.symbols(m.of.Symbols()) }

// IsText implements View.
func (m moved) IsText(addr GVA) bool { return m.of.IsText(addr - m.slide) }

// IsUserText implements View.
func (m moved) IsUserText(addr GVA) bool { return m.of.IsUserText(addr - m.slide) }

// Text implements View.
func (m moved) Text(user bool) []Range {
	in := m.of.Text(user)
	out := make([]Range, len(in))
	for i, r := range in {
		r.Start += m.slide
		r.End += m.slide
		out[i] = r
	}
	return out
}

// Code implements View.
func (m moved) Code(addr GVA, n int) []byte { return m.of.Code(addr-m.slide, n) }

// Constant implements View. Words that hold addresses differ, so that nothing is
// known.
func (m moved) Constant(GVA, int) []byte { return nil }

// Data implements View.
func (m moved) Data(lo, hi GVA) string { return m.of.Data(lo-m.slide, hi-m.slide) }

// BlacklistReason implements View.
func (m moved) BlacklistReason(addr GVA) string { return m.of.BlacklistReason(addr - m.slide) }

// FrameRule implements View.
func (m moved) FrameRule(pc GVA) (FrameRule, bool) { return m.of.FrameRule(pc - m.slide) }

// Profile implements View.
func (m moved) Profile() (Profile, error) { return m.of.Profile() }

// Nameless returns the view of a program of which no file is known: it has no
// symbols, and where its code is is not known.
func Nameless() View { return nameless{} }

type nameless struct{}

func (nameless) ID() ID { return ID{} }

func (nameless) Lookup(name string) (Symbol, error) {
	return Symbol{}, fmt.Errorf("%w: %s: the guest's program is not known", ErrSymbolNotFound, name)
}

func (nameless) Find(GVA) (Symbol, bool)         { return Symbol{}, false }
func (nameless) Match(string) []Symbol           { return nil }
func (nameless) Symbols() []Symbol               { return nil }
func (nameless) IsText(GVA) bool                 { return false }
func (nameless) IsUserText(GVA) bool             { return false }
func (nameless) Text(bool) []Range               { return nil }
func (nameless) Code(GVA, int) []byte            { return nil }
func (nameless) Constant(GVA, int) []byte        { return nil }
func (nameless) Data(GVA, GVA) string            { return "" }
func (nameless) BlacklistReason(GVA) string      { return "" }
func (nameless) FrameRule(GVA) (FrameRule, bool) { return FrameRule{}, false }

func (nameless) Profile() (Profile, error) {
	return Profile{}, fmt.Errorf("%w: the guest's program is not known", ErrSymbolNotFound)
}
