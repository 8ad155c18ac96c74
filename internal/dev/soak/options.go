package soak

import (
	"errors"
	"fmt"
	"time"

	"github.com/guestprobe/guestprobe/guest"
)

// Limits of Options.
const (
	MinDuration = 2 * time.Second
	MaxDuration = 7 * 24 * time.Hour
	MaxClients  = 64
)

// Defaults of Options.
const (
	DefaultDuration = 3 * time.Minute
	DefaultClients  = 6
	defaultPatience = time.Minute
)

// DefaultVCPUs are the sizes of the guest that a soak goes through.
var DefaultVCPUs = []int{2, 4, 8}

// Options say how a soak runs.
type Options struct {
	// Duration is how long clients are at work, over all sizes of the guest:
	// MinDuration to MaxDuration, 0 for DefaultDuration. It does not include
	// checks, starts and stops.
	Duration time.Duration

	// VCPUs are the sizes of the guest, each 1 to guest.MaxVCPUs; nil for
	// DefaultVCPUs. Each has an equal share of Duration.
	VCPUs []int

	// Seed decides every client's sequence of operations: two soaks with the same
	// seed, sizes and number of clients begin the same operations with the same
	// operands in the same order. How far a client comes, and how clients
	// interleave, depends on the machine.
	Seed uint64

	// Clients is how many are at work at a time, 1 to MaxClients, 0 for
	// DefaultClients. Every third of them is a sequence of processes of the
	// command line; the others use connections of this process. There are also a
	// reader that does not read, and a witness that does.
	Clients int

	// Patience bounds every wait: for an answer, for a daemon's start and end, and
	// for events that happen by themselves. A run without errors never reaches it,
	// unless the machine is very busy; 0 for defaultPatience.
	Patience time.Duration

	// Daemon and CLI are the paths of guestprobed and guestprobe.
	Daemon, CLI string

	// Dir is an existing directory for sockets and logs. Its path must leave
	// room for a socket's name.
	Dir string

	// Progress receives a line for people from time to time. It may be nil.
	Progress func(line string)
}

// check fills in defaults and rejects invalid values.
func (o *Options) check() error {
	if o.Duration == 0 {
		o.Duration = DefaultDuration
	}
	if o.VCPUs == nil {
		o.VCPUs = DefaultVCPUs
	}
	if o.Clients == 0 {
		o.Clients = DefaultClients
	}
	if o.Patience == 0 {
		o.Patience = defaultPatience
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	switch {
	case o.Duration < MinDuration || o.Duration > MaxDuration:
		return fmt.Errorf("soak for %v: not %v to %v", o.Duration, MinDuration, MaxDuration)
	case o.Patience < 0:
		return fmt.Errorf("soak with a patience of %v", o.Patience)
	case len(o.VCPUs) == 0:
		return errors.New("soak: no number of vCPUs")
	case o.Clients < 1 || o.Clients > MaxClients:
		return fmt.Errorf("soak with %d clients: not 1 to %d", o.Clients, MaxClients)
	case o.Daemon == "" || o.CLI == "" || o.Dir == "":
		return errors.New("soak: the daemon's program, the command line's and a directory are needed")
	}
	for _, n := range o.VCPUs {
		if n < 1 || n > guest.MaxVCPUs {
			return fmt.Errorf("soak with %d vCPUs: a guest has 1 to %d", n, guest.MaxVCPUs)
		}
	}
	return nil
}
