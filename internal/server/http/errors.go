package http

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm/device"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// statusOf says which HTTP status a code has; 422 is for what the engine
// refuses: the request was understood and cannot be done.
var statusOf = map[api.Code]int{
	api.CodeBadJSON:       http.StatusBadRequest,
	api.CodeUnknownField:  http.StatusBadRequest,
	api.CodeBadValue:      http.StatusBadRequest,
	api.CodeBadDefinition: http.StatusBadRequest,
	api.CodeUnavailable:   http.StatusNotImplemented,
	api.CodeForbidden:     http.StatusForbidden,
	api.CodeNoRoute:       http.StatusNotFound,
	api.CodeProbeNotFound: http.StatusNotFound,
	api.CodeMapNotFound:   http.StatusNotFound,
	api.CodeNoStream:      http.StatusNotFound,
	api.CodeNoScript:      http.StatusNotFound,
	api.CodeNoSnapshot:    http.StatusNotFound,
	api.CodeNoTask:        http.StatusNotFound,
	api.CodeNoType:        http.StatusNotFound,
	api.CodeProbed:        http.StatusConflict,
	api.CodeBadObject:     http.StatusBadRequest,
	api.CodeBadScript:     http.StatusBadRequest,
	api.CodeBadFile:       http.StatusBadRequest,
	api.CodeBadMethod:     http.StatusMethodNotAllowed,
	api.CodeNameTaken:     http.StatusConflict,
	api.CodeAmbiguousName: http.StatusConflict,
	api.CodeGuestState:    http.StatusConflict,
	api.CodeCallBusy:      http.StatusConflict,
	api.CodeInsideProbe:   http.StatusConflict,
	api.CodeTooLarge:      http.StatusRequestEntityTooLarge,
	api.CodeTooMany:       http.StatusTooManyRequests,
	api.CodeCallFailed:    http.StatusUnprocessableEntity,
	api.CodeGuestFault:    http.StatusUnprocessableEntity,
	api.CodeStepOverwrite: http.StatusUnprocessableEntity,
	api.CodeTooSlow:       http.StatusRequestTimeout,
	api.CodeOldClient:     http.StatusUpgradeRequired,
	api.CodeCancelled:     http.StatusRequestTimeout,
	api.CodeNoSafePoint:   http.StatusGatewayTimeout,
	api.CodeCallRunning:   http.StatusGatewayTimeout,
	api.CodeStepRunning:   http.StatusGatewayTimeout,
	api.CodeStopTimeout:   http.StatusGatewayTimeout,
	api.CodeInternal:      http.StatusInternalServerError,
	api.CodeClosing:       http.StatusServiceUnavailable,
	api.CodeNotKept:       http.StatusInsufficientStorage,

	api.Code(probe.CodeSymbolNotFound): http.StatusNotFound,
	api.Code(probe.CodeNoSymbolAt):     http.StatusNotFound,
	api.Code(probe.CodeTarget):         http.StatusInternalServerError,
	api.Code(probe.CodeClosed):         http.StatusServiceUnavailable,
}

func status(code api.Code) int {
	if s, ok := statusOf[code]; ok {
		return s
	}
	return http.StatusUnprocessableEntity
}

// toAPI turns any error into what goes over the wire. Whatever it does not
// know is internal: a bug of ours, with the text for the one who reports it.
func toAPI(err error) *api.Error {
	var wire *api.Error
	if errors.As(err, &wire) {
		return wire
	}
	var syntax *event.SyntaxError
	if errors.As(err, &syntax) {
		return syntaxToAPI(syntax)
	}
	var refused *probe.Error
	if errors.As(err, &refused) {
		index := refused.Index
		return &api.Error{
			Code: api.Code(refused.Code), Errno: probe.ErrnoName(refused.Errno),
			Message: refused.Text, Detail: refused.Detail, Index: &index,
		}
	}
	var ambiguous *guest.AmbiguousSymbolError
	if errors.As(err, &ambiguous) {
		return &api.Error{Code: api.Code(probe.CodeAmbiguous), Errno: "EADDRNOTAVAIL", Message: err.Error(), Detail: "give one of the addresses instead"}
	}
	var stop *machine.StopTimeoutError
	if errors.As(err, &stop) {
		return &api.Error{Code: api.CodeStopTimeout, Errno: "ETIMEDOUT", Message: err.Error()}
	}
	if errors.Is(err, probe.ErrInside) {
		return &api.Error{Code: api.CodeInsideProbe, Errno: "EBUSY", Message: err.Error(), Detail: insideCure(err)}
	}
	for _, s := range []struct {
		is    error
		code  api.Code
		errno string
	}{
		{guest.ErrSymbolNotFound, api.Code(probe.CodeSymbolNotFound), "ENOENT"},
		{machine.ErrNotRunnable, api.CodeGuestState, "EBADFD"},
		{machine.ErrNotRunning, api.CodeGuestState, "EBADFD"},
		{machine.ErrNotStopped, api.CodeGuestState, "EBADFD"},
		{machine.ErrHalted, api.CodeGuestState, "EBADFD"},
		{machine.ErrInEngine, api.CodeGuestState, "EBADFD"},
		{machine.ErrBusyStepping, api.CodeGuestState, "EBUSY"},
		{machine.ErrStepOverwrites, api.CodeStepOverwrite, "EOPNOTSUPP"},
		{machine.ErrRanAway, api.CodeStepRunning, "ETIMEDOUT"},
		{machine.ErrCannotStep, api.CodeUnavailable, "EOPNOTSUPP"},
		{machine.ErrNoInput, api.CodeUnavailable, "EOPNOTSUPP"},
		{machine.ErrNoSnapshot, api.CodeUnavailable, "EOPNOTSUPP"},
		{machine.ErrOtherGuest, api.CodeBadFile, "EINVAL"},
		{machine.ErrSavedEnd, api.CodeBadFile, "EINVAL"},
		{device.ErrDisk, api.CodeGuestState, "ENXIO"}, // a reset opens it again
		{machine.ErrResetMeanwhile, api.CodeGuestState, "ECANCELED"},
		{machine.ErrNoSafePoint, api.CodeNoSafePoint, "ETIMEDOUT"},
		{machine.ErrCallRunning, api.CodeCallRunning, "ETIMEDOUT"},
		{machine.ErrCallBusy, api.CodeCallBusy, "EBUSY"},
		{machine.ErrClosed, api.CodeClosing, "ESHUTDOWN"},
		{context.Canceled, api.CodeCancelled, "ECANCELED"},
	} {
		if errors.Is(err, s.is) {
			return &api.Error{Code: s.code, Errno: s.errno, Message: err.Error()}
		}
	}
	return &api.Error{Code: api.CodeInternal, Message: fmt.Sprintf("internal error: %v", err), Detail: "this is a bug of the daemon; its log has more"}
}

// insideCure says what to do about an ErrInside.
func insideCure(err error) string {
	var in *probe.InsideError
	cure := "it did not come out in time: try again, with the guest running"
	if errors.As(err, &in) && len(in.Probes) > 0 {
		cure += ", or detach " + strings.Join(in.Probes, ", ")
	}
	return cure
}

// syntaxToAPI has the kernel's text and errno in any case, and the engine's reason, in
// its own words behind the text, where the engine refused the place.
func syntaxToAPI(e *event.SyntaxError) *api.Error {
	column := e.Column
	out := &api.Error{
		Code: api.CodeBadDefinition, Errno: probe.ErrnoName(e.Errno), Message: e.Text, Detail: e.Detail,
		Syntax: string(e.Code), Column: &column, Command: e.Command,
	}
	var refused *probe.Error
	if errors.As(e.Err, &refused) {
		out.Code = api.Code(refused.Code)
		if refused.Code == probe.CodeSymbolNotFound && refused.Detail == "" && e.Code != event.CodeFilePlace {
			out.Detail += "; 'guestprobe symbols GLOB' lists those it has"
		}
	}
	return out
}

// toProbeError turns what the image says about a name into what the engine
// would say.
func toProbeError(name string, err error) error {
	var ambiguous *guest.AmbiguousSymbolError
	if errors.As(err, &ambiguous) {
		return &probe.Error{Code: probe.CodeAmbiguous, Errno: syscall.EADDRNOTAVAIL, Text: err.Error(), Detail: "give one of the addresses instead"}
	}
	return &probe.Error{Code: probe.CodeSymbolNotFound, Errno: syscall.ENOENT, Text: fmt.Sprintf("the guest has no symbol %q", name), Detail: cmp.Or(guest.Advice(err), "'guestprobe symbols GLOB' lists those it has")}
}

// badValue reports a field or a query parameter outside its range.
func badValue(format string, args ...any) error {
	return &api.Error{Code: api.CodeBadValue, Errno: "EINVAL", Message: fmt.Sprintf(format, args...)}
}

// atIndex says which probe of a batch an error is about.
func atIndex(err error, i int) error {
	e := *toAPI(err)
	e.Index = &i
	return &e
}
