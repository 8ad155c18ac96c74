package http

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/files"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/server/saved"
	"github.com/guestprobe/guestprobe/kvm/device"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// savedGuest has the methods of a Guest that can be saved.
type savedGuest interface {
	Save(with func()) (*snapshot.Snapshot, error)
	CheckFit(*snapshot.Snapshot) error
	ResetTo(ctx context.Context, s *snapshot.Snapshot) error
}

// saver saves the guest, also at its crash, accepts snapshots from clients, and
// resets the guest to one. Any goroutine may use it. A guest is saved with
// resetMu held, and while no attachment changes.
type saver struct {
	*runControl
	restorer *restorer
	last     atomic.Pointer[snapshot.Snapshot] // the last one that was saved, received or restored
	saved    *snapshot.Snapshot                // not nil: the guest is this snapshot, and does not run
	vm       *machine.Machine                  // not nil: the guest belongs to another VMM
}

// snapshots returns the guest as a savedGuest, or an error.
func (sv *saver) snapshots() (savedGuest, error) {
	if g, ok := sv.guest.(savedGuest); ok {
		return g, nil
	}
	return nil, machine.ErrNoSnapshot
}

// saveGuest answers with a snapshot, and remembers it.
func (sv *saver) saveGuest(w http.ResponseWriter, r *http.Request) error {
	if err := rejectBody(w, r); err != nil {
		return err
	}
	snap, err := sv.save()
	if err != nil {
		return err
	}
	sv.last.Store(snap)
	w.Header().Set("Content-Type", api.SnapshotType)
	w.WriteHeader(http.StatusOK)
	if _, err := snap.WriteTo(w); err != nil {
		panic(http.ErrAbortHandler) // the client sees that it is incomplete
	}
	return nil
}

// save takes a snapshot, including the guest's attachments.
func (sv *saver) save() (snap *snapshot.Snapshot, err error) {
	if sv.saved != nil {
		return sv.saved, nil
	}
	g, err := sv.snapshots()
	if err != nil {
		return nil, err
	}
	sv.resetMu.Lock()
	defer sv.resetMu.Unlock()
	err = sv.probes.RunExclusive(func() error {
		snap, err = sv.saveWith(g)
		return err
	})
	return snap, err
}

// saveWith is save for callers that prevent changes.
func (sv *saver) saveWith(g savedGuest) (*snapshot.Snapshot, error) {
	on := sv.restorer.attachments(func(origin string) bool { return origin == api.OriginFleet })
	defer on.Release()
	snap, err := g.Save(on.ReadMaps)
	if err != nil {
		return nil, err
	}
	if snap.Attached, err = json.Marshal(on); err != nil {
		return nil, fmt.Errorf("save: %w", err)
	}
	snap.Config.LeftOut = on.LeftOut
	for _, what := range snap.Config.Inside {
		sv.log.Warn("the guest has ended inside a probe's handlers: the registers that are saved there are those that the handlers have used", "what", what)
	}
	c := &snap.Config
	files := map[*string]*string{&sv.opt.guest: &c.Image, &sv.opt.debug: &c.Debug, &sv.opt.symbols: &c.Symbols}
	if l := c.Linux; l != nil {
		delete(files, &sv.opt.guest)
		files[&sv.opt.kernel], files[&sv.opt.initrd] = &c.Image, &l.Initrd
		l.InitrdSHA256 = sv.opt.initrdSHA256
		for i := range l.Disks {
			files[&l.Disks[i].Path] = &l.Disks[i].Path
		}
	}
	for path, to := range files {
		if *path == "" {
			continue
		}
		if *to, err = filepath.Abs(*path); err != nil {
			return nil, fmt.Errorf("save: %w", err)
		}
	}
	return snap, nil
}

// putSnapshot accepts a snapshot from a client, for resets to it.
func (sv *saver) putSnapshot(w http.ResponseWriter, r *http.Request) error {
	g, err := sv.snapshots()
	if err != nil {
		return err
	}
	snap, err := snapshot.Read(r.Body, sv.opt.memory+guest.LoaderSize)
	switch {
	case isSnapshotError(err):
		return &api.Error{Code: api.CodeBadFile, Errno: "EINVAL", Message: err.Error()}
	case err != nil:
		return bodyError(err)
	}
	sv.resetMu.Lock()
	err = g.CheckFit(snap)
	sv.resetMu.Unlock()
	if err != nil {
		return err
	}
	sv.last.Store(snap)
	writeJSON(w, http.StatusCreated, api.Snapshot{ID: snap.Config.ID, VCPUs: snap.Config.VCPUs, Memory: snap.Config.Memory, Bytes: snap.Len()})
	return nil
}

// isSnapshotError reports whether err is about a file's contents.
func isSnapshotError(err error) bool {
	for _, is := range []error{snapshot.ErrNone, snapshot.ErrVersion, snapshot.ErrTruncated, snapshot.ErrDamaged} {
		if errors.Is(err, is) {
			return true
		}
	}
	return false
}

// resetTo returns the function that resets the guest to the snapshot of a
// number, or boots it again for "".
func (sv *saver) resetTo(id string) (func(context.Context) error, error) {
	if id == "" {
		return sv.guest.Reset, nil
	}
	g, err := sv.snapshots()
	if err != nil {
		return nil, err
	}
	snap := sv.last.Load()
	if snap == nil || snap.Config.ID != id {
		return nil, &api.Error{Code: api.CodeNoSnapshot, Errno: "ENOENT", Message: fmt.Sprintf("this daemon does not have the snapshot %q", id), Detail: "POST /v1/snapshots gives it one; it keeps the last"}
	}
	return func(ctx context.Context) error { return g.ResetTo(ctx, snap) }, nil
}

// coreFlag is the flag for a guest that can only be inspected.
const coreFlag = "--core"

// readSnapshot reads the file that a flag has named, and sets the options that
// are not given from it. With --core the file may also be an ELF core.
func readSnapshot(flag string, o *options) (*snapshot.Snapshot, error) {
	f, _, err := files.Open(o.restore)
	if err != nil {
		return nil, fmt.Errorf("%s %w", flag, err)
	}
	defer f.Close()
	snap, err := snapshot.Read(f, guest.MaxRAM+guest.LoaderSize)
	if flag == coreFlag && errors.Is(err, snapshot.ErrCore) {
		snap, err = snapshot.ReadELF(f, guest.MaxRAM+guest.LoaderSize)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", flag, o.restore, err)
	}
	c := &snap.Config
	switch {
	case c.Linux == nil && (o.kernel != "" || o.initrd != "" || o.symbols != "" || len(o.disks) > 0):
		return nil, command.Usagef("%s %s: it has no Linux kernel; leave --kernel, --initrd, --symbols and --disk out", flag, o.restore)
	case c.Linux != nil && o.guest != "":
		return nil, command.Usagef("%s %s: it has a Linux kernel; leave --guest out", flag, o.restore)
	case c.Linux != nil && len(c.Linux.Disks) == 0 && len(o.disks) > 0:
		return nil, command.Usagef("%s %s: its guest had no disk; leave --disk out", flag, o.restore)
	case c.Linux != nil && len(c.Linux.Disks) != len(o.disks) && flag != coreFlag:
		// The file and its guest may come from another user. They must not decide which of
		// our files the guest reads and writes.
		return nil, command.Usagef("%s %s: the snapshot's guest needs its %s: if these are the right files, add%s", flag, o.restore, command.Plural(len(c.Linux.Disks), "disk"), diskFlags(c.Linux.Disks))
	}
	for _, x := range []struct {
		flag      string
		have, was string
		take      func()
	}{
		{"vcpus", strconv.Itoa(o.vcpus), strconv.Itoa(c.VCPUs), func() { o.vcpus = c.VCPUs }},
		{"memory", formatSize(o.memory), formatSize(c.Memory), func() { o.memory = c.Memory }},
		{"cmdline", strconv.Quote(o.cmdline), strconv.Quote(c.Cmdline), func() { o.cmdline = c.Cmdline }},
		{"tick", o.tick.String(), c.Tick().String(), func() { o.tick = c.Tick() }},
		{"guest", "", "", func() { o.takeImage(c) }},
	} {
		switch {
		case !o.given(x.flag):
			x.take()
		case x.flag != "guest" && x.have != x.was:
			return nil, command.Usagef("--restore %s: it has --%s %s, not %s; leave --%[2]s out", o.restore, x.flag, x.was, x.have)
		}
	}
	// Files that only describe the guest are left out if they do not exist any
	// more.
	for _, x := range []struct {
		flag, was string
		to        *string
	}{{"debug", c.Debug, &o.debug}, {"symbols", c.Symbols, &o.symbols}, {"initrd", c.Initrd(), &o.initrd}} {
		if _, err := os.Stat(x.was); err == nil && !o.given(x.flag) {
			*x.to = x.was
		}
	}
	if o.initrd != "" && !o.given("initrd") { // the guest reads it when it is reset
		if o.initrdSHA256 = c.Linux.InitrdSHA256; o.initrdSHA256 == "" {
			o.initrd = ""
		}
	}
	return snap, nil
}

// diskFlags returns the flags that give a guest these disks.
func diskFlags(disks []snapshot.Disk) string {
	var b strings.Builder
	for _, d := range disks {
		fmt.Fprintf(&b, " --disk %s", strconv.Quote(device.Disk{Path: d.Path, ReadOnly: d.ReadOnly}.String()))
	}
	return b.String()
}

// takeImage sets the guest's image, and the options that belong to it, from a
// snapshot.
func (o *options) takeImage(c *snapshot.Config) {
	if c.Linux == nil {
		o.guest = c.Image
		return
	}
	if o.kernel == "" {
		o.kernel = c.Image
	}
}

// attachSnapshot restores a snapshot into the guest, which has not run, and
// attaches the snapshot's attachments.
func (sv *saver) attachSnapshot(ctx context.Context, snap *snapshot.Snapshot) error {
	g, err := sv.snapshots()
	if err == nil {
		err = g.ResetTo(ctx, snap)
	}
	if err != nil {
		return fmt.Errorf("--restore %s: %w", sv.opt.restore, err)
	}
	sv.last.Store(snap)
	if len(snap.Attached) == 0 {
		return nil
	}
	var on saved.Attachments
	if err := json.Unmarshal(snap.Attached, &on); err != nil {
		return fmt.Errorf("--restore %s: %w: %w", sv.opt.restore, snapshot.ErrDamaged, err)
	}
	for _, what := range on.LeftOut {
		sv.log.Warn("the snapshot lacks an attachment", "what", what)
	}
	_ = sv.restorer.attachAll(&on) // errors are in the log
	return nil
}
