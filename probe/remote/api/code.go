package api

import "errors"

// Code is a stable, machine-readable reason. Beside those below the daemon
// passes on the engine's own reasons (probe.Code) as they are.
type Code string

// Reasons of the daemon itself.
const (
	CodeBadJSON       Code = "bad_json"           // 400: the body is not one JSON value of the right types
	CodeUnknownField  Code = "unknown_field"      // 400
	CodeBadValue      Code = "bad_value"          // 400: a field or a query parameter is outside its range
	CodeBadDefinition Code = "bad_definition"     // 400: a probe definition does not compile; Error.Syntax says why
	CodeForbidden     Code = "forbidden"          // 403: this peer may not use the socket
	CodeNoRoute       Code = "no_route"           // 404: no such path
	CodeProbeNotFound Code = "probe_not_found"    // 404
	CodeMapNotFound   Code = "map_not_found"      // 404
	CodeNoStream      Code = "stream_not_found"   // 404
	CodeNoScript      Code = "script_not_found"   // 404
	CodeNoSnapshot    Code = "snapshot_not_found" // 404
	CodeNoTask        Code = "task_not_found"     // 404
	CodeBadObject     Code = "bad_object"         // 400: an object file is damaged, or needs a feature that is not supported
	CodeBadFile       Code = "bad_file"           // 400: it is no copy of a file of the guest's
	CodeBadScript     Code = "bad_script"         // 400: a script does not compile, or a probe of it cannot be attached
	CodeBadMethod     Code = "method_not_allowed" // 405
	CodeNameTaken     Code = "name_taken"         // 409: a probe or a script of that name exists
	CodeAmbiguousName Code = "ambiguous_name"     // 409: an event name matches probes of several groups
	CodeGuestState    Code = "guest_state"        // 409: not possible while the guest is in this state
	CodeInsideProbe   Code = "inside_probe"       // 409: a vCPU or a task of the guest is inside a probe's handlers, and its own registers are not known
	CodeTooLarge      Code = "body_too_large"     // 413
	CodeTooMany       Code = "too_many"           // 429: a limit on probes, streams, connections, bodies or memory is reached
	CodeOldClient     Code = "client_too_old"     // 426: the client speaks an older level of the API than is served
	CodeCancelled     Code = "cancelled"          // 408: the client has given up waiting
	CodeTooSlow       Code = "too_slow"           // 408: the body did not come in time
	CodeNoSafePoint   Code = "no_safe_point"      // 504: the guest offered no place to run a call in time
	CodeGuestFault    Code = "guest_fault"        // 422: the guest's page tables do not lead to that memory
	CodeProbed        Code = "probed"             // 409: probes have bytes there
	CodeNoType        Code = "type_not_found"     // 404: the guest's types have no such one, or are not known
	CodeCallFailed    Code = "call_failed"        // 422: the called function raised an exception, or the guest ended under it
	CodeCallRunning   Code = "call_running"       // 504: the called function has not returned in time
	CodeStepRunning   Code = "step_running"       // 504: the vCPU has not come to where it was to stop in time
	CodeStepOverwrite Code = "step_overwrites"    // 422: the instruction changes or reads the code that it leads to, and this host cannot step just it
	CodeCallBusy      Code = "call_busy"          // 409: an earlier call has not come back
	CodeStopTimeout   Code = "stop_timeout"       // 504: a vCPU did not come to rest
	CodeInternal      Code = "internal"           // 500: a bug of the daemon; its log has the details
	CodeUnavailable   Code = "unavailable"        // 501: this version does not have it
	CodeClosing       Code = "closing"            // 503: the daemon is stopping
	CodeNotOurs       Code = "not_ours"           // 501: the guest belongs to another VMM
	CodeNotKept       Code = "not_kept"           // 507: the change cannot be kept for the next start (--state)
)

// Sentinels for errors.Is, on both sides of the socket.
var (
	ErrProbeNotFound  = errors.New("probe not found")
	ErrMapNotFound    = errors.New("map not found")
	ErrSymbolNotFound = errors.New("symbol not found")
	ErrNameTaken      = errors.New("probe name taken")
	ErrForbidden      = errors.New("peer may not use the socket")
	ErrGuestState     = errors.New("not possible in the guest's state")
	ErrNoSafePoint    = errors.New("no safe point for a call")
	ErrTooLarge       = errors.New("body too large")
	ErrClosing        = errors.New("daemon is stopping")
	ErrNoRoute        = errors.New("no such route")
	ErrOldClient      = errors.New("client too old")
)

// sentinels says which code stands for which of them. The codes of symbols are
// the engine's.
var sentinels = map[Code]error{
	CodeProbeNotFound:      ErrProbeNotFound,
	CodeMapNotFound:        ErrMapNotFound,
	"symbol_not_found":     ErrSymbolNotFound,
	"no_symbol_at_address": ErrSymbolNotFound,
	CodeNameTaken:          ErrNameTaken,
	CodeForbidden:          ErrForbidden,
	CodeGuestState:         ErrGuestState,
	CodeNoSafePoint:        ErrNoSafePoint,
	CodeTooLarge:           ErrTooLarge,
	CodeClosing:            ErrClosing,
	CodeNoRoute:            ErrNoRoute,
	CodeOldClient:          ErrOldClient,
}
