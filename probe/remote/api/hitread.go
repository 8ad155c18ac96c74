package api

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ReadHit reads the data of a record of type hit, as json.Unmarshal does, in a fifth of its time if a daemon wrote it. Any goroutine may call it.
func ReadHit(data []byte) (*Hit, error) {
	box := new(hitBox)
	p := &box.parser
	p.s, p.task = string(data), &box.task
	readObject(p, hitMembers, &box.hit)
	if !p.bad && p.i == len(p.s) {
		return &box.hit, nil
	}
	h := new(Hit)
	if err := json.Unmarshal(data, h); err != nil {
		return nil, err
	}
	return h, nil
}

// hitBox is a hit, the task that most hits point to, and their parser: they are allocated at once.
type hitBox struct {
	hit    Hit
	task   Task
	parser hitParser
}

// hitParser reads JSON in the form in which daemons write it: without spaces, and with no name twice. It gives up on anything else.
// The strings that it returns are parts of s.
type hitParser struct {
	s    string
	i    int
	bad  bool
	task *Task // of the hit, if it has one
}

// fail gives up.
func (p *hitParser) fail() { p.bad, p.i = true, len(p.s) }

// at reports whether c is next, and skips it.
func (p *hitParser) at(c byte) bool {
	if p.i < len(p.s) && p.s[p.i] == c {
		p.i++
		return true
	}
	return false
}

// want skips c, which must be next.
func (p *hitParser) want(c byte) {
	if !p.at(c) {
		p.fail()
	}
}

// member is a member of the JSON object of a T: its name, as `"name":`, and how its value is read.
type member[T any] struct {
	name string
	read func(p *hitParser, of *T)
}

// readObject reads an object. all are in the order in which daemons write them.
func readObject[T any](p *hitParser, all []member[T], of *T) {
	p.want('{')
	seen, next := uint32(0), 0
	for first := true; !p.bad && !p.at('}'); first = false {
		if !first {
			p.want(',')
		}
		n := -1
		for i := range all { // usually the first or second one
			if k := (next + i) % len(all); strings.HasPrefix(p.s[p.i:], all[k].name) && seen&(1<<k) == 0 {
				n = k
				break
			}
		}
		if n < 0 {
			p.fail()
			return
		}
		seen, next, p.i = seen|1<<n, n+1, p.i+len(all[n].name)
		all[n].read(p, of)
	}
}

// readList reads an array of objects.
func readList[T any](p *hitParser, members []member[T]) []T {
	p.want('[')
	all := make([]T, 0, 2)
	for !p.bad && !p.at(']') {
		if len(all) > 0 {
			p.want(',')
		}
		var zero T
		all = append(all, zero)
		readObject(p, members, &all[len(all)-1])
	}
	return all
}

// text reads a string.
func (p *hitParser) text() string {
	p.want('"')
	start := p.i
	ascii := true
	for ; p.i < len(p.s); p.i++ {
		switch c := p.s[p.i]; {
		case c == '"':
			t := p.s[start:p.i]
			p.i++
			if !ascii && !utf8.ValidString(t) {
				p.fail()
			}
			return t
		case c == '\\':
			return p.unescape(start)
		case c < ' ':
			p.fail()
			return ""
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	p.fail()
	return ""
}

// unescape reads a string with escapes, which begins at start. p.i is at the first one.
func (p *hitParser) unescape(start int) string {
	for ; p.i < len(p.s); p.i++ {
		switch p.s[p.i] {
		case '\\':
			p.i++
		case '"':
			p.i++
			var t string
			if json.Unmarshal([]byte(p.s[start-1:p.i]), &t) != nil {
				p.fail()
			}
			return t
		}
	}
	p.fail()
	return ""
}

// digits reads the digits of a whole number that is at most most.
func (p *hitParser) digits(most uint64) (n uint64) {
	start := p.i
	for ; p.i < len(p.s) && p.s[p.i]-'0' <= 9; p.i++ {
		d := uint64(p.s[p.i] - '0')
		if n > (most-d)/10 {
			p.fail()
			return 0
		}
		n = 10*n + d
	}
	if p.i == start || p.s[start] == '0' && p.i != start+1 {
		p.fail()
	}
	return n
}

// integer reads a whole number from -most to most.
func (p *hitParser) integer(most int64) int64 {
	if p.at('-') {
		return -int64(p.digits(uint64(most))) // the least number of all goes to encoding/json
	}
	return int64(p.digits(uint64(most)))
}

// truth reads true or false.
func (p *hitParser) truth() bool {
	for _, v := range []struct {
		text  string
		value bool
	}{{"true", true}, {"false", false}} {
		if strings.HasPrefix(p.s[p.i:], v.text) {
			p.i += len(v.text)
			return v.value
		}
	}
	p.fail()
	return false
}

// hex reads a Hex in the form of String.
func (p *hitParser) hex() (v Hex) {
	const form = len(`"0x0000000000000000"`)
	if len(p.s)-p.i < form || p.s[p.i:p.i+3] != `"0x` || p.s[p.i+form-1] != '"' {
		p.fail()
		return 0
	}
	for _, c := range []byte(p.s[p.i+3 : p.i+form-1]) {
		switch {
		case c-'0' <= 9:
			v = v<<4 | Hex(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			v = v<<4 | Hex(c|0x20-'a'+10)
		default:
			p.fail()
			return 0
		}
	}
	p.i += form
	return v
}

// numbers are the values of Arg.Value that need no memory of their own.
var numbers = func() (all [256]any) {
	for i := range all {
		all[i] = float64(i)
	}
	return all
}()

// value reads the value of an argument: a number, a string or null.
func (p *hitParser) value() any {
	if p.i >= len(p.s) {
		p.fail()
		return nil
	}
	switch c := p.s[p.i]; {
	case c == '"':
		return p.text()
	case strings.HasPrefix(p.s[p.i:], "null"):
		p.i += len("null")
		return nil
	case c-'0' <= 9 || c == '-':
		const exact = 1 << 53
		start := p.i
		n := p.integer(exact)
		if p.bad {
			return nil
		}
		if p.i < len(p.s) && (p.s[p.i] == '.' || p.s[p.i]|0x20 == 'e') {
			return p.float(start)
		}
		if n >= 0 && n < int64(len(numbers)) && c != '-' {
			return numbers[n]
		} else if n == 0 {
			return math.Copysign(0, -1)
		}
		return float64(n)
	}
	p.fail()
	return nil
}

// float reads the number that begins at start and has a fraction or an exponent.
func (p *hitParser) float(start int) any {
	for p.i < len(p.s) && strings.IndexByte("0123456789.eE+-", p.s[p.i]) >= 0 {
		p.i++
	}
	text := p.s[start:p.i]
	if !json.Valid([]byte(text)) {
		p.fail()
		return nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		p.fail()
	}
	return f
}

// The members of the structures. A program's record by its type (value) and texts that are not UTF-8 (raw) are left to encoding/json.
var (
	hitMembers = []member[Hit]{
		{`"timeNs":`, func(p *hitParser, h *Hit) { h.TimeNS = p.integer(math.MaxInt64) }},
		{`"late":`, func(p *hitParser, h *Hit) { h.Late = p.truth() }},
		{`"cpu":`, func(p *hitParser, h *Hit) { h.CPU = int(p.integer(math.MaxInt)) }},
		{`"probe":`, func(p *hitParser, h *Hit) { h.Probe = p.text() }},
		{`"id":`, func(p *hitParser, h *Hit) { h.ID = p.digits(math.MaxUint64) }},
		{`"stage":`, func(p *hitParser, h *Hit) { h.Stage = p.text() }},
		{`"addr":`, func(p *hitParser, h *Hit) { h.Addr = p.hex() }},
		{`"symbol":`, func(p *hitParser, h *Hit) { h.Symbol = p.text() }},
		{`"ret":`, func(p *hitParser, h *Hit) { h.Ret = p.hex() }},
		{`"retSymbol":`, func(p *hitParser, h *Hit) { h.RetSymbol = p.text() }},
		{`"durationNs":`, func(p *hitParser, h *Hit) { h.DurationNS = p.integer(math.MaxInt64) }},
		{`"map":`, func(p *hitParser, h *Hit) { h.Map = p.text() }},
		{`"data":`, func(p *hitParser, h *Hit) { h.Data = p.bytes() }},
		{`"cpl":`, func(p *hitParser, h *Hit) { h.CPL = uint8(p.digits(math.MaxUint8)) }},
		{`"irqsOff":`, func(p *hitParser, h *Hit) { h.IRQsOff = p.truth() }},
		{`"task":`, func(p *hitParser, h *Hit) {
			h.Task = p.task
			readObject(p, taskMembers, h.Task)
		}},
		{`"args":`, func(p *hitParser, h *Hit) { h.Args = readList(p, argMembers) }},
		{`"regs":`, func(p *hitParser, h *Hit) { h.Regs = p.regs() }},
		{`"stack":`, func(p *hitParser, h *Hit) { h.Stack = readList(p, frameMembers) }},
		{`"text":`, func(p *hitParser, h *Hit) { h.Text = p.text() }},
	}
	taskMembers = []member[Task]{
		{`"pid":`, func(p *hitParser, t *Task) { t.PID = int32(p.integer(math.MaxInt32)) }},
		{`"comm":`, func(p *hitParser, t *Task) { t.Comm = p.text() }},
	}
	argMembers = []member[Arg]{
		{`"name":`, func(p *hitParser, a *Arg) { a.Name = p.text() }},
		{`"type":`, func(p *hitParser, a *Arg) { a.Type = p.text() }},
		{`"value":`, func(p *hitParser, a *Arg) { a.Value = p.value() }},
		{`"text":`, func(p *hitParser, a *Arg) { a.Text = p.text() }},
		{`"cut":`, func(p *hitParser, a *Arg) { a.Cut = p.truth() }},
	}
	frameMembers = []member[Frame]{
		{`"addr":`, func(p *hitParser, f *Frame) { f.Addr = p.hex() }},
		{`"symbol":`, func(p *hitParser, f *Frame) { f.Symbol = p.text() }},
		{`"name":`, func(p *hitParser, f *Frame) { f.Name = p.text() }},
		{`"source":`, func(p *hitParser, f *Frame) { f.Source = p.text() }},
		{`"user":`, func(p *hitParser, f *Frame) { f.User = p.truth() }},
		{`"inlined":`, func(p *hitParser, f *Frame) { f.Inlined = p.truth() }},
	}
)

// bytes reads base64.
func (p *hitParser) bytes() []byte {
	data, err := base64.StdEncoding.DecodeString(p.text())
	if err != nil {
		p.fail()
	}
	return data
}

// regs reads an object of numbers.
func (p *hitParser) regs() map[string]Hex {
	p.want('{')
	all := make(map[string]Hex, 18)
	for first := true; !p.bad && !p.at('}'); first = false {
		if !first {
			p.want(',')
		}
		name := p.text()
		p.want(':')
		all[name] = p.hex()
	}
	return all
}
