package http

import (
	"context"
	"net/http"

	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/script"
)

// checkPath is the path of requests to check.
const checkPath = "/v1/check"

// check reports the errors in a definition or a script without attaching it. A
// client that checks while the user types asks for errors in the answer
// (InAnswer): an HTTP error would show up in the browser's console at each
// unfinished line.
func (sh *scriptHost) check(w http.ResponseWriter, r *http.Request) error {
	var req api.Check
	if err := readBody(w, r, &req, false); err != nil {
		return err
	}
	var out api.Checked
	var err error
	switch {
	case req.Probe != nil && req.Script == nil:
		out.Probes, err = sh.probes.Check(specOf(req.Probe))
	case req.Script != nil && req.Probe == nil:
		var sc *script.Script
		if sc, err = sh.compileScript(r.Context(), req.Script); err == nil {
			out.Probes, out.Warnings = sc.CountProbes(), sc.Warnings
			if req.Places {
				for _, place := range sc.Places() {
					out.Places = append(out.Places, api.Place{Probe: place})
				}
			}
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

// compileScript compiles the script of a request. It stops when ctx ends.
func (sh *scriptHost) compileScript(ctx context.Context, req *api.RunScript) (*script.Script, error) {
	done, err := sh.effort.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	o := scriptOptions(req)
	o.Stop = func() error { return sh.effort.stop(ctx) }
	sc, err := sh.probes.CompileScript(req.Script, o)
	if err != nil {
		return nil, scriptError(err)
	}
	return sc, nil
}
