package profile

import (
	_ "embed"
	"encoding/json"
	"io"
	"strings"

	"github.com/guestprobe/guestprobe/internal/show/chart"
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

// Data returns the graph as JSON for Script.
func (g *Graph) Data() ([]byte, error) {
	most := g.maxChange()
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
	return json.Marshal(map[string]any{"unit": g.Unit, "compared": g.Compared, "root": node(g.Root)})
}

// HTML writes the graph as a self-contained page, with zoom and search.
func (g *Graph) HTML(w io.Writer) error {
	// Marshal escapes text that could end the element that contains the data.
	data, err := g.Data()
	if err != nil {
		return err
	}
	_, err = strings.NewReplacer(
		"TITLE", chart.Escape(g.Title), "DATA", string(data), "SCRIPT", "<script>"+Script+"</script>",
		"HEAD", `<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'">`+"\n<style>"+Style+"</style>",
	).WriteString(w, page)
	return err
}

// EmptyPage is the same page without a graph, with its styles and module in
// separate files. The module adds title and Data, and then calls Script to draw
// them.
func EmptyPage(module string, styles ...string) string {
	head := ""
	for _, s := range styles {
		head += `<link rel="stylesheet" href="` + s + `">` + "\n"
	}
	return strings.NewReplacer("<title>TITLE", "<title>Flame graph", "TITLE", "", "DATA", "", "SCRIPT", "", "HEAD", head+`<script type="module" src="`+module+`"></script>`).Replace(page)
}
