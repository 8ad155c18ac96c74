package http

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// maxBody bounds a request. A batch of 10,000 definitions of ordinary length
// fits.
const maxBody = 4 << 20

// maxFileBody bounds a request that contains a file: 16 MiB, in base64, and some
// room for the rest.
const maxFileBody = 23 << 20

// writeJSON answers with one JSON value. A write error means that the client is
// gone.
func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic("BUG: marshal answer: " + err.Error())
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n'))
}

// writeText answers with plain text. A write error means that the client is
// gone.
func writeText(w http.ResponseWriter, text func(*bufio.Writer) error) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	b := bufio.NewWriter(w)
	err := text(b)
	_ = b.Flush()
	return err
}

// writeError answers with the envelope of err.
func writeError(w http.ResponseWriter, err error) {
	e := toAPI(err)
	writeJSON(w, status(e.Code), api.ErrorBody{Error: *e})
}

// readBody decodes the one JSON value that the body must be into v. An empty
// body leaves v as it is when optional.
func readBody(w http.ResponseWriter, r *http.Request, v any, optional bool) error {
	return readBounded(w, r, v, optional, maxBody)
}

// readLarge is readBody for a route whose body contains a file.
func readLarge(w http.ResponseWriter, r *http.Request, v any) error {
	return readBounded(w, r, v, false, maxFileBody)
}

func readBounded(w http.ResponseWriter, r *http.Request, v any, optional bool, limit int64) error {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err != nil {
		return bodyError(err)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		if optional && errors.Is(err, io.EOF) {
			return nil
		}
		return bodyError(err)
	}
	// Decode stops after the first value. A second value is a client's mistake,
	// and half of a request must not be carried out.
	if _, err := dec.Token(); err != io.EOF {
		if err == nil {
			err = errors.New("more than one JSON value")
		}
		return bodyError(err)
	}
	return checkNames(b, reflect.TypeOf(v))
}

func bodyError(err error) error {
	var limit *api.Error
	if errors.As(err, &limit) {
		return limit
	}
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		detail := "send the probes in several batches"
		if large.Limit == maxFileBody {
			detail = "a file has at most 16 MiB"
		}
		return &api.Error{Code: api.CodeTooLarge, Errno: "EMSGSIZE", Message: fmt.Sprintf("the body is larger than %d bytes", large.Limit), Detail: detail}
	}
	// encoding/json has no type for this error; TestBadRequests pins its text.
	if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return &api.Error{Code: api.CodeUnknownField, Errno: "EINVAL", Message: "unknown field " + field}
	}
	msg := api.DecodeText(err)
	switch {
	case errors.Is(err, io.EOF):
		msg = "the body is empty"
	case errors.Is(err, io.ErrUnexpectedEOF):
		msg = "the JSON value is cut off"
	}
	return &api.Error{Code: api.CodeBadJSON, Errno: "EINVAL", Message: "body is not what the route takes: " + msg}
}

// rejectBody rejects a body on a route without one.
func rejectBody(w http.ResponseWriter, r *http.Request) error {
	return readBody(w, r, &struct{}{}, true)
}
