package remote

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Version returns the daemon's version and API levels. A daemon answers it whatever the
// level of the client.
func (c *Client) Version(ctx context.Context) (v api.Version, err error) {
	return v, c.call(ctx, http.MethodGet, "/version", nil, nil, &v)
}

// Daemon returns the resources used by the daemon's process. The daemon collects garbage
// first, which takes some milliseconds.
func (c *Client) Daemon(ctx context.Context) (d api.Daemon, err error) {
	return d, c.call(ctx, http.MethodGet, "/v1/daemon", nil, nil, &d)
}

// Guest returns the guest's state, with each vCPU's exits and hits.
func (c *Client) Guest(ctx context.Context) (g api.Guest, err error) {
	return g, c.call(ctx, http.MethodGet, "/v1/guest", nil, nil, &g)
}

// Pause takes every vCPU out of guest mode, and returns when all have stopped. A paused
// guest stays paused.
func (c *Client) Pause(ctx context.Context) (g api.Guest, err error) {
	return g, c.call(ctx, http.MethodPost, "/v1/guest/pause", nil, nil, &g)
}

// Resume resumes a created or paused guest; a running one keeps running.
func (c *Client) Resume(ctx context.Context) (g api.Guest, err error) {
	return g, c.call(ctx, http.MethodPost, "/v1/guest/resume", nil, nil, &g)
}

// ResumeVCPU resumes one vCPU, counted from 0, that a probe has stopped.
func (c *Client) ResumeVCPU(ctx context.Context, cpu int) (g api.Guest, err error) {
	return g, c.call(ctx, http.MethodPost, "/v1/guest/resume", nil, api.ResumeGuest{VCPU: &cpu}, &g)
}

// Step lets a stopped vCPU run as s says: for some instructions, to an address, or to the
// return of its function. It returns when the vCPU has stopped again or s.TimeoutMS is over.
func (c *Client) Step(ctx context.Context, s api.Step) (out api.Stepped, err error) {
	return out, c.call(ctx, http.MethodPost, "/v1/guest/step", nil, s, &out)
}

// Reset boots the guest again, or restores the snapshot r.To, with the probes in place, and
// returns the guest's new state.
func (c *Client) Reset(ctx context.Context, r api.ResetGuest) (g api.Guest, err error) {
	return g, c.call(ctx, http.MethodPost, "/v1/guest/reset", nil, r, &g)
}

// Save writes a snapshot of the guest to w, in the format of package kvm/snapshot. After
// an error, w may have received a part of it. An error of w is wrapped, and is never
// ErrUnreachable.
func (c *Client) Save(ctx context.Context, w io.Writer) error {
	const path = "/v1/guest/save"
	resp, err := c.do(ctx, http.MethodPost, path, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	from := &failing{r: resp.Body}
	switch _, err := io.Copy(w, from); {
	case from.err != nil:
		return c.transportError(ctx, http.MethodPost, path, from.err)
	case err != nil:
		return fmt.Errorf("save: %w", err)
	}
	return nil
}

// GiveSnapshot uploads a snapshot from r, and returns its ID for api.ResetGuest.
func (c *Client) GiveSnapshot(ctx context.Context, r io.Reader) (s api.Snapshot, err error) {
	return s, c.call(ctx, http.MethodPost, "/v1/snapshots", nil, r, &s)
}

// Page has the daemon serve the page in the browser on loopback, and returns an address of
// it, which works once in one browser.
func (c *Client) Page(ctx context.Context) (p api.Page, err error) {
	return p, c.call(ctx, http.MethodPost, "/v1/web", nil, nil, &p)
}

// Call runs a function of the guest and returns its result. It returns an error if the
// function has not returned within r.TimeoutMS.
func (c *Client) Call(ctx context.Context, r api.Call) (res api.CallResult, err error) {
	return res, c.call(ctx, http.MethodPost, "/v1/guest/call", nil, r, &res)
}

// Text compares the guest's code in memory with its image, and lists the ranges that
// differ. The instructions of attached probes are among them.
func (c *Client) Text(ctx context.Context) (t api.Text, err error) {
	return t, c.call(ctx, http.MethodGet, "/v1/guest/text", nil, nil, &t)
}

// Probes lists the attached probes with these names, or all, in the order in which they
// were attached. A name is a number, EVENT, GROUP/EVENT, GROUP/, or a pattern of EVENT or
// GROUP/EVENT. If one of names matches no probe, the error is api.ErrProbeNotFound.
func (c *Client) Probes(ctx context.Context, names ...string) ([]api.Probe, error) {
	var l api.ProbeList
	err := c.call(ctx, http.MethodGet, "/v1/probes", probeQuery(names), nil, &l)
	return l.Probes, err
}

// probeQuery makes a query for probes by name.
func probeQuery(names []string) url.Values {
	if len(names) == 0 {
		return nil
	}
	return url.Values{"probe": names}
}

// Attach attaches all of specs or none, and returns the probes in the order of specs. A
// definition with a pattern for its place makes several probes. A rejection is an
// *api.Error with the reason as Code and the number of the rejected definition, from 0,
// as *Index. The probes stay when the client goes.
func (c *Client) Attach(ctx context.Context, specs ...api.ProbeSpec) ([]api.Probe, error) {
	l, err := c.Apply(ctx, specs...)
	return l.Probes, err
}

// Apply is Attach for lists that contain deletions: the answer also has the probes
// that these deleted.
func (c *Client) Apply(ctx context.Context, specs ...api.ProbeSpec) (l api.ProbeList, err error) {
	return l, c.call(ctx, http.MethodPost, "/v1/probes", nil, api.CreateProbes{Probes: specs}, &l)
}

// Patch enables or disables the probes with these names, in the syntax of Probes, or all
// probes, or changes their filters. It changes every one or none, and returns them.
func (c *Client) Patch(ctx context.Context, p api.PatchProbe, names ...string) ([]api.Probe, error) {
	var l api.ProbeList
	err := c.call(ctx, http.MethodPatch, "/v1/probes", nil, api.PatchProbes{PatchProbe: p, Names: names}, &l)
	return l.Probes, err
}

// Probe returns one probe by number, EVENT or GROUP/EVENT. If it does not exist, the error
// is api.ErrProbeNotFound.
func (c *Client) Probe(ctx context.Context, name string) (p api.Probe, err error) {
	return p, c.call(ctx, http.MethodGet, "/v1/probes/"+url.PathEscape(name), nil, nil, &p)
}

// SetEnabled enables or disables one probe and returns it. A disabled probe keeps its
// place and its counts.
func (c *Client) SetEnabled(ctx context.Context, name string, on bool) (p api.Probe, err error) {
	return p, c.call(ctx, http.MethodPatch, "/v1/probes/"+url.PathEscape(name), nil, api.PatchProbe{Enabled: &on}, &p)
}

// Detach detaches one probe and returns its last state, with its final counts. No hit is
// counted after it has returned.
func (c *Client) Detach(ctx context.Context, name string) (p api.Probe, err error) {
	return p, c.call(ctx, http.MethodDelete, "/v1/probes/"+url.PathEscape(name), nil, nil, &p)
}

// DetachAll detaches every probe, including the probes of other clients, and returns their
// last states.
func (c *Client) DetachAll(ctx context.Context) ([]api.Probe, error) { return c.detach(ctx, nil) }

// DetachMany detaches the probes with these names, in the syntax of Probes, all or none.
// Without names it does nothing.
func (c *Client) DetachMany(ctx context.Context, names ...string) ([]api.Probe, error) {
	if len(names) == 0 {
		return nil, nil
	}
	return c.detach(ctx, names)
}

func (c *Client) detach(ctx context.Context, names []string) ([]api.Probe, error) {
	var l api.ProbeList
	err := c.call(ctx, http.MethodDelete, "/v1/probes", probeQuery(names), nil, &l)
	return l.Probes, err
}

// SymbolQuery selects symbols.
type SymbolQuery struct {
	Match string // glob over the name; empty matches all
	Kind  string // func, data or other; empty matches all
	Limit int    // 0 means the daemon's default
	Types bool   // with prototypes of functions
}

// Symbols returns the guest's symbols selected by q, sorted by address. More reports that
// the limit has cut the list off.
func (c *Client) Symbols(ctx context.Context, q SymbolQuery) (l api.SymbolList, err error) {
	v := url.Values{}
	if q.Match != "" {
		v.Set("match", q.Match)
	}
	if q.Kind != "" {
		v.Set("kind", q.Kind)
	}
	if q.Limit > 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	if q.Types {
		v.Set("types", "true")
	}
	return l, c.call(ctx, http.MethodGet, "/v1/symbols", v, nil, &l)
}

// Tasks returns the processes of a Linux guest, or with threads all their threads. The
// error is an *api.Error if the guest's tasks are not known.
func (c *Client) Tasks(ctx context.Context, threads bool) (l api.TaskList, err error) {
	v := url.Values{}
	if threads {
		v.Set("threads", "true")
	}
	return l, c.call(ctx, http.MethodGet, "/v1/tasks", v, nil, &l)
}

// Disas lists the function of the guest's image at at: a symbol, SYMBOL+OFFSET or an
// address; lines requests the source of each instruction.
func (c *Client) Disas(ctx context.Context, at string, lines bool) (d api.Disas, err error) {
	q := url.Values{"at": {at}}
	if lines {
		q.Set("lines", "true")
	}
	return d, c.call(ctx, http.MethodGet, "/v1/disas", q, nil, &d)
}

// Variables lists the variables visible to the code at a place: a symbol,
// SYMBOL+OFFSET, an address, FILE:LINE or inline:FUNCTION.
func (c *Client) Variables(ctx context.Context, at string) (l api.VariableList, err error) {
	return l, c.call(ctx, http.MethodGet, "/v1/variables", url.Values{"at": {at}}, nil, &l)
}

// Armed reports whether enabled probes are armed: the global switch that SetArmed sets.
func (c *Client) Armed(ctx context.Context) (bool, error) {
	var k api.Knobs
	err := c.call(ctx, http.MethodGet, "/v1/kprobes/enabled", nil, nil, &k)
	return k.Enabled != nil && *k.Enabled, err
}

// SetArmed arms every enabled probe, or disarms all.
func (c *Client) SetArmed(ctx context.Context, on bool) error {
	return c.call(ctx, http.MethodPut, "/v1/kprobes/enabled", nil, api.Knobs{Enabled: &on}, nil)
}

// Optimization reports whether probes become jumps, and the optimizer's work so far.
func (c *Client) Optimization(ctx context.Context) (o api.Optimization, err error) {
	return o, c.call(ctx, http.MethodGet, "/v1/kprobes/optimization", nil, nil, &o)
}

// SetOptimization turns the optimization of probes to jumps on or off, or runs the
// optimizer at once, and returns Optimization's answer.
func (c *Client) SetOptimization(ctx context.Context, set api.SetOptimization) (o api.Optimization, err error) {
	return o, c.call(ctx, http.MethodPut, "/v1/kprobes/optimization", nil, set, &o)
}

// Blacklist returns the ranges of code that cannot be probed, with the reasons.
func (c *Client) Blacklist(ctx context.Context) ([]api.BlacklistEntry, error) {
	var b api.Blacklist
	err := c.call(ctx, http.MethodGet, "/v1/blacklist", nil, nil, &b)
	return b.Entries, err
}

// KernelList returns the text of this daemon's version of one of the kernel's files
// on probes: list, blacklist or profile.
func (c *Client) KernelList(ctx context.Context, file string) (text string, err error) {
	return text, c.call(ctx, http.MethodGet, "/v1/kprobes/"+url.PathEscape(file), nil, nil, &text)
}
