package profile

import (
	_ "embed"
	"encoding/json"
	"io"
	"strings"

	"github.com/guestprobe/guestprobe/internal/chart"
)

//go:embed page.html
var page string

// Style is the style of a page with a graph.
//
//go:embed page.css
var Style string

// Script draws the graph of a page of page.html's elements, and zooms and searches in it.
//
//go:embed page.js
var Script string

// HTML writes the graph as a page that needs nothing else, with zoom and search.
func (g *Graph) HTML(w io.Writer) error {
	most := g.most()
	var node func(n *Node) []any
	node = func(n *Node) []any {
		kernel, children := 0, make([]any, len(n.Children))
		if n.Kernel {
			kernel = 1
		}
		for i, c := range n.Children {
			children[i] = node(c)
		}
		return []any{n.Name, kernel, n.Value, n.Base, g.color(n, most), children}
	}
	// Marshal escapes what could end the element that the data stands in.
	data, err := json.Marshal(map[string]any{"unit": g.Unit, "compared": g.Compared, "root": node(g.Root)})
	if err != nil {
		return err
	}
	_, err = strings.NewReplacer("TITLE", chart.Escape(g.Title), "STYLE", Style, "SCRIPT", Script, "DATA", string(data)).WriteString(w, page)
	return err
}
