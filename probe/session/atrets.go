package session

import (
	"errors"
	"sync"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/source"
)

// makeAtRets makes the probes of a definition of returns that does not replace the
// return address: a kprobe at each instruction that leaves the function, all of one
// event.
func (c *change) makeAtRets(i int, spec Spec, def *event.Def, check bool) error {
	st := c.st
	switch {
	case def.Kind != event.KindReturn:
		return kindFits(def, Spec{Def: spec.Def, AtRets: true})
	case def.MaxActive != 0:
		return unavailableError(spec, "probes at the returns keep nothing from the entry", "leave out the number after r: there is no limit")
	case def.UsesEntry():
		return unavailableError(spec, "probes at the returns keep nothing from the entry", "leave out $argN, or --at-rets")
	}
	img := st.guest.Image()
	var sym guest.Symbol
	var err error
	if def.Place.Symbol != "" {
		sym, err = img.Lookup(def.Place.FullName())
	} else if found, ok := img.Find(def.Place.Addr); ok {
		sym = found
	} else {
		err = guest.ErrSymbolNotFound
	}
	if err != nil {
		return def.RefusalError(symbolError(def.Place.String(), err))
	}
	exits, err := st.exits.find(img, sym)
	if err != nil {
		var refused *probe.Error
		if errors.As(err, &refused) {
			return def.RefusalError(refused)
		}
		return err
	}
	before := len(c.come)
	for _, x := range exits {
		d := *def
		d.Kind, d.Place = event.KindProbe, source.CodePlace(img, x.Addr)
		if err := c.add(i, &Probe{spec: &spec}, &d, check); err != nil {
			// A pattern leaves the function out, with all its exits.
			for _, a := range c.come[before:] {
				delete(c.command, a)
				st.discard(a)
			}
			c.come = c.come[:before]
			return err
		}
	}
	return nil
}

// functionExits finds the instructions that leave functions. It caches the decoding
// of one image.
type functionExits struct {
	mu    sync.Mutex
	img   guest.View
	funcs *probe.Functions
}

func (x *functionExits) find(img guest.View, sym guest.Symbol) ([]probe.Exit, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.img != img {
		x.img, x.funcs = img, probe.NewFunctions(img)
	}
	return x.funcs.Exits(sym)
}
