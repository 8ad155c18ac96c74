package api

import (
	"fmt"
	"regexp"
	"strconv"
)

// LevelHeader is the header of each answer of a daemon, and of each request of a guestprobe, that says by which level of the
// API it was made. Requests of others need none.
const LevelHeader = "Guestprobe-API"

// Level is a version of the API: its protocol version, and how often something was added to that.
type Level struct{ Major, Minor int }

// What this build speaks, and the oldest clients and daemons that it works with. docs/stability.md says when they change.
var (
	Current      = Level{1, 2}
	OldestClient = Level{1, 1}
	OldestDaemon = Level{1, 1}
)

var levelForm = regexp.MustCompile(`^([0-9]{1,4})\.([0-9]{1,4})$`)

// ParseLevel reads a level as String writes it.
func ParseLevel(s string) (l Level, err error) {
	m := levelForm.FindStringSubmatch(s)
	if m == nil {
		return l, fmt.Errorf("level %.20q: want MAJOR.MINOR", s)
	}
	l.Major, _ = strconv.Atoi(m[1]) // digits, and few of them
	l.Minor, _ = strconv.Atoi(m[2])
	return l, nil
}

// String writes the level as MAJOR.MINOR.
func (l Level) String() string { return fmt.Sprintf("%d.%d", l.Major, l.Minor) }

// Before reports whether the level is older than another.
func (l Level) Before(o Level) bool {
	return l.Major < o.Major || l.Major == o.Major && l.Minor < o.Minor
}
