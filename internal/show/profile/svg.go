package profile

import (
	"fmt"
	"hash/fnv"
	"io"
	"strings"

	pprof "github.com/google/pprof/profile"

	"github.com/guestprobe/guestprobe/internal/show/chart"
)

// Measures of a flame graph, in pixels.
const (
	svgWidth  = 1200
	svgRow    = 17 // of a function
	svgHead   = 34
	svgFoot   = 10
	svgMargin = 10
	svgLeast  = 0.2 // narrower ones are left out
)

// Graph is a flame graph.
type Graph struct {
	Title    string
	Unit     string // of the values, as "samples"
	Root     *Node
	Compared bool // with a base: colors mark growth and shrinkage
}

// share returns a node's part of the whole, and how much larger that is than in
// the base.
func (g *Graph) share(n *Node) (now, more float64) {
	if g.Root.Value > 0 {
		now = float64(n.Value) / float64(g.Root.Value)
	}
	if g.Root.Base > 0 {
		return now, now - float64(n.Base)/float64(g.Root.Base)
	}
	return now, now
}

// color returns the color of a node: in a comparison red for more and blue for
// less, by how much; otherwise a shade of orange for kernel code and of green
// for user code, by the name.
func (g *Graph) color(n *Node, most float64) string {
	if g.Compared {
		_, more := g.share(n)
		if most == 0 || more == 0 {
			return "#e8e8e8"
		}
		rest := 235 - int(190*min(1, max(more, -more)/most))
		if more > 0 {
			return fmt.Sprintf("#f0%02x%02x", rest, rest)
		}
		return fmt.Sprintf("#%02x%02xf0", rest, rest)
	}
	h := fnv.New32a()
	io.WriteString(h, n.Name)
	shade := int(h.Sum32() % 60)
	switch {
	case n == g.Root:
		return "#d0d0d0"
	case n.Kernel:
		return fmt.Sprintf("#%02x%02x%02x", 235, 140+shade, 60+shade/2)
	}
	return fmt.Sprintf("#%02x%02x%02x", 110+shade, 200+shade/3, 100+shade/2)
}

// maxChange is the largest change of a share below the root.
func (g *Graph) maxChange() (m float64) {
	var walk func(*Node)
	walk = func(n *Node) {
		_, more := g.share(n)
		m = max(m, more, -more)
		for _, c := range n.Children {
			walk(c)
		}
	}
	if g.Compared {
		walk(g.Root)
	}
	return m
}

// nodeText returns the description of a node.
func (g *Graph) nodeText(n *Node) string {
	now, more := g.share(n)
	s := fmt.Sprintf("%s: %s %s, %.2f%%", n.Name, Quantity(n.Value, g.Unit), unitOf(n.Value, g.Unit), 100*now)
	if g.Compared {
		s += fmt.Sprintf(" (%+.2f%%)", 100*more)
	}
	return s
}

// Quantity formats a value for its Unit.
func Quantity(v int64, unit string) string {
	if unit == unitMS {
		return fmt.Sprintf("%.3f", float64(v)/1e6)
	}
	return fmt.Sprint(v)
}

// unitOf returns the unit after a quantity: "1 sample", "2 samples".
func unitOf(v int64, unit string) string {
	if v == 1 && unit != unitMS {
		return strings.TrimSuffix(unit, "s")
	}
	return unit
}

// unitMS is the displayed unit of nanoseconds.
const unitMS = "ms"

// Unit returns the displayed unit of values of this index.
func Unit(p *pprof.Profile, i int) string {
	switch t := p.SampleType[i]; t.Unit {
	case "nanoseconds":
		return unitMS
	case "count":
		return t.Type
	default:
		return t.Unit
	}
}

// SVG writes the graph as a picture: outermost functions at the bottom. The
// description of each is shown where the pointer rests.
func (g *Graph) SVG(w io.Writer) error {
	rows := g.Root.depth()
	out := chart.NewSVG(w, svgWidth, svgHead+rows*svgRow+svgFoot, g.Title)
	most := g.maxChange()
	scale := 0.0
	if g.Root.Value > 0 {
		scale = float64(svgWidth-2*svgMargin) / float64(g.Root.Value)
	}
	var draw func(n *Node, at int64, row int)
	draw = func(n *Node, at int64, row int) {
		width := float64(n.Value) * scale
		if width < svgLeast {
			return
		}
		out.Box(svgMargin+float64(at)*scale, svgHead+(rows-1-row)*svgRow, width, svgRow-1, g.color(n, most), g.nodeText(n), n.Name)
		for _, c := range n.Children {
			draw(c, at, row+1)
			at += c.Value
		}
	}
	draw(g.Root, 0, 0)
	return out.Close()
}
