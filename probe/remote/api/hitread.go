package api

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ReadHit reads the data of a record of type hit, as json.Unmarshal does, in a fifth of its time if a daemon wrote it. Any goroutine may call it.
func ReadHit(data []byte) (*Hit, error) {
	box := new(hitBox)
	p := hitParser{s: string(data), box: box}
	p.hit(&box.hit)
	if !p.bad && p.i == len(p.s) {
		return &box.hit, nil
	}
	h := new(Hit)
	if err := json.Unmarshal(data, h); err != nil {
		return nil, err
	}
	return h, nil
}

// hitBox is a hit with what most hits point to, so that both are allocated at once.
type hitBox struct {
	hit  Hit
	task Task
}

// hitParser reads JSON in the form in which daemons write it: without spaces, and with no name twice. It gives up on anything else.
// The strings that it returns are parts of s.
type hitParser struct {
	s   string
	i   int
	bad bool
	box *hitBox
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

// members are the names of an object's members in the order in which daemons write them, each as `"name":`.
type members []string

// next reads the name of the object's next member and returns its number, or -1 after the last one. It is called with seen 0 for the first
// one; seen then has a bit for each member that was read.
func (of members) next(p *hitParser, seen *uint32) int {
	switch {
	case p.bad:
		return -1
	case *seen == 0:
		p.want('{')
		if p.at('}') {
			return -1
		}
	case p.at('}'):
		return -1
	default:
		p.want(',')
	}
	rest := p.s[p.i:]
	for i := range of {
		n := (bits.Len32(*seen) + i) % len(of) // usually the first or second one
		if strings.HasPrefix(rest, of[n]) && *seen&(1<<n) == 0 {
			*seen |= 1 << n
			p.i += len(of[n])
			return n
		}
	}
	p.fail()
	return -1
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

// list reads an array, with each called for its elements.
func (p *hitParser) list(each func()) {
	p.want('[')
	if p.at(']') {
		return
	}
	for !p.bad {
		each()
		if p.at(']') {
			return
		}
		p.want(',')
	}
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
	hitMembers = members{
		`"timeNs":`, `"late":`, `"cpu":`, `"probe":`, `"id":`, `"stage":`, `"addr":`, `"symbol":`, `"ret":`, `"retSymbol":`, `"durationNs":`,
		`"map":`, `"data":`, `"cpl":`, `"irqsOff":`, `"task":`, `"args":`, `"regs":`, `"stack":`, `"text":`,
	}
	taskMembers  = members{`"pid":`, `"comm":`}
	argMembers   = members{`"name":`, `"type":`, `"value":`, `"text":`, `"cut":`}
	frameMembers = members{`"addr":`, `"symbol":`, `"name":`, `"source":`, `"user":`, `"inlined":`}
)

// hit reads a hit.
func (p *hitParser) hit(h *Hit) {
	for seen := uint32(0); ; {
		switch hitMembers.next(p, &seen) {
		case 0:
			h.TimeNS = p.integer(math.MaxInt64)
		case 1:
			h.Late = p.truth()
		case 2:
			h.CPU = int(p.integer(math.MaxInt))
		case 3:
			h.Probe = p.text()
		case 4:
			h.ID = p.digits(math.MaxUint64)
		case 5:
			h.Stage = p.text()
		case 6:
			h.Addr = p.hex()
		case 7:
			h.Symbol = p.text()
		case 8:
			h.Ret = p.hex()
		case 9:
			h.RetSymbol = p.text()
		case 10:
			h.DurationNS = p.integer(math.MaxInt64)
		case 11:
			h.Map = p.text()
		case 12:
			data, err := base64.StdEncoding.DecodeString(p.text())
			if err != nil {
				p.fail()
			}
			h.Data = data
		case 13:
			h.CPL = uint8(p.digits(math.MaxUint8))
		case 14:
			h.IRQsOff = p.truth()
		case 15:
			h.Task = &p.box.task
			p.task(h.Task)
		case 16:
			h.Args = p.args()
		case 17:
			h.Regs = p.regs()
		case 18:
			h.Stack = p.frames()
		case 19:
			h.Text = p.text()
		default:
			return
		}
	}
}

func (p *hitParser) task(t *Task) {
	for seen := uint32(0); ; {
		switch taskMembers.next(p, &seen) {
		case 0:
			t.PID = int32(p.integer(math.MaxInt32))
		case 1:
			t.Comm = p.text()
		default:
			return
		}
	}
}

func (p *hitParser) args() []Arg {
	var few [4]Arg
	all := few[:0]
	p.list(func() {
		var a Arg
		for seen := uint32(0); ; {
			switch argMembers.next(p, &seen) {
			case 0:
				a.Name = p.text()
			case 1:
				a.Type = p.text()
			case 2:
				a.Value = p.value()
			case 3:
				a.Text = p.text()
			case 4:
				a.Cut = p.truth()
			default:
				all = append(all, a)
				return
			}
		}
	})
	return append(make([]Arg, 0, len(all)), all...)
}

func (p *hitParser) frames() []Frame {
	all := []Frame{}
	p.list(func() {
		var f Frame
		for seen := uint32(0); ; {
			switch frameMembers.next(p, &seen) {
			case 0:
				f.Addr = p.hex()
			case 1:
				f.Symbol = p.text()
			case 2:
				f.Name = p.text()
			case 3:
				f.Source = p.text()
			case 4:
				f.User = p.truth()
			case 5:
				f.Inlined = p.truth()
			default:
				all = append(all, f)
				return
			}
		}
	})
	return all
}

func (p *hitParser) regs() map[string]Hex {
	p.want('{')
	all := make(map[string]Hex, 18)
	if p.at('}') {
		return all
	}
	for !p.bad {
		name := p.text()
		p.want(':')
		all[name] = p.hex()
		if p.at('}') {
			break
		}
		p.want(',')
	}
	return all
}
