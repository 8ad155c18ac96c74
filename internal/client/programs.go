package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/guestprobe/guestprobe/internal/api"
)

// AttachProgram attaches the programs of an object file, all or none.
func (c *Client) AttachProgram(ctx context.Context, p api.AttachProgram) ([]api.Probe, error) {
	var l api.ProbeList
	err := c.call(ctx, http.MethodPost, "/v1/programs", nil, p, &l)
	return l.Probes, err
}

// RunScript runs a script for the life of the stream. Its first record is api.RecordStart;
// EndStream ends it.
func (c *Client) RunScript(ctx context.Context, r api.RunScript) (*Stream, error) {
	return c.stream(ctx, http.MethodPost, "/v1/scripts", nil, r)
}

// Places lists where a script may have probes that match a pattern as kprobe:vfs_*, with
// the prototypes of functions where types are asked for.
func (c *Client) Places(ctx context.Context, match string, types bool) ([]api.Place, error) {
	q := url.Values{"match": {match}}
	if types {
		q.Set("types", "true")
	}
	var l api.PlaceList
	err := c.call(ctx, http.MethodGet, "/v1/places", q, nil, &l)
	return l.Places, err
}

// Maps lists the maps of the attached programs.
func (c *Client) Maps(ctx context.Context) ([]api.MapInfo, error) {
	var l api.MapList
	err := c.call(ctx, http.MethodGet, "/v1/maps", nil, nil, &l)
	return l.Maps, err
}

// Map returns what is in a map, by number or name.
func (c *Client) Map(ctx context.Context, name string) (d api.MapDump, err error) {
	return d, c.call(ctx, http.MethodGet, "/v1/maps/"+url.PathEscape(name), nil, nil, &d)
}
