package session

import (
	"log/slog"
	"time"

	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/program"
)

// attacher makes probes from definitions and programs, puts them on the engine, and
// describes them there. It knows no names, and takes no lock: Session locks before it
// calls methods that change something.
type attacher struct {
	log    *slog.Logger
	guest  Guest
	opt    Options
	engine *probe.Engine
	hub    *event.Hub
	epoch  int64     // on the hub's clock; times of events count from here
	since  time.Time // the same moment

	tracepoints *tracepoints
	semaphores  semaphores
	recorders   recorders

	programs *program.Runtime
	objects  objects
	events   events // guarded by Session.changes
}
