package http

import (
	"context"
	"fmt"
	"slices"

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
		e := toAPI(err)
		if e.Index != nil {
			return s.opt.placed(fmt.Errorf("--probe %q: %w", s.opt.probes[*e.Index], e))
		}
		return s.opt.placed(fmt.Errorf("--probe: %w", e))
	}
	s.logAttached(slices.Values(ps.Probes))
	return nil
}

// startScripts has the scripts of --script run.
func (s *server) startScripts() error {
	reqs, err := s.opt.readScripts()
	if err != nil {
		return err
	}
	for _, req := range reqs {
		if err := s.scripts.reserve(req.Detach); err != nil {
			return s.opt.placed(fmt.Errorf("--script %s: %w", req.Name, err))
		}
		_, warnings, err := s.startKept(context.Background(), &req, peer{UID: s.access.self, PID: int32(s.pid)}, nil)
		if err != nil {
			return s.opt.placed(fmt.Errorf("--script: %w", toAPI(err)))
		}
		for _, w := range warnings {
			s.log.Warn("script", "name", req.Detach, "warning", w)
		}
	}
	return nil
}

// markOrigin says of all probes and scripts of which nothing is said yet whence they are. Nobody is served yet.
func (s *server) markOrigin(origin string) {
	for _, a := range s.probes.Probes() {
		if a.Label() == "" {
			a.SetLabel(origin)
		}
	}
	for _, k := range s.scripts.all() {
		if k.origin == "" {
			k.origin = origin
		}
	}
}
