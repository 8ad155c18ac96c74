package remote

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Where selects memory. At is ADDRESS, SYMBOL or %REGISTER, optionally followed by
// +OFFSET or -OFFSET; at most one of VCPU and Task, which are numbers, and Space, the
// address of a page table, is set.
type Where struct{ At, VCPU, Task, Space string }

func (w Where) query() url.Values {
	q := url.Values{}
	for name, v := range map[string]string{"at": w.At, "vcpu": w.VCPU, "task": w.Task, "space": w.Space} {
		if v != "" {
			q.Set(name, v)
		}
	}
	return q
}

// Registers returns the registers of a vCPU, by its number from 0, or of all vCPUs if
// vcpu is "", of one instant. With vectors they include floating point and vector registers.
func (c *Client) Registers(ctx context.Context, vcpu string, vectors bool) (l api.RegisterList, err error) {
	q := Where{VCPU: vcpu}.query()
	if vectors {
		q.Set("vectors", "true")
	}
	return l, c.call(ctx, http.MethodGet, "/v1/registers", q, nil, &l)
}

// MemoryQuery says how to read memory.
type MemoryQuery struct {
	Length  uint64 // 0: the daemon's default
	Live    bool   // including the bytes of probes
	Type    string // in C syntax, optionally followed by members; "": bytes
	Symbols bool   // the symbols that words in it point to
}

// Memory reads guest memory at a place, as m says. Without m.Live it has the guest's own
// bytes in place of the probes'.
func (c *Client) Memory(ctx context.Context, at Where, m MemoryQuery) (out api.Memory, err error) {
	q := at.query()
	if m.Length != 0 {
		q.Set("length", strconv.FormatUint(m.Length, 10))
	}
	if m.Live {
		q.Set("live", "true")
	}
	if m.Symbols {
		q.Set("symbols", "true")
	}
	if m.Type != "" {
		q.Set("type", m.Type)
	}
	return out, c.call(ctx, http.MethodGet, "/v1/memory", q, nil, &out)
}

// WriteRegisters changes registers of a vCPU, and returns its registers afterwards.
func (c *Client) WriteRegisters(ctx context.Context, w api.WriteRegisters) (out api.Registers, err error) {
	return out, c.call(ctx, http.MethodPut, "/v1/registers", nil, w, &out)
}

// WriteMemory writes guest memory, and returns the memory afterwards.
func (c *Client) WriteMemory(ctx context.Context, w api.WriteMemory) (out api.Memory, err error) {
	return out, c.call(ctx, http.MethodPut, "/v1/memory", nil, w, &out)
}

// PageWalk returns the translation of an address through the page tables.
func (c *Client) PageWalk(ctx context.Context, at Where) (out api.PageWalk, err error) {
	return out, c.call(ctx, http.MethodGet, "/v1/pagetables", at.query(), nil, &out)
}

// Backtraces returns the backtrace of a vCPU or of a task, or of all vCPUs if neither
// is given.
func (c *Client) Backtraces(ctx context.Context, of Where) (l api.BacktraceList, err error) {
	return l, c.call(ctx, http.MethodGet, "/v1/backtraces", of.query(), nil, &l)
}
