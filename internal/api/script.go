package api

// RunScript is the body of POST /v1/scripts: a script in bpftrace's language, which runs
// for the life of the stream that is the answer.
type RunScript struct {
	Script string   `json:"script"`
	Name   string   `json:"name,omitempty"`   // in messages; by default stdin
	Args   []string `json:"args,omitempty"`   // $1 and so on
	Format string   `json:"format,omitempty"` // of what it prints: ScriptText, which is the default, or ScriptJSON
	OnHost bool     `json:"onHost,omitempty"` // its programs run at an exit, although they could run in the guest
}

// Formats of RunScript.
const (
	ScriptText = "text" // as bpftrace prints
	ScriptJSON = "json" // as bpftrace -f json prints, a line each
)

// PlaceList is the body of the answer to GET /v1/places.
type PlaceList struct {
	Places []Place `json:"places"`
}

// Place is where a script may have a probe.
type Place struct {
	Probe     string     `json:"probe"`               // as a script says it: kprobe:vfs_read
	Prototype *Prototype `json:"prototype,omitempty"` // of a function, where types were asked for and are known
}
