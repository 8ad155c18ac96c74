package probe

import (
	"errors"
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe/code"
)

// detourAlign is the alignment of called code in a detour, to a line of the
// processor's fetch.
const detourAlign = 16

// errNoPlace is the reason why a site has no board.
var errNoPlace = errors.New("no address within reach has an int3 at every instruction boundary of the jump's displacement")

// stageBuilder makes a handler stage for the address at.
type stageBuilder func(at guest.GVA, stages []*Stage) (stageBody, error)

// buildDetour returns the detour of the site's region with the given stages (none: an
// exit). It makes the detour if necessary. Errors: errNoPlace, code.ErrReach, and
// errors that wrap code.ErrNoMemory.
func (o *optimizer) buildDetour(st *site, stages []*Stage) (*detour, error) {
	key := detourKey{addr: st.addr, n: st.region.Len}
	ip, _ := st.reportedAddr()
	for _, x := range stages {
		key.stage += fmt.Sprintf("%v %p ", ip, x)
		if x.Walk > 0 {
			first, _ := o.firstRule(ip) // walkable has asked
			key.stage += fmt.Sprintf("%x ", first)
		}
	}
	copy(key.bytes[:], st.text)
	if d := o.detours[key]; d != nil {
		return d, nil
	}
	d := &detour{key: key, region: *st.region, user: st.user, run: stages}
	copy(d.orig[:], st.text)
	build := o.exitStage(st.user)
	if stages != nil {
		build = o.stageCode(ip, st.user)
	}
	err := o.code.Put(st.addr, st.user, d, func(at guest.GVA) ([]byte, error) { return d.assemble(at, stages, build) })
	if err != nil {
		return nil, err
	}
	for _, x := range stages {
		x.uses++
	}
	d.addr = d.entry
	if len(d.region.Boundaries) != 0 {
		if d.addr, err = o.placeBoard(d); err != nil {
			return nil, err
		}
	}
	o.detours[key] = d
	return d, nil
}

// assemble makes the code of d for address at, and records the addresses of its
// parts.
func (d *detour) assemble(at guest.GVA, stages []*Stage, build stageBuilder) ([]byte, error) {
	body, err := build(at, stages)
	if err != nil {
		return nil, err
	}
	out := body.code
	d.start, d.entry, d.placed, d.touches, d.exit = at, at+guest.GVA(body.entry), body.placed, body.touches, 0
	d.stances, d.ended, d.undone = body.stances, at+guest.GVA(body.ended), at+guest.GVA(body.undone)
	switch {
	case len(stages) == 0:
		d.exit = d.entry
	case body.exit != 0:
		d.exit = at + guest.GVA(body.exit)
	}
	n := len(out)
	copies, starts, err := d.region.AppendCopy(nil, uint64(at)+uint64(n))
	if err != nil {
		return nil, code.ErrReach
	}
	out = append(out, copies...)
	d.copies = d.copies[:0]
	for _, off := range starts {
		d.copies = append(d.copies, at+guest.GVA(n+off))
	}
	d.back = at + guest.GVA(len(out))
	out, ok := x86.AppendJmp(out, uint64(d.back), uint64(d.next()))
	if !ok {
		return nil, code.ErrReach
	}
	d.end = at + guest.GVA(len(out))
	return out, nil
}
