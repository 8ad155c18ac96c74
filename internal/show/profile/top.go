package profile

import (
	"cmp"
	"slices"
	"strings"

	pprof "github.com/google/pprof/profile"
)

// Row is a function's part of a profile.
type Row struct {
	Function string `json:"function"`
	Kernel   bool   `json:"kernel"`
	Self     int64  `json:"self"`
	Total    int64  `json:"total"` // including the functions that it has called, counted once if it calls itself

	BaseSelf  int64 `json:"baseSelf,omitempty"` // in the profile that this one is compared with
	BaseTotal int64 `json:"baseTotal,omitempty"`
}

// Top returns the functions of a profile by their own values of this index, the
// largest first, without the tasks; and the sum of all values.
func Top(p *pprof.Profile, i int) (rows []Row, total, base int64) {
	all := map[frame]*Row{}
	for _, s := range p.Sample {
		v, isBase := value(s, i)
		stack := frames(s)
		if len(s.Label[labelComm]) > 0 {
			stack = stack[1:]
		}
		if isBase {
			base += v
		} else {
			total += v
		}
		for k, f := range stack {
			r := all[f]
			if r == nil {
				r = &Row{Function: f.name, Kernel: f.kernel}
				all[f] = r
			}
			self, once := k == len(stack)-1, !slices.Contains(stack[:k], f)
			switch {
			case isBase && self:
				r.BaseSelf += v
			case self:
				r.Self += v
			}
			switch {
			case isBase && once:
				r.BaseTotal += v
			case once:
				r.Total += v
			}
		}
	}
	for _, r := range all {
		rows = append(rows, *r)
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(b.Self, a.Self), cmp.Compare(b.Total, a.Total), cmp.Compare(b.BaseSelf, a.BaseSelf), strings.Compare(a.Function, b.Function))
	})
	return rows, total, base
}
