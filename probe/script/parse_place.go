package script

import (
	"strconv"
	"strings"
)

// providers are the names of those that there are, by each of their spellings.
var providers = map[string]string{
	"BEGIN": "begin", "begin": "begin", "END": "end", "end": "end",
	"kprobe": "kprobe", "k": "kprobe", "kretprobe": "kretprobe", "kr": "kretprobe",
	"interval": "interval", "i": "interval",
}

// elsewhere says of the providers of bpftrace that are not here what to write instead.
var elsewhere = map[string]string{
	"tracepoint":    "write kprobe: of the function that the tracepoint is in",
	"t":             "write kprobe: of the function that the tracepoint is in",
	"rawtracepoint": "write kprobe: of the function that the tracepoint is in",
	"rt":            "write kprobe: of the function that the tracepoint is in",
	"fentry":        "write kprobe:FUNCTION, whose arguments are arg0 to arg5",
	"kfunc":         "write kprobe:FUNCTION, whose arguments are arg0 to arg5",
	"f":             "write kprobe:FUNCTION, whose arguments are arg0 to arg5",
	"fexit":         "write kretprobe:FUNCTION",
	"kretfunc":      "write kretprobe:FUNCTION",
	"fr":            "write kretprobe:FUNCTION",
	"uprobe":        "write kprobe:SYMBOL, which takes any symbol of the guest's image, also of user code",
	"u":             "write kprobe:SYMBOL, which takes any symbol of the guest's image, also of user code",
	"uretprobe":     "write kretprobe:SYMBOL, which takes any symbol of the guest's image, also of user code",
	"ur":            "write kretprobe:SYMBOL, which takes any symbol of the guest's image, also of user code",
	"usdt":          "write kprobe: of a function",
	"U":             "write kprobe: of a function",
	"watchpoint":    "'guestprobe trace w:NAME SYMBOL:w8' watches memory",
	"w":             "'guestprobe trace w:NAME SYMBOL:w8' watches memory",
	"profile":       "write interval: for what is to happen at times",
	"p":             "write interval: for what is to happen at times",
	"software":      "write interval: for what is to happen at times",
	"s":             "write interval: for what is to happen at times",
	"hardware":      "write interval: for what is to happen at times",
	"h":             "write interval: for what is to happen at times",
	"iter":          "'guestprobe tasks' lists tasks",
	"it":            "'guestprobe tasks' lists tasks",
	"self":          "write BEGIN or END",
	"test":          "write BEGIN",
	"bench":         "write BEGIN",
}

// attachPoint makes an attach point of its text.
func (p *parser) attachPoint(t token) (attachPoint, error) {
	a := attachPoint{Span: t.Span, text: p.fill(t.text)}
	if t.text == "" {
		err := p.advance()
		if err == nil {
			err = p.at(p.tok.Span, "syntax error, unexpected %s, expecting a probe", p.describe())
		}
		return a, err
	}
	word, target, _ := strings.Cut(a.text, ":")
	a.target = target
	var ok bool
	if a.provider, ok = providers[word]; !ok {
		if instead, known := elsewhere[word]; known {
			return a, p.at(t.Span, "probe type '%s' is not supported", word).hint("%s", instead)
		}
		var names []string
		for n := range providers {
			if len(n) > 2 {
				names = append(names, n)
			}
		}
		err := p.at(t.Span, "Invalid probe type: %s", word)
		if m := meant(word, names); m != "" {
			return a, err.hint("did you mean %s?", m)
		}
		return a, err.hint("there are kprobe, kretprobe, interval, BEGIN and END")
	}
	switch a.provider {
	case "begin", "end":
		if target != "" {
			return a, p.at(t.Span, "%s takes nothing behind it", word)
		}
	case "interval":
		if _, err := interval(target); err != "" {
			return a, p.at(t.Span, "%s", err).hint("write interval:s:1, interval:ms:100, interval:us:5000, interval:hz:10 or interval:100ms")
		}
	default:
		// A module stands before its functions in bpftrace; names are unique here.
		if mod, fn, ok := strings.Cut(target, ":"); ok {
			if mod == "" || strings.ContainsRune(fn, ':') {
				return a, p.at(t.Span, "%s: want a function, with +OFFSET or without, or an address", a.text)
			}
			a.target = fn
		}
		if a.target == "" {
			return a, p.at(t.Span, "%s probe type requires a function", a.provider)
		}
		if strings.Contains(a.target, "@") {
			return a, p.at(t.Span, "places in source files are not supported").hint("'guestprobe disas --lines FUNCTION' shows the address of each line")
		}
	}
	return a, nil
}

// fill puts positional parameters into an attach point.
func (p *parser) fill(text string) string {
	if !strings.Contains(text, "$") {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		end := i + 1
		for text[i] == '$' && end < len(text) && isDigit(text[end]) {
			end++
		}
		if end == i+1 {
			b.WriteByte(text[i])
			continue
		}
		if n, err := strconv.Atoi(text[i+1 : end]); err == nil && n >= 1 && n <= len(p.params) {
			b.WriteString(p.params[n-1])
		}
		i = end - 1
	}
	return b.String()
}

// interval returns the nanoseconds of s:1, hz:10 or 100ms; or what is wrong.
func interval(target string) (ns uint64, wrong string) {
	unit, count, ok := strings.Cut(target, ":")
	if !ok {
		if n, ok := parseNumber(target); ok && n >= minInterval && target[len(target)-1] >= 'a' {
			return n, ""
		}
		return 0, "interval: want a time"
	}
	n, ok := parseNumber(count)
	f := units[unit]
	switch {
	case !ok || n == 0:
		return 0, "interval: want a number above 0"
	case unit == "hz":
		ns = 1e9 / n
	case f == 0 || unit == "ns":
		return 0, "interval: invalid unit " + strconv.Quote(unit)
	case n > 1<<53/f:
		return 0, "interval: too long"
	default:
		ns = n * f
	}
	if ns < minInterval {
		return 0, "interval: shorter than 1 ms"
	}
	return ns, ""
}

// minInterval is the shortest interval, in nanoseconds: its programs run on the host.
const minInterval = 1e6
