package session

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/debuginfo"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/script"
	"github.com/guestprobe/guestprobe/probe/source"
)

// makeInSource makes probes of the code addresses of a place in the source, except
// places that cannot be probed.
func (c *change) makeInSource(i int, spec Spec, cmd *event.Command, at event.SourcePlace) error {
	if cmd.AtReturn() {
		return cmd.PlaceError("a place in the source has no return: write r FUNCTION")
	}
	info, by, err := c.st.debugInfo()
	if err != nil {
		e, at := *ErrorOf(err), cmd.PlaceError("")
		e.Column, e.Command = &at.Column, at.Command
		return &e
	}
	places, err := source.Places(info, at)
	if err != nil {
		return cmd.PlaceError(err.Error())
	}
	img := c.st.guest.Image()
	defs := make([]expansion, len(places))
	for k, p := range places {
		defs[k] = expansion{cmd.AtCode(source.CodePlace(img, guest.GVA(p.Addr+by)).String()), p.Function}
	}
	return c.makeEach(i, spec, cmd, defs, "of the places where it is, none can be probed")
}

// Source implements script.Target.
func (t scriptTarget) Source(place string) (places []string, err error) {
	if i := strings.LastIndexByte(place, '@'); i >= 0 && place[0] == '/' {
		return t.sourceInFile(place[:i], place[i+1:])
	}
	at, ok := event.ReadSourcePlace(place)
	if !ok {
		return nil, fmt.Errorf("%s: want FILE:LINE, or inline:FUNCTION", place)
	}
	info, by, err := t.st.debugInfo()
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

// sourceInFile is Source for a place in the source of a file of the guest.
func (t scriptTarget) sourceInFile(path, place string) (places []string, err error) {
	file, line, column, ok := script.SplitSource(place)
	if !ok {
		return nil, fmt.Errorf("%s: want SOURCE:LINE or SOURCE:LINE:COLUMN", place)
	}
	offsets, err := t.st.files.Places(t.st.debugFiles(), path, file, line, column)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	img := t.st.guest.Image()
	var refused error
	for _, off := range offsets {
		sym, err := img.Lookup(fmt.Sprintf("%s:%#x", path, off))
		if err == nil {
			_, err = t.st.engine.Check(&probe.Kprobe{Addr: sym.Addr})
		}
		if refused = errors.Join(refused, err); err == nil {
			places = append(places, source.CodePlace(img, sym.Addr).String())
		}
	}
	if len(places) == 0 {
		return nil, refused
	}
	return places, nil
}

// debugInfo returns the debug information of the guest's program, and its slide.
func (at *attacher) debugInfo() (*debuginfo.Info, uint64, error) {
	info, err := at.source()
	if err != nil {
		return nil, 0, &Error{Code: CodeUnavailable, Errno: syscall.EOPNOTSUPP, Text: "the guest's source is not known", Detail: err.Error(), Err: err}
	}
	by, err := source.Slide(info, at.guest.Image())
	return info, by, err
}
