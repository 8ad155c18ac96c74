package api

import "time"

// Daemon answers GET /v1/daemon: what the daemon's own process uses. A client
// that watches for leaks asks when nothing else goes on; the connection that
// asks is counted.
type Daemon struct {
	PID         int       `json:"pid"`
	Started     time.Time `json:"started"`
	UptimeMS    int64     `json:"uptimeMs"`
	Goroutines  int       `json:"goroutines"`
	Threads     int       `json:"threads"`     // of the operating system, vCPUs included
	Descriptors int       `json:"descriptors"` // open ones
	HeapBytes   uint64    `json:"heapBytes"`   // live, after a collection made for this answer
	RSSBytes    uint64    `json:"rssBytes"`    // resident, guest memory included

	Streams int         `json:"streams"` // open ones: events and console
	Probes  int         `json:"probes"`  // attached ones
	Session int         `json:"session"` // of these: brought by a stream, gone with it
	Events  EventCounts `json:"events"`  // over the daemon's life
	LogLost uint64      `json:"logLost"` // lines that could not be written

	NotRestored []string `json:"notRestored,omitempty"` // what clients of the daemon before had attached and could not be again
}

// EventCounts are what became of the events that handlers made: emitted =
// stored + lost.
type EventCounts struct {
	Emitted   uint64 `json:"emitted"`
	Stored    uint64 `json:"stored"`
	Lost      uint64 `json:"lost"`      // found no room in a vCPU's ring
	Reordered uint64 `json:"reordered"` // handed on after one with a later time
}
