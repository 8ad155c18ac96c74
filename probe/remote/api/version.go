package api

import (
	"runtime"
	"runtime/debug"

	"github.com/guestprobe/guestprobe/probe/remote/internal/version"
)

// V1 is the name and the path prefix of the one protocol version there is.
// Fields and codes are added to it, never renamed or removed.
const V1 = "v1"

// Version answers GET /version, which is outside every protocol version.
type Version struct {
	Version string   `json:"version"` // of the module, "(devel)" for a build from a tree
	API     []string `json:"api"`     // protocol versions spoken
	Level   string   `json:"level"`   // of the API, MAJOR.MINOR, as in LevelHeader
	Oldest  string   `json:"oldest"`  // the oldest level of the other side: of a daemon the oldest clients that it serves, of a client the oldest daemons
	Git     string   `json:"git"`     // revision, empty when the build had none
	Go      string   `json:"go"`      // toolchain
	PID     int      `json:"pid,omitempty"`
}

// Build returns the version of the running program: the one that its package has, or what Go recorded of the tree.
func Build() Version {
	v := Version{Version: "(devel)", API: []string{V1}, Level: Current.String(), Oldest: OldestClient.String(), Go: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	linked, commit := version.LinkedVersion()
	if linked != "" {
		v.Version = linked
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Git = s.Value
		}
	}
	if commit != "" {
		v.Git = commit
	}
	return v
}
