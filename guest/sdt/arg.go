package sdt

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// Kind is where an argument is stored.
type Kind uint8

// Kinds of arguments.
const (
	Constant Kind = iota // the argument is Value
	Register             // it is in Reg
	Memory               // it is in memory at Value, plus Base and Index if set
)

// None means that an address has no such register.
const None x86.Reg64 = 0xff

// Arg is an argument of a probe: an assembler operand and its size.
type Arg struct {
	Text   string // as in the file: N@OPERAND
	Size   int    // bytes: 1, 2, 4 or 8
	Signed bool

	Kind  Kind
	Value int64     // the constant, or the displacement of Memory
	Reg   x86.Reg64 // for Register
	High  bool      // for Register: bits 8 to 15, such as AH
	Base  x86.Reg64 // for Memory; None: no base
	Index x86.Reg64 // for Memory; None: no index
	Scale uint8     // log2 of the factor of Index

	// Why says why the argument cannot be read, or is "" if it can. If set, Kind and the fields after it are meaningless.
	Why string
}

// ParseArgs parses the arguments of a probe. Arguments that cannot be read have Why set.
func ParseArgs(text string) []Arg {
	var out []Arg
	for _, t := range strings.Fields(text) {
		a := Arg{Text: t, Base: None, Index: None}
		a.Why = a.parse(t)
		out = append(out, a)
	}
	return out
}

// Reasons for formats that are not supported.
const (
	whyFloat  = "it is a floating-point number"
	whySymbol = "its address is given by the name of a symbol"
	whyThread = "it is in memory of a thread's own (TLS)"
)

// parse parses N@OPERAND. It returns why the argument cannot be read, or "".
func (a *Arg) parse(text string) (why string) {
	size, operand, ok := strings.Cut(text, "@")
	if !ok {
		return "its size is not known (N@ is missing)"
	}
	number, float := strings.CutSuffix(size, "f")
	number, a.Signed = strings.CutPrefix(number, "-")
	switch number {
	case "1", "2", "4", "8":
		a.Size = int(number[0] - '0')
	default:
		return fmt.Sprintf("its size %q is not 1, 2, 4 or 8 bytes", size)
	}
	switch {
	case float:
		return whyFloat
	case strings.HasPrefix(operand, "%") && strings.Contains(operand, ":"):
		return whyThread
	case strings.HasPrefix(operand, "%"):
		return a.register(operand[1:])
	case strings.HasPrefix(operand, "$"):
		if a.Value, ok = number64(operand[1:]); !ok {
			return whySymbol
		}
		a.Kind = Constant
		return ""
	}
	return a.memory(operand)
}

// register parses the name of a register of any width.
func (a *Arg) register(name string) (why string) {
	reg, size, high, ok := registerOf(name)
	switch {
	case !ok:
		return fmt.Sprintf("%%%s is no general register", name)
	case a.Size > size:
		return fmt.Sprintf("%%%s does not have its %d bytes", name, a.Size)
	}
	a.Kind, a.Reg, a.High = Register, reg, high
	return ""
}

// memory parses DISPLACEMENT(%BASE,%INDEX,SCALE). Parts may be missing.
func (a *Arg) memory(operand string) (why string) {
	displacement, rest, ok := strings.Cut(operand, "(")
	if !ok {
		if _, number := number64(operand); number {
			return "it is at an address that does not move with the program"
		}
		return whySymbol
	}
	inside, ok := strings.CutSuffix(rest, ")")
	if !ok {
		return "its address is not understood"
	}
	if displacement != "" {
		if a.Value, ok = number64(displacement); !ok {
			return whySymbol
		}
	}
	parts := strings.Split(inside, ",")
	if len(parts) > 3 || len(parts) == 2 && parts[1] == "" || parts[0] == "" && len(parts) == 1 {
		return "its address is not understood"
	}
	for i, to := range []*x86.Reg64{&a.Base, &a.Index} {
		if i >= len(parts) || parts[i] == "" && i == 0 {
			continue
		}
		name, isRegister := strings.CutPrefix(parts[i], "%")
		reg, size, _, ok := registerOf(name)
		switch {
		case isRegister && name == "rip":
			return "its address is relative to an instruction"
		case !isRegister || !ok || size != 8 || i == 1 && reg == x86.RSP:
			return fmt.Sprintf("%s is no register of an address of 64 bits", parts[i])
		}
		*to = reg
	}
	if len(parts) == 3 {
		switch parts[2] {
		case "1", "2", "4", "8":
			a.Scale = uint8(strings.IndexByte("1248", parts[2][0]))
		default:
			return fmt.Sprintf("its scale %q is not 1, 2, 4 or 8", parts[2])
		}
	}
	a.Kind = Memory
	return ""
}

// number64 parses a number of at most 64 bits in assembler syntax: an optional sign, and decimal digits, or hexadecimal or octal ones with a prefix. It also
// accepts sums such as 8-16.
func number64(s string) (n int64, ok bool) {
	for i := 1; i < len(s); i++ {
		if c := s[i]; c == '+' || c == '-' {
			a, ok1 := number64(s[:i])
			b, ok2 := number64(s[i:])
			return a + b, ok1 && ok2
		}
	}
	s = strings.TrimPrefix(s, "+")
	if strings.Contains(s, "_") {
		return 0, false
	}
	if n, err := strconv.ParseInt(s, 0, 64); err == nil {
		return n, true
	}
	u, err := strconv.ParseUint(s, 0, 64)
	return int64(u), err == nil
}

// registerOf returns the general register with that name, such as rax, eax, ax, al or ah, and how many bytes of it the name means.
func registerOf(name string) (reg x86.Reg64, size int, high, ok bool) {
	n, ok := registers[name]
	return n.reg, n.size, n.high, ok
}

type named struct {
	reg  x86.Reg64
	size int
	high bool
}

// registers maps names to general registers (SDM Vol. 1, 3.4.1).
var registers = func() map[string]named {
	all := map[string]named{}
	for r := x86.RAX; r <= x86.R15; r++ {
		name := r.String()
		all[name] = named{r, 8, false}
		if r >= x86.R8 {
			all[name+"d"], all[name+"w"], all[name+"b"] = named{r, 4, false}, named{r, 2, false}, named{r, 1, false}
			continue
		}
		all["e"+name[1:]], all[name[1:]] = named{r, 4, false}, named{r, 2, false}
		if letter, ok := strings.CutSuffix(name[1:], "x"); ok {
			all[letter+"l"], all[letter+"h"] = named{r, 1, false}, named{r, 1, true}
		} else {
			all[name[1:]+"l"] = named{r, 1, false}
		}
	}
	return all
}()
