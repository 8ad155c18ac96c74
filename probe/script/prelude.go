package script

import (
	"fmt"
	"regexp"
	"strings"
)

// maxJoin is the maximum number of strings that join() prints, as in bpftrace.
const maxJoin = 16

// joinMacro is join(ARGV, DELIMITER). It prints the strings of an array of pointers, which ends with 0, in one line.
var joinMacro = func() string {
	var b, format, args strings.Builder
	b.WriteString("macro join(argv, delim) { $a = (uint64)argv; $p0 = *(uint64 *)$a; ")
	for i := range maxJoin {
		if i == 0 {
			args.WriteString(`, $p0 != 0 ? str($p0) : ""`)
		} else {
			fmt.Fprintf(&b, "$p%d = $p%d != 0 ? *(uint64 *)($a + %d) : (uint64)0; ", i, i-1, 8*i)
			fmt.Fprintf(&args, `, $p%d != 0 ? str_concat(delim, str($p%[1]d)) : ""`, i)
		}
		format.WriteString("%s")
	}
	fmt.Fprintf(&b, `printf("%s\n"%s); }`, &format, &args)
	return b.String()
}()

// printsJoin is the text of the call of printf in joinMacro.
const printsJoin = "join"

var callsJoin = regexp.MustCompile(`\bjoin\s*\(`)

// addJoin adds the macro join to a script that uses it without defining it.
func (s *script) addJoin() error {
	if len(s.macros["join"]) > 0 || !callsJoin.MatchString(s.text) {
		return nil
	}
	p := &parser{script: s, lexer: lexer{src: &source{name: "join", text: joinMacro}}}
	if err := p.advance(); err != nil {
		return err
	}
	if err := p.macroDef(); err != nil {
		return err
	}
	m := s.macros["join"][0]
	m.builtin = true
	m.block.body[len(m.block.body)-1].value.text = printsJoin
	return nil
}
