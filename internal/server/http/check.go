package http

import (
	"context"
	"net/http"

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
		out.Probes, err = s.probes.Check(specOf(req.Probe))
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

// compileScript compiles the script of a request, which ctx ends.
func (s *server) compileScript(ctx context.Context, req *api.RunScript) (*script.Script, error) {
	done, err := s.effort.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	o := scriptOptions(req)
	o.Stop = func() error { return s.effort.stop(ctx) }
	sc, err := s.probes.CompileScript(req.Script, o)
	if err != nil {
		return nil, scriptError(err)
	}
	return sc, nil
}
