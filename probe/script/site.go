package script

import (
	"fmt"
	"slices"
	"strings"
)

// site is a place in the script that can fail at run time.
type site struct {
	Span
	what   string // "" = a read
	helper string // the kernel's helper that has failed; "": none of the kernel's has
	from   int    // the start of the place, without parentheses around its first operand
}

// helpers are the kernel's helpers that fail, apart from reads, by the kind of the place.
var helpers = map[string]string{siteFull: "map_update_elem", siteStack: "get_stackid", siteOverride: "override_return"}

// failureAt returns the site of a failure that is not a read.
func failureAt(sp Span, what string) site { return site{sp, what, helpers[what], sp.From} }

// readAt returns the site where an expression of a probe at some points is read from the guest's memory.
func readAt(points []*point, e *expr) site { return site{e.Span, "", readHelper(points, e), e.start()} }

// divideSite returns the number of the site of a division by 0, which it adds if it is new.
func divideSite(c *checker, e *expr) int {
	if i := slices.IndexFunc(c.sites, func(s site) bool { return s.Span == e.Span && s.what == siteDivide }); i >= 0 {
		return i
	}
	return c.addSite(site{e.Span, siteDivide, "", e.start()})
}

// addSite returns the number of a site, which it adds if it is new.
func (c *checker) addSite(s site) int {
	i, ok := c.siteOf[s]
	if !ok {
		i = len(c.sites)
		c.sites, c.siteOf[s] = append(c.sites, s), i
	}
	return i
}

// start returns where an expression begins, without the parentheses around its first operand, as bpftrace has it.
func (e *expr) start() int {
	switch {
	case (e.kind == exField || e.kind == exIndex || e.kind == exBinary) && len(e.args) > 0:
		return e.args[0].start()
	case e.bare != (Span{}):
		return e.bare.From
	}
	return e.Span.From
}

// readHelper returns the helper with which bpftrace makes a read: by the space of the address, which uptr, kptr or the probe says.
func readHelper(points []*point, e *expr) string {
	helper := "probe_read_kernel"
	if readsUser(points, e) {
		helper = "probe_read_user"
	}
	if e.kind == exCall && e.name == "str" {
		helper += "_str"
	}
	return helper
}

// readsUser reports whether an expression is read from an address of user code.
func readsUser(points []*point, e *expr) bool {
	for at := e; ; at = at.args[0] {
		switch {
		case at.kind == exCall && (at.name == "uptr" || at.name == "kptr"):
			return at.name == "uptr"
		case at.inRecord: // the record itself is the kernel's
			return at != e && everyPoint(points, func(p *point) bool { return strings.HasPrefix(p.fn, "syscalls:sys_enter_") })
		case at.kind == exBuiltin && (at.name == "curtask" || at.name == "jiffies"):
			return false
		case len(at.args) == 0:
			return everyPoint(points, func(p *point) bool { return p.inUser() })
		}
	}
}

// everyPoint reports whether there are points, and f is true of all.
func everyPoint(points []*point, f func(p *point) bool) bool {
	for _, p := range points {
		if !f(p) {
			return false
		}
	}
	return len(points) > 0
}

// json returns the line about n failures at a site, as bpftrace prints it. count is only there if there are several.
func (s *site) json(src *source, n uint64, errno int64) string {
	at := src.errorAt(Span{From: s.from, To: max(s.from, s.To), in: s.in}, "")
	text := `{"type": "runtime_error", "msg": ` + jsonText(problem(s.what, errno))
	if s.helper != "" {
		text = fmt.Sprintf(`{"type": "helper_error", "msg": %s, "helper": %q, "retcode": %d`, jsonText(errorText(errno)), s.helper, -errno)
	}
	text += fmt.Sprintf(`, "filename": %s, "line": %d, "col": %d`, jsonText(at.Name), at.Line, at.Col)
	if n > 1 {
		text += fmt.Sprintf(`, "count": %d`, n)
	}
	return text + "}\n"
}
