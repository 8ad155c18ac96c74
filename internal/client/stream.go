package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/guestprobe/guestprobe/internal/api"
)

// ErrCutOff is returned by Stream.Next when the stream ended without an end
// record: the daemon died.
var ErrCutOff = errors.New("stream was cut off")

// maxLine bounds one record. The largest is a start record that lists every
// probe; room for it is made only when it comes.
const maxLine = 256 << 20

// Stream is a sequence of records. It belongs to one goroutine.
type Stream struct {
	body  io.ReadCloser
	lines *bufio.Scanner
	ctx   context.Context
	ended bool
}

// Events opens an event stream, attaching the probes that r asks for. Its
// first record is api.RecordStart; hits that happen after Events has returned
// are in the stream or counted as lost.
func (c *Client) Events(ctx context.Context, r api.StreamEvents) (*Stream, error) {
	return c.stream(ctx, http.MethodPost, "/v1/events", nil, r)
}

// Console opens the guest's console output from what is left of its beginning
// on; with follow it goes on until the guest ends.
func (c *Client) Console(ctx context.Context, follow bool) (*Stream, error) {
	q := url.Values{}
	if follow {
		q.Set("follow", "true")
	}
	return c.stream(ctx, http.MethodGet, "/v1/guest/console", q, nil)
}

func (c *Client) stream(ctx context.Context, method, path string, query url.Values, in any) (*Stream, error) {
	resp, err := c.do(ctx, method, path, query, in)
	if err != nil {
		return nil, err
	}
	s := &Stream{body: resp.Body, lines: bufio.NewScanner(resp.Body), ctx: ctx}
	s.lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	return s, nil
}

// Next returns the next record, of whatever type. After the end record it
// returns io.EOF; a stream without one ends in ErrCutOff, or in the context's
// error when the caller ended it.
func (s *Stream) Next() (api.Record, error) {
	var r api.Record
	if s.ended {
		return r, io.EOF
	}
	if !s.lines.Scan() {
		err := s.lines.Err()
		switch {
		case s.ctx.Err() != nil:
			return r, context.Cause(s.ctx)
		case err == nil:
			return r, ErrCutOff
		default:
			return r, fmt.Errorf("%w: %w", ErrCutOff, err)
		}
	}
	if err := json.Unmarshal(s.lines.Bytes(), &r); err != nil {
		return r, fmt.Errorf("%w: record: %w", ErrProtocol, err)
	}
	s.ended = r.Type == api.RecordEnd
	return r, nil
}

// Close ends the stream; probes attached with it come out.
func (s *Stream) Close() error { return s.body.Close() }
