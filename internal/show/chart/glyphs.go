package chart

import (
	"strings"
)

// Glyphs are the characters for drawing with text, from the lowest to the
// highest value.
type Glyphs struct {
	Spark []rune // heights; the first is for 0
	Shade []rune // densities; the first is for 0
}

// The two sets of glyphs.
var (
	Unicode = Glyphs{Spark: []rune(" ▁▂▃▄▅▆▇█"), Shade: []rune(" ░▒▓█")}
	ASCII   = Glyphs{Spark: []rune(" _.-=+*#@"), Shade: []rune(" .:-=+*#%@")}
)

// GlyphsOf returns the glyphs for a terminal in this environment: Unicode if the
// locale uses UTF-8 (locale(7)) and the terminal is not a dumb one, else ASCII.
func GlyphsOf(getenv func(string) string) Glyphs {
	if getenv("TERM") == "dumb" {
		return ASCII
	}
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := strings.ToUpper(getenv(name)); v != "" {
			if strings.Contains(v, "UTF-8") || strings.Contains(v, "UTF8") {
				return Unicode
			}
			break
		}
	}
	return ASCII
}

// level returns which of n glyphs represents v of most: the first only for 0,
// the last for most.
func level(v, most float64, n int) int {
	if v <= 0 || most <= 0 || n < 2 {
		return 0
	}
	return min(n-1, 1+int(v/most*float64(n-1)*0.999999))
}

// Sparkline draws the last values, as many as fit into width, the newest at the
// right.
func (g Glyphs) Sparkline(values []float64, width int) string {
	if width <= 0 {
		return ""
	}
	values = values[max(0, len(values)-width):]
	most := 0.0
	for _, v := range values {
		most = max(most, v)
	}
	out := []rune(strings.Repeat(" ", width-len(values)))
	for _, v := range values {
		out = append(out, g.Spark[level(v, most, len(g.Spark))])
	}
	return string(out)
}
