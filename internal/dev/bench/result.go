package bench

import (
	"slices"
	"time"
)

// Spread is the lowest, middle and highest of several measurements, in
// nanoseconds.
type Spread struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

// spread summarises at least one sample.
func spread(samples []float64) Spread {
	s := slices.Clone(samples)
	slices.Sort(s)
	m := s[len(s)/2]
	if len(s)%2 == 0 {
		m = (s[len(s)/2-1] + m) / 2
	}
	return Spread{Min: s[0], Median: m, Max: s[len(s)-1]}
}

// Row is one kind of probe at one privilege level. The letters are the ones of
// the kprobes documentation: k kprobe, b boosted, o optimized, j jprobe, r
// kretprobe, rb and ro boosted and optimized kretprobes, kr and jr both on one
// function.
type Row struct {
	Name string `json:"name"`
	CPL  int    `json:"cpl"`
	What string `json:"what"`
	// Unavailable says why there is no figure: not built yet, or not possible on
	// the host. The fields below are zero then.
	Unavailable  string  `json:"unavailable,omitempty"`
	Hits         uint64  `json:"hits"`
	Missed       uint64  `json:"missed"`
	ExitsPerHit  float64 `json:"exitsPerHit"`
	InsnsPerHit  float64 `json:"insnsPerHit,omitempty"`  // guest instructions that the probe adds
	EngineNs     float64 `json:"engineNs,omitempty"`     // host time outside KVM_RUN per hit
	NsPerHit     *Spread `json:"nsPerHit,omitempty"`     // additional time of a probed call over an unprobed one
	BaselineNs   float64 `json:"baselineNs,omitempty"`   // the unprobed call, median
	RatioToFirst float64 `json:"ratioToFirst,omitempty"` // median over the median of row k at the same CPL
}

// Peer is an alternative to guestprobe.
type Peer struct {
	Name        string  `json:"name"`
	What        string  `json:"what"`
	Unavailable string  `json:"unavailable,omitempty"`
	Hits        uint64  `json:"hits"`
	NsPerHit    *Spread `json:"nsPerHit,omitempty"`
	BaselineNs  float64 `json:"baselineNs,omitempty"`

	// Packets are a debugger's packets at one hit, in order.
	Packets []Packet `json:"packets,omitempty"`
}

// Packet is one packet of GDB's protocol and the median of the times to its answer.
type Packet struct {
	Data string  `json:"data"`
	Ns   float64 `json:"ns"`
}

// Host names the machine that a run was made on.
type Host struct {
	CPU     string `json:"cpu"`
	Cores   int    `json:"cores"`
	Kernel  string `json:"kernel"`
	KVM     string `json:"kvm"` // doctor's results: deliveries of int3 at CPL0 and CPL3
	Version string `json:"version"`
	Date    string `json:"date"` // UTC, day
}

// Result is one run of the benchmark.
type Result struct {
	Schema int   `json:"schema"` // 1
	Host   Host  `json:"host"`
	Runs   int   `json:"runs"` // each figure is over that many
	Rows   []Row `json:"rows"`
	// InGuest are hits without an exit, compared with detours written by hand.
	InGuest   []InGuest `json:"inGuest"`
	Attach    Attach    `json:"attach"`
	Optimizer Optimizer `json:"optimizer"`
	Snapshots Snapshots `json:"snapshots"`
	Profiling Profiling `json:"profiling"`
	Watching  Watching  `json:"watching"`
	Peers     []Peer    `json:"peers"`
	Startup   Startup   `json:"startup"`
}

// Startup is the time from the start to the guest's first console line.
type Startup struct {
	KVMNs   *Spread `json:"kvmNs,omitempty"`   // system, VM, memory, vCPUs, image, page tables
	GuestNs *Spread `json:"guestNs,omitempty"` // first KVM_RUN to the end of the first console line
}

func nsPer(d time.Duration, n uint64) float64 { return float64(d.Nanoseconds()) / float64(n) }
