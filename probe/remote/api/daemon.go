package api

import "time"

// Daemon answers GET /v1/daemon: the resources of the daemon's own process. A client that watches for leaks asks when
// nothing else happens; the connection that asks is counted.
type Daemon struct {
	PID         int       `json:"pid"`
	Started     time.Time `json:"started"`
	UptimeMS    int64     `json:"uptimeMs"`
	Goroutines  int       `json:"goroutines"`
	Threads     int       `json:"threads"`     // of the operating system, vCPUs included
	Descriptors int       `json:"descriptors"` // open ones
	HeapBytes   uint64    `json:"heapBytes"`   // live, after a collection made for this answer
	RSSBytes    uint64    `json:"rssBytes"`    // resident, guest memory included

	Streams int         `json:"streams"` // open streams of events and of the console
	Probes  int         `json:"probes"`  // attached ones
	Session int         `json:"session"` // of these the probes that a stream has attached, and that end with it
	Events  EventCounts `json:"events"`  // over the daemon's life
	LogLost uint64      `json:"logLost"` // lines that could not be written

	// Probes and scripts that clients of an earlier daemon had attached, and that this guest cannot take yet
	// (--state): each reset and start tries them again.
	NotRestored []string `json:"notRestored,omitempty"`
}

// EventCounts are the fates of the events that handlers made, over the daemon's life: emitted = stored + lost.
type EventCounts struct {
	Emitted   uint64 `json:"emitted"`
	Stored    uint64 `json:"stored"`
	Lost      uint64 `json:"lost"`      // found no room in a vCPU's ring
	Reordered uint64 `json:"reordered"` // delivered after an event with a later time
}
