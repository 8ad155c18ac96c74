package event

import (
	"strings"

	"github.com/guestprobe/guestprobe/probe"
)

// A probe of a tracepoint is written
//
//	t[:[GRP/]EVENT] TRACEPOINT [ARGS]
//
// as in the kernel's dynamic_events (Documentation/trace/fprobetrace.rst). It probes
// the function that a tracepoint calls while several functions are registered on it.
// The tracepoint's arguments follow the first parameter of that function.

// iteratorPrefix is the kernel's prefix of that function's name before the
// tracepoint's name (include/linux/tracepoint.h).
const iteratorPrefix = "__traceiter_"

// Tracepoint returns the tracepoint of a t definition, "" for other definitions.
func (d *Def) Tracepoint() string {
	if d.Kind != KindTracepoint {
		return ""
	}
	return strings.TrimPrefix(d.Place.Symbol, iteratorPrefix)
}

// tracepoint reads the place of a t definition.
func (p *parser) tracepoint(text string) error {
	for i := range len(text) {
		if c := text[i]; !isAlpha(c) && !isDigit(c) && c != '_' {
			return p.fail(1, i, CodeBadTPName)
		}
	}
	p.def.Place.Symbol = iteratorPrefix + text
	if err := p.locate(); err != nil {
		e := p.fail(1, 0, CodeNoTracepoint)
		e.Detail = "the guest's kernel has no tracepoint " + text
		if _, ok := p.scope.Symbols.(probe.Kernel); !ok {
			e.Detail = "only a Linux guest has tracepoints"
		}
		return e
	}
	return nil
}
