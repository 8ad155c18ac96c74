package http

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// attachFlags attaches the probes of --probe.
func (s *server) attachFlags() error {
	if len(s.opt.probes) == 0 {
		return nil
	}
	var specs []api.ProbeSpec
	for _, def := range s.opt.probes {
		specs = append(specs, api.ProbeSpec{Def: def, Stay: true})
	}
	ps, _, err := s.attach(specs, nil)
	if err != nil {
		e := *toAPI(err)
		// A daemon that fails to start has no symbols to list.
		e.Detail = strings.ReplaceAll(e.Detail, listSymbols, "start guestprobed without this probe: "+listSymbols)
		if e.Index != nil {
			return s.opt.placeError(fmt.Errorf("--probe %q: %w", s.opt.probes[*e.Index], &e))
		}
		return s.opt.placeError(fmt.Errorf("--probe: %w", &e))
	}
	s.logAttached(slices.Values(ps.Probes))
	return nil
}

// startScripts runs the scripts of --script.
func (s *server) startScripts() error {
	reqs, err := s.opt.readScripts()
	if err != nil {
		return err
	}
	for _, req := range reqs {
		if err := s.scripts.reserve(req.Detach); err != nil {
			return s.opt.placeError(fmt.Errorf("--script %s: %w", req.Name, err))
		}
		_, warnings, err := s.startKept(context.Background(), &req, peer{UID: s.access.self, PID: int32(s.pid)}, nil)
		if err != nil {
			return s.opt.placeError(fmt.Errorf("--script: %w", toAPI(err)))
		}
		for _, w := range warnings {
			s.log.Warn("script", "name", req.Detach, "warning", w)
		}
	}
	return nil
}
