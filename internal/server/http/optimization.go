package http

import (
	"net/http"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

func (in *inspector) getOptimization(w http.ResponseWriter, _ *http.Request) error {
	e := in.guest.Engine()
	x := e.OptimizerStats()
	writeJSON(w, http.StatusOK, api.Optimization{
		Enabled: e.Optimization(), Now: x.Now, Waiting: x.Waiting, Optimized: x.Optimized, Unoptimized: x.Unoptimized,
		Passes: x.Passes, StoppedNs: x.Stopped.Nanoseconds(), LongestNs: x.LongestStop.Nanoseconds(),
	})
	return nil
}

func (s *server) putOptimization(w http.ResponseWriter, r *http.Request) error {
	var k api.SetOptimization
	if err := readBody(w, r, &k, false); err != nil {
		return err
	}
	if k.Enabled == nil && !k.Now {
		return badValue("enabled or now is missing")
	}
	e := s.guest.Engine()
	if k.Enabled != nil {
		if err := e.SetOptimization(*k.Enabled); err != nil {
			return err
		}
	}
	if k.Now {
		if err := e.Optimize(); err != nil {
			return err
		}
	}
	return s.getOptimization(w, r)
}
