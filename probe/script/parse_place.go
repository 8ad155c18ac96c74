package script

import (
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// attachPoints parses the text of an attach point. A pattern for probe types gives one for each type.
func (p *parser) attachPoints(t token) (all []attachPoint, err error) {
	if t.text == "" {
		err := p.advance()
		if err == nil {
			err = p.errorAt(p.tok.Span, "syntax error, unexpected %s, expecting a probe", p.describe())
		}
		return nil, err
	}
	text, bad := p.unquote(t.text)
	if bad != "" {
		return nil, p.errorAt(t.Span, "invalid trailing character for positional param: %s", bad).hint("quote this part if a $ is in a name: \"$%s\"", bad)
	}
	word, target, _ := strings.Cut(text, ":")
	words := expandProvider(word, target)
	if len(words) == 0 {
		return nil, p.errorAt(t.Span, "No probe type matched for %s", word)
	}
	for _, w := range words {
		a := attachPoint{Span: t.Span, text: w + strings.TrimPrefix(text, word), among: len(words) > 1}
		if wrong := a.parse(p); wrong != nil { // for other types of the pattern it may be valid
			err = wrong
			continue
		}
		all = append(all, a)
	}
	if len(all) > 0 {
		return all, nil
	}
	return nil, err
}

// expandProvider returns the probe types that a pattern for them matches, as in bpftrace: types for files if the target is in one,
// and else types for the kernel. Without a pattern it returns the word.
func expandProvider(word, target string) (matches []string) {
	if !isPattern(word) {
		return []string{word}
	}
	from := []string{"kprobe", "rawtracepoint", "tracepoint"}
	if file, _, _ := strings.Cut(target, ":"); strings.Contains(file, "/") {
		from = []string{"uprobe", "usdt"}
	}
	for _, p := range from {
		if ok, err := path.Match(word, p); ok && err == nil {
			matches = append(matches, p)
		}
	}
	return matches
}

// isPattern reports whether a name has characters of patterns.
func isPattern(name string) bool { return strings.ContainsAny(name, "*?[") }

// parse parses the text of one attach point.
func (a *attachPoint) parse(p *parser) error {
	word, target, _ := strings.Cut(a.text, ":")
	a.target, a.word = target, word
	var ok bool
	if a.provider, ok = providers[word]; !ok {
		if instead, known := elsewhere[word]; known {
			return p.errorAt(a.Span, "probe type '%s' is not supported", word).hint("%s", instead)
		}
		var names []string
		for n := range providers {
			if len(n) > 1 {
				names = append(names, n)
			}
		}
		err := p.errorAt(a.Span, "Invalid probe type: %s", word)
		if m := nearestName(word, names); m != "" {
			return err.hint("did you mean %s?", m)
		}
		return err.hint("there are kprobe, kretprobe, uprobe, uretprobe, usdt, tracepoint, rawtracepoint, watchpoint, profile, software, interval, vm, BEGIN and END")
	}
	return p.target(a, word)
}

// target checks the text after the provider.
func (s *script) target(a *attachPoint, word string) error {
	refuse := func(format string, args ...any) *Error { return s.errorAt(a.Span, format, args...) }
	switch a.provider {
	case "begin", "end":
		if a.target != "" {
			return refuse("%s takes nothing after it", word)
		}
		return nil
	case "interval":
		if _, err := interval(a.target); err != "" {
			return refuse("%s", err).hint("write interval:s:1, interval:ms:100, interval:us:5000, interval:hz:10 or interval:100ms")
		}
		return nil
	case "profile":
		if _, err := interval(a.target); err != "" {
			return refuse("%s", strings.Replace(err, "interval", "profile", 1)).hint("write profile:hz:99 or profile:ms:10")
		}
		return nil
	case "software":
		if _, err, hint := software(a.target); err != "" {
			return refuse("%s", err).hint("%s", hint)
		}
		return nil
	case "vm":
		if _, ok := a.exit(); ok {
			return nil
		}
		if !slices.Contains(vmEvents, a.target) {
			return refuse("there is no vm:%s", a.target).hint("there are vm:%s, and vm:exit:REASON", strings.Join(vmEvents, ", vm:"))
		}
		return nil
	case "watchpoint":
		if _, err := parseWatch(a.target); err != "" {
			return refuse("%s", err).hint("write watchpoint:SYMBOL:8:w, with 1, 2, 4 or 8 bytes, and w, rw or x")
		}
		return nil
	}
	if a.target == "" {
		what := "a function"
		if a.atTracepoint() || a.atEvent() {
			what = "a tracepoint"
		}
		if a.atStatic() {
			what = "a file and a name"
		}
		return refuse("%s probe type requires %s", a.provider, what)
	}
	if a.atStatic() {
		if file, rest, ok := strings.Cut(a.target, ":"); ok && file != "" && rest != "" && !strings.Contains(file, "/") {
			a.file, a.target = file, rest
			return nil
		}
		if _, _, _, ok := splitStatic(a.target); !ok {
			return refuse("%s: want /PATH:NAME or /PATH:PROVIDER:NAME, with a path in the guest", a.text).hint("-l 'usdt:/PATH:*' lists the probes of a file")
		}
		return nil
	}
	if a.atEvent() {
		if !strings.Contains(a.target, ":") && isPattern(a.target) { // for names, in any category
			a.target = "*:" + a.target
		}
		if category, name, ok := strings.Cut(a.target, ":"); !ok || category == "" || name == "" || strings.Contains(name, ":") {
			return refuse("%s: want CATEGORY:NAME", a.text).hint("-l 'tracepoint:*' lists them")
		}
		return nil
	}
	if a.atTracepoint() {
		mod, name, ok := strings.Cut(a.target, ":")
		if ok && (mod == "" || name == "" || strings.Contains(name, ":")) {
			return refuse("%s: want the name of a tracepoint", a.text)
		}
		if kernel, _ := path.Match(mod, "vmlinux"); ok && kernel {
			a.target = name
		}
		return nil
	}
	if strings.Contains(a.target, "@") {
		if done, err := s.inFileSource(a); done || err != nil {
			return err
		}
	}
	if a.atReturn() && strings.Contains(a.target[strings.LastIndexByte(a.target, ':')+1:], "+") {
		return refuse("Offset not allowed: a %s has no offset", a.provider)
	}
	if strings.HasPrefix(a.target, "/") && a.class() == atPlace && strings.HasPrefix(a.provider, "u") {
		file, fn, ok := strings.Cut(a.target, ":")
		if !ok || fn == "" {
			return refuse("%s: want a function after the file", a.text)
		}
		if _, isAddress := parseNumber(fn); isAddress && isPattern(file) {
			return refuse("Cannot use wildcards with absolute address")
		}
		return nil
	}
	if strings.HasPrefix(a.target, "/") {
		return refuse("%s is not in a file: it is of the guest's kernel", word).hint("write %s%s", map[bool]string{true: "uretprobe:", false: "uprobe:"}[a.provider == "kretprobe"], a.target)
	}
	if inSource(a.target) {
		a.source = true
		if a.provider != "kprobe" && a.provider != "uprobe" {
			return refuse("a place in the source has no return").hint("write %s:FUNCTION", a.provider)
		}
		return nil
	}
	// vmlinux is the Linux kernel itself, as in bpftrace.
	if mod, fn, ok := strings.Cut(a.target, ":"); ok {
		if mod != "" && fn != "" && a.inUser() {
			a.file, a.target = mod, fn
			return nil
		}
		if mod == "" || fn == "" || strings.ContainsRune(fn, ':') || a.inUser() {
			return refuse("%s: want a function, with +OFFSET or without, or an address", a.text)
		}
		if mod == "vmlinux" {
			a.target, a.kernel = fn, true
		}
	}
	return nil
}

// inSource reports whether a place is in the source, in the syntax of definitions:
// FILE:LINE, or inline:FUNCTION.
func inSource(target string) bool {
	file, line, ok := strings.Cut(target, ":")
	return ok && line != "" && (file == "inline" || strings.Contains(file, ".") && strings.Trim(line, "0123456789") == "")
}

// unquote removes the quotation marks from the parts of an attach point, without
// substituting parameters in them, and substitutes parameters in the others. bad is the
// character after a $ that is no parameter.
func (s *script) unquote(text string) (_, bad string) {
	var b strings.Builder
	for text != "" {
		plain, rest, quoted := strings.Cut(text, `"`)
		filled, bad := s.fill(plain)
		if bad != "" {
			return "", bad
		}
		b.WriteString(filled)
		if text = ""; !quoted {
			break
		}
		for i := 0; i < len(rest); i++ {
			if rest[i] == '"' {
				text = rest[i+1:]
				break
			}
			if rest[i] == '\\' && i+1 < len(rest) {
				i++
			}
			b.WriteByte(rest[i])
		}
	}
	return b.String(), ""
}

// fill substitutes positional parameters in an attach point. bad is as in unquote.
func (s *script) fill(text string) (_, bad string) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		end := i + 1
		for text[i] == '$' && end < len(text) && isDigit(text[end]) {
			end++
		}
		switch {
		case end > i+1:
		case text[i] == '$' && end < len(text):
			_, n := utf8.DecodeRuneInString(text[end:])
			return "", text[end : end+n]
		default:
			b.WriteByte(text[i])
			continue
		}
		if n, err := strconv.Atoi(text[i+1 : end]); err == nil && n >= 1 && n <= len(s.params) {
			b.WriteString(s.params[n-1])
		}
		i = end - 1
	}
	return b.String(), ""
}

// interval returns the nanoseconds of s:1, hz:10 or 100ms; wrong is the error, if
// any.
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
		return 0, "interval: shorter than 1 us"
	}
	return ns, ""
}

// The shortest interval that a script can name, and the shortest one at which its
// programs run, in nanoseconds: they run on the host, and what they interrupt must
// make progress.
const (
	minInterval = 1e3
	minPeriod   = 1e5
)
