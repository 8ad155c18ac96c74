package http

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/guestprobe/guestprobe/internal/server/saved"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/session"
)

// restorer describes the attachments of the guest, for snapshots and the file of
// --state, and attaches them again. Any goroutine may use it, except that a
// description is made while no attachment changes.
type restorer struct {
	*scriptHost
}

// useState makes k store clients' attachments to this daemon from now on. It is
// called before clients are served; k may be nil.
func (re *restorer) useState(k *saved.Store) {
	if re.state = k; k == nil {
		return
	}
	k.Use(re.log, func() (on *saved.Attachments, err error) {
		err = re.probes.RunExclusive(func() error {
			on = re.attachments(isOthers)
			on.Release()
			return nil
		})
		return on, err
	})
}

// restoreState attaches the attachments of the previous daemon's clients.
// Attachments that fail stay in the file and are tried again at each reset and
// start; they are not an error.
func (re *restorer) restoreState() error {
	f, err := re.state.Read(re.opt.stateUsers()...)
	if f == nil || err != nil {
		return err
	}
	pending := re.attachAll(&f.Attachments)
	if f.Pending != nil {
		f.Pending.Disarmed = false
		pending.Add(re.attachAll(f.Pending))
	}
	re.state.AddPending(pending)
	re.markOrigin(api.OriginRestored)
	re.log.Info("what clients had attached is restored", "probes", len(re.probes.Probes()), "scripts", len(re.scripts.list()), "not", len(pending.Words()))
	return nil
}

// restorePending attaches the probes and scripts that could not be attached to
// the guest before it was reset.
func (re *restorer) restorePending() {
	k := re.state
	if k == nil || len(k.PendingNames()) == 0 {
		return
	}
	on := k.TakePending()
	k.AddPending(re.attachAll(&on))
	k.MarkChanged()
}

// markOrigin sets the origin of all probes and scripts that have none yet. It is
// called before clients are served.
func (re *restorer) markOrigin(origin string) {
	for _, a := range re.probes.Probes() {
		if a.Label() == "" {
			a.SetLabel(origin)
		}
	}
	for _, k := range re.scripts.list() {
		if k.origin == "" {
			k.origin = origin
		}
	}
}

// isOthers reports whether attachments of that origin come back without the
// daemon's state: through its flags or its fleet.
func isOthers(origin string) bool { return origin == api.OriginStart || origin == api.OriginFleet }

// reportLost logs the clients' attachments that end with the daemon for good,
// and returns how many there are.
func (re *restorer) reportLost() int {
	var lost []string
	for _, a := range re.probes.Probes() {
		if !isOthers(a.Label()) && a.Stays() && (a.Object() == nil || a.Object().Script() == nil) {
			lost = append(lost, a.Name())
		}
	}
	for _, k := range re.scripts.list() {
		if !isOthers(k.origin) {
			lost = append(lost, "script "+k.req.Detach)
		}
	}
	if len(lost) > 0 {
		const most = 20
		re.log.Warn("what clients have attached goes with the daemon: --state DIR keeps it", "number", len(lost), "first", lost[:min(len(lost), most)])
	}
	return len(lost)
}

// attachments describes the guest's attachments without the contents of maps. It
// leaves out those whose origin without accepts, and holds the objects with maps
// until release. Callers hold changes.
func (re *restorer) attachments(without func(origin string) bool) *saved.Attachments {
	on := &saved.Attachments{Disarmed: !re.probes.Armed()}
	left := func(format string, args ...any) { on.LeftOut = append(on.LeftOut, fmt.Sprintf(format, args...)) }
	objects := map[*session.Object]int{}
	owners := map[*session.Owner]bool{}
	for _, a := range re.probes.Probes() {
		spec, obj := re.probes.SpecOf(a), a.Object()
		switch {
		case without(a.Label()):
		case obj != nil && obj.Script() != nil:
			// The script is saved instead.
		case obj != nil && obj.Spec() != nil:
			i, known := objects[obj]
			if !known {
				if i, known = on.HoldObject(obj, saved.Object{Attach: wireObject(obj.Spec()), Probes: map[string]bool{}}); !known {
					continue
				}
				objects[obj] = i
			}
			on.Objects[i].Probes[a.Name()] = !spec.Disabled
		case a.Owner() != nil && !a.Stays():
			left("probe %s, which is of the client that traces it", a.Name())
		default:
			on.Probes = append(on.Probes, wireSpec(&spec))
		}
	}
	for _, k := range re.scripts.list() {
		owners[k.owner()] = true
		if without(k.origin) {
			continue
		}
		if !on.HoldScript(k.loaded.Object(), saved.Script{Run: k.req}) {
			left("script %s, which has ended", k.req.Detach)
		}
	}
	for _, a := range re.probes.Probes() {
		if obj := a.Object(); obj != nil && obj.Script() != nil && !owners[a.Owner()] {
			owners[a.Owner()] = true
			left("a script that prints to the client that has started it")
		}
	}
	return on
}

// fillMaps replaces the contents of an object's maps with the saved contents,
// and logs the maps for which this fails.
func (re *restorer) fillMaps(of string, o *session.Object, maps []saved.Map) {
	for _, sm := range maps {
		m := o.Maps()[sm.Name]
		if m == nil {
			re.log.Warn("a map of the snapshot is not there any more", "of", of, "map", sm.Name)
			continue
		}
		sm.Entries = slices.DeleteFunc(sm.Entries, func(e [][]byte) bool { return len(e) < 2 })
		if err := m.Restore(sm.Entries); err != nil {
			re.log.Warn("a map's contents cannot be restored", "of", of, "map", sm.Name, "err", err)
		}
	}
}

// attachAll attaches saved attachments to the guest again. It logs and returns
// those that cannot be attached.
func (re *restorer) attachAll(on *saved.Attachments) *saved.Attachments {
	left := &saved.Attachments{}
	cannot := func(what string, err error) {
		re.log.Warn("an attachment cannot be restored", "what", what, "err", err)
	}
	if on.Disarmed {
		if err := re.probes.SetArmed(false); err != nil {
			cannot("the knob", err)
		}
	}
	// A daemon that restores a snapshot may have attached the contents of its
	// --state already.
	there := map[string]bool{}
	for _, a := range re.probes.Probes() {
		there[a.Def().String()] = true
	}
	probes := slices.DeleteFunc(on.Probes, func(spec api.ProbeSpec) bool { return there[spec.Def] })
	if _, err := re.probes.Attach(probeSpecs(probes), nil); err != nil {
		for _, spec := range probes { // one by one, then: the others can be
			if _, err := re.probes.Attach([]session.Spec{specOf(&spec)}, nil); err != nil {
				cannot(spec.Def, err)
				left.Probes = append(left.Probes, spec)
			}
		}
	}
	for i := range on.Objects {
		o := &on.Objects[i]
		if a, err := re.probes.AttachObject(objectSpec(&o.Attach)); err != nil {
			cannot("programs "+o.Attach.Section, err)
			left.Objects = append(left.Objects, *o)
		} else {
			re.restoreObject(o, a.Probes)
		}
	}
	for i := range on.Scripts {
		sc := &on.Scripts[i]
		if err := re.scripts.reserve(sc.Run.Detach); err != nil {
			cannot("script "+sc.Run.Detach, err)
			left.Scripts = append(left.Scripts, *sc)
			continue
		}
		k, _, err := re.startKept(context.Background(), &sc.Run, peer{}, nil)
		if err != nil {
			cannot("script "+sc.Run.Detach, err)
			left.Scripts = append(left.Scripts, *sc)
			continue
		}
		re.fillMaps(sc.Run.Detach, k.loaded.Object(), sc.Maps)
	}
	return left
}

// restoreObject restores the state of the probes and maps of an object that was
// just attached.
func (re *restorer) restoreObject(o *saved.Object, as []*session.Probe) {
	var off []string
	drop := map[*session.Probe]bool{}
	for _, a := range as {
		switch enabled, there := o.Probes[a.Name()]; {
		case !there:
			drop[a] = true
		case !enabled:
			off = append(off, strconv.FormatUint(a.ID(), 10))
		}
	}
	if len(as) > 0 {
		re.fillMaps(o.Attach.Section, as[0].Object(), o.Maps)
	}
	var err error
	if len(off) > 0 {
		_, err = re.probes.SetEnabled(false, off...)
	}
	if _, gone := re.probes.DetachIf(func(a *session.Probe) bool { return drop[a] }); err != nil || gone != nil {
		re.log.Warn("programs of the snapshot", "err", errors.Join(err, gone))
	}
}
