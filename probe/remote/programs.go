package remote

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// AttachProgram attaches the eBPF programs of an object file, all or none, and returns
// their probes and notes about the file. They stay when the client goes.
func (c *Client) AttachProgram(ctx context.Context, p api.AttachProgram) (l api.ProbeList, err error) {
	return l, c.call(ctx, http.MethodPost, "/v1/programs", nil, p, &l)
}

// GiveFile uploads a copy of a file of the guest, for later definitions and scripts that
// refer to it.
func (c *Client) GiveFile(ctx context.Context, f api.GiveFile) (g api.GivenFile, err error) {
	return g, c.call(ctx, http.MethodPost, "/v1/files", nil, f, &g)
}

// RunScript runs a script in bpftrace's language until the stream ends: by exit() in the
// script, EndStream, Close, or the end of ctx. The first record is api.RecordStart; the
// script's output is api.RecordOutput, and its maps come last. A script that does not
// compile is an *api.Error with Column and Width in the line Command.
func (c *Client) RunScript(ctx context.Context, r api.RunScript) (*Stream, error) {
	return c.stream(ctx, http.MethodPost, "/v1/scripts", nil, r)
}

// DetachScript runs a script that outlives its client, with r.Detach as its name, until
// StopScript.
func (c *Client) DetachScript(ctx context.Context, r api.RunScript) (i api.ScriptInfo, err error) {
	return i, c.call(ctx, http.MethodPost, "/v1/scripts", nil, r, &i)
}

// Check reports whether the daemon would accept a definition or a script, and changes
// nothing. A rejection is the error, or Checked.Error if r.InAnswer is set.
func (c *Client) Check(ctx context.Context, r api.Check) (a api.Checked, err error) {
	return a, c.call(ctx, http.MethodPost, "/v1/check", nil, r, &a)
}

// Scripts lists the scripts that run without a client, by name.
func (c *Client) Scripts(ctx context.Context) ([]api.ScriptInfo, error) {
	var l api.ScriptList
	err := c.call(ctx, http.MethodGet, "/v1/scripts", nil, nil, &l)
	return l.Scripts, err
}

// Script describes one of them, with its maps printed in that format; "" is its own.
func (c *Client) Script(ctx context.Context, name, format string) (i api.ScriptInfo, err error) {
	q := url.Values{}
	if format != "" {
		q.Set("format", format)
	}
	return i, c.call(ctx, http.MethodGet, scriptPath(name), q, nil, &i)
}

// Fleet returns the daemon's state for its fleet, once it has applied the definitions
// up to that revision, or its progress, if that takes too long.
func (c *Client) Fleet(ctx context.Context, revision uint64) (s api.FleetState, err error) {
	q := url.Values{}
	if revision > 0 {
		q.Set("revision", strconv.FormatUint(revision, 10))
	}
	return s, c.call(ctx, http.MethodGet, "/v1/fleet", q, nil, &s)
}

// FollowScript streams the script's output so far, as far as it is kept, and its
// further output until its end, or EndStream.
func (c *Client) FollowScript(ctx context.Context, name string) (*Stream, error) {
	return c.stream(ctx, http.MethodGet, scriptPath(name)+"/output", nil, nil)
}

// StopScript ends a script, and streams its final output.
func (c *Client) StopScript(ctx context.Context, name string) (*Stream, error) {
	return c.stream(ctx, http.MethodDelete, scriptPath(name), nil, nil)
}

func scriptPath(name string) string { return "/v1/scripts/" + url.PathEscape(name) }

// Places lists the possible probes of a script that match a pattern such as
// kprobe:vfs_*, with the prototypes of functions if types is set; or the guest's types
// that match one such as "struct task_*", with their definitions if types is set.
func (c *Client) Places(ctx context.Context, match string, types bool) (l api.PlaceList, err error) {
	q := url.Values{"match": {match}}
	if types {
		q.Set("types", "true")
	}
	return l, c.call(ctx, http.MethodGet, "/v1/places", q, nil, &l)
}

// Maps lists the maps of the programs that AttachProgram has attached. The maps of scripts
// are in Script's answer.
func (c *Client) Maps(ctx context.Context) ([]api.MapInfo, error) {
	var l api.MapList
	err := c.call(ctx, http.MethodGet, "/v1/maps", nil, nil, &l)
	return l.Maps, err
}

// Map returns the contents of a map of an attached program, by number or name: of a map
// for each CPU one value for each vCPU, of a ring its counts. It has at most
// api.MaxMapEntries keys.
func (c *Client) Map(ctx context.Context, name string) (d api.MapDump, err error) {
	return d, c.call(ctx, http.MethodGet, "/v1/maps/"+url.PathEscape(name), nil, nil, &d)
}
