package http

import (
	"errors"
	"fmt"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/debuginfo"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// readSource reads the debug information of the program: that of the file at path, or
// where that is "" of the image itself.
func (p bootable) readSource(path string) (*debuginfo.Info, error) {
	switch {
	case path != "":
		return debuginfo.Open(path, p.buildID())
	case p.linux != nil:
		return nil, fmt.Errorf("%w: give guestprobed --debug FILE, the kernel's vmlinux with it", debuginfo.ErrNone)
	}
	return readImageSource(p.image)
}

// readImageSource reads that of an image.
func readImageSource(img *guest.Image) (*debuginfo.Info, error) {
	return debuginfo.OpenImage(img.Path, func(name string) ([]byte, error) { return img.SectionData(name, debuginfo.MaxSection) })
}

// slide returns how far the guest's program is from where its debug information has it.
func slide(info *debuginfo.Info, img guest.View) (uint64, error) {
	name, addr, ok := info.Anchor()
	if !ok {
		return 0, nil
	}
	s, err := img.Lookup(name)
	if errors.Is(err, guest.ErrSymbolNotFound) {
		return 0, nil // no Linux
	}
	return uint64(s.Addr) - addr, err
}

// sourceOf returns the debug information of the guest's program, and its slide.
func sourceOf(g Guest) (*debuginfo.Info, uint64, error) {
	info, err := g.Source()
	if err != nil {
		return nil, 0, &api.Error{Code: api.CodeUnavailable, Errno: "EOPNOTSUPP", Message: "the guest's source is not known", Detail: err.Error()}
	}
	by, err := slide(info, g.Image())
	return info, by, err
}

// addSource notes the source of each instruction.
func addSource(d *api.Disas, info *debuginfo.Info, by uint64) {
	for i := range d.Insts {
		if file, line, ok := info.Line(uint64(d.Insts[i].Addr) - by); ok {
			d.Insts[i].Source = fmt.Sprintf("%s:%d", file, line)
		}
	}
}

// AddSource notes the source of each instruction of a function of img.
func AddSource(d *api.Disas, img *guest.Image) error {
	info, err := readImageSource(img)
	if err == nil {
		addSource(d, info, 0)
	}
	return err
}

// source makes probes of the places of the code that a place in the source stands for, but
// for those that cannot be probed.
func (c *change) source(i int, spec api.ProbeSpec, at event.SourcePlace) error {
	if strings.HasPrefix(strings.TrimSpace(spec.Def), "r") {
		return event.NoPlace(spec.Def, "a place in the source has no return: write r FUNCTION")
	}
	info, by, err := sourceOf(c.st.guest)
	if err != nil {
		e, at := *toAPI(err), event.NoPlace(spec.Def, "")
		e.Column, e.Command = &at.Column, at.Command
		return &e
	}
	places, err := inSource(info, at)
	if err != nil {
		return event.NoPlace(spec.Def, err.Error())
	}
	img := c.st.guest.Image()
	defs := make([]placed, len(places))
	for k, p := range places {
		defs[k] = placed{event.AtPlace(spec.Def, codePlace(img, guest.GVA(p.Addr+by)).String()), p.Function}
	}
	return c.each(i, spec, defs, "of the places where it is, none can be probed")
}

// Source implements script.Target.
func (t scriptTarget) Source(place string) (places []string, err error) {
	at, ok := event.InSource("p " + place)
	if !ok {
		return nil, fmt.Errorf("%s: want FILE:LINE, or inline:FUNCTION", place)
	}
	info, by, err := sourceOf(t.st.guest)
	if err != nil {
		return nil, err
	}
	found, err := inSource(info, at)
	img := t.st.guest.Image()
	for _, p := range found {
		addr := guest.GVA(p.Addr + by)
		if _, err := t.st.engine.Check(&probe.Kprobe{Addr: addr}); err == nil {
			places = append(places, codePlace(img, addr).String())
		}
	}
	return places, err
}

// codePlace returns how a definition names an address.
func codePlace(img guest.View, addr guest.GVA) event.Place {
	if s, ok := img.Find(addr); ok {
		p := event.Place{Module: event.ModuleOf(img, addr), Symbol: s.Name, Offset: uint64(addr - s.Addr)}
		if _, err := img.Lookup(p.Qualified()); err == nil { // the name is that of one function
			return p
		}
	}
	return event.Place{Addr: addr}
}
