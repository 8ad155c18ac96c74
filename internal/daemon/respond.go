package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/guestprobe/guestprobe/internal/api"
)

// maxBody bounds a request. A batch of 10,000 definitions of ordinary length
// fits.
const maxBody = 4 << 20

// writeJSON answers with one JSON value. What cannot be written has no reader
// left to tell.
func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic("BUG: marshal answer: " + err.Error())
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n'))
}

// writeText answers with plain text.
func writeText(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, text)
}

// writeError answers with the envelope of err.
func writeError(w http.ResponseWriter, err error) {
	e := toAPI(err)
	writeJSON(w, status(e.Code), api.ErrorBody{Error: *e})
}

// readBody decodes the one JSON value that the body must be into v. An empty
// body leaves v as it is when optional.
func readBody(w http.ResponseWriter, r *http.Request, v any, optional bool) error {
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		if optional && errors.Is(err, io.EOF) {
			return nil
		}
		return bodyError(err)
	}
	// Decode stops behind the first value; a second one is a client's mistake,
	// and half of what it meant must not be done.
	if _, err := dec.Token(); err != io.EOF {
		if err == nil {
			err = errors.New("more than one JSON value")
		}
		return bodyError(err)
	}
	return nil
}

func bodyError(err error) error {
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return &api.Error{
			Code: api.CodeTooLarge, Errno: "EMSGSIZE",
			Message: fmt.Sprintf("the body is larger than %d bytes", large.Limit),
			Detail:  "send the probes in several batches",
		}
	}
	// encoding/json has no type for this error; TestUnknownField pins its text.
	if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return &api.Error{Code: api.CodeUnknownField, Errno: "EINVAL", Message: "unknown field " + field}
	}
	msg := strings.TrimPrefix(err.Error(), "json: ")
	switch {
	case errors.Is(err, io.EOF):
		msg = "the body is empty"
	case errors.Is(err, io.ErrUnexpectedEOF):
		msg = "the JSON value is cut off"
	}
	return &api.Error{Code: api.CodeBadJSON, Errno: "EINVAL", Message: "body is not what the route takes: " + msg}
}

// query returns the one value of a query parameter, or "". known lists every
// parameter of the route: others are an error, as unknown fields are.
func query(r *http.Request, known ...string) (map[string]string, error) {
	out := map[string]string{}
	for k, v := range r.URL.Query() {
		found := false
		for _, n := range known {
			found = found || n == k
		}
		switch {
		case !found:
			return nil, &api.Error{Code: api.CodeUnknownField, Errno: "EINVAL", Message: fmt.Sprintf("unknown query parameter %q", k)}
		case len(v) != 1:
			return nil, badValue("query parameter %q is given %d times", k, len(v))
		}
		out[k] = v[0]
	}
	return out, nil
}
