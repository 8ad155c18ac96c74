package api

import "time"

// Definition is what daemons of a fleet are to do, as the fleet keeps it: one of the two.
type Definition struct {
	Script *RunScript  `json:"script,omitempty"` // by the name of the definition
	Probes []ProbeSpec `json:"probes,omitempty"` // all or none
}

// FleetState is the body of the answer to GET /v1/fleet.
type FleetState struct {
	Fleet       string            `json:"fleet"`            // the fleet's address, without passwords; empty if the daemon is in no fleet
	Name        string            `json:"name"`             // the daemon's
	Run         string            `json:"run"`              // the identifier of this run of the daemon, which no other run has
	Connected   bool              `json:"connected"`        // to a server, now
	Revision    uint64            `json:"revision"`         // of the fleet's definitions, as far as the daemon has applied them
	Definitions []FleetDefinition `json:"definitions"`      // the definitions that select this daemon, by name
	Unkept      *Unkept           `json:"unkept,omitempty"` // absent: the servers keep everything
}

// Unkept is the data that a daemon has published for its fleet, and that no server keeps.
type Unkept struct {
	Since   time.Time `json:"since"`   // when the servers began not to take it
	Error   string    `json:"error"`   // of the last try
	Waiting int       `json:"waiting"` // bytes that wait
	Dropped uint64    `json:"dropped"` // events that found no room to wait
}

// FleetDefinition is the state of a definition in a daemon.
type FleetDefinition struct {
	Name  string `json:"name"`
	ID    string `json:"id"`                                                 // a new one for each definition that gets the name
	Where string `json:"where,omitempty"`                                    // which daemons it selects
	Kind  string `json:"kind" openapi:"enum=script|probes"`                  // KindScript or KindProbes
	State string `json:"state" openapi:"enum=running|ended|stopped|refused"` // running; ended: the script has, by itself; stopped: by a client of this daemon; refused: with an Error
	Error *Error `json:"error,omitempty"`

	Probes []uint64 `json:"probes,omitempty"` // of KindProbes: the numbers of the attached ones
}

// Values of FleetDefinition.Kind.
const (
	KindScript = "script"
	KindProbes = "probes"
)

// Values of FleetDefinition.State.
const (
	DefinitionRunning = "running"
	DefinitionEnded   = "ended"   // the script has, by itself
	DefinitionStopped = "stopped" // by a client of this daemon
	DefinitionRefused = "refused" // with an Error
)
