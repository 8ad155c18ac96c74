package http

import (
	"net/http"
	"time"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Operation describes the input and the answer of a route. docs/openapi.yaml is
// generated from the operations, and queries are checked against them.
type Operation struct {
	ID           string // names the operation in generated clients
	Method, Path string
	Summary      string
	Description  string
	Query        []Parameter // any other parameter is an error
	Body         *Body       // nil: no body
	Answers      []Answer    // when the request succeeds
	Refusals     []int       // statuses of errors, in addition to the ones that any request may get
}

// Kind is the kind of a query's parameter.
type Kind int

// Kinds of parameters.
const (
	Text    Kind = iota
	Texts        // a text, any number of times
	Flag         // true or false, as strconv.ParseBool reads it
	Number       // a whole number of at least 0
	Address      // the same, as text: it may have 64 bits, and a prefix such as 0x
)

// Parameter is a parameter of a query, or of a path.
type Parameter struct {
	Name        string
	Kind        Kind
	Description string
	Required    bool
	Enum        []string // the values of a Text
	Min, Max    uint64   // of a Number with bounds; Max 0: no bounds
	Default     any      // the value without the parameter: a string or an int

	bits    int    // of a Number or an Address; 0: 64
	base    int    // of a Number: 0 allows prefixes such as 0x
	blank   bool   // an empty value counts as not given
	wrong   string // the error for an invalid value, such as "not a number"
	missing string // the error for a missing required value
}

// Body describes a route's request body.
type Body struct {
	Of       any    // a value of its type
	Media    string // "": JSON
	Optional bool
	Examples []Example
}

// Example is a value for a body, under a name.
type Example struct {
	Name  string
	Value any
}

// Answer describes a route's answer.
type Answer struct {
	Status      int
	Of          any      // a value of its type; nil: it has no body
	Media       []string // empty: JSON
	Name        string   // of the answer in the document, if package api has no type for it
	Description string   // "": the type's comment
	Example     any
}

// PathParameters describes the parameters of paths, by name.
func PathParameters() map[string]Parameter {
	return map[string]Parameter{
		"probe":  {Description: "number, EVENT, or GROUP/EVENT with the slash as %2F"},
		"map":    {Description: "number or name"},
		"script": {Description: "the name that it runs by"},
		"stream": {Description: "number in the stream's start record", Kind: Number},
	}
}

// Operations returns the operations of the API, in the order of the document.
func Operations() []Operation {
	var out []Operation
	for _, r := range routes() {
		out = append(out, r.Operation)
	}
	return out
}

// Media types of answers that are not JSON.
const (
	mediaText    = "text/plain"
	mediaMetrics = "application/openmetrics-text"
	mediaRecords = "application/x-ndjson"
)

// jsonOf is an answer of one JSON value of a type.
func jsonOf(of any) []Answer { return []Answer{{Status: http.StatusOK, Of: of}} }

// Answers of several routes.
var (
	answerStream = Answer{Status: http.StatusOK, Of: api.Record{}, Media: []string{mediaRecords}, Name: "Stream", Description: "one record per line"}
	answerText   = Answer{Status: http.StatusOK, Of: "", Media: []string{mediaText}, Name: "KernelText", Description: "lines"}
)

// Examples in the document.
var (
	exampleFleet = api.FleetState{
		Fleet: "nats://farm:4222", Name: "vm1", Run: "N4k2Zt8Vb0ZcVqkY5xYb0L", Connected: true, Revision: 4,
		Definitions: []api.FleetDefinition{{Name: "reads", ID: "N4k2Zt8Vb0ZcVqkY5xYb9Q", Where: "kernel=6.1", Kind: api.KindScript, State: api.DefinitionRunning}},
	}
	exampleScripts = api.ScriptList{Scripts: []api.ScriptInfo{{
		Name: "reads", Script: "kprobe:vfs_read { @ = hist(arg2); }", Format: api.ScriptText,
		Since: time.Date(2026, 11, 22, 18, 6, 4, 100_000_000, time.UTC), Attached: 1, Hits: 331,
	}}}
)

// RecordKind is a type of records in streams, with a value of the type of its data.
type RecordKind struct {
	Type api.RecordType
	Data any // nil: package api has no type for it
}

// Records are the types of records that the daemon sends.
func Records() []RecordKind {
	return []RecordKind{
		{api.RecordStart, api.Start{}}, {api.RecordHit, api.Hit{}}, {api.RecordBoot, api.Boot{}}, {api.RecordStop, api.Stop{}},
		{api.RecordConsole, api.Console{}}, {api.RecordOutput, api.Output{}}, {api.RecordMaps, api.ScriptMaps{}}, {api.RecordWarning, api.Warning{}},
		{api.RecordInterval, api.Interval{}}, {api.RecordHeartbeat, api.Heartbeat{}}, {api.RecordStack, api.Stack{}}, {api.RecordGraph, nil},
		{api.RecordCounts, api.Counted{}}, {api.RecordLost, api.Lost{}}, {api.RecordEnd, api.End{}},
	}
}

// Refusal is a status that any request may get.
type Refusal struct {
	Status int
	Why    string
}

// CommonRefusals are the statuses of errors that do not depend on the route.
func CommonRefusals() []Refusal {
	return []Refusal{
		{http.StatusBadRequest, string(api.CodeUnknownField) + ", " + string(api.CodeBadJSON)},
		{http.StatusForbidden, string(api.CodeForbidden)},
		{http.StatusMethodNotAllowed, string(api.CodeBadMethod)},
		{http.StatusRequestTimeout, string(api.CodeTooSlow) + ", " + string(api.CodeCancelled)},
		{http.StatusUpgradeRequired, string(api.CodeOldClient)},
		{http.StatusTooManyRequests, string(api.CodeTooMany) + ": connections or bodies"},
		{http.StatusInternalServerError, string(api.CodeInternal)},
		{http.StatusNotImplemented, string(api.CodeUnavailable) + ": the guest is one of a file (--core); " + string(api.CodeNotOurs) + ": it belongs to another VMM (--vm)"},
		{http.StatusServiceUnavailable, string(api.CodeClosing)},
	}
}
