package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/internal/show/chart"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Do is the action that a key requests, in addition to another screen.
type Do int

// The actions of keys.
const (
	Nothing Do = iota
	Quit
	Suspend // leave the terminal to the shell's job control until the user resumes
	Redraw  // redraw the whole screen
	Detach  // the probe of Model.AskedRow
	Open    // open the probe of Model.AskedRow: its hits are shown
	Shut    // hits are no longer needed
	Stacks  // stacks of the hits of the probe of Model.AskedRow
)

// Model is the displayed data, and how to display it. It belongs to one
// goroutine.
type Model struct {
	Glyphs chart.Glyphs
	Color  bool

	rates  Rates
	shown  Moment
	rows   []Row // the displayed rows that the filter accepts, sorted
	paused bool
	sort   string
	back   bool // sorted the other way around
	filter string
	typing bool // a filter
	asking bool // whether to detach
	help   bool
	note   string

	cursor uint64 // the probe's number
	held   bool   // it stays on its probe; otherwise on the first row
	at     int    // its row
	first  int    // row on the screen
	page   int    // rows on the screen, as it was drawn

	into *detail // the open probe, or nil
}

// sorting are the columns that the key s cycles through.
var sorting = []string{"HITS/S", "HITS", "MISSED", "LOST", "MEAN", "P99", "NAME"}

// New returns an empty model.
func New(g chart.Glyphs, color bool) *Model {
	return &Model{Glyphs: g, Color: color, sort: sorting[0]}
}

// Add adds a record of counts. A complete moment is displayed, unless the
// display is paused.
func (m *Model) Add(c api.Counted) {
	if m.rates.Add(c) && !m.paused {
		m.shown = m.rates.Moment()
		m.arrange()
	}
}

// Sort sorts rows by a column, the largest first unless it is text, and equal
// ones by name.
func Sort(rows []Row, column string, back bool) {
	i := slices.IndexFunc(columns, func(c Column) bool { return c.Name == column })
	if i < 0 || columns[i].less == nil {
		return
	}
	// Rows are large, and there may be ten thousand, so their addresses are sorted
	// instead.
	at := make([]*Row, len(rows))
	from := slices.Clone(rows)
	for i := range from {
		at[i] = &from[i]
	}
	slices.SortFunc(at, func(a, b *Row) int {
		n := columns[i].less(a, b)
		switch {
		case n != 0 && back:
			return -n
		case n != 0:
			return n
		case a.Name != b.Name:
			return cmp.Compare(a.Name, b.Name)
		}
		return cmp.Compare(a.ID, b.ID)
	})
	for i, r := range at {
		rows[i] = *r
	}
}

// arrange filters and sorts the rows.
func (m *Model) arrange() {
	want := strings.ToLower(m.filter)
	m.rows = m.rows[:0:0]
	for _, r := range m.shown.Probes {
		if strings.Contains(strings.ToLower(r.Name), want) || strings.Contains(strings.ToLower(r.Place), want) {
			m.rows = append(m.rows, r)
		}
	}
	Sort(m.rows, m.sort, m.back)
	// The cursor stays on its probe once the user has chosen one.
	i := slices.IndexFunc(m.rows, func(r Row) bool { return r.ID == m.cursor })
	if !m.held {
		m.at = 0
	} else if i >= 0 {
		m.at = i
	}
	m.move(0)
}

// move moves the cursor by a number of rows.
func (m *Model) move(by int) {
	m.at = max(0, min(m.at+by, len(m.rows)-1))
	if by != 0 {
		m.held = m.at > 0
	}
	m.cursor = 0
	if len(m.rows) > 0 {
		m.cursor = m.rows[m.at].ID
	}
}

// AskedRow returns the row of the probe that the last key was about.
func (m *Model) AskedRow() (Row, bool) {
	id := m.cursor
	if m.into != nil {
		id = m.into.id
	}
	i := slices.IndexFunc(m.shown.Probes, func(r Row) bool { return r.ID == id })
	if i < 0 {
		return Row{}, false
	}
	return m.shown.Probes[i], true
}

// Note shows a sentence until the next key.
func (m *Model) Note(text string) { m.note = text }

// Key handles a key. Keys have the names of terminals' libraries: "up", "enter",
// "esc", "space", "ctrl+c"; others are their character.
func (m *Model) Key(key string) Do {
	m.note = ""
	switch {
	case key == "ctrl+c":
		return Quit
	case key == "ctrl+z":
		return Suspend
	case key == "ctrl+l":
		return Redraw
	case m.asking:
		m.asking = false
		if key == "y" {
			return Detach
		}
		return Nothing
	case m.typing:
		m.filterKey(key)
		return Nothing
	case m.help:
		m.help = false
		return Nothing
	}
	switch key {
	case "q":
		return Quit
	case "?", "h":
		m.help = true
	case "space", " ":
		if m.paused = !m.paused; !m.paused {
			m.shown = m.rates.Moment()
			m.arrange()
		}
	case "d":
		_, m.asking = m.AskedRow()
	default:
		if m.into != nil {
			return m.detailKey(key)
		}
		return m.listKey(key)
	}
	return Nothing
}

// listKey handles a key in the list.
func (m *Model) listKey(key string) Do {
	switch key {
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(1)
	case "pgup":
		m.move(-max(1, m.page))
	case "pgdown":
		m.move(max(1, m.page))
	case "home", "g":
		m.move(-len(m.rows))
	case "end", "G":
		m.move(len(m.rows))
	case "s":
		m.sort = sorting[(slices.Index(sorting, m.sort)+1)%len(sorting)]
		m.arrange()
	case "r":
		m.back = !m.back
		m.arrange()
	case "/":
		m.typing = true
	case "esc":
		m.filter = ""
		m.arrange()
	case "enter":
		if r, ok := m.AskedRow(); ok {
			m.into = &detail{id: r.ID, name: r.Name}
			return Open
		}
	}
	return Nothing
}

// maxFilter bounds the typed filter.
const maxFilter = 100

// filterKey handles a key while a filter is typed.
func (m *Model) filterKey(key string) {
	switch key {
	case "enter":
		m.typing = false
	case "esc":
		m.typing, m.filter = false, ""
	case "backspace":
		if r := []rune(m.filter); len(r) > 0 {
			m.filter = string(r[:len(r)-1])
		}
	case "ctrl+u": // as terminals erase a line, and a word (termios(3), VKILL and VWERASE)
		m.filter = ""
	case "ctrl+w":
		m.filter = strings.TrimRight(m.filter, " ")
		m.filter = m.filter[:strings.LastIndex(m.filter, " ")+1]
	case "space":
		m.filter += " "
	default:
		if r := []rune(key); len(r) == 1 && r[0] > ' ' && len(m.filter) < maxFilter {
			m.filter += key
		}
	}
	m.arrange()
}

// summary is the first line.
func (m *Model) summary() string {
	s := &m.shown
	if s.TimeNS == 0 {
		return "guestprobe top: waiting for the daemon"
	}
	n := fmt.Sprintf("%d probes", len(s.Probes))
	if len(s.Probes) == 1 {
		n = "1 probe"
	}
	if len(m.rows) != len(s.Probes) {
		n = fmt.Sprintf("%d of %s", len(m.rows), n)
	}
	text := fmt.Sprintf("guest %s, %s, %s hits/s, %s missed, %s lost", s.State, n, Number(s.Rate), Number(float64(s.Missed)), Number(float64(s.Lost)))
	if s.Boots > 1 {
		text += fmt.Sprintf(", boot %d", s.Boots)
	}
	if !s.Armed {
		text += ", all disarmed"
	}
	if m.paused {
		text = "PAUSED, " + text
	}
	return text
}

// SortColumn returns the heading of the column by which rows are sorted.
func (m *Model) SortColumn() string { return m.sort }
