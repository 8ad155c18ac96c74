package http

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// values are the parameters of a query, checked against its Operation, with
// defaults for missing ones.
type values struct {
	of    map[string]any
	given map[string]bool
}

// The following methods return a parameter of the operation. For another name
// they panic, because that is a bug.
func (v values) text(name string) string    { return v.of[name].(string) }
func (v values) texts(name string) []string { return v.of[name].([]string) }
func (v values) flag(name string) bool      { return v.of[name].(bool) }
func (v values) number(name string) uint64  { return v.of[name].(uint64) }

// query reads the parameters of a request. Unknown ones are rejected, like
// unknown fields of a body.
func (o *Operation) query(r *http.Request) (values, error) {
	out := values{map[string]any{}, map[string]bool{}}
	q := r.URL.Query()
	for _, k := range slices.Sorted(maps.Keys(q)) {
		if !slices.ContainsFunc(o.Query, func(p Parameter) bool { return p.Name == k }) {
			return out, &api.Error{Code: api.CodeUnknownField, Errno: "EINVAL", Message: fmt.Sprintf("unknown query parameter %q", k)}
		}
	}
	for _, p := range o.Query {
		got := q[p.Name]
		if p.Kind == Texts {
			out.of[p.Name] = got
			continue
		}
		if len(got) > 1 {
			return out, badValue("query parameter %q is given %d times", p.Name, len(got))
		}
		if given := len(got) == 1 && (got[0] != "" || !p.blank); given {
			v, ok := p.parse(got[0])
			if !ok {
				return out, badValue("%s %q: %s", p.Name, got[0], p.wrong)
			}
			out.of[p.Name], out.given[p.Name] = v, true
			continue
		}
		out.of[p.Name] = p.defaultValue()
	}
	for _, p := range o.Query {
		if p.Required && out.text(p.Name) == "" {
			return out, badValue("%s: %s", p.Name, p.missing)
		}
	}
	return out, nil
}

// parse returns the value of a text, and whether it has one.
func (p *Parameter) parse(s string) (any, bool) {
	switch p.Kind {
	case Flag:
		b, err := strconv.ParseBool(s)
		return b, err == nil
	case Number, Address:
		bits := 64
		if p.bits != 0 {
			bits = p.bits
		}
		n, err := strconv.ParseUint(s, p.base, bits)
		return n, err == nil && n >= p.Min && (p.Max == 0 || n <= p.Max)
	default:
		return s, p.Enum == nil || slices.Contains(p.Enum, s)
	}
}

// defaultValue returns the value of a missing parameter.
func (p *Parameter) defaultValue() any {
	switch p.Kind {
	case Flag:
		return false
	case Number, Address:
		n, _ := p.Default.(int)
		return uint64(n)
	default:
		s, _ := p.Default.(string)
		return s
	}
}

// Words of errors about parameters.
const (
	notNumber      = "not a number"
	notBoolean     = "not a boolean"
	notTrueOrFalse = "not true or false"
	sayWhere       = "say where: ADDRESS, SYMBOL+OFFSET or %REGISTER+OFFSET"
)

// Parameters of several routes: the memory for a request, types, probes.
var (
	queryAt = Parameter{
		Name: "at", Description: "an address, a symbol or %REGISTER, optionally followed by +OFFSET or -OFFSET",
		Required: true, missing: sayWhere,
	}
	queryVCPU  = Parameter{Name: "vcpu", Kind: Number, Description: "the memory as this vCPU sees it", bits: 31, wrong: notNumber}
	queryTask  = Parameter{Name: "task", Kind: Number, Description: "the memory of this task of a Linux guest", bits: 31, wrong: notNumber}
	querySpace = Parameter{
		Name: "space", Kind: Address, Description: "the memory of the page tables at this physical address; give at most one of vcpu, task and space: without them it is the kernel's memory",
		Min: 1, wrong: "not the address of a page table",
	}
	queryTypes = Parameter{Name: "types", Kind: Flag, Description: "with prototypes of functions; 501 if the guest's types are not known", wrong: notBoolean}
)

// queryProbes names probes.
func queryProbes(description string) Parameter {
	return Parameter{Name: "probe", Kind: Texts, Description: description}
}
