package api

import "time"

// Definition is what daemons of a fleet are to do, as the fleet keeps it: one of the two.
type Definition struct {
	Script *RunScript  `json:"script,omitempty"` // by the name of the definition
	Probes []ProbeSpec `json:"probes,omitempty"` // all or none
}

// FleetState is the body of the answer to GET /v1/fleet.
type FleetState struct {
	Fleet       string            `json:"fleet"` // its address, without passwords; "": the daemon is in none
	Name        string            `json:"name"`  // the daemon's
	Run         string            `json:"run"`   // what no other run of a daemon has
	Connected   bool              `json:"connected"`
	Revision    uint64            `json:"revision"`    // of the fleet's definitions, as far as the daemon has followed them
	Definitions []FleetDefinition `json:"definitions"` // those that mean the daemon, by name
	Unkept      *Unkept           `json:"unkept,omitempty"`
}

// Unkept is what a daemon has published for its fleet and no server keeps.
type Unkept struct {
	Since   time.Time `json:"since"`   // when the servers began not to take it
	Error   string    `json:"error"`   // of the last try
	Waiting int       `json:"waiting"` // bytes that wait
	Dropped uint64    `json:"dropped"` // events that found no room to wait
}

// FleetDefinition is what has become of a definition in a daemon.
type FleetDefinition struct {
	Name  string `json:"name"`
	ID    string `json:"id"`
	Where string `json:"where,omitempty"`
	Kind  string `json:"kind"`  // KindScript or KindProbes
	State string `json:"state"` // one of those below
	Error *Error `json:"error,omitempty"`

	Probes []uint64 `json:"probes,omitempty"` // of KindProbes: the numbers of those that are attached
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
	DefinitionStopped = "stopped" // by somebody at this daemon
	DefinitionRefused = "refused" // with an Error
)
