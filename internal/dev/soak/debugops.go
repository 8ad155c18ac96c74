package soak

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// examine looks at the guest while it runs, as a debugger does: its text must be
// the image's, whatever other clients have attached.
func (w *worker) examine(r *rand.Rand) {
	f := &w.sites.funcs[r.IntN(len(w.sites.funcs))]
	what, cpu := r.IntN(4), itoa(r.IntN(w.cpus))
	wrong := ""
	err := w.try(func(ctx context.Context) (err error) {
		switch what {
		case 0:
			_, err = w.c.Registers(ctx, cpu, r.IntN(2) == 0)
		case 1:
			_, err = w.c.Backtraces(ctx, remote.Where{VCPU: cpu})
		case 2:
			_, err = w.c.Disas(ctx, f.sym.Addr.String(), false)
		default:
			m, e := w.c.Memory(ctx, remote.Where{At: f.sym.Addr.String()}, remote.MemoryQuery{Length: f.sym.Size})
			if err = e; err == nil {
				if want := hex.EncodeToString(w.sites.img.Code(f.sym.Addr, int(f.sym.Size))); m.Data != want {
					wrong = fmt.Sprintf("the text of %s is %s, in the image it is %s", f.sym.Name, m.Data, want)
				}
			}
		}
		return err
	})
	if w.ok(err) && wrong != "" {
		w.fail("%s", wrong)
	}
}

// save takes a snapshot, whose text must be the image's. A guest that another
// client has paused inside a handler cannot be saved.
func (w *worker) save(*rand.Rand) {
	var file bytes.Buffer
	if !w.ok(w.try(func(ctx context.Context) error { return w.c.Save(ctx, &file) }), api.CodeGuestState, api.CodeInsideProbe) {
		return
	}
	s, err := snapshot.Read(&file, guest.MaxRAM)
	if err != nil {
		w.fail("%v", err)
		return
	}
	for _, seg := range w.sites.img.Segments {
		if !seg.X {
			continue
		}
		text := make([]byte, len(seg.Data))
		for _, run := range s.Memory {
			if off := int64(run.At - seg.PAddr); off >= 0 && off < int64(len(text)) {
				copy(text[off:], run.Bytes)
			} else if off < 0 && -off < int64(len(run.Bytes)) {
				copy(text, run.Bytes[-off:])
			}
		}
		for i := range text {
			if text[i] != seg.Data[i] {
				w.fail("in a snapshot there is %#x at %v, in the image %#x", text[i], seg.VAddr+guest.GVA(i), seg.Data[i])
				return
			}
		}
	}
	w.phase.count(func(t *Tally) { t.Saved++ })
}

// stopAndStep attaches a probe whose hits stop the vCPU, steps the stopped
// vCPUs, and resumes all. Other clients may have resumed the vCPU before, or
// have paused the guest.
func (w *worker) stopAndStep(r *rand.Rand) {
	s, inner := w.spec(r, "soaks")
	n, d, limit := 1+r.IntN(20), time.Duration(r.IntN(100))*time.Millisecond, 60_000
	s.Def = "p" + s.Def[1:]
	s = api.ProbeSpec{Def: s.Def, Stop: []string{api.StopVCPU, api.StopAll}[r.IntN(2)]}
	if inner {
		return
	}
	var ps []api.Probe
	if !w.ok(w.try(func(ctx context.Context) (err error) {
		ps, err = w.c.Attach(ctx, s)
		return err
	}), append([]api.Code{api.CodeBadDefinition}, refusals...)...) {
		return
	}
	w.noteAttached(ps)
	stopped := -1
	for end := time.Now().Add(d); stopped < 0 && time.Now().Before(end) && !w.stopped(); w.rest(time.Millisecond) {
		if err := w.try(func(ctx context.Context) error {
			g, err := w.c.Guest(ctx)
			stopped = slices.IndexFunc(g.CPUs, func(c api.CPUInfo) bool { return c.State == "stopped" && c.RIP == ps[0].Addr })
			return err
		}); !w.ok(err) {
			break
		}
	}
	if stopped >= 0 {
		w.phase.count(func(t *Tally) { t.Stopped++ })
		w.ok(w.try(func(ctx context.Context) error {
			_, err := w.c.Step(ctx, api.Step{VCPU: &stopped, How: api.StepInto, Count: n, TimeoutMS: &limit})
			return err
		}), api.CodeGuestState, api.CodeUnavailable)
	}
	w.detach(ps[0].Name)
	w.resumeAll()
}

// resumeAll resumes all stopped vCPUs.
func (w *worker) resumeAll() {
	for cpu := range w.cpus {
		w.ok(w.try(func(ctx context.Context) error {
			_, err := w.c.ResumeVCPU(ctx, cpu)
			return err
		}), api.CodeGuestState)
	}
}
