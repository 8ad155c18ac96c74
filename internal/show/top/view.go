package top

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/guestprobe/guestprobe/internal/command"
)

// helpText are the keys and the columns, in at most 80 columns.
var helpText = []string{
	"up down j k     choose a probe; also page up, page down, home, end",
	"enter           look into it: durations, last hits, stacks; esc goes back",
	"s  r            sort by the next column; the other way around",
	"/               show only names and places that contain a text; esc: all",
	"space           stop the screen, and resume it",
	"d               detach the probe, once that is confirmed",
	"q               leave",
	"",
	"HITS/S, TREND   hits a second in the last second, or in that of --interval",
	"MEAN, P99       durations of calls in the last ten seconds",
	"TIMED           how many of these calls were timed",
	"BY              how hits come: jump or int3, of a watch reg or page; or off",
	"RUNS            where handlers run: guest or host",
}

// Lines returns the screen: at most height lines without their end, of at most
// width characters.
func (m *Model) Lines(width, height int) []string {
	if width < 1 || height < 1 {
		return nil
	}
	lines := []string{m.paint(command.Bold, cell(m.summary(), width, false))}
	last := m.bottom(width)
	room := height - 2 // between the first and the last line
	switch {
	case m.help:
		for _, l := range helpText {
			lines = append(lines, cell(l, width, false))
		}
	case m.into != nil:
		lines = append(lines, m.detailLines(width, room)...)
	default:
		lines = append(lines, m.cpuLines(width, min(room/4, 1+len(m.shown.CPUs)))...)
		lines = append(lines, m.table(width, height-1-len(lines))...)
	}
	if height == 1 {
		return lines[:1]
	}
	for len(lines) < height-1 {
		lines = append(lines, "")
	}
	lines = append(lines[:height-1], last)
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return lines
}

// paint colors text, if colors are enabled.
func (m *Model) paint(sgr, text string) string { return command.Paint(m.Color, sgr, text) }

// reverse swaps the colors, for the selected row (ECMA-48, SGR).
const reverse = "7"

// bottom returns the last line: a question, the typed filter or a message, or
// else the keys.
func (m *Model) bottom(width int) string {
	switch r, _ := m.AskedRow(); {
	case m.asking:
		return m.paint(command.Bold, cell(fmt.Sprintf("Detach %s? y detaches it, any other key does not", r.Name), width, false))
	case m.typing:
		return cell("/"+m.filter+"_", width, false)
	case m.note != "":
		return cell(m.note, width, false)
	case m.help:
		return m.paint(command.Dim, cell("any key goes back", width, false))
	case m.into != nil:
		return m.paint(command.Dim, cell("? help  q quit  esc back  S stacks  d detach  space pause  up down scroll", width, false))
	}
	way := "s sort (" + strings.ToLower(m.sort) + ")"
	if m.back {
		way = "s sort (" + strings.ToLower(m.sort) + " reversed)"
	}
	filter := "/ filter"
	if m.filter != "" {
		filter += " (" + m.filter + ")"
	}
	return m.paint(command.Dim, cell("? help  q quit  enter look  "+way+"  r reverse  "+filter+"  space pause  d detach", width, false))
}

// cpuLines returns lines about why vCPUs leave the guest: one for each, or as
// many as fit and one for the rest together.
func (m *Model) cpuLines(width, lines int) (out []string) {
	if lines < 1 {
		return nil
	}
	cpus := m.shown.CPUs
	rest := 0
	if len(cpus) > lines-1 && lines > 1 {
		rest = len(cpus) - max(0, lines-2)
		cpus = cpus[:max(0, lines-2)]
	} else if lines == 1 {
		return nil
	}
	for _, c := range cpus {
		out = append(out, cell(fmt.Sprintf("vCPU %-3d %-8s %5s exits/s%s", c.CPU, c.State, Number(c.Rate), reasons(c.Exits)), width, false))
	}
	if rest > 0 {
		sum, by := 0.0, map[string]float64{}
		for _, c := range m.shown.CPUs[len(cpus):] {
			sum += c.Rate
			for _, e := range c.Exits {
				by[e.Reason] += e.Rate
			}
		}
		out = append(out, cell(fmt.Sprintf("%d vCPUs%s %5s exits/s%s", rest, strings.Repeat(" ", 10), Number(sum), reasons(sortExits(by))), width, false))
	}
	return append(out, "")
}

// reasons returns how often each reason occurred.
func reasons(all []Exit) (s string) {
	for i, e := range all {
		s += []string{", ", ": "}[min(1, max(0, 1-i))] + e.Reason + " " + Number(e.Rate)
	}
	return s
}

// table returns the list of probes with its heading, in no more lines than that.
func (m *Model) table(width, lines int) (out []string) {
	if lines < 1 {
		return nil
	}
	cols := fit(width - 1) // after the mark of the selected row
	line := func(text func(Column) string) string {
		cells := make([]string, len(cols))
		for i, c := range cols {
			cells[i] = cell(text(c), c.width, c.right)
		}
		return cut(" "+strings.Join(cells, " "), width)
	}
	if lines > 1 {
		out = append(out, m.paint(command.Name, line(func(c Column) string { return c.Name })))
	}
	m.page = lines - len(out)
	m.first = max(0, min(m.first, m.at, len(m.rows)-m.page))
	if m.at >= m.first+m.page {
		m.first = m.at - m.page + 1
	}
	for i := m.first; i < min(m.first+m.page, len(m.rows)); i++ {
		r := m.rows[i]
		text := line(func(c Column) string {
			if c.Name == trend {
				return m.Glyphs.Sparkline(m.rates.history(r.ID), c.width)
			}
			return c.text(r)
		})
		if i == m.at {
			text = m.paint(reverse, ">"+text[1:])
		}
		out = append(out, text)
	}
	if len(m.rows) == 0 && m.shown.TimeNS != 0 && lines > 1 {
		text := "No probe is attached: 'guestprobe attach' attaches one."
		if len(m.shown.Probes) > 0 {
			text = "No probe's name or place has " + strconv.Quote(m.filter) + " in it; esc shows all."
		}
		out = append(out, cell(text, width, false))
	}
	return out
}
