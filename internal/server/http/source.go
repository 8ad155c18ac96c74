package http

import (
	"fmt"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/debuginfo"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/source"
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

// sourceOf returns the debug information of the guest's program, and its slide.
func sourceOf(g Guest) (*debuginfo.Info, uint64, error) {
	info, err := g.Source()
	if err != nil {
		return nil, 0, &api.Error{Code: api.CodeUnavailable, Errno: "EOPNOTSUPP", Message: "the guest's source is not known", Detail: err.Error()}
	}
	by, err := source.Slide(info, g.Image())
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
	places, err := source.Places(info, at)
	if err != nil {
		return event.NoPlace(spec.Def, err.Error())
	}
	img := c.st.guest.Image()
	defs := make([]placed, len(places))
	for k, p := range places {
		defs[k] = placed{event.AtPlace(spec.Def, source.CodePlace(img, guest.GVA(p.Addr+by)).String()), p.Function}
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
	found, err := source.Places(info, at)
	img := t.st.guest.Image()
	for _, p := range found {
		addr := guest.GVA(p.Addr + by)
		if _, err := t.st.engine.Check(&probe.Kprobe{Addr: addr}); err == nil {
			places = append(places, source.CodePlace(img, addr).String())
		}
	}
	return places, err
}
