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
	"github.com/guestprobe/guestprobe/kvm/foreign"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/program"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/session"
)

// statusOf returns the HTTP status of a code. 422 means that the engine rejects
// the operation: the request was understood but cannot be carried out.
var statusOf = map[api.Code]int{
	api.CodeBadJSON:       http.StatusBadRequest,
	api.CodeUnknownField:  http.StatusBadRequest,
	api.CodeBadValue:      http.StatusBadRequest,
	api.CodeBadDefinition: http.StatusBadRequest,
	api.CodeUnavailable:   http.StatusNotImplemented,
	api.CodeNotOurs:       http.StatusNotImplemented,
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

// toAPI converts any error into an API error. An error that it does not know
// becomes "internal": that is a bug in guestprobe, and its text is meant for the
// bug report.
func toAPI(err error) *api.Error {
	var wire *api.Error
	if errors.As(err, &wire) {
		return wire
	}
	if e := session.ErrorOf(err); e.Code != "" {
		return sessionToAPI(e)
	}
	var placed *session.Error
	if errors.As(err, &placed) && placed.Err != nil { // of the machine: the session says which definition it is about
		out := *toAPI(placed.Err)
		out.Index, out.Column, out.Command = cmp.Or(placed.Index, out.Index), cmp.Or(placed.Column, out.Column), cmp.Or(placed.Command, out.Command)
		return &out
	}
	var outside *foreign.Error
	if errors.As(err, &outside) {
		return vmError(err)
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
		{machine.ErrOutside, api.CodeNotOurs, "EOPNOTSUPP"},
		{machine.ErrNoSnapshot, api.CodeUnavailable, "EOPNOTSUPP"},
		{machine.ErrOtherGuest, api.CodeBadFile, "EINVAL"},
		{machine.ErrSavedEnd, api.CodeBadFile, "EINVAL"},
		{device.ErrDisk, api.CodeGuestState, "ENXIO"}, // a reset opens it again
		{machine.ErrGuestReset, api.CodeGuestState, "ECANCELED"},
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

// insideCure returns the remedy for an ErrInside.
func insideCure(err error) string {
	var in *probe.InsideError
	cure := "it did not come out in time: try again, with the guest running"
	if errors.As(err, &in) && len(in.Probes) > 0 {
		cure += ", or detach " + strings.Join(in.Probes, ", ")
	}
	return cure
}

// listSymbols is the cure for a name that no symbol is similar to.
const listSymbols = "'guestprobe symbols GLOB' lists those it has"

// sessionToAPI converts an error of the session into an API error, with the
// remedies that guestprobe and guestprobed offer.
func sessionToAPI(e *session.Error) *api.Error {
	out := &api.Error{
		Code: api.Code(e.Code), Errno: probe.ErrnoName(e.Errno), Message: e.Text, Detail: e.Detail,
		Syntax: e.Syntax, Index: e.Index, Column: e.Column, Command: e.Command,
	}
	var syntax *event.SyntaxError
	var refused *probe.Error
	switch {
	case errors.As(e.Err, &syntax) && errors.As(syntax.Err, &refused):
		if refused.Code == probe.CodeSymbolNotFound && refused.Detail == "" && syntax.Code != event.CodeFilePlace {
			out.Detail += "; " + listSymbols
		}
	case e.Code == session.CodeClosing:
		return errClosing
	case e.Code == session.CodeMapNotFound:
		out.Detail = "'guestprobe map list' lists the existing ones"
	case errors.Is(e.Err, program.ErrMapMemory):
		out.Detail = "detach programs, or start guestprobed with a larger --map-memory"
	}
	return out
}

// toProbeError converts an error of the image about a name into the error that
// the engine would return.
func toProbeError(img guest.View, name string, err error) error {
	var ambiguous *guest.AmbiguousSymbolError
	if errors.As(err, &ambiguous) {
		return &probe.Error{Code: probe.CodeAmbiguous, Errno: syscall.EADDRNOTAVAIL, Text: err.Error(), Detail: "give one of the addresses instead"}
	}
	return &probe.Error{Code: probe.CodeSymbolNotFound, Errno: syscall.ENOENT, Text: fmt.Sprintf("the guest has no symbol %q", name), Detail: cmp.Or(guest.Advice(err), guest.SymbolAdvice(name, img.Symbols()), listSymbols)}
}

// badValue reports a field or a query parameter outside its range.
func badValue(format string, args ...any) error {
	return &api.Error{Code: api.CodeBadValue, Errno: "EINVAL", Message: fmt.Sprintf(format, args...)}
}

// indexError says which probe of a batch an error is about.
func indexError(err error, i int) error {
	e := *toAPI(err)
	e.Index = &i
	return &e
}

var errClosing = &api.Error{Code: api.CodeClosing, Errno: "ESHUTDOWN", Message: "the daemon is stopping"}

// vmError converts an error about the guest of another VMM into an API error.
func vmError(err error) *api.Error {
	var f *foreign.Error
	if !errors.As(err, &f) {
		return &api.Error{Code: api.CodeBadFile, Errno: "EINVAL", Message: err.Error()}
	}
	errno := map[foreign.Code]string{
		foreign.CodeNoVM: "ESRCH", foreign.CodeSeveralVMs: "EINVAL", foreign.CodeNoPermission: "EPERM", foreign.CodeBusy: "EBUSY",
		foreign.CodeGone: "ESRCH", foreign.CodePaused: "EBADFD", foreign.CodeImageDiffers: "EINVAL",
	}[f.Code]
	if errno == "" {
		errno = "EOPNOTSUPP"
	}
	return &api.Error{Code: api.Code(f.Code), Errno: errno, Message: err.Error()}
}
