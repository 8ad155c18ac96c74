package probe

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
)

// Forbidden is one function that must not be probed.
type Forbidden struct {
	Start, End guest.GVA // [Start, End)
	Name       string
	Why        string
}

// String returns the line that /sys/kernel/debug/kprobes/blacklist has.
func (f Forbidden) String() string {
	return fmt.Sprintf("%v-%v\t%s", f.Start, f.End, f.Name)
}

// Forbid adds functions to the blacklist, by name; parts that the compiler split off
// ("name.cold") are included. Probes already registered there stay. Errors:
// ErrInHandler, ErrClosed, and an *Error with Index for a name that the image does
// not have; then nothing is added.
func (e *Engine) Forbid(names ...string) error { return e.setForbidden(names, true) }

// Allow reverts Forbid and Options.Blacklist; functions that the image itself forbids
// stay forbidden. Errors: ErrInHandler and ErrClosed.
func (e *Engine) Allow(names ...string) error { return e.setForbidden(names, false) }

func (g *registry) setForbidden(names []string, on bool) error {
	if err := g.lock(); err != nil {
		return err
	}
	defer g.mu.Unlock()
	for i, n := range names {
		if !on {
			break
		}
		if _, err := g.target.Symbols().Lookup(n); err != nil {
			x := newError(CodeSymbolNotFound, fmt.Sprintf("there is no one symbol %q", n), "")
			x.Index, x.Cause = i, err
			return x
		}
	}
	g.view.Lock()
	defer g.view.Unlock()
	for _, n := range names {
		if on {
			g.places.forbidden[n] = true
		} else {
			delete(g.places.forbidden, n)
		}
	}
	return nil
}

// Blacklist returns the functions that must not be probed, ascending by
// address: all of them when the target's Symbols is an Image, else those
// that were forbidden by name.
func (e *Engine) Blacklist() []Forbidden {
	syms := e.target.Symbols()
	var all []guest.Symbol
	e.view.RLock()
	defer e.view.RUnlock()
	if img, ok := syms.(Image); ok {
		all = img.Symbols()
	} else {
		for name := range e.places.forbidden {
			if s, err := syms.Lookup(name); err == nil {
				all = append(all, s)
			}
		}
	}
	out := []Forbidden{}
	for _, s := range all {
		if !syms.IsText(s.Addr) {
			continue
		}
		if why := e.places.forbiddenReason(place{addr: s.Addr, sym: s}); why != "" {
			out = append(out, Forbidden{Start: s.Addr, End: s.Addr + guest.GVA(s.Size), Name: s.Name, Why: why})
		}
	}
	slices.SortFunc(out, func(a, b Forbidden) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), strings.Compare(a.Name, b.Name))
	})
	return out
}

// WriteBlacklist writes the lines of list to w in the kernel's format.
func WriteBlacklist(w io.Writer, list []Forbidden) error {
	var b strings.Builder
	for _, f := range list {
		b.WriteString(f.String())
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}
