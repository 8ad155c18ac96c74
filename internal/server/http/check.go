package http

import (
	"context"
	"net/http"

	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/script"
)

// checkPath is where check is asked for.
const checkPath = "/v1/check"

// check says what is wrong with a definition or a script, and does nothing with it. Who checks while it is typed has asked
// for that in the answer: what is not yet right is no request that has failed, of which browsers' consoles tell.
func (s *server) check(w http.ResponseWriter, r *http.Request) error {
	var req api.Check
	if err := readBody(w, r, &req, false); err != nil {
		return err
	}
	var out api.Checked
	var err error
	switch {
	case req.Probe != nil && req.Script == nil:
		out.Probes, err = s.probes.check(*req.Probe)
	case req.Script != nil && req.Probe == nil:
		var sc *script.Script
		if sc, err = s.compileScript(r.Context(), req.Script); err == nil {
			out.Probes, out.Warnings = sc.Attached(), sc.Warnings
		}
	default:
		return badValue("want one of probe and script")
	}
	if err != nil {
		e := toAPI(err)
		if st := status(e.Code); !req.InAnswer || st >= http.StatusInternalServerError || st == http.StatusTooManyRequests {
			return err
		}
		out = api.Checked{Error: e}
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// check does all that attaching a probe does but what the guest sees of it, takes it back, and returns how many
// probes it would have been.
func (st *store) check(spec api.ProbeSpec) (int, error) {
	if err := st.change(); err != nil {
		return 0, err
	}
	defer st.changes.Unlock()
	c := st.newChange(nil, nil)
	c.dry = true
	defer c.undo()
	if err := c.carryOut(0, spec); err != nil {
		return 0, err
	}
	return len(c.come), nil
}

// compileScript compiles the script of a request, which ctx ends.
func (s *server) compileScript(ctx context.Context, req *api.RunScript) (*script.Script, error) {
	done, err := s.effort.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	_, linux := s.guest.Image().(probe.Kernel)
	sc, err := script.Compile(req.Script, scriptTarget{s.probes}, script.Options{
		Name: req.Name, Params: req.Args, Unsafe: req.Unsafe, Files: linux, CPUs: len(s.guest.State().VCPUs),
		Now: s.probes.hub.Now(), Epoch: s.probes.since.UnixNano() - s.probes.epoch,
		Stop: func() error { return s.effort.stop(ctx) },
	})
	if err != nil {
		return nil, scriptError(err)
	}
	return sc, nil
}
