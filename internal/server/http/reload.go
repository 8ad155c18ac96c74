package http

import (
	"context"
	"log/slog"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/server/service"
)

// reloadable are the flags that a reload can change.
var reloadable = map[string]bool{
	"log-level": true, "max-connections": true, "max-bodies": true, "body-timeout": true, "stall-timeout": true,
}

// always is a log handler that writes each line, whatever the log's level.
type always struct{ slog.Handler }

// Enabled is true.
func (always) Enabled(context.Context, slog.Level) bool { return true }

// reload reads the configuration again and applies the options that can be
// changed at run time. It logs the others; a file with errors changes nothing.
// The result is logged whatever the log level, because it answers the request to
// reload.
func (s *server) reload() {
	log := slog.New(always{s.log.Handler()})
	if err := s.reopenLog(); err != nil {
		log.Error("the log's file is not opened again: lines go to the one that is open", "err", err)
	}
	if err := s.manager.Tell(service.Reloading()); err != nil {
		s.log.Warn("service manager", "err", err)
	}
	defer func() {
		if err := s.manager.Tell(service.Ready); err != nil {
			s.log.Warn("service manager", "err", err)
		}
	}()
	o := defaultOptions()
	o.flags(pflag.NewFlagSet("guestprobed", pflag.ContinueOnError))
	err := o.set.Parse(s.args)
	if err == nil {
		err = o.configure()
	}
	if err != nil {
		log.Error("the configuration is not reloaded: everything stays as it was", "err", err)
		return
	}
	o.set.VisitAll(func(now *pflag.Flag) {
		was := s.opt.set.Lookup(now.Name).Value
		from, to := was.String(), now.Value.String()
		switch {
		case from == to:
		case !reloadable[now.Name]:
			log.Warn("a change of the configuration waits for the next start", "name", now.Name, "is", from, "will be", to)
		default:
			_ = was.Set(to) // it was just read
			log.Info("reloaded", "name", now.Name, "was", from, "is", to)
		}
	})
	s.limits.Store(o.limits())
	log.Info("configuration reloaded", "file", o.config)
	s.logLevel.Set(o.logLevel)
}
