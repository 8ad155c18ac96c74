package session

import (
	"errors"
	"sync"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/source"
)

// atRets makes the probes of a definition of returns that leaves the return address
// alone: a kprobe at each instruction by which the function is left, all of one event.
func (c *change) atRets(i int, spec Spec, check bool) error {
	st := c.st
	def, err := event.ParseIn(spec.Def, st.scope(""))
	if err != nil {
		return err
	}
	switch {
	case def.Kind != event.KindReturn:
		return kindFits(def, Spec{Def: spec.Def, AtRets: true})
	case def.MaxActive != 0:
		return unavailable(spec, "probes at the returns keep nothing from the entry", "leave out the number behind r: there is no limit")
	case def.UsesEntry():
		return unavailable(spec, "probes at the returns keep nothing from the entry", "leave out $argN, or --at-rets")
	}
	img := st.guest.Image()
	var sym guest.Symbol
	if def.Place.Symbol != "" {
		sym, err = img.Lookup(def.Place.Qualified())
	} else if found, ok := img.Find(def.Place.Addr); ok {
		sym = found
	} else {
		err = guest.ErrSymbolNotFound
	}
	if err != nil {
		return def.Refused(symbolError(def.Place.String(), err))
	}
	exits, err := st.exits.of(img, sym)
	if err != nil {
		var refused *probe.Error
		if errors.As(err, &refused) {
			return def.Refused(refused)
		}
		return err
	}
	before := len(c.come)
	for _, x := range exits {
		d := *def
		d.Kind, d.Place = event.KindProbe, source.CodePlace(img, x.Addr)
		if err := c.add(i, &Probe{spec: spec, def: &d}, check); err != nil {
			// A pattern leaves the function out: with all its exits.
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

// functionExits finds the instructions by which functions are left. It keeps what it has decoded of one image.
type functionExits struct {
	mu    sync.Mutex
	img   guest.View
	funcs *probe.Functions
}

func (x *functionExits) of(img guest.View, sym guest.Symbol) ([]probe.Exit, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.img != img {
		x.img, x.funcs = img, probe.NewFunctions(img)
	}
	return x.funcs.Exits(sym)
}
