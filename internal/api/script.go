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
