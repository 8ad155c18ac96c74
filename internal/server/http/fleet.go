package http

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/server/fleet"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// fleetFlags declares the flags about the fleet.
func (o *options) fleetFlags(f *pflag.FlagSet) {
	f.StringVar(&o.fleet.URL, "fleet", o.fleet.URL, "join the fleet at this `URL` of NATS servers, such as nats://HOST:4222; clients of 'guestprobe --fleet' then have the rights of this daemon")
	o.fleet.Flags(f, "fleet-")
	f.StringVar(&o.fleetName, "fleet-name", o.fleetName, "our `NAME` in the fleet (default: the host's, with that of a socket that is not guestprobed.sock)")
	f.Var((*labelsValue)(&o.labels), "label", "describe this daemon in the fleet by `NAME=VALUE`, such as kernel=6.1; may be repeated")
}

// checkFleet rejects values that fleets do not accept.
func (o *options) checkFleet() error {
	if o.fleet.URL == "" {
		if o.given != nil {
			for _, flag := range []string{"fleet-name", "fleet-creds", "fleet-ca", "fleet-cert", "fleet-key", "label"} {
				if o.given(flag) {
					return command.Usagef("--%s: goes with --fleet", flag)
				}
			}
		}
		return nil
	}
	if err := o.fleet.Check(); err != nil {
		return command.Usagef("--fleet: %w", err)
	}
	if o.fleetName != "" && (fleet.Labels{}).Add("x="+o.fleetName) != nil {
		return command.Usagef("--fleet-name %q: want printable characters, and none of , = ! * ? [ ] \\", o.fleetName)
	}
	return nil
}

// labelsValue is a flag that collects labels.
type labelsValue fleet.Labels

// String lists the labels.
func (v *labelsValue) String() string { return fleet.Labels(*v).String() }

// Set adds a label.
func (v *labelsValue) Set(s string) error {
	if *v == nil {
		*v = labelsValue{}
	}
	return fleet.Labels(*v).Add(s)
}

// Type names the flag's value in help texts.
func (v *labelsValue) Type() string { return "label" }

// newConns returns the bounded connections of a listener.
func (s *server) newConns(l net.Listener) *conns {
	return &conns{Listener: l, limits: &s.limits, open: map[*conn]bool{}}
}

// publishTime is how long the daemon waits at its end for the fleet's server to
// accept the last published records.
const publishTime = 10 * time.Second

// joinFleet has hs serve connections of the fleet, if the daemon is to join one,
// until leave is called after hs' end. It does not block on a server that does
// not answer: the connection is retried in the background.
func (s *server) joinFleet(hs *http.Server) (leave func(), err error) {
	if s.opt.fleet.URL == "" {
		return func() {}, nil
	}
	labels := fleet.Labels{"name": s.opt.fleetName, "image": filepath.Base(s.opt.imageName()), "version": api.Build().Version}
	if labels["host"], err = os.Hostname(); err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	if labels["name"] == "" {
		labels["name"] = labels["host"]
		if base := strings.TrimSuffix(filepath.Base(s.conns.Addr().String()), ".sock"); base != "guestprobed" {
			labels["name"] += "." + base
		}
	}
	for name, value := range s.opt.labels {
		labels[name] = value
	}
	// Not the daemon's context: records that are made while it ends are still
	// published.
	n, err := fleet.Connect(context.Background(), s.opt.fleet, "guestprobed "+labels["name"], true, s.log)
	if err != nil {
		return nil, err
	}
	m, err := n.Join(labels)
	if err != nil {
		n.Close()
		return nil, err
	}
	s.log.Info("fleet", "url", s.opt.fleet.Redacted(), "name", labels["name"], "connected", n.Connected())
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := hs.Serve(s.newConns(m)); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			s.log.Error("the fleet is served no more", "err", err)
		}
	}()
	f := &followed{s: s, n: n, m: m, name: m.Name(), nudge: make(chan struct{}, 1), changed: make(chan struct{}), all: map[string]*begun{}}
	s.followed.Store(f)
	life, end := context.WithCancel(context.Background())
	following := make(chan struct{})
	go func() {
		defer close(following)
		f.follow(life)
	}()
	s.leaving = func() {
		end()
		_ = m.Close()
	}
	return func() {
		s.leaving()
		<-served
		<-following
		left, cancel := context.WithTimeout(context.Background(), publishTime)
		defer cancel()
		if n.Connected() {
			m.AwaitPublished(left)
		}
		n.Close()
	}, nil
}
