package btsuite

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/guestprobe/guestprobe/probe/script"
)

// runtimeCase is a test that runs a script and checks its output.
type runtimeCase struct {
	id      string
	fields  map[string]string // directives that can occur only once
	befores []string          // programs that run before the script
	expects []expect
}

// expect is an expected or forbidden part of the output.
type expect struct{ mode, text string }

// continued matches directives whose text can have several lines.
var continued = regexp.MustCompile(`^(PROG|EXPECT|EXPECT_REGEX)$`)

// runtimeCases reads a file of runtime tests.
func runtimeCases(suite, text string) (cs []runtimeCase) {
	for _, block := range strings.Split(regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(text, ""), "\n\n") {
		c := runtimeCase{fields: map[string]string{}}
		var last string
		for _, line := range strings.Split(block, "\n") {
			if len(line) > len(last) && strings.TrimSpace(line[:len(last)+1]) == "" && continued.MatchString(last) {
				if more := "\n" + line[len(last)+1:]; last == "PROG" {
					c.fields[last] += more
				} else {
					c.expects[len(c.expects)-1].text += more
				}
				continue
			}
			word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			rest = strings.TrimSpace(rest)
			if mode, ok := strings.CutPrefix(word, "EXPECT"); ok {
				c.expects = append(c.expects, expect{strings.ToLower(strings.TrimPrefix(mode, "_")), rest})
			} else if word == "BEFORE" {
				c.befores = append(c.befores, rest)
			} else if word != "" {
				c.fields[word] = rest
			}
			last = word
		}
		if c.fields["NAME"] != "" && c.ofThisMachine() {
			c.id = suite + "." + c.fields["NAME"]
			cs = append(cs, c)
		}
	}
	return cs
}

// ofThisMachine reports whether the test is for x86-64.
func (c runtimeCase) ofThisMachine() bool {
	arch := c.fields["ARCH"]
	if arch == "" {
		return true
	}
	named := strings.Contains(arch, "x86_64") || slices.Contains(strings.Split(arch, "|"), "le")
	return named != strings.HasPrefix(arch, "!") || !named && strings.HasPrefix(arch, "!")
}

// exact reports whether the output is exactly the expected one.
func (c runtimeCase) exact() bool {
	return len(c.expects) > 0 && (c.expects[0].mode == "json" || c.expects[0].mode == "file")
}

// commandLine is a test's command line for bpftrace.
type commandLine struct {
	text, file string
	params     []string
	unsafe     bool
	json       bool
	quiet      bool
	list       bool
	child      string // the program that -c starts
	filter     string // of the lines of the output: the pattern after "| grep"
	verbose    bool
	debug      bool   // --debuginfo names folders
	other      string // an unsupported option
}

// command parses the test's command line. ok is false if the test runs more than bpftrace.
func (c runtimeCase) command() (l commandLine, ok bool) {
	if prog := c.fields["PROG"]; prog != "" {
		l.text = prog
		l.json = len(c.expects) > 0 && c.expects[0].mode == "json"
		l.quiet = l.json
		return l, true
	}
	run := c.fields["RUN"]
	if before, filter, piped := strings.Cut(run, " | grep "); piped && strings.Contains(before, " -l") {
		if f, ok := shellWords(strings.TrimPrefix(filter, "-e ")); ok && len(f) == 1 {
			run, l.filter = before, f[0]
		}
	}
	words, ok := shellWords(run)
	if !ok || len(words) == 0 || words[0] != "{{BPFTRACE}}" {
		return l, false
	}
	value := func(i *int) string {
		if *i++; *i < len(words) {
			return words[*i]
		}
		return ""
	}
	for i := 1; i < len(words); i++ {
		switch w := words[i]; {
		case w == "-e":
			l.text = value(&i)
		case w == "-f":
			format := value(&i)
			l.json = format == "json"
		case w == "-q":
			l.quiet = true
		case w == "--unsafe":
			l.unsafe = true
		case strings.HasPrefix(w, "--debuginfo="): // see programs, and LinuxGuest.copies
			l.debug = true
		case w == "--", w == "-v", w == "--no-warnings", w == "-k", w == "2>&1":
		case w == "-l", w == "--list", w == "-lv":
			l.list, l.verbose = true, w == "-lv"
		case w == "-c", w == "--cmd":
			l.child = value(&i)
		case w == "-p", w == "--pid", w == "-B", w == "--include", w == "-I", w == "-o":
			l.other = w
			value(&i)
		case strings.HasPrefix(w, "-") && l.text == "" && l.file == "":
			l.other = w
		case l.text == "" && l.file == "":
			l.file = w
		default:
			l.params = append(l.params, w)
		}
	}
	return l, true
}

// shellWords splits a command line into words. ok is false if it needs other features of a shell.
func shellWords(s string) (words []string, ok bool) {
	var w strings.Builder
	some := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\'' || c == '"':
			end := i + 1
			for end < len(s) && s[end] != c {
				if s[end] == '\\' && c == '"' && end+1 < len(s) {
					end++
				}
				if c == '"' && (s[end] == '$' || s[end] == '`') {
					return nil, false
				}
				w.WriteByte(s[end])
				end++
			}
			i, some = end, true
		case c == ' ':
			if some {
				words = append(words, w.String())
			}
			w.Reset()
			some = false
		case strings.IndexByte("|<;`$*", c) >= 0, c == '&' && !strings.HasPrefix(s[i-1:], ">&"), c == '>' && !strings.HasPrefix(s[i:], ">&"):
			return nil, false
		default:
			w.WriteByte(c)
			some = true
		}
	}
	if some {
		words = append(words, w.String())
	}
	return words, true
}

// guestFiles replaces paths of upstream's test programs with their paths in a guest.
var guestFiles = strings.NewReplacer(":./testprogs/", ":"+inGuest, `:"./testprogs/`, `:"`+inGuest, ":testprogs/", ":"+inGuest, ":./testlibs/", ":/testlibs/")

// ownFiles also replaces names of libc, which are not known without a guest.
var ownFiles = strings.NewReplacer("./testprogs/", inGuest, "uprobe:libc:", "uprobe:/lib/libc.so.6:", "uprobe:libc.so.6:", "uprobe:/lib/libc.so.6:")

// run runs a test: in the interpreter if it needs only the host, otherwise it
// only compiles the programs.
func (c runtimeCase) run(t *target, read func(name string) string) Result {
	r := Result{Kind: Runtime, Name: c.id}
	l, ok := c.command()
	if !ok || l.other != "" || t.guest == nil && (l.list || l.child != "") {
		r.Outcome, r.Said, r.Script = Unread, "a command line of its own: "+c.fields["RUN"], c.fields["RUN"]
		return r
	}
	if l.file != "" {
		if l.text = read(l.file); l.text == "" && !l.list { // the path is relative to upstream's folder of tests
			r.Outcome, r.Said = Unread, l.file+" is not there"
			return r
		}
	}
	if r.Script = l.text; l.list && l.text == "" {
		r.Script = c.fields["RUN"]
	}
	fails := c.fields["WILL_FAIL"] != "" || hasKey(c.fields, "WILL_FAIL")
	wanted, _ := strconv.Atoi(c.fields["RETURN_CODE"])
	text := ownFiles.Replace(l.text)
	if l.list || l.child != "" {
		return c.inGuest(t, l, read)
	}
	s, err := script.Compile(text, t.withEventsOf(text), script.Options{Params: l.params, Unsafe: l.unsafe, CPUs: 1})
	switch {
	case t.guest != nil && (err != nil && !fails && wanted == 0 || err != nil && strings.Contains(err.Error(), errNeedsGuest.Error()) || err == nil && !onHost(s)):
		return c.inGuest(t, l, read)
	case err != nil && strings.Contains(err.Error(), errNeedsGuest.Error()):
		r.Outcome = Guest
		return r
	case err != nil && (fails || wanted != 0):
		r.Outcome = Agree
		r.Words = c.missing(err.Error(), read) != ""
		return r
	case err != nil:
		r.Outcome, r.Said = Refused, err.Error()
		return r
	case !onHost(s):
		r.Outcome = Guest
		return r
	}
	out, status, err := execute(s, l.json, l.quiet || c.exact() && !l.json)
	out = strings.ReplaceAll(out, "guestprobe", "bpftrace") // for scripts that print the program's name
	switch {
	case err != nil:
		r.Outcome, r.Said = Wrong, err.Error()
	case fails && status == 0:
		r.Outcome, r.Said = Accepted, "the test wants a failure"
	case !fails && int(status) != wanted:
		r.Outcome, r.Said = Wrong, fmt.Sprintf("exit status %d\n%s", status, out)
	default:
		r.Outcome = Agree
		if m := c.missing(out, read); m != "" {
			r.Outcome, r.Said = Wrong, "missing: "+m+"\nprinted: "+out
		}
	}
	return r
}

func hasKey(m map[string]string, key string) bool { _, ok := m[key]; return ok }

// missing returns an expectation that an output does not meet, or "".
func (c runtimeCase) missing(out string, read func(string) string) string {
	for _, e := range c.expects {
		has := false
		switch pattern := e.text; e.mode {
		case "", "none":
			has = regexp.MustCompile(`(?m)^\s*` + regexp.QuoteMeta(pattern) + `\s*$`).MatchString(out)
		case "regex", "regex_none":
			re, err := regexp.Compile("(?m)" + splitRepeats(pattern))
			if err != nil { // Go's expressions have no lookaround
				return strings.TrimSpace(e.mode + " " + e.text)
			}
			has = re.MatchString(out)
		case "file":
			want := strings.TrimSpace(read(pattern))
			has = want != "" && want == strings.TrimSpace(out)
		case "json":
			has = sameJSON(read(pattern), out)
		}
		if has == strings.HasSuffix(e.mode, "none") {
			return strings.TrimSpace(e.mode + " " + e.text)
		}
	}
	return ""
}

// repeats matches a character that is repeated more often than Go's expressions can say at once.
var repeats = regexp.MustCompile(`(\w)\{(\d{4,5})\}`)

// splitRepeats splits such repetitions.
func splitRepeats(pattern string) string {
	return repeats.ReplaceAllStringFunc(pattern, func(s string) string {
		m := repeats.FindStringSubmatch(s)
		n, _ := strconv.Atoi(m[2]) // digits only
		return strings.Repeat(m[1]+"{1000}", n/1000) + fmt.Sprintf("%s{%d}", m[1], n%1000)
	})
}

// sameJSON compares JSON values, whatever the order of their members. Text that
// is not JSON, or has no value, equals nothing.
func sameJSON(want, got string) bool {
	decode := func(s string) (all []any, ok bool) {
		d := json.NewDecoder(strings.NewReader(s))
		d.UseNumber()
		for {
			var v any
			if err := d.Decode(&v); err != nil {
				return all, err == io.EOF && len(all) > 0
			}
			all = append(all, v)
		}
	}
	a, ok := decode(want)
	b, ok2 := decode(got)
	return ok && ok2 && reflect.DeepEqual(a, b)
}
