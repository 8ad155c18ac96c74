package chart

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"unicode/utf8"
)

// letter is how wide a character of an SVG's usual size is, in pixels.
const letter = 6.6

// SVG writes a self-contained picture, one line for each element. Texts may come
// from anywhere, so they are escaped. Sizes are pixels.
type SVG struct {
	w *bufio.Writer
}

// NewSVG begins a picture of that size, with its title.
func NewSVG(w io.Writer, width, height int, title string) *SVG {
	s := &SVG{bufio.NewWriter(w)}
	fmt.Fprintf(s.w, `<?xml version="1.0" encoding="UTF-8"?>
<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="monospace" font-size="11">
<title>%s</title>
<rect width="100%%" height="100%%" fill="#ffffff"/>
<text x="%d" y="21" font-size="15" text-anchor="middle">%s</text>
`, width, height, width, height, Escape(title), width/2, Escape(title))
	return s
}

// Box draws a rectangle with as much of a label as fits. says is shown when the
// pointer rests on it.
func (s *SVG) Box(x float64, y int, width float64, height int, color, says, label string) {
	fmt.Fprintf(s.w, `<g><title>%s</title><rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s" rx="1"/>`, Escape(says), x, y, max(width-0.3, 0.1), height, color)
	if letters := int((width - 4) / letter); letters >= 3 && label != "" {
		name := []rune(label)
		if len(name) > letters {
			name = append(name[:letters-2:letters-2], '.', '.')
		}
		fmt.Fprintf(s.w, `<text x="%.1f" y="%d">%s</text>`, x+2, y+height-4, Escape(string(name)))
	}
	s.w.WriteString("</g>\n")
}

// Alignments of a text.
const (
	begins = "start"
	ends   = "end"
)

// Text writes a text that begins or ends at a place, cut to most characters.
func (s *SVG) Text(x float64, y int, at, text string, most int) {
	if r := []rune(text); len(r) > most {
		text = string(r[:max(0, most-2)]) + ".."
	}
	fmt.Fprintf(s.w, `<text x="%.1f" y="%d" text-anchor="%s" xml:space="preserve">%s</text>`+"\n", x, y, at, Escape(text))
}

// Close ends the picture, and returns the first error.
func (s *SVG) Close() error {
	s.w.WriteString("</svg>\n")
	return s.w.Flush()
}

// Escape escapes text for XML. Characters that XML does not permit become question
// marks (XML 1.0, 2.2).
func Escape(s string) string {
	out := make([]rune, 0, len(s))
	for _, r := range s {
		if r < ' ' || r == 0xfffe || r == 0xffff || r == 0x7f || r == utf8.RuneError {
			r = '?'
		}
		out = append(out, r)
	}
	return html.EscapeString(string(out))
}
